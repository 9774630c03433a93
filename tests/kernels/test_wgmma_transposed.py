"""Products of float32 whose second operand, with n contiguous, is read as it lies; the hardware
emulated, see `emulator`."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper import tiles, transposed
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests import asked
from kerascl.kernels.tuning import database
from tests.kernels import emulator, ptx
from tests.kernels.harness import poisoned, random_array
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_emulated import WRONG, check, found_in, product
from tests.kernels.test_wgmma_moments import epilogue as with_moments

FLOAT = dtypes.float32
STORE = store_epilogue(FLOAT)
WIDE = transposed.SHAPES[0]  # whose producer is a whole warpgroup
SMALL = min(transposed.SHAPES, key=lambda s: s.bm * s.bn * s.stages)

PRODUCTS = {  # m, n, k, batch of a, batch of b; a transposed?; offsets; launches that pack a
    "ragged": ((150, 72, 136, (), ()), False, (0, 0), 0),
    "few columns": ((70, 4, 36, (), ()), False, (0, 0), 0),
    "one row": ((1, 200, 40, (), ()), False, (0, 0), 0),
    "batched": ((40, 24, 48, (2, 1, 3), (2, 2, 1)), False, (0, 0), 0),
    "one a": ((40, 68, 48, (1,), (3,)), False, (0, 0), 0),
    "offsets": ((70, 40, 56, (), ()), False, (8, 12), 0),
    "odd offset": ((70, 40, 56, (), ()), False, (3, 4), 1),
    "odd k": ((70, 40, 37, (), ()), False, (0, 0), 1),
    "one k": ((70, 40, 1, (), ()), False, (0, 0), 1),
    "a transposed": ((72, 136, 70, (), ()), True, (0, 0), 1),
    "batched a transposed": ((35, 40, 70, (2,), (2,)), True, (1, 4), 1),
}


@pytest.mark.parametrize("tile", [SMALL, WIDE], ids=lambda t: t.name)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(cpu_dev, cpu_info, name, tile, rng):
    sizes, transpose, offsets, packs = PRODUCTS[name]
    p, operands, want = product(rng, sizes, FLOAT, transpose=(transpose, False), offsets=offsets)
    p = dataclasses.replace(p, precision="high")
    solver = transposed.TransposedMatmul(tile, 1)
    assert solver.takes(p)
    plan = solver.plan(p, cpu_info, STORE)
    assert [x.name for x in plan.launches] == ["wgmma_pack"] * packs + ["wgmma_transposed"]
    check(plan, *operands, want, cpu_dev)


@pytest.mark.parametrize("shape", transposed.SHAPES, ids=lambda s: f"{s.name}x{s.groups}")
def test_tiles(cpu_dev, cpu_info, shape, rng):
    """Several tiles of each work-group, through all stages several times."""
    p, operands, want = product(rng, (580, 396, 200, (), ()), FLOAT)
    check(transposed.TransposedMatmul(shape, 1).plan(p, cpu_info, STORE), *operands, want, cpu_dev)


def test_all_tiles_fail_one_after_the_other(cpu_dev, cpu_info, monkeypatch, rng):
    """A plan finds out by itself: it was compared as if nothing failed."""
    failed = set()

    def available(info, kernel, part=""):
        if kernel != "wgmma_transposed" or not part:
            return True
        if not asked._thread.comparing:
            failed.add(part)
        return part not in failed

    monkeypatch.setattr(hopper_probe, "available", available)
    solver = transposed.TransposedMatmul()
    p, operands, want = product(rng, (72, 136, 70, (), ()), FLOAT)
    assert solver.applies(p, cpu_info)
    plan = solver.plan(p, cpu_info, STORE)
    assert len(failed) == len(transposed.SHAPES) and not solver.applies(p, cpu_info)
    assert "wgmma_transposed" not in [x.name for x in plan.launches]
    check(plan, *operands, want, cpu_dev)


@pytest.mark.parametrize("splits", [2, 5])
def test_slices_of_the_depth(cpu_dev, cpu_info, splits, rng):
    p, operands, want = product(rng, (40, 68, 360, (2,), (2,)), FLOAT)
    plan = transposed.TransposedMatmul(SMALL, splits).plan(p, cpu_info, STORE)
    assert [x.name for x in plan.launches] == ["wgmma_transposed", "gemm_reduce4"]
    check(plan, *operands, want, cpu_dev)


@pytest.mark.parametrize("columns", [131, 132, 136])
@pytest.mark.parametrize("out", [FLOAT, dtypes.bfloat16, dtypes.float16], ids=str)
def test_results(cpu_dev, cpu_info, out, columns, rng):
    """Neighbouring results are exchanged and stored at once where the columns allow it."""
    p, (a, b), want = product(rng, (100, 136, 40, (), ()), FLOAT)
    p = dataclasses.replace(p, n=columns)
    plan = transposed.TransposedMatmul(SMALL).plan(p, cpu_info, store_epilogue(out))
    most = 4 if out is FLOAT else 8
    width = next((w for w in (most, 4) if columns % w == 0), 0)
    assert f"#define VECTOR {width}\n" in plan.launches[0].source
    check(plan, a, b, lambda *ab: want(*ab)[:, :columns], cpu_dev, out=out)


@pytest.mark.parametrize("vectors", [True, False])
def test_epilogue(cpu_dev, cpu_info, vectors, rng):
    """A bias, an activation and a residual read at the result's own place."""
    (m, n, k), out = (70, 72, 48), dtypes.bfloat16
    p, (a, b), want = product(rng, (m, n, k, (), ()), FLOAT)
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
    plan = transposed.TransposedMatmul(SMALL).plan(p, cpu_info, made)
    inputs = {"a": a, "b": b, "bias": bias, "more": more}
    got = emulator.run_plan(plan, inputs, poisoned((m, n), out), cpu_dev)
    expected = np.maximum(want(tf32(a), tf32(b)) + bias, 0) + more
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2**-8, atol=1e-4)


FAULTS = {  # the kernel's text, what takes its place, and what is found
    "no swizzle": ("((chunk ^ t) << 4)", "(chunk << 4)", "BANKS"),
    "chunk": ("((chunk ^ t) << 4)", "((chunk ^ t ^ 2) << 4)", WRONG),
    "four k further": ("(near ^ 64) + 512", "near + 512", WRONG),
    "banks": ("(g & 2) << 1 | (warp & 1) << 1 | g >> 2", "(warp & 1) << 2 | g >> 1", "BANKS"),
    "columns": ("32 + chunk * 4)", "32 + (chunk ^ 1) * 4)", WRONG),
    "panel": ("A_BYTES + (warp >> 1) * PANEL", "A_BYTES + (warp >> 2) * PANEL", WRONG),
    "panel loaded": ("n0 + 32 * p, k0", "n0, k0", WRONG),
    "step of k": ("(h * STEPS + s) * 1024", "(h + s) * 1024", WRONG),
    "step of a": ("d + (ulong)(2 * ", "d + (ulong)(1 * ", WRONG),
    "stage read": ("const uint from = stage * STAGE;", "const uint from = 0;", "CLOSED"),
    "bytes": ("BAR_EXPECT(bar, STAGE)", "BAR_EXPECT(bar, A_BYTES)", "BYTES"),
    "stale fragment": ("left[h]", "left[0]", "FRAGMENT"),
    "no wait for fragments": ("WG_WAIT(1);", "", "FRAGMENT"),
    "no wait for loads": ("BAR_WAIT(full + 8 * stage, phase);", "", "CLOSED"),
    "handed back early": ("empty + 8 * before);\n      }", "empty + 8 * stage);\n      }", "HELD"),
    "not handed back": ("    if (lane == 0) BAR_ARRIVE(empty + 8 * before);\n", "", "a phase"),
    "no wait for sums": ("WG_WAIT(0);", "", "PENDING"),
    "no fence": ("WG_FENCE;", "", "FENCE"),
    "arrivals": ("RING_BARRIERS(4 * NWG)", "RING_BARRIERS(NWG)", "a phase"),
    "local memory": ("RING + 16 * STAGES", "RING", "SHARED"),
    "map not acquired": ("c < MAPS", "c < 1", "ACQUIRED"),
    "exchange": ("SHUFFLE(got0, give0, distance);", "SHUFFLE(got0, give0, 8);", WRONG),
    "row of a tile": ("m0 = pm * BN,", "m0 = pm * BN + 1,", WRONG),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(cpu_dev, cpu_info, name, rng):
    old, new, fault = FAULTS[name]
    p, operands, want = product(rng, (150, 136, 296, (), ()), FLOAT)
    plan = transposed.TransposedMatmul(transposed.SHAPES[1]).plan(p, cpu_info, STORE)
    (launch,) = plan.launches
    assert old in launch.source
    launch = dataclasses.replace(launch, source=launch.source.replace(old, new))
    found_in(Plan([launch], plan.workspace), fault, operands, want, cpu_dev)


def problem(m, n, k, a=None, b=None, dtype=FLOAT, precision="high"):
    a, b = a or (k, 1), b or (n, 1)
    made = MatmulProblem(m, n, k, (), a, b, dtype, dtype, FLOAT, precision=precision)
    return normalise_matmul(made)


def test_other_problems_are_left_to_others():
    takes = transposed.TransposedMatmul().takes
    assert takes(problem(64, 32, 48))
    assert takes(problem(64, 33, 48, b=(36, 1)))
    assert not takes(problem(64, 33, 48))  # rows of b begin at no multiple of 16 bytes
    assert not takes(problem(64, 32, 48, b=(1, 48)))
    assert not takes(problem(64, 32, 48, precision="highest"))
    assert not takes(problem(64, 32, 48, dtype=dtypes.bfloat16))
    tall = next(s for s in tiles.SHAPES if s.blocks > 1)
    assert not transposed.TransposedMatmul(tall).takes(problem(64, 32, 48))


def chosen(p, info):
    database._choose.cache_clear()
    return database.choose("gemm", matmul.SOLVERS, matmul.VARIANTS, p, info).name


@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
def test_large_products_choose_it(hopper_info, size):
    p = problem(size, size, size)
    assert chosen(p, hopper_info) == "wgmma_transposed"
    assert chosen(problem(size, size, size, a=(1, size)), hopper_info) == "wgmma_transposed"
    for other in (
        problem(size, size, size, b=(1, size)),
        problem(size, size, size, precision="highest"),
        problem(size, size, size, dtype=dtypes.bfloat16),
    ):
        assert chosen(other, hopper_info) == "wgmma"


def test_without_its_self_test_all_is_as_before(hopper_info, monkeypatch):
    p = problem(4096, 4096, 4096)
    assert [x.name for x in matmul.plan(p, hopper_info, STORE).launches] == ["wgmma_transposed"]
    monkeypatch.setattr(
        hopper_probe,
        "available",
        lambda info, name=hopper_probe.BASE, *_: name != "wgmma_transposed",
    )
    assert chosen(p, hopper_info) == "wgmma"
    assert matmul.plan(p, hopper_info, STORE) == hopper_matmul.HopperMatmul().plan(
        p, hopper_info, STORE
    )
    assert "wgmma_transposed" in hopper_probe.MODULES


def test_moments_are_left_to_the_other(hopper_info):
    """Unless turning b takes longer than computing them later."""
    flat = problem(1 << 18, 64, 64)
    assert chosen(flat, hopper_info) == "wgmma_transposed"
    made = with_moments(flat.m, flat.n)
    assert matmul.plan(flat, hopper_info, made).launches[-1].name == "wgmma"
    assert not matmul.takes_moments(problem(4096, 4096, 4096), hopper_info)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("columns", [256, 255])
@pytest.mark.parametrize("out", [FLOAT, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("tile", transposed.SHAPES, ids=lambda t: f"{t.name}x{t.groups}")
@pytest.mark.parametrize("bias", [False, True])
def test_registers(cpu_dev, hopper_info, bias, tile, out, columns):
    """Nothing is spilled, no wgmma waits for another, and a compute unit holds as many groups as
    the tile was made for."""
    p = problem(4096, columns, 4096, b=(256, 1))
    for splits in (1, 4):
        made = biased(out, columns) if bias else store_epilogue(out)
        plan = transposed.TransposedMatmul(tile, splits).plan(p, hopper_info, made)
        threads = plan.launches[0].local_size[0]
        used = ptx.resources(plan.launches[0].source, "sm_90", threads, sm_90a)
        assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
        if tile is WIDE:  # what is given away is what the others take
            assert (threads, 384 * used["registers"]) == (384, 128 * 40 + 256 * 232)
        warps = ceil_div(tile.groups * threads // 32, 4)  # of a quarter of the unit
        assert warps * 32 * round_up(used["registers"], 8) <= 16384
        assert tile.groups * (used["local"] + 1024) <= 228 * 1024
