"""Operations and kernels of one's own in Keras layers."""

import keras
import numpy as np
import pytest

import kerascl as kc
from tests.arrays.kernels import PRODUCT, row_sums, softsign


def _floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


class Softsign(keras.layers.Layer):
    def call(self, x):
        return softsign()(x)


class RowSums(keras.layers.Layer):
    def call(self, x):
        return keras.ops.expand_dims(row_sums()(x), 1)

    def compute_output_shape(self, shape):
        return (shape[0], 1)


class Norm(keras.layers.Layer):
    def call(self, x):
        norm = kc.reduction(
            "row norm", "x * x", "a + b", 0, "sqrt(a)", grad=lambda g, y, x: g * x / (y + 1e-6)
        )
        return norm(x, axis=-1, keepdims=True)


def _trained(layers, x, y, weights):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), *layers])
    model.set_weights(weights)
    model.compile(keras.optimizers.SGD(0.002), "mse")
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


@pytest.mark.parametrize("mine, theirs", [
    (Softsign, lambda: keras.layers.Activation("softsign")),
    (RowSums, lambda: keras.layers.Lambda(lambda t: keras.ops.sum(t, -1, keepdims=True))),
    (Norm, lambda: keras.layers.Lambda(
        lambda t: keras.ops.sqrt(keras.ops.sum(t * t, -1, keepdims=True)))),
])  # fmt: skip
def test_in_layers_trained_by_fit(rng, mine, theirs):
    """The same losses and weights as with Keras' own layers."""
    x, y = _floats(rng, 64, 8), _floats(rng, 64, 1)
    weights = [_floats(rng, 8, 16) / 3, np.zeros(16, "f")]
    found, after = _trained([mine()], x, y, weights)
    expected, wanted = _trained([theirs()], x, y, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[-1] < found[0]
    for a, b in zip(after, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_layer_is_trained_by_a_solver(rng, monkeypatch):
    """Forward and both gradients of a dense layer by the kernel: the steps of NumPy."""
    source = PRODUCT.replace("FACTOR", "1")
    offered = kc.solver("matmul", "own_product", source, lambda p: (p.n, p.m, p.batches))
    monkeypatch.setenv("KERASCL_SOLVERS", "own_product")
    x, t = rng.normal(size=(8, 5)).astype("f"), rng.normal(size=(8, 3)).astype("f")
    w, b = rng.normal(size=(5, 3)).astype("f"), rng.normal(size=3).astype("f")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.set_weights([w, b])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, t, batch_size=8, epochs=3, shuffle=False, verbose=0)
    w, b = w.astype("float64"), b.astype("float64")
    for _ in range(3):
        slope = 2 * (x @ w + b - t) / t.size
        w, b = w - 0.1 * x.T @ slope, b - 0.1 * slope.sum(0)
    offered.remove()
    for found, wanted in zip(model.get_weights(), (w, b), strict=True):
        assert np.linalg.norm(found - wanted) <= 1e-5 * np.linalg.norm(wanted)
