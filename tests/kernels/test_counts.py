"""Counts of places and of values in bins against NumPy."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.scatter import counts
from kerascl.kernels.scatter.problem import CountsProblem
from tests import profiles
from tests.kernels.harness import poisoned, run_plan, small_gpu


@pytest.fixture(params=["own", "gpu"])
def info(request, dev):
    """The device's facts, and those of a GPU with little local memory."""
    return dev.info if request.param == "own" else small_gpu(dev.info, 8192)


@pytest.fixture(params=counts.SOLVERS, ids=lambda solver: solver.name)
def solver(request):
    return request.param


def run(problem, values, edges, solver, dev, info):
    if not solver.applies(problem, info):
        assert solver.name == "counts.private" and (info.kind == "gpu" or problem.edges == "any")
        pytest.skip("this solver is for CPUs")
    inputs = {"a": values} if edges is None else {"a": values, "b": edges}
    plan = solver.plan(problem, info, store_epilogue(dtypes.int32))
    return run_plan(plan, inputs, poisoned((problem.size,), dtypes.int32), dev)


def check_places(values, size, dtype, solver, dev, info):
    problem = CountsProblem(size, values.size, dtype)
    inside = values[(values >= 0) & (values < size)].astype(np.int64)
    got = run(problem, values, None, solver, dev, info)
    np.testing.assert_array_equal(got, np.bincount(inside, minlength=size))


def check_bins(values, edges, dtype, solver, dev, info):
    """NumPy's counts of what lies between the edges."""
    values, edges = values.astype(dtype.numpy), edges.astype(dtype.numpy)
    wide = values.astype(np.float64)
    want, _ = np.histogram(wide[wide == wide], edges.astype(np.float64))
    for kind in ["even"] if solver.name == "counts.private" else ["even", "any"]:
        problem = CountsProblem(len(edges) - 1, values.size, dtype, kind)
        np.testing.assert_array_equal(run(problem, values, edges, solver, dev, info), want)


SIZES = [(1, 1), (3, 5), (100, 257), (700, 30000), (1500, 9000), (1000, 100_003)]


@pytest.mark.parametrize("size, count", SIZES, ids=str)
def test_sizes(size, count, solver, dev, info, rng):
    values = rng.integers(-2, size + 2, count).astype(np.int32)
    check_places(values, size, dtypes.int32, solver, dev, info)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [d.name for d in dtypes.ALL if d.is_integer])
def test_places_of_every_dtype(name, solver, dev, info, rng):
    dtype = dtypes.as_dtype(name)
    limits = np.iinfo(dtype.numpy)
    values = rng.integers(limits.min, limits.max, 3000, dtype.numpy, endpoint=True)
    few = rng.integers(0, 60, values.shape).astype(dtype.numpy)
    values = np.where(rng.random(values.shape) < 0.5, values, few)
    values[:4] = limits.min, limits.max, 49, 50
    check_places(values, 50, dtype, solver, dev, info)


@pytest.mark.parametrize("order", ["equal", "rising", "runs"])
def test_alike_neighbours(order, solver, dev, info, rng):
    values = np.sort(rng.integers(0, 300, 40000)).astype(np.int32)
    values = {"equal": values * 0 + 7, "rising": values, "runs": np.roll(values, 999)}[order]
    check_places(values, 300, dtypes.int32, solver, dev, info)


def test_more_places_than_local_memory_holds(dev, info, rng):
    solver, size = counts.GlobalCounts(), info.local_mem_bytes // 4 + 1
    problem = CountsProblem(size, 5000, dtypes.int32)
    assert not counts.LocalCounts().applies(problem, info)
    values = rng.integers(0, size, 5000).astype(np.int32)
    check_places(values, size, dtypes.int32, solver, dev, info)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [d.name for d in dtypes.ALL if d.is_float])
def test_bins(name, solver, dev, info, rng):
    dtype = dtypes.as_dtype(name)
    if dtype.is_double and not info.fp64:
        pytest.skip("no float64")
    values = rng.standard_normal(20001) * 1.5
    values[:6] = np.nan, 2, -2, 2.5, -2.5, 0
    edges = np.unique(np.linspace(-2, 2, 81).astype(dtype.numpy))
    check_bins(values, edges, dtype, solver, dev, info)
    check_bins(edges, edges, dtype, solver, dev, info)


def test_every_edge_and_its_neighbours(solver, dev, info, rng):
    low, width = np.float32(rng.uniform(-3, 3)), np.float32(rng.uniform(0.1, 9))
    for bins in (1, 7, 100, 333):
        edges = low + width * (np.arange(bins + 1, dtype=np.float32) / np.float32(bins))
        values = [np.nextafter(edges, np.float32(to)) for to in (-9e9, 9e9)]
        values = np.concatenate([edges, *values, [-np.inf, np.inf, np.nan]])
        check_bins(values, edges, dtypes.float32, solver, dev, info)


def test_uneven_bins(solver, dev, info, rng):
    edges = np.sort(np.exp(rng.uniform(-9, 9, 60))).astype(np.float32)
    edges[5] = edges[6]  # a bin that holds nothing
    values = np.exp(rng.uniform(-10, 10, 9000)).astype(np.float32)
    values = np.concatenate([values, edges, [np.inf, -np.inf, 0, np.nan]])
    check_bins(values, edges, dtypes.float32, solver, dev, info)


def test_edges_that_are_no_numbers_end(solver, dev, info, rng):
    """Of values with a NaN or an infinity in them the even edges are NaN: nothing is counted."""
    values, edges = rng.random(500, np.float32), np.full(11, np.nan, np.float32)
    problem = CountsProblem(10, 500, dtypes.float32, "even")
    assert not run(problem, values, edges, solver, dev, info).any()


def test_long_indices(solver, dev, info, rng, monkeypatch):
    """What arrays of more than 2**31 elements use."""
    monkeypatch.setattr(counts, "index_type", lambda *sizes: "long")
    values = rng.integers(-2, 500, 50000).astype(np.int32)
    check_places(values, 490, dtypes.int32, solver, dev, info)


def test_which_solver():
    card = profiles.load()["rtx4090"].info
    for size, name in ((100, "local"), (1000, "local"), (10_000_000, "global")):
        problem = CountsProblem(size, 10_000_000, dtypes.int32)
        plan = counts.plan(problem, card, store_epilogue(dtypes.int32))
        assert [x.name for x in plan.launches] == {
            "local": ["count_group", "count_join"],
            "global": ["count_clear", "count_global", "count_store"],
        }[name]
    few = counts.plan(CountsProblem(100, 2000, dtypes.int32), card, store_epilogue(dtypes.int32))
    assert [x.name for x in few.launches] == ["count_group"]
    cpu = dataclasses.replace(card, kind="cpu")
    plan = counts.plan(problem, cpu, store_epilogue(dtypes.int32))
    assert [x.name for x in plan.launches] == ["count_private", "count_store"]
    edges = CountsProblem(100, 2000, dtypes.float32, "any")
    assert counts.preferred(edges, card) and not counts.preferred(edges, cpu)
    assert counts.plan(CountsProblem(0, 5, dtypes.int32), card, None).launches == []
