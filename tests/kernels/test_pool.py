"""Pooling against NumPy loops over windows."""

import dataclasses
import itertools

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.pool import solvers as pool
from kerascl.kernels.pool.problem import PoolProblem
from tests.kernels.harness import devices, poisoned, run_plan

DEVICES = list(devices().values())


def windows(problem):
    """(output position, input positions in row-major window order) for every window."""
    spatial, pooled = problem.x_shape[1:-1], problem.y_shape[1:-1]
    for o in itertools.product(*(range(s) for s in pooled)):
        ranges = []
        for axis, position in enumerate(o):
            start = position * problem.strides[axis] - problem.pads[axis][0]
            stop = start + problem.window[axis]
            ranges.append(range(max(start, 0), min(stop, spatial[axis])))
        yield o, list(itertools.product(*ranges))


def first_best(values):
    """Index of the first maximum along axis 1 of (N, window, C); NaN is larger than anything."""
    nan = np.isnan(values)
    return np.where(nan.any(axis=1), nan.argmax(axis=1), values.argmax(axis=1))


def reference(problem, a, b=None, c=None):
    """float64 (N, *spatial, C) result from logical (N, *spatial, C) inputs."""
    result = np.zeros(problem.result_shape)
    n, ch = problem.x_shape[0], problem.x_shape[-1]
    rows, cols = np.arange(n)[:, None], np.arange(ch)[None]
    for o, inside in windows(problem):
        at = (slice(None), *o)
        elements = [(slice(None), *p) for p in inside]
        count = np.prod(problem.window) if problem.count_include_pad else len(inside)
        if problem.kind == "average":
            result[at] = sum((a[e] for e in elements), np.zeros((n, ch))) / max(count, 1)
        elif problem.kind == "average_grad":
            for e in elements:
                result[e] += a[at] / count
        elif not inside:
            result[at if problem.kind == "max" else ()] += -np.inf if problem.kind == "max" else 0
        else:
            stack = np.stack([a[e] for e in elements], axis=1)
            best = first_best(stack)
            if problem.kind == "max":
                result[at] = stack[rows, best, cols]
            elif problem.kind == "max_grad":
                for q, e in enumerate(elements):
                    result[e] += np.where(best == q, c[at], 0)
            else:
                result[at] = np.stack([c[e] for e in elements], axis=1)[rows, best, cols]
    return result


def out_size(size, window, stride, pad):
    return (size + sum(pad) - window) // stride + 1


def make(kind, n, spatial, channels, window, strides, pads, first, dtype, include=False):
    pooled = tuple(map(out_size, spatial, window, strides, pads))
    return PoolProblem(
        kind, (n, *spatial, channels), (n, *pooled, channels), window, strides, pads, first,
        dtypes.as_dtype(dtype), include,
    )  # fmt: skip


def draw(rng, shape, dtype, ties=True):
    """Values that every dtype holds; few different ones, so that maxima tie."""
    if dtype.is_float:
        values = rng.integers(-4, 5, shape) / 2 if ties else rng.standard_normal(shape)
    else:
        values = rng.integers(0 if dtype.kind in "ub" else -4, 2 if dtype.is_bool else 5, shape)
    return values.astype(dtype.numpy)


def check(problem, rng, dev, info=None, x=None, ties=True):
    dtype = problem.dtype
    logical = {}
    if problem.kind == "average_grad":
        logical["a"] = draw(rng, problem.y_shape, dtype, ties)
    else:
        logical["a"] = draw(rng, problem.x_shape, dtype, ties) if x is None else x
    if problem.kind in ("max_grad", "max_select"):
        top = dataclasses.replace(problem, kind="max")
        logical["b"] = reference(top, logical["a"].astype(float)).astype(dtype.numpy)
        shape = problem.y_shape if problem.kind == "max_grad" else problem.x_shape
        logical["c"] = draw(rng, shape, dtype)
    memory = {
        k: np.ascontiguousarray(np.moveaxis(v, -1, 1) if problem.channels_first else v)
        for k, v in logical.items()
    }
    want = reference(problem, **{k: v.astype(float) for k, v in logical.items()})
    if problem.channels_first:
        want = np.moveaxis(want, -1, 1)
    for solver in pool.SOLVERS:
        if solver.applies(problem, info or dev.info):
            plan = solver.plan(problem, info or dev.info, store_epilogue(dtype))
            compare(run_plan(plan, memory, poisoned(want.shape, dtype), dev), want, problem)


def compare(got, want, problem):
    dtype = problem.dtype
    if dtype.is_bool:
        got = got.view(np.uint8)
    exact = problem.kind.startswith("max") or not dtype.is_float
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}
    if exact and not dtype.is_float:
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, want.astype(dtype.numpy))
    elif exact:
        np.testing.assert_array_equal(got.astype(float), want)
    else:
        rtol = tolerance[dtype.name]
        np.testing.assert_allclose(got.astype(float), want, rtol=rtol, atol=rtol)


KINDS = ["max", "max_grad", "max_select", "average", "average_grad"]
SHAPES = [
    # n, spatial, channels, window, strides, pads
    (2, (7,), 3, (3,), (2,), ((1, 1),)),
    (2, (9, 8), 4, (2, 2), (2, 2), ((0, 0), (0, 0))),
    (1, (7, 9), 32, (3, 3), (2, 2), ((0, 1), (1, 1))),
    (2, (6, 5), 5, (3, 2), (1, 1), ((1, 1), (0, 1))),
    (1, (5, 6), 17, (2, 2), (3, 3), ((0, 0), (0, 0))),
    (1, (4, 5, 6), 8, (2, 3, 2), (1, 2, 2), ((0, 0), (1, 1), (1, 0))),
    (3, (4, 4), 2, (4, 4), (4, 4), ((0, 0), (0, 0))),
]
# Strides beyond the window, padding before the first and after the last.
WIDER = (2, (8, 11), 12, (2, 3), (3, 4), ((1, 1), (2, 2)))


@pytest.mark.every(3)
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind, shape, first, dev, rng):
    check(make(kind, *shape, first, "float32"), rng, dev)


@pytest.mark.parametrize("kind", KINDS)
def test_gpu_schedule(kind, dev, rng):
    info = dataclasses.replace(dev.info, kind="gpu", max_work_group_size=64)
    for shape in (*SHAPES[1:4], SHAPES[5], WIDER):
        check(make(kind, *shape, False, "float32"), rng, dev, info)


MAX_DTYPES = ["float16", "bfloat16", "float64", "int8", "uint16", "int32", "int64", "bool"]


@pytest.mark.parametrize("dtype", MAX_DTYPES)
@pytest.mark.parametrize("kind", ["max", "max_grad", "max_select"])
def test_max_dtypes(kind, dtype, dev, rng):
    if dtype == "bool" and kind == "max_grad":
        pytest.skip("a sum of bool gradients has no meaning")
    channels = 3 if dtype in ("int8", "float64") else 16
    shape = (1, (5, 6), channels, (3, 3), (2, 2), ((1, 0), (1, 1)))
    problem = make(kind, *shape, False, dtype)
    check(problem, rng, dev, x=draw(rng, problem.x_shape, problem.dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_max_dtypes_on_gpus(dtype, dev, rng):
    """Four channels in one aligned access where the dtype is small enough."""
    info = dataclasses.replace(dev.info, kind="gpu", max_work_group_size=64)
    for kind, stride in (("max", 2), ("max_grad", 2), ("max_grad", 3)):
        shape = (1, (5, 6), 8, (3, 3), (stride, stride), ((1, 0), (1, 1)))
        problem = make(kind, *shape, False, dtype)
        check(problem, rng, dev, info, x=draw(rng, problem.x_shape, problem.dtype))


def test_cells_where_there_are_many(dev):
    info = dataclasses.replace(dev.info, kind="gpu")
    for (_, *shape), name in (
        (SHAPES[1], "pool.cell"),
        (SHAPES[2], "pool.cell"),
        (SHAPES[3], "pool.place"),
    ):
        problem = make("max_grad", 20000, *shape, False, "float32")
        first = make("max_grad", 20000, *shape, True, "float32")
        for each in (info, dev.info):
            assert choose(pool.SOLVERS, problem, each).name == name
            assert choose(pool.SOLVERS, first, each).name != "pool.cell"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["average", "average_grad"])
def test_average_dtypes(kind, dtype, include, dev, rng):
    for channels in (16, 3):
        shape = (2, (5, 6), channels, (3, 3), (2, 1), ((1, 1), (0, 2)))
        check(make(kind, *shape, False, dtype, include), rng, dev, ties=False)


@pytest.mark.parametrize("kind", ["max", "max_grad", "max_select"])
@pytest.mark.parametrize("channels", [16, 3])
def test_nan_inf_and_ties(kind, channels, dev, rng):
    problem = make(kind, 2, (6, 7), channels, (3, 3), (2, 2), ((1, 1), (1, 1)), False, "float32")
    x = rng.choice([np.nan, -np.inf, np.inf, -np.inf, 1.0, -0.0, 0.0], problem.x_shape)
    check(problem, rng, dev, x=x.astype(np.float32))
    check(problem, rng, dev, x=np.full(problem.x_shape, -np.inf, np.float32))


def test_all_padding_window(dev, rng):
    problem = make("max", 1, (3,), 2, (2,), (2,), ((2, 0),), False, "float32")
    check(problem, rng, dev)


def test_empty():
    problem = make("max", 0, (4, 4), 3, (2, 2), (2, 2), ((0, 0), (0, 0)), False, "float32")
    for device in DEVICES:
        assert pool.plan(problem, device.info, store_epilogue(dtypes.float32)).launches == []


def test_random(dev, rng):
    for _ in range(6):
        dims = int(rng.integers(1, 4))
        window = tuple(int(v) for v in rng.integers(1, 4, dims))
        strides = tuple(int(v) for v in rng.integers(1, 4, dims))
        pads = tuple((int(rng.integers(0, w)), int(rng.integers(0, w))) for w in window)
        spatial = tuple(int(v) for v in rng.integers(3, 8, dims))
        kind = KINDS[int(rng.integers(5))]
        channels, first = int(rng.choice([1, 3, 8, 24])), bool(rng.integers(2))
        include = bool(rng.integers(2))
        problem = make(kind, 2, spatial, channels, window, strides, pads, first, "float32", include)
        print(problem)
        check(problem, rng, dev)


def test_long_indices(dev, rng, monkeypatch):
    """What arrays of more than 2**31 elements use."""
    monkeypatch.setattr(pool, "index_type", lambda *sizes: "long")
    for kind in ("max", "max_grad", "average_grad"):
        check(make(kind, *SHAPES[2], False, "float32"), rng, dev)
