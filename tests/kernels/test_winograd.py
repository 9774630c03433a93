"""Winograd's filtering against the definition in float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv import winograd
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD, normalise_conv
from tests.kernels.harness import poisoned, run_plan
from tests.kernels.test_conv import KINDS, make

BOUNDS = {2: 1e-6, 4: 1e-5}  # relative error by norm in float32
CASES = {
    "whole tiles": dict(spatial=(8, 12), channels=16, filters=32, pads=1),
    "odd": dict(spatial=(9, 7), channels=5, filters=3, pads=1),
    "less than a tile": dict(spatial=(3, 4), channels=8, filters=7, images=1),
    "asymmetric": dict(spatial=(10, 6), channels=3, filters=16, pads=((0, 2), (2, 0))),
    "wide margins": dict(spatial=(5, 5), channels=4, filters=4, pads=3),
    "cropping": dict(spatial=(12, 11), channels=4, filters=8, pads=((-1, -2), (2, -3))),
}


def check(problem, inputs, want, info, dev, tile, bound, out=dtypes.float32):
    problem = normalise_conv(dataclasses.replace(problem, precision="high"))
    filters = problem.kind == FILTER_GRAD
    solver = (winograd.WinogradFilterGradient if filters else winograd.WinogradConv)(tile)
    assert solver.applies(problem, info)
    plan = solver.plan(problem, info, store_epilogue(out))
    got = run_plan(plan, inputs, poisoned(want.shape, out), dev)
    error = np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)
    assert error < bound
    return plan


def plain(info):
    """The device's facts without matrix units."""
    return dataclasses.replace(info, matrix="")


@pytest.mark.every(5)
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_shapes(case, kind, channels_first, tile, dev, rng):
    made = make(rng, kind, kernel=3, channels_first=channels_first, **CASES[case])
    check(*made, plain(dev.info), dev, tile, BOUNDS[tile])


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("kind", [FORWARD, FILTER_GRAD])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_dtypes(name, kind, tile, dev, rng):
    if name == "float64" and not dev.info.fp64:
        pytest.skip("the device has no float64")
    dtype = dtypes.as_dtype(name)
    made = make(rng, kind, (8, 9), 8, 16, 3, pads=1, dtype=name)
    wide = dtype.accumulator
    bound = BOUNDS[tile] * (1e-8 if name == "float64" else 1)
    check(*made, plain(dev.info), dev, tile, bound, out=wide)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_as_on_a_gpu_in_parts(kind, tile, dev, rng, monkeypatch):
    info = dataclasses.replace(plain(dev.info), kind="gpu", max_work_group_size=64)
    monkeypatch.setattr(winograd, "_GPU_BYTES", 2**16)
    made = make(rng, kind, (23, 25), 16, 24, 3, pads=1, images=3)
    plan = check(*made, info, dev, tile, BOUNDS[tile])
    assert sum(launch.name == "winograd_input" for launch in plan.launches) > 1


def test_where_it_applies(dev, rng):
    info = plain(dev.info)
    two, four, *filters = winograd.SOLVERS

    def problem(kind=FORWARD, precision="high", **more):
        made, _, _ = make(
            rng, kind, **({"spatial": (8, 8), "kernel": 3} | more), channels=4, filters=4
        )
        return normalise_conv(dataclasses.replace(made, precision=precision))

    assert two.applies(problem(), info) and four.applies(problem(), info)
    exact = problem(precision="highest")
    assert two.applies(exact, info) and not four.applies(exact, info)
    for other in (
        problem(FILTER_GRAD), problem(stride=2), problem(dilation=2), problem(groups=2),
        problem(kernel=(3, 2)), problem(spatial=(5, 5, 5)), problem(spatial=(9,)),
    ):  # fmt: skip
        assert not two.applies(other, info) and not four.applies(other, info)
    units = dataclasses.replace(info, kind="gpu", matrix="mma80")
    assert not two.applies(problem(), units)
    assert two.applies(exact, units)  # which round float32
    assert all(s.applies(problem(FILTER_GRAD), info) for s in filters)
    assert not any(s.applies(problem(), info) for s in filters)


def test_gpus_without_matrix_units_take_it(dev, rng):
    info = dataclasses.replace(
        plain(dev.info),
        kind="gpu",
        max_work_group_size=256,
        local_mem_bytes=2**16,
        compute_units=32,
    )
    made, _, _ = make(rng, FORWARD, (28, 28), 128, 128, 3, pads=1, images=8)
    problem = normalise_conv(dataclasses.replace(made, precision="high"))
    assert choose(conv.SOLVERS, problem, info).name == "winograd4"
