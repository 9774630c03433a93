"""Eager evaluation of graphs that were evaluated before."""

import sys

import numpy as np
import pytest

import kerascl as kc

X = np.linspace(-1, 2, 100, dtype=np.float32)


def calls_of(function):
    """How many Python and C functions a call of `function` calls."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    for _ in range(3):
        function()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "function, most",
    [
        (lambda x: x * x, 85),
        (lambda x: x * x + 1, 125),
        (lambda x: kc.sum(x), 125),
        (lambda x: kc.cumsum(x), 125),
    ],
)
def test_host_work_of_an_operation(function, most):
    """The host's time bounds small operations on GPUs; calls are what of it does not vary."""
    x = kc.array(X)
    assert calls_of(lambda: function(x).evaluate()) <= most


@pytest.mark.parametrize("shape", [(100,), (10, 10)])
def test_a_mask_takes_one_small_read_and_three_launches(shape, monkeypatch):
    host = X.reshape(shape)
    x, reads = kc.array(host), []
    queue = x.device.queue
    read = queue.read_async
    monkeypatch.setattr(
        queue, "read_async", lambda b, a, *offset: reads.append(a.nbytes) or read(b, a, *offset)
    )
    before = kc.engine.launches
    found = x[x > 0.5].evaluate()
    assert kc.engine.launches - before == 3  # flags, their sums, what they choose
    assert reads == [4]
    np.testing.assert_array_equal(found.numpy(), host[host > 0.5])


def test_equal_graphs_with_other_values_and_memory():
    """One Program for graphs that differ in nothing but their leaves, whoever holds their parts."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        for n in (7, 7, 64):
            a, b = rng.standard_normal((2, n)).astype(np.float32)
            x, y = kc.array(a), kc.array(b)
            kept = x * y
            np.testing.assert_array_equal((kept + 2.5).numpy(), a * b + np.float32(2.5))
            np.testing.assert_array_equal(kept.numpy(), a * b)
            np.testing.assert_array_equal((x * x - y).numpy(), a * a - b)


@pytest.mark.parametrize("low, high", [(0.0, -0.0), (1.0, -1.0), (np.inf, -np.inf), (0.5, np.nan)])
def test_constants_are_told_apart(low, high):
    x = kc.array(np.array([1.0, -2.0], np.float32))
    for value in (low, high, low):
        expected = np.copysign(np.float32(1), np.float32(value)) * np.ones(2, np.float32)
        np.testing.assert_array_equal(kc.copysign(kc.ones_like(x), value).numpy(), expected)
        np.testing.assert_array_equal((x + value).numpy(), x.numpy() + np.float32(value))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32"])
@pytest.mark.parametrize("scalar", [True, 3, -3, 2.5])
def test_scalars_take_the_dtype_of_arrays(dtype, scalar):
    """As NumPy 2's weak scalars, but that floats meet integers in float32."""
    host = np.array([0, 1, 1], dtype)
    x = kc.array(host)
    if dtype == "uint8" and scalar == -3:
        with pytest.raises(OverflowError):
            x + scalar
        return
    wide = np.float32 if type(scalar) is float and host.dtype.kind != "f" else host.dtype
    if dtype == "bool" and type(scalar) is int:
        wide = np.int32
    expected = host.astype(wide) + np.asarray(scalar, wide)
    for found in (x + scalar, scalar + x):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected)
