"""Several products of equal shapes in one launch on Hopper; the hardware emulated."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.hopper import left, pingpong, tiles, transposed
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.selftests import products
from kerascl.kernels.hopper.selftests import several as selftest
from kerascl.kernels.hopper.selftests.several import together
from kerascl.kernels.selftests import trial
from kerascl.runtime.device import DeviceError
from tests.kernels import emulator, test_wgmma
from tests.kernels.harness import poisoned, random_array
from tests.kernels.test_wgmma_channel_major import tf32

SMALL = tiles.PROMOTED[-1]
TURNED = next(tile for tile in transposed.SHAPES if tile.bm == 128)
SOLVERS = {
    "whole": hopper_matmul.HopperMatmul(SMALL, 1),
    "in slices": hopper_matmul.HopperMatmul(SMALL, 3),
    "in turns": hopper_matmul.HopperMatmul(pingpong.SHAPES[0], 1),
    "transposed": transposed.TransposedMatmul(TURNED, 1),
    "transposed, in slices": transposed.TransposedMatmul(TURNED, 2),
    "left": left.LeftMatmul(TURNED, 1),
}
SIZES = (400, 40, 136), (200, 136, 72), (300, 264, 200)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("how", SOLVERS)
def test_as_one_by_one(cpu_dev, cpu_info, how, size, count, dtype, rng):
    dtype, turned = dtypes.as_dtype(dtype), how == "left"
    if dtype is not dtypes.float32 and how.startswith(("transposed", "left")):
        return  # kernels of float32 alone
    m, n, k = size
    p = products.matmul(m, n, k, dtype, turned, False)
    info = dataclasses.replace(cpu_info, compute_units=5)
    plan = SOLVERS[how].plan(p, info, products.biased(dtypes.float32, n))
    plan = together(plan, count)
    found, wants, outs = {}, {}, {}
    for nth in range(count):
        name = str(nth or "")
        a, b = random_array(rng, m * k, dtype).reshape(m, k), random_array(rng, k * n, dtype)
        b, bias = b.reshape(k, n), rng.normal(size=n).astype(np.float32)
        found |= {f"a{name}": np.ascontiguousarray(a.T) if turned else a, f"b{name}": b}
        found[f"bias{name}"] = bias
        if dtype is dtypes.float32:
            a, b = tf32(a), tf32(b)
        wants[f"out{name}"] = a.astype(np.float64) @ b.astype(np.float64) + bias
        outs[f"out{name}"] = poisoned((m, n), dtypes.float32)
    got = emulator.run_outputs_of(plan, found, outs, cpu_dev)
    for name, want in wants.items():
        assert test_wgmma.relative(got[name], want) < 1e-6, name


@pytest.mark.parametrize("part", ["bfloat16", "float32 transposed", "float32 left"])
def test_self_test(cpu_dev, cpu_info, part, monkeypatch):
    """It passes where buffers are those of their products, and says what is wrong where not."""
    fault = ()

    def compute(plan, inputs, outs, dev):
        if fault:
            for n, launch in enumerate(plan.launches):
                if fault[0] in launch.source:
                    text = launch.source.replace(*fault)
                    plan.launches[n] = dataclasses.replace(launch, source=text)
        for name, got in emulator.run_outputs_of(plan, inputs, outs, cpu_dev).items():
            outs[name][...] = got

    monkeypatch.setattr(trial, "compute", compute)
    monkeypatch.setattr(selftest, "SIZES", (500, 136, 72))
    trial.run(cpu_dev, selftest.trials(cpu_info, part))
    fault = ("bias = bias_2;", "bias = bias_1;")
    with pytest.raises(DeviceError, match="several products"):
        trial.run(cpu_dev, selftest.trials(cpu_info, part))
    fault = ("(ulong)pB_1 +", "(ulong)pB +")
    with pytest.raises(DeviceError, match="several products"):
        trial.run(cpu_dev, selftest.trials(cpu_info, part))
