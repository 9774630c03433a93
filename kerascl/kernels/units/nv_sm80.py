"""mma.sync of NVIDIA's matrix units (compute capability 8.0 and more).

Layouts are those of the PTX ISA, "Matrix Fragments for mma.m16n8k8", "... mma.m16n8k16" and
"... mma.m16n8k32".
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.units.fragment import Fragment, Layout, Unit

# Values of DeviceInfo.matrix that offer it, and the share of the matrix units' rate that it reaches
# there: wider instructions reach the rest.
MATRIX = {"mma80": 1.0, "wgmma90": 0.62}


# The matrix units take the upper 19 bits.  Before that cut, half a unit of the last bit kept is
# added in the mean: 1.4427 * 2^-12 of the value, which has no bias over mantissas as they occur,
# keeps what TF32 can hold, infinities and NaN, and is one instruction beside the products
# (cvt.rna takes a tenth of the time; adding to the bits turns NaN into zero).
ROUNDED = "#define ROUNDED(x) as_uint(as_float(x) * 1.00035222f)\n"


def _fragment(dtype: DType, name: str) -> Fragment:
    wide = 4 // dtype.itemsize  # elements of a word, neighbours along k
    k, sums, of_sum = (8 * wide, "f32", "f") if dtype.is_float else (8 * wide, "s32", "r")
    far, near = (0, 4 * wide), range(wide)
    mnemonic = f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{name}.{name}.{sums}"
    held = ", ".join(f'"+{of_sum}"((d)[{i}])' for i in range(4))
    macro = (
        "#define MMA(d, a, b) \\\n"
        f'  asm volatile("{mnemonic} {{%0,%1,%2,%3}},{{%4,%5,%6,%7}},{{%8,%9}},'
        '{%0,%1,%2,%3};" \\\n'
        f"               : {held} \\\n"
        '               : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), '
        '"r"((b)[0]), "r"((b)[1]))\n'
    )
    more = ROUNDED if wide == 1 else cl_source("units/bytes.cl") if wide == 4 else ""
    return Fragment(
        dtype, 16, 8, k, 32,
        a=Layout(
            4, (1, 0), (0, wide), tuple((r, c + w) for c in far for r in (0, 8) for w in near)
        ),
        b=Layout(4, (0, 1), (wide, 0), tuple((r + w, 0) for r in far for w in near)),
        d=Layout(4, (1, 0), (0, 2), ((0, 0), (0, 1), (8, 0), (8, 1))),
        macro=macro + more,
    )  # fmt: skip


FRAGMENTS = {
    dtype: _fragment(dtype, name)
    for dtype, name in (
        (dtypes.float32, "tf32"), (dtypes.bfloat16, "bf16"), (dtypes.float16, "f16"),
        (dtypes.int8, "s8"),
    )
}  # fmt: skip

UNIT = Unit("mma", MATRIX, FRAGMENTS, "units/nv_sm80.cl")
