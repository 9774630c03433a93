"""One backend's part in an exchange of files; runs in a process of its own.

    KERAS_BACKEND=jax python worker.py write FOLDER     # models, weights, what they compute
    KERAS_BACKEND=kerascl python worker.py read FOLDER OUT   # the same from those files

`write` leaves for each case its model (.keras), its weights (.weights.h5) and an .npz of inputs,
variables and outputs. `read` loads them and leaves an .npz of the same names.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np

if os.environ["KERAS_BACKEND"] == "kerascl":
    import kerascl_hook

    kerascl_hook.install()

import keras
from keras import layers


@keras.saving.register_keras_serializable("interchange")
class Gated(keras.Model):
    """A subclassed model with a variable of its own."""

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = units
        self.values, self.gates = layers.Dense(units), layers.Dense(units, "sigmoid")
        self.scale = self.add_weight(name="scale", shape=(units,), initializer="ones")

    def build(self, shape):
        self.values.build(shape)
        self.gates.build(shape)
        self.built = True

    def call(self, x):
        return self.values(x) * self.gates(x) * self.scale

    def get_config(self):
        return super().get_config() | {"units": self.units}


def _sequential(shape, *parts, dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *parts])


def dense():
    return _sequential((6,), layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(3))


def conv_bn():
    return _sequential(
        (8, 8, 3),
        layers.RandomFlip(),
        layers.Conv2D(6, 3, padding="same", use_bias=False), layers.BatchNormalization(),
        layers.ReLU(), layers.DepthwiseConv2D(3, strides=2), layers.LayerNormalization(),
        layers.Conv2DTranspose(4, 3, strides=2), layers.GroupNormalization(2),
        layers.SeparableConv2D(4, 3), layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(2),
    )  # fmt: skip


def lstm():
    return _sequential((7, 4), layers.LSTM(5, return_sequences=True), layers.LSTM(3))


def gru():
    return _sequential(
        (7, 4), layers.GRU(5, return_sequences=True), layers.GRU(3, reset_after=False)
    )


def bidirectional():
    return _sequential(
        (7, 4),
        layers.Bidirectional(layers.LSTM(5, return_sequences=True)),
        layers.Bidirectional(layers.GRU(3), merge_mode="sum"),
    )


def attention():
    x = keras.Input((6, 8))
    y = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    y = layers.LayerNormalization()(layers.add([x, y]))
    return keras.Model(x, layers.GroupQueryAttention(4, 4, 2)(y, y))


def embedding():
    return _sequential(
        (9,), layers.Embedding(20, 6, mask_zero=True), layers.GRU(4), layers.Dense(2),
        dtype="int32",
    )  # fmt: skip


def subclassed():
    model = Gated(5)
    model.build((None, 6))
    return model


def _policy(name):
    return _sequential(
        (6,), layers.Dense(8, "relu", dtype=name), layers.BatchNormalization(dtype=name),
        layers.Dense(3, dtype=name),
    )  # fmt: skip


def mixed_bfloat16():
    return _policy("mixed_bfloat16")


def mixed_float16():
    return _policy("mixed_float16")


def bfloat16():
    return _policy("bfloat16")


def int8():
    model = _sequential((6,), layers.Dense(16, "relu"), layers.Dense(3))
    model.quantize("int8")
    return model


MODELS = (dense, conv_bn, lstm, gru, bidirectional, attention, embedding, subclassed,
          mixed_bfloat16, mixed_float16, bfloat16, int8)  # fmt: skip
OPTIMIZERS = ("SGD", "Adam", "RMSprop", "Lamb", "Ftrl", "Muon", "Adafactor")
CASES = [f.__name__ for f in MODELS] + [f"training_{name}" for name in OPTIMIZERS]


def _inputs(name, rng):
    if name == "embedding":
        return rng.integers(0, 20, (5, 9)).astype("int32")
    shape = {"conv_bn": (8, 8, 3), "lstm": (7, 4), "gru": (7, 4), "bidirectional": (7, 4),
             "attention": (6, 8)}.get(name, (6,))  # fmt: skip
    return rng.normal(size=(5, *shape)).astype("float32")


def _disturb(model, rng):
    """No variable keeps a value that a fresh one would have too."""
    for v in model.weights:
        if "float" in str(v.dtype) and "int8" not in v.path:
            value = np.asarray(keras.ops.convert_to_numpy(v.value), "float32")
            v.assign(np.abs(value + rng.normal(0, 0.1, v.shape)).astype("float32"))


def _weights(model):
    found = {}
    for i, v in enumerate(model.weights):  # states of random generators are not saved
        value = np.asarray(keras.ops.convert_to_numpy(v.value))
        found[f"weight{i}"] = value if value.dtype.kind in "iub" else value.astype("float32")
    return found


def _outputs(model, x):
    y = keras.ops.convert_to_numpy(keras.ops.cast(model(x, training=False), "float32"))
    predicted = np.asarray(model.predict(x, verbose=0), "float32")
    return {"called": y, "predicted": predicted}


def _trainable(optimizer):
    model = _sequential((6,), layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(3))
    options = {"momentum": 0.9, "nesterov": True} if optimizer == "SGD" else {}
    optimizer = getattr(keras.optimizers, optimizer)(0.01, **options)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _losses(model, x, y):
    return np.array(model.fit(x, y, 5, epochs=4, shuffle=False, verbose=0).history["loss"])


def write(folder: Path) -> None:
    for name in CASES:
        rng = np.random.default_rng(len(name))
        keras.utils.set_random_seed(3)
        file = str(folder / name)
        x = _inputs(name, rng)
        if name.startswith("training_"):
            model = _trainable(name.removeprefix("training_"))
            y = rng.normal(size=(5, 3)).astype("float32")
            _losses(model, x, y)
            model.save(file + ".keras")
            losses = _losses(model, x, y)
            np.savez(file, x=x, y=y, losses=losses)
            continue
        model = next(f for f in MODELS if f.__name__ == name)()
        _disturb(model, rng)
        model.save(file + ".keras")
        model.save_weights(file + ".weights.h5")
        np.savez(file, x=x, **_weights(model), **_outputs(model, x))


def read(folder: Path, out: Path) -> None:
    """A case that fails leaves its traceback as text instead."""
    for name in CASES:
        try:
            file = str(folder / name)
            given = np.load(file + ".npz")
            model = keras.models.load_model(file + ".keras")
            if name.startswith("training_"):
                found = {"losses": _losses(model, given["x"], given["y"])}
            else:
                found = _weights(model) | _outputs(model, given["x"])
                again = next(f for f in MODELS if f.__name__ == name)()
                again.load_weights(file + ".weights.h5")
                found |= {f"again_{k}": v for k, v in _weights(again).items()}
                found |= {f"again_{k}": v for k, v in _outputs(again, given["x"]).items()}
            np.savez(out / name, **found)
        except Exception:
            (out / f"{name}.txt").write_text(traceback.format_exc())


if __name__ == "__main__":
    task, *folders = sys.argv[1:]
    {"write": write, "read": read}[task](*map(Path, folders))
