"""Sorting, argsort and top-k against NumPy's stable sort."""

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.sort import solvers as sort
from kerascl.kernels.sort import stages
from kerascl.kernels.sort.problem import SortProblem
from tests import profiles
from tests.kernels.harness import poisoned, run_plan, small_gpu

BOTH = ("values", "indices")


@pytest.fixture(params=["own", "gpu"])
def info(request, dev):
    """The device's facts, and those of a GPU with little local memory."""
    return dev.info if request.param == "own" else small_gpu(dev.info, 8192)


def reference(x, descending):
    """Stable order of each row, from ranks: NaN is largest, -0 equals 0."""
    wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    ranks = np.unique(wide, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    if descending:
        ranks = -ranks
    return np.argsort(ranks, axis=-1, kind="stable")


def check(x, dtype, descending, k, dev, info, outputs=BOTH, solver=sort):
    problem = SortProblem(*x.shape, dtype, descending, outputs, k)
    order = reference(x, descending)[:, :k]
    plan = solver.plan(problem, info, store_epilogue(dtype))
    values, indices = poisoned(order.shape, dtype), poisoned(order.shape, dtypes.int32)
    if "indices" in outputs:
        got = run_plan(plan, {"a": x, "out": values}, indices, dev, "indices")
        np.testing.assert_array_equal(got, order)
    if "values" in outputs:
        got = run_plan(plan, {"a": x, "indices": indices}, values, dev)
        raw = f"u{dtype.itemsize}"
        want = np.take_along_axis(x, order, -1)
        nan = np.isnan(want.astype(float)) if dtype.is_float else np.zeros(want.shape, bool)
        np.testing.assert_array_equal(got.view(raw)[~nan], want.view(raw)[~nan])
        if dtype.is_float:
            assert np.isnan(got[nan].astype(float)).all()


def draw(rng, shape, dtype, kind="mixed"):
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        x = rng.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)
        few = rng.integers(0, 5, shape).astype(dtype.numpy)
        x = np.where(rng.random(shape) < 0.5, x, few)
        x.ravel()[: min(2, x.size)] = [limits.min, limits.max][: x.size]
        return x
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, 1e-40], shape)
    return np.where(rng.random(shape) < 0.4, special, x).astype(dtype.numpy)


SHAPES = [(1, 1), (5, 2), (3, 17), (1, 64), (70, 9), (2, 1000), (1, 20000), (3, 5000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
def test_shapes(shape, descending, dev, info, rng):
    check(draw(rng, shape, dtypes.float32), dtypes.float32, descending, None, dev, info)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL if not d.is_complex])
def test_dtypes(dtype, dev, info, rng):
    dtype = dtypes.as_dtype(dtype)
    check(draw(rng, (3, 100), dtype), dtype, False, None, dev, info)
    check(draw(rng, (1, 3000), dtype), dtype, True, None, dev, info)


@pytest.mark.parametrize("k", [1, 5, 33, 400, 2999, 3000, 5000])
def test_top_k(k, dev, info, rng):
    x = rng.integers(0, 50, (3, 3000)).astype(np.float32)
    x[0, 7] = np.nan
    check(x, dtypes.float32, True, k, dev, info)
    check(np.nan_to_num(x).astype(np.int64), dtypes.int64, True, k, dev, info)


def test_top_k_of_long_rows(dev, info, rng):
    check(draw(rng, (1, 60000), dtypes.float32), dtypes.float32, True, 3, dev, info)
    check(draw(rng, (200, 100), dtypes.float32), dtypes.float32, True, 5, dev, info)


@pytest.mark.parametrize("outputs", [("values",), ("indices",)])
def test_single_output(outputs, dev, info, rng):
    for shape in [(4, 60), (1, 5000)]:
        check(draw(rng, shape, dtypes.int32), dtypes.int32, False, None, dev, info, outputs)


@pytest.mark.every(2)
@pytest.mark.parametrize("outputs", [BOTH, ("values",), ("indices",)], ids=len)
@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL if not d.is_complex])
def test_radix(dtype, outputs, dev, rng):
    dtype, solver = dtypes.as_dtype(dtype), sort.RadixSort()
    for shape, k in [((5, 2), None), ((9, 100), None), ((1, 70001), 50000)]:
        x = draw(rng, shape, dtype)
        check(x, dtype, shape[0] == 9, k, dev, dev.info, outputs, solver)
    same = np.ones((1, 40000), dtype.numpy)
    check(same, dtype, False, None, dev, dev.info, outputs, solver)


@pytest.mark.every(5)
@pytest.mark.parametrize("local", [8192, 65536])
@pytest.mark.parametrize("outputs", [BOTH, ("values",), ("indices",)], ids=len)
@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL if not d.is_complex])
def test_radix_of_groups(dtype, outputs, local, dev, rng):
    dtype, solver, card = dtypes.as_dtype(dtype), sort.GroupRadixSort(), small_gpu(dev.info, local)
    for shape, k in [((5, 2), None), ((3, 700), None), ((2, 20001), 15000)]:
        x = draw(rng, shape, dtype)
        check(x, dtype, shape[0] == 3, k, dev, card, outputs, solver)
    same = np.ones((1, 9000), dtype.numpy)
    check(same, dtype, False, None, dev, card, outputs, solver)


def test_long_rows_take_few_passes():
    """A merge sort of 4M float32 reads and writes all of them eleven times, as items of 8 bytes."""
    info = profiles.load()["rtx4090"].info
    problem = SortProblem(1, 4_000_000, dtypes.float32)
    launches = sort.plan(problem, info, store_epilogue(dtypes.float32)).launches
    assert [x.name for x in launches] == [
        "radix_group_count", "radix_group_scan", "radix_group_move",
    ] * 4  # fmt: skip
    problem = SortProblem(4000, 1000, dtypes.float32)
    launches = sort.plan(problem, info, store_epilogue(dtypes.float32)).launches
    assert [x.name for x in launches] == ["sort_tile"]


@pytest.mark.parametrize("order", ["ascending", "descending", "equal"])
def test_presorted(order, dev, info):
    x = np.arange(9000, dtype=np.float32)[None]
    x = {"ascending": x, "descending": x[:, ::-1].copy(), "equal": x * 0}[order]
    for k in (None, 4):
        check(x, dtypes.float32, False, k, dev, info)


def test_random_sizes(dev, info, rng):
    for _ in range(4):
        shape = int(rng.integers(1, 12)), int(rng.integers(1, 3000))
        k = int(rng.integers(1, shape[1] + 1)) if rng.integers(2) else None
        print(shape, k)
        x = rng.integers(-20, 20, shape).astype(np.int16)
        check(x, dtypes.int16, bool(rng.integers(2)), k, dev, info)


def test_empty(info):
    for rows, length, k in [(0, 4, None), (3, 0, None), (3, 4, 0)]:
        problem = SortProblem(rows, length, dtypes.float32, False, BOTH, k)
        assert sort.plan(problem, info, store_epilogue(dtypes.float32)).launches == []


def test_long_indices(dev, info, rng, monkeypatch):
    """What arrays of more than 2**31 elements use."""
    monkeypatch.setattr(stages, "index_for", lambda *sizes: "long")
    for k in (None, 3):
        check(draw(rng, (2, 5000), dtypes.float32), dtypes.float32, True, k, dev, info)
