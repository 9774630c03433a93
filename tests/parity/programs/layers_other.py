"""Activations, merging, shapes, embeddings, discretisation and layers of one's own."""

import numpy as np

from tests.parity.kit import draw, program, regression, seen, stack


def _train(keras, model, x, y, epochs=2, rate=0.05):
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return seen(model, x, history=history.history)


@program
def activations(keras):
    """Every activation by its name, and the layers of activations, through a gradient.

    Without sparsemax: the other backends add up cumulated sums there, and are wrong.
    """
    layers = keras.layers
    x, y = regression(32)
    inputs = keras.Input((8,))
    names = [
        "celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_tanh", "hard_shrink",
        "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu",
        "sigmoid", "silu", "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus",
        "squareplus", "tanh", "tanh_shrink",
    ]  # fmt: skip
    hidden = layers.Dense(8, name="hidden")(inputs)
    parts = [layers.Activation(name)(hidden) for name in names]
    parts += [
        layers.PReLU()(hidden), layers.ELU(0.5)(hidden), layers.ReLU(1.0, 0.1, 0.2)(hidden),
        layers.LeakyReLU(0.3)(hidden), layers.Softmax()(hidden),
    ]  # fmt: skip
    out = layers.Dense(1, name="out")(layers.concatenate(parts))
    model = draw(keras.Model(inputs, out))
    return _train(keras, model, x, y, rate=1e-4) | {
        "values": dict(zip(names, keras.Model(inputs, parts[: len(names)]).predict(x, verbose=0)))
    }


@program
def merging_and_shapes(keras):
    layers = keras.layers
    x, y = regression(32)
    inputs = keras.Input((8,))
    a, b = layers.Dense(6, name="a")(inputs), layers.Dense(6, name="b")(inputs)
    merged = [
        layers.Add()([a, b]), layers.Subtract()([a, b]), layers.Multiply()([a, b]),
        layers.Maximum()([a, b]), layers.Minimum()([a, b]), layers.Average()([a, b]),
    ]  # fmt: skip
    grid = layers.Reshape((3, 2))(a)
    merged.append(layers.Flatten()(layers.Permute((2, 1))(grid)))
    merged.append(layers.Flatten()(layers.RepeatVector(2)(b)))
    merged.append(layers.EinsumDense("abc,cd->abd", output_shape=(3, 3))(grid))
    merged[-1] = layers.Flatten()(merged[-1])
    mean = keras.ops.mean(b, axis=1, keepdims=True)
    merged.append(a[:, 1:4] * 2 - mean / 3 + keras.ops.exp(-(b[:, :3] ** 2)))
    out = layers.Dense(1, name="out")(layers.Concatenate()(merged))
    return _train(keras, draw(keras.Model(inputs, out)), x, y)


@program(several=2)
def recommender(keras):
    """Two embeddings and their product, with biases: the collaborative-filtering tutorial."""
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, [12, 9], (48, 2)).astype("int32")
    ratings = rng.uniform(0, 1, (48, 1)).astype("float32")

    class Recommender(keras.Model):
        def __init__(self, users, films, size=5):
            super().__init__()
            made = keras.layers.Embedding
            self.user, self.user_bias = made(users, size, name="u"), made(users, 1, name="ub")
            self.film, self.film_bias = made(films, size, name="f"), made(films, 1, name="fb")

        def call(self, pairs):
            user, film = self.user(pairs[:, 0]), self.film(pairs[:, 1])
            near = keras.ops.sum(user * film, axis=-1, keepdims=True)
            bias = self.user_bias(pairs[:, 0]) + self.film_bias(pairs[:, 1])
            return keras.ops.sigmoid(near + bias)

    model = Recommender(12, 9)
    model(pairs[:2])
    draw(model)
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    history = model.fit(pairs, ratings, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, pairs, history=history.history)


@program(several=2)
def layers_of_ones_own(keras):
    """A layer with weights made in build, a state it counts in, and masks of its own."""

    class Scale(keras.layers.Layer):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.units = units

        def build(self, shape):
            self.w = self.add_weight(name="w", shape=(shape[-1], self.units))
            self.s = self.add_weight(name="s", shape=(self.units,), initializer="ones")
            self.calls = self.add_weight(
                name="calls", shape=(), initializer="zeros", trainable=False
            )
            self.total = self.add_weight(
                name="total", shape=(self.units,), initializer="zeros", trainable=False
            )

        def call(self, x, training=False):
            out = keras.ops.matmul(x, self.w) * self.s
            if training:
                self.calls.assign_add(1.0)
                self.total.assign(0.9 * self.total + 0.1 * keras.ops.mean(out, axis=0))
            return out - self.total

    x, y = regression(32)
    model = stack(keras, (8,), Scale(6, name="first"), keras.layers.ReLU(), Scale(1, name="last"))
    return _train(keras, model, x, y)


@program
def subclassed_model(keras):
    """A Model subclass with blocks in a list, branches in Python, and dicts of outputs."""

    class Block(keras.layers.Layer):
        def __init__(self, units, residual, **options):
            super().__init__(**options)
            self.dense = keras.layers.Dense(units, "tanh")
            self.norm = keras.layers.LayerNormalization()
            self.residual = residual

        def call(self, x):
            out = self.norm(self.dense(x))
            return x + out if self.residual else out

    class Net(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.blocks = [Block(6, i > 0, name=f"block{i}") for i in range(3)]
            self.head = keras.layers.Dense(1, name="head")

        def call(self, x, training=None):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    x, y = regression(32)
    model = Net(name="net")
    model(x[:1])
    return _train(keras, draw(model), x, y)


@program(eager=False)
def numbers_and_categories(keras):
    """Preprocessing of tables: normalisation, bins, encodings; random projections are drawn."""
    layers = keras.layers
    rng = np.random.default_rng(0)
    table = rng.normal(3, 2, (30, 4)).astype("float32")
    normal = layers.Normalization(axis=-1)
    normal.adapt(table)
    bins = layers.Discretization(bin_boundaries=[1.0, 2.0, 4.0])
    numbers = rng.integers(0, 6, (10, 3))
    found = {"normal": normal(table), "mean": normal.mean, "bins": bins(table)}
    for mode in ("one_hot", "multi_hot", "count"):
        data = numbers[:, 0] if mode == "one_hot" else numbers
        found[mode] = layers.CategoryEncoding(num_tokens=6, output_mode=mode)(data)
    found["hot"] = layers.Discretization([0.0, 3.0], output_mode="one_hot")(table[:, 0])
    utils = keras.utils
    found["categorical"] = utils.to_categorical([0, 2, 1], 4)
    found["scaled"] = utils.normalize(table, axis=1)
    found["padded"] = utils.pad_sequences([[1, 2], [3, 4, 5, 6], []], maxlen=3, padding="post")
    return found


@program
def operations_in_a_functional_model(keras):
    """keras.ops on symbolic tensors: slices, stacks, where, top_k, cumulated sums, norms."""
    ops = keras.ops
    x, y = regression(32)
    inputs = keras.Input((8,))
    h = keras.layers.Dense(6, name="h")(inputs)
    parts = [
        ops.where(h > 0, h, 0.1 * h), ops.cumsum(h, axis=1), ops.sort(h, axis=1),
        ops.top_k(h, 3)[0], ops.stack([h, -h], axis=2)[:, :, 0], ops.flip(h, axis=1),
        ops.normalize(h, axis=1), ops.logsumexp(h, axis=1, keepdims=True),
        ops.clip(h, -0.5, 0.5), ops.roll(h, 2, axis=1), ops.concatenate([h, h * h], axis=1),
        ops.einsum("bi,bj->bij", h, h)[:, 0], ops.max(h, axis=1, keepdims=True),
        ops.take(h, np.array([0, 3, 3]), axis=1), ops.pad(h, [[0, 0], [1, 2]]),
    ]  # fmt: skip
    out = keras.layers.Dense(1, name="out")(ops.concatenate(parts, axis=1))
    return _train(keras, draw(keras.Model(inputs, out)), x, y)
