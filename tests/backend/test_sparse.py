"""Sparse tensors: the rules of `keras.ops` against NumPy on the dense values."""

import keras
import numpy as np
import pytest
from keras import ops
from keras.src import backend
from keras.src.backend.common.keras_tensor import KerasTensor

import kerascl
from kerascl.core.errors import CaptureError
from kerascl.ops import host
from kerascl.ops.sparse import SparseArray, from_dense

BINARY = {
    "add": (np.add, "sparse"),
    "subtract": (np.subtract, "sparse"),
    "maximum": (np.maximum, "sparse"),
    "minimum": (np.minimum, "sparse"),
    "multiply": (np.multiply, "sparse"),
    "divide": (np.divide, "dense"),
}


def random_sparse(rng, shape, dtype="float32", density=0.4, n_dense=0, duplicates=True):
    """A SparseArray with shuffled, repeated places, and its dense value."""
    k = len(shape) - n_dense
    lead, rest = shape[:k], shape[k:]
    size = int(np.prod(lead))
    count = max(1, int(size * density))
    flat = rng.integers(0, size, count) if duplicates else rng.permutation(size)[:count]
    indices = np.stack(np.unravel_index(flat, lead), 1)
    values = rng.integers(-4, 5, (count, *rest)).astype(dtype)
    dense = np.zeros(shape, dtype)
    np.add.at(dense, tuple(indices.T), values)
    return SparseArray(kerascl.array(values), kerascl.array(indices), shape), dense


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("n_dense", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "int8", "complex64"])
def test_dense_and_back(rng, n_dense, dtype):
    x, dense = random_sparse(rng, (4, 3, 5), dtype, n_dense=n_dense)
    np.testing.assert_array_equal(x.to_dense().numpy(), dense)
    again = from_dense(dense, n_dense)
    assert again.n_dense == n_dense and again.unique
    rows = (dense != 0).reshape(*dense.shape[: 3 - n_dense], -1).any(-1)
    assert again.nse == rows.sum()
    np.testing.assert_array_equal(np.asarray(again), dense)


@pytest.mark.parametrize("n_dense", [0, 1])
def test_each_place_once_in_order(rng, n_dense):
    x, dense = random_sparse(rng, (5, 4), n_dense=n_dense, density=1.5)
    once = x.sum_duplicates()
    places = [tuple(row) for row in once.indices.numpy()]
    assert places == sorted(set(places))
    np.testing.assert_array_equal(once.numpy(), dense)


def test_booleans(rng):
    indices = kerascl.array([[1], [1], [0]])
    x = SparseArray(kerascl.array([True, True, False]), indices, (3,))
    np.testing.assert_array_equal(x.numpy(), [False, True, False])


def test_places_beyond_32_bits():
    indices = np.array([[70000, 70001], [70000, 70001], [3, 99999]])
    x = SparseArray(kerascl.array([1.0, 2.0, 4.0]), kerascl.array(indices), (100000, 100000))
    once = x.sum_duplicates()
    np.testing.assert_array_equal(once.indices.numpy(), [[3, 99999], [70000, 70001]])
    np.testing.assert_array_equal(once.values.numpy(), [4.0, 3.0])
    other = SparseArray(kerascl.array([5.0]), kerascl.array([[70000, 70001]]), x.shape)
    product = ops.multiply(other, x)
    np.testing.assert_array_equal(product.values.numpy(), [15.0])


@pytest.mark.parametrize("n_dense", [0, 1])
@pytest.mark.parametrize("name", ["sin", "sqrt", "square", "abs", "negative", "expm1", "round"])
def test_functions_that_keep_zero(rng, name, n_dense):
    x, dense = random_sparse(rng, (4, 5), n_dense=n_dense)
    if name == "sqrt":
        x, dense = ops.square(x), dense**2
    y = getattr(ops, name)(x)
    assert isinstance(y, SparseArray)
    np.testing.assert_allclose(y.numpy(), getattr(np, name)(dense), rtol=2e-6)


@pytest.mark.parametrize("name", ["cos", "exp", "isfinite", "logical_not"])
def test_other_functions_are_dense(rng, name):
    x, dense = random_sparse(rng, (4, 5))
    y = getattr(ops, name)(x)
    assert isinstance(y, kerascl.Array)
    np.testing.assert_allclose(y.numpy(), getattr(np, name)(dense), rtol=2e-6)


@pytest.mark.parametrize("forms", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("name", BINARY)
def test_two_sparse(rng, name, forms):
    function, form = BINARY[name]
    x, a = random_sparse(rng, (6, 5), n_dense=forms[0])
    y, b = random_sparse(rng, (6, 5), n_dense=forms[1])
    z = getattr(ops, name)(x, y)
    assert isinstance(z, SparseArray) == (form == "sparse")
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(ops.convert_to_numpy(z), function(a, b), rtol=2e-7)


@pytest.mark.parametrize(
    "shape, n_dense",
    [((6, 5), 0), ((6, 5), 1), ((5,), 0), ((6, 1), 1), ((1, 5), 0), ((2, 6, 5), 0), ((), 1)],
)
@pytest.mark.parametrize("name", BINARY)
def test_sparse_and_dense(rng, name, shape, n_dense):
    function, _ = BINARY[name]
    x, a = random_sparse(rng, (6, 5), n_dense=n_dense)
    b = np.asarray(rng.integers(-1, 4, shape), "float32")
    if shape == () and name == "divide":
        b = np.float32(3)
    with np.errstate(all="ignore"):
        z, w = getattr(ops, name)(x, b), getattr(ops, name)(b, x)
        # division on the device may differ by the last bit
        np.testing.assert_allclose(ops.convert_to_numpy(z), function(a, b), rtol=2e-7)
        np.testing.assert_allclose(ops.convert_to_numpy(w), function(b, a), rtol=2e-7)
    kept = len(shape) <= 2
    assert isinstance(z, SparseArray) == (kept and name in ("multiply", "divide"))
    assert isinstance(w, SparseArray) == (kept and name == "multiply")


def test_division_by_zero_scalars(rng):
    x, dense = random_sparse(rng, (3, 4))
    with np.errstate(all="ignore"):
        for zero in (0.0, kerascl.array(0.0), np.nan):
            result = ops.convert_to_numpy(ops.divide(x, zero))
            np.testing.assert_array_equal(result, dense / np.float32(zero))


def test_operators(rng):
    x, a = random_sparse(rng, (3, 4))
    b = rng.standard_normal((3, 4)).astype("float32")
    y = kerascl.array(b)
    cases = [(x + y, a + b), (y + x, a + b), (y * x, a * b), (x - 1, a - 1), (2 - x, 2 - a),
             (-x, -a), (x > 0, a > 0), (x[1:], a[1:]), (y.T @ x, b.T @ a)]  # fmt: skip
    for result, expected in cases:
        np.testing.assert_allclose(ops.convert_to_numpy(result), expected, rtol=1e-5, atol=1e-6)
    assert isinstance(y * x, SparseArray) and isinstance(-x, SparseArray)


@pytest.mark.parametrize(
    "dtype, batch",
    [("float32", ()), ("float16", (3,)), ("int32", (2, 3)), ("int8", ()), ("float32", (2, 3))],
)
def test_matmul(rng, batch, dtype):
    x, a = random_sparse(rng, (*batch, 4, 6), dtype)
    y, b = random_sparse(rng, (*batch, 6, 5), dtype)
    wide = "int32" if dtype == "int8" else dtype
    expected = np.matmul(a.astype("float64"), b.astype("float64"))
    both = ops.matmul(x, y)
    assert isinstance(both, SparseArray)
    for result in (both, ops.matmul(x, b), ops.matmul(a, y)):
        assert backend.standardize_dtype(result.dtype) == wide
        np.testing.assert_array_equal(ops.convert_to_numpy(result), expected)


def test_matmul_of_other_ranks(rng):
    x, a = random_sparse(rng, (4, 6))
    b = rng.integers(-3, 3, (2, 6, 5)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.matmul(x, b)), a @ b)
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.matmul(x, b[0, :, 0])), a @ b[0, :, 0])
    with pytest.raises(ValueError):
        ops.matmul(x, b[:, :5])


def test_matmul_of_empty(rng):
    empty = from_dense(np.zeros((3, 4), "float32"))
    y, _ = random_sparse(rng, (4, 2))
    assert ops.matmul(empty, y).nse == 0
    disjoint = from_dense(np.eye(3, 4, dtype="float32") * [[1], [0], [0]])
    other = from_dense(np.array([[0, 0], [0, 0], [1, 2], [0, 0]], "float32"))
    np.testing.assert_array_equal(ops.matmul(disjoint, other).numpy(), np.zeros((3, 2)))
    np.testing.assert_array_equal(ops.matmul(empty, np.ones((4, 2), "float32")), np.zeros((3, 2)))


@pytest.mark.parametrize(
    "axis, keepdims, n_dense",
    [
        (None, False, 0),
        (None, True, 1),
        (0, False, 1),
        (0, True, 0),
        (1, True, 1),
        (1, False, 2),
        (-1, False, 1),
        ((0, 2), False, 1),
        ((0, 2), True, 0),
        ((), False, 0),
        ((0, 1, 2), False, 2),
    ],
)
def test_sums_and_means(rng, axis, keepdims, n_dense):
    x, dense = random_sparse(rng, (4, 2, 3), n_dense=n_dense)
    for name in ("sum", "mean"):
        y = getattr(ops, name)(x, axis=axis, keepdims=keepdims)
        assert isinstance(y, SparseArray)
        expected = getattr(np, name)(dense, axis=axis, keepdims=keepdims)
        assert y.shape == expected.shape
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "prod"])
def test_other_reductions_are_dense(rng, name):
    x, dense = random_sparse(rng, (4, 3))
    np.testing.assert_array_equal(getattr(ops, name)(x, axis=1), getattr(np, name)(dense, axis=1))


@pytest.mark.parametrize("n_dense", [0, 1, 2])
def test_shapes(rng, n_dense):
    x, dense = random_sparse(rng, (4, 1, 3), n_dense=n_dense)
    cases = [
        (ops.reshape(x, (2, -1)), dense.reshape(2, -1)),
        (ops.transpose(x), dense.T),
        (ops.transpose(x, (1, 0, 2)), dense.transpose(1, 0, 2)),
        (ops.transpose(x, (0, 2, 1)), dense.transpose(0, 2, 1)),
        (ops.squeeze(x), dense[:, 0]),
        (ops.squeeze(x, 1), dense[:, 0]),
        (ops.expand_dims(x, 0), dense[None]),
        (ops.expand_dims(x, -1), dense[..., None]),
        (ops.expand_dims(x, (1, 3)), np.expand_dims(dense, (1, 3))),
    ]
    for result, expected in cases:
        assert isinstance(result, SparseArray) and result.shape == expected.shape
        np.testing.assert_array_equal(result.numpy(), expected)
        np.testing.assert_array_equal(result.sum_duplicates().numpy(), expected)
    with pytest.raises(ValueError, match="reshape"):
        backend.numpy.reshape(x, (5, -1))
    with pytest.raises(ValueError, match="squeeze"):
        backend.numpy.squeeze(x, 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("forms", [(0, 0), (1, 1), (0, 1)])
def test_concatenate(rng, axis, forms):
    x, a = random_sparse(rng, (3, 4), n_dense=forms[0])
    y, b = random_sparse(rng, (3, 4), "int32", n_dense=forms[1])
    joined = ops.concatenate([x, y], axis)
    assert isinstance(joined, SparseArray) and joined.dtype.name == "float32"
    np.testing.assert_array_equal(joined.numpy(), np.concatenate([a, b], axis))
    mixed = ops.concatenate([x, b], axis)
    np.testing.assert_array_equal(mixed, np.concatenate([a, b], axis))


def test_codes(rng):
    x = np.array([[1, -1], [5, 2], [0, 0]])
    inside = (x[..., None] == np.arange(4)).astype("float32")
    for axis in (0, 1, 2, -1):
        codes = ops.one_hot(x, 4, axis=axis, sparse=True)
        assert isinstance(codes, SparseArray)
        np.testing.assert_array_equal(codes.numpy(), np.moveaxis(inside, -1, axis))
        np.testing.assert_array_equal(
            codes.sum_duplicates().indices.numpy().shape[1], codes.indices.shape[1]
        )
    union = ops.multi_hot(x, 4, sparse=True)
    assert isinstance(union, SparseArray)
    np.testing.assert_array_equal(union.numpy(), inside.max(1))


def test_bincount(rng):
    x, w = rng.integers(0, 6, 20), rng.integers(0, 5, 20)
    for weights in (None, w):
        y = ops.bincount(x, weights=weights, minlength=9, sparse=True)
        assert isinstance(y, SparseArray)
        np.testing.assert_array_equal(y.numpy(), np.bincount(x, weights, 9))
    rows = ops.bincount(x.reshape(4, 5), minlength=8, sparse=True)
    expected = [np.bincount(r, minlength=8) for r in x.reshape(4, 5)]
    np.testing.assert_array_equal(rows.numpy(), expected)
    listed = SparseArray(kerascl.array([2, 2, 5]), kerascl.array([[0, 1], [0, 3], [1, 0]]), (2, 4))
    weights = SparseArray(kerascl.array([1.0, 2.0, 4.0]), listed.indices, (2, 4))
    expected = np.zeros((2, 6))
    expected[0, 2], expected[1, 5] = 2, 1
    np.testing.assert_array_equal(ops.bincount(listed).numpy(), expected)
    expected[0, 2], expected[1, 5] = 3, 4
    np.testing.assert_array_equal(ops.bincount(listed, weights).numpy(), expected)
    assert ops.bincount(listed, weights).dtype.name == "float32"


def test_digitize_where_zero_has_another_bin(rng):
    x, dense = random_sparse(rng, (3, 4))
    y = ops.digitize(x, np.array([0.5, 2.0]))
    assert isinstance(y, SparseArray)
    np.testing.assert_array_equal(y.numpy(), np.digitize(dense, [0.5, 2.0]))
    y = ops.digitize(x, np.array([-1.0, 0.0, 2.0]))
    np.testing.assert_array_equal(y, np.digitize(dense, [-1.0, 0.0, 2.0]))


def test_tensors(rng):
    x, dense = random_sparse(rng, (3, 4))
    assert backend.is_tensor(x) and backend.shape(x) == (3, 4)
    assert ops.convert_to_tensor(x) is x
    assert isinstance(ops.convert_to_tensor(x, sparse=False), kerascl.Array)
    assert ops.cast(x, "int32").dtype.name == "int32"
    np.testing.assert_array_equal(ops.convert_to_numpy(x), dense)
    np.testing.assert_array_equal(ops.take(np.arange(20), ops.cast(ops.abs(x), "int32")),
                                  np.abs(dense).astype(int))  # fmt: skip
    with pytest.raises(ValueError, match="do not fit"):
        SparseArray(kerascl.array([1.0, 2.0]), kerascl.array([[0]]), (3,))


def test_specs_agree_with_values(rng):
    x, _ = random_sparse(rng, (4, 4))
    for function in (
        lambda a: ops.sin(a),
        lambda a: ops.exp(a),
        lambda a: ops.maximum(a, ops.negative(a)),
        lambda a: ops.matmul(a, a),
        lambda a: ops.sum(a, 0),
        lambda a: ops.divide(a, ops.ones((4, 4))),
    ):
        spec = backend.compute_output_spec(function, KerasTensor((4, 4), sparse=True))
        value = function(x)
        assert spec.sparse == isinstance(value, SparseArray)
        assert spec.shape == value.shape and spec.dtype == value.dtype.name


def test_what_can_be_captured(rng):
    x, a = random_sparse(rng, (4, 4))
    values, indices = x.values, x.indices
    linear = kerascl.jit(lambda v: (SparseArray(v, indices, (4, 4)) + x).to_dense())
    np.testing.assert_array_equal(linear(values), 2 * a)
    with pytest.raises(CaptureError):
        kerascl.jit(lambda i: ops.square(SparseArray(values, i, (4, 4))).to_dense())(indices)


def test_host_reads_are_counted(rng):
    x, _ = random_sparse(rng, (4, 4))
    before = sum(host.calls.values())
    ops.matmul(x, np.ones((4, 3), "float32"))
    ops.add(x, x)
    ops.sum(x, 0)
    assert sum(host.calls.values()) == before
    ops.square(x)
    assert sum(host.calls.values()) == before + 1


def test_layers_and_training_on_sparse_batches(rng):
    x, dense = random_sparse(rng, (8, 6))
    y = rng.standard_normal((8, 2)).astype("float32")
    results = []
    for batch in (x, dense):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        losses = [float(model.train_on_batch(batch, y)) for _ in range(3)]
        results.append((losses, model.predict_on_batch(batch), ops.convert_to_numpy(model(batch))))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    for sparse, plain in zip(results[0][1:], results[1][1:], strict=True):
        np.testing.assert_allclose(sparse, plain, rtol=1e-5, atol=1e-6)


def test_sparse_input_of_a_functional_model(rng):
    x, dense = random_sparse(rng, (8, 6))
    inputs = keras.Input((6,), sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(model(x), dense @ kernel + bias, rtol=1e-5, atol=1e-5)


def test_sparse_gradients_of_optimizers(rng):
    x, dense = random_sparse(rng, (6, 3), n_dense=1)
    for name in ("SGD", "Adam", "Adagrad", "RMSprop"):
        found = []
        for gradient in (x, ops.convert_to_tensor(dense)):
            variable = keras.Variable(np.ones((6, 3), "float32"))
            optimizer = getattr(keras.optimizers, name)(0.1)
            for _ in range(2):
                optimizer.apply([gradient], [variable])
            found.append(variable.numpy())
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
