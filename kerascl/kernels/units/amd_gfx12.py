"""WMMA of AMD's RDNA 4 (gfx1200, gfx1201) for wavefronts of 32.

Layouts are those of the RDNA 4 instruction set architecture, section 7.12 (wave matrix
multiply-accumulate), and of AMD's "Using the Matrix Cores of AMD RDNA 4 architecture GPUs": each
half of a wavefront holds a half of the depths.  Rates are not measured, and the instruction for
int8 was compiled and emulated only.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.units import amd
from kerascl.kernels.units.fragment import Fragment, Layout, Unit, threefold

SIZE = 16  # m, n and k


def _fragment(dtype: DType, macro: str) -> Fragment:
    own = range(8)
    return Fragment(
        dtype, SIZE, SIZE, SIZE, 32,
        a=Layout(SIZE, (0, 8), (1, 0), tuple((0, k) for k in own)),
        b=Layout(SIZE, (8, 0), (0, 1), tuple((k, 0) for k in own)),
        d=Layout(SIZE, (8, 0), (0, 1), tuple((row, 0) for row in own)),
        macro=macro,
    )  # fmt: skip


BUILTIN = "__builtin_amdgcn_wmma_{}_16x16x16_{}_w32_gfx12"
# Both operands are signed; sums wrap around.
INT8 = amd.macro(
    BUILTIN.format("i32", "iu8"), "int2", 2, 8, ", false", acc="int", before="true, "
)
FRAGMENTS = {
    dtypes.bfloat16: _fragment(
        dtypes.bfloat16, amd.macro(BUILTIN.format("f32", "bf16"), "short8", 4, 8)
    ),
    dtypes.float16: _fragment(
        dtypes.float16, amd.macro(BUILTIN.format("f32", "f16"), "half8", 4, 8)
    ),
    dtypes.int8: _fragment(dtypes.int8, INT8),
}
FRAGMENTS[dtypes.float32] = threefold(FRAGMENTS[dtypes.bfloat16])

UNIT = Unit(
    "rdna4wmma", {"wmma12": 0.5}, FRAGMENTS, "units/mma_plain.cl", stages=2,
    largest=(64 * 32, 64 * 32), rows=16, tried=True,
)  # fmt: skip
