"""Random chains of movements and the like agree with NumPy however they are fused; see tests/fuzz.

Hypothesis' own options choose how many and which: `--hypothesis-profile thorough` (2,000 a run
instead of 200) and `--hypothesis-seed 7`.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerascl as kc
from kerascl.runtime import device

REAL = np.float64 if device.default().info.fp64 else np.float32
BOUND = 1e-10 if REAL is np.float64 else 1e-4
CASES = settings.default.max_examples  # of the profile, see tests/conftest.py
SETTINGS = settings(
    max_examples=CASES // 4, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def shapes(most=4):
    return st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 5]), max_size=most).map(tuple)


# -- steps: each draws its parameters from the shape at hand and gives a function of (library, x)
def _transpose(draw, shape):
    axes = tuple(draw(st.permutations(range(len(shape)))))
    return lambda np_, x: np_.transpose(x, axes)


def _reshape(draw, shape):
    size = int(np.prod(shape))
    divisors = [d for d in range(1, size + 1) if size % d == 0] or [1]
    first = draw(st.sampled_from(divisors))
    rest = size // first
    second = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0] or [1]))
    new = (first, rest // second, second) if size else (0, 2)
    return lambda np_, x: np_.reshape(x, new)


def _slice(draw, shape):
    key = []
    for n in shape:
        start = draw(st.integers(-n - 1, n + 1) | st.none())
        stop = draw(st.integers(-n - 1, n + 1) | st.none())
        key.append(slice(start, stop, draw(st.sampled_from([1, 1, 2, 3, -1, -2]))))
    return lambda np_, x: x[tuple(key)]


def _flip(draw, shape):
    axes = tuple(a for a in range(len(shape)) if draw(st.booleans()))
    return lambda np_, x: np_.flip(x, axes)


def _pad(draw, shape):
    widths = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape]
    modes = ["constant", "wrap", "edge", "reflect"] if 0 not in shape else ["constant"]
    mode = draw(st.sampled_from(modes))
    return lambda np_, x: np_.pad(x, widths, mode) if widths else x


def _roll(draw, shape):
    if not shape:
        return lambda np_, x: x
    shift, axis = draw(st.integers(-7, 7)), draw(st.integers(0, len(shape) - 1))
    return lambda np_, x: np_.roll(x, shift, axis)


def _tile(draw, shape):
    repeats = tuple(draw(st.integers(1, 2)) for _ in range(draw(st.integers(0, len(shape) + 1))))
    return lambda np_, x: np_.tile(x, repeats)


def _broadcast(draw, shape):
    new = (draw(st.integers(0, 2)), *[3 if n == 1 and draw(st.booleans()) else n for n in shape])
    return lambda np_, x: np_.broadcast_to(x, new)


def _join(draw, shape):
    if not shape:
        return lambda np_, x: np_.stack([x, x * 2])
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return lambda np_, x: np_.concatenate([x, np_.flip(x, axis) * 2], axis)


def _diagonal(draw, shape):
    if len(shape) < 2:
        return _roll(draw, shape)
    k = draw(st.integers(-2, 2))
    return lambda np_, x: np_.diagonal(x, k, 0, -1)


def _triangle(draw, shape):
    if len(shape) < 2:
        return _flip(draw, shape)
    k = draw(st.integers(-2, 2))
    return lambda np_, x: np_.tril(x, k)


def _take(draw, shape):
    if not shape or not shape[-1]:
        return lambda np_, x: x
    at = np.array(draw(st.lists(st.integers(-shape[-1], shape[-1] - 1), max_size=4)), np.int32)
    return lambda np_, x: np_.take(x, at, -1)


def _sum(draw, shape):
    axes = tuple(a for a in range(len(shape)) if draw(st.booleans()))
    keep = draw(st.booleans())
    return lambda np_, x: np_.sum(x, axis=axes, keepdims=keep)


def _mean_away(draw, shape):
    if not shape or not shape[-1]:
        return lambda np_, x: x
    return lambda np_, x: x - np_.mean(x, axis=-1, keepdims=True)


def _cumsum(draw, shape):
    if not shape:
        return lambda np_, x: x
    axis = draw(st.integers(0, len(shape) - 1))
    return lambda np_, x: np_.cumsum(x, axis)


LINEAR = [_transpose, _reshape, _slice, _flip, _pad, _roll, _tile, _broadcast, _join, _diagonal,
          _triangle, _take, _sum, _mean_away, _cumsum]  # fmt: skip


def _sin(draw, shape):
    return lambda np_, x: np_.sin(x)


def _square_less(draw, shape):
    return lambda np_, x: x * x - x * 0.25


def _max(draw, shape):
    if not shape or 0 in shape:
        return lambda np_, x: x
    axis = draw(st.integers(0, len(shape) - 1))
    return lambda np_, x: np_.max(x, axis=axis, keepdims=True)


def _sort(draw, shape):
    if not shape:
        return lambda np_, x: x
    axis = draw(st.integers(0, len(shape) - 1))
    return lambda np_, x: np_.sort(x, axis)


def _choose(draw, shape):
    return lambda np_, x: np_.where(x > 0.1, x, -0.5 * x)


def _gram(draw, shape):
    if len(shape) < 2 or max(shape) > 12:
        return lambda np_, x: x
    return lambda np_, x: np_.matmul(x, np_.swapaxes(x, -1, -2))


ANY = [*LINEAR, _sin, _square_less, _max, _sort, _choose, _gram]
MOST_ELEMENTS = 4000


@st.composite
def chains(draw, kinds):
    """A shape and a list of steps that keep arrays small."""
    shape = draw(shapes())
    probe = np.zeros(shape)
    steps = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=7)):
        step = kind(draw, probe.shape)
        with np.errstate(all="ignore"):
            result = step(np, probe)
        if result.size <= MOST_ELEMENTS and result.ndim <= 6:
            probe = result
            steps.append(step)
    return shape, steps


def relative(found, expected) -> float:
    assert found.shape == expected.shape
    return np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1.0)


@SETTINGS
@given(chains(ANY), st.integers(0, 2**32 - 1), st.data())
def test_values(chain, seed, data):
    shape, steps = chain
    host = np.random.default_rng(seed).uniform(-1, 1, shape).astype(REAL)
    x = kc.array(host)
    held = []
    for step in steps:
        x, host = step(kc, x), step(np, host)
        how = data.draw(st.sampled_from(["lazy", "lazy", "lazy", "held", "evaluated"]))
        if how != "lazy":
            held.append((x, host))  # a value in use must exist beside what follows
        if how == "evaluated":
            x.evaluate()
    for value, expected in [(x, host), *held]:
        assert relative(value.numpy(), expected) <= BOUND


@SETTINGS
@given(chains(LINEAR), st.integers(0, 2**32 - 1))
def test_transposes_of_linear_chains(chain, seed):
    """The gradient of <w, f(x)> is the transpose of f: <w, f(u)> = <grad, u> for every u."""
    shape, steps = chain
    rng = np.random.default_rng(seed)

    def run(np_, x):
        for step in steps:
            x = step(np_, x)
        return x

    x, u = (rng.uniform(-1, 1, shape).astype(REAL) for _ in range(2))
    w = rng.uniform(-1, 1, np.shape(run(np, x))).astype(REAL)
    found = kc.grad(lambda v: kc.sum(run(kc, v) * w))(kc.array(x)).numpy()
    assert found.shape == shape
    image = run(np, u)
    scale = max(1.0, np.linalg.norm(image) * np.linalg.norm(w))
    assert abs(np.sum(found * u) - np.sum(image * w)) <= BOUND * scale


@settings(SETTINGS, max_examples=CASES // 8)
@given(chains(ANY), st.integers(0, 2**32 - 1))
def test_captured_chains(chain, seed):
    shape, steps = chain
    host = np.random.default_rng(seed).uniform(-1, 1, shape).astype(REAL)

    @kc.jit
    def run(x):
        for step in steps:
            x = step(kc, x)
        return x

    found = run(kc.array(host)).numpy()
    for step in steps:
        host = step(np, host)
    assert relative(found, host) <= BOUND
