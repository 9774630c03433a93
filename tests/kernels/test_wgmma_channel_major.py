"""Filter gradients in channel-major layout: the layout and the kernels' index arithmetic anywhere.

What needs a card is in test_wgmma.py.
"""

import dataclasses
import math

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Plan, Scalar
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD, ConvProblem, normalise_conv
from kerascl.kernels.hopper import channel_major, tiles
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.matmul.split_k import MAX_PARTIAL_BYTES
from tests.kernels import ptx
from tests.kernels.harness import POISON, poisoned, random_array, run_outputs


@pytest.fixture
def limit(monkeypatch):
    """Sets how many bytes are laid out at a time."""

    def to(nbytes):
        monkeypatch.setattr(channel_major, "MAX_BYTES", nbytes)
        channel_major.layout.cache_clear()

    yield to
    channel_major.layout.cache_clear()


def filter_grad(x, kernel, f, strides=(1, 1), pads=((1, 1), (1, 1)), dilation=(1, 1), **more):
    sizes = zip(x[1:3], kernel, strides, pads, dilation, strict=True)
    out = [(n + sum(pad) - (k - 1) * d - 1) // s + 1 for n, k, s, pad, d in sizes]
    float32 = dtypes.float32
    p = ConvProblem(
        FILTER_GRAD, x, (*kernel, x[-1], f), (x[0], *out, f), strides, pads, dilation, 1,
        False, float32, float32, float32,
    )  # fmt: skip
    return dataclasses.replace(p, **more)


def reference(p, x, dy):
    """The gradient in float64, pixel by pixel of dy and tap by tap."""
    dw = np.zeros(p.w_shape)
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    for tap in np.ndindex(*p.w_shape[:2]):
        (h, ok_h), (w, ok_w) = (
            (at, (at >= 0) & (at < size))
            for at, size in (
                (np.arange(out) * s + i * d - pad, size)
                for out, s, i, d, (pad, _), size in zip(
                    p.y_shape[1:3], p.strides, tap, p.dilation, p.pads, p.x_shape[1:3],
                    strict=True,
                )
            )
        )  # fmt: skip
        taken = x[:, h[ok_h]][:, :, w[ok_w]]
        dw[tap] = np.tensordot(taken, dy[:, ok_h][:, :, ok_w], ((0, 1, 2), (0, 1, 2)))
    return dw


def tf32(x):
    """Rounded to nearest, ties to even, as TMA loads float32."""
    bits = x.view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def arguments(launch):
    """The numbers that a launch passes, by their names in its source."""
    line = next(s for s in launch.source.splitlines() if s.startswith("#define PARAMS "))
    names = [part.split()[-1] for part in line.split(", ")[1:]]
    numbers = [a.value for a in launch.args if isinstance(a, Scalar) and a.ctype != "ulong8"]
    return dict(zip(names, numbers, strict=False))


def box(operand, k0, row0, rows):
    """What TMA loads: `rows` by 32 elements of a matrix, zeros outside."""
    assert k0 % 4 == 0, "TMA takes multiples of 16 bytes"
    out = np.zeros((rows, channel_major.DEPTH))
    at_k, at_row = k0 + np.arange(channel_major.DEPTH), row0 + np.arange(rows)
    ok_k = (at_k >= 0) & (at_k < operand.shape[1])
    ok_row = at_row < len(operand)
    out[np.ix_(ok_row, ok_k)] = operand[np.ix_(at_row[ok_row], at_k[ok_k])]
    return out


def product(launch, shape, block, xs, dys):
    """part[split][tap, channel][filter], as wgmma.cl computes it in a launch.

    Args:
        xs, dys: the operands: one each, or the high parts and the low parts.
    """
    n = arguments(launch)
    taps, cin, cout = n["KER1"] * n["KER2"], n["CIN"], n["COUT"]
    part = np.full((n["SPLITS"], taps * cin, cout), np.nan)
    for tile in range(n["TILES"]):
        split, at = divmod(tile, n["TILES_M"] * n["TILES_N"])
        pn, pm = divmod(at, n["TILES_M"])  # the order of a split's tiles is free
        tile_sum = np.zeros((shape.bm, shape.bn))
        begin = split * n["SLICE"]
        for k0 in range(begin * 32, min(n["CHUNKS"], begin + n["SLICE"]) * 32, 32):
            a = [np.zeros((shape.bm, 32)) for _ in xs]
            for p in range(shape.bm // block):
                tap, c = divmod(pm * (shape.bm // block) + p, n["CHANNEL_BLOCKS"])
                i, j = divmod(tap, n["KER2"])
                shift = (i * n["DIL1"] - n["PAD1"]) // n["STRIDE1"] * n["GRID2"]
                shift += (j * n["DIL2"] - n["PAD2"]) // n["STRIDE2"]
                shift *= n["IMAGES"]
                phase = i % n["PERIOD1"] * n["PHASES2"] + j % n["PERIOD2"]
                row = phase * cin + c * block if tap < taps else 1 << 24
                for side, x in zip(a, xs, strict=True):
                    side[p * block :][:block] = box(x, k0 + shift, row, block)
            b = [box(dy, k0, pn * shape.bn, shape.bn) for dy in dys]
            if len(a) > 1:
                tile_sum += a[1] @ b[0].T + a[0] @ b[1].T
            tile_sum += a[0] @ b[0].T
        for row in range(shape.bm):
            tap, c = divmod(pm * (shape.bm // block) + row // block, n["CHANNEL_BLOCKS"])
            c = c * block + row % block
            if tap < taps and c < cin:
                wide = min(shape.bn, cout - pn * shape.bn)
                at = part[split, tap * cin + c, pn * shape.bn :][:wide]
                assert np.isnan(at).all()
                at[:] = tile_sum[row, :wide]
    return part


def packed(launch, plan, p, x, dy, dev):
    """The workspace that a launch of the layout fills, by slot."""
    a = channel_major.layout(p)
    rows = {"ws0": a.x_rows, "ws1": a.filters, "ws2": a.x_rows, "ws3": a.filters}
    slots = {arg.slot for arg in launch.args[2:6]}
    outs = {s: poisoned((n, a.step), dtypes.float32) for s, n in rows.items() if s in slots}
    return run_outputs(Plan([launch]), {"a": x, "b": dy}, outs, dev)


def computed(solver, p, x, dy, dev):
    """The gradient that a plan gives, its layout on the device, its products modelled."""
    _, shape, _ = solver.best(p, dev.info)
    plan = solver.plan(p, dev.info, store_epilogue(dtypes.float32))
    block = channel_major.layout(p).block
    pairs = [la for la in plan.launches if la.name in ("wgmma_channel_major", "wgmma")]
    parts = []
    for pack, work in zip(pairs[::2], pairs[1::2], strict=True):
        found = packed(pack, plan, p, x, dy, dev)
        operands = [tf32(found[s]) for s in sorted(found)]
        assert not any((o.view(np.uint8) == POISON).all(1).any() for o in operands)
        parts.append(product(work, shape, block, operands[::2], operands[1::2]))
    got = np.concatenate(parts)
    assert len(got) == 1 or plan.launches[-1].name.startswith("gemm_reduce")
    return got.sum(0).reshape(p.w_shape)


SAME = ((1, 1), (1, 1))
NONE = ((0, 0), (0, 0))
CASES = {
    "same": filter_grad((2, 9, 7, 5), (3, 3), 6),
    "valid": filter_grad((2, 9, 8, 70), (3, 2), 3, pads=NONE),
    "asymmetric": filter_grad((2, 7, 6, 17), (3, 3), 4, pads=((0, 2), (3, 1))),
    "cropped": filter_grad((2, 9, 8, 4), (3, 3), 4, pads=((-1, 0), (1, -2))),
    "stride2": filter_grad((3, 9, 8, 5), (3, 3), 6, (2, 2), ((0, 1), (1, 1))),
    "stride3": filter_grad((2, 11, 10, 5), (5, 4), 6, (3, 3), ((2, 2), (1, 2))),
    "stride2x1": filter_grad((2, 8, 9, 33), (3, 3), 65, (2, 1)),
    "large_stride": filter_grad((2, 9, 11, 5), (2, 1), 6, (4, 3), NONE),
    "dilation2": filter_grad((2, 9, 7, 5), (3, 3), 6, pads=((2, 2), (2, 2)), dilation=(2, 2)),
    "dilation3x2": filter_grad((1, 13, 9, 5), (3, 3), 6, pads=((1, 2), (0, 0)), dilation=(3, 2)),
    "stride_and_dilation": filter_grad((2, 11, 12, 5), (3, 3), 6, (2, 3), SAME, (3, 2)),
    "one_pixel": filter_grad((5, 1, 1, 20), (3, 3), 6),
    "tiny": filter_grad((1, 2, 1, 3), (2, 5), 2, pads=((1, 1), (4, 4))),
    "pointwise_stride": filter_grad((2, 9, 8, 40), (1, 1), 20, (2, 2), NONE),
    "one_dimension": normalise_conv(
        dataclasses.replace(
            filter_grad((3, 1, 14, 6), (1, 3), 8, (1, 2), ((0, 0), (1, 1))),
            x_shape=(3, 14, 6), w_shape=(3, 6, 8), y_shape=(3, 7, 8), strides=(2,),
            pads=((1, 1),), dilation=(1,),
        )
    ),
} | {
    f"batch{n}_stride{s}_dilation{d}": filter_grad(
        (n, 7, 5, 19), (3, 2), 21, (s, s), ((2, 0), (1, 3)), (d, d)
    )
    for n in (1, 3, 5, 64) for s in (1, 2, 3) for d in (1, 2)
}  # fmt: skip


@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize("case", CASES)
def test_products_of_planes(dev, case, precision, rng):
    p = dataclasses.replace(CASES[case], precision=precision)
    x, dy = random_array(rng, p.x_shape, p.a), random_array(rng, p.y_shape, p.b)
    shape = channel_major._shapes(p)[-1]
    solver = channel_major.ChannelMajorFilterGradient(
        shape, 2 if case.startswith("stride") else None
    )
    assert solver.takes(p)
    got = computed(solver, p, x, dy, dev)
    want = reference(p, x, dy)
    bound = 1e-6 if precision == "highest" else 2e-3
    assert np.linalg.norm(got - want) < bound * np.linalg.norm(want)


def test_the_reference_agrees_with_another_solver(dev, rng):
    for case in ("cropped", "stride_and_dilation"):
        p = CASES[case]
        x, dy = random_array(rng, p.x_shape, p.a), random_array(rng, p.y_shape, p.b)
        plan = conv.plan(p, dev.info, store_epilogue(dtypes.float32))
        out = poisoned(p.w_shape, dtypes.float32)
        inputs = {"a": x, "b": dy} | {
            f"ws{k}": np.zeros(n, np.uint8) for k, n in enumerate(plan.workspace)
        }
        got = run_outputs(Plan(plan.launches), inputs, {"out": out}, dev)["out"]
        np.testing.assert_allclose(got, reference(p, x, dy), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", (*tiles.PROMOTED, *tiles.SHAPES[:2]), ids=lambda s: s.name)
def test_tiles_of_planes(dev, shape, rng):
    """Every tile, blocks of every size, several slices and parts."""
    precision = "highest" if shape in tiles.PROMOTED else "high"
    p = filter_grad((3, 5, 4, 40), (3, 3), 70, precision=precision)
    x, dy = random_array(rng, p.x_shape, p.a), random_array(rng, p.y_shape, p.b)
    got = computed(channel_major.ChannelMajorFilterGradient(shape, 2), p, x, dy, dev)
    want = reference(p, x, dy)
    assert np.linalg.norm(got - want) < 2e-3 * np.linalg.norm(want)


PARTED = filter_grad((9, 6, 7, 9), (3, 3), 8)
PER_PIXEL = 4 * 2 * 17  # bytes that it takes of what is laid out


def test_parts(dev, limit, rng):
    """Images that do not fit at once are taken in parts, the last of which may have fewer."""
    p = PARTED
    whole = channel_major.layout(p)
    assert (whole.images, whole.parts) == (12, 1)
    limit(PER_PIXEL * 7 * 48)
    a = channel_major.layout(p)
    assert (a.images, a.parts, a.step) == (4, 3, 192)
    x, dy = random_array(rng, p.x_shape, p.a), random_array(rng, p.y_shape, p.b)
    got = computed(channel_major.ChannelMajorFilterGradient(None, 2), p, x, dy, dev)
    want = reference(p, x, dy)
    assert np.linalg.norm(got - want) < 1e-6 * np.linalg.norm(want)
    limit(PER_PIXEL * 3 * 48)
    assert channel_major.layout(p) is None and not channel_major.ChannelMajorFilterGradient().takes(
        p
    )


def test_what_tf32_loses(dev):
    """High and low parts sum up to the value; of what is not finite nothing is lost."""
    p = filter_grad((1, 4, 5, 3), (3, 3), 2)
    x = np.float32(1) + np.float32(2**-11) * np.arange(60, dtype=np.float32).reshape(p.x_shape)
    x.ravel()[[3, 7, 11]] = np.inf, -np.inf, np.nan
    dy = np.ones(p.y_shape, np.float32)
    plan = channel_major.ChannelMajorFilterGradient().plan(
        p, dev.info, store_epilogue(dtypes.float32)
    )
    found = packed(plan.launches[0], plan, p, x, dy, dev)
    high, low = (found[s].reshape(3, 4, 6, 4) for s in ("ws0", "ws2"))
    assert not high[:, :, 5].any() and not high[..., 1:].any()  # margin, images that are not there
    high, low = high[:, :, :5, 0], low[:, :, :5, 0]
    np.testing.assert_array_equal(high, x[0].transpose(2, 0, 1))
    finite = np.isfinite(high)
    assert not low[~finite].any() and low[finite].any()
    np.testing.assert_array_equal(low[finite], high[finite] - tf32(high)[finite])


def test_other_problems_are_left_to_others():
    takes, good = channel_major.ChannelMajorFilterGradient().takes, CASES["same"]
    assert takes(good)
    for change in (
        dict(kind=FORWARD), dict(channels_first=True), dict(a=dtypes.bfloat16),
        dict(acc=dtypes.float64), dict(groups=5, w_shape=(3, 3, 1, 5), y_shape=(2, 9, 7, 5)),
    ):  # fmt: skip
        assert not takes(dataclasses.replace(good, **change))
    # A tile is of one of both kinds.
    assert not channel_major.ChannelMajorFilterGradient(tiles.SHAPES[0]).takes(good)
    assert channel_major.ChannelMajorFilterGradient(tiles.SHAPES[0]).takes(
        dataclasses.replace(good, precision="high")
    )


@pytest.mark.parametrize("images, shifted", [(64, False), (32, False), (48, True), (5, True)])
def test_aligned_lines_cost_less(hopper_info, monkeypatch, images, shifted):
    """Boxes that begin in the middle of a cache's line are estimated to take longer."""
    p = filter_grad((images, 28, 28, 128), (3, 3), 128, precision="high")
    solver = channel_major.ChannelMajorFilterGradient()
    before = solver.best(p, hopper_info)[0]
    monkeypatch.setattr(channel_major, "SHIFTED", 1.0)
    assert (solver.best(p, hopper_info)[0] < before) == shifted


def test_only_rows_of_dy_are_multiplied():
    valid = channel_major.layout(filter_grad((3, 9, 8, 4), (3, 3), 4, pads=NONE))
    assert (valid.step, valid.depth, valid.chunks) == (9 * 8 * 4, 7 * 8 * 4, 7)


def test_stages_fit():
    for shape in tiles.PROMOTED:
        stage = 2 * 128 * (shape.bm + shape.bn)
        assert shape.groups * shape.stages * (stage + 16) <= tiles.SHARED_LIMIT
        assert shape.stages > 1


RESNET = [  # height and width, channels, filters, kernel, stride
    (56, 64, 64, 3, 1), (28, 128, 128, 3, 1), (14, 256, 256, 3, 1), (7, 512, 512, 3, 1),
    (56, 256, 512, 1, 2), (56, 256, 128, 1, 2), (28, 512, 1024, 1, 2), (14, 1024, 2048, 1, 2),
    (28, 256, 256, 3, 2), (14, 512, 512, 3, 2),
]  # fmt: skip


@pytest.mark.parametrize("size, c, f, kernel, stride", RESNET)
def test_layers(hopper_info, size, c, f, kernel, stride):
    """They plan in one part, and the large ones are given to these kernels."""
    pad = kernel // 2
    p = filter_grad(
        (64, size, size, c), (kernel, kernel), f, (stride, stride), ((pad, pad), (pad, pad))
    )
    a = channel_major.layout(p)
    assert a.parts == 1
    plan = channel_major.ChannelMajorFilterGradient().plan(
        p, hopper_info, store_epilogue(dtypes.float32)
    )
    if kernel == 3:
        chosen = conv.plan(p, hopper_info, store_epilogue(dtypes.float32))
        assert [x.source for x in chosen.launches] == [x.source for x in plan.launches]
    assert [launch.name for launch in plan.launches[:2]] == ["wgmma_channel_major", "wgmma"]
    assert sum(plan.workspace) <= channel_major.MAX_BYTES + 2 * MAX_PARTIAL_BYTES
    work = arguments(plan.launches[1])
    assert (work["SPLITS"] - 1) * work["SLICE"] < work["CHUNKS"] <= work["SPLITS"] * work["SLICE"]


def test_layers_left_to_others(hopper_info):
    """Three channels waste most of a tile; images that are no multiple of anything plan too."""
    stem = filter_grad((64, 224, 224, 3), (7, 7), 64, (2, 2), ((3, 3), (3, 3)))
    first = conv.plan(stem, hopper_info, store_epilogue(dtypes.float32)).launches[0]
    assert first.name != "wgmma_channel_major"
    vgg = filter_grad((64, 224, 224, 64), (3, 3), 64)
    a = channel_major.layout(vgg)
    plan = channel_major.ChannelMajorFilterGradient().plan(
        vgg, hopper_info, store_epilogue(dtypes.float32)
    )
    assert a.parts > 1 and len(plan.launches) == 2 * a.parts + 1
    assert math.ceil(64 / a.images) == a.parts


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_sources_compile(hopper_info, precision):
    """Nothing is spilled, no wgmma waits for another, and the groups of a compute unit fit."""
    p = filter_grad((8, 28, 28, 48), (3, 3), 64, precision=precision)
    shapes = tiles.PROMOTED if precision == "highest" else tiles.SHAPES[:1]
    for shape in shapes:
        plan = channel_major.ChannelMajorFilterGradient(shape).plan(
            p, hopper_info, store_epilogue(dtypes.float32)
        )
        used = ptx.resources(plan.launches[1].source, "sm_90", shape.threads, sm_90a)
        assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
        warps = shape.groups * math.ceil(shape.threads / 32)
        assert warps * 32 * math.ceil(used["registers"] / 8) * 8 <= 65536
        assert used["local"] <= tiles.SHARED_LIMIT // shape.groups
    assert ptx.resources(plan.launches[0].source, threads=256)["spills"] == 0
