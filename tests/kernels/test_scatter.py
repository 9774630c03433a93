"""Scatter against a NumPy loop over the updates."""

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.scatter import solvers as scatter
from kerascl.kernels.scatter.problem import ScatterProblem
from kerascl.kernels.sort import stages
from tests import profiles
from tests.kernels.harness import poisoned, run_plan, small_gpu


@pytest.fixture(params=["own", "gpu"])
def info(request, dev):
    """The device's facts, and those of a GPU with little local memory."""
    return dev.info if request.param == "own" else small_gpu(dev.info, 8192)


UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def reference(problem, base, indices, updates):
    if problem.dtype.is_float:
        base, updates = base.astype(np.float64), updates.astype(np.float64)
    if problem.dtype.is_complex:
        base, updates = base.astype(np.complex128), updates.astype(np.complex128)
    result = base.copy()
    for row, update in zip(indices.tolist(), updates, strict=True):
        if 0 <= row < problem.rows:
            mode = problem.mode
            result[row] = update if mode == "set" else UFUNCS[mode](result[row], update)
    return result


def draw(rng, shape, dtype, mode):
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_complex:
        return np.exp(1j * rng.uniform(0, 6, shape)).astype(dtype.numpy)
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype.numpy)
    x = rng.uniform(0.9, 1.1, shape) if mode == "mul" else rng.standard_normal(shape)
    return x.astype(dtype.numpy)


def run(problem, rng, dev, info, indices=None, special=()):
    rows, width, count = problem.rows, problem.width, problem.count
    if indices is None:
        indices = rng.integers(-3, rows + 3, count)
        if problem.index_dtype.kind == "u":
            indices = np.abs(indices)
    indices = indices.astype(problem.index_dtype.numpy)
    base = draw(rng, (rows, width), problem.dtype, problem.mode)
    base = base if problem.base else np.zeros_like(base)
    updates = draw(rng, (count, width), problem.dtype, problem.mode)
    if len(special):
        updates = np.where(
            rng.random(updates.shape) < 0.1, rng.choice(special, updates.shape), updates
        )
        updates = updates.astype(problem.dtype.numpy)
    plan = scatter.plan(problem, info, store_epilogue(problem.dtype))
    inputs = {"a": indices, "b": updates} | ({"c": base} if problem.base else {})
    got = run_plan(plan, inputs, poisoned(base.shape, problem.dtype), dev)
    return got, reference(problem, base, indices, updates)


RTOL = {
    "float8_e4m3fn": 2**-4,  # half a unit in the last place: sums are float32, rounded once
    "float8_e5m2": 2**-3,
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "float64": 1e-12,
    "complex128": 1e-12,
}


def check(problem, rng, dev, info, indices=None, special=()):
    got, want = run(problem, rng, dev, info, indices, special)
    dtype = problem.dtype
    if problem.mode in ("add", "mul") and (dtype.is_float or dtype.is_complex):
        rtol = RTOL.get(dtype.name, 2e-5)
        scale = np.abs(want).max(initial=0.0)
        wide = np.complex128 if dtype.is_complex else np.float64
        np.testing.assert_allclose(got.astype(wide), want, rtol=rtol, atol=rtol * scale * 0.1)
    else:
        np.testing.assert_array_equal(got, want.astype(dtype.numpy))


SIZES = [
    (1, 1, 1),
    (5, 3, 0),
    (7, 1, 20),
    (10, 16, 40),
    (50, 6, 300),
    (3, 2, 3000),
    (400, 32, 2000),
    (2100, 5, 1000),  # most rows have no update
]


@pytest.mark.every(3)
@pytest.mark.parametrize("mode", ["add", "set", "max", "min", "mul"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size, mode, dev, info, rng):
    check(ScatterProblem(*size, dtypes.int32, dtypes.float32, mode), rng, dev, info)


@pytest.mark.parametrize("mode", ["add", "set", "max"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_that_are_zero_before(size, mode, dev, info, rng):
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.int32):
        check(ScatterProblem(*size, dtypes.int32, dtype, mode, base=False), rng, dev, info)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int32", "int8", "bool"])
@pytest.mark.parametrize("size", [(10, 16, 40), (400, 32, 2000), (3, 4, 3000)], ids=str)
def test_vectors_of_gpus(name, size, dev, rng):
    """Columns that a GPU's work-items read and store together; what follows reads them alike."""
    gpu, dtype = small_gpu(dev.info, 8192), dtypes.BY_NAME[name]
    for mode in ("add", "set", "max"):
        for base in (True, False):
            problem = ScatterProblem(*size, dtypes.int32, dtype, mode, base)
            check(problem, rng, dev, gpu)
            launch = scatter.plan(problem, gpu, store_epilogue(dtype)).launches[-1]
            assert "#define STORES_VECTORS 1" in launch.source
            assert launch.global_size[0] < size[0] * size[1] // 4 + 64


@pytest.mark.parametrize("base", [True, False])
@pytest.mark.parametrize("width", [1, 7, 16, 50])
def test_few_rows_with_updates(width, base, dev, info, rng):
    """Wherever they lie: first, last, side by side, several of one row, all of one, and none."""
    rows, count = 1201, 300
    one = np.full(count, rng.integers(0, rows))
    beside = np.arange(count) // 2 + rng.integers(0, rows - count)
    ends = np.resize([0, rows - 1], count)
    for indices in (one, beside, ends, np.full(count, -1), np.full(count, rows)):
        for mode in ("add", "set"):
            problem = ScatterProblem(rows, width, count, dtypes.int32, dtypes.float32, mode, base)
            check(problem, rng, dev, info, indices=rng.permutation(indices))


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL])
def test_dtypes(dtype, dev, info, rng):
    dtype = dtypes.as_dtype(dtype)
    modes = ["add", "mul", "set"] if dtype.is_complex else ["add", "mul", "set", "max", "min"]
    for number, mode in enumerate(modes):
        size = (6, 16, 7) if number % 2 else (30, 3, 90)
        check(ScatterProblem(*size, dtypes.int32, dtype, mode), rng, dev, info)
    check(ScatterProblem(4, 8, 1200, dtypes.int32, dtype, "add"), rng, dev, info)


@pytest.mark.parametrize("index", ["int8", "uint32", "int64"])
@pytest.mark.parametrize("size", [(1, 2, 300), (7, 1, 300), (70000, 2, 5000)], ids=str)
def test_rows_sorted_by_digits(size, index, dev, rng, monkeypatch):
    """As GPUs sort many updates: one digit of four bits, or some of eight."""
    monkeypatch.setattr(scatter.SortedScatter, "_sorting", lambda *_: (0.0, True))
    index, card = dtypes.as_dtype(index), small_gpu(dev.info, 16384)
    rows = min(size[0], np.iinfo(index.numpy).max - 9)
    problem = ScatterProblem(rows, *size[1:], index, dtypes.float32)
    launches = scatter.plan(problem, card, store_epilogue(dtypes.float32)).launches
    assert "radix_group_move" in [x.name for x in launches]
    check(problem, rng, dev, card)
    check(problem, rng, dev, card, indices=np.full(size[2], rows - 1))


def test_many_updates_are_sorted_by_digits():
    info = profiles.load()["rtx4090"].info
    for count, first in ((2_000_000, "radix_group_count"), (1000, "sort_tile")):
        problem = ScatterProblem(1000, 1, count, dtypes.int32, dtypes.float32)
        launches = scatter.plan(problem, info, store_epilogue(dtypes.float32)).launches
        assert launches[0].name == first


@pytest.mark.parametrize("mode", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_tables_of_work_items(dtype, mode, dev, rng):
    dtype, solver = dtypes.as_dtype(dtype), scatter.PrivateScatter()
    for size in [(1, 1, 1), (7, 3, 20), (300, 1, 40001)]:
        problem = ScatterProblem(*size, dtypes.int32, dtype, mode)
        base, updates = (draw(rng, (n, size[1]), dtype, mode) for n in (size[0], size[2]))
        indices = rng.integers(-1, size[0] + 1, size[2]).astype(np.int32)
        plan = solver.plan(problem, dev.info, store_epilogue(dtype))
        inputs = {"a": indices, "b": updates, "c": base}
        got = run_plan(plan, inputs, poisoned(base.shape, dtype), dev)
        want = reference(problem, base, indices, updates)
        np.testing.assert_array_equal(got, want.astype(dtype.numpy))


@pytest.mark.parametrize("index", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_index_dtypes(index, dev, info, rng):
    index = dtypes.as_dtype(index)
    for size in [(20, 4, 6), (20, 4, 200)]:
        check(ScatterProblem(*size, index, dtypes.float32), rng, dev, info)
    edges = np.array([0, np.iinfo(index.numpy).max, np.iinfo(index.numpy).min, 19, 20], index.numpy)
    for count in (5, 500):
        problem = ScatterProblem(20, 4, count, index, dtypes.float32)
        check(problem, rng, dev, info, indices=np.resize(edges, count))


@pytest.mark.parametrize("mode", ["max", "min", "add", "set"])
def test_nan_and_inf(mode, dev, info, rng):
    special = [np.nan, np.inf] if mode == "add" else [np.nan, np.inf, -np.inf]
    for size in [(9, 16, 8), (40, 3, 300), (2, 4, 3000)]:
        with np.errstate(invalid="ignore"):
            problem = ScatterProblem(*size, dtypes.int32, dtypes.float32, mode)
            got, want = run(problem, rng, dev, info, None, special)
        if mode == "add":
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
        else:
            np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("mode", ["add", "set", "max"])
@pytest.mark.parametrize("count", [8000, 20000])
def test_one_hot_row(mode, count, dev, info, rng):
    indices = np.where(rng.random(count) < 0.9, 3, rng.integers(-1, 11, count))
    problem = ScatterProblem(10, 5, count, dtypes.int32, dtypes.float32, mode)
    check(problem, rng, dev, info, indices=indices)


def test_order_of_a_row_is_the_order_of_its_updates(dev, info, rng):
    """Bits equal those of a float32 loop: rows here have too few updates for partial sums."""
    problem = ScatterProblem(300, 4, 900, dtypes.int32, dtypes.float32)
    base = rng.standard_normal((300, 4)).astype(np.float32)
    updates = rng.standard_normal((900, 4)).astype(np.float32)
    indices = rng.integers(0, 300, 900).astype(np.int32)
    want = base.copy()
    for row, update in zip(indices, updates, strict=True):
        want[row] += update
    plan = scatter.plan(problem, info, store_epilogue(dtypes.float32))
    inputs = {"a": indices, "b": updates, "c": base}
    got = run_plan(plan, inputs, poisoned(base.shape, dtypes.float32), dev)
    np.testing.assert_array_equal(got, want)


def test_same_bits_every_time(dev, info, rng):
    problem = ScatterProblem(20, 8, 5000, dtypes.int32, dtypes.float32)
    inputs = {
        "a": rng.integers(0, 20, 5000).astype(np.int32),
        "b": rng.standard_normal((5000, 8)).astype(np.float32),
        "c": np.zeros((20, 8), np.float32),
    }
    plan = scatter.plan(problem, info, store_epilogue(dtypes.float32))
    out = poisoned((20, 8), dtypes.float32)
    np.testing.assert_array_equal(*(run_plan(plan, inputs, out, dev) for _ in range(2)))


def test_empty(info):
    for rows, width in [(0, 4), (4, 0)]:
        problem = ScatterProblem(rows, width, 3, dtypes.int32, dtypes.float32)
        assert scatter.plan(problem, info, store_epilogue(dtypes.float32)).launches == []


def test_long_indices(dev, info, rng, monkeypatch):
    """What arrays of more than 2**31 elements use."""
    monkeypatch.setattr(scatter, "_index", lambda problem: "long")
    monkeypatch.setattr(stages, "index_for", lambda *sizes: "long")
    for size in [(7, 3, 6), (20, 4, 2000)]:
        check(ScatterProblem(*size, dtypes.int32, dtypes.float32), rng, dev, info)
