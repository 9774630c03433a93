"""Warpgroup matrix instructions: what the host prepares for them anywhere, the kernels themselves
where a device has them."""

import dataclasses
import math

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.source import prelude
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.hopper import (
    channel_major,
    filter_gradient,
    halo,
    register_blocked,
    tiles,
    transposed,
)
from kerascl.kernels.hopper import conv as hopper_conv
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper.pack import Matrix, pack_launch, packed_step
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.hopper.tma import map_words
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests import asked
from tests.kernels import ptx, test_wgmma_channel_major
from tests.kernels.harness import assert_close, poisoned, random_array, run_plan


@pytest.fixture
def hopper(dev):
    if not hopper_probe.available(dev.info):
        pytest.skip("the device has no warpgroup matrix instructions")
    return dev


def passing(name):
    """A fixture: the card, which must have passed this name's self-test."""

    @pytest.fixture
    def card(hopper):
        assert hopper_probe.available(hopper.info, name), "the device failed this self-test"
        return hopper

    return card


with_channel_major = passing(channel_major.ChannelMajorFilterGradient.self_test)
with_halo = passing(halo.HaloConv.self_test)
with_transposed = passing(transposed.TransposedMatmul.self_test)
with_register_blocked16 = passing(register_blocked.RegisterBlockedFilterGradient16.self_test)


PTX = """\
.version 8.8
.target sm_90, texmode_independent
.address_size 64
.entry wgmma(
	.param .u64 .ptr .global .align 1 wgmma_param_0
)
.reqntid 288, 1, 1
{
	.shared .align 1024 .b8 wgmma_$_ring[4096];
	// begin inline asm
	//#shared 196672
	// end inline asm
	//@ wgmma.fence.sync.aligned;
	{ .reg .pred p; setp.ne.b32 p, %r1, 0;
//@ wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, p, 1, 1, 0, 1;
}
}
"""


def test_rewrite():
    text = sm_90a(PTX.encode() + b"\0").decode()
    assert ".target sm_90a, texmode_independent" in text
    assert "wgmma_$_ring[196672];" in text
    assert "//@" not in text
    assert "\t wgmma.fence.sync.aligned;" in text
    assert "\n wgmma.mma_async.sync.aligned" in text
    marked = PTX.replace("//@ wgmma.fence", "//#entry .minnctapersm 2\n\t//@ wgmma.fence")
    assert ".reqntid 288, 1, 1\n.minnctapersm 2\n" in sm_90a(marked.encode()).decode()


@pytest.mark.parametrize(
    "old, new",
    [
        (".target sm_90,", ".target sm_80,"),
        ("//#shared", "//"),
        (".shared .align", ".local .align"),
    ],
)
def test_rewrite_refuses_what_it_does_not_know(old, new):
    with pytest.raises(ValueError):
        sm_90a(PTX.replace(old, new).encode())


# Words 1 to 8 that cuTensorMapEncodeTiled writes (driver 580).
MAP_2D = (
    0x7d00046510, 0x0, 0x0, 0x14c000003e7, 0x0, 0x3f00000000000000, 0x7f, 0x4000,
)  # fmt: skip
MAP_4D = (
    0xa000563b0, 0x8a200000082, 0x0, 0xc00000027, 0x200000010, 0x1f00000000000000, 0x10307, 0x2000,
)  # fmt: skip
MAP_5D = (
    0xc00046340, 0x90000000300, 0x1200, 0x3f0000005f, 0x100000002, 0x3f00000000000004, 0x3f, 0x2000,
)  # fmt: skip


def test_map_words():
    assert map_words(dtypes.bfloat16, (1000, 333), (2000,), (64, 128)) == MAP_2D
    assert map_words(dtypes.float32, (40, 13, 17, 3), (160, 2080, 35360), (32, 8, 4, 2)) == MAP_4D
    assert (
        map_words(dtypes.float16, (96, 64, 3, 2, 5), (192, 12288, 36864, 73728), (64, 64, 1, 1, 1))
        == MAP_5D
    )


@pytest.mark.parametrize("seed", range(20))
def test_boxes_cover(seed):
    rng = np.random.default_rng(seed)
    images, height, width = (int(v) for v in rng.integers(1, 70, 3))
    rows = int(rng.choice([64, 128, 256]))
    tiles, n, h, w = hopper_conv.box(images, height, width, rows)
    assert 1 <= n * h * w <= rows
    assert tiles == math.ceil(images / n) * math.ceil(height / h) * math.ceil(width / w)
    # Never worse than a row of pixels of one image after the other.
    row = min(width, rows)
    assert tiles <= math.ceil(width / row) * height * images


def test_boxes_of_common_layers_waste_nothing():
    for size in (56, 28, 14):
        assert hopper_conv.box(64, size, size, 128)[0] * 128 == 64 * size * size


def problem(m, n, k, a, b, a_offset=0, b_offset=0, dtype=dtypes.bfloat16, batch=()):
    made = MatmulProblem(
        m, n, k, batch, a, b, dtype, dtype, dtypes.float32, a_offset, b_offset, "high"
    )
    return normalise_matmul(made)


def test_layouts():
    layouts = hopper_matmul.HopperMatmul().layouts
    assert layouts(problem(64, 32, 48, (48, 1), (32, 1))) == ("k", "mn")
    assert layouts(problem(64, 32, 48, (1, 64), (1, 48))) == ("mn", "k")
    tf32 = problem(64, 32, 48, (48, 1), (32, 1), dtype=dtypes.float32)
    assert layouts(tf32) == ("k", "pack")
    # Rows, offsets and batches that are no whole number of 16 bytes.
    assert layouts(problem(64, 33, 47, (47, 1), (33, 1))) == ("pack", "pack")
    assert layouts(problem(64, 32, 48, (48, 1), (32, 1), a_offset=4)) == ("pack", "mn")
    odd = problem(64, 32, 48, (3076, 48, 1), (0, 32, 1), batch=(2,))
    assert layouts(odd) == ("pack", "mn")
    # One row or one k: its stride is never used.
    assert layouts(problem(1, 32, 48, (5, 1), (32, 1))) == ("k", "mn")
    # Elements far apart in both directions.
    assert layouts(problem(64, 32, 48, (96, 2), (32, 1))) == ("pack", "mn")


def test_other_problems_are_left_to_others():
    takes = hopper_matmul.HopperMatmul().takes
    good = problem(64, 32, 48, (48, 1), (32, 1))
    assert takes(good)
    assert not takes(dataclasses.replace(good, a=dtypes.float32))
    assert not takes(dataclasses.replace(good, a=dtypes.int8, b=dtypes.int8, acc=dtypes.int32))
    assert not takes(dataclasses.replace(good, acc=dtypes.float64))


def test_no_self_test_where_there_are_no_instructions(dev, monkeypatch):
    info = dataclasses.replace(dev.info, matrix="mma80")
    monkeypatch.setattr(asked, "_run", lambda *_: pytest.fail("a self-test was run"))
    assert not hopper_probe.available(info)
    monkeypatch.setenv("KERASCL_WGMMA", "0")
    assert not hopper_probe.available(dataclasses.replace(info, matrix="wgmma90"))


@pytest.mark.slow
def test_the_result_of_the_self_test_is_kept(dev, monkeypatch, tmp_path):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    # A device like this one, except that it claims to have the instructions.
    info = dataclasses.replace(dev.info, matrix="wgmma90", clock_mhz=1)
    if hopper_probe.available(dev.info):
        pytest.skip("the self-test passes here")
    tests = hopper_probe.tests(hopper_probe.BASE)
    results = asked.results(info, tests)
    assert all(results.values()) and len(results) == len(hopper_probe.parts(hopper_probe.BASE))
    assert not hopper_probe.available(info)
    asked.forget()
    monkeypatch.setattr(asked, "_run", lambda *_: pytest.fail("none was kept"))
    assert asked.results(info, tests) == results


def test_kernels_that_fail_leave_the_others_in_use(dev, monkeypatch, tmp_path):
    monkeypatch.setenv("KERASCL_CACHE_DIR", str(tmp_path))
    info = dataclasses.replace(dev.info, matrix="wgmma90", clock_mhz=3)
    wrong = {channel_major.ChannelMajorFilterGradient.self_test: "it is wrong"}
    monkeypatch.setattr(
        asked, "_run", lambda _, tests: [(wrong.get(test.name, ""), True) for test in tests]
    )
    p = test_wgmma_channel_major.CASES["same"]
    assert hopper_probe.available(info)
    assert channel_major.ChannelMajorFilterGradient().takes(
        p
    ) and not channel_major.ChannelMajorFilterGradient().applies(p, info)
    asked.forget()


@pytest.mark.parametrize("high", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_packing(dev, transpose, high, rng):
    batch, rows, k = (2, 1, 3), 70, 45
    data = random_array(rng, (*batch, k, rows) if transpose else (*batch, rows, k), dtypes.float32)
    data.ravel()[:4] = np.float32(1) + np.float32(2**-11) * np.arange(-1, 7, 2)  # ties
    data.ravel()[4:6] = np.inf, -np.inf
    steps = tuple(s // 4 for s in data.strides)
    row, depth = (1, rows) if transpose else (k, 1)
    view = data.swapaxes(-1, -2) if transpose else data
    step = packed_step(dtypes.float32, k)
    assert step == 48
    matrix = Matrix("a", rows, k, row, depth, 0, batch, steps[:3])
    outputs = ("out", "ws0") if high else ("ws0", "out")
    launch = pack_launch(matrix, dtypes.float32, "int", *outputs)
    out = poisoned((*batch, rows, step), dtypes.float32)
    got = run_plan(Plan([launch], [out.nbytes]), {"a": data}, out, dev)
    assert not got[..., k:].any()
    if high:
        np.testing.assert_array_equal(got[..., :k], view)
        return
    # tf32 has ten bits of mantissa: the nearest multiple of 2**(exponent - 10), ties to even.
    finite = np.where(np.isfinite(view), view, 0).astype(np.float64)
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(finite), 1e-30))) - 10)
    np.testing.assert_array_equal(got[..., :k], finite - np.rint(finite / unit) * unit)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("width", [4, 8])
def test_vector_epilogue(dev, dtype, width, rng):
    if dtype.itemsize > 8:
        assert "EPILOGUE_VECTOR" not in store_epilogue(dtype).defines
        return
    if dtype.name == "float64" and not dev.info.fp64:
        pytest.skip("the device has no float64")
    if dtype.is_complex:
        pytest.skip("no product accumulates in float and stores complex numbers")
    total = 64
    a = np.rint(rng.standard_normal(total) * 9).astype(np.float32)
    # What is added lies in memory in the same dtype.
    load, compute = VectorLoad("more", dtype, "more_"), "const float value = fabs(acc) + more_;"
    epilogue = Epilogue(
        f", __global {dtype.storage}* restrict out, __global const {dtype.storage}* more",
        (Ref("out"), Ref("b")),
        "",
        loads=(load,),
        compute=compute,
        stores=(VectorStore("out", dtype, f"(({dtype.compute})value)"),),
    )
    source = (
        prelude("int", ACC=dtypes.float32, OUT=dtype)
        + epilogue.defines
        + """
__kernel void test(__global const float* a EPILOGUE_PARAMS) {
  const int at = get_global_id(0) * WIDTH;
  float values[WIDTH];
  for (int k = 0; k < WIDTH; ++k) values[k] = a[at + k];
  EPILOGUE_VECTOR(WIDTH, values, at)
}
""".replace("WIDTH", str(width))
    )
    launch = Launch(source, "test", (Ref("a"), *epilogue.args), (total // width,), None)
    more = (np.arange(total) % 5).astype(dtype.numpy)
    got = run_plan(Plan([launch]), {"a": a, "b": more}, poisoned((total,), dtype), dev)
    want = (np.abs(a) + more.astype(np.float32)).astype(dtype.numpy)
    np.testing.assert_array_equal(got, want)


def test_scalar_arguments():
    assert Scalar("int", 3).host == np.int32(3)
    assert Scalar("ulong8", range(8)).host == np.arange(8, dtype=np.uint64).tobytes()


ORDERS = [(False, False), (True, True), (False, True), (True, False)]
SHAPES = [
    (256, 256, 256, ()), (200, 136, 424, ()), (333, 1000, 72, ()), (1000, 40, 1000, ()),
    (64, 96, 64, (2, 3)), (24, 8, 16, (5,)), (70, 33, 37, ()), (130, 10, 300, ()),
]  # fmt: skip


def relative(got, want):
    return np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)


def bound(dtype, precision):
    if dtype is not dtypes.float32:
        return 1e-5
    return 1e-6 if precision == "highest" else 6e-4


@pytest.mark.parametrize(
    "dtype, precision",
    [("bfloat16", "high"), ("float16", "high"), ("float32", "high"), ("float32", "highest")],
)
@pytest.mark.parametrize("shape", tiles.SHAPES + tiles.PROMOTED[:1], ids=lambda s: s.name)
def test_products(hopper, shape, dtype, precision, rng):
    dtype = dtypes.as_dtype(dtype)
    for splits in (None, 3):
        solver = hopper_matmul.HopperMatmul(shape, splits)
        for m, n, k, batch in SHAPES if splits is None else SHAPES[1:3]:
            for turn_a, turn_b in ORDERS:
                a = random_array(rng, (*batch, k, m) if turn_a else (*batch, m, k), dtype)
                b = random_array(rng, (*batch, n, k) if turn_b else (*batch, k, n), dtype)
                a_view = a.swapaxes(-1, -2) if turn_a else a
                b_view = b.swapaxes(-1, -2) if turn_b else b
                strides = [tuple(s // dtype.itemsize for s in v.strides) for v in (a_view, b_view)]
                p = normalise_matmul(
                    MatmulProblem(
                        m, n, k, batch, *strides, dtype, dtype, dtypes.float32,
                        precision=precision,
                    )
                )  # fmt: skip
                if not solver.takes(p):
                    continue
                want = a_view.astype(np.float64) @ b_view.astype(np.float64)
                plan = solver.plan(p, hopper.info, store_epilogue(dtypes.float32))
                out = poisoned(want.shape, dtypes.float32)
                got = run_plan(plan, {"a": a, "b": b}, out, hopper)
                assert relative(got, want) < bound(dtype, precision)


@pytest.mark.parametrize("shape", (None, *transposed.SHAPES), ids=str)
def test_transposed_products(with_transposed, shape, rng):
    more = (2600, 2600, 104, ()), (300, 200, 9000, ())
    for number, (m, n, k, batch) in enumerate((*SHAPES, *more)):
        row = 4 * math.ceil(n / 4)
        a, b = (random_array(rng, (*batch, *s), dtypes.float32) for s in ((m, k), (k, row)))
        strides = [tuple(s // 4 for s in x.strides) for x in (a, b)]
        p = normalise_matmul(
            MatmulProblem(
                m, n, k, batch, *strides, *(dtypes.float32,) * 3, precision="high"
            )
        )  # fmt: skip
        want = a.astype(np.float64) @ b[..., :n].astype(np.float64)
        solver = transposed.TransposedMatmul(shape, 1 + number % 3 if shape else None)
        plan = solver.plan(p, with_transposed.info, store_epilogue(dtypes.float32))
        out = poisoned(want.shape, dtypes.float32)
        results = [run_plan(plan, {"a": a, "b": b}, out, with_transposed) for _ in range(3)]
        assert relative(results[0], want) < bound(dtypes.float32, "high")
        assert len({r.tobytes() for r in results}) == 1


CONVOLUTIONS = [  # images, height, width, channels, filters, kernel, stride, padding
    (3, 13, 13, 40, 24, 3, 1, 1), (2, 56, 56, 64, 64, 3, 1, 1), (5, 7, 7, 128, 256, 3, 1, 1),
    (2, 15, 11, 32, 48, 5, 1, 2), (2, 28, 28, 64, 72, 3, 2, 1), (2, 27, 31, 48, 40, 3, 2, 1),
    (2, 28, 28, 64, 128, 1, 2, 0), (2, 30, 30, 24, 16, 3, 3, 0), (1, 9, 40, 16, 8, 2, 2, 0),
]  # fmt: skip


def convolution(kind, images, height, width, c, f, size, stride, pad, dtype, precision):
    out = tuple((n + 2 * pad - size) // stride + 1 for n in (height, width))
    return ConvProblem(
        kind, (images, height, width, c), (size, size, c, f), (images, *out, f),
        (stride, stride), ((pad, pad), (pad, pad)), (1, 1), 1, False, dtype, dtype,
        dtypes.float32, precision,
    )  # fmt: skip


def reference(p, a, b):
    """The convolution or one of its gradients in float64, tap by tap."""
    (stride, _), ((pad, _), _) = p.strides, p.pads
    images, height, width, c = p.x_shape
    _, oh, ow, _ = p.y_shape
    b = b.astype(np.float64)
    padded = np.zeros((images, height + 2 * pad + stride, width + 2 * pad + stride, c))
    out = np.zeros(p.w_shape if p.kind == FILTER_GRAD else p.y_shape)
    if p.kind != DATA_GRAD:
        padded[:, pad : pad + height, pad : pad + width] = a
    for i in range(p.w_shape[0]):
        for j in range(p.w_shape[1]):
            taken = padded[:, i : i + oh * stride : stride, j : j + ow * stride : stride]
            if p.kind == FORWARD:
                out += taken[:, :oh, :ow] @ b[i, j]
            elif p.kind == FILTER_GRAD:
                out[i, j] = np.tensordot(taken[:, :oh, :ow], b, ((0, 1, 2), (0, 1, 2)))
            else:
                taken[:, :oh, :ow] += a.astype(np.float64) @ b[i, j].T
    return padded[:, pad : pad + height, pad : pad + width] if p.kind == DATA_GRAD else out


def operands(rng, p):
    """Random inputs of a convolution problem."""
    a = random_array(rng, p.y_shape if p.kind == DATA_GRAD else p.x_shape, p.a)
    return a, random_array(rng, p.y_shape if p.kind == FILTER_GRAD else p.w_shape, p.b)


@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD, FILTER_GRAD])
def test_reference(dev, kind, rng):
    """The reference of these tests agrees with the solver of last resort."""
    p = convolution(kind, 2, 9, 7, 5, 6, 3, 2, 1, dtypes.float32, "highest")
    a, b = operands(rng, p)
    plan = conv.plan(p, dev.info, store_epilogue(dtypes.float32))
    got = run_plan(plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), dev)
    assert_close(got, reference(p, a, b), dtypes.float32, p.terms)


@pytest.mark.parametrize(
    "dtype, precision", [("bfloat16", "high"), ("float32", "high"), ("float32", "highest")]
)
@pytest.mark.parametrize("shape", tiles.SHAPES + tiles.PROMOTED[:1], ids=lambda s: s.name)
@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
def test_convolutions(hopper, kind, shape, dtype, precision, rng):
    dtype = dtypes.as_dtype(dtype)
    for number, sizes in enumerate(CONVOLUTIONS):
        p = convolution(kind, *sizes, dtype, precision)
        solver = hopper_conv.HopperConv(shape, 2 if number == 2 else None)
        if not solver.takes(p):
            continue
        a, b = operands(rng, p)
        plan = solver.plan(p, hopper.info, store_epilogue(dtypes.float32))
        got = run_plan(plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), hopper)
        assert relative(got, reference(p, a, b)) < bound(dtype, precision)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("tile", halo.SHAPES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
def test_boxes_with_a_halo(with_halo, kind, tile, dtype, rng):
    dtype = dtypes.as_dtype(dtype)
    for sizes in (*CONVOLUTIONS, (16, 56, 56, 64, 64, 3, 1, 1), (3, 19, 23, 32, 40, 5, 1, 2)):
        p = convolution(kind, *sizes, dtype, "high")
        solver = halo.HaloConv(tile)
        if not solver.takes(p):
            continue
        a, b = operands(rng, p)
        plan = solver.plan(p, with_halo.info, store_epilogue(dtypes.float32))
        got = run_plan(plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), with_halo)
        assert relative(got, reference(p, a, b)) < bound(dtype, "high")


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
@pytest.mark.parametrize("tile", halo.SHAPES, ids=lambda tile: tile.name)
def test_boxes_with_a_halo_stay_in_registers(dev, tile, kind):
    p = convolution(kind, 8, 56, 56, 64, 64, 3, 1, 1, dtypes.bfloat16, "high")
    plan = halo.HaloConv(tile).plan(p, dev.info, store_epilogue(dtypes.float32))
    (launch,) = plan.launches
    used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
    assert used["local"] <= tiles.SHARED_LIMIT // tile.groups
    # What setmaxnreg gives and takes is counted from this number.
    assert used["registers"] == 168 or len(range(0, launch.local_size[0], 32)) < 12


@pytest.mark.every(3)
@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("out", [dtypes.bfloat16, dtypes.float32], ids=str)
@pytest.mark.parametrize(
    "tile", [*tiles.SHAPES, *tiles.PROMOTED, *halo.SHAPES], ids=lambda tile: tile.name
)
def test_a_bias_that_is_kept_stays_in_registers(hopper_info, tile, out):
    epilogue = biased(out, 768)
    if tile in halo.SHAPES:
        p = convolution(FORWARD, 8, 56, 56, 64, 768, 3, 1, 1, dtypes.bfloat16, "high")
        plan = halo.HaloConv(tile).plan(p, hopper_info, epilogue)
    else:
        low = tile in tiles.PROMOTED
        dtype = dtypes.float32 if low else dtypes.bfloat16
        p = MatmulProblem(
            4096, 768, 768, (), (768, 1), (768, 1), dtype, dtype, dtypes.float32,
            precision="highest" if low else "high",
        )  # fmt: skip
        plan = hopper_matmul.HopperMatmul(tile, 1).plan(normalise_matmul(p), hopper_info, epilogue)
    launch = plan.launches[-1]
    used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)


def test_boxes_with_a_halo_are_chosen_for_stride_one(hopper_info):
    for sizes, name in (
        ((64, 224, 224, 64, 64, 3, 1, 1), "wgmma_halo"),
        ((64, 56, 56, 64, 64, 3, 1, 1), "wgmma_halo"),
        ((64, 56, 56, 256, 256, 3, 1, 1), "wgmma_halo"),
        ((64, 28, 28, 128, 128, 3, 1, 1), "wgmma"),  # 28 columns in four of eight
        ((64, 56, 56, 64, 64, 3, 2, 1), "wgmma"),
    ):
        for kind in (FORWARD, DATA_GRAD):
            p = convolution(kind, *sizes, dtypes.bfloat16, "high")
            assert (
                conv.plan(p, hopper_info, store_epilogue(dtypes.float32)).launches[-1].name == name
            )


@pytest.mark.parametrize("rows", [128, 256])
def test_boxes_cover_all_pixels(rows):
    for images, height, width in ((64, 56, 56), (64, 7, 7), (1, 1, 1), (3, 13, 200), (9, 40, 8)):
        box = halo.box(images, height, width, rows, (3, 5))
        # a block of 64 rows is of one image
        assert box.height % 8 == 0 and 8 * box.images * box.height <= rows
        assert box.rows == box.images * (box.height + 2) * (8 + 4)
        down, across = math.ceil(height / box.height), math.ceil(width / 8)
        assert box.tiles == math.ceil(images / box.images) * down * across


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", tiles.SHAPES, ids=lambda s: s.name)
def test_filter_gradients(hopper, shape, dtype, rng):
    dtype = dtypes.as_dtype(dtype)
    for number, sizes in enumerate(CONVOLUTIONS):
        p = convolution(FILTER_GRAD, *sizes, dtype, "high")
        solver = filter_gradient.FilterGradient(shape, 2 if number == 2 else None)
        assert solver.takes(p)
        a, b = operands(rng, p)
        plan = solver.plan(p, hopper.info, store_epilogue(dtypes.float32))
        got = run_plan(plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), hopper)
        assert relative(got, reference(p, a, b)) < bound(dtype, "high")


TAPS = [  # besides those of CONVOLUTIONS: images, height, width, channels, filters, kernel, ...
    (5, 14, 14, 68, 132, 3, 1, 1), (7, 7, 7, 128, 64, 3, 1, 1), (2, 10, 9, 64, 64, 3, 1, 0),
    (3, 11, 19, 20, 36, 7, 1, 3), (1, 3, 40, 4, 100, 2, 1, 1), (6, 1, 1, 64, 72, 1, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("box", (None, *register_blocked.BOXES), ids=str)
def test_filter_gradients_of_float32(hopper, box, rng):
    for number, sizes in enumerate(CONVOLUTIONS + TAPS):
        p = convolution(FILTER_GRAD, *sizes, dtypes.float32, "high")
        solver = register_blocked.RegisterBlockedFilterGradient(
            box, 1 + number % 3 if box else None
        )
        assert solver.takes(p) == (sizes[6] == 1)
        if sizes[6] > 1:
            continue
        a, b = operands(rng, p)
        plan = solver.plan(p, hopper.info, store_epilogue(dtypes.float32))
        got = run_plan(plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), hopper)
        assert relative(got, reference(p, a, b)) < bound(dtypes.float32, "high")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("box", (None, *register_blocked.BOXES16), ids=str)
def test_filter_gradients_of_16_bits(with_register_blocked16, box, dtype, rng):
    for number, sizes in enumerate(CONVOLUTIONS + TAPS):
        images, height, width, channels, filters, *others = sizes
        sizes = (images, height, width, channels // 8 * 8 + 8, filters // 8 * 8 + 8, *others)
        p = convolution(FILTER_GRAD, *sizes, dtypes.as_dtype(dtype), "high")
        solver = register_blocked.RegisterBlockedFilterGradient16(
            box, 1 + number % 3 if box else None
        )
        assert solver.takes(p) == (sizes[6] == 1)
        if sizes[6] > 1:
            continue
        a, b = operands(rng, p)
        plan = solver.plan(p, with_register_blocked16.info, store_epilogue(dtypes.float32))
        got = run_plan(
            plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), with_register_blocked16
        )
        assert relative(got, reference(p, a, b)) < bound(p.a, "high")


def test_filter_gradients_of_float32_repeat(hopper, rng):
    p = convolution(FILTER_GRAD, 8, 56, 56, 64, 64, 3, 1, 1, dtypes.float32, "high")
    a, b = operands(rng, p)
    plan = register_blocked.RegisterBlockedFilterGradient().plan(
        p, hopper.info, store_epilogue(dtypes.float32)
    )
    assert plan.launches[-1].name == "gemm_reduce4"
    out = poisoned(p.out_shape, dtypes.float32)
    assert len({run_plan(plan, {"a": a, "b": b}, out, hopper).tobytes() for _ in range(5)}) == 1


PLANES = (
    *test_wgmma_channel_major.CASES.values(),
    test_wgmma_channel_major.filter_grad((8, 28, 28, 64), (3, 3), 64),
    test_wgmma_channel_major.filter_grad((5, 7, 7, 128), (3, 3), 260),
    test_wgmma_channel_major.filter_grad((2, 27, 31, 96), (3, 3), 40, (2, 2)),
)


@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize(
    "shape", (*tiles.PROMOTED, *tiles.SHAPES), ids=lambda s: f"{s.name}x{s.groups}"
)
def test_filter_gradients_in_channel_major_layout(with_channel_major, shape, precision, rng):
    for number, p in enumerate(PLANES):
        p = dataclasses.replace(p, precision=precision)
        solver = channel_major.ChannelMajorFilterGradient(shape, 1 + number % 3)
        if not solver.takes(p):
            continue
        a, b = operands(rng, p)
        plan = solver.plan(p, with_channel_major.info, store_epilogue(dtypes.float32))
        got = run_plan(
            plan, {"a": a, "b": b}, poisoned(p.out_shape, dtypes.float32), with_channel_major
        )
        want = test_wgmma_channel_major.reference(p, a, b)
        assert relative(got, want) < bound(dtypes.float32, precision)


def test_filter_gradients_in_channel_major_layout_in_parts(with_channel_major, monkeypatch, rng):
    p = test_wgmma_channel_major.filter_grad((11, 15, 14, 64), (3, 3), 96)
    channel_major.layout.cache_clear()
    monkeypatch.setattr(channel_major, "MAX_BYTES", 3 << 19)
    try:
        assert channel_major.layout(p).parts > 2
        a, b = operands(rng, p)
        plan = channel_major.ChannelMajorFilterGradient().plan(
            p, with_channel_major.info, store_epilogue(dtypes.float32)
        )
    finally:
        channel_major.layout.cache_clear()
    out = poisoned(p.out_shape, dtypes.float32)
    results = [run_plan(plan, {"a": a, "b": b}, out, with_channel_major) for _ in range(4)]
    want = test_wgmma_channel_major.reference(p, a, b)
    assert relative(results[0], want) < bound(dtypes.float32, "highest")
    assert len({r.tobytes() for r in results}) == 1


@pytest.mark.parametrize("box", (*register_blocked.BOXES, *register_blocked.BOXES16), ids=str)
def test_taps_fit(box):
    """The ring fits into local memory, and at least two stages are loaded ahead."""
    x = -(-128 * box.x_rows // 1024) * 1024
    stage = 2 * x + 8192 + 9216 + 24 if box in register_blocked.BOXES else x + 8192 + 16
    assert box.stages >= 4
    assert box.stages * stage <= tiles.SHARED_LIMIT
    assert box.height * box.images == (4 if box in register_blocked.BOXES else 8)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("box", (*register_blocked.BOXES, *register_blocked.BOXES16), ids=str)
def test_taps_stay_in_registers(dev, box):
    """152 registers a work-item are enough: nothing is spilled and no wgmma waits for another."""
    wide = box in register_blocked.BOXES
    dtype = dtypes.float32 if wide else dtypes.bfloat16
    p = convolution(FILTER_GRAD, 8, 56, 56, 64, 64, 3, 1, 1, dtype, "high")
    solver = (
        register_blocked.RegisterBlockedFilterGradient
        if wide
        else register_blocked.RegisterBlockedFilterGradient16
    )(box)
    launch = solver.plan(p, dev.info, store_epilogue(dtypes.float32)).launches[0]
    used = ptx.resources(launch.source, "sm_90", register_blocked.THREADS, sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
    assert used["registers"] == 128 and used["local"] <= tiles.SHARED_LIMIT


def test_taps_of_16_bits_are_chosen_where_shared_memory_is_the_limit(hopper_info):
    """64 columns of wgmma_filter's tiles read three operands' rows for two of products."""
    for sizes, name in (
        ((64, 224, 224, 64, 64, 3, 1, 1), "wgmma_register_blocked16"),
        ((64, 112, 112, 128, 128, 3, 1, 1), "wgmma"),  # of 192 rows
        ((64, 14, 14, 512, 512, 3, 1, 1), "wgmma"),  # tiles of 256 columns
        ((64, 56, 56, 256, 64, 1, 1, 0), "wgmma"),  # no taps to share
    ):
        p = convolution(FILTER_GRAD, *sizes, dtypes.bfloat16, "high")
        plan = conv.plan(p, hopper_info, store_epilogue(dtypes.float32))
        assert plan.launches[0].name == name


def test_boxes_of_pixels():
    assert filter_gradient.box(64, 56, 56)[0] * 64 == 64 * 56 * 56
    for images, height, width in ((1, 7, 7), (3, 13, 200), (64, 7, 7), (1, 1, 1)):
        count, n, h, w = filter_gradient.box(images, height, width)
        assert n * h * w == 64
        assert count == math.ceil(images / n) * math.ceil(height / h) * math.ceil(width / w)


def test_large_products_choose_these_kernels(hopper):
    p = problem(4096, 4096, 4096, (4096, 1), (4096, 1))
    plan = matmul.plan(p, hopper.info, store_epilogue(dtypes.bfloat16))
    assert plan.launches[-1].name == "wgmma"


def test_results_repeat(hopper, rng):
    p = problem(300, 200, 20000, (20000, 1), (200, 1))
    inputs = {
        "a": random_array(rng, (300, 20000), dtypes.bfloat16),
        "b": random_array(rng, (20000, 200), dtypes.bfloat16),
    }
    plan = hopper_matmul.HopperMatmul().plan(p, hopper.info, store_epilogue(dtypes.float32))
    assert plan.launches[-1].name == "gemm_reduce4"
    out = poisoned((300, 200), dtypes.float32)
    assert len({run_plan(plan, inputs, out, hopper).tobytes() for _ in range(5)}) == 1
