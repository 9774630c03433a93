"""Linear systems against LAPACK in float64."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from kerascl.compiler import library
from kerascl.core.context import current
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.solve import solvers
from kerascl.kernels.solve.problem import SolveProblem
from kerascl.ops.elimination import SOLVE
from tests.kernels.harness import poisoned, run_plan

BOUND = {"float32": 2e-5, "float64": 1e-13}


def systems(rng, count, n, columns, dtype):
    """Matrices whose largest elements stand beside the diagonal, and right sides."""
    a = rng.uniform(-1, 1, (count, n, n)) + n * np.roll(np.eye(n), 1, 0)
    return a.astype(dtype.numpy), rng.standard_normal((count, n, columns)).astype(dtype.numpy)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 2), (2, 50, 1), (1, 33, 17), (2, 64, 48)])
@pytest.mark.parametrize("dtype", BOUND)
def test_solutions(shape, dtype, dev, rng):
    dtype = dtypes.as_dtype(dtype)
    a, b = systems(rng, *shape, dtype)
    info = dataclasses.replace(dev.info, kind="cpu")
    plan = solvers.plan(SolveProblem(*shape, dtype), info, store_epilogue(dtype))
    got = run_plan(plan, {"a": a, "b": b}, poisoned(b.shape, dtype), dev)
    want = np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
    assert np.abs(got - want).max() <= BOUND[dtype.name] * np.abs(want).max()


def test_singular_matrices(dev):
    a, b = np.zeros((1, 3, 3), np.float32), np.ones((1, 3, 2), np.float32)
    info = dataclasses.replace(dev.info, kind="cpu")
    problem = SolveProblem(1, 3, 2, dtypes.float32)
    plan = solvers.plan(problem, info, store_epilogue(dtypes.float32))
    got = run_plan(plan, {"a": a, "b": b}, poisoned(b.shape, dtypes.float32), dev)
    assert not np.isfinite(got).any()


def test_empty(dev):
    for shape in [(0, 3, 2), (2, 0, 1), (2, 2, 0)]:
        info = dataclasses.replace(dev.info, kind="cpu")
        problem = SolveProblem(*shape, dtypes.float32)
        assert solvers.plan(problem, info, store_epilogue(dtypes.float32)).launches == []


def test_long_indices(dev, rng, monkeypatch):
    monkeypatch.setattr(solvers, "index_type", lambda *sizes: "long")
    test_solutions((2, 20, 9), "float32", dev, rng)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_loops_of_other_devices(captured, rng, monkeypatch):
    """GPUs have no such kernel: there all of the device shares each step."""
    record = dataclasses.replace(library.record(SOLVE), preferred=lambda node, info: False)
    monkeypatch.setitem(library._RECORDS, SOLVE, record)
    current.engine.forget_programs()
    a, b = systems(rng, 2, 12, 3, dtypes.float32)
    function = kc.jit(kc.linalg.solve) if captured else kc.linalg.solve
    got = function(kc.array(a), kc.array(b)).numpy()
    current.engine.forget_programs()
    np.testing.assert_allclose(got, np.linalg.solve(a.astype(float), b.astype(float)), rtol=1e-4)
