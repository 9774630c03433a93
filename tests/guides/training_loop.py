"""A training loop from scratch with kerascl.GradientTape, then the same captured by kerascl.jit."""

import keras
import numpy as np
from keras import layers

import kerascl


def run(x, y, captured):
    keras.utils.set_random_seed(5)
    inputs = keras.Input((10,))
    hidden = layers.Dense(16, "relu", activity_regularizer="l2")(inputs)
    model = keras.Model(inputs, layers.Dense(4)(hidden))
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_weights)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_metric = keras.metrics.SparseCategoricalAccuracy()
    valid_metric = keras.metrics.SparseCategoricalAccuracy()

    def train_step(x, y):
        with kerascl.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_fn(y, logits) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        train_metric.update_state(y, logits)
        return loss

    def test_step(x, y):
        valid_metric.update_state(y, model(x, training=False))

    if captured:
        train_step, test_step = kerascl.jit(train_step), kerascl.jit(test_step)
    losses, accuracies = [], []
    for epoch in range(3):
        for start in range(0, 128, 32):
            loss = train_step(x[start : start + 32], y[start : start + 32])
            losses.append(float(loss))
        for start in range(128, 192, 32):
            test_step(x[start : start + 32], y[start : start + 32])
        accuracies.append((float(train_metric.result()), float(valid_metric.result())))
        print(f"epoch {epoch}: loss {losses[-1]:.4f}, accuracies {accuracies[-1]}")
        train_metric.reset_state()
        valid_metric.reset_state()
    found = model.predict(x[128:], verbose=0).argmax(1)
    np.testing.assert_allclose(accuracies[-1][1], (found == y[128:]).mean(), rtol=1e-6)
    return losses, accuracies, model.get_weights()


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(192, 10)).astype("float32")
    y = (x @ rng.normal(size=(10, 4))).argmax(1)
    eager, captured = run(x, y, False), run(x, y, True)
    assert eager[0][-1] < eager[0][0]
    np.testing.assert_allclose(eager[0], captured[0], rtol=1e-4)
    np.testing.assert_allclose(eager[1], captured[1], atol=0.02)
    for a, b in zip(eager[2], captured[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
