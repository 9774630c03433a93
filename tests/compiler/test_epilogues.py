"""What a product's epilogue reads and stores at the result's own index."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import maps
from kerascl.kernels.matmul import solvers as matmul


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
