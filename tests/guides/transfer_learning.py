"""Transfer learning: a trained base, frozen under a new head, then tuned as a whole."""

import keras
import numpy as np
from keras import layers


def main():
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    x = rng.normal(1.0, 2.0, size=(96, 8)).astype("float32")
    y = x @ rng.normal(size=(8, 2)).astype("float32")
    base = keras.Sequential(
        [keras.Input((8,)), layers.Dense(12, "relu"), layers.BatchNormalization(momentum=0.5)]
    )
    teacher = keras.Sequential([base, layers.Dense(2)])
    teacher.compile(keras.optimizers.Adam(0.05), "mse")
    teacher.fit(x, y, epochs=5, batch_size=32, verbose=0)

    base.trainable = False
    assert base.trainable_weights == [] and len(base.non_trainable_weights) == 6
    inputs = keras.Input((8,))
    outputs = layers.Dense(1)(base(inputs, training=False))  # statistics stay in inference mode
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    before = base.get_weights()
    target = y.sum(1, keepdims=True)
    head = model.fit(x, target, epochs=10, batch_size=96, verbose=2).history["loss"]
    for a, b in zip(before, base.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)

    base.trainable = True
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    tuned = model.fit(x, target, epochs=10, batch_size=96, verbose=2).history["loss"]
    after = base.get_weights()
    assert tuned[-1] < tuned[0] < head[0] and head[-1] < head[0]
    changed = [bool((a != b).any()) for a, b in zip(before, after, strict=True)]
    assert changed[:4] == [True] * 4
    kernel, bias, gamma, beta, mean, variance = after
    hidden = np.maximum(x @ kernel + bias, 0)
    hidden = (hidden - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    kernel, bias = model.layers[-1].get_weights()
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, hidden @ kernel + bias, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    main()
