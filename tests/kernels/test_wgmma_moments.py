"""Means and squared distances of a product's columns, computed beside it; the hardware emulated."""

import dataclasses
import math

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.conv.problem import FORWARD, ConvProblem
from kerascl.kernels.hopper import conv as hopper_conv
from kerascl.kernels.hopper import halo, stem, tiles
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.matmul import solvers as matmul
from tests.kernels import emulator, ptx
from tests.kernels.harness import poisoned, random_array
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_emulated import product

SMALL, WIDE, TALL = tiles.PROMOTED[-1], tiles.SHAPES[0], tiles.SHAPES[1]


def epilogue(rows: int, columns: int):
    """Stores a product of float32, behind it its columns' means, then their squares."""
    plain, total = store_epilogue(dtypes.float32), rows * columns
    body = f"out[{total} + col] = mean; out[{total + columns} + col] = squares;"
    return dataclasses.replace(plain, moments=body)


def check(plan, a, b, want, cpu_dev):
    """The product of a plan and both moments of its columns against float64."""
    rows, columns = math.prod(want.shape[:-1]), want.shape[-1]
    out = poisoned(((rows + 2) * columns,), dtypes.float32)
    got = emulator.run_plan(plan, {"a": a, "b": b}, out, cpu_dev).astype(np.float64)
    values, mean, squares = np.split(got, [rows * columns, (rows + 1) * columns])
    wide = want.reshape(rows, columns)
    assert np.linalg.norm(values - wide.ravel()) <= 1e-6 * np.linalg.norm(wide)
    about = np.square(wide - wide.mean(0)).sum(0)
    np.testing.assert_allclose(mean, wide.mean(0), rtol=0, atol=1e-6 * np.abs(wide).max())
    np.testing.assert_allclose(squares, about, rtol=4e-6, atol=1e-12 * rows)


@pytest.mark.parametrize("tile", [SMALL, WIDE, TALL], ids=lambda t: t.name)
@pytest.mark.parametrize(
    "sizes", [(150, 72, 40), (64, 64, 32), (1, 40, 64), (700, 300, 8)], ids=str
)
def test_products(cpu_dev, cpu_info, tile, sizes, rng):
    p, (a, b), want = product(rng, (*sizes, (), ()), dtypes.float32)
    b += 3 * a.mean()  # columns far from zero
    plan = hopper_matmul.HopperMatmul(tile).plan(p, cpu_info, epilogue(p.m, p.n))
    assert [x.name for x in plan.launches][-1] == "wgmma"
    check(plan, a, b, want(tf32(a), tf32(b)), cpu_dev)


@pytest.mark.parametrize("dtype, precision", [("float32", "highest"), ("bfloat16", "high")])
def test_inputs(cpu_dev, cpu_info, dtype, precision, rng):
    p, (a, b), want = product(rng, (300, 72, 64, (), ()), dtypes.as_dtype(dtype), precision)
    plan = hopper_matmul.HopperMatmul(SMALL).plan(p, cpu_info, epilogue(p.m, p.n))
    check(plan, a, b, want(a, b), cpu_dev)


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_far_from_zero(cpu_dev, cpu_info, shift, rng):
    """Squares about the mean do not lose what a sum of squares would."""
    m, n, k = 500, 64, 32
    a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    a[:, 0], a[:, 1:] = 1, rng.integers(-8, 9, (m, k - 1))
    b[0], b[1:] = shift, rng.integers(-4, 5, (k - 1, n))
    p, _, _ = product(rng, (m, n, k, (), ()), dtypes.float32)
    plan = hopper_matmul.HopperMatmul(SMALL).plan(p, cpu_info, epilogue(m, n))
    check(plan, a.ravel(), b.ravel(), a.astype(np.float64) @ b, cpu_dev)


@pytest.mark.parametrize(
    "shape, taps, stride, pad, filters",
    [((3, 9, 11, 8), 3, 1, 1, 40), ((2, 13, 7, 16), 3, 2, 1, 64), ((5, 6, 6, 8), 1, 2, 0, 32)],
    ids=str,
)
def test_convolutions(cpu_dev, cpu_info, shape, taps, stride, pad, filters, rng):
    _convolution(
        rng, cpu_dev, cpu_info, hopper_conv.HopperConv(SMALL), shape, taps, stride, pad, filters
    )


def test_boxes_with_a_halo(cpu_dev, cpu_info, rng):
    for tile in halo.SHAPES:
        if tile.pingpong == 1:  # the emulator runs ping-pong warpgroups one after the other
            _convolution(rng, cpu_dev, cpu_info, halo.HaloConv(tile), (7, 9, 11, 8), 3, 1, 1, 72)


def test_first_layer(cpu_dev, cpu_info, rng):
    _convolution(rng, cpu_dev, cpu_info, stem.StemConv(SMALL), (2, 20, 18, 3), 7, 2, 3, 24)


def _convolution(rng, cpu_dev, cpu_info, solver, shape, taps, stride, pad, filters):
    sides = ((n + 2 * pad - taps) // stride + 1 for n in shape[1:3])
    y_shape = (shape[0], *sides, filters)
    p = ConvProblem(
        FORWARD, shape, (taps, taps, shape[-1], filters), y_shape, (stride, stride),
        ((pad, pad), (pad, pad)), (1, 1), 1, False, dtypes.float32, dtypes.float32, dtypes.float32,
        "high",
    )  # fmt: skip
    x, w = (random_array(rng, s, dtypes.float32) for s in (p.x_shape, p.w_shape))
    assert solver.moments(p)
    plan = solver.plan(p, cpu_info, epilogue(math.prod(y_shape[:-1]), filters))
    check(plan, x, w, forward(p, tf32(x).astype(np.float64), tf32(w).astype(np.float64)), cpu_dev)


def forward(p, x, w):
    """The convolution in NumPy."""
    padded = np.pad(x, ((0, 0), *p.pads, (0, 0)))
    want = np.zeros(p.y_shape)
    for i in range(p.w_shape[0]):
        for j in range(p.w_shape[1]):
            taken = padded[:, i :: p.strides[0], j :: p.strides[1]]
            want += taken[:, : p.y_shape[1], : p.y_shape[2]] @ w[i, j]
    return want


def test_who_takes_moments(cpu_dev, hopper_info, rng):
    """What cannot know whole columns says so."""
    made = epilogue(40, 40)
    batched, _, _ = product(rng, (40, 24, 48, (2,), (2,)), dtypes.bfloat16)
    assert not hopper_matmul.HopperMatmul().takes_moments(batched, hopper_info)
    deep, _, _ = product(rng, (64, 64, 1 << 16, (), ()), dtypes.bfloat16)
    assert not hopper_matmul.HopperMatmul().takes_moments(
        deep, hopper_info
    )  # split, it is far faster
    for p in (batched, deep, dataclasses.replace(deep, k=0)):
        assert not matmul.takes_moments(p, hopper_info)
    with pytest.raises(ValueError, match="takes_moments"):
        matmul.plan(deep, hopper_info, made)
    flat, *_ = product(rng, (1 << 18, 64, 64, (), ()), dtypes.bfloat16)
    assert matmul.takes_moments(flat, hopper_info)
    assert matmul.plan(flat, hopper_info, made).launches
    # The turned product is 10 microseconds faster, another pass over the result takes 13.
    narrow, *_ = product(rng, (200704, 64, 256, (), ()), dtypes.float32)
    assert matmul.plan(narrow, hopper_info, made).launches
    assert not matmul.takes_moments(flat, cpu_dev.info)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize(
    "tile, precision",
    [(t, "high") for t in tiles.SHAPES] + [(t, "highest") for t in tiles.PROMOTED],
    ids=lambda x: getattr(x, "name", x),
)
def test_registers(cpu_dev, hopper_info, tile, precision, rng):
    """Nothing is spilled, and a compute unit holds as many groups as the tile was made for."""
    p, *_ = product(rng, (4096, 256, 64, (), ()), dtypes.float32, precision)
    launch = hopper_matmul.HopperMatmul(tile).plan(p, hopper_info, epilogue(p.m, p.n)).launches[-1]
    used = ptx.resources(launch.source, "sm_90", tile.threads, sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
    warps = ceil_div(tile.groups * tile.threads // 32, 4)  # of a quarter of the unit
    assert warps * 32 * round_up(used["registers"], 8) <= 16384
    assert tile.groups * (used["local"] + 1024) <= 228 * 1024
