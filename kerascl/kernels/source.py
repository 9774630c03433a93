"""The text of one kernel, and of a translation unit of several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kerascl import dtypes

FP64 = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"


@dataclass(frozen=True)
class Source:
    """One kernel whose text can stand beside others: its parameters and body, the C functions
    that it calls, and the build options it needs."""

    name: str
    params: tuple[str, ...]
    body: str
    helpers: tuple[str, ...]
    uses_double: bool
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"__kernel void {self.name}({', '.join(self.params)}) {{\n{self.body}}}\n"


def unit(sources: Iterable[Source]) -> str:
    """One translation unit of several kernels of different names."""
    sources = list(sources)
    parts = [dtypes.PRELUDE]
    if any(s.uses_double for s in sources):
        parts.insert(0, FP64)
    parts.extend(dict.fromkeys(h for s in sources for h in s.helpers))
    parts.extend(s.text for s in sources)
    return "".join(parts)
