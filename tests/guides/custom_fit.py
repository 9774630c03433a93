"""What happens in fit, changed: own steps with metrics, sample weights, an own loss, and a GAN."""

import keras
import numpy as np
from keras import layers, ops

import kerascl


class WithMetrics(keras.Model):
    """The usual step, written out."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with kerascl.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}


class LowLevel(keras.Model):
    """A step with trackers of its own, and nothing of `compile`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")

    def train_step(self, data):
        x, y = data
        with kerascl.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(keras.losses.mean_squared_error(y, y_pred))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(ops.mean(keras.losses.mean_squared_error(y, y_pred)))
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


class GAN(keras.Model):
    """Two networks against each other; the model itself is never called."""

    def __init__(self, discriminator, generator, latent):
        super().__init__()
        self.discriminator, self.generator, self.latent = discriminator, generator, latent
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")
        self.seeds = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def train_step(self, real):
        size = ops.shape(real)[0]
        noise = keras.random.normal((size, self.latent), seed=self.seeds)
        images = ops.concatenate([self.generator(noise), real], 0)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], 0)
        labels = labels + 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
        with kerascl.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        noise = keras.random.normal((size, self.latent), seed=self.seeds)
        with kerascl.GradientTape() as tape:
            fooled = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros((size, 1)), fooled)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


def make(kind):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((32,))
    return kind(inputs, layers.Dense(1)(inputs))


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 32)).astype("float32")
    y = rng.normal(size=(100, 1)).astype("float32")
    weights = rng.uniform(size=(100, 1)).astype("float32")
    results = []
    for kind in (keras.Model, WithMetrics):
        model = make(kind)
        model.compile("sgd", "mse", metrics=["mae"])
        history = model.fit(
            x, y, sample_weight=weights, batch_size=25, epochs=2, shuffle=False, verbose=2
        ).history
        results.append((history, model.get_weights()))
    for name in ("loss", "mae"):
        np.testing.assert_allclose(results[0][0][name], results[1][0][name], rtol=1e-4)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    model = make(LowLevel)
    model.compile(optimizer="adam")
    history = model.fit(x, y, epochs=4, verbose=2).history
    assert history["loss"][-1] < history["loss"][0]
    error = model.predict(x, verbose=0) - y
    logs = model.evaluate(x, y, batch_size=50, verbose=0, return_dict=True)
    np.testing.assert_allclose(logs["loss"], (error**2).mean(), rtol=1e-4)
    np.testing.assert_allclose(logs["mae"], np.abs(error).mean(), rtol=1e-4)

    discriminator = keras.Sequential(
        [keras.Input((8, 8, 1)), layers.Conv2D(8, 3, strides=2, padding="same"),
         layers.LeakyReLU(negative_slope=0.2), layers.GlobalMaxPooling2D(), layers.Dense(1)]
    )  # fmt: skip
    generator = keras.Sequential(
        [keras.Input((6,)), layers.Dense(4 * 4 * 6), layers.LeakyReLU(negative_slope=0.2),
         layers.Reshape((4, 4, 6)), layers.Conv2DTranspose(6, 4, strides=2, padding="same"),
         layers.Conv2D(1, 5, padding="same", activation="sigmoid")]
    )  # fmt: skip
    gan = GAN(discriminator, generator, 6)
    gan.compile(
        keras.optimizers.Adam(0.003),
        keras.optimizers.Adam(0.003),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    before = [w.numpy() for w in gan.trainable_weights]
    real = np.clip(rng.normal(0.2, 0.1, (64, 8, 8, 1)), 0, 1).astype("float32")
    history = gan.fit(real, batch_size=16, epochs=3, verbose=2).history
    assert set(history) == {"d_loss", "g_loss"} and np.isfinite(list(history.values())).all()
    assert history["d_loss"][-1] < history["d_loss"][0]
    for a, w in zip(before, gan.trainable_weights, strict=True):
        assert (a != w.numpy()).any()


if __name__ == "__main__":
    main()
