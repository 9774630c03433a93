"""Indices, quantiles and masks out of range, and functions of nothing: NumPy's or JAX's answer."""

import numpy as np
import pytest

import kerascl as kc

X = np.arange(6, dtype=np.float32).reshape(3, 2)
PLACES = np.array([0, 2, 3, -1, -3, -4, 2**31 - 1], np.int32)


@pytest.mark.parametrize("dtype, fill", [
    ("float32", np.nan), ("float16", np.nan), ("bfloat16", np.nan), ("float64", np.nan),
    ("complex64", np.nan), ("int8", -128), ("int64", -(2**63)), ("uint8", 255), ("bool", True),
])  # fmt: skip
@pytest.mark.parametrize("axis", [0, 1])
def test_take_fills_as_jax_does(dtype, fill, axis):
    host = X.astype(kc.zeros((), dtype).dtype.numpy)
    size = X.shape[axis]
    for places in (PLACES, np.concatenate([PLACES, [2**32 + 1, -(2**40)]])):
        inside = (places >= -size) & (places < size)
        expected = np.take(host, np.where(inside, places, 0), axis)
        where = np.nonzero(~inside)[0]
        if axis:
            expected[:, where] = fill
        else:
            expected[where] = fill
        for call in (kc.take, kc.jit(lambda x, i: kc.take(x, i, axis))):
            arguments = (kc.array(host), kc.array(places), axis)[: 3 if call is kc.take else 2]
            found = call(*arguments)
            assert found.dtype == dtype
            if dtype == "bfloat16":  # NumPy compares no NaN of it
                found, expected = kc.cast(found, "float32"), expected.astype(np.float32)
            np.testing.assert_array_equal(found.numpy(), expected)


def test_take_along_axis_fills_too():
    places = np.array([[0, 1, 2], [2, -3, 0], [1, -2, -1]])
    found = kc.take_along_axis(kc.array(X), kc.array(places), 1).numpy()
    np.testing.assert_array_equal(found, [[0, 1, np.nan], [np.nan, np.nan, 2], [5, 4, 5]])


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_places_out_of_range_are_dropped(axis, kind):
    """Nor do they reach another row."""
    size = X.shape[axis]
    inside = PLACES[(-size <= PLACES) & (size > PLACES)]
    counts = np.bincount(inside % size, minlength=size).astype(np.float32)
    expected = np.broadcast_to(counts[:, None] if axis == 0 else counts, X.shape)
    places = kc.array(PLACES.astype(kind))
    found = kc.grad(lambda x: kc.sum(kc.take(x, places, axis)))(kc.array(X))
    np.testing.assert_array_equal(found.numpy(), expected)


def test_debugging_names_indices_out_of_range(monkeypatch):
    monkeypatch.setenv("KERASCL_DEBUG", "1")
    with pytest.raises(IndexError, match=r"indices from 0 to 7 .* axis of size 3"):
        kc.take(kc.array(X), kc.array([0, 7]), 0)
    assert kc.take(kc.array(X), kc.array([-3, 2]), 0).tolist() == [[0, 1], [4, 5]]


def test_masks_that_do_not_fit():
    x = kc.array(X)
    for key in (
        np.array([True, False]), kc.array([True, False]), (slice(None), [True, False, True]),
        (..., np.array([True] * 3)), np.ones((3, 3), bool), np.ones((2, 2), bool),
    ):  # fmt: skip
        with pytest.raises(IndexError, match="boolean index"):
            x[key]
    for key in ((slice(None), [True, False]), (..., [False, True]), X > 2, [], (None, X > 7)):
        np.testing.assert_array_equal(x[key].numpy(), X[key])


def test_indices_that_the_host_knows():
    x = kc.array(X)
    for key in (3, -4, [3], [0, -4], (slice(None), [2]), (0, np.array([0, 5])), [[0], [9]]):
        with pytest.raises(IndexError, match="out of bounds"):
            x[key]
        with pytest.raises(IndexError, match="out of bounds"):
            x.at[key].set(0)
    np.testing.assert_array_equal(x[[-3, 2], [1, -2]].numpy(), X[[-3, 2], [1, -2]])
    # those that only the device knows are clamped
    assert x[kc.array([5, -9])].tolist() == [[4, 5], [0, 1]]


def test_nothing_to_join():
    for join in (kc.concatenate, kc.stack, kc.hstack, kc.vstack):
        with pytest.raises(ValueError, match="at least one array"):
            join([])


def test_quantiles_outside():
    for q in (1.5, -0.1, [0.5, 2], np.array([1.1]), float("nan"), kc.array(-0.5)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            kc.quantile(X, q)
    with pytest.raises(ValueError, match="between 0 and 100"):
        kc.percentile(X, 101)
    assert kc.percentile(X, 100).item() == 5


def test_complex_numbers_are_not_sorted():
    for function in (kc.sort, kc.argsort, kc.median):
        with pytest.raises(TypeError, match=r"complex64|complex128"):
            function(kc.array([1j, 0]))


def test_functions_over_an_empty_axis():
    empty = kc.zeros((3, 0))
    assert kc.nn.softmax(empty).shape == kc.nn.log_softmax(empty).shape == (3, 0)
    assert kc.logsumexp(empty, -1).tolist() == [-np.inf] * 3
    for function in (kc.max, kc.min, kc.argmax, kc.argmin):
        with pytest.raises(ValueError, match="empty array"):
            function(empty, 1)
        assert function(empty, 0).shape == (0,)
