"""Convolution solvers against a NumPy reference in float64 that loops over taps."""

import dataclasses
import itertools

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.conv import depthwise, depthwise_strips
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.patches import PatchConv
from kerascl.kernels.conv.pointwise import PointwiseConv
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    normalise_conv,
)
from kerascl.kernels.conv.tiled import TiledConv
from kerascl.kernels.matmul.tiles import TILES
from kerascl.kernels.units.conv import FragmentConv
from tests import profiles
from tests.kernels.harness import assert_close, poisoned, random_array, run_plan
from tests.kernels.test_gemm import TILE

KINDS = (FORWARD, DATA_GRAD, FILTER_GRAD)


def make(
    rng, kind, spatial, channels, filters, kernel, stride=1, pads=0, dilation=1, groups=1, images=2,
    channels_first=False, dtype="float32", acc=None,
):  # fmt: skip
    """A problem with random inputs (in memory layout) and its float64 result (memory layout)."""
    rank = len(spatial)

    def many(value):
        return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank

    kernel, stride, dilation = many(kernel), many(stride), many(dilation)
    pads = tuple(q if isinstance(q, tuple) else (q, q) for q in many(pads))
    out = tuple(
        (n + lo + hi - d * (k - 1) - 1) // s + 1
        for n, (lo, hi), d, k, s in zip(spatial, pads, dilation, kernel, stride)
    )
    assert min(out) > 0
    dtype = dtypes.as_dtype(dtype)
    acc = dtypes.as_dtype(acc) if acc else dtype.accumulator
    x_shape = (images, *spatial, channels)
    w_shape = (*kernel, channels // groups, filters)
    y_shape = (images, *out, filters)
    problem = ConvProblem(
        kind, x_shape, w_shape, y_shape, stride, pads, dilation, groups, channels_first,
        dtype, dtype, acc,
    )  # fmt: skip
    x, w, y = (random_array(rng, s, dtype) for s in (x_shape, w_shape, y_shape))
    a, b = {FORWARD: (x, w), DATA_GRAD: (y, w), FILTER_GRAD: (x, y)}[kind]
    want = reference(problem, a, b)

    def memory(array):
        return np.moveaxis(array, -1, 1) if channels_first else array

    inputs = {
        "a": np.ascontiguousarray(memory(a)),
        "b": np.ascontiguousarray(memory(b) if kind == FILTER_GRAD else b),
    }
    return problem, inputs, np.ascontiguousarray(want if kind == FILTER_GRAD else memory(want))


def reference(p: ConvProblem, a, b):
    """The definition, tap by tap, in float64 (or int64)."""
    wide = np.float64 if p.a.is_float else np.int64
    a, b = a.astype(wide), b.astype(wide)
    result = np.zeros(p.out_shape, wide)
    cg, fg = p.w_shape[-2], p.w_shape[-1] // p.groups
    for tap in itertools.product(*map(range, p.w_shape[:-2])):
        inside_y, inside_x = [], []
        for o, n, s, j, d, (lo, _) in zip(
            p.y_shape[1:], p.x_shape[1:-1], p.strides, tap, p.dilation, p.pads
        ):
            at = np.arange(o) * s + j * d - lo
            inside_y.append(np.flatnonzero((at >= 0) & (at < n)))
            inside_x.append(at[inside_y[-1]])
        images = np.arange(p.x_shape[0])
        for g in range(p.groups):
            cs, fs = np.arange(g * cg, (g + 1) * cg), np.arange(g * fg, (g + 1) * fg)
            xs, ys = np.ix_(images, *inside_x, cs), np.ix_(images, *inside_y, fs)
            if p.kind == FORWARD:
                result[ys] += a[xs] @ b[tap][:, fs]
            elif p.kind == DATA_GRAD:
                result[xs] += a[ys] @ b[tap][:, fs].T
            else:
                result[tap][:, fs] += a[xs].reshape(-1, cg).T @ b[ys].reshape(-1, fg)
    return result


def check(plan_of, problem, inputs, want, dev):
    out = problem.acc if problem.acc.is_integer or problem.a is dtypes.float64 else problem.a
    plan = plan_of(problem, dev.info, store_epilogue(out))
    got = run_plan(plan, inputs, poisoned(want.shape, out), dev)
    assert_close(got, want, problem.acc, problem.terms)


def force(solver):
    """A planner that uses one solver, and skips the test where it does not apply."""

    def plan_of(problem, info, epilogue):
        problem = normalise_conv(problem)
        if not solver.applies(problem, info):
            pytest.skip(f"{solver.name} does not apply")
        return solver.plan(problem, info, epilogue)

    return plan_of


DEPTHWISE_TYPES = tuple(map(type, depthwise.SOLVERS))
ELSEWHERE = (TiledConv, PointwiseConv, FragmentConv, *DEPTHWISE_TYPES)
TILED = [s for s in conv.SOLVERS if isinstance(s, TiledConv)]
GENERAL = [
    *(s for s in conv.SOLVERS if not isinstance(s, ELSEWHERE)),
    TiledConv(TILE["tiled128x32"]), TiledConv(TILE["tiled32x128"], split=3),
]  # fmt: skip

CASES = {
    "3x3": dict(spatial=(9, 11), channels=8, filters=12, kernel=3, pads=1),
    "odd_channels": dict(spatial=(7, 10), channels=3, filters=5, kernel=3, pads=1),
    "stem": dict(spatial=(21, 19), channels=3, filters=16, kernel=7, stride=2, pads=3),
    "stride_2": dict(
        spatial=(10, 13), channels=8, filters=8, kernel=3, stride=2, pads=((0, 1), (0, 1))
    ),
    "stride_3_2": dict(
        spatial=(11, 12), channels=4, filters=8, kernel=(5, 2), stride=(3, 2), pads=2
    ),
    "stride_above_kernel": dict(spatial=(9, 9), channels=4, filters=4, kernel=1, stride=2),
    "stride_dilation": dict(
        spatial=(15, 17),
        channels=4,
        filters=4,
        kernel=3,
        stride=(2, 3),
        dilation=(4, 3),
        pads=((3, 5), (4, 2)),
    ),
    "stride_dilation_coprime": dict(
        spatial=(14, 15),
        channels=4,
        filters=8,
        kernel=(4, 3),
        stride=(3, 2),
        dilation=(2, 3),
        pads=4,
    ),
    "dilation": dict(spatial=(12, 9), channels=8, filters=4, kernel=3, dilation=2, pads=2),
    "asymmetric": dict(spatial=(8, 9), channels=4, filters=8, kernel=(2, 4), pads=((0, 3), (2, 1))),
    "cropping": dict(spatial=(12, 11), channels=4, filters=8, kernel=3, pads=((-1, -2), (2, -3))),
    "groups": dict(spatial=(7, 8), channels=12, filters=24, kernel=3, pads=1, groups=3),
    "groups_odd": dict(spatial=(7, 8), channels=6, filters=9, kernel=3, pads=1, groups=3, stride=2),
    "1x1": dict(spatial=(6, 7), channels=20, filters=33, kernel=1),
    "1x1_stride": dict(spatial=(6, 7), channels=20, filters=36, kernel=1, stride=2),
    "wide": dict(spatial=(5, 6), channels=36, filters=132, kernel=3, pads=1, images=3),
    "1d": dict(
        spatial=(29,), channels=8, filters=12, kernel=5, stride=2, pads=((4, 0),), dilation=1
    ),
    "1d_causal": dict(spatial=(20,), channels=4, filters=4, kernel=3, pads=((6, 0),), dilation=3),
    "3d": dict(
        spatial=(5, 6, 7),
        channels=4,
        filters=8,
        kernel=(3, 2, 3),
        stride=(2, 1, 2),
        pads=((1, 1), (0, 1), (1, 0)),
    ),
    "3d_groups": dict(
        spatial=(4, 5, 6),
        channels=6,
        filters=4,
        kernel=2,
        stride=2,
        dilation=(1, 2, 1),
        groups=2,
        pads=1,
    ),
    "kernel_beyond_image": dict(spatial=(3, 2), channels=4, filters=4, kernel=5, pads=3),
}
DEPTHWISE = {
    "3x3": dict(spatial=(9, 10), channels=20, filters=20, kernel=3, pads=1),
    "stride": dict(
        spatial=(10, 13), channels=8, filters=8, kernel=3, stride=2, pads=((0, 1), (0, 1))
    ),
    "multiplier": dict(
        spatial=(8, 7), channels=5, filters=15, kernel=(3, 5), pads=2, dilation=(2, 1)
    ),
    "few_channels": dict(spatial=(6, 5), channels=3, filters=3, kernel=3, pads=1, dilation=2),
    "5x5": dict(spatial=(12, 12), channels=32, filters=32, kernel=5, stride=(2, 3), pads=2),
    "1d": dict(spatial=(40,), channels=3, filters=6, kernel=4, pads=((3, 0),)),
    "3d": dict(spatial=(4, 5, 6), channels=6, filters=6, kernel=3, pads=1, stride=(1, 2, 1)),
    "walks": dict(spatial=(21, 19), channels=24, filters=24, kernel=3, pads=1, images=3),
    "walks_stride": dict(
        spatial=(23, 18), channels=12, filters=12, kernel=3, stride=2, pads=((0, 1), (1, 0))
    ),
    "7x7": dict(spatial=(11, 9), channels=10, filters=10, kernel=7, pads=3),
    "cropping": dict(
        spatial=(12, 11), channels=4, filters=4, kernel=3, stride=2, pads=((-1, -2), (2, -3))
    ),
    "stride_above_kernel": dict(
        spatial=(11, 13), channels=8, filters=8, kernel=(2, 1), stride=(3, 2), pads=((1, 2), (0, 1))
    ),
    "1d_lanes": dict(spatial=(37,), channels=8, filters=8, kernel=4, pads=((3, 0),)),
}


@pytest.mark.every(11)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("solver", GENERAL, ids=lambda s: s.name)
def test_each_solver(dev, solver, case, kind, channels_first, rng):
    if "Portable" in dev.info.platform and isinstance(solver, TiledConv) and case not in (
        "odd_channels", "stride_dilation", "groups", "3d",
    ):  # fmt: skip
        pytest.skip("PoCL takes seconds to build each variant")
    check(force(solver), *make(rng, kind, channels_first=channels_first, **CASES[case]), dev)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", TILED, ids=lambda s: s.name)
def test_each_tile(dev, solver, kind, rng):
    if "Portable" in dev.info.platform:
        pytest.skip("PoCL takes seconds to build each of these")
    check(force(solver), *make(rng, kind, **CASES["wide"]), dev)


@pytest.mark.every(3)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "spatial, kernel, stride, dilation, groups",
    [
        ((9, 7), 3, 1, 1, 1), ((11, 8), (3, 2), (2, 3), 1, 2),
        ((3, 4, 5), (2, 3, 2), 1, (1, 2, 1), 1),
    ],
)  # fmt: skip
def test_steps_within_one_tap(
    dev, spatial, kernel, stride, dilation, groups, kind, channels_first, rng
):
    """Where channels are a multiple of a tile's depth, which then holds one tap only."""
    made = make(
        rng, kind, spatial, 32 * groups, 48 * groups, kernel, stride, 1, dilation, groups,
        channels_first=channels_first,
    )  # fmt: skip
    check(force(TiledConv(TILE["tiled128x32"], split=2)), *made, dev)


@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["1x1", "3x3", "stride_2", "groups", "1d", "3d"])
def test_plan(dev, case, kind, channels_first, rng):
    check(conv.plan, *make(rng, kind, channels_first=channels_first, **CASES[case]), dev)


@pytest.mark.every(7)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", DEPTHWISE)
@pytest.mark.parametrize("solver", depthwise.SOLVERS, ids=lambda s: s.name)
def test_depthwise(dev, solver, case, kind, channels_first, rng):
    problem, inputs, want = make(rng, kind, groups=DEPTHWISE[case]["channels"],
                                 channels_first=channels_first, **DEPTHWISE[case])  # fmt: skip
    check(force(solver), problem, inputs, want, dev)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_depthwise_strips_dtypes(dev, dtype, kind, rng):
    for channels, stride in ((12, 1), (6, 2), (5, 2)):
        problem = make(rng, kind, (11, 10), channels, channels, 3, stride, pads=1, groups=channels,
                       dtype=dtype)  # fmt: skip
        check(force(depthwise_strips.DepthwiseStrips()), *problem, dev)


@pytest.mark.parametrize("kind", KINDS)
def test_depthwise_strips_on_gpus(dev, kind, rng):
    """A GPU takes them by cost, and enough compute units make the walks short."""
    info = dataclasses.replace(dev.info, kind="gpu", compute_units=132)
    problem, inputs, want = make(rng, kind, (16, 15), 48, 48, 3, 2, pads=1, groups=48, images=5)
    solver = choose(conv.SOLVERS, problem, info)
    assert isinstance(solver, depthwise_strips.DepthwiseStrips)
    results = set()
    for _ in range(2):
        plan = solver.plan(problem, info, store_epilogue(dtypes.float32))
        got = run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), dev)
        assert_close(got, want, problem.acc, problem.terms)
        results.add(got.tobytes())
    assert len(results) == 1


def _macros(launch) -> dict[str, str]:
    lines = (line.split(None, 2) for line in launch.source.splitlines())
    return {line[1]: line[-1] for line in lines if line[:1] == ["#define"]}


def _strip(problem, info) -> tuple[int, int, int]:
    """Lanes and columns of the strips that a device takes, and words of the arrays of the text."""
    plan = depthwise_strips.DepthwiseStrips().plan(problem, info, store_epilogue(problem.acc))
    macros = _macros(plan.launches[0])
    lanes, strip, kh, kw, sh, sw = (
        int(macros[name]) for name in ("LANES", "STRIP", "KH", "KW", "SH", "SW")
    )
    deep, wide = -(-kh // sh), -(-kw // sw)
    if "KIND_SCATTER" in macros:
        arrays = deep * (strip + wide - 1) + strip * sw
    else:
        arrays = deep * strip + (strip - 1) * sw + kw
    narrow = min(info.sub_group_sizes, default=0) if info.registers else 0
    assert (f"sub_group_size({narrow})" in macros["NARROW"]) == (narrow > 0)
    return lanes, strip, lanes * (kh * kw + arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_strips_keep_to_a_card_s_registers(kind, rng):
    """And leave a quarter for the rest, where there is no less than a column of one channel."""
    seen = set()
    for kernel, stride in ((3, 1), (3, 2), (5, 1), (5, 2)):
        problem = make(rng, kind, (14, 14), 8, 8, kernel, stride, pads=kernel // 2, groups=8)[0]
        for name, profile in profiles.load().items():
            info = profile.info
            lanes, strip, words = _strip(problem, info)
            if not info.registers:
                assert (lanes, strip > 1) == (4, True), name
            elif lanes * strip > 1:
                assert words <= 0.75 * info.registers, name
                seen.add(name)
    assert {"rx580", "rx6700xt", "uhd630", "a770", "max1550", "malig715"} <= seen


@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
def test_pointwise_is_a_gemm(dev, channels_first, rng):
    for kind in KINDS:
        for images in (1, 3):
            problem, inputs, want = make(
                rng, kind, images=images, channels_first=channels_first, **CASES["1x1"]
            )
            chosen = choose(conv.SOLVERS, normalise_conv(problem), dev.info)
            impossible = channels_first and kind == FILTER_GRAD and images > 1
            assert isinstance(chosen, PointwiseConv) != impossible
            check(conv.plan, problem, inputs, want, dev)


PATCHES = {
    "vectors": dict(spatial=(8, 16), channels=4, filters=20, kernel=(2, 4)),
    "odd": dict(spatial=(9, 15), channels=3, filters=5, kernel=(3, 5)),
    "cropped": dict(spatial=(11, 14), channels=3, filters=8, kernel=(4, 3)),
    "16x16": dict(spatial=(32, 48), channels=3, filters=24, kernel=16),
    "1d": dict(spatial=(29,), channels=6, filters=4, kernel=4),
    "3d": dict(spatial=(5, 7, 9), channels=2, filters=3, kernel=(2, 3, 4)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "dtype, acc", [*((name, None) for name in ("float32", "bfloat16", "float16", "float64")),
                   ("int8", "int32")],
)  # fmt: skip
@pytest.mark.parametrize("kind", [FORWARD, FILTER_GRAD])
@pytest.mark.parametrize("case", PATCHES)
def test_patches_that_do_not_overlap(dev, case, kind, dtype, acc, rng):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("the device has no doubles")
    case = PATCHES[case]
    made = make(rng, kind, stride=case["kernel"], dtype=dtype, acc=acc, **case)
    assert PatchConv().applies(normalise_conv(made[0]), dev.info)
    check(force(PatchConv()), *made, dev)


def test_patches_of_other_convolutions(dev, rng):
    for name, case in CASES.items():
        for kind in KINDS:
            problem, *_ = make(rng, kind, **case)
            assert not PatchConv().applies(normalise_conv(problem), dev.info), name
    vectors = PATCHES["vectors"]
    for kind, first in ((DATA_GRAD, False), (FORWARD, True), (FILTER_GRAD, True)):
        problem, *_ = make(rng, kind, stride=vectors["kernel"], channels_first=first, **vectors)
        assert not PatchConv().applies(problem, dev.info)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype, acc",
    [("float16", None), ("bfloat16", None), ("float64", None), ("int8", "int32"), ("int32", None)],
)
def test_dtypes(dev, kind, dtype, acc, rng):
    case = dict(spatial=(6, 7), channels=8, filters=12, kernel=3, pads=1, dtype=dtype, acc=acc)
    solvers = [s for s in GENERAL if not isinstance(s, TiledConv)]
    solvers.append(TiledConv(TILE["tiled32x128"]))
    for solver in solvers:
        check(force(solver), *make(rng, kind, **case), dev)
    check(conv.plan, *make(rng, kind, **{**case, "filters": 8}, groups=8), dev)


def test_filter_gradient_repeats(dev, rng):
    problem, inputs, want = make(rng, FILTER_GRAD, (20, 20), 4, 8, 3, pads=1, images=4)
    for solver in GENERAL:
        if not solver.applies(problem, dev.info):
            continue
        plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
        results = [
            run_plan(plan, inputs, poisoned(want.shape, dtypes.float32), dev).tobytes()
            for _ in range(3)
        ]
        assert len(set(results)) == 1


def test_random(dev, rng):
    """Random geometry through `plan`."""
    done = 0
    while done < 12:
        rank = int(rng.integers(1, 3))

        def pick(*values, rank=rank):
            return tuple(int(v) for v in rng.choice(values, rank))

        groups = int(rng.choice([1, 1, 2]))
        spatial, kernel, dilation = pick(1, 3, 8, 13), pick(1, 2, 3, 5), pick(1, 1, 2)
        pads = tuple((int(rng.integers(-1, 4)), int(rng.integers(-1, 4))) for _ in range(rank))
        reach = [n + sum(q) - d * (k - 1) for n, q, d, k in zip(spatial, pads, dilation, kernel)]
        if min(reach) < 1:
            continue
        case = dict(
            spatial=spatial, channels=groups * int(rng.choice([1, 3, 8])),
            filters=groups * int(rng.choice([1, 4, 17])), kernel=kernel, stride=pick(1, 2, 3),
            pads=pads, dilation=dilation, groups=groups, channels_first=bool(rng.integers(2)),
        )  # fmt: skip
        print(case)
        for kind in KINDS:
            check(conv.plan, *make(rng, kind, **case), dev)
        done += 1


@pytest.mark.parametrize("kind", KINDS)
def test_empty(dev, kind, rng):
    """No images: an empty output, or a filter gradient of zeros."""
    check(conv.plan, *make(rng, kind, (5, 5), 3, 4, 3, images=0), dev)


def test_places_of_gathered_gradients_take_registers():
    """Of 128, ocloc gave a tile with sixteen such loads 4 to 10 too few, none one with eight."""
    info = profiles.load()["uhd630"].info
    problem = ConvProblem(
        FILTER_GRAD, (16, 56, 56, 64), (1, 1, 64, 256), (16, 56, 56, 256), (1, 1),
        ((0, 0), (0, 0)), (1, 1), 1, True, *[dtypes.float32] * 3, "high",
    )  # fmt: skip
    taken = {s.tile.name: s.applies(problem, info) for s in map(TiledConv, TILES)}
    assert info.registers == 128
    assert not taken["tiled32x128"] and taken["tiled64x64x8"]
