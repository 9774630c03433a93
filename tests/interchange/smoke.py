"""The main paths through Keras once, for any supported release of it.

    pip install --no-deps --target keras312 keras==3.12.4
    PYTHONPATH=keras312 python tests/interchange/smoke.py

Prints a line for each path; the exit status is the number of paths that failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ["KERAS_BACKEND"] = "kerascl"
os.environ.setdefault("KERASCL_CACHE_DIR", "")
sys.path.append(str(Path(__file__).resolve().parent.parent.parent))

import kerascl_hook

kerascl_hook.install()

import keras
import numpy as np
from keras import layers, ops

RNG = np.random.default_rng(0)


def images():
    """Convolution, batch normalisation and augmentation: fit, evaluate, predict."""
    model = keras.Sequential([
        keras.Input((12, 12, 3)), layers.RandomFlip(), layers.RandomRotation(0.1),
        layers.Rescaling(0.5), layers.Conv2D(8, 3, use_bias=False), layers.BatchNormalization(),
        layers.ReLU(), layers.MaxPooling2D(2), layers.Flatten(), layers.Dropout(0.1),
        layers.Dense(4),
    ])  # fmt: skip
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    x, y = RNG.normal(size=(32, 12, 12, 3)).astype("float32"), RNG.integers(0, 4, 32)
    x[..., 0] += 2 * y[:, None, None]  # something to learn
    history = model.fit(x, y, batch_size=8, epochs=8, verbose=0, validation_split=0.25).history
    assert history["loss"][-1] < history["loss"][0]
    loss, _ = model.evaluate(x, y, batch_size=8, verbose=0)
    assert np.isfinite(loss)
    predicted = model.predict(x, batch_size=8, verbose=0)
    np.testing.assert_allclose(
        predicted, ops.convert_to_numpy(model(x, training=False)), rtol=1e-4, atol=1e-5
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
        np.testing.assert_array_equal(loaded.predict(x, batch_size=8, verbose=0), predicted)
        model.save_weights(f"{folder}/model.weights.h5")
        loaded.load_weights(f"{folder}/model.weights.h5")


def sequences():
    """Embedding, LSTM, GRU, Bidirectional, RNN with a custom cell count, TimeDistributed."""
    model = keras.Sequential([
        keras.Input((7,), dtype="int32"), layers.Embedding(20, 6, mask_zero=True),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.GRU(4, return_sequences=True), layers.TimeDistributed(layers.Dense(3)),
        layers.RNN(layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)])),
    ])  # fmt: skip
    model.compile("rmsprop", "mse")
    x, y = RNG.integers(0, 20, (16, 7)), RNG.normal(size=(16, 2))
    history = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


def transformer():
    """Attention, layer normalisation, gelu, in mixed precision."""
    inputs = keras.Input((6, 8))
    x = layers.MultiHeadAttention(2, 4, dtype="mixed_bfloat16")(inputs, inputs)
    x = layers.LayerNormalization()(layers.add([x, inputs]))
    model = keras.Model(inputs, layers.Dense(2, "gelu")(x))
    model.compile(keras.optimizers.AdamW(1e-2), "mse")
    x, y = RNG.normal(size=(16, 6, 8)), RNG.normal(size=(16, 6, 2))
    history = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


def own_step():
    """A subclassed model with a train_step of its own on the tape."""
    import kerascl as kc

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(1)

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            x, y = data
            with kc.GradientTape() as tape:
                loss = ops.mean(ops.square(self(x) - y))
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, list(weights)), weights)
            return {"error": loss}  # "loss" would give way to Keras' own tracker

    model = Own()
    model.compile("sgd")
    x = RNG.normal(size=(32, 3)).astype("float32")
    y = x.sum(1, keepdims=True) + 1
    history = model.fit(x, y, epochs=3, verbose=0).history["error"]
    assert history[-1] < history[0]


def numbers():
    """`keras.ops` and `keras.random` outside a model."""
    x = ops.convert_to_tensor(RNG.normal(size=(3, 4)).astype("float32"))
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.einsum("ij,kj->ik", x, x)), ops.matmul(x, x.T).numpy(), rtol=1e-5
    )
    assert keras.random.normal((2, 3), seed=1).shape == (2, 3)
    assert ops.image.resize(ops.ones((1, 4, 4, 3)), (8, 8)).shape == (1, 8, 8, 3)
    assert layers.RandomContrast(0.2)(np.ones((1, 4, 4, 3), "float32")).shape == (1, 4, 4, 3)


def main() -> int:
    from kerascl.runtime import device

    print(f"Keras {keras.__version__} on {device.default().info.name}")
    failed = 0
    for path in (numbers, images, sequences, transformer, own_step):
        try:
            path()
            print(f"ok      {path.__name__}")
        except Exception:
            failed += 1
            print(f"FAILED  {path.__name__}\n{traceback.format_exc(limit=-4)}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
