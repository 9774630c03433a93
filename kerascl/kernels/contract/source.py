"""OpenCL C: the files beside the planners, the text of one kernel, and of a unit of several."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.runtime.device import DeviceInfo

SPACE = "#define INNER_SPACE {}\n"
MADE = "// The inner parameter may be made here.\n"
FP64 = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"


@dataclass(frozen=True)
class Source:
    """One kernel whose text can stand beside others: its parameters and body, the C functions
    that it calls, and the build options it needs.  Where `group` is not 0, all work-groups have so
    many work-items along their first dimension, which the compiler then leaves registers for.
    Where `lanes` is not 0, sub-groups have so many work-items.  `inner` is a parameter whose memory
    may also be the work-group's own: the body names its address space INNER_SPACE, by a line as
    SPACE, and reads it only, behind the line MADE where it has one; INNER_MADE is defined then.
    `local_bytes` are what such a body declares. `epilogue` are those parameters that only lines of
    the body name which begin with #define EPILOGUE."""

    name: str
    params: tuple[str, ...]
    body: str
    helpers: tuple[str, ...]
    uses_double: bool
    options: tuple[str, ...] = ()
    group: int = 0
    lanes: int = 0
    inner: str = ""
    local_bytes: int = 0
    epilogue: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The kernel, without its helpers."""
        sized = f"__attribute__((reqd_work_group_size({self.group}, 1, 1))) " if self.group else ""
        sized = sub_groups(self.lanes) + sized
        return f"__kernel {sized}void {self.name}({', '.join(self.params)}) {{\n{self.body}}}\n"


def unit(sources: Iterable[Source]) -> str:
    """One translation unit of several kernels of different names."""
    sources = list(sources)
    parts = [dtypes.PRELUDE]
    if any(s.uses_double for s in sources):
        parts.insert(0, FP64)
    parts.extend(dict.fromkeys(h for s in sources for h in s.helpers))
    parts.extend(s.text for s in sources)
    return "".join(parts)


_KERNELS = Path(__file__).parents[1]
ONE_AT_ONCE = '_Pragma("nounroll")'
TWO_AT_ONCE = '_Pragma("unroll 2")'


@functools.cache
def cl_source(name: str) -> str:
    """The text of kernels/<name>, as "matmul/gemm_tile.cl"."""
    return (_KERNELS / name).read_text()


def prelude(index: str = "int", **types: DType) -> str:
    """Macros that let one source serve every dtype.

    `prelude(A=bfloat16, ACC=float32)` defines A_T (storage type), A_C (compute
    type), A_LOAD(p, i), A_STORE(p, i, v) and so on for each name; ACC_T is the
    compute type of ACC, INDEX_T is `index` ("int" or "long").
    """
    extension = FP64 if any(t.is_double for t in types.values()) else ""
    return extension + dtypes.PRELUDE + "\n" + type_macros(index, **types)


def type_macros(index: str = "int", **types: DType) -> str:
    """The macros of `prelude` without what they call."""
    lines = [f"#define INDEX_T {index}"]
    for name, dtype in types.items():
        if name == "ACC":
            lines.append(f"#define ACC_T {dtype.compute}")
            continue
        lines.append(f"#define {name}_T {dtype.storage}")
        lines.append(f"#define {name}_C {dtype.compute}")
        lines.append(f"#define {name}_LOAD(p, i) {dtype.load.format(p='(p)', i='(i)')}")
        store = dtype.store.format(p="(p)", i="(i)", v=f"(({dtype.compute})(v))")
        lines.append(f"#define {name}_STORE(p, i, v) {store}")
    return "\n".join(lines) + "\n"


def within(text: str) -> str:
    """Text for a kernel's body whose macros end with it, as another kernel may stand behind it."""
    names = dict.fromkeys(re.findall(r"^ *#define +(\w+)", text, re.MULTILINE))
    return text + "".join(f"#undef {name}\n" for name in names)


def narrow(info: DeviceInfo) -> str:
    """The macro NARROW before a kernel's type: sub-groups as small as they can be where registers
    are what counts, for a thread's registers are shared by its lanes."""
    return f"#define NARROW {sub_groups(narrowest(info)).rstrip()}\n"


def narrowest(info: DeviceInfo) -> int:
    """Lanes of such a sub-group, 0 where compilers choose."""
    return min(info.sub_group_sizes, default=0) if info.registers else 0


def sub_groups(lanes: int) -> str:
    """A kernel's attribute for sub-groups of so many lanes, and a space; "" for 0."""
    return f"__attribute__((intel_reqd_sub_group_size({lanes}))) " if lanes else ""


def few_loads(info: DeviceInfo) -> str:
    """The macro FEW_LOADS before a loop that copies a tile, which keeps it from being unrolled
    whole where sub-groups are narrow: a thread has no registers for all that a work-item copies.
    SCARCE is 1 there and 0 elsewhere."""
    scarce = bool(info.registers and info.sub_group_sizes)
    return f"#define FEW_LOADS {TWO_AT_ONCE if scarce else ''}\n#define SCARCE {int(scarce)}\n"


def bounded(info: DeviceInfo, crowded: bool = False) -> str:
    """The macro BOUNDED before a loop over a tile's depth, which keeps it from being unrolled whole
    where compilers then put all its loads in front until registers spill, or, where they are
    `crowded` as it is, from being unrolled at all."""
    trusted = info.kind != "gpu" or "schedules_for_registers" in info.quirks
    return f"#define BOUNDED {'' if trusted else ONE_AT_ONCE if crowded else TWO_AT_ONCE}\n"


def defines(**values: object) -> str:
    """`#define NAME value` lines."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())
