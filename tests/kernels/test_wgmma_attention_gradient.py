"""Gradients of attention by warpgroup matrix instructions on a CPU, see `emulator`, against float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention.problem import Dropout
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.hopper.attention_gradient import HopperAttentionGradient, Tile, takes
from tests.kernels import emulator
from tests.kernels.harness import poisoned
from tests.kernels.test_attention import Case, close
from tests.kernels.test_wgmma_attention import DROPOUTS, statistic

BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(1, 32, 3)
RESULTS = {"out": "dq", "dk": "dk", "dv": "dv"}


def run(case, info, dev, queries=SMALL, keys=SMALL, groups=2, fault=None):
    """The gradients of a case, by slot, and how often the fault's text was found."""
    p = case.backward
    assert takes(p)
    plan = HopperAttentionGradient(queries, keys, groups).plan(p, info, store_epilogue(p.dtype))
    if fault:
        assert any(fault[0] in launch.source for launch in plan.launches)
        plan.launches[:] = [
            dataclasses.replace(launch, source=launch.source.replace(*fault))
            for launch in plan.launches
        ]
    outs = {slot: poisoned(getattr(case, name).shape, p.dtype) for slot, name in RESULTS.items()}
    inputs = case.inputs | {
        "d": case.g, "e": statistic(case).astype(np.float32), "f": case.delta,
    }  # fmt: skip
    inputs |= dict(zip("g", case.extra.values(), strict=False))
    return emulator.run_outputs_of(plan, inputs, outs, dev)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    for slot, name in RESULTS.items():
        close(got[slot], getattr(case, name))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_lengths(length, causal, cpu_dev, cpu_info, rng):
    """Of one and of several blocks and tiles, whole and partial, one tile a work-group and more."""
    case = Case((1, length, length, 2, 1, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)
