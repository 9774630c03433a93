"""Trains a model of characters on Python's own reference manual, then lets it write.

    KERAS_BACKEND=kerascl python examples/text_model.py --model transformer

The text is the one behind Python's help(): it comes with every Python, so nothing is downloaded.
"""

import argparse
import os
import re
import sys
from pydoc_data.topics import topics

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import numpy as np
from keras import layers, ops


def load() -> tuple[np.ndarray, str]:
    """The manual as character numbers, int32 (n,), and the alphabet they index."""
    text = "\n".join(topics[name] for name in sorted(topics))
    text = re.sub(r"[^\n -~]", "", re.sub(r"[ \t]+", " ", text))
    alphabet = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(alphabet)}
    return np.array([number[c] for c in text], "int32"), alphabet


def lstm(characters: int, length: int, width: int) -> keras.Model:
    """Next-character logits, (batch, length, characters), from one LSTM."""
    return keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            layers.Embedding(characters, 64),
            layers.LSTM(width, return_sequences=True),
            layers.Dense(characters),
        ]
    )


class Positions(layers.Layer):
    """Adds a learnt vector to each place of a (batch, length, width) sequence."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="normal", name="table")

    def call(self, x):
        return x + self.table


def transformer(characters: int, length: int, width: int, blocks: int = 2) -> keras.Model:
    """Next-character logits, (batch, length, characters), from causal self-attention."""
    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(layers.Embedding(characters, width)(tokens))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(num_heads=4, key_dim=width // 4)(y, y, use_causal_mask=True)
        x = x + y
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
    return keras.Model(tokens, layers.Dense(characters)(layers.LayerNormalization()(x)))


def write(model, alphabet: str, start: str, count: int, length: int, heat: float = 0.7) -> str:
    """Continues a text by ``count`` characters, drawn from the model's distribution."""
    generator = np.random.default_rng(1)
    window = [alphabet.index(c) for c in start]
    for _ in range(count):
        tokens = window[-length:]
        padded = np.array([tokens + [0] * (length - len(tokens))], "int32")
        logits = ops.convert_to_numpy(model(padded, training=False))[0, len(tokens) - 1]
        chances = np.exp((logits - logits.max()).astype("float64") / heat)
        window.append(int(generator.choice(len(alphabet), p=chances / chances.sum())))
    return "".join(alphabet[i] for i in window)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("lstm", "transformer"), default="lstm")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="train on this many batches only")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="characters in a sequence")
    parser.add_argument("--width", type=int, default=128, help="units of the LSTM or the blocks")
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    numbers, alphabet = load()
    count = (len(numbers) - 1) // options.length
    x = numbers[: count * options.length].reshape(count, options.length)
    y = numbers[1 : count * options.length + 1].reshape(count, options.length)
    order = np.random.default_rng(1).permutation(count)
    x, y = x[order], y[order]
    if options.steps:
        options.epochs = 1
        x, y = (a[: (options.steps + 1) * options.batch_size] for a in (x, y))
    held_out = len(x) - max(options.batch_size, len(x) // 20 // options.batch_size)
    print(f"{len(numbers):,} characters, {len(alphabet)} different ones, {len(x):,} sequences")

    build = {"lstm": lstm, "transformer": transformer}[options.model]
    model = build(len(alphabet), options.length, options.width)
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3 if options.model == "lstm" else 1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.summary()
    model.fit(
        x[:held_out], y[:held_out],
        validation_data=(x[held_out:], y[held_out:]),
        batch_size=options.batch_size, epochs=options.epochs,
        verbose=1 if sys.stdout.isatty() else 2,
    )  # fmt: skip
    loss = model.evaluate(x[held_out:], y[held_out:], batch_size=options.batch_size, verbose=0)
    print(f"{loss / np.log(2):.3f} bits per character on text it has not seen; it writes:\n")
    print(write(model, alphabet, "The ", 20 if options.steps else 300, options.length))


if __name__ == "__main__":
    main()
