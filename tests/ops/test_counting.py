"""bincount, histogram and unique of many elements against NumPy; what they launch."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.context import device
from kerascl.runtime.profile import profile


def same(found, wanted):
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint16", "int64", "uint64"])
def test_bincount(dtype, rng):
    x = rng.integers(0, 2 if dtype == "bool" else 100, 30000).astype(dtype)
    wide = x.astype(np.int64)
    same(kc.bincount(kc.array(x)), np.bincount(wide))
    same(kc.bincount(kc.array(x), minlength=150), np.bincount(wide, minlength=150))
    same(kc.bincount(kc.array(x), length=7), np.bincount(wide[wide < 7], minlength=7))


def test_bincount_of_batches(rng):
    x = rng.integers(-3, 70, (4, 5000)).astype(np.int32)
    wanted = np.stack([np.bincount(row[(row >= 0) & (row < 64)], minlength=64) for row in x])
    same(kc.bincount(kc.array(x), length=64), wanted)
    same(kc.vmap(lambda row: kc.bincount(row, length=64))(kc.array(x)), wanted)
    same(kc.jit(lambda rows: kc.bincount(rows, length=64))(kc.array(x)), wanted)


def test_bincount_of_few_and_of_nothing():
    same(kc.bincount(kc.array(np.zeros(0, np.int32))), np.zeros(0, np.int32))
    same(kc.bincount(kc.array(np.zeros(0, np.int32)), minlength=3), np.zeros(3, np.int32))
    same(kc.bincount(kc.array([2])), np.array([0, 0, 1]))
    same(kc.bincount(kc.array([5, -1, 0]), length=2), np.array([1, 0]))
    same(kc.bincount(kc.array([5, 1]), length=0), np.zeros(0, np.int32))
    same(kc.bincount(kc.array([10_000_000, 3]))[-2:], np.array([0, 1]))


@pytest.mark.parametrize("bins", [1, 10, 97, 3000])
def test_histogram(bins, rng):
    x = rng.standard_normal(40001).astype(np.float32)
    counts, edges = kc.histogram(kc.array(x), bins)
    wanted = np.histogram(x.astype(np.float64), edges.numpy().astype(np.float64))[0]
    same(counts, wanted)
    same(kc.histogram(kc.array(x), edges)[0], wanted)
    same(kc.jit(lambda x: kc.histogram(x, bins)[0])(kc.array(x)), wanted)
    part, edges = kc.histogram(kc.array(x), bins, range=(-0.5, 1))
    same(part, np.histogram(x.astype(np.float64), edges.numpy().astype(np.float64))[0])


def test_histogram_of_batches(rng):
    x = rng.random((3, 900)).astype(np.float32)
    edges = np.linspace(0, 1, 9).astype(np.float32)
    wanted = np.stack([np.histogram(row, edges)[0] for row in x])
    found = kc.vmap(lambda row: kc.histogram(row, kc.array(edges))[0])(kc.array(x))
    same(found, wanted)
    found = kc.vmap(lambda row: kc.histogram(row, 8, (0, 1))[0])(kc.array(x))
    same(found, wanted)


def test_histogram_of_few_and_of_what_is_outside():
    same(kc.histogram(kc.array([2.0, 2.0]), 3)[0], np.array([0, 2, 0]))
    same(kc.histogram(kc.array(np.zeros(0, np.float32)), 3)[0], np.zeros(3, np.int32))
    x = np.array([np.nan, np.inf, -np.inf, 0, 1, 0.5, -1, 2], np.float32)
    same(kc.histogram(kc.array(x), 2, (0, 1))[0], np.array([1, 2]))
    same(kc.histogram(kc.array(x), kc.array([0.0, 0.2, 1.0]))[0], np.array([1, 2]))


SPANS = [
    ("int8", -128, 127), ("int8", -5, 3), ("uint8", 0, 255), ("int16", -700, 900),
    ("uint16", 65000, 65535), ("int32", 0, 999), ("int32", -(2**31), -(2**31) + 99),
    ("int32", 2**31 - 50, 2**31 - 1), ("uint32", 2**32 - 50, 2**32 - 1),
    ("int64", 2**40, 2**40 + 7), ("uint64", 2**64 - 9, 2**64 - 1),
    ("int64", -(2**63), -(2**63) + 9), ("int32", 0, 2**31 - 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype, low, high", SPANS)
def test_unique_of_integers(dtype, low, high, rng):
    x = rng.integers(low, high, (2, 40000), dtype, endpoint=True)
    x[:, :2] = low, high
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    found = kc.unique(kc.array(x), return_inverse=True, return_counts=True)
    for y, wanted in zip(found, (values, inverse, counts), strict=True):
        same(y, wanted)
    assert found[0].dtype.name == dtype
    same(kc.unique(kc.array(x)), values)
    same(kc.unique(kc.array(x.ravel()), return_counts=True, axis=0)[1], counts)
    first = np.unique(x, return_index=True)[1]
    same(kc.unique(kc.array(x), return_index=True)[1], first)


def test_unique_of_bools(rng):
    x = rng.integers(0, 2, 70000).astype(bool)
    same(kc.unique(kc.array(x)), np.unique(x))
    same(kc.unique(kc.array(x & False)), np.array([False]))


def test_few_different_integers_are_not_sorted(rng):
    x = kc.array(rng.integers(-9, 1000, 70000).astype(np.int32))
    kc.unique(x).evaluate()
    with profile(device(), show=False) as found:
        kc.unique(x).evaluate()
    assert not [s.name for s in found.spans if s.name.startswith(("sort", "radix"))]
