"""Products of two to eight rows by mma.sync, emulated, and as NVIDIA's assembler takes them."""

import contextlib
import dataclasses
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import joining
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.matmul.skinny import STAYING_BYTES
from kerascl.kernels.units.skinny import SkinnyMma
from tests import profiles
from tests.kernels import ptx
from tests.kernels.mma_emulator import emulated
from tests.kernels.test_gemm import check, make

DTYPES = ["float32", "bfloat16", "float16", "int8"]
SHAPES = [
    (8, 64, 128), (2, 128, 256), (5, 132, 512), (8, 264, 1088), (3, 136, 4096), (8, 1024, 192),
    (264, 4, 512),
]  # fmt: skip


@pytest.fixture
def info():
    return dataclasses.replace(profiles.load()["rtx4090"].info, matrix="mma80")


@pytest.fixture
def card(dev, info, monkeypatch):
    found = dataclasses.replace(profiles.disguise(dev.info, info), matrix="mma80")
    monkeypatch.setattr(dev, "info", found)
    return dev


def made(rng, *shape, **how):
    acc = "int32" if how["dtype"] == "int8" else None
    problem, *rest = make(rng, *shape, acc=acc, **how)
    return dataclasses.replace(problem, precision="high"), *rest


def run_of(solver):
    return lambda p, info, epilogue: emulated(
        solver.plan(normalise_matmul(p), info, epilogue), exact=True
    )


def number(text, name):
    return int(re.search(rf"#define {name} (\d+)", text)[1])


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(card, dtype, b, stay, rng):
    for shape in SHAPES:
        case = made(rng, *shape, b=b, dtype=dtype)
        problem = normalise_matmul(case[0])
        for solver in SkinnyMma(), SkinnyMma(1), SkinnyMma(3):
            assert solver.applies(problem, card.info), shape
            with joining() if stay else contextlib.nullcontext():
                check(run_of(solver), *case, card)
                plan = solver.plan(problem, card.info, store_epilogue(problem.acc))
            if stay:
                assert number(plan.launches[0].source, "LOCAL_BYTES") <= STAYING_BYTES
    case = made(rng, 3, 132, 256, batch=(2, 3), b=b, dtype=dtype)
    check(run_of(SkinnyMma()), *case, card)


@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_way_to_share_the_work(card, dtype, b, rng, monkeypatch):
    case = made(rng, 8, 272, 1024, b=b, dtype=dtype)
    problem, every, met = normalise_matmul(case[0]), SkinnyMma._shares, set()
    size = problem.a.itemsize
    count = len(every(SkinnyMma(), problem, card.info, size, 272, b != "normal", 16 // size))
    for k in range(count):
        monkeypatch.setattr(SkinnyMma, "_shares", lambda *a, k=k: every(*a)[k : k + 1])
        with joining():
            check(run_of(SkinnyMma()), *case, card)
            plan = SkinnyMma().plan(problem, card.info, store_epilogue(problem.acc))
            text = plan.launches[0].source
        met.add((number(text, "V") * size, number(text, "LANES")))
    if b == "normal":
        assert met == {(n, 8) for n in (16, 8, 4) if n >= 2 * size}
    else:
        assert met == {(16, lanes) for lanes in (1, 2, 4, 8)}


def test_a_fault_is_seen(card, rng):
    """Operands of the other half of a product's depth."""
    case = made(rng, 8, 64, 256, dtype="bfloat16")

    def wrong(p, info, epilogue):
        plan = run_of(SkinnyMma())(p, info, epilogue)
        (launch,) = plan.launches
        right = "a[2] = LOWER(words[2][q], words[3][q])"
        assert right in launch.source
        source = launch.source.replace(right, "a[2] = LOWER(words[3][q], words[2][q])")
        return dataclasses.replace(plan, launches=[dataclasses.replace(launch, source=source)])

    with pytest.raises(AssertionError):
        check(wrong, *case, card)


def test_where_it_does_not_apply(info):
    def applies(m, n, k, a="bfloat16", b="bfloat16", precision="high", strides=None, **facts):
        a, b = dtypes.as_dtype(a), dtypes.as_dtype(b)
        problem = MatmulProblem(
            m, n, k, (), (k, 1), strides or (n, 1), a, b, dtypes.float32, 0, 0, precision=precision
        )
        return SkinnyMma().applies(normalise_matmul(problem), dataclasses.replace(info, **facts))

    assert applies(8, 64, 128) and applies(2, 64, 128) and applies(8, 64, 128, "float32", "float32")
    assert not applies(1, 64, 128) and not applies(9, 64, 128)  # rows
    assert not applies(8, 63, 128) and not applies(8, 64, 120)  # what a load, or a warp, takes
    assert not applies(8, 63, 128, "float32", "float32")  # which one float32 is not enough for
    assert not applies(8, 64, 128, "float32", "bfloat16")
    assert not applies(8, 64, 128, "float32", "float32", "highest")
    assert not applies(8, 64, 128, "float64", "float64")
    assert not applies(8, 64, 128, strides=(130, 2))
    assert not applies(8, 64, 128, matrix="") and not applies(8, 64, 128, local_mem_bytes=8192)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_registers(dtype, transposed, info):
    """Two groups of a compute unit stay, so that a work-item has half of 256 registers."""
    kind = dtypes.as_dtype(dtype)
    acc = dtypes.int32 if kind.is_integer else dtypes.float32
    for n, k in (2048, 2048), (8192, 2048), (2048, 8192), (128256, 2048):
        strides = (1, k) if transposed else (n, 1)
        problem = MatmulProblem(
            8, n, k, (), (k, 1), strides, kind, kind, acc, 0, 0, precision="high"
        )
        with joining():
            plan = SkinnyMma().plan(normalise_matmul(problem), info, store_epilogue(acc))
        used = ptx.resources("#define KCL_PTX\n" + plan.launches[0].source, threads=256)
        assert used["spills"] == used["stack"] == 0 and used["registers"] <= 128


def test_rows_of_the_copy_lie_in_other_banks():
    """What eight lanes of 16 bytes, or sixteen of 8, read at once."""
    for dtype in map(dtypes.as_dtype, DTYPES):
        for stage in range(64, 1100, 4):
            for along_k, lanes, wide in (False, 16, 8), (True, 8, 16):
                pitch = SkinnyMma()._pitch(stage, dtype, along_k) * dtype.itemsize
                assert stage * dtype.itemsize <= pitch and pitch % 16 == 0
                lane = np.arange(lanes)
                first = lane // 4 * pitch + lane % 4 * wide
                banks = (first[:, None] // 4 + np.arange(wide // 4)) % 32
                assert len(set(banks.ravel())) == 32
