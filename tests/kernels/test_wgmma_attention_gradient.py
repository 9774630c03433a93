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


@pytest.mark.parametrize("queries, keys", [
    (Tile(2, 64, 4), Tile(2, 64, 4)), (Tile(1, 64, 2), Tile(1, 64, 2)),
    (Tile(1, 80, 3), Tile(2, 48, 3)), (Tile(1, 64, 2, local=True), Tile(2, 64, 2, local=True)),
    (Tile(1, 32, 3, local=True), Tile(1, 32, 3, local=True)),
], ids=str)  # fmt: skip
def test_tiles(queries, keys, cpu_dev, cpu_info, rng):
    """Own rows in registers and in local memory, columns no multiple of the rows, short rings."""
    case = Case((1, 150, 210, 2, 1, 72, 64), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, queries=queries, keys=keys)


@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
@pytest.mark.parametrize("width, depth", [
    (8, 128), (128, 8), (128, 128), (64, 104), (40, 24), (64, 64), (32, 32),
])  # fmt: skip
def test_features(width, depth, local, cpu_dev, cpu_info, rng):
    """One panel of 64 or two, whole and partial, of keys and of values."""
    case = Case((2, 70, 75, 1, 1, width, depth), rng, dtype=F16)
    tile = Tile(1, 64, 2, local)
    check(case, cpu_info, cpu_dev, queries=tile, keys=tile)


@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_shared_keys(groups, local, cpu_dev, cpu_info, rng):
    """Neighbouring heads share keys, and all do; three work-groups for all tiles."""
    case = Case((2, 100, 90, 6, groups, 16, 24), rng, causal=True, dtype=BF16)
    tile = Tile(1, 64, 3, local)
    check(case, cpu_info, cpu_dev, groups=3, queries=tile, keys=tile)


@pytest.mark.parametrize("length, source", [(20, 150), (150, 20), (1, 200), (200, 3)])
@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
def test_keys_that_no_query_sees(length, source, local, cpu_dev, cpu_info, rng):
    """Get zeros for gradients: their tiles meet no block."""
    case = Case((1, length, source, 2, 1, 16, 16), rng, causal=True, dtype=BF16)
    tile = Tile(1, 32, 3, local)
    check(case, cpu_info, cpu_dev, queries=tile, keys=tile)


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dropout(causal, name, cpu_dev, cpu_info, rng):
    """The numbers are those of `philox`, which all kernels draw."""
    case = Case(
        (2, 70, 75, 2, 1, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    check(case, cpu_info, cpu_dev)
