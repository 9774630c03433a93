"""Every solver with warpgroup matrix instructions on a CPU, see `emulator`.

TMA's rounding to tf32 is emulated, too: so references are of rounded operands where that is what a
solver multiplies, and all bounds are float32's.
"""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Plan, Ref, Scalar
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD
from kerascl.kernels.hopper import (
    channel_major,
    filter_gradient,
    halo,
    register_blocked,
    stem,
    tiles,
)
from kerascl.kernels.hopper import conv as hopper_conv
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from tests.kernels import emulator, test_wgmma, test_wgmma_channel_major, test_wgmma_stem
from tests.kernels.harness import poisoned, random_array

STORE = store_epilogue(dtypes.float32)
SMALL = tiles.PROMOTED[
    -1
]  # the smallest tile, which every solver of wgmma.cl but "channel_major" takes
# 64 rows of 128 columns, which are two panels of a row-major operand.
TWO_PANELS = next(s for s in tiles.SHAPES if (s.bm, s.bn) == (64, 128))
INPUTS = [("float32", "high"), ("float32", "highest"), ("bfloat16", "high"), ("float16", "high")]


def check(plan, a, b, want, cpu_dev, precision="high", out=dtypes.float32):
    """Run a plan on operands; `want` gives the result, in float64, of two operands."""
    got = emulator.run_plan(plan, {"a": a, "b": b}, poisoned(want(a, b).shape, out), cpu_dev)
    if a.dtype == np.float32 and precision == "high":
        a, b = test_wgmma_channel_major.tf32(a), test_wgmma_channel_major.tf32(b)
    error = test_wgmma.relative(got, want(a, b))
    assert error < (1e-6 if out is dtypes.float32 else 4e-3), f"relative error {error:.2e}"


def view(array, size, transpose, offset):
    """The operand [.., rows, columns] of `size` in a flat array."""
    *batch, rows, columns = size
    x = array[offset:].reshape(*batch, *((columns, rows) if transpose else (rows, columns)))
    return x.swapaxes(-1, -2) if transpose else x


def product(rng, sizes, dtype, precision="high", transpose=(False, False), offsets=(0, 0)):
    """(problem, operands, reference) of sizes m, n, k, batch of a, batch of b."""
    m, n, k, *batches = sizes
    batch = np.broadcast_shapes(*batches)
    layouts = [
        ((*outer, *inner), turn, offset)
        for outer, inner, turn, offset in zip(
            batches, ((m, k), (k, n)), transpose, offsets, strict=True
        )
    ]
    operands = [random_array(rng, o + math.prod(size), dtype) for size, _, o in layouts]
    strides = []
    for array, (size, turn, offset) in zip(operands, layouts, strict=True):
        wide = np.broadcast_to(view(array, size, turn, offset), (*batch, *size[-2:]))
        strides.append(tuple(step // dtype.itemsize for step in wide.strides))
    p = MatmulProblem(m, n, k, batch, *strides, dtype, dtype, dtypes.float32, *offsets, precision)

    def want(*arrays):
        a, b = (view(x.astype(np.float64), *at) for x, at in zip(arrays, layouts, strict=True))
        return a @ b

    return normalise_matmul(p), operands, want


PRODUCTS = {
    "ragged": (150, 72, 136, (), ()),
    "odd": (70, 33, 37, (), ()),
    "batched": (40, 24, 48, (2, 1, 3), (2, 2, 1)),
    "deep": (20, 16, 520, (), ()),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype, precision", INPUTS)
@pytest.mark.parametrize("transpose", test_wgmma.ORDERS, ids=lambda t: "".join("nt"[i] for i in t))
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(cpu_dev, cpu_info, name, transpose, dtype, precision, rng):
    p, operands, want = product(rng, PRODUCTS[name], dtypes.as_dtype(dtype), precision, transpose)
    plan = hopper_matmul.HopperMatmul(SMALL, 3 if name == "deep" else 1).plan(p, cpu_info, STORE)
    assert (plan.launches[-1].name == "wgmma") == (name != "deep")
    check(plan, *operands, want, cpu_dev, precision)


@pytest.mark.parametrize("offsets", [(8, 16), (3, 0)], ids=str)
def test_offsets(cpu_dev, cpu_info, offsets, rng):
    """Multiples of 16 bytes are added to the tensor map's address, others are copied away."""
    p, operands, want = product(rng, (70, 40, 56, (), ()), dtypes.bfloat16, offsets=offsets)
    plan = hopper_matmul.HopperMatmul(SMALL).plan(p, cpu_info, STORE)
    assert len(plan.launches) == 1 + (offsets == (3, 0))
    check(plan, *operands, want, cpu_dev)


@pytest.mark.parametrize("out", [dtypes.bfloat16, dtypes.float16], ids=str)
def test_short_results(cpu_dev, cpu_info, out, rng):
    """Eight neighbouring results are exchanged and stored at once."""
    p, operands, want = product(rng, (100, 88, 64, (), ()), dtypes.bfloat16)
    plan = hopper_matmul.HopperMatmul(SMALL).plan(p, cpu_info, store_epilogue(out))
    assert "#define VECTOR 8" in plan.launches[0].source
    check(plan, *operands, want, cpu_dev, out=out)


def gated(out):
    """An epilogue that adds "more" where "gate" is positive and stores zeros elsewhere."""
    return Epilogue(
        f", __global {out.storage}* out, __global const float* more, __global const float* gate",
        (Ref("out"), Ref("more"), Ref("gate")),
        "",
        loads=tuple(VectorLoad(name, dtypes.float32, f"{name}_") for name in ("more", "gate")),
        compute="const float value = gate_ > 0.0f ? acc + more_ : 0.0f;",
        stores=(VectorStore("out", out, "value"),),
    )


@pytest.mark.parametrize("columns, period", [(400, 400), (400, 80), (140, 140), (133, 133)])
@pytest.mark.parametrize("out", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [0, 1, 3, 6, 7], ids=lambda n: tiles.SHAPES[n].name)
def test_what_all_rows_read(cpu_dev, cpu_info, tile, out, columns, period, rng):
    """A bias is read before the products, one vector ahead, or as its turn comes; right of the
    columns nothing is read."""
    tile = tiles.SHAPES[tile]
    p, (a, b), want = product(rng, (150, columns, 72, (), ()), dtypes.bfloat16)
    bias = rng.standard_normal(period).astype(np.float32)
    plan = hopper_matmul.HopperMatmul(tile, 1).plan(p, cpu_info, biased(out, period))
    kept = re.search(r"^#define KEPT (\d+)$", plan.launches[-1].source, re.M)[1]
    wide = out is dtypes.bfloat16 and columns % 8 == 0
    counts = {0: 1, 1: 2, 3: 0, 6: 2, 7: 2} if wide else {0: 2, 1: 2, 3: 0, 6: 4, 7: 4}
    assert int(kept) == (counts[tiles.SHAPES.index(tile)] if columns % 4 == 0 else 0)
    got = emulator.run_plan(
        plan, {"a": a, "b": b, "bias": bias}, poisoned((150, columns), out), cpu_dev
    )
    expected = want(a, b) + np.tile(bias, columns // period)
    assert test_wgmma.relative(got, expected) < (2e-6 if out is dtypes.float32 else 4e-3)


def test_what_rows_do_not_share(cpu_dev, cpu_info, rng):
    """A bias of two rows, as after a reshape."""
    p, (a, b), want = product(rng, (150, 400, 72, (), ()), dtypes.bfloat16)
    bias = rng.standard_normal(800).astype(np.float32)
    epilogue = biased(dtypes.float32, 800)
    plan = hopper_matmul.HopperMatmul(tiles.SHAPES[7], 1).plan(p, cpu_info, epilogue)
    assert re.search(r"^#define KEPT (\d+)$", plan.launches[-1].source, re.M)[1] == "0"
    out = poisoned((150, 400), dtypes.float32)
    got = emulator.run_plan(plan, {"a": a, "b": b, "bias": bias}, out, cpu_dev)
    expected = want(a, b) + np.tile(bias.reshape(2, 400), (75, 1))
    assert test_wgmma.relative(got, expected) < 2e-6


@pytest.mark.parametrize("out", [dtypes.float32, None], ids=["float32", "as rounded"])
@pytest.mark.parametrize("first", [dtypes.bfloat16, dtypes.float16], ids=str)
def test_results_are_rounded_before_they_are_exchanged(cpu_dev, cpu_info, first, out, rng):
    """An epilogue that begins by rounding, in vectors of four and of eight."""
    p, (a, b), want = product(rng, (100, 88, 64, (), ()), dtypes.bfloat16)
    out = out or first
    epilogue = Epilogue(
        f", __global {out.storage}* out",
        (Ref("out"),),
        "",
        compute=f"const float value = 2.0f * {first.round.format(v='(float)acc')};",
        stores=(VectorStore("out", out, "value"),),
        rounds=first,
    )
    plan = hopper_matmul.HopperMatmul(SMALL).plan(p, cpu_info, epilogue)
    source = plan.launches[0].source
    assert "#define WORD_OF" in source and epilogue.compute not in source
    got = emulator.run_plan(plan, {"a": a, "b": b}, poisoned((100, 88), out), cpu_dev)
    got = got.astype(np.float64)
    np.testing.assert_array_equal(got, got.astype(first.numpy).astype(np.float64))
    assert test_wgmma.relative(got, 2 * want(a, b)) < (4e-3 if first is dtypes.bfloat16 else 5e-4)


@pytest.mark.parametrize("columns, together", [(128, 4), (96, 2), (80, 1)])
@pytest.mark.parametrize("out", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_several_vectors_of_an_epilogue_at_once(cpu_dev, cpu_info, columns, together, out, rng):
    """A residual that is read and a gradient of relu, in as many vectors as columns allow."""
    m, k, wide = 150, 72, out is dtypes.float32
    p, (a, b), want = product(rng, (m, columns, k, (), ()), dtypes.bfloat16)
    more, gate = (random_array(rng, (m, columns), dtypes.float32) for _ in range(2))
    plan = hopper_matmul.HopperMatmul(tiles.Shape(64, 1, 2, 4, 1, 1, 1)).plan(
        p, cpu_info, gated(out)
    )
    # vectors of eight lie in 32 columns, so fewer of them fit into a tile
    number = together if wide else max(together // 2, 1)
    assert f"#define VECTORS {number}\n" in plan.launches[0].source
    inputs = {"a": a, "b": b, "more": more, "gate": gate}
    got = emulator.run_plan(plan, inputs, poisoned((m, columns), out), cpu_dev)
    expected = np.where(gate > 0, want(a, b) + more, 0)
    assert test_wgmma.relative(got, expected) < (1e-6 if wide else 4e-3)


@pytest.mark.parametrize("shape", tiles.SHAPES, ids=lambda s: f"{s.name}x{s.groups}")
def test_tiles(cpu_dev, cpu_info, shape, rng):
    """Both operands in panels of 64."""
    p, operands, want = product(
        rng, (264, 280, 80, (), ()), dtypes.float16, transpose=(True, False)
    )
    check(hopper_matmul.HopperMatmul(shape, 1).plan(p, cpu_info, STORE), *operands, want, cpu_dev)


@pytest.mark.parametrize("shape", tiles.PROMOTED, ids=lambda s: s.name)
def test_tiles_of_highest(cpu_dev, cpu_info, shape, rng):
    """Deep enough for sums to leave the tensor cores several times."""
    p, operands, want = product(rng, (136, 132, 300, (), ()), dtypes.float32, "highest")
    check(
        hopper_matmul.HopperMatmul(shape, 1).plan(p, cpu_info, STORE),
        *operands,
        want,
        cpu_dev,
        "highest",
    )


CONVOLUTIONS = {  # images, height, width, channels, filters, kernel, stride, padding
    "same": (3, 9, 7, 40, 24, 3, 1, 1), "valid": (2, 8, 7, 72, 16, 2, 1, 0),
    "stride2": (2, 9, 12, 24, 40, 3, 2, 1), "pointwise": (2, 8, 9, 16, 72, 1, 2, 0),
    "stride3": (2, 11, 10, 8, 72, 5, 3, 2), "gaps": (2, 8, 11, 8, 16, 2, 3, 0),
    "wide": (1, 4, 70, 8, 8, 3, 1, 1), "images": (7, 3, 5, 8, 8, 3, 1, 1),
}  # fmt: skip


def convolved(rng, solver, kind, name, dtype, precision, cpu_dev, cpu_info):
    p = test_wgmma.convolution(kind, *CONVOLUTIONS[name], dtypes.as_dtype(dtype), precision)
    assert solver.takes(p)
    a, b = test_wgmma.operands(rng, p)
    want = functools.partial(test_wgmma.reference, p)
    check(solver.plan(p, cpu_info, STORE), a, b, want, cpu_dev, precision)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype, precision", INPUTS[:3])
@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(cpu_dev, cpu_info, name, kind, dtype, precision, rng):
    solver = hopper_conv.HopperConv(SMALL, 2 if name == "same" else None)
    convolved(rng, solver, kind, name, dtype, precision, cpu_dev, cpu_info)


@pytest.mark.parametrize("name", ["same", "valid", "wide", "images"])
def test_two_rows_of_an_epilogue_at_once(cpu_dev, cpu_info, name, rng):
    """Either of a lane's rows may lie outside: boxes exceed these images."""
    p = test_wgmma.convolution(FORWARD, *CONVOLUTIONS[name], dtypes.bfloat16, "high")
    a, b = test_wgmma.operands(rng, p)
    more, gate = (random_array(rng, p.out_shape, dtypes.float32) for _ in range(2))
    plan = hopper_conv.HopperConv(tiles.SHAPES[2], 1).plan(p, cpu_info, gated(dtypes.float32))
    assert "#define VECTORS 1\n#define READS 2\n" in plan.launches[-1].source
    inputs = {"a": a, "b": b, "more": more, "gate": gate}
    got = emulator.run_plan(plan, inputs, poisoned(p.out_shape, dtypes.float32), cpu_dev)
    expected = np.where(gate > 0, test_wgmma.reference(p, a, b) + more, 0)
    assert test_wgmma.relative(got, expected) < 1e-6


@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
@pytest.mark.parametrize("shape", tiles.SHAPES[:2], ids=lambda s: s.name)
def test_tiles_of_convolutions(cpu_dev, cpu_info, shape, kind, rng):
    convolved(
        rng, hopper_conv.HopperConv(shape), kind, "stride2", "bfloat16", "high", cpu_dev, cpu_info
    )


@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
@pytest.mark.parametrize(
    "solver",
    [*(hopper_conv.HopperConv(tiles.SHAPES[n]) for n in (0, 1, 7)),
     *map(halo.HaloConv, halo.SHAPES)],
    ids=lambda solver: solver.name,
)  # fmt: skip
def test_biases_of_convolutions(cpu_dev, cpu_info, solver, kind, rng):
    """With as much of it kept as the tile has registers for."""
    channels = (40, 104) if kind == FORWARD else (104, 40)  # 104 results, of two tiles of 64
    p = test_wgmma.convolution(kind, 3, 9, 13, *channels, 3, 1, 1, dtypes.bfloat16, "high")
    a, b = test_wgmma.operands(rng, p)
    bias = rng.standard_normal(p.out_shape[-1]).astype(np.float32)
    plan = solver.plan(p, cpu_info, biased(dtypes.float32, len(bias)))
    inputs = {"a": a, "b": b, "bias": bias}
    got = emulator.run_plan(plan, inputs, poisoned(p.out_shape, dtypes.float32), cpu_dev)
    assert test_wgmma.relative(got, test_wgmma.reference(p, a, b) + bias) < 1e-6


HALO = {  # images, height, width, channels, filters, taps a side, stride, padding
    "same": (3, 9, 7, 40, 24, 3, 1, 1), "valid": (2, 8, 7, 72, 136, 3, 1, 0),
    "even": (2, 6, 11, 24, 72, 2, 1, 1), "wide": (1, 4, 70, 8, 64, 3, 1, 2),
    "images": (7, 3, 5, 8, 8, 3, 1, 1), "deep": (1, 9, 20, 136, 16, 3, 1, 1),
    "narrow": (9, 11, 13, 32, 32, 3, 1, 1), "high": (1, 37, 5, 8, 8, 5, 1, 2),
}  # fmt: skip


def computed_with_a_halo(rng, tile, kind, name, dtype, cpu_dev, cpu_info):
    p = test_wgmma.convolution(kind, *HALO[name], dtypes.as_dtype(dtype), "high")
    solver = halo.HaloConv(tile)
    assert solver.takes(p)
    a, b = test_wgmma.operands(rng, p)
    want = functools.partial(test_wgmma.reference, p)
    check(solver.plan(p, cpu_info, STORE), a, b, want, cpu_dev)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
@pytest.mark.parametrize("name", HALO)
def test_boxes_with_a_halo(cpu_dev, cpu_info, name, kind, dtype, rng):
    computed_with_a_halo(rng, halo.SHAPES[3], kind, name, dtype, cpu_dev, cpu_info)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", [FORWARD, DATA_GRAD])
@pytest.mark.parametrize("tile", halo.SHAPES, ids=lambda tile: tile.name)
def test_tiles_with_a_halo(cpu_dev, cpu_info, tile, kind, dtype, rng):
    computed_with_a_halo(
        rng, tile, kind, "same" if tile.weights else "narrow", dtype, cpu_dev, cpu_info
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_filter_gradients(cpu_dev, cpu_info, name, dtype, rng):
    solver = filter_gradient.FilterGradient(SMALL, 2 if name == "same" else 1)
    convolved(rng, solver, FILTER_GRAD, name, dtype, "high", cpu_dev, cpu_info)


@pytest.mark.parametrize("shape", tiles.SHAPES[:2], ids=lambda s: s.name)
def test_tiles_of_filter_gradients(cpu_dev, cpu_info, shape, rng):
    solver = filter_gradient.FilterGradient(shape)
    convolved(rng, solver, FILTER_GRAD, "stride2", "bfloat16", "high", cpu_dev, cpu_info)


def channel_major_gradient(rng, p, shape, splits, cpu_dev, cpu_info):
    a, b = test_wgmma.operands(rng, p)
    solver = channel_major.ChannelMajorFilterGradient(shape, splits)
    assert solver.takes(p)
    want = functools.partial(test_wgmma_channel_major.reference, p)
    check(solver.plan(p, cpu_info, STORE), a, b, want, cpu_dev, p.precision)


@pytest.mark.every(5)
@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize("name", test_wgmma_channel_major.CASES)
def test_planes(cpu_dev, cpu_info, name, precision, rng):
    p = dataclasses.replace(test_wgmma_channel_major.CASES[name], precision=precision)
    shape = tiles.PROMOTED[-1] if precision == "highest" else tiles.SHAPES[-2]
    channel_major_gradient(rng, p, shape, 2 if name.startswith("stride") else 1, cpu_dev, cpu_info)


@pytest.mark.parametrize("shape", tiles.PROMOTED, ids=lambda s: f"{s.name}x{s.groups}")
def test_tiles_of_planes(cpu_dev, cpu_info, shape, rng):
    p = test_wgmma_channel_major.filter_grad((2, 6, 5, 70), (3, 2), 133)
    channel_major_gradient(rng, p, shape, 2, cpu_dev, cpu_info)


limit = test_wgmma_channel_major.limit


@pytest.mark.parametrize("batch, images, parts", [(5, 4, 2), (9, 4, 3), (13, 8, 2), (64, 24, 3)])
def test_parts_of_planes(cpu_dev, cpu_info, limit, batch, images, parts, rng):
    p = test_wgmma_channel_major.PARTED
    p = dataclasses.replace(p, x_shape=(batch, *p.x_shape[1:]), y_shape=(batch, *p.y_shape[1:]))
    limit(test_wgmma_channel_major.PER_PIXEL * (images + 3) * 48)
    a = channel_major.layout(p)
    assert (a.images, a.parts) == (images, parts)
    channel_major_gradient(rng, p, tiles.PROMOTED[-1], 2, cpu_dev, cpu_info)


@pytest.mark.parametrize("box", register_blocked.BOXES, ids=lambda box: box.name)
@pytest.mark.parametrize("sizes", [(3, 9, 11, 68, 36, 3, 1, 1), (1, 5, 11, 20, 72, 4, 1, 1)])
def test_taps(cpu_dev, cpu_info, sizes, box, rng):
    p = test_wgmma.convolution(FILTER_GRAD, *sizes, dtypes.float32, "high")
    a, b = test_wgmma.operands(rng, p)
    want = functools.partial(test_wgmma.reference, p)
    check(
        register_blocked.RegisterBlockedFilterGradient(box, 2).plan(p, cpu_info, STORE),
        a,
        b,
        want,
        cpu_dev,
    )


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("box", register_blocked.BOXES16, ids=lambda box: box.name)
@pytest.mark.parametrize("sizes", [(3, 9, 11, 72, 40, 3, 1, 1), (9, 5, 11, 24, 72, 4, 1, 1)])
def test_taps_of_16_bits(cpu_dev, cpu_info, sizes, box, dtype, rng):
    p = test_wgmma.convolution(FILTER_GRAD, *sizes, dtypes.as_dtype(dtype), "high")
    a, b = test_wgmma.operands(rng, p)
    want = functools.partial(test_wgmma.reference, p)
    check(
        register_blocked.RegisterBlockedFilterGradient16(box, 2).plan(p, cpu_info, STORE),
        a,
        b,
        want,
        cpu_dev,
    )


@pytest.mark.parametrize("dtype, precision", INPUTS[:3])
@pytest.mark.parametrize("name", test_wgmma_stem.CASES)
def test_stems(cpu_dev, cpu_info, name, dtype, precision, rng):
    """Tensor maps that step by less than they read."""
    p = test_wgmma_stem.problem(name, FORWARD, dtypes.as_dtype(dtype), precision)
    a, b = test_wgmma.operands(rng, p)
    want = functools.partial(test_wgmma_stem.forward, p)
    check(stem.StemConv(SMALL, 2).plan(p, cpu_info, STORE), a, b, want, cpu_dev, precision)


@pytest.mark.parametrize("name", test_wgmma_stem.CASES)
def test_filter_gradients_of_stems(cpu_dev, cpu_info, name, rng):
    p = test_wgmma_stem.problem(name, FILTER_GRAD, dtypes.bfloat16)
    a, b = test_wgmma.operands(rng, p)
    want = functools.partial(test_wgmma_channel_major.reference, p)
    for shape in (SMALL, stem.FILTER_SHAPES[-1]) if name == "7x7" else (SMALL,):
        check(stem.StemFilterGradient(shape, 2).plan(p, cpu_info, STORE), a, b, want, cpu_dev)


WRONG = "relative error"
FAULTS = {  # the kernel's text, what takes its place, and what is found
    "no swizzle": ("((1UL << 62)", "(((mn) ? 1UL << 62 : 0UL)", WRONG),
    "start of a box": ("(to, map_a, bar, k0,", "(to, map_a, bar, k0 + 4,", "START"),
    "other swizzle": ("(1UL << 62)", "(2UL << 62)", "DESCRIPTOR"),
    "step of rows": ("(64UL << 32)", "(32UL << 32)", WRONG),
    "step of k": ("DEPTH * 8 : 2)", "DEPTH * 8 : 1)", WRONG),
    "step of panels": ("(ulong)(BK * 8) << 16", "(ulong)(BK * 4) << 16", WRONG),
    "transposed": ("p, 1, 1, 0, 1;", "p, 1, 1, 0, 0;", "OPERAND"),
    "row of a tile": ("const int m0 = pm * BM;", "const int m0 = pm * BM + 1;", WRONG),
    "beyond a stage": ("TMA_MATRIX(to, map_a,", "TMA_MATRIX(to + STAGE - 128, map_a,", "TARGET"),
    "odd place": ("TMA_MATRIX(to, map_a,", "TMA_MATRIX(to + 16, map_a,", "TARGET"),
    "stage loaded": ("const uint to = base + stage *", "const uint to = base + 0 *", "TARGET"),
    "stage read": ("desc_a + (ulong)(stage *", "desc_a + (ulong)(0 *", "CLOSED"),
    "bytes": ("A_BOX_BYTES + B_BYTES)", "A_BOX_BYTES)", "BYTES"),
    "phase of loads": ("empty + 8 * stage, phase ^ 1)", "empty + 8 * stage, 1)", "PARITY"),
    "phase of products": ("full + 8 * stage, phase)", "full + 8 * stage, 0)", "PARITY"),
    "no wait for loads": ("BAR_WAIT(full + 8 * stage, phase);", "", "CLOSED"),
    "handed back early": ("WG_WAIT(1);", "WG_WAIT(2);", "HELD"),
    "not handed back": ("if (lane == 0) BAR_ARRIVE(empty + 8 * before);", "", "a phase"),
    "no wait for sums": ("WG_WAIT(0);", "", "PENDING"),
    "no fence": ("WG_FENCE;", "", "FENCE"),
    "arrivals": ("RING_BARRIERS(4 * TILE_CONSUMERS)", "RING_BARRIERS(TILE_CONSUMERS)", "a phase"),
    "local memory": ("RING + 16 * STAGES", "RING", "SHARED"),
    "map not acquired": ("c < MAPS", "c < 1", "ACQUIRED"),
    "exchange": ("SHUFFLE(got0, give0, distance);", "SHUFFLE(got0, give0, 2);", WRONG),
}
MAPS = {  # what is added to a word of the left operand's tensor map
    "swizzle": (0, -1 << 13, "MAP"), "type": (0, -1 << 16, "MAP"), "steps": (5, 1 << 32, "MAP"),
    "box": (6, 1, "MAP"), "stride": (0, 1 << 32, "SOURCE"), "size": (3, 1, "SOURCE"),
}  # fmt: skip


def altered(plan, change):
    """A plan with another launch of wgmma.cl or its like."""
    launches = [change(la) if la.options else la for la in plan.launches]
    assert launches != plan.launches
    return Plan(launches, plan.workspace)


def found_in(plan, fault, operands, want, cpu_dev):
    with pytest.raises(AssertionError, match=re.escape(emulator.FAULTS.get(fault, fault))):
        check(plan, *operands, want, cpu_dev)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(cpu_dev, cpu_info, name, rng):
    old, new, fault = FAULTS[name]
    p, operands, want = product(rng, (150, 136, 136, (), ()), dtypes.bfloat16)
    plan = hopper_matmul.HopperMatmul(TWO_PANELS).plan(p, cpu_info, STORE)
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(plan, fault, operands, want, cpu_dev)


@pytest.mark.parametrize("name", MAPS)
def test_faults_of_tensor_maps_are_found(cpu_dev, cpu_info, name, rng):
    word, more, fault = MAPS[name]
    p, operands, want = product(rng, (70, 40, 56, (), ()), dtypes.float32)

    def change(launch):
        args = list(launch.args)
        at = next(i for i, arg in enumerate(args) if isinstance(arg, Scalar))
        words = list(args[at].value)
        words[word] += more
        args[at] = Scalar("ulong8", words)
        return dataclasses.replace(launch, args=tuple(args))

    plan = altered(hopper_matmul.HopperMatmul(SMALL).plan(p, cpu_info, STORE), change)
    found_in(plan, fault, operands, want, cpu_dev)


@pytest.mark.parametrize(
    "old, new",
    [("w0 + dw,", "w0 + dw + 1,"), ("h0 + dh,", "h0,"), ("s0 + CLASSES * j;", "s0 + j;")],
)
def test_faults_of_convolutions_are_found(cpu_dev, cpu_info, old, new, rng):
    p = test_wgmma.convolution(DATA_GRAD, *CONVOLUTIONS["stride2"], dtypes.bfloat16, "high")
    operands = test_wgmma.operands(rng, p)
    plan = hopper_conv.HopperConv(SMALL).plan(p, cpu_info, STORE)
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(plan, WRONG, operands, functools.partial(test_wgmma.reference, p), cpu_dev)


@pytest.mark.parametrize(
    "old, new, fault",
    [
        (" + FLOOR_DIV(x, STRIDE2)) * IMAGES;", ") * IMAGES + FLOOR_DIV(x, STRIDE2);", "START"),
        ("FLOOR_DIV(y, STRIDE1) * GRID2", "FLOOR_DIV(y, STRIDE1) * (GRID2 - 1)", WRONG),
        ("PHASES2 + j % PERIOD2", "PHASES2", WRONG),
    ],
)
def test_faults_of_planes_are_found(cpu_dev, cpu_info, old, new, fault, rng):
    p = test_wgmma_channel_major.CASES["stride2"]
    operands = test_wgmma.operands(rng, p)
    plan = channel_major.ChannelMajorFilterGradient(tiles.PROMOTED[-1]).plan(p, cpu_info, STORE)
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(
        plan, fault, operands, functools.partial(test_wgmma_channel_major.reference, p), cpu_dev
    )


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("LDMATRIX(x[s & 1][v], SWIZZLED(at", "LDMATRIX(x[s & 1][v], (at", "BANKS"),
        ("x[s & 1]", "x[0]", "FRAGMENT"),
        ("at + v * 128", "at", WRONG),
        ("(warp & 3) + ((lane >> 3) & 1)", "(warp & 3)", WRONG),
        ("line % BOX_H) *", "line / BOX_H) *", WRONG),
        ("(ulong)(s * 128)", "0", WRONG),
        ("j0 + i, c, c + 8", "j0 + i, c, c + 1", WRONG),
        ("w + j0 - PAD2", "w + j0", WRONG),
        ("(consumer * WIDE +", "(", WRONG),
        ("WG_WAIT(1);", "WG_WAIT(2);", "HELD"),
        ("WG_WAIT(0);", "", "PENDING"),
        ("X_BYTES + DY_BYTES)", "DY_BYTES)", "BYTES"),
    ],
)
def test_faults_of_taps_are_found(cpu_dev, cpu_info, old, new, fault, rng):
    p = test_wgmma.convolution(FILTER_GRAD, 5, 9, 11, 72, 40, 3, 1, 1, dtypes.bfloat16, "high")
    operands = test_wgmma.operands(rng, p)
    plan = register_blocked.RegisterBlockedFilterGradient16(register_blocked.BOXES16[1], 1).plan(
        p, cpu_info, STORE
    )
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(plan, fault, operands, functools.partial(test_wgmma.reference, p), cpu_dev)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("DESCRIPTOR_OF(LINE * 8)", "DESCRIPTOR_OF(64)", WRONG),
        ("i * LINE + j, back", "i * 8 + j, back", WRONG),
        ("(line + line / BOX_H * (TAPS1 - 1))", "line", WRONG),
        ("(DATA_GRAD ? back : forth) * 8", "0", WRONG),
        ("h0 + (", "h0 + 1 + (", WRONG),
        ("full_b + 8 * stage, k0, tap", "full_b + 8 * stage, k0, 0", WRONG),
        ("const int box = use % BOXES;", "const int box = 0;", "CLOSED"),
        ("use / BOXES, 0);", "use / BOXES + 1, 0);", "NEVER"),
        ("BAR_WAIT(full_b + 8 * stage, phase);", "", "CLOSED"),
        ("WG_WAIT(1);", "WG_WAIT(2);", "HELD"),
        ("WG_WAIT(0);", "", "PENDING"),
        ("BAR_EXPECT(full_b + 8 * stage, B_BYTES)", "BAR_EXPECT(full_b + 8 * stage, 0)", "BYTES"),
        ("if (chunk != 0 && tap == 0) BAR", "if (0) BAR", "a phase"),
    ],
)
def test_faults_of_boxes_with_a_halo_are_found(cpu_dev, cpu_info, old, new, fault, rng):
    """Two boxes for each tile, of two images."""
    p = test_wgmma.convolution(DATA_GRAD, 3, 9, 12, 72, 72, 3, 1, 1, dtypes.bfloat16, "high")
    operands = test_wgmma.operands(rng, p)
    plan = halo.HaloConv(halo.SHAPES[2]).plan(p, cpu_info, STORE)
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(plan, fault, operands, functools.partial(test_wgmma.reference, p), cpu_dev)


def test_teams_tell_uses_of_a_box_apart(cpu_dev, cpu_info, monkeypatch, rng):
    """With 2 x 2 taps of 256 channels the other team's tile would use both boxes twice."""
    tile, boxes = halo.SHAPES[-2], halo.HaloTile.boxes
    for channels, fits in ((192, True), (256, False)):
        sizes = 5, 17, 19, channels, 16, 2, 1, 0
        p = test_wgmma.convolution(FORWARD, *sizes, dtypes.bfloat16, "high")
        assert halo.HaloConv(tile).takes(p) == fits
        monkeypatch.setattr(halo.HaloTile, "boxes", lambda self, p: boxes(self, p) or 2)
        operands = test_wgmma.operands(rng, p)
        want = functools.partial(test_wgmma.reference, p)
        plan = halo.HaloConv(tile).plan(p, cpu_info, STORE)
        monkeypatch.undo()
        if fits:
            check(plan, *operands, want, cpu_dev)
        else:
            found_in(plan, "EARLY", operands, want, cpu_dev)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("chunk == 0 && tile == (int)get_group_id(0)", "chunk == 0", "GENERATIONS"),
        ("chunk == 0 && tile == (int)get_group_id(0)", "chunk == 0 && tile == 0", "NEVER"),
        ("t / TAPS * BK, t % TAPS", "0, t % TAPS", WRONG),
        ("((chunk * TAPS + tap) * (B_BYTES >> 4))", "(tap * (B_BYTES >> 4))", WRONG),
        ("BAR_EXPECT(full_b, B_STAGE)", "BAR_EXPECT(full_b, B_BYTES)", "BYTES"),
        ("if (ONE_COLUMN) {", "if (0) {", WRONG),
        ("BAR_WAIT(full_b, 0);", "", "CLOSED"),
        ("use += (PINGPONG - 1) * CHUNKS;", "", "a phase"),
        ("tile += PINGPONG * groups)", "tile += groups)", "NEVER"),
        ("int use = pingpong * CHUNKS;", "int use = 0;", "a phase"),
        ("if (PINGPONG > 1) BAR_WAIT_USE(", "if (0) BAR_WAIT_USE(", "EARLY"),
    ],
)
def test_faults_of_weights_that_stay_are_found(cpu_dev, cpu_info, old, new, fault, rng):
    """Two columns of tiles, several tiles a work-group, two boxes for each."""
    p = test_wgmma.convolution(FORWARD, 5, 10, 13, 40, 72, 3, 1, 1, dtypes.float32, "high")
    operands = test_wgmma.operands(rng, p)
    plan = halo.HaloConv(halo.SHAPES[-1]).plan(p, cpu_info, STORE)
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(plan, fault, operands, functools.partial(test_wgmma.reference, p), cpu_dev)
