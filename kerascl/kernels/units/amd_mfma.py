"""MFMA of AMD's CDNA 2 and 3 (gfx90a, gfx942): wavefronts of 64, four groups of 16 lanes.

Layouts are those of the CDNA 2 and CDNA 3 instruction set architectures, "Matrix Arithmetic
Instructions": each group holds a quarter of the depths, and of d a quarter of the rows.  Rates are
not measured, and the instructions for int8 were compiled and emulated only.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.units import amd
from kerascl.kernels.units.fragment import Fragment, Layout, Unit

SIZE = 16  # m and n
SUMS = 4  # of a lane
FLOAT32 = 128  # multiply-adds of float32 a clock of a compute unit


def _call(name: str, operand: str, words: int, called: str = "MMA") -> str:
    builtin = f"__builtin_amdgcn_mfma_f32_16x16x{name}"
    return amd.macro(builtin, operand, words, SUMS, ", 0, 0, 0", called)


def _fragment(dtype: DType, own: int, macro: str) -> Fragment:
    """Of an instruction that takes so many elements of a and of b of each lane."""
    return Fragment(
        dtype, SIZE, SIZE, 4 * own, 64,
        a=Layout(SIZE, (0, own), (1, 0), tuple((0, k) for k in range(own))),
        b=Layout(SIZE, (own, 0), (0, 1), tuple((k, 0) for k in range(own))),
        d=Layout(SIZE, (SUMS, 0), (0, 1), tuple((row, 0) for row in range(SUMS))),
        macro=macro,
    )  # fmt: skip


BFLOAT16 = _fragment(dtypes.bfloat16, 4, _call("16bf16_1k", "short4", 2))
FLOAT16 = _fragment(dtypes.float16, 4, _call("16f16", "half4", 2))
INT8_CDNA2, INT8_CDNA3 = (
    _fragment(
        dtypes.int8, own,
        amd.macro(
            f"__builtin_amdgcn_mfma_i32_16x16x{name}", operand, own // 4, SUMS, ", 0, 0, 0",
            acc="int",
        ),
    )
    for own, name, operand in ((4, "16i8", "int"), (8, "32_i8", "long"))
)  # fmt: skip
XF32 = _fragment(dtypes.float32, 2, _call("8_xf32", "float2", 2))
TRUE32 = _fragment(dtypes.float32, 1, _call("4f32", "float", 1))
# CDNA 2's own instruction for float16 takes subnormal numbers for 0 (AMD, MIOpen, "MI200 MFMA
# behavior specifics").  That for float32 does not: one of these for each element of the lanes.
WIDENED = _fragment(
    dtypes.float16, 4,
    _call("4f32", "float", 1, "MMA_ONE")
    + "#define WIDE(x, e) {as_uint(vload_half((e) % 2, (const half*)&(x)[(e) / 2]))}\n"
    "#define MMA(d, a, b) \\\n"
    "  UNROLL for (int e_ = 0; e_ < 4; ++e_) { \\\n"
    "    const uint a_[1] = WIDE(a, e_), b_[1] = WIDE(b, e_); \\\n"
    "    MMA_ONE(d, a_, b_) \\\n"
    "  }\n",
)  # fmt: skip


def _unit(name: str, matrix: dict[str, float], *fragments: Fragment, **more) -> Unit:
    return Unit(
        name, matrix, {f.dtype: f for f in fragments}, "units/mma_plain.cl", stages=2, tried=True,
        **more,
    )  # fmt: skip


CDNA2 = _unit("cdna2mfma", {"mfma90a": 0.5}, BFLOAT16, INT8_CDNA2)
CDNA3 = _unit("cdna3mfma", {"mfma942": 0.5}, BFLOAT16, FLOAT16, XF32, INT8_CDNA3)
# Shares of what tiles reach on faster units: data are there long before float32's instruction has
# taken those before.
CDNA2_TRUE32 = _unit(
    "cdna2f32mfma", {"mfma90a": 1.25}, TRUE32, WIDENED, exact=True, rate=FLOAT32
)  # fmt: skip
CDNA3_TRUE32 = _unit("cdna3f32mfma", {"mfma942": 1.25}, TRUE32, exact=True, rate=FLOAT32)

UNITS = (CDNA2, CDNA3, CDNA2_TRUE32, CDNA3_TRUE32)
