"""Recurrent layers against a loop in NumPy."""

import keras
import numpy as np
import pytest
from keras import layers
from keras.src import backend

import kerascl
from kerascl.compiler.run.capture import jit


def reference(x, w, u, s, mask=None, backwards=False, zero=False):
    """tanh(x w + s u) over time, in float64: outputs (batch, time, n) and the last state."""
    s = s.astype("float64")
    previous, outputs = np.zeros_like(s), []
    for t in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
        new = np.tanh(x[:, t] @ w + s @ u)
        valid = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        s = np.where(valid, new, s)
        previous = np.where(valid, new, 0 if zero else previous)
        outputs.append(previous)
    return np.stack(outputs, 1), s


@pytest.fixture
def data(rng):
    def make(length):
        return (
            rng.normal(size=(3, length, 4)).astype("float32"),
            rng.normal(size=(4, 5)).astype("float32") * 0.5,
            rng.normal(size=(5, 5)).astype("float32") * 0.5,
            rng.normal(size=(3, 5)).astype("float32"),
            rng.uniform(size=(3, length)) < 0.6,
        )

    return make


def step_of(w, u):
    def step(x, states):
        y = keras.ops.tanh(keras.ops.matmul(x, w) + keras.ops.matmul(states[0], u))
        return y, [y]

    return step


@pytest.mark.every(5)
@pytest.mark.parametrize("length", [3, 12])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("masked", ["no", "repeat", "zero"])
@pytest.mark.parametrize("capture", [False, True])
def test_rnn(data, length, backwards, masked, capture):
    x, w, u, s, mask = data(length)
    mask = None if masked == "no" else mask

    def run(x, s):
        return backend.rnn(
            step_of(w, u), x, [s], go_backwards=backwards, mask=mask,
            zero_output_for_mask=masked == "zero",
        )  # fmt: skip

    last, outputs, states = (jit(run) if capture else run)(kerascl.array(x), kerascl.array(s))
    expected, state = reference(x, w, u, s, mask, backwards, masked == "zero")
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.numpy(), expected[:, -1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states[0].numpy(), state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_last_output_alone_and_time_major(data, masked):
    x, w, u, s, mask = data(9)
    mask = mask if masked else None
    expected, _ = reference(x, w, u, s, mask)
    last, outputs, _ = backend.rnn(step_of(w, u), x, [s], mask=mask, return_all_outputs=False)
    assert outputs.shape == (3, 1, 5)
    np.testing.assert_allclose(last.numpy(), expected[:, -1], rtol=1e-4, atol=1e-5)
    _, outputs, _ = backend.rnn(
        step_of(w, u), x.swapaxes(0, 1), [s], time_major=True,
        mask=mask.T if masked else None,
    )  # fmt: skip
    np.testing.assert_allclose(outputs.numpy().swapaxes(0, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [3, 12])
def test_gradient_is_that_of_the_reference(data, length):
    x, w, u, s, mask = data(length)
    weight = np.random.default_rng(0).normal(size=(3, length, 5))

    def loss(w):
        _, outputs, _ = backend.rnn(step_of(w, u), x, [s], mask=mask)
        return keras.ops.sum(outputs * weight.astype("float32"))

    found = kerascl.grad(loss)(kerascl.array(w)).numpy()
    expected, eps = np.zeros(w.shape), 1e-6
    for index in np.ndindex(w.shape):
        high, low = w.astype("float64"), w.astype("float64")
        high[index] += eps
        low[index] -= eps
        difference = reference(x, high, u, s, mask)[0] - reference(x, low, u, s, mask)[0]
        expected[index] = (difference * weight).sum() / (2 * eps)
    assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_layer(rng):
    x = rng.normal(size=(2, 11, 3)).astype("float32")
    layer = layers.LSTM(4, return_sequences=True, return_state=True)
    outputs, h_last, c_last = layer(x)
    kernel, recurrent, bias = [w.astype("float64") for w in layer.get_weights()]
    h = c = np.zeros((2, 4))
    for t in range(11):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(outputs.numpy()[:, t], h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(h_last.numpy(), h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(c_last.numpy(), c, rtol=1e-4, atol=1e-5)


def test_gru_layer(rng):
    x = rng.normal(size=(2, 11, 3)).astype("float32")
    layer = layers.GRU(4, return_sequences=True)
    layer.build(x.shape)
    layer.cell.bias.assign(rng.normal(size=(2, 12)))
    outputs = layer(x).numpy()
    kernel, recurrent, bias = [w.astype("float64") for w in layer.get_weights()]
    h = np.zeros((2, 4))
    for t in range(11):
        x_z, x_r, x_h = np.split(x[:, t] @ kernel + bias[0], 3, 1)
        h_z, h_r, h_h = np.split(h @ recurrent + bias[1], 3, 1)
        z = sigmoid(x_z + h_z)
        h = z * h + (1 - z) * np.tanh(x_h + sigmoid(x_r + h_r) * h_h)
        np.testing.assert_allclose(outputs[:, t], h, rtol=1e-4, atol=1e-5)


SETTINGS = [  # arguments of the layer, whether masked, whether with initial states
    ({}, True, True),
    ({"return_sequences": True}, True, False),
    ({"return_sequences": True}, False, True),
    ({"go_backwards": True, "return_sequences": True}, True, True),
    ({"use_bias": False, "activation": "relu"}, False, False),
    ({"go_backwards": True, "unroll": True}, True, False),
    ({"recurrent_activation": "hard_sigmoid", "activation": "gelu"}, True, True),
    ({"return_sequences": True, "zero_output_for_mask": True}, True, True),
    ({"go_backwards": True, "zero_output_for_mask": True}, True, False),
    ({"activation": "softmax", "return_sequences": True}, True, True),  # not elementwise
    ({"dtype": "float64", "return_sequences": True}, True, True),
]


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("arguments, masked, started", SETTINGS, ids=str)
def test_whole_layers_agree_with_the_iterated_cell(rng, kind, arguments, masked, started, dev):
    """Values, and gradients for the input, every weight and every initial state."""
    if arguments.get("dtype") == "float64" and not dev.info.fp64:
        pytest.skip("the device has no double precision")
    dtype = arguments.get("dtype", "float32")
    x = kerascl.array(rng.normal(size=(3, 6, 4)).astype(dtype))
    mask = rng.uniform(size=(3, 6)) < 0.6 if masked else None
    if masked:
        mask[0] = False  # a row that is never valid
    states = [rng.normal(size=(3, 5)).astype(dtype) for _ in range(1 + (kind == "LSTM"))]
    states = [kerascl.array(s) for s in states] if started else None
    layer = getattr(layers, kind)(5, return_state=True, use_cudnn="auto", **arguments)
    plain = getattr(layers, kind)(5, return_state=True, use_cudnn=False, **arguments)
    layer.build(x.shape)
    plain.build(x.shape)
    weights = [rng.normal(size=w.shape) for w in layer.get_weights()]
    layer.set_weights(weights)
    plain.set_weights(weights)

    def run(layer):
        with kerascl.GradientTape() as tape:
            outputs = layer(x, initial_state=states, mask=mask)
            loss = sum(kerascl.sum(kerascl.sin(y * (k + 1))) for k, y in enumerate(outputs))
        sources = [x, *layer.trainable_weights, *(states or ())]
        return outputs, tape.gradient(loss, sources)

    for found, expected in zip(run(layer), run(plain), strict=True):
        for a, b in zip(found, expected, strict=True):
            a, b = a.numpy(), b.numpy()
            assert a.shape == b.shape
            assert np.linalg.norm(a - b) <= 1e-4 * np.linalg.norm(b) + 1e-12


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_bidirectional_agrees_with_two_layers(rng, kind, sequences, started):
    x = rng.normal(size=(2, 7, 3)).astype("float32")
    make = getattr(layers, kind)
    states = [rng.normal(size=(2, 4)).astype("float32") for _ in range(4 if kind == "LSTM" else 2)]
    states = [kerascl.array(s) for s in states] if started else None
    results = []
    for fused in ("auto", False):
        inner = make(4, return_sequences=sequences, return_state=True, use_cudnn=fused)
        layer = layers.Bidirectional(inner)
        layer.build(x.shape)
        results.append((layer, lambda layer=layer: layer(x, initial_state=states)))
    results[1][0].set_weights(results[0][0].get_weights())
    for found, expected in zip(results[0][1](), results[1][1](), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)


def test_one_launch_for_all_steps(rng):
    """A captured LSTM has as many launches for 50 steps as for 5."""
    layer = layers.LSTM(8, return_sequences=True)
    step = jit(lambda x: layer(x, mask=keras.ops.any(x > 0, -1)))
    counts = []
    for length in (5, 50):
        x = kerascl.array(rng.normal(size=(2, length, 3)).astype("float32"))
        counts.append(len(step.captured(x).replay))
    assert counts[0] == counts[1]


def test_stateful_layer_remembers(rng):
    x = rng.normal(size=(2, 10, 3)).astype("float32")
    whole = layers.GRU(4)
    expected = whole(x).numpy()
    part = layers.GRU(4, stateful=True)
    part.build(x.shape)
    part.set_weights(whole.get_weights())
    part(x[:, :5])
    np.testing.assert_allclose(part(x[:, 5:]).numpy(), expected, rtol=1e-4, atol=1e-5)
    part.reset_states()
    first = part(x[:, :5]).numpy()
    part.reset_states()
    np.testing.assert_allclose(part(x[:, :5]).numpy(), first, rtol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_training_agrees_with_eager(rng, kind):
    x = rng.normal(size=(8, 7, 3)).astype("float32")
    y = rng.normal(size=(8, 1)).astype("float32")
    losses = {}
    weights = None
    for eager in (True, False):
        layer = layers.Bidirectional(getattr(layers, kind)(4))
        model = keras.Sequential([keras.Input((7, 3)), layers.Masking(), layer, layers.Dense(1)])
        weights = weights or model.get_weights()
        model.set_weights(weights)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eager)
        losses[eager] = model.fit(x, y, epochs=3, batch_size=8, verbose=0).history["loss"]
    np.testing.assert_allclose(losses[False], losses[True], rtol=1e-4)
    assert losses[False][-1] < losses[False][0]
