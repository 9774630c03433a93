"""Gradients of a dense layer's weights and bias in one kernel on Hopper; the hardware emulated."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import left, pingpong, probe, tiles, transposed
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.selftests import dense as selftest
from kerascl.kernels.hopper.selftests.several import together
from kerascl.kernels.matmul import dense
from kerascl.kernels.selftests import trial
from kerascl.runtime.device import DeviceError
from tests.kernels import emulator, test_wgmma
from tests.kernels.harness import poisoned, random_array, run_outputs
from tests.kernels.test_wgmma_channel_major import tf32

STORE = store_epilogue(dtypes.float32)
SIZES = (72, 40, 136), (200, 264, 200), (400, 136, 72), (8, 200, 1000)  # rows, columns, depth
WIDTHS = {tile.bn: tile for tile in tiles.SHAPES}


def operands(rng, p, name=""):
    """Both, the product in float64 of what the kernel multiplies, and the sums."""
    x, slope = (random_array(rng, p.k * n, p.a).reshape(p.k, n) for n in (p.m, p.n))
    slope = (slope.astype(np.float32) + 0.5).astype(slope.dtype)
    given = (tf32(x), tf32(slope)) if p.a is dtypes.float32 else (x, slope)
    a, b = (v.astype(np.float64) for v in given)
    return {f"a{name}": x, f"b{name}": slope}, a.T @ b, slope.astype(np.float64).sum(0)


def outputs(p, name=""):
    return {
        f"out{name}": poisoned((p.m, p.n), dtypes.float32), f"sums{name}": poisoned((p.n,), p.b)
    }  # fmt: skip


def check(got, product, sums, name=""):
    assert test_wgmma.relative(got[f"out{name}"], product) < 1e-6
    found = got[f"sums{name}"]
    half = {"float32": 2e-7, "float16": 4e-4, "bfloat16": 3e-3}[found.dtype.name]
    assert test_wgmma.relative(found.astype(np.float64), sums) < half


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    "tile, dtype", [*((tile, "bfloat16") for tile in WIDTHS.values()), (WIDTHS[192], "float16")],
    ids=lambda x: getattr(x, "name", x),
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sixteen_bits(cpu_dev, cpu_info, size, dtype, tile, splits, rng):
    p = selftest.problem(*size, dtypes.as_dtype(dtype))
    given, *wants = operands(rng, p)
    solver = hopper_matmul.HopperMatmul(tile, splits)
    assert solver.takes(p)
    plan = solver.plan(p, cpu_info, STORE)
    check(emulator.run_outputs_of(plan, given, outputs(p), cpu_dev), *wants)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tile", transposed.SHAPES[::3], ids=lambda tile: tile.name)
def test_float32(cpu_dev, cpu_info, size, tile, splits, rng):
    p = selftest.problem(*size, dtypes.float32)
    given, *wants = operands(rng, p)
    solver = transposed.TransposedMatmul(tile, splits)
    assert solver.takes(p)
    plan = solver.plan(p, cpu_info, STORE)
    check(emulator.run_outputs_of(plan, given, outputs(p), cpu_dev), *wants)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("count", [2, 4])
def test_several_in_a_launch(cpu_dev, cpu_info, count, dtype, rng):
    p = selftest.problem(200, 264, 200, dtypes.as_dtype(dtype))
    shapes = {"bfloat16": tiles.SHAPES, "float32": transposed.SHAPES}[dtype]
    make = {"bfloat16": hopper_matmul.HopperMatmul, "float32": transposed.TransposedMatmul}[dtype]
    info = dataclasses.replace(cpu_info, compute_units=5)
    plan = together(make(shapes[1], 2).plan(p, info, STORE), count)
    given, outs, wants = {}, {}, {}
    for nth in range(count):
        name = str(nth or "")
        own, *wants[name] = operands(rng, p, name)
        given |= own
        outs |= outputs(p, name)
    got = emulator.run_outputs_of(plan, given, outs, cpu_dev)
    for name, want in wants.items():
        check(got, *want, name)


def test_who_does_not_take_them(cpu_info):
    """Kernels that do not read b's rows as they lie, or whose teams take turns."""
    narrow, wide = (selftest.problem(200, 264, 200, t) for t in (dtypes.bfloat16, dtypes.float32))
    turned = dataclasses.replace(narrow, b_strides=(0, 0, 0, 1, 200))
    assert not hopper_matmul.HopperMatmul().takes(turned)
    assert not hopper_matmul.HopperMatmul(pingpong.SHAPES[0]).takes(narrow)
    assert not hopper_matmul.HopperMatmul().takes(wide)
    assert not left.LeftMatmul().takes(dataclasses.replace(wide, m=400))
    highest = dataclasses.replace(wide, precision="highest")
    assert not transposed.TransposedMatmul().takes(highest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [(5, 7, 3), (40, 24, 130)], ids=str)
def test_everywhere_else(dev, size, dtype, rng):
    p = selftest.problem(*size, dtypes.as_dtype(dtype))
    (given, _, sums), out = operands(rng, p), outputs(p)
    plan = dense.plan(dataclasses.replace(p, precision="highest"), dev.info, STORE)
    got = run_outputs(plan, given, out, dev)
    exact = given["a"].astype(np.float64).T @ given["b"].astype(np.float64)
    check(got, exact, sums)


def test_one_kernel_is_better_where_it_takes_a_while_to_read(cpu_info, monkeypatch):
    monkeypatch.setattr(probe, "available", lambda *_: True)
    info = dataclasses.replace(cpu_info, matrix="wgmma90", compute_units=132)
    large = selftest.problem(768, 3072, 12608, dtypes.bfloat16)
    assert dense.in_one(large, info)
    assert not dense.in_one(dataclasses.replace(large, k=16), info)
    monkeypatch.setattr(probe, "available", lambda info, name="", *_: name != hopper_matmul.DENSE)
    assert not dense.in_one(large, info)


FAULTS = {
    "bfloat16": ("split * TILES_M + pm)", "split * TILES_M)"),
    "float32 transposed": ("SHUFFLE(got_, sum, 2);", ""),
}


@pytest.mark.parametrize("part", FAULTS)
def test_self_test(cpu_dev, cpu_info, part, monkeypatch):
    """It passes, and says what is wrong where a part of a sum is lost."""
    fault = ()

    def compute(plan, inputs, outs, dev):
        if fault:
            for n, launch in enumerate(plan.launches):
                text = launch.source.replace(*fault)
                plan.launches[n] = dataclasses.replace(launch, source=text)
        for name, got in emulator.run_outputs_of(plan, inputs, outs, cpu_dev).items():
            outs[name][...] = got

    monkeypatch.setattr(trial, "compute", compute)
    monkeypatch.setattr(selftest, "SIZES", (200, 200, 200))
    trial.run(cpu_dev, selftest.trials(cpu_info, part))
    fault = FAULTS[part]
    with pytest.raises(DeviceError, match="gradients of a dense layer"):
        trial.run(cpu_dev, selftest.trials(cpu_info, part))
