"""Integers' negations before minima and maxima: the rewriting, and what a device makes of them."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime import negations

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
    lines = negations.plain(PTX).splitlines()
    assert lines[5:7] == [b"\tnot.b32 %r2, %r1;", b"\tadd.s32 %r2, %r2, 1;"]
    assert lines[9] == b"\tneg.s32 \t%r5, %r4;"
    assert lines[10:12] == [b"\tnot.b16 %rs2, %rs1;", b"\tadd.s16 %rs2, %rs2, 1;"]
    assert lines[14:] == PTX.splitlines()[12:]


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
