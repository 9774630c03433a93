"""Pooling against direct loops in float64."""

import itertools

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import pooling
from kerascl.ops.convolution import window_pads
from tests.ops.slopes import check_gradients, relative


def reference(x, window, strides, pads, reduce):
    """`reduce` over the elements of each window that lie inside; channels last."""
    x = np.asarray(x, np.float64)
    sizes = x.shape[1:-1]
    counts = [
        (n + low + high - k) // s + 1 for n, k, s, (low, high) in zip(sizes, window, strides, pads)
    ]
    y = np.empty((x.shape[0], *counts, x.shape[-1]))
    for place in itertools.product(*[range(n) for n in counts]):
        reads = tuple(
            slice(max(p * s - low, 0), min(p * s - low + k, n))
            for p, s, (low, _), k, n in zip(place, strides, pads, window, sizes)
        )
        axes = tuple(range(1, x.ndim - 1))
        y[(slice(None), *place)] = reduce(x[(slice(None), *reads)], axes)
    return y


CASES = [
    ((9,), (3,), (2,), "same"),
    ((7, 8), (3, 2), (2, 2), "valid"),
    ((7, 8), (2, 3), (1, 2), "same"),
    ((6, 5), (3, 3), (2, 2), ((1, 1), (0, 2))),
    ((5, 4, 6), (2, 2, 3), (2, 1, 2), "same"),
]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["max", "average"])
def test_pool(case, first, kind, rng):
    sizes, window, strides, padding = case
    x = rng.standard_normal((2, *sizes, 3)).astype(np.float32)
    pads = window_pads(padding, sizes, window, strides)
    function = getattr(pooling, f"{kind}_pool")
    given = np.moveaxis(x, -1, 1) if first else x
    y = function(given, window, strides, padding, first).numpy()
    y = np.moveaxis(y, 1, -1) if first else y
    expected = reference(x, window, strides, pads, np.max if kind == "max" else np.mean)
    assert relative(y, expected) < (1e-7 if kind == "max" else 1e-6)


def test_average_that_counts_padding(rng):
    x = rng.standard_normal((1, 5, 5, 2)).astype(np.float32)
    y = pooling.average_pool(x, 3, 2, "same", False, True).numpy()
    whole = reference(np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), (3, 3), (2, 2),
                      [(0, 0)] * 2, np.mean)  # fmt: skip
    assert relative(y, whole) < 1e-6


@pytest.mark.parametrize("kind", ["max", "average"])
def test_pool_gradients(kind, rng):
    function = getattr(pooling, f"{kind}_pool")

    def cubed(x):
        y = function(x, 3, 2, "same")
        return y * y * y

    x = rng.permutation(2 * 6 * 7 * 2).reshape(2, 6, 7, 2) / 50.0  # no ties
    check_gradients(cubed, x, rng=rng, order=2)


def test_max_pool_gradient_goes_to_the_first_of_equals():
    x = kc.array(np.zeros((1, 4, 1), np.float32))
    with kc.GradientTape() as tape:
        y = pooling.max_pool(x, 2)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy().ravel(), [1, 0, 1, 0])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bfloat16"])
def test_max_pool_dtypes(dtype, rng):
    x = kc.array(rng.integers(0, 100, (1, 6, 6, 2)), dtype)
    y = pooling.max_pool(x, 2)
    assert y.dtype == dtype
    expected = reference(x.numpy().astype(np.float64), (2, 2), (2, 2), [(0, 0)] * 2, np.max)
    np.testing.assert_array_equal(y.numpy().astype(np.float64), expected)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("sizes", "targets"), [((8,), (3,)), ((7, 9), (3, 4)), ((6, 9), (2, 3)), ((4, 5, 6), (3, 5, 2))]
)
def test_adaptive(sizes, targets, first, rng):
    x = rng.standard_normal((2, *sizes, 3)).astype(np.float32)
    given = np.ascontiguousarray(np.moveaxis(x, -1, 1)) if first else x
    for function, reduce in (
        (pooling.adaptive_max_pool, np.max),
        (pooling.adaptive_average_pool, np.mean),
    ):
        expected = np.empty((2, *targets, 3))
        for place in itertools.product(*[range(m) for m in targets]):
            reads = tuple(
                slice(p * n // m, -(-(p + 1) * n // m)) for p, n, m in zip(place, sizes, targets)
            )
            part = x[(slice(None), *reads)].astype(np.float64)
            expected[(slice(None), *place)] = reduce(part, tuple(range(1, x.ndim - 1)))
        y = function(given, targets, first).numpy()
        assert relative(np.moveaxis(y, 1, -1) if first else y, expected) < 1e-6


def test_adaptive_gradients(rng):
    x = rng.permutation(1 * 5 * 7 * 2).reshape(1, 5, 7, 2) / 20.0
    check_gradients(lambda x: pooling.adaptive_max_pool(x, (2, 3)) ** 2, x, rng=rng)
    check_gradients(lambda x: pooling.adaptive_average_pool(x, (2, 3)) ** 2, x, rng=rng)


def test_bad_arguments():
    x = kc.ones((1, 4, 4, 3))
    with pytest.raises(ValueError, match="pool_size"):
        pooling.max_pool(x, 0)
    with pytest.raises(ValueError, match="padding"):
        pooling.max_pool(x, 2, 1, "full")
    with pytest.raises(ValueError, match="spatial"):
        pooling.max_pool(kc.ones((4, 4)), 2)


@pytest.mark.parametrize("window", [(2**20,), (2**10, 2**9)])
def test_averages_of_large_windows(window):
    x = np.full((1, *window, 1), 0.1, np.float32)
    found = kc.average_pool(x, window).numpy()
    np.testing.assert_allclose(found, np.float64(x.flat[0]), rtol=2.0**-20)
    x[0, 3, ..., 0] = np.inf
    assert kc.average_pool(x, window).numpy() == np.inf
