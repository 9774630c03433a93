"""Training reads nothing on the host but its logs; what may read there is written down."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from kerascl.ops import host


def _perceptron():
    x = keras.Input((20,))
    return keras.Model(x, layers.Dense(4)(layers.Dropout(0.2)(layers.Dense(16, "relu")(x))))


def _residual():
    x = keras.Input((16, 16, 3))
    y = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))
    z = layers.DepthwiseConv2D(3, padding="same")(layers.ReLU()(y))
    z = layers.MaxPooling2D(2)(layers.add([y, layers.BatchNormalization()(z)]))
    return keras.Model(x, layers.Dense(4)(layers.GlobalAveragePooling2D()(z)))


def _augmented():
    return keras.Sequential([
        keras.Input((16, 16, 3)), layers.RandomFlip(), layers.RandomRotation(0.1),
        layers.RandomZoom(0.1), layers.RandomContrast(0.2), layers.Conv2D(4, 3),
        layers.Flatten(), layers.Dense(4),
    ])  # fmt: skip


def _recurrent(layer):
    def build():
        x = keras.Input((9,), dtype="int32")
        y = layers.Bidirectional(layer(6))(layers.Embedding(20, 8, mask_zero=True)(x))
        return keras.Model(x, layers.Dense(4)(y))

    return build


def _transformer():
    x = keras.Input((9,), dtype="int32")
    y = layers.Embedding(20, 8)(x)
    z = layers.LayerNormalization()(y)
    y = layers.add([y, layers.MultiHeadAttention(2, 4)(z, z, use_causal_mask=True)])
    return keras.Model(x, layers.Dense(4)(layers.GlobalAveragePooling1D()(y)))


def _mobile():
    return keras.applications.MobileNetV3Small(
        weights=None, input_shape=(32, 32, 3), classes=4, classifier_activation=None
    )


@pytest.mark.parametrize(
    "build",
    [_perceptron, _residual, _augmented, _recurrent(layers.LSTM), _recurrent(layers.GRU),
     _transformer, pytest.param(_mobile, marks=pytest.mark.long)],
    ids=["perceptron", "residual", "augmented", "lstm", "gru", "transformer", "mobile"],
)  # fmt: skip
def test_training_calls_no_host_operation(build, rng):
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    shape = (8, *model.inputs[0].shape[1:])
    integers = "int" in model.inputs[0].dtype
    x = rng.integers(0, 20, shape) if integers else rng.normal(size=shape).astype("float32")
    y = rng.integers(0, 4, (8,))
    before = host.calls.copy()
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    model.evaluate(x, y, batch_size=4, verbose=0)
    assert np.isfinite(model.predict(x, verbose=0)).all()
    assert host.calls == before


def test_the_documentation_lists_every_host_operation():
    file = Path(__file__).resolve().parent.parent.parent / "docs" / "architecture.md"
    part = file.read_text(encoding="utf-8").split("## Reads on the host")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(.+?)` \| (.+?) \|$", part, re.MULTILINE)
    assert dict(listed) == host.HOST_OPERATIONS
