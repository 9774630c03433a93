"""New layers and models by subclassing: weights, losses of layers, training flags, config."""

import keras
import numpy as np
from keras import layers, ops


class Linear(layers.Layer):
    """A product and a shift, with weights made when the input's shape is known."""

    def __init__(self, units=8, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), initializer="random_normal")
        self.b = self.add_weight(shape=(self.units,), initializer="zeros")

    def call(self, x):
        return ops.matmul(x, self.w) + self.b

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Total(layers.Layer):
    """Adds up what it sees, in a weight that is not trained."""

    def __init__(self, size):
        super().__init__()
        self.total = self.add_weight(shape=(size,), initializer="zeros", trainable=False)

    def call(self, x):
        self.total.assign(self.total + ops.sum(x, 0))
        return self.total


class Activity(layers.Layer):
    """Adds a loss for large values."""

    def __init__(self, rate=0.1):
        super().__init__()
        self.rate = rate

    def call(self, x):
        self.add_loss(self.rate * ops.mean(ops.square(x)))
        return x


class Dropped(layers.Layer):
    """Dropout with random numbers of its own."""

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, x, training=None):
        return keras.random.dropout(x, self.rate, seed=self.seeds) if training else x


class Block(keras.Model):
    """Layers inside a model."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Linear(16), Linear(1)
        self.activity, self.dropped = Activity(), Dropped(0.5)

    def call(self, x, training=None):
        x = self.dropped(ops.relu(self.first(x)), training=training)
        return self.second(self.activity(x))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype("float32")
    layer = Linear(4)
    y = layer(x)
    np.testing.assert_allclose(y, x @ layer.w.numpy() + layer.b.numpy(), rtol=1e-5, atol=1e-6)
    again = Linear.from_config(layer.get_config())
    assert again.units == 4 and again.name == layer.name and layer.trainable_weights == [
        layer.w, layer.b,
    ]  # fmt: skip

    total = Total(3)
    for n in (1, 2, 3):
        np.testing.assert_allclose(total(x), n * x.sum(0), rtol=1e-4, atol=1e-4)
    assert len(total.weights) == 1 and not total.trainable_weights

    model = Block()
    model(x)
    hidden = np.maximum(x @ model.first.w.numpy() + model.first.b.numpy(), 0)
    np.testing.assert_allclose(model.losses[0], 0.1 * (hidden**2).mean(), rtol=1e-5)
    dropped = model.dropped(np.ones((200, 50), "float32"), training=True).numpy()
    assert set(np.unique(dropped)) == {0.0, 2.0} and 0.45 < (dropped > 0).mean() < 0.55
    model.compile(keras.optimizers.Adam(0.02), "mse")
    target = np.sin(x.sum(1, keepdims=True))
    losses = model.fit(x, target, batch_size=32, epochs=12, verbose=0).history["loss"]
    print("losses", np.round(losses, 3))
    assert losses[-1] < losses[0]
    hidden = np.maximum(x @ model.first.w.numpy() + model.first.b.numpy(), 0)
    error = hidden @ model.second.w.numpy() + model.second.b.numpy() - target
    expected = (error**2).mean() + 0.1 * (hidden**2).mean()
    found = model.evaluate(x, target, batch_size=64, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert len(model.trainable_weights) == 4


if __name__ == "__main__":
    main()
