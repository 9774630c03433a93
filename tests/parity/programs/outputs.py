"""Several inputs and outputs, losses with weights, losses that layers add."""

import numpy as np

from tests.parity.kit import draw, mlp, program, regression, seen


def _two_headed(keras, seed=0):
    layers = keras.layers
    left, right = keras.Input((8,), name="left"), keras.Input((4,), name="right")
    x = layers.Concatenate()([layers.Dense(6, "tanh", name="a")(left), right])
    value = layers.Dense(1, name="value")(x)
    kind = layers.Dense(3, "softmax", name="kind")(x)
    return draw(keras.Model([left, right], [value, kind]), seed)


def _data(n=40):
    rng = np.random.default_rng(5)
    left, right = rng.normal(size=(n, 8)), rng.normal(size=(n, 4))
    value, kind = np.tanh(left[:, :1]), rng.integers(0, 3, n)
    return (left.astype("float32"), right.astype("float32")), (
        value.astype("float32"), kind.astype("int32")
    )  # fmt: skip


@program(several=2)
def two_outputs(keras):
    """Lists of inputs, targets, losses, weights and metrics."""
    x, y = _data()
    model = _two_headed(keras)
    model.compile(
        keras.optimizers.SGD(0.1), ["mse", "sparse_categorical_crossentropy"],
        loss_weights=[0.7, 0.2], metrics=[["mae"], ["accuracy"]],
    )  # fmt: skip
    history = model.fit(
        list(x), list(y), batch_size=16, epochs=2, shuffle=False, verbose=0, validation_split=0.2
    )
    return seen(
        model, list(x), history=history.history,
        scores=model.evaluate(list(x), list(y), verbose=0), names=model.metrics_names,
        batch=model.train_on_batch(list(x), list(y), return_dict=True),
    )  # fmt: skip


@program(several=2)
def outputs_by_name(keras):
    """Dicts of everything, weights of samples for one output."""
    x, y = _data()
    layers = keras.layers
    inputs = {"left": keras.Input((8,), name="left"), "right": keras.Input((4,), name="right")}
    both = layers.Concatenate()([inputs["left"], inputs["right"]])
    hidden = layers.Dense(6, "tanh", name="hidden")(both)
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(hidden),
        "value": layers.Dense(1, name="value")(hidden),
    }
    model = draw(keras.Model(inputs, outputs))
    model.compile(
        keras.optimizers.Adam(0.02),
        {"value": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"value": 2.0, "kind": 0.5},
        metrics={"value": ["mae"], "kind": ["accuracy"]},
        weighted_metrics={"value": ["mse"], "kind": []},
    )
    data = dict(zip(("left", "right"), x)), dict(zip(("value", "kind"), y))
    weights = {"value": np.linspace(0, 2, 40).astype("float32"), "kind": np.ones(40, "float32")}
    history = model.fit(
        *data, sample_weight=weights, batch_size=16, epochs=2, shuffle=False, verbose=0
    )
    return seen(
        model, data[0], history=history.history,
        scores=model.evaluate(*data, verbose=0, return_dict=True),
    )  # fmt: skip


@program(several=2, reference="torch")  # JAX does not warn of it
def a_loss_for_one_output(keras):
    """The other output has none and is not trained."""
    x, y = _data()
    model = _two_headed(keras)
    model.compile("sgd", {"value": "mse", "kind": None}, metrics={"value": "mae"})
    history = model.fit(
        list(x), {"value": y[0], "kind": y[1]}, batch_size=16, epochs=2, shuffle=False, verbose=0
    )
    return seen(model, list(x), history=history.history)


@program(several=2, reference="torch")  # JAX takes no metrics in layers
def losses_of_layers(keras):
    """add_loss in a layer, with a metric of its own beside it."""

    class Sparse(keras.layers.Layer):
        def __init__(self, rate, **options):
            super().__init__(**options)
            self.rate = rate
            self.size = keras.metrics.Mean(name="size")

        def call(self, x):
            self.add_loss(self.rate * keras.ops.mean(keras.ops.square(x)))
            self.size.update_state(keras.ops.mean(keras.ops.abs(x)))
            return x

    x, y = regression()
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8,)), layers.Dense(8, "tanh", name="hidden"), Sparse(0.3, name="sparse"),
        layers.Dense(1, name="out"),
    ])  # fmt: skip
    draw(model)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    history = model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_split=0.2
    )
    return seen(model, x, history=history.history, scores=model.evaluate(x, y, verbose=0))


@program(several=2)
def regularizers(keras):
    """L1, L2, both, orthogonal and one of one's own, on kernels, biases and activities."""
    x, y = regression()
    layers, made = keras.layers, keras.regularizers
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(8, "tanh", kernel_regularizer=made.L2(0.01), bias_regularizer="l1"),
        layers.Dense(6, kernel_regularizer=made.L1L2(0.001, 0.002), activity_regularizer="l2"),
        layers.Dense(4, kernel_regularizer=made.OrthogonalRegularizer(0.01)),
        layers.Dense(1, kernel_regularizer=lambda w: 0.03 * keras.ops.mean(w**4)),
    ])  # fmt: skip
    draw(model)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mse"])
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(
        model, x, history=history.history, losses=model.losses,
        scores=model.evaluate(x, y, verbose=0),
    )  # fmt: skip


@program(several=2)
def constraints(keras):
    x, y = regression()
    layers, made = keras.layers, keras.constraints
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(8, "tanh", kernel_constraint=made.MaxNorm(0.8), bias_constraint="non_neg"),
        layers.Dense(6, kernel_constraint=made.UnitNorm(axis=0)),
        layers.Dense(4, kernel_constraint=made.MinMaxNorm(0.2, 0.5, rate=0.5)),
        layers.Dense(1, kernel_constraint=lambda w: keras.ops.clip(w, -0.3, 0.3)),
    ])  # fmt: skip
    draw(model)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return seen(model, x, history=history.history)


@program
def an_endpoint_with_its_loss(keras):
    """A model compiled without a loss whose last layer takes the targets as an input."""

    class Endpoint(keras.layers.Layer):
        def call(self, targets, values):
            self.add_loss(keras.ops.mean(keras.ops.square(targets - values)))
            return values

    x, y = regression()
    inputs, targets = keras.Input((8,), name="x"), keras.Input((1,), name="y")
    values = keras.layers.Dense(1, name="out")(keras.layers.Dense(4, "tanh", name="h")(inputs))
    model = draw(keras.Model([inputs, targets], Endpoint(name="end")(targets, values)))
    model.compile(keras.optimizers.SGD(0.1))
    history = model.fit([x, y], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, [x, y], history=history.history)


@program
def predictions_of_many_shapes(keras):
    """Nested outputs keep their structure, also of the last, shorter batch."""
    x, _ = regression(37)
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(4, "tanh", name="h")(inputs)
    outputs = {
        "wide": keras.layers.Dense(6, name="wide")(hidden),
        "parts": [hidden, keras.layers.Reshape((2, 2))(hidden)],
    }
    model = draw(keras.Model(inputs, outputs))
    middle = keras.Model(inputs, hidden)
    found = {
        "all": model.predict(x, batch_size=16, verbose=0), "called": model(x[:3]),
        "batch": model.predict_on_batch(x[:4]),
    }  # fmt: skip
    # backends differ in the order of dicts
    found = {name: dict(sorted(parts.items())) for name, parts in found.items()}
    return found | {"middle": middle.predict(x, verbose=0)}


@program
def a_model_inside_a_model(keras):
    x, y = regression()
    inner = mlp(keras, 4, "tanh")
    inputs = keras.Input((8,))
    outer = keras.Model(inputs, keras.layers.Dense(1, name="last")(inner(inputs)))
    draw(outer, 2)
    outer.compile("adam", "mse")
    history = outer.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(outer, x, history=history.history, inner=inner.get_weights())
