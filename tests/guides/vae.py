"""A variational autoencoder with a step of its own and no `call`."""

import keras
import numpy as np
from keras import layers, ops

import kerascl


class Sampling(layers.Layer):
    """A sample of a normal distribution, from its mean and the logarithm of its variance."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    """Encoder and decoder, trained on reconstruction and divergence."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        names = ("loss", "reconstruction", "divergence")
        self.trackers = [keras.metrics.Mean(name=name) for name in names]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, data):
        with kerascl.GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            loss = keras.losses.binary_crossentropy(data, self.decoder(z))
            reconstruction = ops.mean(ops.sum(loss, axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            total = reconstruction + divergence
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
        for tracker, value in zip(self.trackers, (total, reconstruction, divergence), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def main():
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(images)
    x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
    encoder = keras.Model(images, [mean, log_variance, Sampling()([mean, log_variance])])
    codes = keras.Input((2,))
    x = layers.Reshape((4, 4, 8))(layers.Dense(4 * 4 * 8, activation="relu")(codes))
    x = layers.Conv2DTranspose(1, 3, activation="sigmoid", strides=2, padding="same")(x)
    vae = VAE(encoder, keras.Model(codes, x))
    vae.compile(optimizer=keras.optimizers.Adam(0.02))
    data = (rng.random((64, 1, 1, 1)) * np.ones((1, 8, 8, 1)) > 0.5).astype("float32")
    logs = vae.fit(data, epochs=6, batch_size=16, verbose=2).history
    assert logs["loss"][-1] < 0.9 * logs["loss"][0]
    parts = np.array(logs["reconstruction"]) + np.array(logs["divergence"])
    np.testing.assert_allclose(logs["loss"], parts, rtol=1e-4)
    assert vae.decoder.predict(np.zeros((3, 2)), verbose=0).shape == (3, 8, 8, 1)


if __name__ == "__main__":
    main()
