"""Models with steps of the user's own: no `call`, several optimizers, variables as sources."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import kerascl


class Coder(keras.Model):
    """An autoencoder that only its own steps know how to call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(3, "tanh")])
        self.decoder = keras.Sequential([layers.Dense(6)])  # built in the first step
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        with kerascl.GradientTape() as tape:
            loss = ops.mean(ops.square(self.decoder(self.encoder(data)) - data))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        self.tracker.update_state(ops.mean(ops.square(self.decoder(self.encoder(data)) - data)))
        return {"loss": self.tracker.result()}

    def predict_step(self, data):
        return self.encoder(data[0] if isinstance(data, tuple) else data)


def trained(x, **arguments):
    keras.utils.set_random_seed(3)
    model = Coder()
    model.compile(keras.optimizers.Adam(0.05), **arguments)
    history = model.fit(x, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model, history.history["loss"]


@pytest.mark.parametrize("arguments", [{}, {"steps_per_execution": 3}])
def test_a_model_without_call_trains(rng, arguments):
    x = rng.normal(size=(24, 6)).astype("float32")
    model, losses = trained(x, **arguments)
    eager, expected = trained(x, run_eagerly=True)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert len(model.optimizer.variables) == 2 + 2 * 4
    for a, b in zip(model.get_weights(), eager.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_model_without_call_evaluates_predicts_and_is_saved(rng, tmp_path):
    x = rng.normal(size=(24, 6)).astype("float32")
    model, _ = trained(x)
    k, b = model.encoder.get_weights()
    code = np.tanh(x @ k + b)
    np.testing.assert_allclose(model.predict(x, verbose=0), code, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(x), code, rtol=1e-4, atol=1e-5)
    k, b = model.decoder.get_weights()
    expected = ((code @ k + b - x) ** 2).mean()
    np.testing.assert_allclose(model.evaluate(x, verbose=0), expected, rtol=1e-4)
    model.built = True  # as Keras asks for in a model that is never called
    model.save_weights(tmp_path / "m.weights.h5")
    other = Coder()
    other.decoder(other.encoder(x))
    other.built = True
    other.load_weights(tmp_path / "m.weights.h5")
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_own_step_may_call_the_model_otherwise_than_on_the_data(rng):
    class Generator(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(6)

        def call(self, codes):
            return self.dense(ops.reshape(codes, (-1, 2)))  # not of the data's shape

        def train_step(self, data):
            with kerascl.GradientTape() as tape:
                loss = ops.mean((self(data[:, :2]) - data) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"error": loss}

    x = rng.normal(size=(16, 7)).astype("float32")[:, :6]
    model = Generator()
    model.compile(keras.optimizers.SGD(0.1))
    losses = model.fit(x, batch_size=16, epochs=5, verbose=0).history["error"]
    assert losses[-1] < losses[0]


def test_without_an_own_step_the_missing_call_is_an_error(rng):
    class Empty(keras.Model):
        pass

    model = Empty()
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="does not have a `call"):
        model.fit(np.zeros((4, 2)), np.zeros(4), verbose=0)
    with pytest.raises(NotImplementedError, match="does not have a `call"):
        model.predict(np.zeros((4, 2)), verbose=0)


def test_two_optimizers_and_persistent_tape(rng):
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(1, use_bias=False), layers.Dense(1, use_bias=False)

        def compile(self, first, second):
            super().compile()
            self.first, self.second = first, second

        def train_step(self, data):
            x, y = data
            with kerascl.GradientTape(persistent=True) as tape:
                loss_a = ops.mean((self.a(x) - y) ** 2)
                loss_b = ops.mean((self.b(x) + y) ** 2)
            for loss, layer, optimizer in (
                (loss_a, self.a, self.first), (loss_b, self.b, self.second)
            ):  # fmt: skip
                weights = layer.trainable_variables
                optimizer.apply(tape.gradient(loss, weights), weights)
            return {"a": loss_a, "b": loss_b}

    x, y = rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
    model = Two()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2))
    model.a.build((8, 3))
    model.b.build((8, 3))
    a, b = model.a.get_weights()[0], model.b.get_weights()[0]
    logs = model.fit(x, y, batch_size=8, verbose=0).history
    np.testing.assert_allclose(logs["a"][0], ((x @ a - y) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(logs["b"][0], ((x @ b + y) ** 2).mean(), rtol=1e-5)
    a_after = a - 0.1 * 2 / 8 * x.T @ (x @ a - y)
    b_after = b - 0.2 * 2 / 8 * x.T @ (x @ b + y)
    np.testing.assert_allclose(model.a.get_weights()[0], a_after, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.b.get_weights()[0], b_after, rtol=1e-4, atol=1e-6)


def test_variables_are_watched_sources_in_structures(rng):
    x = rng.normal(size=(5, 3)).astype("float32")
    dense = layers.Dense(2)
    dense.build((5, 3))
    frozen = keras.Variable(np.float32(2.0), trainable=False)
    with kerascl.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(dense.trainable_variables)
        loss = ops.sum(dense(x) * frozen)
    found = tape.gradient(loss, {"w": dense.trainable_variables, "f": frozen})
    kernel, bias = found["w"]
    np.testing.assert_allclose(kernel.numpy(), np.repeat(2 * x.sum(0)[:, None], 2, 1), rtol=1e-5)
    np.testing.assert_allclose(bias.numpy(), [10, 10])
    assert found["f"] is None


@pytest.mark.parametrize("name", ["_id", "backward", "grad"])
def test_foreign_tapes_are_told_what_to_use(name):
    variable = keras.Variable(1.0)
    with pytest.raises(AttributeError, match=r"kerascl\.GradientTape"):
        getattr(variable, name)


@pytest.mark.parametrize("shape", [(32, 3, 2), (16, 2, 6), (4, -1), (-1, 4), (-1, 1000)])
def test_reshape_to_a_fixed_first_dimension_in_a_model(shape):
    class Regroup(layers.Layer):
        def call(self, x):
            return ops.reshape(x, shape)

    inputs = keras.Input((6,))
    model = keras.Model(inputs, Regroup()(inputs))
    assert model.output_shape == tuple(None if n == -1 else n for n in shape)
    rows = 500 if 1000 in shape else 32
    x = np.arange(rows * 6, dtype="float32").reshape(rows, 6)
    np.testing.assert_array_equal(model(x), x.reshape(shape))
    np.testing.assert_array_equal(model.predict(x, batch_size=rows, verbose=0), x.reshape(shape))
    with pytest.raises(ValueError, match="cannot reshape"):
        model(x[:7])


def test_reshape_of_known_sizes_is_still_checked():
    layer = layers.Lambda(lambda x: ops.reshape(x, (4, 3)))
    with pytest.raises((ValueError, NotImplementedError)):
        layer(keras.Input(batch_shape=(2, 3)))
