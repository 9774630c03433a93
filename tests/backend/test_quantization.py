"""Keras' quantisation: float8 training, packed int4, int8 layers; NumPy is the reference.

Keras' own `test_quantize_float8` defines its training step for its own backends only; it is here.
"""

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import layers, ops, quantizers

import kerascl

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
HISTORY = 1024


class Scaling:
    """What float8 training keeps of a tensor: the largest values seen, and a scale from them."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.most = float(ml_dtypes.finfo(dtype).max)
        self.scale = np.float32(1)
        self.history = np.zeros(HISTORY, np.float32)

    def quantized(self, x: np.ndarray) -> np.ndarray:
        """`x` as float8 sees it with the scale of the last steps."""
        clipped = np.clip(x / self.scale, -self.most, self.most).astype(np.float32)
        return clipped.astype(self.dtype).astype(np.float64) * self.scale

    def step(self, x: np.ndarray) -> np.ndarray:
        """`quantized`; then the scale follows the history, and `x` joins that."""
        y = self.quantized(x)
        largest = self.history.max()
        if largest > 0:
            self.scale = np.float32(largest / self.most)
        self.history = np.roll(self.history, -1)
        self.history[0] = np.abs(x).max()
        return y


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", ["dense", "einsum"])
def test_float8_training(kind, captured, rng):
    layer = (
        layers.Dense(32, use_bias=False)
        if kind == "dense"
        else layers.EinsumDense("ab,bc->ac", output_shape=32)
    )
    layer.build((None, 16))
    layer.quantize("float8")
    optimizer = keras.optimizers.SGD(learning_rate=0.1)
    optimizer.build(layer.trainable_variables)
    inputs, kernel, slopes = Scaling(E4M3), Scaling(E4M3), Scaling(E5M2)

    def train(x, g):
        with kerascl.GradientTape() as tape:
            y = layer(x, training=True)
            loss = ops.sum(y * g)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply(gradients, layer.trainable_variables)
        return y

    step = kerascl.jit(train) if captured else train
    for _ in range(4):
        x = rng.normal(size=(8, 16)).astype(np.float32)
        g = rng.normal(size=(8, 32)).astype(np.float32) * 3
        old = ops.convert_to_numpy(layer._kernel)
        y = ops.convert_to_numpy(step(ops.convert_to_tensor(x), ops.convert_to_tensor(g)))
        qx, qk = inputs.step(x), kernel.step(old)
        np.testing.assert_allclose(y, qx @ qk, rtol=1e-4, atol=1e-4)
        qg = slopes.step(g)
        new = ops.convert_to_numpy(layer._kernel)
        np.testing.assert_allclose(new, old - 0.1 * qx.T @ qg, rtol=1e-4, atol=1e-4)
        for name, state in (("inputs", inputs), ("kernel", kernel), ("outputs_grad", slopes)):
            found = ops.convert_to_numpy(getattr(layer, f"{name}_amax_history"))
            np.testing.assert_array_equal(found, state.history, err_msg=name)
            scale = ops.convert_to_numpy(getattr(layer, f"{name}_scale"))
            np.testing.assert_allclose(scale, state.scale, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_quantize_and_dequantize(dtype, rng):
    x = (rng.normal(size=5000) * 100).astype(np.float32)
    scale, most = np.float32(0.25), float(ml_dtypes.finfo(dtype).max)
    found = quantizers.quantize_and_dequantize(
        ops.convert_to_tensor(x), scale, np.dtype(dtype).name, "float32"
    )
    expected = np.clip(x / scale, -most, most).astype(dtype).astype(np.float32) * scale
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_int4_is_unpacked_on_the_device(dtype, axis):
    packed = np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16)
    low, high = packed.view(np.uint8) & 15, packed.view(np.uint8) >> 4
    if dtype == "int8":  # nibbles from 8 on are negative
        low, high = ((n.astype(np.int16) ^ 8) - 8 for n in (low, high))
    expected = np.stack([low, high], axis=2 if axis else 1).astype(dtype)
    expected = expected.reshape((16, 32) if axis else (32, 16))
    found = quantizers.unpack_int4(ops.convert_to_tensor(packed), 32, axis, dtype)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)
    again, shape, length = quantizers.pack_int4(found, axis, dtype)
    assert (shape, length) == ((16, 16), 32)
    np.testing.assert_array_equal(ops.convert_to_numpy(again), packed)


def test_int8_dense_multiplies_whole_numbers(rng):
    layer = layers.Dense(24)
    layer.build((None, 40))
    layer.quantize("int8")
    x = rng.normal(size=(6, 40)).astype(np.float32)
    kernel = ops.convert_to_numpy(layer._kernel)
    assert kernel.dtype == np.int8
    scale = 127 / (np.abs(x).max(-1, keepdims=True) + keras.config.epsilon())
    whole = np.clip(np.round(x * scale), -127, 127).astype(np.int64) @ kernel.astype(np.int64)
    expected = whole / (scale * ops.convert_to_numpy(layer.kernel_scale))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "bfloat16", "complex64"])
def test_saved_variables(name, rng, tmp_path):
    class Holder(layers.Layer):
        def build(self, shape):
            self.kept = self.add_weight(shape=(3, 4), dtype=name, initializer="zeros")

        def call(self, x):
            return x

    def make():
        model = keras.Sequential([keras.Input((4,)), Holder()])
        return model, model.layers[0]

    model, holder = make()
    values = ops.convert_to_tensor(rng.normal(size=(3, 4)).astype(np.float32))
    holder.kept.assign(ops.cast(values, name))
    model.save_weights(tmp_path / "model.weights.h5")
    other, again = make()
    other.load_weights(tmp_path / "model.weights.h5")
    assert keras.backend.standardize_dtype(again.kept.dtype) == name
    found, expected = (ops.convert_to_numpy(h.kept).view(np.uint8) for h in (again, holder))
    np.testing.assert_array_equal(found, expected)
    assert expected.any()


def nibbles(packed: np.ndarray, length: int, axis: int) -> np.ndarray:
    """Numbers of four bits, two to a byte along an axis, the first in the low bits."""
    moved = np.moveaxis(packed, axis, -1).astype(np.int8)
    both = np.stack([moved << 4 >> 4, moved >> 4], -1)
    return np.moveaxis(both.reshape(*moved.shape[:-1], -1)[..., :length], -1, axis)


def grouped(layer, kernel: np.ndarray, scale, zero) -> np.ndarray:
    """The weights of a layer with scales and zeros by groups of the first axis."""
    place = np.asarray(layer.g_idx).astype(int)
    return (kernel - np.asarray(zero, np.float64)[place]) * np.asarray(scale, np.float64)[place]


@pytest.mark.parametrize("solver", ["skinny", "panels"])
@pytest.mark.parametrize("block", [16, -1])
@pytest.mark.parametrize("kind", ["dense", "einsum", "logits"])
def test_captured_int4_layers_read_packed_weights(kind, block, solver, rng, monkeypatch):
    monkeypatch.setenv("KERASCL_SOLVERS", solver)
    layer = {
        "dense": lambda: layers.Dense(40),
        "einsum": lambda: layers.EinsumDense("ab,bcd->acd", (5, 8), bias_axes="cd"),
        "logits": lambda: layers.ReversibleEmbedding(40, 64),
    }[kind]()
    layer.build(None if kind == "logits" else (None, 64))
    layer.quantize("int4", config=quantizers.Int4QuantizationConfig(block_size=block))
    x = rng.standard_normal((3, 64)).astype(np.float32)
    if kind == "logits":
        call = kerascl.jit(lambda x: layer(x, reverse=True))
        weights = nibbles(np.asarray(layer._embeddings), 64, -1).T
        scale = np.asarray(layer.embeddings_scale, np.float64).T
        zero = None if block < 0 else np.asarray(layer.embeddings_zero).T
    else:
        call = kerascl.jit(lambda x: layer(x))
        weights, scale = nibbles(np.asarray(layer._kernel), 40, -1), layer.kernel_scale
        zero = None if block < 0 else layer.kernel_zero
        layer.bias.assign(rng.standard_normal(layer.bias.shape))
    if block < 0:
        weights = weights / np.asarray(scale, np.float64).reshape(1, 40)
    else:
        weights = grouped(layer, weights, scale, zero)
    wanted = x @ weights + (0 if kind == "logits" else np.asarray(layer.bias).reshape(40))
    found = np.asarray(call(ops.convert_to_tensor(x))).reshape(3, 40)
    assert np.linalg.norm(found - wanted) < 3e-6 * np.linalg.norm(wanted)
    if solver == "skinny":
        steps = call.captured(ops.convert_to_tensor(x)).program.steps
        assert all("skinny" in step.name or "reduce" in step.name for step in steps)
