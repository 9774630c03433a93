"""Products of float32 whose first operand, with m contiguous, is read as it lies; the hardware
emulated, see `emulator`."""

import dataclasses
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.hopper import left, tiles, transposed
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.matmul import solvers as matmul
from tests.kernels import emulator, ptx, test_wgmma
from tests.kernels.harness import poisoned, random_array, run_plan
from tests.kernels.test_sass import check as no_hazards
from tests.kernels.test_sass import needs_compilers
from tests.kernels.test_wgmma import hopper, with_transposed  # noqa: F401
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_emulated import WRONG, check, found_in, product
from tests.kernels.test_wgmma_moments import epilogue as with_moments
from tests.kernels.test_wgmma_transposed import chosen, problem

FLOAT = dtypes.float32
STORE = store_epilogue(FLOAT)
WIDE = left.LeftMatmul.shapes[0]  # whose producer is a whole warpgroup
SMALL = min(left.LeftMatmul.shapes, key=lambda s: s.bm * s.bn * s.stages)

PRODUCTS = {  # m, n, k, batch of a, batch of b; b transposed?; offsets; launches that pack b
    "ragged": ((152, 70, 136, (), ()), False, (0, 0), 1),
    "few columns": ((72, 3, 36, (), ()), False, (0, 0), 1),
    "few rows": ((4, 3, 40, (), ()), False, (0, 0), 1),
    "batched": ((40, 24, 48, (2, 1, 3), (2, 2, 1)), False, (0, 0), 1),
    "one a": ((40, 33, 48, (1,), (3,)), False, (0, 0), 1),
    "offsets": ((72, 40, 56, (), ()), False, (8, 3), 1),
    "odd k": ((72, 40, 37, (), ()), False, (0, 0), 1),
    "b transposed": ((72, 136, 68, (), ()), True, (0, 0), 0),
    "b transposed, k odd": ((72, 40, 69, (), ()), True, (0, 0), 1),
    "batched b transposed": ((36, 40, 72, (2,), (2,)), True, (4, 8), 0),
}


@pytest.mark.parametrize("tile", [SMALL, WIDE], ids=lambda t: t.name)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(cpu_dev, cpu_info, name, tile, rng):
    sizes, transpose, offsets, packs = PRODUCTS[name]
    p, operands, want = product(rng, sizes, FLOAT, transpose=(True, transpose), offsets=offsets)
    p = dataclasses.replace(p, precision="high")
    solver = left.LeftMatmul(tile, 1)
    assert solver.takes(p)
    plan = solver.plan(p, cpu_info, STORE)
    assert [x.name for x in plan.launches] == ["wgmma_pack"] * packs + ["wgmma_transposed"]
    check(plan, *operands, want, cpu_dev)


@pytest.mark.parametrize("shape", left.LeftMatmul.shapes, ids=lambda s: f"{s.name}x{s.groups}")
def test_tiles(cpu_dev, cpu_info, shape, rng):
    """Several tiles of each work-group, through all stages several times."""
    p, operands, want = product(rng, (580, 396, 200, (), ()), FLOAT, transpose=(True, False))
    check(left.LeftMatmul(shape, 1).plan(p, cpu_info, STORE), *operands, want, cpu_dev)


@pytest.mark.parametrize("splits", [2, 5])
def test_slices_of_the_depth(cpu_dev, cpu_info, splits, rng):
    p, operands, want = product(rng, (68, 40, 360, (2,), (2,)), FLOAT, transpose=(True, False))
    plan = left.LeftMatmul(SMALL, splits).plan(p, cpu_info, STORE)
    assert [x.name for x in plan.launches] == ["wgmma_pack", "wgmma_transposed", "gemm_reduce4"]
    check(plan, *operands, want, cpu_dev)


@pytest.mark.parametrize("columns", [131, 132, 136])
@pytest.mark.parametrize("out", [FLOAT, dtypes.bfloat16, dtypes.float16], ids=str)
def test_results(cpu_dev, cpu_info, out, columns, rng):
    """Neighbouring results are exchanged and stored at once where the columns allow it."""
    p, operands, want = product(rng, (140, columns, 40, (), ()), FLOAT, transpose=(True, False))
    plan = left.LeftMatmul(SMALL).plan(p, cpu_info, store_epilogue(out))
    most = 4 if out is FLOAT or SMALL.bn % 32 else 8
    width = next((w for w in (most, 4) if columns % w == 0), 0)
    assert f"#define VECTOR {width}\n" in plan.launches[-1].source
    check(plan, *operands, want, cpu_dev, out=out)


@pytest.mark.parametrize("tile", [SMALL, WIDE], ids=lambda t: t.name)
@pytest.mark.parametrize("vectors", [True, False])
def test_epilogue(cpu_dev, cpu_info, vectors, tile, rng):
    """A bias, an activation and a residual read at the result's own place."""
    (m, n, k), out = (140, 72, 48), dtypes.bfloat16
    p, (a, b), want = product(rng, (m, n, k, (), ()), FLOAT, transpose=(True, False))
    bias, more = random_array(rng, n, FLOAT), random_array(rng, (m, n), FLOAT)
    compute = f"const float value = fmax(acc + bias[i % {n}], 0.0f) + more_;"
    made = Epilogue(
        f", __global {out.storage}* restrict out, __global const float* bias, "
        "__global const float* more",
        (Ref("out"), Ref("bias"), Ref("more")),
        f"const float more_ = more[i]; {compute} {out.store.format(p='out', i='i', v='value')};",
        loads=(VectorLoad("more", FLOAT, "more_"),),
        compute=compute,
        stores=(VectorStore("out", out, "value"),) if vectors else (),
    )
    plan = left.LeftMatmul(tile).plan(p, cpu_info, made)
    inputs = {"a": a, "b": b, "bias": bias, "more": more}
    got = emulator.run_plan(plan, inputs, poisoned((m, n), out), cpu_dev)
    expected = np.maximum(want(tf32(a), tf32(b)) + bias, 0) + more
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("columns", [264, 140])
@pytest.mark.parametrize("out", [FLOAT, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [SMALL, WIDE], ids=lambda t: t.name)
def test_a_bias_is_kept(cpu_dev, cpu_info, tile, out, columns, rng):
    """Read once for a tile; other columns of it would be seen."""
    p, (a, b), want = product(rng, (300, columns, 72, (), ()), FLOAT, transpose=(True, False))
    bias = rng.standard_normal(columns).astype(np.float32)
    plan = left.LeftMatmul(tile, 1).plan(p, cpu_info, biased(out, columns))
    assert re.search(r"^#define KEPT [1-9]", plan.launches[-1].source, re.MULTILINE)
    inputs = {"a": a, "b": b, "bias": bias}
    got = emulator.run_plan(plan, inputs, poisoned((300, columns), out), cpu_dev)
    bound = 2e-6 if out is FLOAT else 4e-3
    assert test_wgmma.relative(got, want(tf32(a), tf32(b)) + bias) < bound


FAULTS = {  # the kernel's text, what takes its place, and what is found
    "no swizzle": ("((chunk ^ t) << 4)", "(chunk << 4)", "BANKS"),
    "row of a lane": ("32 + chunk * 4 + odd * 2)\n#define PLACE",
                      "32 + chunk * 4 + odd)\n#define PLACE", WRONG),
    "next row": ("#define NEXT_ROW 1", "#define NEXT_ROW 8", WRONG),
    "panel loaded": ("m0 + 32 * p, k0", "m0, k0", WRONG),
    "maps": ("(to, map_a + 16, bar, k0, n0", "(to, map_a, bar, k0, n0", "BYTES"),
    "batch": ("k0, n0, b2, b1, b0", "k0, n0, b1, b2, b0", WRONG),
    "column of a tile": ("n0 = pn * BN;", "n0 = pn * BM;", WRONG),
    "row of a tile": ("m0 = pm * BM,", "m0 = pm * BN,", WRONG),
    "stale fragment": ("left[h]", "left[0]", "FRAGMENT"),
    "no wait for sums": ("WG_WAIT(0);", "", "PENDING"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(cpu_dev, cpu_info, name, rng):
    old, new, fault = FAULTS[name]
    p, operands, want = product(rng, (200, 150, 296, (2,), (2,)), FLOAT, transpose=(True, True))
    tile = next(s for s in left.LeftMatmul.shapes if s.bm != s.bn and s.bn < 150)
    plan = left.LeftMatmul(tile, 1).plan(p, cpu_info, STORE)
    (launch,) = plan.launches
    assert old in launch.source
    launch = dataclasses.replace(launch, source=launch.source.replace(old, new))
    found_in(Plan([launch], plan.workspace), fault, operands, want, cpu_dev)


def test_other_problems_are_left_to_others():
    takes = left.LeftMatmul().takes
    assert takes(problem(64, 32, 48, a=(1, 64)))
    assert not takes(problem(64, 64, 48, a=(1, 64)))  # to lay out a is no more
    assert takes(problem(64, 64, 48, a=(1, 64), b=(1, 48)))  # nothing is
    assert not takes(problem(64, 32, 48))
    assert not takes(problem(62, 32, 48, a=(1, 62)))  # rows of a begin at no multiple of 16 bytes
    assert not takes(problem(64, 32, 48, a=(1, 64), precision="highest"))
    assert not takes(problem(64, 32, 48, a=(1, 64), dtype=dtypes.bfloat16))
    tall = next(s for s in tiles.SHAPES if s.blocks > 1)
    assert not left.LeftMatmul(tall).takes(problem(64, 32, 48, a=(1, 64)))


@pytest.mark.parametrize("rows", [4096, 12544])
def test_gradients_of_filters_lay_out_the_narrower_operand(hopper_info, rows):
    def packed(inputs, outputs):
        p = problem(inputs, outputs, rows, a=(1, inputs))
        plan = matmul.plan(p, hopper_info, STORE)
        (launch,) = (x for x in plan.launches if x.name == "wgmma_pack")
        return chosen(p, hopper_info), launch.args[0].slot

    assert packed(768, 768) == packed(768, 3072) == ("wgmma_transposed", "a")
    assert packed(3072, 768) == ("wgmma_left", "b")


def test_slices_fill_the_card(hopper_info):
    """Five of 24 tiles: 80.7 us on an H200, where three of 36 tiles took 84.1."""
    p = problem(768, 768, 12544, a=(1, 768))
    _, tile, slices = transposed.TransposedMatmul().best(p, hopper_info)
    assert (tile.name, slices) == ("128x192x5", 5)


def test_moments_are_left_to_the_other(hopper_info):
    p = problem(4096, 64, 64, a=(1, 4096))
    plan = left.LeftMatmul().plan(p, hopper_info, with_moments(p.m, p.n))
    assert plan.launches[-1].name == "wgmma"
    assert not left.LeftMatmul().takes_moments(p, hopper_info)
    made = hopper_matmul.HopperMatmul().plan(p, hopper_info, with_moments(p.m, p.n))
    assert made == plan


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("columns", [256, 255])
@pytest.mark.parametrize("out", [FLOAT, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("tile", left.LeftMatmul.shapes, ids=lambda t: f"{t.name}x{t.groups}")
@pytest.mark.parametrize("bias", [False, True])
def test_registers(cpu_dev, hopper_info, bias, tile, out, columns):
    """As of `test_wgmma_transposed`."""
    p = problem(4096, columns, 4096, a=(1, 4096))
    for splits in (1, 4):
        made = biased(out, columns) if bias else store_epilogue(out)
        plan = left.LeftMatmul(tile, splits).plan(p, hopper_info, made)
        (launch,) = (x for x in plan.launches if x.name == "wgmma_transposed")
        threads = launch.local_size[0]
        used = ptx.resources(launch.source, "sm_90", threads, sm_90a)
        assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
        if tile is WIDE:  # what is given away is what the others take
            assert (threads, 384 * used["registers"]) == (384, 128 * 40 + 256 * 232)
        warps = ceil_div(tile.groups * threads // 32, 4)  # of a quarter of the unit
        assert warps * 32 * round_up(used["registers"], 8) <= 16384
        assert tile.groups * (used["local"] + 1024) <= 228 * 1024


@needs_compilers
@pytest.mark.every(3)
@pytest.mark.parametrize("shape", left.LeftMatmul.shapes, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_no_register_is_overwritten(shape, bias, hopper_info):
    p = problem(700, 392, 424, a=(1, 700))
    epilogue = biased(FLOAT, 392) if bias else STORE
    no_hazards(left.LeftMatmul(shape, 1).plan(p, hopper_info, epilogue).launches)


@pytest.mark.parametrize("shape", (None, *left.LeftMatmul.shapes), ids=str)
def test_on_a_card(with_transposed, shape, rng):  # noqa: F811
    for number, sizes in enumerate(((2600, 2600, 104), (300, 200, 9000), (3072, 768, 12544))):
        p, (a, b), want = product(rng, (*sizes, (), ()), FLOAT, transpose=(True, False))
        solver = left.LeftMatmul(shape, 1 + number % 3 if shape else None)
        plan = solver.plan(p, with_transposed.info, STORE)
        expected = want(a, b)
        out = poisoned(expected.shape, FLOAT)
        results = [run_plan(plan, {"a": a, "b": b}, out, with_transposed) for _ in range(3)]
        assert test_wgmma.relative(results[0], expected) < test_wgmma.bound(FLOAT, "high")
        assert len({r.tobytes() for r in results}) == 1
