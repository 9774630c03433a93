"""Compiles sources with inline PTX where there is no NVIDIA card: clang to PTX, ptxas to code."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tests.offline.compilers import ONE_MACRO

# What the OpenCL compiler of NVIDIA's driver supplies and clang alone does not.
HEADER = """\
#define asm __asm__
#define vstore_half_rte(v, i, p) ({ ushort h_; \
  __asm__("cvt.rn.f16.f32 %0, %1;" : "=h"(h_) : "f"((float)(v))); ((ushort*)(p))[i] = h_; })
#define vload_half(i, p) ({ float f_; \
  __asm__("cvt.f32.f16 %0, %1;" : "=f"(f_) : "h"(((const ushort*)(p))[i])); f_; })
#define get_local_id(d) ({ int r_; __asm__("mov.u32 %0, %%tid.x;" : "=r"(r_)); r_; })
#define get_group_id(d) ({ int r_; __asm__("mov.u32 %0, %%ctaid.x;" : "=r"(r_)); r_; })
#define get_num_groups(d) ({ int r_; __asm__("mov.u32 %0, %%nctaid.x;" : "=r"(r_)); r_; })
#define barrier(f) __asm__ volatile("bar.sync 0;" ::: "memory")
#define atomic_inc(p) ({ unsigned r_; \
  __asm__ volatile("atom.global.inc.u32 %0, [%1], -1;" : "=r"(r_) : "l"(p) : "memory"); r_; })
#define atomic_add(p, n) ({ unsigned r_; \
  __asm__ volatile("atom.global.add.u32 %0, [%1], %2;" \
                   : "=r"(r_) : "l"(p), "r"(n) : "memory"); r_; })
#define native_divide(a, b) ({ float r_; \
  __asm__("div.approx.f32 %0, %1, %2;" : "=f"(r_) : "f"((float)(a)), "f"((float)(b))); r_; })
#define one_float(op, x) ({ float r_; \
  __asm__(#op ".approx.f32 %0, %1;" : "=f"(r_) : "f"((float)(x))); r_; })
#define exp2(x) one_float(ex2, x)
#define log2(x) one_float(lg2, x)
#define fmax(a, b) max((float)(a), (float)(b))
#define convert_float4(x) __builtin_convertvector(x, float4)
#define convert_uint4(x) __builtin_convertvector(x, uint4)
#define vload_half4(i, p) ((float4)(vload_half(4 * (i), p), vload_half(4 * (i) + 1, p), \
  vload_half(4 * (i) + 2, p), vload_half(4 * (i) + 3, p)))
#define vstore4(v, i, p) ({ const float4 v_ = (v); \
  (p)[4 * (i)] = v_.x; (p)[4 * (i) + 1] = v_.y; (p)[4 * (i) + 2] = v_.z; (p)[4 * (i) + 3] = v_.w; })
#define mul_hi(a, b) __nvvm_mulhi_ui(a, b)
#define native_recip(a) native_divide(1.0f, a)
#define min(a, b) ({ __typeof__(a) a_ = (a), b_ = (b); a_ < b_ ? a_ : b_; })
#define max(a, b) ({ __typeof__(a) a_ = (a), b_ = (b); a_ > b_ ? a_ : b_; })
"""


# What is spilled depends on its version: the kernels' budgets are those of this one.
CLANG = "clang-15"


def available() -> bool:
    """Whether both compilers are there."""
    return bool(shutil.which(CLANG) and shutil.which("ptxas"))


def resources(
    source: str,
    arch: str = "sm_80",
    threads: int | None = None,
    rewrite: Callable[[bytes], bytes] | None = None,
) -> dict[str, int]:
    """Registers, bytes of stack, spill stores and local memory of a source's one kernel, and how
    many warnings of lost performance ("lost") ptxas gives.

    `threads` of a group, which clang leaves out of the PTX, bound the registers; `rewrite` is what
    the runtime does to the PTX.

    Raises:
        AssertionError: either compiler refuses the source; the text says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, _ = _compile(Path(folder), source, arch, threads, rewrite)
    used = {"registers": r"Used (\d+) registers", "stack": r"(\d+) bytes stack",
            "spills": r"(\d+) bytes spill stores", "local": r"(\d+) bytes smem"}  # fmt: skip
    found = {name: re.search(pattern, report) for name, pattern in used.items()}
    used = {name: int(match[1]) if match else 0 for name, match in found.items()}
    return used | {"lost": len(re.findall(r"\(C75\d\d\)", report))}


def disassembly(
    source: str,
    arch: str = "sm_80",
    threads: int | None = None,
    rewrite: Callable[[bytes], bytes] | None = None,
) -> str:
    """A source's instructions, as nvdisasm writes them; arguments and errors as of `resources`."""
    nvdisasm = disassembler()
    assert nvdisasm, "nvdisasm is not installed"
    with tempfile.TemporaryDirectory() as folder:
        _, cubin = _compile(Path(folder), source, arch, threads, rewrite)
        return _run(nvdisasm, "-c", str(cubin))


def disassembler() -> str | None:
    """The path of nvdisasm: that of the package nvidia-cuda-nvdisasm, or CUDA's own."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    own = [str(file.locate()) for file in files if file.name == "nvdisasm"]
    return own[0] if own else shutil.which("nvdisasm")


def _compile(
    folder: Path,
    source: str,
    arch: str,
    threads: int | None,
    rewrite: Callable[[bytes], bytes] | None,
) -> tuple[str, Path]:
    """What ptxas reports, and its output."""
    cl, ptx, out = (folder / name for name in ("k.cl", "k.ptx", "k.cubin"))
    cl.write_text(HEADER + source)
    _run(CLANG, "-x", "cl", "-cl-std=CL2.0", "-target", "nvptx64-nvidia-nvcl",
         "-Xclang", "-finclude-default-header", "-Xclang", "-target-feature", "-Xclang",
         "+ptx72", "-Xclang", "-target-cpu", "-Xclang", "sm_80", "-O3", *ONE_MACRO,
         "-S", str(cl), "-o", str(ptx))  # fmt: skip
    text = re.sub(r"\.version \S+", ".version 7.8", ptx.read_text())
    text = re.sub(r"\.target .*", f".target {arch}", text)
    if threads:
        text = re.sub(r"(\.entry [^{]*?\n\))", rf"\1\n.reqntid {threads}, 1, 1", text, count=1)
    if rewrite:
        text = rewrite(text.encode()).decode()
        text, arch = text.replace(".version 7.8", ".version 8.3"), arch + "a"
    ptx.write_text(text)
    return _run("ptxas", f"-arch={arch}", "-v", str(ptx), "-o", str(out)), out


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr
