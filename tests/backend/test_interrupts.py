"""Ctrl-C in unfortunate places, and logs on their way to callbacks."""

import contextlib
import signal

import keras
import numpy as np
import pytest
from keras import layers

import kerascl as kc
from kerascl.backend import callbacks
from kerascl.runtime import launch, replay
from kerascl.runtime.dropped import Dropped


class Swallowed(keras.callbacks.Callback):
    """Ctrl-C where everything is caught, once, as Keras does while it reads logs."""

    def _interrupt(self, batch, logs=None):
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = _interrupt


class SwallowedAtTheEnd(Swallowed):
    """The same after the last batch."""

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = lambda self, batch, logs: None

    def _interrupt_last(self, logs=None):
        self._interrupt(None)

    on_train_end = on_test_end = on_predict_end = _interrupt_last


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("kind", [Swallowed, SwallowedAtTheEnd])
def test_a_swallowed_interrupt_ends_the_loop(model, rng, kind):
    x, y = rng.normal(size=(12, 3)).astype("float32"), np.zeros((12, 2), "float32")
    for call in (
        lambda: model.fit(x, y, batch_size=4, verbose=0, callbacks=[kind()]),
        lambda: model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[kind()]),
        lambda: model.predict(x, batch_size=4, verbose=0, callbacks=[kind()]),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    k, b = model.get_weights()
    model.fit(x, y, batch_size=12, verbose=0)
    error = x @ k + b
    np.testing.assert_allclose(
        model.get_weights()[0], k - 0.1 * x.T @ error / 12, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        model.get_weights()[1], b - 0.1 * error.mean(0), rtol=1e-4, atol=1e-6
    )


def test_a_handler_of_the_program_stays(model):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *args: seen.append(args))
    try:
        mine = signal.getsignal(signal.SIGINT)
        x = np.zeros((4, 3), "float32")
        model.predict(x, verbose=0, callbacks=[Swallowed()])
        assert len(seen) == 1 and signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_between_two_bindings(monkeypatch, rng):
    """A captured function's argument is bound in several launches; then an old one comes again."""
    w = kc.array(rng.normal(size=(4, 4)).astype("float32"))
    step = kc.jit(lambda x: kc.sum(kc.matmul(kc.tanh(kc.matmul(x, w)) + x, w) * x))
    values = [rng.normal(size=(4, 4)).astype("float32") for _ in range(2)]
    arrays = [kc.array(v).evaluate() for v in values]
    expected = [(((np.tanh(v @ w.numpy()) + v) @ w.numpy()) * v).sum() for v in values]
    original = replay.Replay.rebind
    held = step(arrays[0])  # a new place for the result each time
    for stop in range(1, 6):
        calls = []

        def rebind(self, *args, calls=calls, stop=stop):
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return original(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(replay.Replay, "rebind", rebind)
            with contextlib.suppress(KeyboardInterrupt):
                step(arrays[1])
        for k in (0, 1, 0):
            np.testing.assert_allclose(step(arrays[k]).item(), expected[k], rtol=1e-4)
    np.testing.assert_allclose(held.item(), expected[0], rtol=1e-4)


def test_all_launches_of_a_step_or_none(dev, monkeypatch):
    source = "__kernel void plus(__global int* x) { x[get_global_id(0)] += 1; }"
    buffer = dev.buffers.allocate(32)
    dev.queue.write(buffer, np.zeros(8, "int32"))
    kernel = dev.programs.kernel(source, "plus")
    step = replay.Replay(dev, [(kernel, (8,), None, [buffer])], order=[0] * 600)
    pace, calls = launch.Queue.pace, []

    def interrupted(self, launches):
        calls.append(launches)
        if len(calls) < 3:
            raise KeyboardInterrupt
        return pace(self, launches)

    monkeypatch.setattr(launch.Queue, "pace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step.run()
    assert calls == [256, 256, 88]
    np.testing.assert_array_equal(dev.queue.read(buffer, np.empty(8, "int32")), 600)


def test_an_interrupted_trace_leaves_no_trace():
    def body(x):
        with kc.GradientTape():
            raise KeyboardInterrupt

    leave = kc.GradientTape.__exit__
    kc.GradientTape.__exit__ = lambda self, *exception: None  # Ctrl-C came just before
    try:
        with pytest.raises(KeyboardInterrupt):
            kc.jit(body)(kc.array([1.0]))
    finally:
        kc.GradientTape.__exit__ = leave
    from kerascl.core.context import current

    assert current.trace is None and current.tapes == ()


def test_logs_for_callbacks(rng):
    x = rng.normal(size=3).astype("float32")
    logs = callbacks.python_logs(
        {"b": kc.sum(kc.array(x)), "a": {"z": 2, "y": kc.array(3)}, "c": kc.array(x), "d": "text"}
    )
    assert list(logs) == ["y", "z", "b", "c", "d"]
    assert (logs["y"], logs["z"], logs["d"]) == (3.0, 2.0, "text")
    np.testing.assert_allclose(logs["b"], x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(logs["c"], x)
    assert callbacks.python_logs(None) == {}


def test_what_is_left_of_dropped_objects():
    class Thing:
        pass

    dropped, thing = Dropped(), Thing()
    dropped.watch(thing, "rest")
    assert list(dropped.take()) == []
    cycle = [thing]
    cycle.append(cycle)
    del thing
    assert list(dropped.take()) == []
    cycle.clear()
    assert list(dropped.take()) == ["rest"]
    assert list(dropped.take()) == []


def test_a_model_that_was_not_compiled_predicts(rng):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    x = rng.normal(size=(5, 3)).astype("float32")
    k, b = model.get_weights()
    np.testing.assert_allclose(model.predict(x, verbose=0), x @ k + b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(x), x @ k + b, rtol=1e-4, atol=1e-5)
