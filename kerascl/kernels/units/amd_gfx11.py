"""WMMA of AMD's RDNA 3 (gfx11) for wavefronts of 32.

Layouts are those of the RDNA 3 instruction set architecture, section 7.9 (wave matrix
multiply-accumulate): both halves of a wavefront hold all of a and b.  Rates are not measured.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.units import amd
from kerascl.kernels.units.fragment import Fragment, Layout, Unit, threefold

SIZE = 16  # m, n and k


def _fragment(dtype: DType, name: str, vector: str) -> Fragment:
    depths = range(SIZE)
    return Fragment(
        dtype, SIZE, SIZE, SIZE, 32,
        a=Layout(SIZE, (0, 0), (1, 0), tuple((0, k) for k in depths)),
        b=Layout(SIZE, (0, 0), (0, 1), tuple((k, 0) for k in depths)),
        d=Layout(SIZE, (1, 0), (0, 1), tuple((row, 0) for row in range(0, SIZE, 2))),
        macro=amd.macro(f"__builtin_amdgcn_wmma_f32_16x16x16_{name}_w32", vector, 8, 8),
    )  # fmt: skip


FRAGMENTS = {
    dtypes.bfloat16: _fragment(dtypes.bfloat16, "bf16", "short16"),
    dtypes.float16: _fragment(dtypes.float16, "f16", "half16"),
}
FRAGMENTS[dtypes.float32] = threefold(FRAGMENTS[dtypes.bfloat16])

UNIT = Unit(
    "wmma", {"wmma11": 0.5}, FRAGMENTS, "units/mma_plain.cl", stages=2,
    largest=(64 * 32, 32 * 32), rows=16, tried=True,
)  # fmt: skip
