"""What arrives as it was: byte orders, Python's numbers, dtype records, and dtypes of results."""

import copy
import dataclasses
import operator
import pickle

import numpy as np
import pytest

import kerascl as kc
from kerascl.dtypes import ALL
from kerascl.runtime import device

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


# -- dtype records ------------------------------------------------------------
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_there_is_one_record_of_each_dtype(dtype):
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy({"dtype": dtype})["dtype"] is dtype
    assert dtype == dtype.name == dtype.numpy
    assert hash(dtype) == hash(dtype.name)


def test_comparing_a_dtype_never_raises():
    for other in ({}, [], None, 1, "nonsense", ",,", object, object(), np.dtype("V3"), set()):
        assert (kc.float64 == other) is False
        assert kc.float64 != other
    assert kc.float32 == np.float32
    assert kc.float32 == np.dtype("f4") == kc.float32
    with pytest.raises(TypeError, match="None"):
        kc.zeros((1,)).astype(None)


def test_numpy_and_pandas_take_a_dtype():
    assert np.dtype(kc.float32) == np.float32
    assert np.zeros(3, kc.int16).dtype == np.int16
    assert np.ones(2).astype(kc.bfloat16).dtype == kc.bfloat16.numpy
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert pandas.Series([1, 2], dtype=kc.float32).dtype == np.float32


# -- arrays of the host -------------------------------------------------------
@pytest.mark.parametrize("dtype", ["i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_both_byte_orders(dtype):
    values = np.arange(1, 7).reshape(2, 3)
    captured = kc.jit(lambda x: x)
    for order in "<>":
        host = values.astype(order + dtype)
        expected = values.astype(dtype)
        state = kc.State(kc.zeros((2, 3), dtype))
        state.assign(kc.array(host))
        for found in (
            kc.array(host), captured(host), kc.jit(lambda x: x)(host), state.value,
            kc.array(host, dtype), kc.array(host.T).T, kc.array(host[::-1])[::-1],
        ):  # fmt: skip
            np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal((kc.zeros((), dtype) + host).numpy(), expected)
        assert kc.array(host[0, 1]).item() == kc.array(host[0, 1].reshape(())).item() == 2
        assert captured(host[0, 1]).item() == 2


def test_arrays_without_a_place_on_the_device():
    mask = np.ma.array([1.0, 2.0], mask=[True, False])
    day = np.array(["2020-01-01"], "M8[D]")
    pair = np.zeros(2, [("a", "f4"), ("b", "i4")])
    for bad in (mask, day, pair, np.array(["a"]), np.array([None]), ["a"], None, {}):
        with pytest.raises(TypeError, match="not supported"):
            kc.array(bad)
    for bad in (mask, day, pair, np.array(["a"])):
        with pytest.raises(TypeError, match="not supported"):
            kc.jit(lambda x: x + 1)(bad)


def test_floats_saturate_in_integers_wherever_they_come_from():
    fp64 = device.default().info.fp64
    host = np.array([1e20, -1e20, np.nan, -3.7, np.inf])
    expected = [2**31 - 1, -(2**31), 0, -3, 2**31 - 1]
    single = kc.array(host.astype(np.float32))
    for found in (kc.array(host, "int32"), kc.array(host).astype("int32") if fp64 else single):
        np.testing.assert_array_equal(found.astype("int32").numpy(), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_float64_saturates_where_the_device_has_none(dtype, monkeypatch):
    """There NumPy converts, which leaves undefined what no integer is."""
    on = device.default()
    monkeypatch.setattr(on, "info", dataclasses.replace(on.info, fp64=False))
    ends = np.iinfo(dtype)
    host = np.array([1e20, -1e20, np.nan, -3.7, 100.9, np.inf, ends.max, ends.min, 2.0**63])
    whole = [ends.max, ends.min, 0, max(-3, ends.min), 100, ends.max, ends.max, ends.min]
    whole.append(min(2**63, ends.max))
    np.testing.assert_array_equal(kc.array(host, dtype).numpy(), np.array(whole, dtype))
    assert kc.array(np.float64(1e20), dtype).item() == ends.max


# -- Python's numbers ---------------------------------------------------------
def test_integers_that_no_dtype_holds():
    for value in (2**70, -(2**70), 2**64, [2**70], [2**63, -1], [[2**64]]):
        with pytest.raises(OverflowError, match="Python integer"):
            kc.array(value)
    assert kc.array(2**64 - 1).dtype == kc.array([2**64 - 1]).dtype == "uint64"
    assert kc.array(-(2**63)).item() == -(2**63)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_python_integers_out_of_bounds(dtype):
    info = np.iinfo(dtype)
    x = kc.array(np.array([0, 1, info.max], dtype))
    for value in (info.max + 1, info.min - 1):
        for function in (
            lambda v: x + v, lambda v: v * x, lambda v: kc.maximum(x, v),
            lambda v: kc.where(x > 0, x, v), lambda v: kc.jit(lambda y: y - v)(x),
            lambda v: kc.full((2,), v, dtype), lambda v: kc.array(v, dtype),
            lambda v: kc.array([v], dtype), lambda v: kc.full_like(x, v),
            lambda v: x.at[0].set(v), lambda v: kc.arange(v, v + 1, dtype=dtype),
        ):  # fmt: skip
            with pytest.raises(OverflowError, match=r"out of bounds|too large"):
                function(value)
    assert (x + 0).dtype == dtype
    np.testing.assert_array_equal(kc.cast(kc.array(300), "uint8").numpy(), 300 % 256)


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_exact(name):
    """As NumPy's: beside Python integers of any size, and between int64 and uint64."""
    compare = getattr(operator, name)
    for dtype in INTEGERS:
        host = np.array([0, 1, 100, np.iinfo(dtype).max], dtype)
        for value in (300, -1, 2**70, -(2**70), 2**63, 100):
            np.testing.assert_array_equal(compare(kc.array(host), value), compare(host, value))
            np.testing.assert_array_equal(compare(value, kc.array(host)), compare(value, host))
    signed = np.array([-1, 2**53 + 1, 5, 2**63 - 1, -(2**63)])
    unsigned = np.array([2**64 - 1, 2**53, 5, 2**63, 2**63], "uint64")
    for a, b in ((signed, unsigned), (unsigned, signed)):
        for call in (compare, kc.jit(compare)):
            np.testing.assert_array_equal(call(kc.array(a), kc.array(b)), compare(a, b))


# -- dtypes of results --------------------------------------------------------
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_sums_of_integers_widen(dtype):
    host = (np.array([[1, 0, 1], [1, 1, 1], [1, 1, 1]]) * 100).astype(dtype)
    x = kc.array(host)
    for name in ("sum", "prod", "cumsum", "cumprod", "trace", "nansum", "nanprod", "nancumsum",
                 "nancumprod"):  # fmt: skip
        found, expected = getattr(kc, name)(x), getattr(np, name)(host)
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=name)
    for name in ("sum", "prod"):
        assert getattr(x, name)().dtype == getattr(host, name)().dtype
        assert getattr(x, name)(dtype="int16").dtype == "int16"
        assert getattr(np, name)(x).dtype == getattr(np, name)(host).dtype


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_rounding_keeps_integers(dtype):
    host = np.array([0, 1, 100]).astype(dtype)
    for name in ("floor", "ceil", "trunc"):
        found = getattr(kc, name)(kc.array(host))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy(), getattr(np, name)(host))
    large = np.array([2**53 + 1])
    assert kc.floor(kc.array(large)).item() == kc.round(kc.array(large)).item() == 2**53 + 1


def test_sequences_are_computed_in_the_dtype_of_the_result():
    for name, arguments in (
        ("linspace", (0.1, 1.7, 7)), ("logspace", (0.1, 1.7, 7)), ("geomspace", (0.1, 1.7, 7)),
        ("arange", (0.1, 1.7, 0.3)), ("linspace", (0, 2**40, 5)), ("geomspace", (1j, 16j, 5)),
    ):  # fmt: skip
        dtype = "complex128" if isinstance(arguments[0], complex) else "float64"
        found = getattr(kc, name)(*arguments, dtype=dtype).numpy()
        expected = getattr(np, name)(*arguments)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-15)
    found = kc.linspace(0, 2**40 + 4, 5, dtype="int64")
    np.testing.assert_array_equal(found.numpy(), np.linspace(0, 2**40 + 4, 5, dtype="int64"))
    np.testing.assert_array_equal(kc.arange(5, 0, -1, dtype="uint8").numpy(), [5, 4, 3, 2, 1])


def test_sign_of_nan():
    nans = [np.nan, np.copysign(np.nan, -1), np.copysign(np.nan, 1)]
    for value in nans:
        for found in (kc.signbit(value), kc.jit(lambda v=value: kc.signbit(kc.array(v)))()):
            assert found.item() == np.signbit(value)
    for dtype in ("float16", "float32", "float64", "bfloat16"):
        host = np.array(nans).astype(kc.zeros((), dtype).dtype.numpy)
        np.testing.assert_array_equal(kc.signbit(kc.array(host)).numpy(), np.signbit(host))


@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_functions_of_constants_that_are_no_numbers(special, dtype):
    """Compilers may know a constant's value, and must not make it undefined."""
    if dtype == "float64" and not device.default().info.fp64:
        pytest.skip("the device has no float64")
    x = np.linspace(-3, 3, 40).astype(dtype)
    names = ("floor", "ceil", "trunc", "round", "sqrt", "exp", "sin", "tanh", "absolute")

    def run(m, a):
        c = np.dtype(dtype).type(special) if m is np else float(special)
        return [m.clip(getattr(m, name)(c - a), -1, 2) for name in names]

    with np.errstate(invalid="ignore"):
        expected = run(np, x)
    for call in (lambda a: run(kc, a), kc.jit(lambda a: run(kc, a))):
        for name, found, right in zip(names, call(kc.array(x)), expected, strict=True):
            rtol = 2e-3 if dtype == "float16" else 1e-6
            np.testing.assert_allclose(found.numpy(), right, rtol=rtol, err_msg=name)
