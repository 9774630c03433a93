"""Products of a few rows on CPUs, which read the long operand as it lies."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, store_epilogue
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.matmul import solvers
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.matmul.streamed import StreamedMatmul
from tests import profiles
from tests.kernels.harness import assert_close, poisoned, run_plan
from tests.kernels.test_gemm import check, force, make

# Rows of the long side that fill no vector, and depths that fill no block, among others.
SIZES = [(32, 32), (257, 45), (131, 600), (1000, 33), (48, 1031)]
# Short rows first, or last: the result lies otherwise.
TURNS = ["short left", "short right"]


@pytest.fixture
def processor(dev):
    if dev.info.kind != "cpu":
        pytest.skip("only processors take this kernel")
    return dev


def case(rng, short, long, k, turn, along_k, **more):
    """A product whose long operand's neighbours lie along the depth, or along its rows."""
    if turn == "short left":
        return make(rng, short, long, k, b="transposed" if along_k else "normal", **more)
    return make(
        rng, long, short, k, a="normal" if along_k else "transposed",
        b="transposed" if along_k else "normal", **more,
    )  # fmt: skip


def few(along_k, dtype="float32"):
    """Short rows that it takes."""
    return range(1, 1 + (1 if dtype == "float32" and not along_k else 4))


@pytest.mark.parametrize("along_k", [False, True], ids=["rows", "depth"])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_and_depths_of_any_number(processor, sizes, turn, along_k, rng):
    for short in few(along_k):
        found = case(rng, short, *sizes, turn, along_k)
        assert StreamedMatmul().applies(normalise_matmul(found[0]), processor.info)
        check(force(StreamedMatmul()), *found, processor)


@pytest.mark.parametrize("along_k", [False, True], ids=["rows", "depth"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_of_sixteen_bits(processor, dtype, along_k, rng):
    for turn, short in zip(TURNS * 2, few(along_k, dtype), strict=True):
        check(force(StreamedMatmul()), *case(rng, short, 77, 100, turn, along_k, dtype=dtype),
              processor)  # fmt: skip


@pytest.mark.parametrize("along_k", [False, True], ids=["rows", "depth"])
def test_of_two_dtypes(processor, along_k, rng):
    problem, inputs, _ = case(rng, 2, 90, 70, "short left", along_k)
    half = inputs["b"].astype(np.float16)
    problem = dataclasses.replace(problem, b=dtypes.float16)
    view = half.astype(np.float64)
    want = inputs["a"].astype(np.float64) @ (view.T if along_k else view)
    check(force(StreamedMatmul()), problem, {"a": inputs["a"], "b": half}, want, processor)


@pytest.mark.parametrize("along_k", [False, True], ids=["rows", "depth"])
def test_each_result_is_stored_once(processor, along_k, rng):
    """Where the result replaces what its epilogue reads, a second time would add it again."""
    problem, inputs, product = case(rng, 1, 203, 64, "short left", along_k)
    more = rng.standard_normal(product.shape, np.float32)
    adding = Epilogue(", __global float* out", (Ref("out"),), "out[i] += acc;")
    plan = force(StreamedMatmul())(problem, processor.info, adding)
    found = run_plan(plan, inputs, more.copy(), processor)
    assert_close(found, product + more.astype(np.float64), problem.acc, problem.k)


def test_long_sums_lose_little(processor, rng):
    for along_k in (False, True):
        problem, inputs, want = case(rng, 1, 64, 20_000, "short left", along_k)
        epilogue = store_epilogue(dtypes.float32)
        plan = force(StreamedMatmul())(problem, processor.info, epilogue)
        found = run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), processor)
        assert np.linalg.norm(found - want) < 2e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("compute_units", [1, 2, 3, 64])
def test_each_row_belongs_to_one_work_item(processor, compute_units, rng):
    info = dataclasses.replace(processor.info, compute_units=compute_units)
    for along_k in (False, True):
        for sizes in (40, 40), (5000, 256), (1025, 300):
            problem, inputs, want = case(rng, 1, *sizes, "short left", along_k)
            plan = force(StreamedMatmul())(problem, info, store_epilogue(dtypes.float32))
            found = run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), processor)
            assert_close(found, want, problem.acc, problem.k)
            items = plan.launches[0].global_size[0]
            assert items <= max(compute_units, -(-sizes[0] // 256) + compute_units)


def test_who_takes_a_row(processor, rng):
    """Not GPUs, whose lanes would each read a row of its own; nor batches."""
    row = normalise_matmul(case(rng, 1, 256, 1024, "short left", False)[0])
    card = profiles.load()["rtx4090"].info
    solver = StreamedMatmul()
    assert solver.applies(row, processor.info) and not solver.applies(row, card)
    panels = next(s for s in solvers.SOLVERS if s.name == "panels")
    assert solver.cost(row, processor.info) < panels.cost(row, processor.info)
    batched = normalise_matmul(make(rng, 1, 64, 128, batch=(4,))[0])
    strided = normalise_matmul(make(rng, 1, 64, 128, b="strided")[0])
    for other in (batched, strided):
        assert not solver.applies(other, processor.info)
