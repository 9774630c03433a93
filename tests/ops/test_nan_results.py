"""NaN as NumPy has it: different elements, sets, and the results of singular systems."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops.elimination import gauss_jordan

NAN = np.nan


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_all_nan_are_one_element(rng, dtype):
    x = rng.integers(-3, 3, 60).astype(dtype)
    x[rng.choice(60, 20, False)] = NAN
    if dtype == "complex64":
        x[:5], x[5:9] = complex(1, NAN), complex(NAN, 2)
        x[9:] += 1j * rng.integers(0, 2, 51).astype(dtype)
    wanted = np.unique(x, True, True, True)
    found = kc.unique(kc.array(x), True, True, True)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    values = kc.unique(kc.array(x))
    np.testing.assert_array_equal(values.numpy(), wanted[0])
    np.testing.assert_array_equal(kc.unique(kc.array(x), axis=0).numpy(), np.unique(x, axis=0))
    padded = kc.jit(lambda x: kc.unique(x, size=20))(kc.array(x)).numpy()
    np.testing.assert_array_equal(padded[: len(wanted[0])], wanted[0])
    assert not np.isnan(padded[len(wanted[0]) :]).any()


def test_each_nan_for_itself(rng):
    x = np.array([NAN, 1, NAN, 1, NAN], np.float32)
    wanted = np.unique(x, return_counts=True, equal_nan=False)
    for found in (kc.unique(x, return_counts=True, equal_nan=False), kc.unique_counts(x)):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
    assert kc.unique_values(x).shape == (4,)
    assert kc.unique_all(x).values.shape == kc.unique_inverse(x).values.shape == (4,)
    slices = np.array([[NAN, 1], [NAN, 1], [2, 1]], np.float32)
    np.testing.assert_array_equal(kc.unique(slices, axis=0).numpy(), np.unique(slices, axis=0))


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setxor1d", "setdiff1d"])
def test_sets_with_nan(name):
    a, b = np.array([NAN, 1, NAN, 2], np.float32), np.array([NAN, 2, 5, NAN], np.float32)
    np.testing.assert_array_equal(getattr(kc, name)(a, b).numpy(), getattr(np, name)(a, b))


def _singular(rng, n, dtype):
    twice = rng.integers(-9, 10, (n, n)).astype(dtype)
    first, second = rng.choice(n, 2, False)
    twice[first] = twice[second]
    row, column = rng.integers(-9, 10, (2, n, n)).astype(dtype)
    row[first], column[:, second] = 0, 0
    return np.stack([np.zeros((n, n), dtype), twice, row, column])


@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_singular_systems_give_no_numbers(rng, n):
    """Each matrix has infinities or NaN among its results, never numbers alone."""
    a = _singular(rng, n, np.float32)
    b = rng.normal(size=(4, n, 3)).astype(np.float32)
    results = [
        kc.linalg.solve(a, b),
        kc.linalg.inv(a),
        kc.jit(kc.linalg.inv)(kc.array(a)),
        gauss_jordan(kc.array(a), kc.array(b)),  # devices without a kernel of their own
    ]
    for found in results:
        found = found.numpy()
        assert not np.isfinite(found).all((1, 2)).any()
