"""WMMA of AMD's RDNA 3 (gfx11) for wavefronts of 32.

Layouts are those of the RDNA 3 instruction set architecture, section 7.9 (wave matrix
multiply-accumulate): both halves of a wavefront hold all of a and b.  Rates are not measured, and
the instruction for int8 was compiled and emulated only.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.units import amd
from kerascl.kernels.units.fragment import Fragment, Layout, Unit, threefold

SIZE = 16  # m, n and k


def _fragment(dtype: DType, macro: str) -> Fragment:
    depths = range(SIZE)
    return Fragment(
        dtype, SIZE, SIZE, SIZE, 32,
        a=Layout(SIZE, (0, 0), (1, 0), tuple((0, k) for k in depths)),
        b=Layout(SIZE, (0, 0), (0, 1), tuple((k, 0) for k in depths)),
        d=Layout(SIZE, (1, 0), (0, 1), tuple((row, 0) for row in range(0, SIZE, 2))),
        macro=macro,
    )  # fmt: skip


BUILTIN = "__builtin_amdgcn_wmma_{}_16x16x16_{}_w32"
# Both operands are signed; sums wrap around.
INT8 = amd.macro(
    BUILTIN.format("i32", "iu8"), "int4", 4, 8, ", false", acc="int", before="true, "
)
FRAGMENTS = {
    dtypes.bfloat16: _fragment(
        dtypes.bfloat16, amd.macro(BUILTIN.format("f32", "bf16"), "short16", 8, 8)
    ),
    dtypes.float16: _fragment(
        dtypes.float16, amd.macro(BUILTIN.format("f32", "f16"), "half16", 8, 8)
    ),
    dtypes.int8: _fragment(dtypes.int8, INT8),
}
FRAGMENTS[dtypes.float32] = threefold(FRAGMENTS[dtypes.bfloat16])

UNIT = Unit(
    "wmma", {"wmma11": 0.5}, FRAGMENTS, "units/mma_plain.cl", stages=2,
    largest=(64 * 32, 32 * 32), rows=16, tried=True,
)  # fmt: skip
