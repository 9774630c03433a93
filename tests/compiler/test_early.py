"""Kernels of a launch whose groups stay begin to read before they wait for others."""

import dataclasses

import pytest

from kerascl.compiler.program import parts, resident, staying
from kerascl.compiler.program.parts import Shape
from kerascl.compiler.program.program import Slot, Step, Use
from tests import profiles
from tests.compiler.test_resident import HOPPER

EARLY = """
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void k(
    __global const int* fixed_0, __global const int* fixed_1, __global const int* other,
    __global int* to) {
  __global const int* fixed;
  switch (get_group_id(0)) {
    case 0: fixed = fixed_0; break;
    default: fixed = fixed_1; break;
  }
  const int x = fixed[get_global_id(0)];
#ifdef KCL_EARLY
  KCL_EARLY(fixed);
#endif
  to[get_global_id(0)] = x + other[get_global_id(0)];
}
"""


def test_addresses_of_what_others_write_may_be_used_early():
    shape = Shape((2,), (32,), 512, 32, 16)
    text = EARLY.replace("  const int x", "  prefetch(other, 1);\n  const int x", 1)
    with pytest.raises(AssertionError, match="other is read before KCL_EARLY"):
        parts.part(text, "k", (), shape, (), staying.WAIT)
    text = text.replace("KCL_EARLY(fixed)", "KCL_EARLY(fixed, &other)")
    part = parts.part(text, "k", (), shape, (), staying.WAIT)
    assert part.itself and part.early == (0, 1)
    # one that reads nothing early waits by itself all the same
    text = text.replace("(fixed, &other)", "(&other, &fixed_0, &fixed_1)")
    text = text.replace("fixed[get_global_id(0)]", "0")
    part = parts.part(text, "k", (), shape, (), staying.WAIT)
    assert part.itself and not part.early


def early_steps(written):
    """Two steps of EARLY; slots 0 and 1 are read early, `written` are those that a step writes."""
    steps = []
    for _ in range(2):
        step = Step(EARLY, "k", (), [Use(k) for k in range(4)], (64,), (32,))
        step.writes = frozenset(written)
        steps.append(step)
    return steps


def test_what_a_kernel_reads_early_must_never_be_written():
    info = profiles.load()["rtx4090"].info
    shape = Shape((2,), (32,), 512, 32, 16)
    part = parts.part(EARLY, "k", (), shape, (), staying.WAIT)
    assert part.early == (0, 1)
    assert parts.part(EARLY, "k", (), shape).early == ()
    with pytest.raises(AssertionError, match="other is read before KCL_EARLY"):
        parts.part(EARLY.replace("x = fixed[", "x = other["), "k", (), shape, (), staying.WAIT)
    for written, early in (({3}, True), ({1, 3}, False), ({2, 3}, True)):
        steps = early_steps(written)
        lasting = resident._lasting(steps, [Slot("temporary", 256, -1)] * 4)
        found, _ = resident._part(steps[0], 512, HOPPER, lasting, info)
        assert found.itself == early
        # without barriers of their own teams only whole work-groups wait in the middle
        alone = dataclasses.replace(HOPPER, named=False)
        assert not resident._part(steps[0], 512, alone, lasting, info)[0].itself
        assert resident._part(steps[0], 32, alone, lasting, info)[0].itself == early
