"""The sequential model: layers added and removed, weights made by the first data, features."""

import keras
import numpy as np
from keras import layers


def main():
    rng = np.random.default_rng(0)
    model = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(3), layers.Dense(2)])
    assert model.weights == []
    x = rng.normal(size=(5, 6)).astype("float32")
    assert model(x).shape == (5, 2) and len(model.weights) == 6
    model.pop()
    assert len(model.layers) == 2
    hidden = np.maximum(x @ model.weights[0].numpy() + model.weights[1].numpy(), 0)
    expected = hidden @ model.weights[2].numpy() + model.weights[3].numpy()
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)

    model = keras.Sequential(name="images")
    model.add(keras.Input((32, 32, 3)))
    model.add(layers.Conv2D(4, 5, strides=2, activation="relu"))
    model.add(layers.Conv2D(4, 3, activation="relu", name="middle"))
    model.add(layers.MaxPooling2D(3))
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(10))
    model.summary()
    assert model.layers[0].output.shape == (None, 14, 14, 4)
    extractor = keras.Model(model.inputs, [layer.output for layer in model.layers])
    features = extractor(rng.normal(size=(2, 32, 32, 3)).astype("float32"))
    middle, pooled, last = (features[k].numpy() for k in (1, 3, 4))
    np.testing.assert_array_equal(pooled, middle[:, :12, :12].max((1, 2)))
    kernel, bias = model.layers[-1].get_weights()
    np.testing.assert_allclose(last, pooled @ kernel + bias, rtol=1e-4, atol=1e-5)

    # all but the last layer frozen
    for layer in model.layers[:-1]:
        layer.trainable = False
    before = model.get_weights()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = rng.normal(size=(16, 32, 32, 3)).astype("float32"), rng.integers(0, 10, 16)
    model.fit(x, y, verbose=2)
    changed = [bool((a != b).any()) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [False] * 4 + [True] * 2


if __name__ == "__main__":
    main()
