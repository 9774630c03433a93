"""Minima and maxima of integers beside negations and comparisons: the rewriting, and a device."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime import integers

PTX = b"""//
.visible .entry largest(
\t.param .u64 largest_param_0
)
{
\tneg.s32 \t%r2, %r1;
\tmov.b32 \t%r3, %r2;
\tmax.s32 \t%r4, %r9, %r3;
\tneg.s32 \t%r5, %r4;
\tneg.s16 \t%rs2, %rs1;
\tmin.s16 \t%rs4, %rs2, %rs3;
}
.visible .entry other(
\t.param .u64 other_param_0
)
{
\tneg.s32 \t%r2, %r1;
\tmax.u32 \t%r4, %r3, %r2;
\tneg.f32 \t%f2, %f1;
\tmax.f32 \t%f3, %f2, %f1;
}
"""


def test_only_what_reaches_an_extreme_is_written_otherwise():
    lines = integers.plain(PTX).splitlines()
    assert lines[5:7] == [b"\tnot.b32 %r2, %r1;", b"\tadd.s32 %r2, %r2, 1;"]
    assert lines[9] == b"\tneg.s32 \t%r5, %r4;"
    assert lines[10:12] == [b"\tnot.b16 %rs2, %rs1;", b"\tadd.s16 %rs2, %rs2, 1;"]
    assert lines[14:] == PTX.splitlines()[12:]


COMPARED = b"""//
.visible .entry compared(
\t.param .u64 compared_param_0
)
{
\tmax.u16 \t%rs2, %rs1, 1;
\tmin.s16 \t%rs3, %rs1, %rs2;
\tsetp.eq.s16 \t%p1, %rs2, 1;
}
.visible .entry other(
\t.param .u64 other_param_0
)
{
\tmax.u16 \t%rs2, %rs1, 1;
\tsetp.eq.s32 \t%p1, %r2, 1;
}
"""


def test_narrow_extremes_beside_comparisons_are_computed_wide():
    first, _, second = integers.plain(COMPARED).partition(b".visible .entry other")
    assert b"max.u16" not in first and b"min.s16" not in first
    for line in (
        b"mov.b16 %kcl_n, 1;", b"cvt.u32.u16 %kcl_a, %rs1;", b"cvt.u32.u16 %kcl_b, %kcl_n;",
        b"max.u32 %kcl_a, %kcl_a, %kcl_b;", b"cvt.u16.u32 %rs2, %kcl_a; }",
        b"cvt.s32.s16 %kcl_b, %rs2;", b"min.s32 %kcl_a, %kcl_a, %kcl_b;",
    ):  # fmt: skip
        assert line in first
    assert second in COMPARED


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
def test_extremes_compared_with_what_they_are_of(dev, rng, dtype):
    limits = np.iinfo(dtype)
    x = np.concatenate([rng.integers(limits.min, limits.max, 40), [0, 1, 2, 3]]).astype(dtype)
    y = rng.permutation(x)

    def compared(a, b):
        high, low = kc.maximum(a, b), kc.minimum(a, 1)
        return high == b, high != a, kc.maximum(a, 1) == 1, low == 1, low != a

    high, low = np.maximum(x, y), np.minimum(x, 1)
    expected = [high == y, high != x, np.maximum(x, 1) == 1, low == 1, low != x]
    for call in (compared, kc.jit(compared)):
        for found, wanted in zip(call(kc.array(x), kc.array(y)), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("shape, axes", [((21, 81), (1,)), ((300, 5), (0,)), ((4097,), (0,))])
def test_extremes_of_negated_integers(dev, rng, dtype, shape, axes):
    x = rng.integers(1, 100, shape).astype(dtype)

    def extremes(a):
        return kc.max(-a, axes), kc.min(-a, axes), kc.max(0 - a, axes), kc.min(3 - a * 2, axes)

    expected = [-x.min(axes), -x.max(axes), -x.min(axes), (3 - x * np.int8(2)).min(axes)]
    for call in (extremes, kc.jit(extremes)):
        for found, wanted in zip(call(kc.array(x)), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)


def test_extremes_of_several_negated_integers(dev, rng):
    a, b, c = rng.integers(1, 1000, (3, 77)).astype("int32")
    found = kc.maximum(kc.maximum(kc.array(a), -kc.array(b)), -kc.array(c))
    np.testing.assert_array_equal(found.numpy(), np.maximum(np.maximum(a, -b), -c))
