"""NaN, infinities, signed zeros, empty arrays and scalars, ties, and errors."""

import math
import warnings

import numpy as np
import pytest

import kerascl as kc

X = np.array([np.nan, 1.0, -np.inf, 0.0, -0.0, np.inf, -2.5, 1.0], np.float32)
Y = np.array([1.0, np.nan, np.inf, -0.0, 0.0, np.inf, -2.5, -3.0], np.float32)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def same(found, expected) -> None:
    found, expected = found.numpy(), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", [
    "maximum", "minimum", "fmax", "fmin", "add", "multiply", "divide", "fmod", "mod",
    "floor_divide", "equal", "less", "greater_equal", "isclose", "logaddexp", "logaddexp2",
    "arctan2", "hypot", "power", "heaviside",
])  # fmt: skip
def test_special_values_of_two(name):
    same(getattr(kc, name)(X, Y), getattr(np, name)(X, Y))


@pytest.mark.parametrize("name", [
    "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "sign", "nan_to_num", "round",
    "floor", "trunc", "absolute", "sqrt", "exp", "log", "tanh", "logical_not", "i0",
])  # fmt: skip
def test_special_values_of_one(name):
    same(getattr(kc, name)(X), getattr(np, name)(X))


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "sum", "prod", "any", "all"])
def test_reductions_keep_nan(name):
    grid = np.array([[1, np.nan, 3], [4, 2, 4], [-np.inf, -np.inf, -np.inf]], np.float32)
    same(getattr(kc, name)(grid, 1), getattr(np, name)(grid, 1))
    same(getattr(kc, name)(grid), getattr(np, name)(grid))
    long = np.zeros(100_000, np.float32)
    long[77_777] = np.nan
    same(getattr(kc, name)(long), getattr(np, name)(long))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_positions_of_equal_elements(rng, name, dtype):
    """The first of them, also where all are what a search begins with."""
    lowest, highest = (-np.inf, np.inf) if dtype == "float32" else (0, 1)
    if dtype in ("int32", "uint8"):
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    grid = rng.choice(np.array([lowest, highest]), (40, 1003)).astype(dtype)
    grid[0], grid[1] = lowest, highest
    for x in (grid, np.ascontiguousarray(grid.T), grid[:, :1], np.tile(grid[:2], 60)):
        for axis in (0, 1, None):
            same(getattr(kc, name)(x, axis), getattr(np, name)(x, axis))


@pytest.mark.parametrize("name", ["nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nansum",
                                  "nanprod", "nanmedian"])  # fmt: skip
def test_rows_without_numbers(name):
    grid = np.array([[np.nan, np.nan], [1, np.nan], [np.nan, -np.inf]], np.float32)
    same(getattr(kc, name)(grid, 1), getattr(np, name)(grid, 1))


def test_positions_without_numbers():
    grid = np.array([[np.nan, np.nan], [np.nan, -np.inf], [np.inf, np.nan]], np.float32)
    assert kc.nanargmax(grid, 1).tolist() == [-1, 1, 0]
    assert kc.nanargmin(grid, 1).tolist() == [-1, 1, 0]


def test_sorting_puts_nan_last():
    same(kc.sort(X), np.sort(X))
    assert kc.argsort(X).tolist()[-1] == 0
    assert np.isnan(kc.sort(X, descending=True).numpy()[0])
    same(kc.median(X), np.nan)
    same(kc.searchsorted(np.sort(X), X), np.searchsorted(np.sort(X), X))


def test_positions_of_ties_are_the_first():
    row = np.array([3, 1, 3, 1, 3], np.float32)
    assert kc.argmax(row).item() == 0
    assert kc.argmin(row).item() == 1
    assert kc.argsort(row).tolist() == [1, 3, 0, 2, 4]
    assert kc.argsort(row, descending=True).tolist() == [0, 2, 4, 1, 3]
    long = kc.zeros((123_457,))
    assert kc.argmax(long).item() == kc.argmin(long).item() == 0


def test_gradients_at_kinks():
    """As JAX: ties share."""
    cases = [
        (lambda x: kc.maximum(x, 0.0), [0.5]),
        (lambda x: kc.minimum(x, kc.zeros((1,))), [0.5]),
        (kc.absolute, [0.0]),
        (lambda x: kc.clip(x, 0.0, 1.0), [0.5]),
        (lambda x: kc.max(kc.concatenate([x, kc.zeros((2,))])), [1 / 3]),
        (lambda x: kc.power(x, 2.0), [0.0]),
        (lambda x: kc.power(x, kc.zeros((1,))), [0.0]),
        (kc.sign, None),
        (kc.floor, None),
        (lambda x: kc.where(x > 0, kc.log(kc.where(x > 0, x, 1.0)), 0.0), [0.0]),
        (lambda x: kc.hypot(x, x), [0.0]),
        (kc.sinc, [0.0]),
        (lambda x: kc.prod(kc.concatenate([x, kc.array([2.0, 3.0])])), [6.0]),
        (lambda x: kc.cumprod(kc.concatenate([x, kc.array([2.0, 3.0])])), [1 + 2 + 6]),
    ]
    for function, expected in cases:
        found = kc.grad(lambda x, f=function: kc.sum(f(x)))(kc.array([0.0]))
        if expected is None:
            assert found is None
        else:
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_gradients_of_products_with_zeros(rng):
    for zeros in ((), (1,), (1, 4), (0, 2, 4)):
        row = rng.uniform(0.5, 2, 6)
        row[list(zeros)] = 0
        x = kc.array(row.astype(np.float32))
        found = kc.grad(lambda v: kc.prod(v))(x).numpy()
        others = [np.prod(np.delete(row, k)) for k in range(6)]
        np.testing.assert_allclose(found, others, rtol=1e-5)
        weights = rng.uniform(0.5, 2, 6).astype(np.float32)
        found = kc.grad(lambda v, w=weights: kc.sum(kc.cumprod(v) * w))(x).numpy()
        expected = [
            sum(weights[j] * np.prod(np.delete(row[: j + 1], k)) for j in range(k, 6))
            for k in range(6)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


EMPTY = np.zeros((0, 3), np.float32)


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "cumsum", "sort", "argsort", "ravel",
                                  "transpose", "sin", "isnan", "count_nonzero", "flip", "tril",
                                  "nansum", "argwhere", "unique", "fliplr", "diff",
                                  "logsumexp"])  # fmt: skip
def test_empty_arrays(name):
    reference = getattr(np, name, None) or (lambda x: np.float32(-np.inf))
    same(getattr(kc, name)(EMPTY), reference(EMPTY))


def test_empty_shapes():
    assert kc.sum(EMPTY, 0).tolist() == [0, 0, 0]
    assert kc.sum(EMPTY, 1).shape == (0,)
    assert np.isnan(kc.mean(EMPTY, 0).numpy()).all()
    assert kc.matmul(kc.transpose(EMPTY), EMPTY).tolist() == [[0] * 3] * 3
    assert kc.matmul(EMPTY, kc.ones((3, 2))).shape == (0, 2)
    assert kc.concatenate([EMPTY, kc.ones((2, 3))]).shape == (2, 3)
    assert kc.concatenate([EMPTY, EMPTY], 1).shape == (0, 6)
    assert kc.pad(EMPTY, ((1, 0), (0, 0))).shape == (1, 3)
    assert kc.take(kc.ones((4,)), np.zeros((0, 2), np.int32)).shape == (0, 2)
    assert kc.tile(EMPTY, (2, 2)).shape == (0, 6)
    assert kc.stack([EMPTY, EMPTY]).shape == (2, 0, 3)
    assert [p.shape for p in kc.split(EMPTY, 3, 1)] == [(0, 1)] * 3
    assert kc.top_k(kc.ones((2, 5)), 0)[0].shape == (2, 0)
    assert kc.max(EMPTY, 0, initial=1.0).tolist() == [1, 1, 1]
    assert kc.grad(lambda x: kc.sum(kc.sin(x) @ kc.ones((3, 2))))(kc.array(EMPTY)).shape == (0, 3)
    for function in (kc.max, kc.min, kc.argmax, kc.median):
        with pytest.raises(ValueError, match="empty"):
            function(EMPTY)


def test_scalars():
    x = kc.array(2.0)
    assert x.shape == ()
    assert kc.sum(x).item() == kc.max(x).item() == kc.cumsum(x).item() == 2.0
    assert kc.argmax(x).item() == 0
    assert kc.sort(x).item() == 2.0
    assert kc.reshape(x, (1, 1)).shape == (1, 1)
    assert kc.transpose(x).item() == 2.0
    assert kc.dot(x, kc.ones((3,))).tolist() == [2, 2, 2]
    assert kc.argwhere(x).shape == np.argwhere(x.numpy()).shape
    found = kc.grad(lambda s: kc.sum(kc.sin(s * kc.ones((3, 2)))))(x)
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), 6 * math.cos(2), rtol=1e-6)


def test_errors_name_what_is_wrong():
    x = kc.ones((2, 3))
    with pytest.raises(ValueError, match="broadcast"):
        kc.add(x, kc.ones((2, 2)))
    with pytest.raises(ValueError, match="fit"):
        kc.matmul(x, x)
    with pytest.raises(ValueError, match="axis 2"):
        kc.sum(x, 2)
    with pytest.raises(ValueError, match="twice"):
        kc.sum(x, (0, -2))
    with pytest.raises(ValueError, match="equal parts"):
        kc.split(x, 2, 1)
    with pytest.raises(ValueError, match="permute"):
        kc.transpose(x, (0, 0))
    with pytest.raises(ValueError, match="mode"):
        kc.pad(x, 1, "mean")
    with pytest.raises(TypeError, match="integers"):
        kc.take(x, x)
    with pytest.raises(TypeError, match="integers"):
        kc.gcd(x, x)
    with pytest.raises(IndexError, match="too many"):
        x[0, 0, 0]
    with pytest.raises(IndexError, match="out of bounds"):
        x[5]


def test_gradient_of_a_gather_without_elements():
    """What goes back is empty too, and no view of it asks for an element."""

    def function(x):
        y = x[np.array([-4]), np.array([31])]
        return kc.sum(kc.diagonal(y, 1, 0, -1))

    assert kc.grad(function)(kc.zeros((5, 33, 0))).numpy().shape == (5, 33, 0)


def _same_with_signs(found, expected) -> None:
    found, expected = found.numpy(), np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    number = expected == expected
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("change", [
    lambda m, x: x + 0, lambda m, x: 0.0 + x, lambda m, x: x + -0.0, lambda m, x: -0.0 + x,
    lambda m, x: x - 0.0, lambda m, x: x - -0.0, lambda m, x: 0.0 - x, lambda m, x: x + False,
    lambda m, x: x * 1, lambda m, x: x / 1, lambda m, x: x * 0, lambda m, x: m.negative(-x),
    lambda m, x: x + m.zeros(x.shape, x.dtype), lambda m, x: m.zeros(x.shape, x.dtype) + x,
    lambda m, x: x - m.zeros(x.shape, x.dtype), lambda m, x: x * m.ones(x.shape, x.dtype),
    lambda m, x: x**1, lambda m, x: x**0, lambda m, x: x**-0.5, lambda m, x: x**-1.0,
    lambda m, x: m.maximum(x, -np.inf), lambda m, x: m.minimum(np.inf, x), lambda m, x: x - x,
    lambda m, x: m.where(True, x, 0), lambda m, x: (x + 1) - 1,
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_what_changes_nothing_keeps_signs_and_nan(change, dtype):
    x = X.astype(dtype)
    if dtype == "complex64":
        x = np.array([complex(a, b) for a in (0.0, -0.0, 2.0) for b in (0.0, -0.0, -3.0)], dtype)
        try:
            expected = change(np, x)
            found = [change(kc, kc.array(x)), kc.jit(lambda x: change(kc, x))(x)]
        except TypeError:  # there are no orders of complex numbers, nor roots
            pytest.skip("not of complex numbers")
        for y in found:
            # zeros' signs are those of sums; products and quotients of complex numbers differ
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)
        return
    expected = change(np, x)
    _same_with_signs(change(kc, kc.array(x)), expected)
    _same_with_signs(kc.jit(lambda x: change(kc, x))(x), expected)


def test_sums_with_zero_of_complex_numbers_keep_signs():
    x = np.array([complex(a, b) for a in (0.0, -0.0, 2.0) for b in (0.0, -0.0, -3.0)], "complex64")
    for change in (lambda x: x + 0, lambda x: x + complex(0, -0.0), lambda x: x - 0):
        found, expected = change(kc.array(x)).numpy(), change(x)
        for part in (np.real, np.imag):
            np.testing.assert_array_equal(np.signbit(part(found)), np.signbit(part(expected)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool"])
def test_integers_have_no_negative_powers(dtype):
    x = np.array([1, 2, 3]).astype(dtype)
    for base in (kc.array(x), x, 2):
        with pytest.raises(ValueError, match=r"power: integers .* negative integer -1"):
            kc.power(base, -1)
    with pytest.raises(ValueError, match="negative integer -2"):
        kc.jit(lambda x: x**-2)(x)
    np.testing.assert_allclose((kc.array(x) ** -1.0).numpy(), x.astype("f") ** -1.0)


def test_arrays_of_negative_exponents_cut_the_quotient():
    x, n = (v.ravel() for v in np.meshgrid([1, -1, 2, -3, 0], [-1, -2, -3]))
    expected = np.where(x == 0, 0, np.trunc(np.where(x == 0, 1.0, x) ** n))
    x, n = x.astype("i4"), n.astype("i4")
    for power in (kc.power, kc.jit(kc.power)):
        np.testing.assert_array_equal(power(kc.array(x), kc.array(n)).numpy(), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int8"])
def test_scalars_that_integers_cannot_hold(dtype):
    x = np.arange(4).astype(dtype)
    np.testing.assert_allclose((kc.array(x) / -300).numpy(), x / -300.0, rtol=1e-6)
    np.testing.assert_array_equal(kc.clip(x, -300, 2).numpy(), np.clip(x, -300, 2))
    np.testing.assert_array_equal(kc.clip(x, 1, 2**70).numpy(), np.clip(x, 1, 2**70))
    with pytest.raises(OverflowError, match="out of bounds"):
        kc.clip(x, 2**70, 2**71)
