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
from kerascl.kernels.tuning import database
from kerascl.ops.elimination import SOLVE
from tests.kernels.harness import poisoned, run_plan, small_gpu

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
        for name in GROUPS:
            solver, info = of_groups(name, dev)
            if problem.n:
                assert solver.applies(problem, info)
            assert solver.plan(problem, info, store_epilogue(dtypes.float32)).launches == []


# -- by work-groups -------------------------------------------------------------------------------
GROUPS = ("solve.local", "solve.blocked")


def of_groups(name, dev):
    """The solver of this name, and a GPU's facts."""
    (solver,) = (s for s in solvers.SOLVERS if s.name == name)
    return solver, dataclasses.replace(
        dev.info, kind="gpu", compute_units=8, local_mem_bytes=48 * 1024
    )


def by_groups(name, a, b, dev):
    """What a solver finds, or None where it does not apply."""
    solver, info = of_groups(name, dev)
    dtype = dtypes.as_dtype(a.dtype)
    problem = SolveProblem(*b.shape, dtype)
    if not solver.applies(problem, info):
        return None
    plan = solver.plan(problem, info, store_epilogue(dtype))
    return run_plan(plan, {"a": a, "b": b}, poisoned(b.shape, dtype), dev)


def residual(a, x, b):
    """The largest relative residual of a matrix, in float64."""
    a, x, b = (y.astype(np.float64) for y in (a, x, b))
    sizes = np.linalg.norm(a, axis=(1, 2)) * np.linalg.norm(x, axis=(1, 2))
    return (np.linalg.norm(a @ x - b, axis=(1, 2)) / sizes).max()


@pytest.mark.every(3)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 105, 106, 200, 317])
@pytest.mark.parametrize("name", GROUPS)
def test_by_groups(name, n, dev, rng):
    """Rows are exchanged in any order (normal elements), and in all columns (`systems`)."""
    applied = 0
    for count, columns in ((1, 1), (2, 5), (1, n)):
        for a in (rng.standard_normal((count, n, n)), systems(rng, count, n, 1, dtypes.float64)[0]):
            a = a.astype(np.float32)
            b = rng.standard_normal((count, n, columns)).astype(np.float32)
            got = by_groups(name, a, b, dev)
            if got is not None:
                applied += 1
                assert residual(a, got, b) <= 2e-6
    assert applied == (6 if name == "solve.blocked" or n <= 105 else 0 if n > 106 else applied)


@pytest.mark.parametrize("name", GROUPS)
def test_float64_by_groups(name, dev, rng):
    for n in (1, 17, 70):
        a, b = rng.standard_normal((2, n, n)), rng.standard_normal((2, n, 9))
        assert residual(a, by_groups(name, a, b, dev), b) <= 1e-14


@pytest.mark.parametrize("name", GROUPS)
def test_permutations_by_groups(name, dev, rng):
    """Matrices without a diagonal, of elements of one size: the result is exact."""
    for n in (2, 16, 41, 90):
        order = np.stack([rng.permutation(n) for _ in range(3)])
        a = np.eye(n, dtype=np.float32)[order]
        b = rng.standard_normal((3, n, 4)).astype(np.float32)
        np.testing.assert_array_equal(by_groups(name, a, b, dev), np.linalg.solve(a, b))


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("name", GROUPS)
def test_broken_matrices_by_groups(name, n, dev, rng):
    """Zeros, NaN and infinity end, in infinities or NaN, and stay in their matrix."""
    a = rng.standard_normal((4, n, n)).astype(np.float32)
    b = rng.standard_normal((4, n, 2)).astype(np.float32)
    a[0], a[1, n // 2, 1], a[2, :, 0] = 0, np.nan, np.inf
    got = by_groups(name, a, b, dev)
    assert not np.isfinite(got[0]).any()
    assert not np.isfinite(got[1:3]).all((1, 2)).any()
    assert residual(a[3:], got[3:], b[3:]) <= 2e-6


def test_small_work_groups(dev, rng):
    info = small_gpu(dev.info, 32 * 1024)
    a, b = rng.standard_normal((2, 45, 45)), rng.standard_normal((2, 45, 20))
    a, b = a.astype(np.float32), b.astype(np.float32)
    problem = SolveProblem(2, 45, 20, dtypes.float32)
    for name in GROUPS:
        solver, _ = of_groups(name, dev)
        assert solver.applies(problem, info)
        plan = solver.plan(problem, info, store_epilogue(dtypes.float32))
        assert all(launch.local_size <= (64,) for launch in plan.launches)
        got = run_plan(plan, {"a": a, "b": b}, poisoned(b.shape, dtypes.float32), dev)
        assert residual(a, got, b) <= 2e-6


def test_choice(dev):
    """A work-item a matrix on CPUs only; on GPUs one launch where the matrix is small."""
    _, gpu = of_groups("solve.local", dev)
    cpu = dataclasses.replace(gpu, kind="cpu")
    for n, wanted in ((8, "solve.local"), (32, "solve.local"), (317, "solve.blocked")):
        problem = SolveProblem(1, n, n, dtypes.float32)
        assert database.choose("solve", solvers.SOLVERS, (), problem, gpu).name == wanted
        assert database.choose("solve", solvers.SOLVERS, (), problem, cpu).name == "solve.serial"


@pytest.mark.parametrize("name", GROUPS)
def test_forced_in_a_program(name, monkeypatch, rng):
    monkeypatch.setenv("KERASCL_SOLVERS", name)
    current.engine.forget_programs()
    a = rng.standard_normal((2, 20, 20)).astype(np.float32)
    b = rng.standard_normal((2, 20, 3)).astype(np.float32)
    got = kc.jit(lambda a, b: kc.linalg.solve(a, b) * 2)(kc.array(a), kc.array(b)).numpy()
    current.engine.forget_programs()
    assert residual(a, got / 2, b) <= 2e-6


def test_long_indices(dev, rng, monkeypatch):
    monkeypatch.setattr(solvers, "index_type", lambda *sizes: "long")
    test_solutions((2, 20, 9), "float32", dev, rng)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_loops_of_other_devices(captured, rng, monkeypatch):
    """Complex numbers have no such kernel: all of the device shares each step."""
    record = dataclasses.replace(library.record(SOLVE), preferred=lambda node, info: False)
    monkeypatch.setitem(library._RECORDS, SOLVE, record)
    current.engine.forget_programs()
    a, b = systems(rng, 2, 12, 3, dtypes.float32)
    function = kc.jit(kc.linalg.solve) if captured else kc.linalg.solve
    got = function(kc.array(a), kc.array(b)).numpy()
    current.engine.forget_programs()
    want = np.linalg.solve(a.astype(float), b.astype(float))
    assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want)
