"""A train_step of one's own: an autoencoder that cleans noisy digits, trained with kerascl's tape.

    KERAS_BACKEND=kerascl python examples/custom_training.py

The step clips the gradients by their joint length and reports that length as a metric. It is
captured like any other: after the first batches it runs as one replayed program.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

import kerascl


class Cleaner(keras.Model):
    """Maps noisy images, (batch, pixels) in 0 to 1, to clean ones of the same shape."""

    def __init__(self, pixels: int, width: int, clip: float, **options):
        super().__init__(**options)
        self.clip = clip
        self.encoder = keras.Sequential(
            [layers.Dense(4 * width, activation="relu"), layers.Dense(width, activation="relu")]
        )
        self.decoder = keras.Sequential(
            [layers.Dense(4 * width, activation="relu"), layers.Dense(pixels, activation="sigmoid")]
        )
        self.length = keras.metrics.Mean(name="gradient_length")

    def call(self, x):
        return self.decoder(self.encoder(x))

    def train_step(self, data):
        noisy, clean = data
        with kerascl.GradientTape() as tape:
            cleaned = self(noisy, training=True)
            loss = self.compute_loss(x=noisy, y=clean, y_pred=cleaned)
        gradients = tape.gradient(loss, self.trainable_variables)

        length = ops.sqrt(sum(ops.sum(g * g) for g in gradients))
        scale = ops.minimum(1.0, self.clip / (length + 1e-6))
        self.optimizer.apply([g * scale for g in gradients], self.trainable_variables)

        self.length.update_state(length)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            elif metric is not self.length:
                metric.update_state(clean, cleaned)
        return {metric.name: metric.result() for metric in self.metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="train on this many batches only")
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    clean = load_digits().data.astype("float32") / 16
    noise = np.random.default_rng(1).normal(scale=0.3, size=clean.shape)
    noisy = np.clip(clean + noise, 0, 1).astype("float32")
    held_out = 1500
    train = slice(held_out)
    if options.steps:
        options.epochs, train = 1, slice(options.steps * options.batch_size)

    model = Cleaner(clean.shape[1], width=24, clip=1.0)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="mse", metrics=["mae"])
    model.fit(
        noisy[train], clean[train], batch_size=options.batch_size, epochs=options.epochs, verbose=2
    )
    cleaned = model.predict(noisy[held_out:], verbose=0)
    before, after = (np.square(x - clean[held_out:]).mean() for x in (noisy[held_out:], cleaned))
    print(f"mean squared error on unseen digits: {before:.4f} noisy, {after:.4f} cleaned")


if __name__ == "__main__":
    main()
