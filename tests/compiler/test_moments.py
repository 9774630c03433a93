"""Statistics that a product's kernel computes, with a plain kernel that knows its columns' moments
on whatever device there is (what the fast ones do is tests/kernels/test_wgmma_moments.py's)."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.source import prelude
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.ops.nn import moments

KERNEL = """
__kernel void columns(__global const float* a, __global const float* b EPILOGUE_PARAMS) {
  const int c = get_global_id(0);
  float total = 0, about = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (int r = 0; r < M; ++r) {
      float sum = 0;
      for (int k = 0; k < K; ++k) sum += a[r * K + k] * b[k * N + c];
      if (pass) about += (sum - total) * (sum - total);
      else {
        total += sum / M;
        EPILOGUE(sum, r * N + c)
      }
    }
  MOMENTS(c, total, about)
}
"""


@pytest.fixture
def plans(dev, monkeypatch):
    """The epilogues with moments that products were planned with, of up to 64 columns."""
    seen = []
    plain = matmul.plan

    def plan(problem, info, epilogue):
        p = normalise_matmul(problem)
        if not epilogue.moments:
            return plain(problem, info, epilogue)
        assert p.batches == 1 and p.a_strides[-2:] == (p.k, 1) and p.b_strides[-2:] == (p.n, 1)
        seen.append(epilogue)
        sizes = f"#define M {p.m}\n#define N {p.n}\n#define K {p.k}\n"
        text = prelude("int", ACC=p.acc) + sizes + epilogue.defines + KERNEL
        args = (Ref("a"), Ref("b"), *epilogue.args)
        return Plan([Launch(text, "columns", args, (p.n,), (1,))])

    monkeypatch.setattr(matmul, "plan", plan)
    monkeypatch.setattr(matmul, "takes_moments", lambda p, info: normalise_matmul(p).n <= 64)
    monkeypatch.setattr(kc.engine, "programs", {})
    return seen


def normalised(y, axes):
    mean, variance = moments(y, axes)
    return (y - mean) * kc.rsqrt(variance + 0.25), mean, variance


def reference(y, axes):
    mean, variance = y.mean(axes), y.var(axes)
    return (y - mean) / np.sqrt(variance + 0.25), mean, variance


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm(one.numpy() - other) / np.linalg.norm(other)
        assert error < 1e-6, error


@pytest.mark.parametrize("shape", [(37, 24), (3, 5, 24), (5, 24)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_statistics_of_products(plans, rng, shape, bias):
    x, w = rng.normal(2, 1, shape), rng.normal(size=(24, 40))
    b = rng.normal(3, 1, 40) if bias else np.zeros(40)
    axes = tuple(range(len(shape) - 1))

    @kc.jit
    def function(x, w, b):
        y = kc.matmul(x, w)
        return normalised(y + b if bias else y, axes)

    found = function(*(kc.array(v.astype(np.float32)) for v in (x, w, b)))
    close(found, reference(x @ w + b, axes))
    (epilogue,) = plans
    assert epilogue.moments.count("buf") == 2 + bias  # mean, variance and the bias


def test_statistics_of_convolutions(plans, rng):
    x, w = rng.normal(size=(2, 5, 7, 16)), rng.normal(size=(1, 1, 16, 8))
    function = kc.jit(lambda x, w: normalised(kc.conv(x, w), (0, 1, 2)))
    found = function(*(kc.array(v.astype(np.float32)) for v in (x, w)))
    close(found, reference(x @ w[0, 0], (0, 1, 2)))
    assert len(plans) == 1


def test_states_follow(plans, rng):
    """Moving averages are the same launch's, and in place."""
    x, w = rng.normal(2, 1, (50, 8)), rng.normal(size=(8, 16))
    average = kc.State(kc.zeros(16))

    @kc.jit
    def function(x, w):
        y = kc.matmul(x, w)
        mean, variance = moments(y, (0,))
        average.assign(0.75 * average.value + 0.25 * (mean + variance))
        return y - mean

    expected = np.zeros(16)
    for _ in range(3):
        arrays = [kc.array(v.astype(np.float32)) for v in (x, w)]
        found = function(*arrays)
        expected = 0.75 * expected + 0.25 * ((x @ w).mean(0) + (x @ w).var(0))
        close([found, average.value], [x @ w - (x @ w).mean(0), expected])
    assert len(plans) == 1
    captured = function.captured(*arrays)
    assert len(captured.replay) == 2 and captured.copies == 0


def test_refused(plans, rng):
    """A kernel that does not take them leaves a reduction of its own."""
    x, w = rng.normal(size=(37, 24)), rng.normal(size=(24, 65))
    function = kc.jit(lambda x, w: normalised(kc.matmul(x, w), (0,)))
    found = function(*(kc.array(v.astype(np.float32)) for v in (x, w)))
    close(found, reference(x @ w, (0,)))
    assert not plans


OTHERS = {
    "no shift": lambda np, y, x: np.var(np.maximum(y, 0.0), 0),
    "scaled": lambda np, y, x: np.var(y * 2.0, 0),
    "no vector": lambda np, y, x: np.var(y + x, 0),
    "no variance": lambda np, y, x: np.sum(y, 0),
    "rows": lambda np, y, x: np.var(y, 1),
    "all": lambda np, y, x: np.var(y),
    "no moment": lambda np, y, x: np.max(y, 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_reductions(plans, rng, name):
    """What does not follow from a column's moments is left alone."""
    x, w = (rng.normal(size=(24, 24)).astype(np.float32) for _ in range(2))
    function = kc.jit(lambda x, w: OTHERS[name](kc, kc.matmul(x, w), x))
    found = function(kc.array(x), kc.array(w)).numpy()
    expected = OTHERS[name](np, x.astype(np.float64) @ w, x)
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    assert not plans
