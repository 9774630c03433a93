"""Positions, counts and indices that 32 bits do not hold.

A lower limit sends small arrays along the same way; `python -m tests.faults.large` uses large ones.
"""

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes

SIZE = 1003


@pytest.fixture(params=["narrow", "wide"])
def host(request, monkeypatch, rng):
    """Numbers, and whether their positions take 64 bits."""
    if request.param == "wide":
        monkeypatch.setattr(dtypes, "NARROW_POSITIONS", 999)
    monkeypatch.setattr(kc.engine, "programs", {})
    return rng.integers(0, 3, SIZE).astype(np.uint8)


def _same(found, expected, wide):
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found.dtype is (dtypes.int64 if wide else dtypes.int32)


def test_positions_and_counts(host):
    wide = dtypes.NARROW_POSITIONS < SIZE
    x = kc.array(host)
    _same(kc.argmax(x), host.argmax(), wide)
    _same(kc.argmin(x), host.argmin(), wide)
    _same(kc.count_nonzero(x), np.count_nonzero(host), wide)
    _same(kc.nonzero(x)[0], host.nonzero()[0], wide)
    _same(kc.searchsorted(kc.array(np.sort(host)), 1), np.searchsorted(np.sort(host), 1), wide)
    np.testing.assert_array_equal(x[host == 1].numpy(), host[host == 1])
    np.testing.assert_array_equal(kc.cumsum(x).numpy(), host.cumsum())


@pytest.mark.parametrize("key", [slice(None, None, -10), slice(None, 3, -7), slice(5, None, 9)])
def test_steps(host, key):
    np.testing.assert_array_equal(kc.array(host)[key].numpy(), host[key])
    np.testing.assert_array_equal(kc.jit(lambda x: x[key])(kc.array(host)).numpy(), host[key])
    updated = host.copy()
    updated[key] = 9
    np.testing.assert_array_equal(kc.array(host).at[key].set(9).numpy(), updated)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32"])
def test_indices_out_of_range_do_not_come_back_into_it(host, dtype):
    far = [2**31 + 1] if dtype == "uint32" else [2**32 + 1, 2**40]
    places = np.array([1, *far], dtype)
    x = kc.array(host)
    filled = [host[1]] + [255] * len(far)  # `take` fills, indexing clamps
    np.testing.assert_array_equal(kc.take(x, kc.array(places)).numpy(), filled)
    np.testing.assert_array_equal(x[kc.array(places)].numpy(), host[[1] + [-1] * len(far)])
    table = kc.array(host.astype(np.float32))
    slope = kc.grad(lambda t: kc.sum(kc.take(t, kc.array(places))))(table).numpy()
    assert slope[1] == 1 and slope.sum() == 1
    counts = kc.bincount(kc.array(places), length=5)
    np.testing.assert_array_equal(counts.numpy(), [0, 1, 0, 0, 0])
    sums = kc.segment_sum(kc.ones((len(places),)), kc.array(places), 5)
    np.testing.assert_array_equal(sums.numpy(), [0, 1, 0, 0, 0])


def test_narrow_indices_from_the_end(host):
    places = np.array([-1, -100, 5], np.int8)
    np.testing.assert_array_equal(kc.take(kc.array(host), kc.array(places)).numpy(), host[places])
    np.testing.assert_array_equal(kc.array(host)[kc.array(places)].numpy(), host[places])
