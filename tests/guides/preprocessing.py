"""Preprocessing layers: adapted to data, alone and inside a model, and categories as vectors."""

import keras
import numpy as np
from keras import layers


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, size=(60, 4)).astype("float32")
    normal = layers.Normalization()
    normal.adapt(x)
    scaled = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(normal(x), scaled, rtol=1e-3, atol=1e-4)
    undone = layers.Normalization(mean=x.mean(0), variance=x.var(0), invert=True)
    np.testing.assert_allclose(undone(scaled), x, rtol=1e-3, atol=1e-4)
    images = rng.uniform(0, 255, (2, 6, 6, 3)).astype("float32")
    np.testing.assert_allclose(
        layers.Rescaling(1 / 127.5, offset=-1)(images), images / 127.5 - 1, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(layers.CenterCrop(4, 4)(images), images[:, 1:5, 1:5])
    bins = layers.Discretization(bin_boundaries=[0.0, 2.0, 4.0])
    np.testing.assert_array_equal(bins(x), np.digitize(x, [0.0, 2.0, 4.0]))
    codes = np.array([2, 0, 3, 0])
    one_hot = layers.CategoryEncoding(4, output_mode="one_hot")(codes)
    np.testing.assert_array_equal(one_hot, np.eye(4)[codes])
    counted = layers.CategoryEncoding(4, output_mode="count")(codes[None])
    np.testing.assert_array_equal(counted, [[2, 0, 1, 1]])

    model = keras.Sequential([keras.Input((4,)), normal, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    losses = model.fit(x, scaled.sum(1, keepdims=True), epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    kernel, bias = model.layers[-1].get_weights()
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, scaled @ kernel + bias, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    main()
