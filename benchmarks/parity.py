"""Does training follow another backend's, from equal initial weights on equal data?

    KERAS_BACKEND=jax     python benchmarks/parity.py --save reference.npz
    KERAS_BACKEND=kerascl python benchmarks/parity.py --compare reference.npz

The first call writes initial weights, data and the losses of 20 steps for each
network and optimizer; the second one trains the same and prints the largest
relative difference of a loss.  It exits with 1 where SGD differs by more than
1e-4 or Adam by more than 1e-3.
"""

import argparse
import sys

import numpy as np
from rich.console import Console
from rich.table import Table

STEPS = 20
LIMITS = {"sgd": 1e-4, "adam": 1e-3}


def cnn(keras):
    layers = keras.layers
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(16, 3, activation="relu")(inputs)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Flatten()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def residual(keras):
    layers = keras.layers
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.ZeroPadding2D(1)(x)
    y = layers.Conv2D(16, 3)(y)
    y = layers.BatchNormalization()(y)
    x = layers.ReLU()(layers.add([x, y]))
    x = layers.DepthwiseConv2D(3, strides=2, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def lstm(keras):
    layers = keras.layers
    inputs = keras.Input((30,), dtype="int32")
    x = layers.Embedding(200, 16)(inputs)
    x = layers.Bidirectional(layers.LSTM(16))(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def gru(keras):
    layers = keras.layers
    inputs = keras.Input((30,), dtype="int32")
    x = layers.Embedding(200, 16)(inputs)
    x = layers.GRU(16)(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def transformer(keras):
    layers = keras.layers
    inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(200, 32)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, 8)(y, y, use_causal_mask=True)
        x = layers.add([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(64, activation="gelu")(y)
        x = layers.add([x, layers.Dense(32)(y)])
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


NETS = {f.__name__: f for f in (cnn, residual, lstm, gru, transformer)}


def batch_for(model, rng):
    tensor = model.inputs[0]
    shape = (16, *tensor.shape[1:])
    if "int" in tensor.dtype:
        x = rng.integers(0, 200, shape).astype("int32")
    else:
        x = rng.standard_normal(shape).astype("float32")
    return x, rng.integers(0, 10, 16).astype("int32")


def losses(keras, build, optimizer, weights, x, y):
    keras.utils.clear_session()
    model = build(keras)
    if weights is None:
        weights = model.get_weights()
    model.set_weights(weights)
    rate = 0.05 if optimizer == "sgd" else 1e-3
    model.compile(
        keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": rate}}),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return weights, [float(np.asarray(model.train_on_batch(x, y))) for _ in range(STEPS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--save", metavar="FILE")
    group.add_argument("--compare", metavar="FILE")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=NETS)
    args = parser.parse_args()

    import keras

    keras.utils.set_random_seed(7)
    rng = np.random.default_rng(7)
    if args.save:
        saved = {}
        for name in args.nets:
            x, y = batch_for(NETS[name](keras), rng)
            saved |= {f"{name}/x": x, f"{name}/y": y}
            for optimizer in LIMITS:
                weights, history = losses(keras, NETS[name], optimizer, None, x, y)
                saved |= {f"{name}/{optimizer}/w{k}": w for k, w in enumerate(weights)}
                saved[f"{name}/{optimizer}/loss"] = np.array(history)
        np.savez(args.save, **saved)
        return 0
    saved = np.load(args.compare)
    table = Table(title=f"{keras.config.backend()} against {args.compare}, {STEPS} steps")
    for column in ("network", "optimizer", "first loss", "last loss", "largest difference", ""):
        table.add_column(column)
    failed = False
    for name in args.nets:
        for optimizer, limit in LIMITS.items():
            prefix = f"{name}/{optimizer}/w"
            count = sum(key.startswith(prefix) for key in saved)
            weights = [saved[f"{prefix}{k}"] for k in range(count)]
            x, y = saved[f"{name}/x"], saved[f"{name}/y"]
            _, history = losses(keras, NETS[name], optimizer, weights, x, y)
            expected = saved[f"{name}/{optimizer}/loss"]
            worst = float(np.max(np.abs(np.array(history) - expected) / np.abs(expected)))
            bad = not worst <= limit
            failed |= bad
            table.add_row(
                name, optimizer, f"{history[0]:.5f}", f"{history[-1]:.5f}", f"{worst:.1e}",
                "[red]over" if bad else "[green]ok",
            )  # fmt: skip
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
