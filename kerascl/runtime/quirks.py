"""What particular drivers get wrong: a table of predicates and overrides.

`apply` replaces fields of a DeviceInfo and adds quirk names to `info.quirks`;
code elsewhere asks `"name" in info.quirks` and never looks at vendor strings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class Quirk:
    """One row: a name, the reason, which devices have it, and which facts it overrides."""

    name: str
    why: str
    applies: Callable[[DeviceInfo], bool]
    overrides: dict[str, Any] = field(default_factory=dict)


def _pocl(info: DeviceInfo) -> bool:
    return info.platform == "Portable Computing Language"


def _pocl_pypi(info: DeviceInfo) -> bool:
    return _pocl(info) and info.driver_version.startswith("3.0")


def _nvidia(info: DeviceInfo) -> bool:
    return info.platform == "NVIDIA CUDA"


def _intel_cpu(info: DeviceInfo) -> bool:
    return info.platform == "Intel(R) OpenCL" and info.kind == "cpu"


def _intel_cpu_2026_2(info: DeviceInfo) -> bool:
    return _intel_cpu(info) and info.driver_version.startswith("2026.22.")


def _rusticl(info: DeviceInfo) -> bool:
    return info.platform == "rusticl"


def _llvmpipe(info: DeviceInfo) -> bool:
    return _rusticl(info) and info.kind == "cpu"


def _amd(info: DeviceInfo) -> bool:
    return info.platform == "AMD Accelerated Parallel Processing" and info.kind == "gpu"


def _amd_gpu(info: DeviceInfo) -> bool:
    """Under anyone's driver."""
    return info.kind == "gpu" and info.vendor.startswith(("AMD", "Advanced Micro Devices"))


def _gcn(info: DeviceInfo) -> bool:
    """Wavefronts of 64 that share 256 registers a lane; from gfx90a on there are 512."""
    return _amd(info) and info.simd_width == 64 and not info.name.startswith(("gfx90a", "gfx94"))


def _intel_gpu(info: DeviceInfo) -> bool:
    return info.kind == "gpu" and info.vendor.startswith("Intel")


def _mobile(info: DeviceInfo) -> bool:
    return info.platform in ("ARM Platform", "QUALCOMM Snapdragon(TM)")


def _oclgrind(info: DeviceInfo) -> bool:
    return info.platform == "Oclgrind"


TABLE = (
    Quirk(
        "no_fma16",
        "the PoCL wheel on PyPI aborts on fma(float16, …) into private arrays",
        _pocl_pypi,
    ),
    Quirk(
        "no_fp16",
        "PoCL before 4 builds half arithmetic on few targets only",
        lambda info: _pocl(info) and info.driver_version < "4",
        {"fp16": False},
    ),
    Quirk(
        "undefined_constant_nan",
        "PoCL's floor, and other functions, of a constant NaN are undefined (3.1 and 5.0): "
        "clip(floor(NaN - x), -1, 2) gave what lay in memory",
        _pocl,
    ),
    Quirk(
        "prints_warnings",
        "PoCL writes to the terminal how many warnings a program has, vectors wider than the "
        "processor's among them; -w leaves them out",
        _pocl,
    ),
    Quirk(
        "no_matrix",
        "kernels with inline PTX are written for NVIDIA's own driver",
        lambda info: info.nvidia_capability is not None and not _nvidia(info),
        {"matrix": ""},
    ),
    Quirk(
        "no_wmma",
        "WMMA is written for the builtins of AMD's own compiler, and for halves",
        lambda info: info.matrix.startswith("wmma") and not (_amd(info) and info.fp16),
        {"matrix": ""},
    ),
    Quirk(
        "no_mfma",
        "MFMA is written for the builtins of AMD's own compiler, and for halves",
        lambda info: info.matrix.startswith("mfma") and not (_amd(info) and info.fp16),
        {"matrix": ""},
    ),
    Quirk(
        "no_xmx",
        "XMX is written for the compiler of Intel's own driver for GPUs",
        lambda info: (
            info.matrix.startswith("xmx")
            and not (_intel_gpu(info) and info.platform.startswith("Intel(R) OpenCL"))
        ),
        {"matrix": ""},
    ),
    Quirk(
        "no_subgroups",
        "NVIDIA's driver reports sub-group counts but offers no sub-group functions",
        _nvidia,
        {"subgroups": False, "simd_width": 32},
    ),
    Quirk(
        "lazy_allocation",
        "a buffer gets its memory at its first use, so the allocator touches it",
        lambda info: info.kind == "gpu",
    ),
    Quirk(
        "native_half_conversion",
        "vload_half and vstore_half are single instructions, also without cl_khr_fp16",
        _nvidia,
    ),
    Quirk(
        "wide_products",
        "halves of a product of words are cheapest as those of one product of 64 bits",
        lambda info: info.kind == "cpu" or _amd(info),
    ),
    Quirk(
        "inline_ptx",
        "the compiler takes PTX inside asm, which has approximate functions as single instructions",
        _nvidia,
    ),
    Quirk(
        "native_bfloat16_conversion",
        "PTX has an instruction that rounds to bfloat16",
        lambda info: _nvidia(info) and (info.nvidia_capability or (0, 0)) >= (8, 0),
    ),
    Quirk(
        "native_extremes",
        "PTX has minima and maxima of floats that are NaN where an operand is",
        lambda info: _nvidia(info) and (info.nvidia_capability or (0, 0)) >= (8, 0),
    ),
    Quirk(
        "slow_memory_arguments",
        "each memory object among a kernel's arguments costs the host 0.4 us per launch",
        _nvidia,
    ),
    Quirk(
        "serial_compilation",
        "a process compiles one program at a time, however many threads ask",
        _nvidia,
    ),
    Quirk(
        "simulator",
        "a simulator: only used when asked for by name",
        _oclgrind,
    ),
    Quirk(
        "retains_compiler_memory",
        "a program from source keeps 3 MiB of the compiler's memory, one from a binary 0.5 MiB",
        _intel_cpu,
    ),
    Quirk(
        "fatal_compiler",
        "once in some ten thousand programs its compiler ends the process (signal 11) or never "
        "returns (LLVM's SROA), and does neither when it is given the same program again",
        _intel_cpu,
    ),
    Quirk(
        "host_must_wait",
        "one core works for the device only while a host thread waits for the device",
        _intel_cpu,
    ),
    Quirk(
        "miscompiles",
        "its compiler never sets the register of ones for NOT of a maximum in scalar code that it "
        "turns into vectors, and subtracts the lanes of a subtracting loop from each other where a "
        "narrower vector takes the loop's remainder; without these two passes both are right",
        _intel_cpu_2026_2,
        {
            "compiler_options": "-disable-x86-scalar-to-vector "
            "-vplan-enable-non-masked-vectorized-remainder=false"
        },
    ),
    Quirk(
        "keeps_choices_wrongly",
        "its compiler takes a negated float, and what follows from it alone such as a sigmoid, for "
        "the same in all work-items, so that behind a barrier all have the last one's; so it does "
        "with what comparisons decided: -sign(x) of rows whose mean and variance are taken (AVX2); "
        "and from one short loop to the next: log_softmax of padded rows, softmax of rolled ones; "
        "it ends the process (signal 11) where what was decided for a row is used behind two; seen "
        "in 2026.22, and nothing says that others do better",
        _intel_cpu,
    ),
    Quirk(
        "negates_wrongly",
        "its compiler takes the sign of a negated integer from what was negated where it makes -1 "
        "or 0 of it (a shift by all bits, or (x > 0) - (x < 0)): wrong of the least number",
        _intel_cpu,
    ),
    Quirk(
        "fails_at_many_stages",
        "its compiler ends the process (signal 11) where it computes a long value again in several "
        "loops behind barriers; its option against that makes it keep others wrongly",
        _intel_cpu_2026_2,
        {"most_reductions": 3},
    ),
    Quirk(
        "miscompiles_integer_minmax",
        "its assembler drops a minus of max(max(a, -b), -c) of integers, and takes max(a, b) == b "
        "of 16 bits for a >= b (580.159, CUDA 13.0)",
        lambda info: _nvidia(info) and (info.nvidia_capability or (0, 0)) >= (9, 0),
    ),
    Quirk(
        "no_prefetch",
        "its compiler ends the process at a prefetch (Mesa 22.3)",
        _rusticl,
    ),
    Quirk(
        "copies_in_turn",
        "what a queue waits for of another stops its thread on the host (Mesa), or all share one "
        "(Oclgrind): a queue for copies would win nothing",
        lambda info: _rusticl(info) or _oclgrind(info),
    ),
    Quirk(
        "software_rasterizer",
        "a graphics driver's stand-in for a GPU, whose work-items are lanes: only used when asked "
        "for by name",
        _llvmpipe,
        {"kind": "gpu"},
    ),
    Quirk(
        "cuts_loops",
        "the loops of a work-item end after 65,535 rounds in all, without an error (Mesa 22.3)",
        _llvmpipe,
    ),
    Quirk(
        "schedules_for_registers",
        "its assembler keeps loops that are unrolled within the registers",
        _nvidia,
    ),
    Quirk(
        "registers_of_gcn",
        "with more, one wavefront has a SIMD unit for itself, and nothing hides its waits",
        _gcn,
        {"registers": 128},
    ),
    Quirk(
        "registers_of_amd",
        "an instruction can name 256; others go to memory",
        lambda info: _amd_gpu(info) and not _gcn(info),
        {"registers": 255},
    ),
    Quirk(
        "registers_of_intel",
        "a thread of eight lanes has 4 KiB",
        _intel_gpu,
        {"registers": 128},
    ),
    Quirk(
        "registers_of_xe_hpc",
        "a thread of 16 lanes has 8 KiB, of which addresses take more (also Xe2)",
        lambda info: _intel_gpu(info) and info.sub_group_sizes[:1] == (16,),
        {"registers": 100},
    ),
    Quirk(
        "registers_of_mobile",
        "Mali's work-items have 64; on Adreno more make the largest work-group smaller",
        _mobile,
        {"registers": 64},
    ),
    Quirk("no_binaries", "program binaries of a simulator are not loaded again", _oclgrind),
    Quirk(
        "compiles_in_turn",
        "its compiler now and then ends the process (signal 11) where two threads compile at once",
        _oclgrind,
    ),
)


def apply(info: DeviceInfo) -> DeviceInfo:
    """`info` with every matching row's overrides and the rows' names in `quirks`."""
    rows = [row for row in TABLE if row.applies(info)]
    fields = {key: value for row in rows for key, value in row.overrides.items()}
    return dataclasses.replace(info, **fields, quirks=frozenset(row.name for row in rows))
