"""Optimizers whose updates depend on device values: captured as eager, and as NumPy."""

import keras
import numpy as np
import pytest

from kerascl.compiler.run.capture import jit


def run(make, gradients, start, capture):
    """The variable after each of the gradients."""
    v = keras.Variable(start)
    optimizer = make()
    optimizer.build([v])

    def step(g):
        optimizer.apply([g], [v])

    step = jit(step) if capture else step
    values = []
    for g in gradients:
        step(g)
        values.append(v.numpy())
    return np.array(values), optimizer


@pytest.fixture
def gradients(rng):
    return rng.normal(size=(7, 3)).astype("float32")


START = np.array([1.0, -2.0, 3.0], "float32")


@pytest.mark.parametrize("capture", [False, True])
def test_gradient_accumulation(gradients, capture):
    values, optimizer = run(
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), gradients, START, capture
    )
    expected, current = [], START.astype("float64")
    for k in range(7):
        if k % 3 == 2:
            current = current - 0.1 * gradients[k - 2 : k + 1].mean(0)
        expected.append(current)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert int(optimizer.iterations) == 2  # updates


@pytest.mark.parametrize("capture", [False, True])
def test_weight_averages_overwrite(gradients, capture):
    values, _ = run(
        lambda: keras.optimizers.SGD(
            0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
        ),
        gradients, START, capture,
    )  # fmt: skip
    expected, current = [], START.astype("float64")
    average = None
    for k in range(7):
        current = current - 0.1 * gradients[k]
        average = current if average is None else 0.5 * average + 0.5 * current
        if (k + 1) % 3 == 0:
            current = average
        expected.append(current)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("capture", [False, True])
def test_loss_scale_halves_and_skips_at_infinities(gradients, capture):
    gradients = gradients.copy()
    gradients[2, 1] = np.inf
    gradients[4, 0] = np.nan
    values, optimizer = run(
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=2
        ),
        gradients, START, capture,
    )  # fmt: skip
    expected, current, scale, count = [], START.astype("float64"), 8.0, 0
    for g in gradients:
        if np.isfinite(g).all():
            current = current - 0.1 * g / scale
            scale, count = (scale * 2, 0) if count == 1 else (scale, count + 1)
        else:
            scale, count = scale / 2, 0
        expected.append(current)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert float(optimizer.dynamic_scale) == scale and int(optimizer.step_counter) == count


@pytest.mark.parametrize(
    "name",
    ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion",
     "Adafactor", "Lamb", "Muon"],
)  # fmt: skip
def test_captured_as_eager(gradients, name):
    make = getattr(keras.optimizers, name)
    arguments = dict(learning_rate=0.01, clipnorm=0.7)
    if name == "SGD":
        arguments |= dict(momentum=0.9, nesterov=True)
    eager, _ = run(lambda: make(**arguments), gradients, START, False)
    captured, _ = run(lambda: make(**arguments), gradients, START, True)
    np.testing.assert_allclose(captured, eager, rtol=1e-4, atol=1e-6)
    assert np.abs(captured[-1] - START).max() > 0


@pytest.mark.parametrize("capture", [False, True])
def test_adam_and_schedule(gradients, capture):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5, staircase=True)
    values, _ = run(lambda: keras.optimizers.Adam(schedule), gradients, START, capture)
    expected, p = [], START.astype("float64")
    m = v = np.zeros(3)
    for t, g in enumerate(gradients.astype("float64"), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        rate = 0.1 * 0.5 ** ((t - 1) // 2) * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        p = p - rate * m / (np.sqrt(v) + 1e-7)
        expected.append(p)
    np.testing.assert_allclose(values, expected, rtol=1e-4)


def test_learning_rate_set_between_captured_steps(gradients):
    v = keras.Variable(START)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([v])
    step = jit(lambda g: optimizer.apply([g], [v]))
    step(gradients[0])
    optimizer.learning_rate = 1.0
    step(gradients[1])
    np.testing.assert_allclose(v.numpy(), START - 0.1 * gradients[0] - gradients[1], rtol=1e-5)


def test_stateless_apply(gradients):
    v = keras.Variable(START)
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([v])
    new, _ = optimizer.stateless_apply(
        [s.value for s in optimizer.variables], [gradients[0]], [v.value]
    )
    np.testing.assert_allclose(new[0].numpy(), START - 0.5 * gradients[0], rtol=1e-6)
    np.testing.assert_array_equal(v.numpy(), START)
