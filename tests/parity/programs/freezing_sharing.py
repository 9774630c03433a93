"""Frozen, shared, replaced and copied layers; models compiled anew."""

import numpy as np

from tests.parity.kit import draw, images, mlp, program, regression, seen, stack


def _steps(model, x, y, epochs=1, **options):
    return model.fit(
        x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, **options
    ).history


@program(several=2)
def fine_tuning(keras):
    """Transfer learning: the base frozen at first, then trained slowly."""
    x, y = images(24)
    layers = keras.layers
    base = stack(
        keras, (8, 8, 3), layers.Conv2D(4, 3, use_bias=False, name="conv"),
        layers.BatchNormalization(name="norm"), layers.ReLU(), layers.GlobalAveragePooling2D(),
    )  # fmt: skip
    base.trainable = False
    inputs = keras.Input((8, 8, 3))
    top = layers.Dense(3, "softmax", name="top")
    model = keras.Model(inputs, top(base(inputs, training=False)))
    draw(model, 1)
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    first = _steps(model, x, y, 2)
    frozen = [np.array(w) for w in base.get_weights()]
    base.trainable = True
    model.compile(keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy")
    second = _steps(model, x, y, 2)
    return seen(model, x, first=first, second=second, frozen=frozen)


# The output's one bias is a hundredth of what it is summed from: after the second fit float64 has
# -0.00233542104, JAX -0.00233541802, PoCL and Intel's runtime -0.00233544037 and -0.00233544223.
@program(several=2, tolerance=2e-5)
def frozen_and_thawed(keras):
    """`trainable` of one layer changes between fits, with a compile each time."""
    x, y = regression()
    model = mlp(keras)
    notes = []
    for trainable in (True, False, True):
        model.get_layer("hidden").trainable = trainable
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        notes.append([_steps(model, x, y), model.get_weights(), len(model.trainable_weights)])
    return seen(model, x, notes=notes)


@program
def recompiled_with_another_loss(keras):
    x, y = regression()
    model = mlp(keras)
    optimizer = keras.optimizers.Adam(0.02)
    notes = []
    model.compile(optimizer, "mse", metrics=["mae"])
    notes.append(_steps(model, x, y))
    model.compile(keras.optimizers.RMSprop(0.01), "mae", metrics=["mse", "mape"])
    notes.append(_steps(model, x, y))
    notes.append([model.evaluate(x, y, verbose=0)])
    model.compile("sgd", keras.losses.Huber())
    notes.append(_steps(model, x, y, validation_split=0.2))
    return seen(model, x, notes=notes, iterations=optimizer.iterations)


@program(several=2)
def shared_layers(keras):
    """A Siamese network: one tower on two inputs."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 40, 8)).astype("float32")
    y = (np.abs(a - b).mean(1, keepdims=True) > 1.1).astype("float32")
    tower = mlp(keras, 4)
    left, right = keras.Input((8,)), keras.Input((8,))
    distance = keras.layers.Lambda(lambda t: keras.ops.abs(t[0] - t[1]))(
        [tower(left), tower(right)]
    )
    model = draw(keras.Model([left, right], keras.layers.Dense(1, "sigmoid", name="o")(distance)))
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    return seen(model, [a, b], history=_steps(model, [a, b], y, 3))


@program
def tied_weights(keras):
    """An autoencoder whose decoder multiplies by the encoder's transposed kernel."""

    class Tied(keras.layers.Layer):
        def __init__(self, other, **options):
            super().__init__(**options)
            self.other = other

        def build(self, shape):
            self.bias = self.add_weight(name="bias", shape=(8,), initializer="zeros")

        def call(self, x):
            return keras.ops.matmul(x, keras.ops.transpose(self.other.kernel)) + self.bias

    x, _ = regression()
    encoder = keras.layers.Dense(3, "tanh", name="encoder")
    inputs = keras.Input((8,))
    model = draw(keras.Model(inputs, Tied(encoder, name="decoder")(encoder(inputs))))
    model.compile(keras.optimizers.SGD(0.2), "mse")
    return seen(model, x, history=_steps(model, x, x, 3))


@program
def clones_and_configs(keras):
    """clone_model, from_config, to_json and a layer replaced; each with the weights set."""
    x, y = regression()
    model = mlp(keras)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    again = keras.Sequential.from_config(model.get_config())
    again.set_weights(model.get_weights())
    third = keras.models.model_from_json(model.to_json())
    third.set_weights(model.get_weights())
    histories = []
    for each in (clone, again, third):
        each.compile("adam", "mse")
        histories.append(_steps(each, x, y, 2))
    model.pop()
    model.add(keras.layers.Dense(1, "tanh", name="new"))
    draw(model, 4)
    model.compile("adam", "mse")
    histories.append(_steps(model, x, y))
    return seen(model, x, histories=histories, config=model.get_config(), clone=clone.get_weights())


@program(several=2)
def weights_set_between_fits(keras):
    """set_weights, assign of parts, and a return to the first weights."""
    x, y = regression()
    model = mlp(keras)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    first = model.get_weights()
    notes = [_steps(model, x, y)]
    trained = model.get_weights()
    model.set_weights([0.5 * (a + b) for a, b in zip(first, trained)])
    notes.append(_steps(model, x, y))
    model.layers[0].kernel.assign(first[0] * 2)
    model.layers[1].bias.assign_add([0.25])
    model.layers[1].kernel.assign_sub(np.full((8, 1), 0.01, "float32"))
    notes.append(_steps(model, x, y))
    model.set_weights(first)
    notes.append(_steps(model, x, y))
    return seen(model, x, notes=notes, trained=trained)


@program
def average_of_models(keras):
    """An ensemble, and the mean of two models' weights."""
    x, y = regression()
    members = [mlp(keras, seed=s) for s in range(3)]
    for member in members:
        member.compile("adam", "mse")
        _steps(member, x, y)
    inputs = keras.Input((8,))
    ensemble = keras.Model(inputs, keras.layers.Average()([m(inputs) for m in members]))
    mean = mlp(keras)
    mean.set_weights([np.mean(w, 0) for w in zip(*[m.get_weights() for m in members])])
    return {
        "ensemble": ensemble.predict(x, verbose=0), "mean": mean.predict(x, verbose=0),
        "members": [m.get_weights() for m in members],
    }  # fmt: skip
