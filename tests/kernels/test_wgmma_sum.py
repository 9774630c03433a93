"""Sums of products: one kernel on Hopper (emulated), and one product after the other anywhere."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import pingpong, probe, tiles
from kerascl.kernels.hopper.selftests.sums import problem
from kerascl.kernels.matmul import sums
from kerascl.kernels.matmul.problem import slots
from tests.kernels import emulator, test_wgmma
from tests.kernels.harness import poisoned, random_array, run_plan
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_pingpong import squaring

STORE = store_epilogue(dtypes.float32)
SMALL = tiles.PROMOTED[-1]
SIZES = {  # m, n, k, terms
    "two": (150, 72, 136, 2),
    "three of part of a stage": (70, 40, 24, 3),
    "three of several stages": (200, 136, 200, 3),
    "eight": (64, 64, 64, 8),
}
SOLVERS = {
    "whole": hopper_matmul.HopperMatmul(SMALL, 1),
    "in slices": hopper_matmul.HopperMatmul(SMALL, 3),
    "in turns": hopper_matmul.HopperMatmul(pingpong.SHAPES[0], 1),
}


def operands(rng, p, dtype):
    """By slot, and the sum in float64 of what the kernel multiplies (`rounded`)."""
    found, want, rounded = {}, np.zeros((p.m, p.n)), np.zeros((p.m, p.n))
    for names in slots(p):
        a, b = (random_array(rng, n * p.k, dtype).reshape(n, p.k) for n in (p.m, p.n))
        found |= dict(zip(names, (a, b), strict=True))
        want += a.astype(np.float64) @ b.astype(np.float64).T
        if dtype is dtypes.float32:
            a, b = tf32(a), tf32(b)
        rounded += a.astype(np.float64) @ b.astype(np.float64).T
    return found, want, rounded


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("how", SOLVERS)
@pytest.mark.parametrize("name", SIZES)
def test_in_one_kernel(cpu_dev, cpu_info, name, how, dtype, rng):
    dtype = dtypes.as_dtype(dtype)
    p = problem(*SIZES[name], dtype)
    found, _, want = operands(rng, p, dtype)
    plan = SOLVERS[how].plan(p, cpu_info, STORE)
    assert len(plan.launches) == 1 + (plan.launches[-1].name != "wgmma")
    got = emulator.run_plan(plan, found, poisoned(want.shape, dtypes.float32), cpu_dev)
    assert test_wgmma.relative(got, want) < 1e-6


def test_with_an_operand_that_is_brought(cpu_dev, cpu_info, rng):
    """TMA's maps of the epilogue's operands lie behind those of all terms."""
    dtype = dtypes.bfloat16
    p = problem(300, 128, 72, 3, dtype)
    found, _, want = operands(rng, p, dtype)
    found["more"] = random_array(rng, want.size, dtypes.float32).reshape(want.shape)
    plan = SOLVERS["in turns"].plan(p, cpu_info, squaring(dtypes.float32))
    assert "BROUGHT_COUNT 1" in plan.launches[0].source
    got = emulator.run_plan(plan, found, poisoned(want.shape, dtypes.float32), cpu_dev)
    assert test_wgmma.relative(got, (want + found["more"]) ** 2) < 1e-6


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(33, 20, 17, 2), (64, 48, 130, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_after_the_other(cpu_dev, dtype, sizes, out, rng):
    """On a device without such a kernel, or whose self-test fails."""
    dtype, out = dtypes.as_dtype(dtype), dtypes.as_dtype(out)
    p = problem(*sizes, dtype, "highest")
    found, want, _ = operands(rng, p, dtype)
    assert not sums.in_one(p, cpu_dev.info)
    plan = sums.plan(p, cpu_dev.info, store_epilogue(out))
    got = run_plan(plan, found, poisoned(want.shape, out), cpu_dev)
    bound = 1e-6 if out is dtypes.float32 else 4e-3
    assert test_wgmma.relative(got.astype(np.float64), want) < bound


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_who_computes_it(hopper_info, dtype, monkeypatch):
    """The kernel, for large sums of what TMA reads as it lies; and nobody else's tiles."""
    dtype = dtypes.as_dtype(dtype)
    large = problem(12608, 768, 768, 3, dtype)
    assert sums.in_one(large, hopper_info)
    plan = sums.plan(large, hopper_info, STORE)
    assert [launch.name for launch in plan.launches] == ["wgmma"]
    assert not sums.in_one(problem(12608, 768, 767, 3, dtype), hopper_info)
    exact = dataclasses.replace(large, precision="highest")
    assert sums.in_one(exact, hopper_info) == (dtype is not dtypes.float32)
    monkeypatch.setenv("KERASCL_SOLVERS", "-wgmma")
    assert not sums.in_one(large, hopper_info)


def test_a_self_test_that_fails(hopper_info, monkeypatch):


    monkeypatch.setattr(probe, "available", lambda _, name="", of="": name != hopper_matmul.SUMS)
    p = problem(4096, 768, 768, 3, dtypes.bfloat16)
    assert not sums.in_one(p, hopper_info)
    names = [launch.name for launch in sums.plan(p, hopper_info, STORE).launches]
    assert names == ["wgmma"] * 3 + ["gemm_reduce4"]
