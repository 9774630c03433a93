"""XMX of Intel's GPUs: Arc A (sub-groups of 8), Arc B and Max (16).

Layouts are those of the extension cl_intel_subgroup_matrix_multiply_accumulate: a lane holds a
column of b and of the sums, and of each row of a four bytes where there are 8 lanes, else two.
Rates are not measured, and the instruction for int8 was compiled (for Arc A and Max) and emulated
only.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.units.fragment import Fragment, Layout, Unit, threefold

ROWS, DEPTH = 8, 32  # of which the latter in bytes
EXTENSION = "cl_intel_subgroup_matrix_multiply_accumulate"


def _fragment(dtype: DType, name: str, lanes: int) -> Fragment:
    depth = DEPTH // dtype.itemsize
    own = depth // lanes  # elements of a row of a that a lane holds
    function = f"intel_sub_group_{name}_{name}_matrix_mad_k{depth}"
    a_type, a_words = ("int8", 8) if lanes == 8 else ("short8", 4)
    d_type = f"{'int' if dtype.is_integer else 'float'}{ROWS}"
    words = {x: ", ".join(f"({x})[{i}]" for i in range(n)) for x, n in (("a", a_words), ("b", 8))}
    sums = [f"(d)[{i}]" for i in range(ROWS)]
    stores = " ".join(f"{x} = d_.s{i};" for i, x in enumerate(sums))
    # Older compilers have the function, but do not declare it.
    macro = (
        f"#ifndef {EXTENSION}\n"
        f"{d_type} __attribute__((overloadable)) {function}({a_type} a, int8 b, {d_type} sums);\n"
        "#endif\n"
        "#define MMA(d, a, b) { \\\n"
        f"  const {d_type} d_ = {function}( \\\n"
        f"      as_{a_type}((uint{a_words})({words['a']})), \\\n"
        f"      as_int8((uint8)({words['b']})), \\\n"
        f"      ({d_type})({', '.join(sums)})); \\\n"
        f"  {stores} }}\n"
    )
    return Fragment(
        dtype, ROWS, lanes, depth, lanes,
        a=Layout(
            lanes, (0, 0), (0, own), tuple((r, k) for r in range(ROWS) for k in range(own)), run=own
        ),
        b=Layout(lanes, (0, 0), (0, 1), tuple((k, 0) for k in range(depth))),
        d=Layout(lanes, (0, 0), (0, 1), tuple((row, 0) for row in range(ROWS))),
        macro=macro,
        attributes=f"__attribute__((intel_reqd_sub_group_size({lanes})))",
    )  # fmt: skip


def _unit(lanes: int, *widest: tuple[int, int]) -> Unit:
    fragments = {
        dtype: _fragment(dtype, name, lanes)
        for dtype, name in (
            (dtypes.bfloat16, "bf16"), (dtypes.float16, "f16"), (dtypes.int8, "i8"),
        )
    }  # fmt: skip
    fragments[dtypes.float32] = threefold(fragments[dtypes.bfloat16])
    products, convolutions = widest
    # A thread's registers are all that bounds a tile: so it gets twice as many, of which there are
    # then half as many threads at once.
    return Unit(
        f"xmx{lanes}_", {f"xmx{lanes}": 0.5}, fragments, "units/mma_plain.cl", stages=2,
        tried=True, widest=(products, convolutions), least=256, copies=16, sets=1,
        options=("-cl-intel-256-GRF-per-thread",),
    )  # fmt: skip


UNITS = _unit(8, (32, 16), (16, 16)), _unit(16, (32, 32), (16, 32))
