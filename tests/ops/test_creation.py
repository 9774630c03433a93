"""Making arrays."""

import numpy as np
import pytest

import kerascl as kc


def same(found, expected, exact=True):
    found = found.numpy()
    assert found.shape == np.shape(expected)
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("arguments", [
    (5,), (2, 7), (0, 10, 3), (5, 0, -2), (3, 3), (0.5, 3.0, 0.25), (1, 2, 0.1), (0.0, -1.0, -0.3),
])  # fmt: skip
def test_arange(arguments):
    same(kc.arange(*arguments), np.arange(*arguments), exact=isinstance(sum(arguments), int))
    found = kc.arange(*arguments, dtype="float32")
    same(found, np.arange(*arguments, dtype="float32"), exact=False)


def test_arange_dtypes():
    assert kc.arange(3).dtype == "int32"
    assert kc.arange(3.0).dtype == "float32"
    same(kc.arange(2**33, 2**33 + 3), np.arange(2**33, 2**33 + 3))
    same(kc.arange(0, 300, 2, dtype="float16"), np.arange(0, 300, 2, dtype="float16"))
    same(kc.arange(0.5, 5.5, 1.5, dtype="int32"), np.arange(0.5, 5.5, 1.5, dtype="int32"))
    with pytest.raises(ValueError, match="step"):
        kc.arange(0, 1, 0)


def test_constants():
    for dtype in ("bool", "int8", "uint64", "float16", "bfloat16", "float32", "complex64"):
        for make in (kc.zeros, kc.ones, kc.empty):
            x = make((2, 3), dtype)
            assert x.dtype == dtype
            assert x.shape == (2, 3)
        same(kc.ones((2,), dtype), np.ones(2, kc.zeros((), dtype).dtype.numpy))
    same(kc.full((2, 2), 7), np.full((2, 2), 7))
    same(kc.zeros(3), np.zeros(3))
    assert kc.empty_like(kc.ones((2,), "int16")).dtype == "int16"


@pytest.mark.parametrize("rows, columns, k", [
    (3, None, 0), (2, 4, 1), (4, 2, -2), (3, 3, 5), (0, 2, 0),
])  # fmt: skip
def test_matrices(rows, columns, k):
    same(kc.eye(rows, columns, k), np.eye(rows, columns, k))
    same(kc.tri(rows, columns, k), np.tri(rows, columns, k))
    same(kc.identity(rows, "int32"), np.identity(rows))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 32])
def test_windows(size):
    for name in ("bartlett", "blackman", "hamming", "hanning"):
        same(getattr(kc, name)(size), getattr(np, name)(size), exact=False)
    same(kc.kaiser(size, 8.6), np.kaiser(size, 8.6), exact=False)


def test_linspace():
    for num in (0, 1, 2, 9):
        for endpoint in (True, False):
            same(kc.linspace(-1, 2, num, endpoint), np.linspace(-1, 2, num, endpoint), exact=False)
    y, step = kc.linspace(0.0, 1.0, 5, retstep=True)
    assert step.item() == 0.25
    assert y[-1].item() == 1.0
    same(kc.linspace(-2.5, 4, 6, dtype="int32"), np.linspace(-2.5, 4, 6, dtype="int32"))
    ends = np.array([[1.0, 2.0]]), np.array([[3.0], [5.0]])
    same(kc.linspace(*ends, 4, axis=1), np.linspace(*ends, 4, axis=1), exact=False)


def test_sequences_with_a_ratio():
    same(kc.geomspace(1, 1000, 4), np.geomspace(1, 1000, 4), exact=False)
    same(kc.geomspace(-2, -32, 5), np.geomspace(-2, -32, 5), exact=False)
    same(kc.geomspace(1j, 16j, 5), np.geomspace(1j, 16j, 5), exact=False)
    same(kc.logspace(0, 2, 5, base=3.0), np.logspace(0, 2, 5, base=3.0), exact=False)


def test_array_copies_what_it_gets():
    host = np.arange(4.0)
    x = kc.array(host)
    host[:] = 0
    assert x.tolist() == [0, 1, 2, 3]
    assert kc.array([1, 2]).dtype == "int32"
    assert kc.array([1, 2**40]).dtype == "int64"
    assert kc.array([1.0, 2]).dtype == "float32"
    assert kc.array([[True]]).dtype == "bool"
    assert kc.array(1j).dtype == "complex64"
    assert kc.array(np.float64(0.1)).item() == 0.1
    assert kc.array(x, "int32").tolist() == [0, 1, 2, 3]
    same(kc.array(np.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T)
    with pytest.raises(TypeError):
        kc.array("text")


def test_to_device():
    x = kc.array([1.0, 2.0])
    assert kc.to_device(x, x.device) is x
