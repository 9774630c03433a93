"""Epilogues in explicit vectors: updates of few rows of a table, and all that follows."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.program import lower
from kerascl.kernels.scatter import solvers as scatter
from kerascl.ops.gather import scatter_rows
from kerascl.runtime import device

ROWS, COUNT = 1003, 40


@pytest.fixture
def epilogues(monkeypatch):
    """Every problem and epilogue that a scatter was planned with."""
    seen = []
    plain = scatter.plan

    def plan(problem, info, epilogue):
        seen.append((problem, epilogue))
        return plain(problem, info, epilogue)

    monkeypatch.setattr(scatter, "plan", plan)
    monkeypatch.setattr(kc.engine, "programs", {})
    return seen


def summed(indices, updates, rows):
    """The updates in rows of zeros, in float64."""
    total = np.zeros((rows, updates.shape[1]))
    np.add.at(total, indices, updates.astype(np.float64))
    return total


def close(got, want):
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


def in_vectors(epilogue):
    return bool(epilogue.lanes) == (device.default().info.kind == "cpu")


@pytest.mark.parametrize("kind", ["own", "gpu"])
@pytest.mark.parametrize("width", [1, 3, 16, 50])
def test_adam_of_a_table_with_a_penalty(epilogues, rng, width, kind, as_gpu, monkeypatch):
    """The gradient of an embedding, a regulariser's beside it, and the optimizer: one launch over
    the table, in place, for several steps, however large."""
    if kind == "gpu":
        as_gpu(4)
        monkeypatch.setattr(lower, "UPDATE_LIMIT", {"gpu": 1})
    table, m, v = (rng.random((ROWS, width)).astype(np.float32) for _ in range(3))
    states = [kc.State(x) for x in (table, m, v)]
    steps = kc.State(np.int32(0))

    @kc.jit
    def step(indices, scale):
        with kc.GradientTape() as tape:
            w = states[0].value
            tape.watch(w)
            loss = kc.sum(kc.take(w, indices, 0) * scale) + 1e-3 * kc.sum(w * w)
        g = tape.gradient(loss, w)
        steps.assign(steps.value + 1)
        t = kc.cast(steps.value, "float32")
        rate = 0.01 * kc.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        m = states[1].value + (g - states[1].value) * 0.1
        v = states[2].value + (g * g - states[2].value) * 0.001
        states[1].assign(m)
        states[2].assign(v)
        states[0].assign(w - m * kc.reshape(rate, (1, 1)) / (kc.sqrt(v) + 1e-7))

    w, m, v = (x.astype(np.float64) for x in (table, m, v))
    for t in (1, 2, 3):
        indices = rng.integers(0, ROWS, COUNT).astype(np.int32)
        scale = rng.normal(size=(COUNT, width)).astype(np.float32)
        step(kc.array(indices), kc.array(scale))
        g = summed(indices, scale, ROWS) + 2e-3 * w
        m, v = m + (g - m) * 0.1, v + (g * g - v) * 0.001
        w = w - m * 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) / (np.sqrt(v) + 1e-7)
        for state, want in zip(states, (w, m, v), strict=True):
            close(state.value.numpy(), want)
    problem, epilogue = epilogues[-1]
    assert not problem.base and in_vectors(epilogue)
    assert "pow" not in epilogue.body


FORMS = {
    "rsqrt": (
        lambda g, x: x - g * kc.rsqrt(g * g + 0.5),
        lambda g, x: x - g / np.sqrt(g * g + 0.5),
    ),
    "maximum": (lambda g, x: kc.maximum(g, x), np.maximum),
    "minimum": (lambda g, x: kc.minimum(x, g), np.minimum),
    "exp": (lambda g, x: kc.exp(-(g + x)), lambda g, x: np.exp(-(g + x))),
    "log": (lambda g, x: kc.log(g * g + 1) * x, lambda g, x: np.log(g * g + 1) * x),
    "reciprocal": (lambda g, x: 1 / (kc.absolute(g - x) + 1), lambda g, x: 1 / (abs(g - x) + 1)),
    "integers": (lambda g, x: g + kc.cast(kc.cast(x, "int32"), "float32"), None),
    "comparison": (lambda g, x: x + kc.cast(g > x, "float32"), lambda g, x: x + (g > x)),
}


@pytest.mark.parametrize("form", FORMS)
def test_functions(epilogues, rng, form):
    function, want = FORMS[form]
    want = want or (lambda g, x: g + np.trunc(x))
    x = (rng.normal(size=(ROWS, 5)) * 3).astype(np.float32)
    indices = rng.integers(0, ROWS, COUNT).astype(np.int32)
    updates = rng.normal(size=(COUNT, 5)).astype(np.float32)

    @kc.jit
    def run(indices, updates, x):
        g = scatter_rows(kc.zeros((ROWS, 5)), indices, updates, "add")
        return function(g, x)

    got = run(*map(kc.array, (indices, updates, x))).numpy()
    close(got, want(summed(indices, updates, ROWS), x.astype(np.float64)))
    problem, epilogue = epilogues[-1]
    assert not problem.base
    assert form == "integers" or in_vectors(epilogue)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32"])
def test_other_dtypes(epilogues, rng, dtype):
    if dtype == "float64" and not device.default().info.fp64:
        pytest.skip("no fp64")
    updates = rng.integers(-8, 9, (COUNT, 6))
    indices = rng.integers(-3, ROWS + 3, COUNT).astype(np.int32)  # those outside are dropped

    @kc.jit
    def run(indices, updates):
        zeros = kc.zeros((ROWS, 6), dtype=dtype)
        return scatter_rows(zeros, indices, updates, "add") * 2

    got = run(kc.array(indices), kc.array(updates, dtype=dtype))
    inside = (indices >= 0) & (indices < ROWS)
    want = 2 * summed(indices[inside], updates[inside], ROWS)
    np.testing.assert_array_equal(kc.cast(got, "float32").numpy(), want)


def test_nan_and_zeros_with_a_sign(rng):
    """Numbers that vectors and single elements must treat alike."""
    x = rng.choice([np.nan, -0.0, 0.0, np.inf, 1.0], (ROWS, 3)).astype(np.float32)
    indices = np.array([5, 7], np.int32)
    updates = np.ones((2, 3), np.float32)

    @kc.jit
    def run(indices, updates, x):
        g = scatter_rows(kc.zeros((ROWS, 3)), indices, updates, "add")
        minus = scatter_rows(kc.full((ROWS, 3), -0.0), indices, updates, "max")
        return kc.maximum(g, x), kc.minimum(x, g), minus

    high, low, minus = (y.numpy() for y in run(*map(kc.array, (indices, updates, x))))
    g = summed(indices, updates, ROWS)
    np.testing.assert_array_equal(high, np.maximum(g, x).astype(np.float32))
    np.testing.assert_array_equal(low, np.minimum(x, g).astype(np.float32))
    assert np.signbit(minus).sum() == minus.size - 6


def test_results_read_by_row_are_left_to_single_elements(epilogues, rng):
    bias = rng.normal(size=5).astype(np.float32)
    indices = rng.integers(0, ROWS, COUNT).astype(np.int32)
    updates = rng.normal(size=(COUNT, 5)).astype(np.float32)

    @kc.jit
    def run(indices, updates, bias):
        return scatter_rows(kc.zeros((ROWS, 5)), indices, updates, "add") + kc.sqrt(bias * bias)

    got = run(*map(kc.array, (indices, updates, bias))).numpy()
    close(got, summed(indices, updates, ROWS) + abs(bias.astype(np.float64)))
    assert not epilogues[-1][1].lanes
