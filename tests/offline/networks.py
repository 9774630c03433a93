"""The networks whose programs are compiled: small ones, and those that pictures are classified by.

Each is a function that makes a Keras model of the given size; `samples` makes arrays that fit it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NETWORKS: dict[str, Callable] = {}
#: Samples in a batch, where there are not 16.
BATCHES = {"mlp": 64, "cnn": 64, "resnet20": 64, "lstm": 32, "gru": 32}
SMALL = ("mlp", "cnn", "resnet20", "lstm", "gru", "transformer", "gpt")


def network(function: Callable) -> Callable:
    NETWORKS[function.__name__] = function
    return function


@network
def mlp():
    from keras import Sequential, layers

    hidden = [f() for _ in range(2) for f in (lambda: layers.Dense(512, "relu"), _drop)]
    return Sequential([layers.Input((784,)), *hidden, layers.Dense(10)])


def _drop():
    from keras import layers

    return layers.Dropout(0.2)


@network
def cnn():
    from keras import Sequential, layers

    return Sequential([
        layers.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), _drop(),
        layers.Dense(10),
    ])  # fmt: skip


@network
def resnet20():
    return _residual((32, 32, 3), (16, 32, 64), 3, 10, stem=lambda x: _normalised(x, 16, 3))


@network
def resnet18():
    from keras import layers

    def stem(x):
        return layers.MaxPooling2D(3, 2, "same")(_normalised(x, 64, 7, 2))

    return _residual((224, 224, 3), (64, 128, 256, 512), 2, 1000, stem)


def _residual(shape, widths, blocks, classes, stem):
    """Pairs of 3x3 convolutions with a way around each pair, narrower pictures at each width."""
    import keras
    from keras import layers

    inputs = keras.Input(shape)
    x = stem(inputs)
    for width in widths:
        for block in range(blocks):
            stride = 2 if block == 0 and width != widths[0] else 1
            y = _normalised(x, width, 3, stride)
            y = _normalised(y, width, 3, activation=None)
            if stride > 1 or x.shape[-1] != width:
                x = _normalised(x, width, 1, stride, activation=None)
            x = layers.ReLU()(layers.add([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x))


def _normalised(x, filters, size, stride=1, activation="relu"):
    from keras import layers

    x = layers.Conv2D(filters, size, stride, "same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(activation)(x) if activation else x


@network
def lstm():
    return _both_ways("LSTM")


@network
def gru():
    return _both_ways("GRU")


def _both_ways(name, words=10000):
    from keras import Sequential, layers

    return Sequential([
        layers.Input((100,), dtype="int32"), layers.Embedding(words, 64),
        layers.Bidirectional(getattr(layers, name)(64)), layers.Dense(2),
    ])  # fmt: skip


@network
def transformer():
    from keras import layers

    return _blocks(10000, 2, False, lambda x: layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))


@network
def gpt():
    from keras import layers

    return _blocks(5000, 4, True, lambda x: layers.Dense(5000)(layers.LayerNormalization()(x)))


def _blocks(words, depth, causal, head, length=128, width=128, heads=4):
    import keras
    from keras import layers

    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(inputs)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)
        x = layers.add([x, y])
        y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(width)(y)])
    return keras.Model(inputs, head(x))


@network
def alexnet():
    from keras import Sequential, layers

    parts = [
        layers.Input((224, 224, 3)), layers.ZeroPadding2D(2),
        layers.Conv2D(64, 11, 4, activation="relu"), layers.MaxPooling2D(3, 2),
        layers.Conv2D(192, 5, padding="same", activation="relu"), layers.MaxPooling2D(3, 2),
    ]  # fmt: skip
    parts += [layers.Conv2D(n, 3, padding="same", activation="relu") for n in (384, 256, 256)]
    parts += [layers.MaxPooling2D(3, 2), layers.Flatten()]
    parts += [f() for _ in range(2) for f in (_drop, lambda: layers.Dense(4096, "relu"))]
    return Sequential([*parts, layers.Dense(1000)])


@network
def vgg16():
    return _application("VGG16")


@network
def resnet50():
    return _application("ResNet50")


@network
def mobilenet():
    return _application("MobileNetV2")


def _application(name):
    import keras

    return getattr(keras.applications, name)(weights=None, classifier_activation=None)


def samples(model, batch: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes that fit a model."""
    inputs, outputs = model.inputs[0], model.outputs[0]
    shape = (batch, *inputs.shape[1:])
    if inputs.dtype.startswith("int"):
        words = next(x.input_dim for x in model.layers if hasattr(x, "input_dim"))
        x = rng.integers(1, words, shape).astype(np.int32)
    else:
        x = rng.standard_normal(shape, np.float32)
    return x, rng.integers(0, outputs.shape[-1], (batch, *outputs.shape[1:-1])).astype(np.int32)
