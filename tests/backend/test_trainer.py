"""fit, evaluate and predict: captured steps against eager ones and against NumPy."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import kerascl
from kerascl.backend import steps


def model_of(weights, **compile_arguments):
    """Dense layers without activation, with the given (kernel, bias) pairs."""
    model = keras.Sequential([keras.Input((weights[0][0].shape[0],))])
    for kernel, bias in weights:
        layer = layers.Dense(kernel.shape[1])
        model.add(layer)
        layer.set_weights([kernel, bias])
    arguments = dict(optimizer=keras.optimizers.SGD(0.05), loss="mse") | compile_arguments
    model.compile(**arguments)
    return model


@pytest.fixture
def problem(rng):
    w = rng.normal(size=(4, 2)).astype("float32")
    b = rng.normal(size=2).astype("float32")
    x = rng.normal(size=(22, 4)).astype("float32")
    y = rng.normal(size=(22, 2)).astype("float32")
    return w, b, x, y


def sgd_by_hand(w, b, x, y, batch, epochs, weights=None, rate=0.05):
    """The weights, and the loss of each epoch, of mean squared error and plain SGD, in float64."""
    w, b = w.astype("float64"), b.astype("float64")
    weights = np.ones(len(x)) if weights is None else weights
    losses = []
    for _ in range(epochs):
        total = 0.0
        for start in range(0, len(x), batch):
            xb, yb, sb = (a[start : start + batch] for a in (x, y, weights))
            error = xb @ w + b - yb
            total += ((error**2).mean(1) * sb).mean() * len(xb)
            g = 2 * error * sb[:, None] / error.size
            w, b = w - rate * xb.T @ g, b - rate * g.sum(0)
        losses.append(total / len(x))
    return w, b, losses


@pytest.mark.parametrize("eager", [True, False])
def test_fit_agrees_with_numpy(problem, eager):
    w, b, x, y = problem
    model = model_of([(w, b)], run_eagerly=eager)
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    kernel, bias, losses = sgd_by_hand(w, b, x, y, 8, 3)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.get_weights()[1], bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-4)
    expected = x @ kernel + bias
    np.testing.assert_allclose(model.predict(x, batch_size=5, verbose=0), expected, atol=1e-4)
    loss = model.evaluate(x, y, batch_size=8, verbose=0)
    np.testing.assert_allclose(loss, ((expected - y) ** 2).mean(), rtol=1e-4)


@pytest.mark.parametrize("eager", [True, False])
def test_sample_and_class_weights(problem, rng, eager):
    w, b, x, y = problem
    weights = rng.uniform(0, 2, 22).astype("float32")
    model = model_of([(w, b)], run_eagerly=eager)
    model.fit(x, y, sample_weight=weights, batch_size=8, shuffle=False, verbose=0)
    kernel, _, _ = sgd_by_hand(w, b, x, y, 8, 1, weights)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)

    labels = rng.integers(0, 2, (22, 1))
    by_class = {0: 0.5, 1: 3.0}
    w1, b1 = w[:, :1], b[:1]
    model = model_of([(w1, b1)], run_eagerly=eager)
    model.fit(x, labels, class_weight=by_class, batch_size=8, shuffle=False, verbose=0)
    weights = np.array([by_class[int(k)] for k in labels[:, 0]])
    kernel, _, _ = sgd_by_hand(w1, b1, x, labels, 8, 1, weights)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)


def test_validation_and_metrics_are_those_of_evaluate(problem):
    w, b, x, y = problem
    model = model_of([(w, b)], metrics=["mae"], weighted_metrics=["mse"])
    history = model.fit(x, y, validation_split=0.25, epochs=2, batch_size=4, verbose=0).history
    assert set(history) == {
        "loss", "mae", "mse", "val_loss", "val_mae", "val_mse"
    }  # fmt: skip
    logs = model.evaluate(x[16:], y[16:], batch_size=4, return_dict=True, verbose=0)
    for name, value in logs.items():
        np.testing.assert_allclose(history[f"val_{name}"][-1], value, rtol=1e-5)
    error = model.predict(x[16:], verbose=0) - y[16:]
    np.testing.assert_allclose(logs["mae"], np.abs(error).mean(), rtol=1e-4)


@pytest.mark.parametrize("eager", [True, False])
def test_history_tells_training_from_validation(problem, eager):
    w, b, x, y = problem
    model = model_of([(w, b)], run_eagerly=eager)
    arguments = dict(batch_size=8, epochs=3, shuffle=False, verbose=0)
    history = model.fit(x, y, validation_data=(x[:6], y[:6] + 1), **arguments).history
    np.testing.assert_allclose(history["loss"], sgd_by_hand(w, b, x, y, 8, 3)[2], rtol=1e-4)
    expected = []
    for epochs in (1, 2, 3):
        kernel, bias, _ = sgd_by_hand(w, b, x, y, 8, epochs)
        expected.append(((x[:6] @ kernel + bias - y[:6] - 1) ** 2).mean())
    np.testing.assert_allclose(history["val_loss"], expected, rtol=1e-4)
    np.testing.assert_allclose(model.evaluate(x[:6], y[:6] + 1, verbose=0), expected[-1], rtol=1e-4)


def test_metrics_restart_at_each_batch_call_and_epoch(problem):
    w, b, x, y = problem
    model = model_of([(w, b)], metrics=["mae"])
    first = model.test_on_batch(x[:8], y[:8])
    model.test_on_batch(x[8:16], y[8:16])
    np.testing.assert_allclose(model.test_on_batch(x[:8], y[:8]), first, rtol=1e-6)


class Watcher(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.events = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append({name: float(value) for name, value in logs.items()})

    def on_epoch_begin(self, epoch, logs=None):
        self.events.append(("begin", epoch))

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(("end", epoch))


def test_callbacks_see_numbers_of_their_own_batch(problem):
    w, b, x, y = problem
    watcher = Watcher()
    model = model_of([(w, b)])
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[watcher])
    assert watcher.events == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
    assert len(watcher.batches) == 6
    _, _, losses = sgd_by_hand(w, b, x[:8], y[:8], 8, 1)
    np.testing.assert_allclose(watcher.batches[0]["loss"], losses[0], rtol=1e-4)


def test_logs_kept_by_a_callback_stay(problem):
    w, b, x, y = problem
    kept = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: kept.append(logs["loss"])
    )
    model_of([(w, b)]).fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[keep])
    values = [float(v) for v in kept]
    model = model_of([(w, b)], run_eagerly=True)
    kept.clear()
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[keep])
    np.testing.assert_allclose(values, [float(v) for v in kept], rtol=1e-4)


def test_progress_bar_on_its_thread_reads_right_values(problem, capsys):
    w, b, x, y = problem
    model = model_of([(w, b)], metrics=["mae"])
    expected = model.evaluate(x, y, batch_size=2, verbose=0)
    for _ in range(10):
        found = model.evaluate(x, y, batch_size=2, verbose=1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_stop_training(problem):
    w, b, x, y = problem
    model = model_of([(w, b)])
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch == 1)
    )
    history = model.fit(x, y, batch_size=4, epochs=5, verbose=0, callbacks=[stop])
    assert len(history.history["loss"]) == 1


@pytest.mark.parametrize("eager", [True, False])
def test_steps_per_execution(problem, eager):
    w, b, x, y = problem
    watcher = Watcher()
    model = model_of([(w, b)], steps_per_execution=2, run_eagerly=eager)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[watcher])
    kernel, bias, _ = sgd_by_hand(w, b, x, y, 4, 1)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)
    assert len(watcher.batches) == 3
    predicted = model.predict(x, batch_size=4, verbose=0)
    np.testing.assert_allclose(predicted, x @ kernel + bias, atol=1e-4)


def test_predict_of_nested_outputs_and_many_batches(rng):
    x = rng.normal(size=(45, 3)).astype("float32")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, {"a": inputs * 2, "b": [inputs + 1, keras.ops.sum(inputs, 1)]})
    y = model.predict(x, batch_size=2, verbose=0)
    np.testing.assert_array_equal(y["a"], x * 2)
    np.testing.assert_array_equal(y["b"][0], x + 1)
    np.testing.assert_allclose(y["b"][1], x.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.predict_on_batch(x[:3])["a"], x[:3] * 2)


def test_assigning_a_variable_its_own_value_changes_nothing(problem):
    w, b, x, y = problem
    model = model_of([(w, b)], optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    same = model_of([(w, b)], optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    for _ in range(3):
        for m in (model, same):
            m.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        kernel, bias = model.trainable_variables
        kernel.assign(kernel)
        kernel.assign(kernel.value)
        bias.assign(bias + 0)
        model.optimizer.learning_rate = model.optimizer.learning_rate
        for mine, other in zip(model.get_weights(), same.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_allclose(model.optimizer.learning_rate, 0.05)


def test_swapped_weights(problem):
    """As callbacks do that try averaged weights and put the trained ones back."""
    w, b, x, y = problem
    model, other = model_of([(w, b)]), model_of([(2 * w, b + 1)])
    for m in (model, other):
        m.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    mine, others = model.get_weights(), other.get_weights()
    for v, u in zip(model.variables[:2], other.variables[:2], strict=True):
        old = v.value
        v.assign(u.value)
        u.assign(old)
    for m in (model, other):
        m.evaluate(x, y, verbose=0)
    for got, expected in ((model, others), (other, mine)):
        for a, e in zip(got.get_weights(), expected, strict=True):
            np.testing.assert_array_equal(a, e)


def test_predict_follows_new_weights(problem):
    w, b, x, _ = problem
    model = model_of([(w, b)])
    model.predict(x, verbose=0)
    model.set_weights([w * 0, b])
    np.testing.assert_allclose(model.predict(x, verbose=0), np.broadcast_to(b, (22, 2)))


def test_generator_of_float64(problem):
    w, b, x, y = problem

    def batches():
        while True:
            for start in range(0, 20, 5):
                yield x[start : start + 5].astype("float64"), y[start : start + 5].astype("float64")

    model = model_of([(w, b)])
    model.fit(batches(), steps_per_epoch=4, epochs=2, shuffle=False, verbose=0)
    kernel, _, _ = sgd_by_hand(w, b, x[:20], y[:20], 5, 2)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)


def test_arrays_of_ours_as_data(problem):
    w, b, x, y = problem
    model = model_of([(w, b)])
    loss = model.train_on_batch(kerascl.array(x), kerascl.array(y))
    kernel, _, losses = sgd_by_hand(w, b, x, y, 22, 1)
    np.testing.assert_allclose(loss, losses[0], rtol=1e-4)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)


# -- capture
def test_a_step_is_traced_once_for_each_shape(problem):
    w, b, x, y = problem
    model = model_of([(w, b)])
    calls = []
    original = model.compute_loss
    model.compute_loss = lambda *a, **k: calls.append(1) or original(*a, **k)
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    calls.clear()
    model.fit(x, y, batch_size=8, epochs=4, verbose=0)
    assert not calls


def test_toggling_trainable_traces_again(problem):
    w, b, x, y = problem
    model = model_of([(w, b), (np.eye(2, dtype="float32"), b)])
    model.train_on_batch(x, y)
    model.layers[0].trainable = False
    frozen = model.layers[0].get_weights()[0]
    other = model.layers[1].get_weights()[0]
    model.train_on_batch(x, y)
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], frozen)
    assert np.abs(model.layers[1].get_weights()[0] - other).max() > 0
    model.layers[0].trainable = True
    model.train_on_batch(x, y)
    assert np.abs(model.layers[0].get_weights()[0] - frozen).max() > 0


class Looking(keras.Model):
    """A model whose step looks at a value on the host."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        y = self.dense(x)
        if float(keras.ops.sum(y)) > 1e30:  # here
            y = y * 0
        return y


def test_a_step_that_cannot_be_captured_runs_eagerly_after_one_warning(problem):
    _, _, x, y = problem
    model = Looking()
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    ours = [w for w in caught if "runs eagerly" in str(w.message)]
    assert len(ours) == 1
    message = str(ours[0].message)
    assert "test_trainer.py" in message and "# here" in message and "train_step" in message
    losses = history.history["loss"]
    assert losses[-1] < losses[0]


def test_jit_compile_false_runs_eagerly(problem):
    _, _, x, y = problem
    seen = []

    class Model(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            seen.append(float(logs["loss"]))
            return logs

    model = Model([keras.Input((4,)), layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert len(seen) == 3


class Custom(keras.Sequential):
    """A step of the user's own, with a metric of its own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.tracker = keras.metrics.Mean(name="own")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with kerascl.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.tracker.update_state(loss)
        return {"own": self.tracker.result()}


@pytest.mark.parametrize("eager", [True, False])
def test_custom_train_step(problem, eager):
    w, b, x, y = problem
    model = Custom([keras.Input((4,)), layers.Dense(2)])
    model.set_weights([w, b])
    model.compile(keras.optimizers.SGD(0.05), run_eagerly=eager)
    history = model.fit(x, y, batch_size=22, epochs=2, shuffle=False, verbose=0).history
    kernel, _, losses = sgd_by_hand(w, b, x, y, 22, 2)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(history["own"], losses, rtol=1e-4)


def test_state_of_layers_advances_in_captured_steps(rng):
    x = rng.normal(2.0, 3.0, size=(64, 3)).astype("float32")
    outputs = {}
    for eager in (True, False):
        model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(momentum=0.5)])
        model.compile("sgd", "mse", run_eagerly=eager)
        model.fit(x, x * 0, batch_size=32, epochs=2, shuffle=False, verbose=0)
        outputs[eager] = model.get_weights()
    for a, b in zip(outputs[True], outputs[False], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert outputs[False][2].mean() > 1.0  # the moving mean


class Noise(layers.Layer):
    """Dropout in prediction too."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seeds)


def test_random_numbers_differ_between_captured_steps():
    x = np.ones((8, 50), "float32")
    model = keras.Sequential([keras.Input((50,)), Noise()])
    first, second = model.predict(x, verbose=0), model.predict(x, verbose=0)
    assert (first != second).any() and set(np.unique(first)) == {0.0, 2.0}
    model.layers[0].seeds.state.assign([1, 0])
    np.testing.assert_array_equal(model.predict(x, verbose=0), first)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("eager", [True, False])
def test_mixed_precision(problem, policy, eager):
    _, _, x, y = problem
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=eager)
    losses = model.fit(x, y, batch_size=11, epochs=8, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert model.weights[0].dtype == "float32"
    assert model(x).dtype == policy.removeprefix("mixed_")


def test_warning_names_the_users_line():
    def user():
        raise RuntimeError("x")

    try:
        user()
    except RuntimeError as error:
        assert 'raise RuntimeError("x")' in steps.blame(error)
