"""Cumulative operations and binary search against NumPy."""

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.scan import solvers as scan
from kerascl.kernels.scan.problem import PlacesProblem, ScanProblem, SearchProblem
from tests.kernels.harness import assert_close, poisoned, random_array, run_plan, small_gpu


@pytest.fixture(params=["own", "gpu"])
def info(request, dev):
    """The device's facts, and those of a GPU with small groups and little local memory."""
    return dev.info if request.param == "own" else small_gpu(dev.info, 32768)


UFUNCS = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "logsumexp": np.logaddexp,
}  # fmt: skip


def identity(kind, dtype):
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype.is_bool:
        return int(kind == "min")
    if dtype.is_float:
        return np.inf if kind == "min" else -np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.max if kind == "min" else limits.min


def reference(problem, x):
    wide = x.astype(np.float64) if problem.dtype.is_float else x.astype(problem.acc.numpy)
    if problem.dtype.is_bool:
        wide = x.astype(np.int32)
    if problem.reverse:
        wide = wide[:, ::-1]
    with np.errstate(invalid="ignore"):
        result = UFUNCS[problem.kind].accumulate(wide, axis=1, dtype=wide.dtype)
    if problem.exclusive:
        first = np.full_like(result[:, :1], identity(problem.kind, problem.acc))
        result = np.concatenate([first, result[:, :-1]], axis=1)
    return result[:, ::-1] if problem.reverse else result


def check(problem, x, dev, info):
    out = problem.acc
    want = reference(problem, x)
    plan = scan.plan(problem, info, store_epilogue(out))
    got = run_plan(plan, {"a": x}, poisoned(x.shape, out), dev)
    if problem.kind == "sum" and out.is_float and np.isfinite(want).all():
        # near a zero of the running sum only the norm says something
        assert_close(got, want, problem.acc, problem.length)
    elif out.is_float:
        rtol = {"float32": 2e-5, "float64": 1e-11}[out.name]
        if problem.kind in ("max", "min"):
            rtol = 0
        scale = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale * 0.1)
    else:
        np.testing.assert_array_equal(got, want.astype(out.numpy))


KINDS = list(UFUNCS)
SHAPES = [(1, 1, 1), (3, 7, 1), (2, 33, 5), (1, 20000, 1), (2, 9000, 3), (5, 130, 40), (40, 600, 1)]


def values(rng, shape, dtype, kind):
    if kind == "prod" and dtype.is_float:
        return rng.uniform(0.9, 1.1, shape).astype(dtype.numpy)
    return random_array(rng, shape, dtype)


@pytest.mark.every(3)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind, shape, dev, info, rng):
    for reverse, exclusive in [(False, False), (True, True)]:
        problem = ScanProblem(*shape, kind, dtypes.float32, dtypes.float32, reverse, exclusive)
        check(problem, values(rng, shape, dtypes.float32, kind), dev, info)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL if not d.is_complex])
def test_dtypes(dtype, dev, info, rng):
    dtype = dtypes.as_dtype(dtype)
    acc = dtypes.int32 if dtype.is_bool else dtype.accumulator
    shape = (2, 300, 1)
    for kind in KINDS[: 5 if dtype.is_float else 4]:
        exclusive = kind in ("max", "min")
        x = values(rng, shape, dtype, kind)
        check(ScanProblem(*shape, kind, dtype, acc, not exclusive, exclusive), x, dev, info)


@pytest.mark.parametrize("kind", ["sum", "prod"])
def test_complex(kind, dev, info, rng):
    shape = (2, 200, 1)
    angle = rng.uniform(0, 6, shape)
    x = (np.cos(angle) + 1j * np.sin(angle)).astype(np.complex64)
    problem = ScanProblem(*shape, kind, dtypes.complex64, dtypes.complex64)
    plan = scan.plan(problem, info, store_epilogue(dtypes.complex64))
    got = run_plan(plan, {"a": x}, poisoned(shape, dtypes.complex64), dev)
    want = UFUNCS[kind].accumulate(x.astype(np.complex128), axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_inf(kind, dev, info, rng):
    shape = (6, 300, 1)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "prod":
        x = np.sign(x)
    x[0, 100] = np.nan
    x[1, 50] = np.inf
    x[2, 70] = -np.inf
    x[3, :] = -np.inf if kind != "prod" else 0
    x[4, 250], x[4, 20] = np.nan, np.inf
    check(ScanProblem(*shape, kind, dtypes.float32, dtypes.float32), x, dev, info)


def test_same_bits_every_time(dev, info, rng):
    problem = ScanProblem(1, 50000, 1, "sum", dtypes.float32, dtypes.float32)
    x = rng.standard_normal((1, 50000, 1)).astype(np.float32)
    plan = scan.plan(problem, info, store_epilogue(dtypes.float32))
    runs = [run_plan(plan, {"a": x}, poisoned(x.shape, dtypes.float32), dev) for _ in range(2)]
    np.testing.assert_array_equal(*runs)


def test_empty(info):
    for shape in [(0, 3, 2), (2, 0, 1), (2, 2, 0)]:
        problem = ScanProblem(*shape, "sum", dtypes.float32, dtypes.float32)
        assert scan.plan(problem, info, store_epilogue(dtypes.float32)).launches == []
    problem = SearchProblem(5, 0, dtypes.float32)
    assert scan.plan(problem, info, store_epilogue(dtypes.int32)).launches == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint64"])
def test_search(dtype, side, dev, info, rng):
    dtype = dtypes.as_dtype(dtype)
    for rows, length, count in [(1, 100, 57), (3, 40, 9), (2, 0, 3), (1, 1, 5)]:
        sorted_rows = np.sort(random_array(rng, (rows, length), dtype).astype(dtype.numpy))
        wanted = random_array(rng, (rows, count), dtype)
        if length:
            wanted[:, ::2] = rng.choice(sorted_rows.ravel(), wanted[:, ::2].shape)
        if dtype.is_float and length > 5:
            sorted_rows[:, -3:] = np.nan
            sorted_rows[:, 0] = -np.inf
            wanted[:, 1], wanted[:, 2] = np.nan, np.inf
        problem = SearchProblem(length, count, dtype, side, rows)
        plan = scan.plan(problem, info, store_epilogue(dtypes.int32))
        got = run_plan(
            plan, {"a": sorted_rows, "b": wanted}, poisoned((rows, count), dtypes.int32), dev
        )
        wide = np.float64 if dtype.is_float else dtype.numpy
        want = [
            np.searchsorted(r.astype(wide), w.astype(wide), side)
            for r, w in zip(sorted_rows, wanted, strict=True)
        ]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_places(dtype, dev, info, rng):
    dtype = dtypes.as_dtype(dtype)
    sizes = [(1, 100, 57), (3, 40, 9), (1, 20000, 8000), (2, 7, 70), (1, 1, 5)]
    sizes += [(1, 20000, 19999), (2, 9000, 8900), (3, 50, 200)]  # more than any count
    for rows, length, size in sizes:
        steps = rng.integers(0, 2 if length > 40 else 4, (rows, length))
        counts = np.minimum(steps.cumsum(1), np.iinfo(dtype.numpy).max).astype(dtype.numpy)
        problem = PlacesProblem(length, size, dtype, rows)
        plan = scan.plan(problem, info, store_epilogue(dtypes.int32))
        got = run_plan(plan, {"a": counts}, poisoned((rows, size), dtypes.int32), dev)
        want = [np.searchsorted(row, np.arange(size), "right") for row in counts]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_places_of_blocks(dev, info, rng, most):
    """Counts that grow by 1 at random, with jumps between, ends within blocks and sizes below."""
    for rows, length, less in [(1, 9000, 0), (1, 9000, 77), (4, 321, 0), (3, 64, 5), (2, 5000, 0)]:
        steps = rng.integers(0, 2, (rows, length))
        steps[rng.random((rows, length)) < 0.003] = most
        counts = steps.cumsum(1).astype(np.int32)
        size = int(counts[:, -1].min()) - less
        problem = PlacesProblem(length, size, dtypes.int32, rows)
        plan = scan.plan(problem, info, store_epilogue(dtypes.int32))
        got = run_plan(plan, {"a": counts}, poisoned((rows, size), dtypes.int32), dev)
        want = [np.searchsorted(row, np.arange(size), "right") for row in counts]
        np.testing.assert_array_equal(got, want)


def test_long_indices(dev, info, rng, monkeypatch):
    """What arrays of more than 2**31 elements use."""
    monkeypatch.setattr(scan, "index_type", lambda *sizes: "long")
    for shape in [(1, 20000, 1), (2, 33, 5)]:
        problem = ScanProblem(*shape, "sum", dtypes.float32, dtypes.float32)
        check(problem, values(rng, shape, dtypes.float32, "sum"), dev, info)
