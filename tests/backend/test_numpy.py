"""keras.ops.numpy and keras.ops.math: complete, with Keras' names, signatures and dtypes."""

import inspect
import itertools

import keras
import numpy as np
import pytest
from keras import ops
from keras.src import backend
from keras.src.ops import math as keras_math
from keras.src.ops import numpy as keras_numpy

import kerascl as kc
from kerascl.backend.ops import math, numpy, promotion
from kerascl.core.op import CONST
from kerascl.runtime import device

NAMES = sorted(
    name
    for name, value in vars(keras_numpy).items()
    if inspect.isfunction(value)
    and value.__module__ == keras_numpy.__name__
    and f"backend.numpy.{name}(" in inspect.getsource(keras_numpy)
)


def test_every_name_that_keras_calls_exists():
    assert len(NAMES) > 200
    assert [name for name in NAMES if not hasattr(numpy, name)] == []
    called = {
        name
        for name in vars(keras_math)
        if f"backend.math.{name}(" in inspect.getsource(keras_math)
    }
    assert [name for name in called if not hasattr(math, name)] == []


def test_no_other_names():
    """What is missing must be absent, not half there: nothing is a stub."""
    for module in (numpy, math):
        for name, value in vars(module).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                assert "NotImplementedError" not in inspect.getsource(value), name
                assert value.__doc__, name


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name):
    """Keras passes arguments by these names."""
    ours = inspect.signature(getattr(numpy, name)).parameters
    theirs = inspect.signature(getattr(keras_numpy, name)).parameters
    optional = [k for k, p in theirs.items() if p.default is not p.empty and k in ours]
    for key in optional:
        assert ours[key].default is not inspect.Parameter.empty, key
    assert len(ours) >= len([p for p in theirs.values() if p.default is p.empty])


# Without 64 bits, where Keras' own announcements and backends disagree.
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"]
UNARY = ["abs", "arccos", "arctanh", "cbrt", "ceil", "cos", "deg2rad", "exp", "exp2", "expm1",
         "floor", "i0", "isnan", "log", "log10", "log1p", "logical_not", "negative", "sign",
         "signbit", "sin", "sinc", "sqrt", "square", "tanh", "trunc", "mean",
         "sum", "prod", "std", "var", "max", "argmax", "any", "median", "cumsum", "sort",
         "count_nonzero", "nansum", "nanmean", "nanmax", "ravel", "tril", "average"]  # fmt: skip
BINARY = ["add", "subtract", "multiply", "divide", "power", "maximum", "floor_divide", "mod",
          "fmod", "arctan2", "logaddexp", "equal", "less", "logical_and", "matmul", "dot", "outer",
          "where", "concatenate", "einsum"]  # fmt: skip


def apply(name, *xs):
    if name == "where":
        return ops.where(ops.ones((2, 2), "bool"), *xs)
    if name == "concatenate":
        return ops.concatenate(xs)
    return ops.einsum("ij,jk->ik", *xs) if name == "einsum" else getattr(ops, name)(*xs)


@pytest.mark.parametrize("name", UNARY)
def test_dtypes_of_one_argument(name):
    """An eager result has the dtype that Keras' symbolic one announces; nothing is computed."""
    for dtype in DTYPES[1:] if name in ("sign", "negative") else DTYPES:
        eager = apply(name, ops.ones((2, 2), dtype))
        announced = apply(name, keras.KerasTensor((2, 2), dtype))
        assert eager.dtype == announced.dtype, dtype
        assert eager.shape == announced.shape


@pytest.mark.parametrize("name", BINARY)
def test_dtypes_of_two_arguments(name):
    dtypes = DTYPES[1:] if name in ("subtract", "power", "floor_divide") else DTYPES
    for a, b in itertools.product(dtypes, dtypes):
        eager = apply(name, ops.ones((2, 2), a), ops.ones((2, 2), b))
        announced = apply(name, *(keras.KerasTensor((2, 2), d) for d in (a, b)))
        assert eager.dtype == announced.dtype, (a, b)


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "power", "maximum", "floor_divide"])
def test_python_scalars_are_weak(name):
    dtypes = "int8", "float16", "bfloat16", "float32"
    for dtype, scalar in itertools.product(dtypes, (2, 2.5, True)):
        for arguments in ((ops.ones((2,), dtype), scalar), (scalar, ops.ones((2,), dtype))):
            kinds = [getattr(x, "dtype", type(x)) for x in arguments]
            kinds += [float] * (name == "divide")
            found = getattr(ops, name)(*arguments)
            assert backend.standardize_dtype(found.dtype) == keras.backend.result_type(*kinds)


def test_promotion_is_remembered_and_follows_floatx():
    assert promotion.resolve(kc.int32, float) == "float32"
    keras.config.set_floatx("float16")
    try:
        assert promotion.resolve(kc.int32, float) == "float16"
        assert ops.zeros((1,)).dtype == "float16"
        assert ops.mean(ops.ones((2,), "int32")).dtype == "float32"
    finally:
        keras.config.set_floatx("float32")


def test_variables_lists_and_scalars_are_accepted():
    variable = keras.Variable([1.0, 2.0])
    assert ops.add(variable, [1, 2]).tolist() == [2, 4]
    assert ops.sum(variable).item() == 3.0
    assert ops.stack([variable, variable]).shape == (2, 2)
    assert ops.where([True, False], variable, 0).tolist() == [1, 0]
    assert ops.maximum(2, 3).item() == 3
    assert ops.reshape(np.arange(4), (2, -1)).shape == (2, 2)
    with kc.GradientTape() as tape:
        loss = ops.sum(ops.square(variable) * [3.0, 1.0])
    assert tape.gradient(loss, variable).tolist() == [6, 4]


def test_negative_zero_is_smaller_than_zero():
    x = np.array([-1.0, 0.0, -0.0], "float32")
    assert ops.argmin(np.array([0.0, -0.0], "float32")).item() == 1
    assert ops.argmax(x).item() == 1


def test_vectorize():
    def first_or_sum(a, b):
        return a if a > b else a + b

    found = ops.vectorize(first_or_sum)(np.array([[3.0], [1.0]]), np.array([2.0, 4.0]))
    assert found.tolist() == [[3, 7], [3, 5]]
    norm = ops.vectorize(lambda row: ops.sum(row * row), signature="(n)->()")
    assert norm(np.arange(6.0).reshape(2, 3)).tolist() == [5, 50]


def test_short_time_transform_returns(rng):
    x = rng.standard_normal((2, 400)).astype("float32")
    re, im = ops.stft(x, 60, 20, 64)
    assert re.shape == (2, 21, 33)
    back = ops.istft((re, im), 60, 20, 64)
    np.testing.assert_allclose(back.numpy()[:, 40:360], x[:, 40:360], atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 8, 12, 37, 67, 90])
def test_fourier_transforms(n, rng):
    x = rng.standard_normal((3, n)).astype("float32")
    y = rng.standard_normal((3, n)).astype("float32")
    spectrum = np.fft.fft(x + 1j * y)
    re, im = ops.fft((x, y))
    assert np.linalg.norm(re.numpy() + 1j * im.numpy() - spectrum) < 1e-6 * np.linalg.norm(spectrum)
    half = ops.rfft(x)
    np.testing.assert_allclose(half[0].numpy() + 1j * half[1].numpy(), np.fft.rfft(x), atol=1e-4)
    np.testing.assert_allclose(ops.irfft(half, n).numpy(), x, atol=1e-5)
    weights = rng.standard_normal((3, n)).astype("float32")
    found = kc.grad(lambda v: kc.sum(ops.fft((v, ops.zeros_like(v)))[0] * weights))(kc.array(x))
    np.testing.assert_allclose(found.numpy(), np.fft.fft(weights).real, atol=1e-4)


@pytest.mark.skipif(not device.default().info.fp64, reason="the device has no float64")
def test_float64_stays_where_it_is_floatx(rng):
    keras.config.set_floatx("float64")
    x, y = rng.normal(size=(4, 5)), rng.normal(size=(5, 3))
    n = rng.integers(1, 9, size=(3,))
    found = ops.matmul(x, y) * 0.1 / n + ops.mean(y)
    assert found.dtype == "float64"
    np.testing.assert_allclose(found.numpy(), x @ y * 0.1 / n + y.mean(), rtol=1e-12, atol=1e-12)
    assert ops.multiply(ops.convert_to_tensor(n, "int32"), 0.5).dtype == "float64"
    assert ops.sqrt(ops.convert_to_tensor(n, "int32")).dtype == "float64"
    assert ops.add(x.astype("float32"), 0.1).dtype == "float32"


def test_products_of_shapes_are_constants():
    """Losses divide by them: no launch for that, and nothing waits for it."""
    for sizes in ((3, 4), [5], (2, 3, 4), (0, 5), (-3, 5), (100000, 100000)):
        x = ops.convert_to_tensor(sizes, dtype="int32")
        found = ops.prod(x)
        assert found.dtype == "int32" and found.shape == ()
        expected = np.prod(np.array(sizes, np.int32), dtype=np.int32)
        assert int(found) == int(expected)
        assert (found._node.op is CONST) == (expected == np.prod(np.array(sizes, np.int64)))
        assert ops.prod(x, axis=0, keepdims=True).shape == (1,)
    narrow = ops.convert_to_tensor(np.array([300, 2]).astype("int8"))
    assert int(ops.prod(narrow)) == 44 * 2
    assert float(ops.prod(ops.convert_to_tensor((3, 2), dtype="float32"))) == 6
