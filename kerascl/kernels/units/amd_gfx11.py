"""WMMA of AMD's RDNA 3 (gfx11) for wavefronts of 32.

Layouts are those of the RDNA 3 instruction set architecture, section 7.9 (wave matrix
multiply-accumulate): both halves of a wavefront hold all of a and b.  Rates are not measured.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.units.fragment import Fragment, Layout, Unit

SIZE = 16  # m, n and k


def _fragment(dtype: DType, name: str, vector: str, head: str = "") -> Fragment:
    def words(x: str) -> str:
        return f"(uint8)({', '.join(f'({x})[{i}]' for i in range(8))})"

    sums = [f"(d)[{i}]" for i in range(8)]
    stores = " ".join(f"{x} = d_.s{i};" for i, x in enumerate(sums))
    macro = (
        f"{head}#define MMA(d, a, b) {{ \\\n"
        f"  const float8 d_ = __builtin_amdgcn_wmma_f32_16x16x16_{name}_w32( \\\n"
        f"      as_{vector}({words('a')}), \\\n"
        f"      as_{vector}({words('b')}), \\\n"
        f"      (float8)({', '.join(sums)})); \\\n"
        f"  {stores} }}\n"
    )
    depths = range(SIZE)
    return Fragment(
        dtype, SIZE, SIZE, SIZE, 32,
        a=Layout(SIZE, (0, 0), (1, 0), tuple((0, k) for k in depths)),
        b=Layout(SIZE, (0, 0), (0, 1), tuple((k, 0) for k in depths)),
        d=Layout(SIZE, (1, 0), (0, 1), tuple((row, 0) for row in range(0, SIZE, 2))),
        macro=macro,
    )  # fmt: skip


FRAGMENTS = {
    dtypes.bfloat16: _fragment(dtypes.bfloat16, "bf16", "short16"),
    dtypes.float16: _fragment(
        dtypes.float16, "f16", "half16", "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
    ),
}

UNIT = Unit(
    "wmma", {"wmma11": 0.5}, FRAGMENTS, "units/mma_plain.cl", stages=2,
    largest=(64 * 32, 32 * 32), tried=True,
)  # fmt: skip
