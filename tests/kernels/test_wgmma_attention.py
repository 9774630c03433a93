"""Attention by warpgroup matrix instructions on a CPU, see `emulator`, against float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention.problem import Dropout, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import attention
from kerascl.kernels.hopper.attention import HopperAttention, Tile, takes
from tests.kernels import emulator
from tests.kernels.harness import poisoned
from tests.kernels.test_attention import Case, close, contiguous

BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(2, 32, 3)


def run(case, info, dev, tile=SMALL, groups=2, fault=None):
    """The result and the statistic of a case."""
    p = case.forward
    assert takes(p)
    plan = HopperAttention(tile, groups).plan(p, info, store_epilogue(p.dtype))
    if fault:
        (launch,) = plan.launches
        assert fault[0] in launch.source
        plan.launches[0] = dataclasses.replace(launch, source=launch.source.replace(*fault))
    outs = {
        "out": poisoned(case.y.shape, p.dtype),
        "stat": poisoned((p.batch, p.heads, p.length), dtypes.float32),
    }
    inputs = case.inputs | dict(zip("d", case.extra.values(), strict=False))
    return emulator.run_outputs_of(plan, inputs, outs, dev)


def statistic(case):
    """log2 of the sum of 2^logit of each row."""
    p = case.forward
    q, k = (case.inputs[x].astype(np.float64) for x in "ab")
    k = np.repeat(k, p.heads // p.groups, 2)
    logits = np.einsum("bthd,bshd->bhts", q, k) * p.scale
    if p.causal:
        logits = np.where(np.tril(np.ones(logits.shape[2:], bool)), logits, -np.inf)
    return np.logaddexp.reduce(logits, -1) / np.log(2)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    close(got["out"], case.y)
    np.testing.assert_allclose(got["stat"], statistic(case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 197, 300])
def test_lengths(length, causal, cpu_dev, cpu_info, rng):
    """Of one and of several blocks and tiles, whole and partial, two tiles a work-group and more."""
    case = Case((1, length, length, 2, 1, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)
