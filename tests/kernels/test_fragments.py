"""Matrix units as data: the layouts against the formulas of the PTX ISA, and the instructions."""

import numpy as np
import pytest

from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.units import nv_sm80

FRAGMENTS = list(nv_sm80.FRAGMENTS.values())


def ptx_place(k: int, operand: str, lane: int, i: int) -> tuple[int, int]:
    """The PTX ISA's "Matrix Fragments for mma.m16n8k8" (.tf32), "... mma.m16n8k16" of 16-bit floats
    and "... mma.m16n8k32" of int8."""
    group, thread = lane >> 2, lane % 4
    if operand == "d":
        return (group if i < 2 else group + 8), thread * 2 + (i & 1)
    if k == 8:
        if operand == "a":
            return (group if i in (0, 2) else group + 8), (thread if i in (0, 1) else thread + 4)
        return thread + 4 * i, group
    if k == 32 and operand == "a":
        row = group if i < 4 or 8 <= i < 12 else group + 8
        return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)
    if k == 32:
        return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group
    if operand == "a":
        row = group if i < 2 or 4 <= i < 6 else group + 8
        return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)
    return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group


@pytest.mark.parametrize("f", FRAGMENTS, ids=lambda f: str(f.dtype))
def test_layouts_are_those_of_the_instruction(f):
    for name, shape in (("a", (f.m, f.k)), ("b", (f.k, f.n)), ("d", (f.m, f.n))):
        layout, held = getattr(f, name), np.zeros(shape, int)
        for lane in range(f.lanes):
            for i in range(len(layout.elements)):
                assert layout.place(lane, i) == ptx_place(f.k, name, lane, i)
                held[layout.place(lane, i)] += 1
        assert (held == 1).all()


@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [
        ("float32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "),
        ("bfloat16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "),
        ("float16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "),
        ("int8", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "),
    ],
)
def test_instructions(dtype, instruction):
    (macro,) = (f.macro for f in FRAGMENTS if f.dtype.name == dtype)
    assert f'"{instruction}{{%0,%1,%2,%3}},{{%4,%5,%6,%7}},{{%8,%9}},{{%0,%1,%2,%3}};"' in macro
    macro, taken, rest = macro.partition(cl_source("units/bytes.cl"))
    assert bool(taken) == (dtype == "int8") and not rest
    macro, rounded, rest = macro.partition(nv_sm80.ROUNDED)
    assert bool(rounded) == (dtype == "float32") and not rest
    assert macro.endswith(")\n") and macro.count("#define") == 1
