"""dtypes of results for every pair of dtypes; the reference is Keras' lattice, which is JAX's."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from keras import ops
from keras.src import backend
from keras.src.backend import KerasTensor
from keras.src.backend.common.dtypes import ALLOWED_DTYPES, FLOAT8_TYPES

DTYPES = [d for d in ALLOWED_DTYPES if d != "string" and d not in FLOAT8_TYPES]
REAL = [d for d in DTYPES if "complex" not in d]
WHOLE = [d for d in DTYPES if "int" in d]
WEAK = {int: 2, float: 2.5}


def tensor(dtype: str):
    known = getattr(ml_dtypes, dtype, None) or dtype
    return ops.convert_to_tensor(np.ones(3, known))


def check(name: str, kinds: list[str], weak=WEAK) -> None:
    function = getattr(ops, name)
    tensors = {d: tensor(d) for d in kinds}
    for a, b in itertools.product(kinds, kinds):
        symbols = [KerasTensor((3,), d) for d in (a, b)]
        found, expected = function(tensors[a], tensors[b]), function(*symbols)
        assert backend.standardize_dtype(found.dtype) == expected.dtype, (name, a, b)
    for a, kind in itertools.product(kinds, weak):
        found = function(tensors[a], weak[kind])
        expected = function(KerasTensor((3,), a), weak[kind])
        assert backend.standardize_dtype(found.dtype) == expected.dtype, (name, a, kind)


@pytest.mark.parametrize("name", [
    "add", "subtract", "multiply", "divide", "true_divide", "power", "equal", "not_equal", "less",
    "greater", "maximum", "minimum",
])  # fmt: skip
def test_two_numbers(name):
    # two bools: Keras' symbolic rule says bool, JAX refuses or says int32, here it is int32
    check(name, [d for d in DTYPES if d != "bool"] if name in ("subtract", "power") else DTYPES)


@pytest.mark.parametrize("name", ["floor_divide", "mod", "fmin", "fmax", "nextafter"])
def test_two_real_numbers(name):
    # a Python number is weak in JAX's nextafter, but not in Keras' symbolic rule
    kinds = [d for d in REAL if d != "bool"] if name == "floor_divide" else REAL
    check(name, kinds, {} if name == "nextafter" else WEAK)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"])
def test_two_integers(name):
    # uint64 meets signed integers at float32
    kinds = [d for d in WHOLE if d != "uint64"]
    check(name, kinds, {})
    for dtype in kinds:  # weak in JAX; Keras' symbolic rules refuse Python numbers here
        assert getattr(ops, name)(tensor(dtype), 2).dtype == backend.result_type(dtype, int)


@pytest.mark.parametrize("name", ["outer", "inner", "kron", "append"])
def test_products_with_weak_numbers(name):
    for dtype in ("int8", "uint16", "int32", "float16", "bfloat16", "float32"):
        for kind, value in WEAK.items():
            found = getattr(ops, name)(tensor(dtype), value)
            assert found.dtype == backend.result_type(dtype, kind), (name, dtype, kind)


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum"])
@pytest.mark.parametrize("small", FLOAT8_TYPES)
def test_float8_gives_way_to_no_other_float(name, small):
    """As JAX: integers, bools and Python numbers join a float8, other floats have to be cast."""
    function = getattr(ops, name)
    x = tensor(small)
    for dtype in ["bool", *WHOLE, small]:
        assert function(x, tensor(dtype)).dtype == small
        assert function(tensor(dtype), x).dtype == small
    for value in (1, 2.5):
        assert function(x, value).dtype == small
    for dtype in [*FLOAT8_TYPES, *DTYPES]:
        if dtype not in (small, "bool", *WHOLE):
            with pytest.raises(TypeError, match="must be cast explicitly"):
                function(x, tensor(dtype))


def test_complex_parts_survive(rng):
    """Operations that used to keep only the real part of one argument."""
    a = (rng.normal(size=5) + 1j * rng.normal(size=5)).astype("complex64")
    b = rng.normal(size=3).astype("float32")
    found = ops.convert_to_numpy(ops.correlate(a, b, mode="full"))
    np.testing.assert_allclose(found, np.correlate(a, b, "full"), rtol=1e-5, atol=1e-6)
    found = ops.convert_to_numpy(ops.trapezoid(a, np.arange(5, dtype="float32")))
    np.testing.assert_allclose(found, np.trapezoid(a), rtol=1e-5, atol=1e-6)
    found = ops.convert_to_numpy(ops.geomspace(np.complex64(1), np.complex64(1j), 5))
    np.testing.assert_allclose(found, np.geomspace(1, 1j, 5), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError):
        ops.hypot(a, a)
