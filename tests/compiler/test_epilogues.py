"""What a product's epilogue reads and stores at the result's own index."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import maps
from kerascl.kernels.matmul import solvers as matmul
from kerascl.ops.updates import update
from tests import profiles


@pytest.fixture
def epilogues(monkeypatch):
    """Every epilogue that a product was planned with."""
    seen = []
    plain = matmul.plan

    def plan(problem, info, epilogue):
        seen.append(epilogue)
        return plain(problem, info, epilogue)

    monkeypatch.setattr(matmul, "plan", plan)
    monkeypatch.setattr(kc.engine, "programs", {})
    return seen


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_neighbours_are_read_and_stored_as_such(epilogues, rng, captured):
    """The residual and the result by their index, the bias and what is turned by coordinates."""
    x, w, y, z = (
        rng.normal(size=s).astype(np.float32) for s in ((9, 8), (8, 12), (9, 12), (12, 9))
    )
    b = rng.normal(size=12).astype(np.float32)

    def function(x, w, y, z, b):
        return kc.maximum(kc.matmul(x, w) + b + y, 0.0) * y - z.T

    run = kc.jit(function) if captured else function
    found = run(*map(kc.array, (x, w, y, z, b))).numpy()
    wide = x.astype(np.float64) @ w
    expected = np.maximum(wide + b + y, 0) * y - z.T
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    (epilogue,) = epilogues
    (load,) = epilogue.loads
    assert f"{load.pointer}[i]" in epilogue.body and load.pointer not in epilogue.compute
    (store,) = epilogue.stores
    assert f"{store.pointer}[i] = " in epilogue.body
    assert len(epilogue.param_list) >= 4  # the residual, the bias, what is turned and the result


@pytest.mark.parametrize("solver", ["", "tiled32x32", "tiled64x64"])
def test_a_bias_is_read_as_a_vector_and_gathered_rows_are_not(epilogues, rng, monkeypatch, solver):
    """A vector's first says where the others lie, but not of what an index array picks."""
    monkeypatch.setenv("KERASCL_SOLVERS", solver)
    x, w, b, table, more = (
        rng.normal(size=s).astype(np.float32) for s in ((45, 8), (8, 32), 32, (7, 32), (5, 9, 32))
    )
    ids = rng.integers(0, 7, 45).astype(np.int32)

    @kc.jit
    def run(x, w, b, table, ids, more):
        y = kc.matmul(x, w) + b + kc.take(table, ids, axis=0)
        return y.reshape(5, 9, 32) * b + more + more[:, :1]

    found = run(*map(kc.array, (x, w, b, table, ids, more))).numpy()
    wide = (x.astype(np.float64) @ w + b + table[ids]).reshape(5, 9, 32)
    expected = wide * b + more + more[:, :1]
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    (epilogue,) = epilogues
    # the bias, the first of nine rows (by its coordinates), and what lies where the result does
    assert sorted(bool(load.at) for load in epilogue.loads) == [False, True, True]
    assert sorted(load.period for load in epilogue.loads) == [0, 0, 32]  # the bias is one of a row
    assert len(epilogue.reads) == 1 and "column" in epilogue.decode


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "float64"])
def test_residuals_of_other_dtypes(dev, rng, dtype):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("the device has no float64")
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((16, 8), (8, 24)))
    y = kc.cast(kc.array(rng.integers(-4, 5, (16, 24)).astype(np.float32)), dtype)
    found = kc.jit(lambda x, w, y: kc.matmul(x, w) + kc.cast(y, "float32"))(
        kc.array(x), kc.array(w), y
    )
    expected = x.astype(np.float64) @ w + kc.cast(y, "float32").numpy()
    assert np.linalg.norm(found.numpy() - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("solver", ["", "tiled32x32", "tiled64x64"])
def test_results_are_rounded_in_pairs(epilogues, rng, monkeypatch, solver):
    """Values that are only stored are rounded there, two at once: the same bits."""
    monkeypatch.setenv("KERASCL_SOLVERS", solver)
    sizes = (70, 24), (24, 64), (64,), (70, 64)
    x, w, b, z = (kc.array(rng.normal(size=s)).astype("bfloat16") for s in sizes)

    def plain(x, w, b, z):
        return (kc.matmul(x, w),)

    def biased(x, w, b, z):
        y = kc.matmul(x, w) + b
        return y, kc.nn.gelu(y, False) - z, y.astype("float32") * 0.5

    for function, count in ((plain, 1), (biased, 1)):
        apart = kc.jit(function)(x, w, b, z)
        with monkeypatch.context() as m:
            m.setattr(maps, "_rounds_pairs", lambda info: True)
            m.setattr(kc.engine, "programs", {})
            together = kc.jit(function)(x, w, b, z)
        assert sum(store.pairs for store in epilogues[-1].stores) == count
        for got, expected in zip(together, apart, strict=True):
            assert (got.astype("float32") == expected.astype("float32")).all()


@pytest.fixture(params=["here", "rtx4090"])
def skinny(request, dev, monkeypatch):
    """Products of a few rows as GPUs compute them; "rtx4090": with what only these do before."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    if request.param != "here":
        info = profiles.disguise(dev.info, profiles.load()[request.param].info)
        monkeypatch.setattr(dev, "info", info)


def close(found, wanted, tolerance=3e-6):
    assert np.linalg.norm(found.numpy() - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_products_that_end_differently_share_a_launch(rows, skinny, rng):
    x, w, *ws = (rng.normal(size=s).astype(np.float32) for s in ((rows, 96), *[(96, 64)] * 6))
    b, y = (rng.normal(size=s).astype(np.float32) for s in (64, (rows, 64)))

    def function(x, w, ws, b, y):
        ends = [
            x @ w, x @ ws[0] + b, kc.maximum(x @ ws[1], 0) * y, kc.tanh(x @ ws[2]),
            kc.exp(x @ ws[3] / 50), x @ ws[4] + b,
        ]  # fmt: skip
        return ends

    run, wide = kc.jit(function), x.astype(np.float64)
    wanted = [
        wide @ w, wide @ ws[0] + b, np.maximum(wide @ ws[1], 0) * y, np.tanh(wide @ ws[2]),
        np.exp(wide @ ws[3] / 50), wide @ ws[4] + b,
    ]  # fmt: skip
    args = kc.array(x), kc.array(w), [kc.array(v) for v in ws], kc.array(b), kc.array(y)
    for _ in range(2):
        for found, value in zip(run(*args), wanted, strict=True):
            close(found, value, 1e-5)
    steps = run.captured(*args).program.steps
    launches = [step for step in steps if "skinny" in step.name]
    assert len(launches) == 2  # one has four ends at most, and room for so many arguments
    assert sum(len(step.writes) for step in launches) == len(wanted)
    assert any("epilogue_ == 1" in step.source for step in launches)


def test_queries_keys_and_values_of_a_loop_are_one_launch(skinny, rng):
    """Keys and values go to a place of a cache, in the memory of the carry."""
    length, width, steps = 256, 96, 5
    x, *ws = (rng.normal(size=s).astype(np.float32) for s in ((1, width), *[(width, width)] * 3))
    scale = np.float32(width**-0.5)

    def body(k, x, keys, values, wq, wk, wv):
        keys = update(keys, x @ wk, [k, 0])
        values = update(values, x @ wv, [k, 0])
        return k + 1, kc.tanh(x @ wq * scale), keys, values

    @kc.jit
    def run(x, wq, wk, wv):
        start = 0, x, kc.zeros((length, width)), kc.zeros((length, width))
        step = lambda *carry: body(*carry, wq, wk, wv)  # noqa: E731
        return kc.while_loop(lambda k, *_: k < steps, step, start)

    args = [kc.array(v) for v in (x, *ws)]
    keys, values, wanted = np.zeros((length, width)), np.zeros((length, width)), x.astype(float)
    for k in range(steps):
        keys[k], values[k] = wanted @ ws[1], wanted @ ws[2]
        wanted = np.tanh(wanted @ ws[0] * scale)
    _, found, *caches = run(*args)
    close(found, wanted, 1e-5)
    for cache, value in zip(caches, (keys, values), strict=True):
        close(cache, value, 1e-5)
    leaves = [leaf for step in run.captured(*args).program.steps for leaf in step.leaves]
    (product,) = {leaf.name for leaf in leaves if "skinny" in leaf.name}
    assert "multi" in product
