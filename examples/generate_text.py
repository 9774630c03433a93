"""Trains a small GPT on a text, shows what it writes meanwhile, then generates with a sampler.

    KERAS_BACKEND=kerascl python examples/generate_text.py --text book.txt --sampler top_p
    KERAS_BACKEND=kerascl python examples/generate_text.py --hub --sampler contrastive

The loop over tokens runs on the device as one captured program, which keeps the keys and values of
earlier tokens. With --hub, model and samplers are keras-hub's (pip install keras-hub). The default
text is the one behind Python's help(), which comes with every Python.
"""

import argparse
import os
import re
import time
from pathlib import Path
from pydoc_data.topics import topics

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import numpy as np
from keras import layers, ops

import kerascl


def load(path: Path | None) -> tuple[np.ndarray, str]:
    """A text as character numbers, int32 (n,), and the alphabet they index."""
    text = path.read_text() if path else "\n".join(topics[name] for name in sorted(topics))
    text = re.sub(r"[^\n -~]", "", re.sub(r"[ \t]+", " ", text))
    alphabet = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(alphabet)}
    return np.array([number[c] for c in text], "int32"), alphabet


class Block(layers.Layer):
    """Causal self-attention and a perceptron, over a sequence or, with a cache, for one token."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.before, self.between = layers.LayerNormalization(), layers.LayerNormalization()
        self.inputs, self.outputs = layers.Dense(3 * width), layers.Dense(width)
        self.wide, self.narrow = layers.Dense(4 * width, activation="gelu"), layers.Dense(width)

    def build(self, shape):
        for layer in (self.before, self.between, self.inputs, self.outputs, self.wide):
            layer.build(shape)
        self.narrow.build((*shape[:-1], 4 * shape[-1]))

    def call(self, x, cache=None, index=None):
        batch, length = ops.shape(x)[:2]
        y = ops.reshape(self.inputs(self.before(x)), (batch, length, 3, self.heads, self.size))
        q, k, v = y[:, :, 0], y[:, :, 1], y[:, :, 2]
        if cache is None:
            mask = ops.tril(ops.ones((length, length), "bool"))
        else:
            k = ops.slice_update(cache[0], (0, index, 0, 0), k)
            v = ops.slice_update(cache[1], (0, index, 0, 0), v)
            cache = (k, v)
            mask = ops.expand_dims(ops.arange(ops.shape(k)[1]) <= index, 0)
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) / self.size**0.5
        scores = ops.softmax(ops.where(mask, scores, -1e9))
        y = ops.reshape(ops.einsum("bhqk,bkhd->bqhd", scores, v), ops.shape(x))
        x = x + self.outputs(y)
        x = x + self.narrow(self.wide(self.between(x)))
        return x if cache is None else (x, cache)


class GPT(keras.Model):
    """Next-character logits, (batch, length, characters), of character numbers."""

    def __init__(self, characters: int, length: int, width: int, depth: int, heads: int = 4):
        super().__init__()
        self.length, self.width, self.heads = length, width, heads
        self.letters = layers.Embedding(characters, width)
        self.places = layers.Embedding(length, width)
        self.blocks = [Block(width, heads) for _ in range(depth)]
        self.last, self.head = layers.LayerNormalization(), layers.Dense(characters)
        self.generated = kerascl.jit(self.generate)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, tokens):
        x = self.letters(tokens) + self.places(ops.arange(ops.shape(tokens)[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))

    def next(self, tokens, caches, index):
        """Logits (batch, characters) behind the token at `index`, and the new caches."""
        token = ops.take(tokens, ops.expand_dims(index, 0), axis=1)
        x = self.letters(token) + self.places(index)
        kept = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block(x, cache, index)
            kept.append(cache)
        return self.head(self.last(x))[:, 0], kept

    def generate(self, tokens, given, sampler: str, heat: float):
        """Fills `tokens` (batch, length) from the `given`-th on."""
        shape = (ops.shape(tokens)[0], self.length, self.heads, self.width // self.heads)
        empty = [(ops.zeros(shape), ops.zeros(shape)) for _ in self.blocks]

        def step(tokens, caches, index):
            logits, caches = self.next(tokens, caches, index)
            found = sample(logits / heat, sampler, self.seeds)
            prompt = ops.take(tokens, index + 1, axis=1)
            found = ops.where(index + 1 < given, prompt, ops.cast(found, "int32"))
            tokens = ops.slice_update(tokens, (0, index + 1), ops.expand_dims(found, 1))
            return tokens, caches, index + 1

        start = ops.cast(0, "int32")
        return ops.while_loop(
            lambda tokens, caches, index: index < self.length - 1, step, (tokens, empty, start)
        )[0]


def sample(logits, sampler: str, seeds):
    """One token for each row of logits (batch, characters)."""
    if sampler == "greedy":
        return ops.argmax(logits, axis=-1)
    if sampler == "top_k":
        least = ops.top_k(logits, k=5)[0][:, -1:]
        logits = ops.where(logits < least, -1e9, logits)
    if sampler == "top_p":  # the likeliest characters that make up 90 percent
        order = ops.flip(ops.sort(ops.softmax(logits)), axis=-1)
        kept = ops.cumsum(order, axis=-1) - order < 0.9
        least = ops.min(ops.where(kept, order, 1.0), axis=-1, keepdims=True)
        logits = ops.where(ops.softmax(logits) < least, -1e9, logits)
    return keras.random.categorical(logits, 1, seed=seeds)[:, 0]


class Plain:
    """The model above."""

    samplers = ("greedy", "random", "top_k", "top_p")

    def __init__(self, characters, options):
        self.model = GPT(characters, options.length, options.width, options.depth)
        self.heat, self.sampler = options.heat, options.sampler

    def inputs(self, x):
        """What the model is trained on."""
        return x

    def continued(self, tokens, given):
        """Tokens (1, length) whose first so many are given."""
        found = self.model.generated(tokens, np.int32(given), self.sampler, self.heat)
        return ops.convert_to_numpy(found)


class Hub:
    """keras-hub's GPT-2, without its tokenizer."""

    samplers = ("greedy", "random", "top_k", "top_p", "beam", "contrastive")

    def __init__(self, characters, options):
        import keras_hub

        backbone = keras_hub.models.GPT2Backbone(
            vocabulary_size=characters, num_layers=options.depth, num_heads=4,
            hidden_dim=options.width, intermediate_dim=4 * options.width,
            max_sequence_length=options.length,
        )  # fmt: skip
        self.model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
        self.sampler = keras_hub.samplers.get(options.sampler)
        self.sampler.temperature = options.heat

    def inputs(self, x):
        """What the model is trained on."""
        return {"token_ids": x, "padding_mask": np.ones(x.shape, bool)}

    def continued(self, tokens, given):
        """Tokens (1, length) whose first so many are given."""
        self.model.sampler = self.sampler
        mask = np.arange(tokens.shape[1])[None] < given
        prompt = {"token_ids": tokens, "padding_mask": mask}
        return self.model.generate(prompt, stop_token_ids=None)["token_ids"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file; default Python's manual")
    parser.add_argument("--sampler", choices=Hub.samplers, default="top_k")
    parser.add_argument("--heat", type=float, default=0.8, help="temperature of the sampler")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--hub", action="store_true", help="keras-hub's GPT-2 and samplers")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="train on this many batches only")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="characters in a sequence")
    parser.add_argument("--width", type=int, default=128, help="of the blocks")
    parser.add_argument("--depth", type=int, default=2, help="how many blocks")
    options = parser.parse_args()
    kind = Hub if options.hub else Plain
    if options.sampler not in kind.samplers:
        parser.error(f"--sampler {options.sampler} needs --hub")

    keras.utils.set_random_seed(1)
    numbers, alphabet = load(options.text)
    count = (len(numbers) - 1) // options.length
    x = numbers[: count * options.length].reshape(count, options.length)
    y = numbers[1 : count * options.length + 1].reshape(count, options.length)
    order = np.random.default_rng(1).permutation(count)
    if options.steps:
        options.epochs, order = 1, order[: options.steps * options.batch_size]
    x, y = x[order], y[order]
    print(f"{len(numbers):,} characters, {len(alphabet)} different ones, {len(x):,} sequences")
    if not set(options.prompt) <= set(alphabet) or len(options.prompt) >= options.length:
        parser.error("--prompt must be shorter than --length, of characters of the text")

    language = kind(len(alphabet), options)
    model = language.model
    prompt = np.zeros((1, options.length), "int32")
    given = len(options.prompt)
    prompt[0, :given] = [alphabet.index(c) for c in options.prompt]

    def write() -> str:
        return "".join(alphabet[i] for i in language.continued(prompt, given)[0])

    class Samples(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(f"epoch {epoch + 1}, loss {logs['loss']:.3f}: {write()!r}")

    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(
        language.inputs(x), y, batch_size=options.batch_size, epochs=options.epochs, verbose=0,
        callbacks=[Samples()],
    )  # fmt: skip

    print(f"\n{options.sampler}, {options.heat}:\n\n{write()}\n")
    begin, turns = time.perf_counter(), 5
    for _ in range(turns):
        write()
    seconds = (time.perf_counter() - begin) / turns
    new = options.length - given
    print(f"{new / seconds:,.0f} tokens a second ({1e3 * seconds / new:.2f} ms each)")


if __name__ == "__main__":
    main()
