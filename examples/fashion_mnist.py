"""Trains a small convolutional network to tell clothes apart.

    KERAS_BACKEND=kerascl python examples/fashion_mnist.py

The images come from Keras' cache, from Debian's package dataset-fashion-mnist, or from the network;
without any of these, scikit-learn's handwritten digits take their place.
"""

import argparse
import gzip
import os
import socket
import sys
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import numpy as np
from keras import layers

CLOTHES = (
    "T-shirt", "trousers", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def idx(file: Path) -> np.ndarray:
    """Reads one file of the MNIST family: labels (n,) or images (n, 28, 28), uint8."""
    data = gzip.decompress(file.read_bytes())
    rank = data[3]
    shape = np.frombuffer(data, ">i4", rank, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def load():
    """((images, labels) to train on, (images, labels) to test with, names of the classes)."""
    cached = Path(os.environ.get("KERAS_HOME", "~/.keras"), "datasets", "fashion-mnist")
    for folder in (cached.expanduser(), DEBIAN):
        try:
            train, test = (
                (idx(folder / f"{part}-images-idx3-ubyte.gz"),
                 idx(folder / f"{part}-labels-idx1-ubyte.gz"))
                for part in ("train", "t10k")
            )  # fmt: skip
        except (OSError, EOFError):
            continue
        print(f"Fashion-MNIST from {folder}")
        return train, test, CLOTHES
    try:
        socket.setdefaulttimeout(10)
        train, test = keras.datasets.fashion_mnist.load_data()
        return train, test, CLOTHES
    except Exception as error:  # urllib's and Keras' own, which is a plain Exception
        print(
            f"Fashion-MNIST is not at hand ({error}): handwritten digits from scikit-learn instead"
        )
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16 * 255).astype("uint8")
    return (
        (images[:1500], digits.target[:1500]),
        (images[1500:], digits.target[1500:]),
        tuple("0123456789"),
    )


def build(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Two convolutions, each followed by pooling, and two dense layers; returns logits."""
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(128, activation="relu"),
            layers.Dense(classes),
        ]
    )


def picture(file: str, images, labels, guesses, names) -> None:
    """Saves the first test images with what they were taken for, mistakes in red."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(3, 6, figsize=(9, 5))
    for axis, image, label, guess in zip(axes.flat, images, labels, guesses, strict=False):
        axis.imshow(image.squeeze(-1), cmap="gray_r")
        axis.set_title(names[guess], color="black" if guess == label else "red", fontsize=9)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(file)
    print(f"{file} shows some of the test images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="train on this many batches only")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--picture", default="fashion_mnist.png", help='"" saves none')
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    (x_train, y_train), (x_test, y_test), names = load()
    x_train, x_test = (x[..., None].astype("float32") / 255 for x in (x_train, x_test))
    if options.steps:
        options.epochs = 1
        x_train, y_train = (a[: options.steps * options.batch_size] for a in (x_train, y_train))
        x_test, y_test = (a[: 2 * options.batch_size] for a in (x_test, y_test))

    model = build(x_train.shape[1:], len(names))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.summary()
    start = time.perf_counter()
    model.fit(
        x_train, y_train,
        batch_size=options.batch_size, epochs=options.epochs,
        verbose=1 if sys.stdout.isatty() else 2,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=options.batch_size, verbose=0)
    print(f"trained for {seconds:.1f} s on {keras.config.backend()}")
    print(f"test loss {loss:.4f}, test accuracy {accuracy:.2%}")
    if options.picture and not options.steps:
        guesses = model.predict(x_test[:18], verbose=0).argmax(-1)
        picture(options.picture, x_test, y_test, guesses, names)


if __name__ == "__main__":
    main()
