"""The part of networks: small ones of each family, trained for some steps on random data."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kerascl.commands import tune
from kerascl.commands.reports.parts import Item, Setting, Tell
from kerascl.kernels.tuning import database
from kerascl.runtime import device as devices

if TYPE_CHECKING:
    import keras

_BATCHES = 8  # of an epoch
_EPOCHS = 40  # at most
_SECONDS = 4.0  # of the epochs of one network, at least two
_CLASSES, _WORDS, _LENGTH = 10, 1000, 64


def _perceptron() -> keras.Model:
    from keras import Input, Model, layers

    inputs = Input((784,))
    x = layers.Dense(512, activation="relu")(inputs)
    x = layers.Dense(512, activation="relu")(x)
    return Model(inputs, layers.Dense(_CLASSES)(x))


def _convolutional() -> keras.Model:
    from keras import Input, Model, layers

    x = inputs = Input((32, 32, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    return Model(inputs, layers.Dense(_CLASSES)(layers.Flatten()(x)))


def _mobile() -> keras.Model:
    """As MobileNet: depthwise convolutions, pointwise ones, and batch normalisation."""
    from keras import Input, Model, layers

    inputs = Input((32, 32, 3))
    x = layers.Conv2D(16, 3, 2, padding="same", use_bias=False)(inputs)
    for filters, stride in ((32, 1), (64, 2), (64, 1), (128, 2)):
        x = layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)(x)
        x = layers.ReLU(6)(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 1, use_bias=False)(x)
        x = layers.ReLU(6)(layers.BatchNormalization()(x))
    return Model(inputs, layers.Dense(_CLASSES)(layers.GlobalAveragePooling2D()(x)))


def _transformer() -> keras.Model:
    from keras import Input, Model, layers

    inputs = Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_WORDS, 128)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y, use_causal_mask=True)
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128)(y)
    return Model(inputs, layers.Dense(_CLASSES)(layers.GlobalAveragePooling1D()(x)))


def _lstm() -> keras.Model:
    from keras import Input, Model, layers

    inputs = Input((_LENGTH,), dtype="int32")
    x = layers.LSTM(64)(layers.Embedding(_WORDS, 64)(inputs))
    return Model(inputs, layers.Dense(_CLASSES)(x))


NETWORKS: dict[str, Callable[[], keras.Model]] = {
    "perceptron": _perceptron, "convolutional": _convolutional, "mobile": _mobile,
    "transformer": _transformer, "LSTM": _lstm,
}  # fmt: skip

_QUICK = "convolutional", "transformer", "LSTM"


def items(setting: Setting) -> Iterator[Item]:
    """Each network in float32; then some in mixed precision."""
    os.environ["KERAS_BACKEND"] = "kerascl"
    for name in _QUICK if setting.quick else NETWORKS:
        yield Item(name, functools.partial(_train, name, "float32"))
    if not setting.quick:
        for policy in ("mixed_float16", "mixed_bfloat16"):
            for name in ("convolutional", "transformer"):
                yield Item(f"{name} {policy}", functools.partial(_train, name, policy))


def _data(model: keras.Model, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of each class around one of its own, so that there is something to learn."""
    rng = np.random.default_rng()
    count, shape = batch * _BATCHES, model.input_shape[1:]
    labels = rng.integers(0, _CLASSES, count)
    if len(shape) == 1 and shape[0] == _LENGTH:
        words = rng.integers(0, _WORDS, (_CLASSES, *shape))
        other = rng.integers(0, _WORDS, (count, *shape))
        return np.where(rng.random((count, *shape)) < 0.5, words[labels], other), labels
    centres = rng.standard_normal((_CLASSES, *shape), np.float32)
    return centres[labels] + rng.standard_normal((count, *shape), np.float32), labels


def _train(name: str, policy: str, tell: Tell) -> None:
    import keras

    device = devices.default()
    batch = 16 if device.info.kind == "cpu" else 64
    keras.utils.clear_session()
    keras.config.set_dtype_policy(policy)
    model = NETWORKS[name]()
    x, y = _data(model, batch)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    device.buffers.reset_peak()
    begun = time.perf_counter()
    with database.recording() as met:
        before = float(model.train_on_batch(x[:batch], y[:batch]))
    first = time.perf_counter() - begun
    losses, times = _epochs(model, x, y, batch)
    probabilities = model.predict(x[:batch], batch_size=batch, verbose=0)
    after, seconds = losses[-1], statistics.median(times) / _BATCHES
    row: dict[str, Any] = {
        "name": name, "policy": policy, "batch": batch, "weights": model.count_params(),
        "first_seconds": first, "step_seconds": seconds, "steps": 1 + _BATCHES * len(losses),
        "first_loss": before, "last_loss": after,
        "peak_bytes": device.buffers.stats().peak,
        "problems": [database.to_json(*one) for one in met if _raced(*one)],
    }  # fmt: skip
    if not (math.isfinite(after) and np.isfinite(probabilities).all()):
        row["wrong"] = "it gives infinities or NaN"
    elif not 0.5 * math.log(_CLASSES) < before < 4 * math.log(_CLASSES):
        row["wrong"] = f"its first loss is not near {math.log(_CLASSES):.2f}, as that of chance is"
    elif not after < 0.9 * before:
        row["wrong"] = "its loss does not fall"
    tell(row)


def _raced(kind: str, problem) -> bool:
    return kind in tune.KINDS and problem.a.is_float and problem.b.is_float


def _epochs(model: keras.Model, x, y, batch: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of each epoch, but the first one, which still captures."""
    losses: list[float] = []
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    model.fit(x, y, batch_size=batch, verbose=0)
    while len(times) < 2 or (time.perf_counter() < end and len(times) < _EPOCHS):
        begun = time.perf_counter()
        losses += model.fit(x, y, batch_size=batch, verbose=0).history["loss"]
        times.append(time.perf_counter() - begun)
    return losses, times
