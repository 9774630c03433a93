"""Convolutions of few channels: how images and weights are laid out anew, anywhere.

What needs a card is in test_wgmma.py.
"""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper import stem, tiles
from kerascl.kernels.hopper.ptx import sm_90a
from tests.kernels import ptx
from tests.kernels.harness import poisoned, random_array, run_outputs

# images, height, width, channels; taps; filters; stride; pads
CASES = {
    "3x3": ((2, 6, 7, 3), (3, 3), 16, 1, ((1, 1), (1, 1))),
    "7x7": ((2, 15, 14, 3), (7, 7), 24, 2, ((3, 3), (3, 3))),
    "11x11": ((1, 23, 31, 3), (11, 11), 8, 4, ((2, 2), (2, 2))),
    "valid": ((2, 9, 8, 5), (2, 4), 8, 3, ((0, 0), (0, 0))),
    "same": ((1, 8, 9, 3), (3, 3), 8, 2, ((0, 1), (0, 1))),
    "line": ((3, 1, 20, 2), (1, 5), 8, 1, ((0, 0), (2, 2))),
    "wide pads": ((1, 4, 4, 4), (3, 3), 8, 1, ((4, 4), (4, 4))),
}


def problem(case, kind=FORWARD, dtype=dtypes.float32, precision="high"):
    x, taps, f, stride, pads = CASES[case] if isinstance(case, str) else case
    out = [(n + sum(pad) - k) // stride + 1 for n, k, pad in zip(x[1:3], taps, pads, strict=True)]
    return ConvProblem(
        kind, x, (*taps, x[-1], f), (x[0], *out, f), (stride, stride), pads, (1, 1), 1, False,
        dtype, dtype, dtypes.float32, precision,
    )  # fmt: skip


def forward(p, x, w):
    """float64, tap by tap."""
    padded = np.pad(x.astype(np.float64), ((0, 0), *p.pads, (0, 0)))
    _, height, width, _ = p.y_shape
    y = np.zeros(p.y_shape)
    for i, j in np.ndindex(*p.w_shape[:2]):
        taken = padded[:, i :: p.strides[0], j :: p.strides[0]][:, :height, :width]
        y += taken @ w[i, j].astype(np.float64)
    return y


def laid_out(p, inputs, dev):
    """Images and weights as the launches leave them in poisoned memory, and their low parts."""
    plan = stem.StemConv().plan(p, dev.info, store_epilogue(dtypes.float32))
    low = p.precision == "highest"
    names = ["ws0", "ws1", "ws2", "ws3"][: 4 if low else 2]
    launches = [launch for launch in plan.launches if launch.name.startswith("stem")]
    assert [launch.name for launch in launches] == ["stem_images", "stem_weights"]
    a = stem.layout(p)
    shapes = [(*p.x_shape[:2], a.wide, a.pixel), (p.w_shape[0], p.w_shape[-1], a.step)] * 2
    outputs = {n: poisoned(s, p.a) for n, s in zip(names, shapes, strict=False)}
    assert [v.nbytes for v in outputs.values()] == plan.workspace[: len(names)]
    got = run_outputs(Plan(launches, []), inputs, outputs, dev)
    return [got[n].astype(np.float64) for n in names]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float16], ids=str)
def test_a_row_of_taps_reads_a_run_of_its_row(case, dtype, dev, rng):
    """The product that wgmma.cl makes of the tensor maps, with their overlapping steps."""
    p = problem(case, dtype=dtype)
    x, w = random_array(rng, p.x_shape, dtype), random_array(rng, p.w_shape, dtype)
    images, weights = laid_out(p, {"a": x, "b": w}, dev)
    a, (_, out_h, out_w, _) = stem.layout(p), p.y_shape
    stride, rows = p.strides[0], images.reshape(*p.x_shape[:2], -1)
    assert all(n * dtype.itemsize % 16 == 0 for n in (stride * a.pixel, rows.shape[-1], a.step))
    y = np.zeros(p.y_shape)
    for i in range(p.w_shape[0]):
        for h in range(out_h):
            row = h * stride + i - p.pads[0][0]
            if not 0 <= row < p.x_shape[1]:
                continue  # zeros out of bounds
            for v in range(out_w):
                run = rows[:, row, v * stride * a.pixel :][:, : a.run]
                assert run.shape[1] == a.run  # never beyond the row
                y[:, h, v] += run @ weights[i, :, : a.run].T
    want = forward(p, x, w)
    assert np.linalg.norm(y - want) <= 1e-12 * np.linalg.norm(want)


def test_low_parts_make_up_for_rounding(dev, rng):
    p = problem("7x7", precision="highest")
    x, w = random_array(rng, p.x_shape, p.a), random_array(rng, p.w_shape, p.a)
    x[0, 0, 0, 0] = np.inf
    images, weights, images_low, weights_low = laid_out(p, {"a": x, "b": w}, dev)
    assert np.isfinite(images_low).all() and np.isfinite(weights_low).all()
    for high, low in ((images, images_low), (weights, weights_low)):
        finite = np.isfinite(high)
        rounded = high[finite] - low[finite]
        bits = rounded.astype(np.float32).view(np.uint32)
        assert not (bits & 0x1FFF).any()
        assert np.all(np.abs(low[finite]) <= np.abs(high[finite]) * 2.0**-11)


def test_first_layers_choose_it(hopper_info):
    same = ((1, 1), (1, 1))
    layers = {
        "vgg16": ((64, 224, 224, 3), (3, 3), 64, 1, same),
        "resnet50": ((64, 230, 230, 3), (7, 7), 64, 2, ((0, 0), (0, 0))),
        "alexnet": ((64, 224, 224, 3), (11, 11), 64, 4, ((2, 2), (2, 2))),
    }
    for name, layer in layers.items():
        # A row of 11 taps of float32 takes two stages, the second nearly empty.
        for dtype in (dtypes.bfloat16,) if name == "alexnet" else (dtypes.float32, dtypes.bfloat16):
            plan = conv.plan(problem(layer, dtype=dtype), hopper_info, store_epilogue(dtype))
            assert "stem_images" in [launch.name for launch in plan.launches]
        p = problem(layer, FILTER_GRAD, dtypes.bfloat16)
        plan = conv.plan(p, hopper_info, store_epilogue(dtypes.bfloat16))
        assert "stem_images" in [launch.name for launch in plan.launches]
    wide = ((64, 56, 56, 64), (3, 3), 64, 1, same)
    plan = conv.plan(problem(wide), hopper_info, store_epilogue(dtypes.float32))
    assert "stem_images" not in [launch.name for launch in plan.launches]


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("kind", [FORWARD, FILTER_GRAD])
@pytest.mark.parametrize("shape", stem.FILTER_SHAPES, ids=lambda shape: shape.name)
def test_tiles_stay_in_registers(kind, shape, hopper_info):
    p = problem("7x7", kind, dtypes.bfloat16)
    solver = stem.StemConv if kind == FORWARD else stem.StemFilterGradient
    plan = solver(shape).plan(p, hopper_info, store_epilogue(dtypes.bfloat16))
    launch = next(launch for launch in plan.launches if launch.name == "wgmma")
    used = ptx.resources(launch.source, "sm_90", shape.threads, sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
    assert used["local"] <= tiles.SHARED_LIMIT


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [FORWARD, FILTER_GRAD])
@pytest.mark.parametrize(
    ("dtype", "precision", "bound"),
    [
        (dtypes.float32, "high", 1e-3), (dtypes.float32, "highest", 2e-6),
        (dtypes.bfloat16, "high", 2e-5), (dtypes.float16, "high", 2e-5),
    ],
    ids=["tf32", "float32", "bfloat16", "float16"],
)  # fmt: skip
def test_convolutions(case, kind, dtype, precision, bound, dev, rng):
    if not hopper_probe.available(dev.info, "wgmma_stem"):
        pytest.skip("the device has no warpgroup matrix instructions")
    p = problem(case, kind, dtype, precision)
    solver = stem.StemConv if kind == FORWARD else stem.StemFilterGradient
    x, w, dy = (random_array(rng, s, dtype) for s in (p.x_shape, p.w_shape, p.y_shape))
    want = forward(p, x, w)
    if kind == FILTER_GRAD:
        # linear in w, so the gradient's every element is a forward pass with one tap
        want = np.zeros(p.w_shape)
        for at in np.ndindex(*p.w_shape[:3]):
            one = np.zeros((*p.w_shape[:3], 1))
            one[at] = 1
            q = dataclasses.replace(p, y_shape=(*p.y_shape[:3], 1))
            want[at] = np.tensordot(forward(q, x, one)[..., 0], dy.astype(np.float64), 3)
    for tile in (None, *stem.FILTER_SHAPES):
        if not solver(tile).takes(p):
            continue
        plan = solver(tile, 1 if tile else None).plan(p, dev.info, store_epilogue(dtypes.float32))
        inputs = {"a": x, "b": w if kind == FORWARD else dy}
        out = {"out": poisoned(p.out_shape, dtypes.float32)}
        got = run_outputs(plan, inputs, out, dev)["out"]
        assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want)
