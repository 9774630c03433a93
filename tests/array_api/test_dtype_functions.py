"""dtypes and devices as the array API standard asks for them, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.dtypes import ALL

FLOATS = [d for d in ALL if d.is_float]
INTEGERS = [d for d in ALL if d.is_integer]
COMMON = [d for d in ALL if not d.is_float8 and d is not kc.bfloat16]  # those that NumPy has
KINDS = ("bool", "signed integer", "unsigned integer", "real floating", "complex floating")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_finfo(dtype):
    found, expected = kc.finfo(dtype), ml_dtypes.finfo(dtype.numpy)
    for name in ("bits", "eps", "max", "min", "smallest_normal", "tiny"):
        assert getattr(found, name) == float(getattr(expected, name)), name
    assert type(found.eps) is float and found.dtype is dtype
    assert kc.finfo(kc.ones(1, dtype)) == found


def test_finfo_of_complex_numbers_is_that_of_their_parts():
    assert kc.finfo(kc.complex64) == kc.finfo(kc.float32)
    with pytest.raises(TypeError, match="iinfo"):
        kc.finfo(kc.int32)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_iinfo(dtype):
    found, expected = kc.iinfo(dtype), np.iinfo(dtype.numpy)
    assert (found.bits, found.max, found.min) == (expected.bits, expected.max, expected.min)
    assert found.dtype is dtype


def test_iinfo_of_floats_is_refused():
    with pytest.raises(TypeError, match="finfo"):
        kc.iinfo(kc.float32)


@pytest.mark.parametrize("dtype", COMMON, ids=str)
def test_isdtype(dtype):
    for kind in (*KINDS, "integral", "numeric"):
        assert kc.isdtype(dtype, kind) == np.isdtype(dtype.numpy, kind)
    assert kc.isdtype(dtype, (kc.float32, "integral")) == (dtype is kc.float32 or dtype.is_integer)
    assert kc.isdtype(dtype, dtype) and not kc.isdtype(dtype, ())
    with pytest.raises(ValueError, match="real floating"):
        kc.isdtype(dtype, "floating")


def test_result_type():
    assert kc.result_type(kc.int8, kc.ones(2, "int16")) is kc.int16
    assert kc.result_type(kc.float32, 1, 2.0) is kc.float32
    assert kc.result_type(kc.uint8, -1) is kc.uint8
    assert kc.result_type(kc.float64, 1j) is kc.complex128
    assert kc.result_type(np.ones(2), kc.float32) is kc.float64
    assert kc.result_type(1, 2.0) is kc.float32
    with pytest.raises(ValueError, match="at least one"):
        kc.result_type()


SAFE = [d for d in COMMON if d.kind in "biuc"]


@pytest.mark.parametrize("dtype", SAFE, ids=str)
def test_can_cast_within_a_kind(dtype):
    for other in SAFE:
        if dtype.kind == other.kind or {dtype.kind, other.kind} == {"u", "i"}:
            assert kc.can_cast(dtype, other) == np.can_cast(dtype.numpy, other.numpy)
            assert kc.can_cast(kc.ones(1, dtype), other) == kc.can_cast(dtype, other)


def test_astype(rng):
    x = (rng.normal(size=5) * 10).astype("float32")
    a = kc.asarray(x)
    np.testing.assert_array_equal(kc.astype(a, kc.int32).numpy(), x.astype("int32"))
    assert kc.astype(a, kc.float32, copy=False) is a
    other = kc.astype(a, kc.float32)
    other[0] = 99
    assert a[0].item() == x[0] and other[0].item() == 99


def test_info():
    info = kc.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes(device=info.default_device()) == {
        "real floating": kc.ones(1).dtype,
        "complex floating": kc.asarray([1j]).dtype,
        "integral": kc.asarray([1]).dtype,
        "indexing": kc.argmax(kc.ones(2)).dtype,
    }
    assert info.capabilities()["boolean indexing"] is True
    for kind in KINDS:
        named = info.dtypes(kind=kind)
        assert named and all(kc.isdtype(d, kind) for d in named.values())
    assert info.dtypes(kind=("bool", "integral")) == {
        **info.dtypes(kind="bool"),
        **info.dtypes(kind="integral"),
    }
    with pytest.raises(ValueError, match="numeric"):
        info.dtypes(kind="float")


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: kc.zeros((2, 3), **o),
        lambda **o: kc.full((2,), 3, **o),
        lambda **o: kc.ones_like(kc.zeros(2), **o),
        lambda **o: kc.arange(4, **o),
        lambda **o: kc.linspace(0, 1, 3, **o),
        lambda **o: kc.eye(2, 3, **o),
        lambda **o: kc.asarray([1.0, 2.0], **o),
        lambda **o: kc.asarray(2.5, **o),
        lambda **o: kc.fft.fftfreq(4, **o),
    ],
)
def test_device(make):
    plain = make()
    for device in kc.__array_namespace_info__().devices():
        x = make(device=device)
        assert x.device is device and x.to_device(device) is x
        np.testing.assert_array_equal(x.numpy(), plain.numpy())
        back = x.to_device(plain.device)
        assert back.device is plain.device and back.dtype is plain.dtype
