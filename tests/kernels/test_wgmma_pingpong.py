"""Products whose teams of warpgroups take turns; the hardware emulated."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Ref, rename_slots
from kerascl.kernels.hopper import brought, pingpong, tiles
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper.ptx import KINDS, sm_90a
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from tests.kernels import emulator, ptx, test_wgmma
from tests.kernels.harness import poisoned, random_array, run_plan
from tests.kernels.test_wgmma_emulated import STORE, altered, check, found_in, product

hopper = test_wgmma.hopper
with_turns = test_wgmma.passing(pingpong.SELF_TEST)
(TILE,) = pingpong.SHAPES
SIZES = {  # m, n, k, batch of a, batch of b; two work-groups
    "one tile": (70, 40, 136, (), ()),
    "one tile each": (200, 72, 72, (), ()),
    "two each": (256, 256, 64, (), ()),
    "three and two": (600, 90, 200, (), ()),
    "many of one stage": (300, 530, 64, (), ()),
    "as many stages as the ring": (300, 140, 448, (), ()),
    "a stage more": (300, 140, 456, (), ()),
    "more stages than twice the ring": (300, 136, 1000, (), ()),
    "odd": (140, 133, 37, (), ()),
    "batched": (150, 40, 136, (2, 3), (2, 1)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("transpose", test_wgmma.ORDERS[:2], ids=["nn", "tt"])
@pytest.mark.parametrize("name", SIZES)
def test_products(cpu_dev, cpu_info, name, transpose, dtype, rng):
    p, operands, want = product(rng, SIZES[name], dtypes.as_dtype(dtype), transpose=transpose)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, STORE)
    assert "#define PINGPONG 2\n" in plan.launches[-1].source
    check(plan, *operands, want, cpu_dev)


def squaring(dtype, more=dtypes.float32):
    """Adds "more" and stores the square; as a residual is."""
    read, compute = more.load.format(p="more", i="i"), "const float s_ = acc + more_;"
    return Epilogue(
        f", __global {dtype.storage}* out, __global const {more.storage}* more",
        (Ref("out"), Ref("more")),
        f"const float more_ = {read}; {compute} "
        f"{dtype.store.format(p='out', i='i', v='(s_ * s_)')};",
        loads=(VectorLoad("more", more, "more_"),),
        compute=compute,
        stores=(VectorStore("out", dtype, "(s_ * s_)"),),
    )


def gating(dtype):
    """Stores a result and its product with a logistic function of it."""
    compute = "const float s_ = acc * native_recip(1.0f + exp2(-1.442695f * acc));"
    first, second = (
        dtype.store.format(p=p, i="i", v=v) for p, v in (("whole", "((float)acc)"), ("out", "s_"))
    )
    return Epilogue(
        f", __global {dtype.storage}* out, __global {dtype.storage}* whole",
        (Ref("out"), Ref("whole")),
        f"{compute} {first}; {second};",
        compute=compute,
        stores=(VectorStore("whole", dtype, "((float)acc)"), VectorStore("out", dtype, "s_")),
        work=20,
    )


@pytest.mark.parametrize("out", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_epilogues_that_compute(cpu_dev, cpu_info, out, rng):
    """Both of what is stored; one work-group has four tiles, the other three."""
    p, (a, b), want = product(rng, (850, 72, 200, (), ()), dtypes.bfloat16)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, gating(out))
    product_ = want(a, b)
    gated = product_ / (1 + np.exp(-product_))
    inputs = {"a": a, "b": b, "other": np.zeros_like(product_, out.numpy)}
    for slot, other, expected in (("out", "whole", gated), ("whole", "out", product_)):
        seen = rename_slots(plan, {slot: "out", other: "other"})
        got = emulator.run_plan(seen, inputs, poisoned(product_.shape, out), cpu_dev)
        assert test_wgmma.relative(got, expected) < (2e-6 if out is dtypes.float32 else 4e-3)


@pytest.mark.parametrize("columns", [256, 140, 133])
@pytest.mark.parametrize("out", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_epilogues_that_read(cpu_dev, cpu_info, columns, out, rng, monkeypatch):
    """In vectors of two widths, several at once, and one by one, where TMA does not bring it."""
    monkeypatch.setattr(brought, "bring", lambda epilogue, *_: epilogue)
    p, (a, b), want = product(rng, (300, columns, 200, (), ()), dtypes.bfloat16)
    more = random_array(rng, (300, columns), out)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, squaring(out, out))
    together = (4 if out is dtypes.float32 else 2) if columns == 256 else 1
    assert f"#define VECTORS {together}\n" in plan.launches[-1].source
    inputs = {"a": a, "b": b, "more": more}
    got = emulator.run_plan(plan, inputs, poisoned((300, columns), out), cpu_dev)
    expected = np.square(want(a, b) + more.astype(np.float64))
    assert test_wgmma.relative(got, expected) < (2e-6 if out is dtypes.float32 else 4e-3)


@pytest.mark.parametrize("columns", [264, 140])
@pytest.mark.parametrize("out", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_a_bias_is_read_before_the_products(cpu_dev, cpu_info, columns, out, rng):
    """All of a tile's, in each team for its own tiles; the last tile has fewer columns."""
    p, (a, b), want = product(rng, (850, columns, 72, (), ()), dtypes.bfloat16)
    bias = rng.standard_normal(columns).astype(np.float32)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, biased(out, columns))
    wide = out is dtypes.bfloat16 and columns % 8 == 0
    assert f"#define KEPT {4 if wide else 8}\n" in plan.launches[-1].source
    got = emulator.run_plan(
        plan, {"a": a, "b": b, "bias": bias}, poisoned((850, columns), out), cpu_dev
    )
    bound = 2e-6 if out is dtypes.float32 else 4e-3
    assert test_wgmma.relative(got, want(a, b) + bias) < bound


FAULTS = {
    "turns are not taken": ("    TAKE_TURN\n", "", "EARLY"),
    "turns are not passed": ("      PASS_TURN\n", "", "a phase"),
    "passed too early": ("    TAKE_TURN\n", "    TAKE_TURN PASS_TURN\n", "TURN"),
    "passed to oneself": ("((team + 1) % PINGPONG)", "team", "TURN"),
    "no first turn": ("uint turn = team == 0;", "uint turn = 0;", "PARITY"),
    "always the same turn": ("turn ^= 1;", "", "PARITY"),
    "the other's stages are not skipped": ("    END_TURN\n", "", "PARITY"),
    "nor before the first tile": ("SKIP_TILES(team)", "", "PARITY"),
    "all take all tiles": ("tile += PINGPONG * groups)", "tile += groups)", "NEVER"),
    "too many hand a stage back": (
        "RING_BARRIERS(4 * TILE_CONSUMERS)", "RING_BARRIERS(4 * NWG)", "a phase",
    ),
    "too few pass": ("BAR_INIT(TURNS + 8 * t, 4 ", "BAR_INIT(TURNS + 8 * t, 8 ", "a phase"),
    "no room": ("+ SIDE + TURN_BYTES", "+ SIDE", "SHARED"),
    "handed back early": ("WG_WAIT(1);", "WG_WAIT(2);", "HELD"),
    "rows of another tile": (
        "#define IN_TILE (consumer % TILE_CONSUMERS)", "#define IN_TILE consumer", "relative error",
    ),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(cpu_dev, cpu_info, name, rng):
    old, new, fault = FAULTS[name]
    p, operands, want = product(rng, (600, 90, 200, (), ()), dtypes.bfloat16)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, STORE)
    plan = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    found_in(plan, fault, operands, want, cpu_dev)


def problem(m, n, k, dtype=dtypes.bfloat16, precision="high"):
    kinds = dtype, dtype, dtypes.float32
    return normalise_matmul(
        MatmulProblem(m, n, k, (), (k, 1), (1, k), *kinds, precision=precision)
    )


HARD = dataclasses.replace(squaring(dtypes.bfloat16), work=20)
LARGE = problem(12608, 3072, 768)


def test_who_takes_turns(hopper_info, monkeypatch):
    """All large products without moments or slices, if each work-group has several tiles."""
    solver = hopper_matmul.HopperMatmul()

    def chosen(p, epilogue, solver=solver):
        return solver.choice(p, hopper_info, epilogue)[1]

    computes = dataclasses.replace(HARD, loads=())
    stores = store_epilogue(dtypes.bfloat16)
    for epilogue in (HARD, computes, dataclasses.replace(HARD, work=0), stores):
        assert chosen(LARGE, epilogue) is TILE
    assert chosen(LARGE, dataclasses.replace(HARD, moments="")) is TILE
    assert chosen(LARGE, dataclasses.replace(HARD, moments="x")) in tiles.SHAPES
    assert chosen(LARGE, HARD, hopper_matmul.HopperMatmul(splits=2)) in tiles.SHAPES
    assert chosen(problem(1024, 1024, 768), HARD) in tiles.SHAPES  # half of the units have a tile
    assert chosen(problem(12608, 3072, 768, dtypes.float32, "highest"), HARD) in tiles.PROMOTED
    monkeypatch.setattr(
        hopper_probe, "available",
        lambda info, name=hopper_probe.BASE, *_: name != pingpong.SELF_TEST,
    )
    assert chosen(LARGE, HARD) in tiles.SHAPES
    given = hopper_matmul.HopperMatmul(TILE)
    assert not given.applies(LARGE, hopper_info) and solver.applies(LARGE, hopper_info)


def test_what_a_tile_of_teams_takes(hopper_info):
    given = hopper_matmul.HopperMatmul(TILE, 1)
    assert given.applies(LARGE, hopper_info)
    assert given.name in {solver.name for solver in matmul.VARIANTS}
    assert not hopper_matmul.HopperMatmul(TILE, 2).takes(LARGE)
    assert not given.takes(problem(512, 512, 512, dtypes.float32, "highest"))
    assert not given.takes_moments(LARGE, hopper_info)


def test_time_is_that_of_turns(hopper_info):
    """As the beginnings and ends of all tiles of a compute unit, one by one."""
    kind, clock, peak = KINDS["bfloat16"], 1980, 2048
    for k, more in ((768, 2.4), (64, 2.4), (3072, 0.0)):
        products = 128 * 128 * k / (peak * kind.efficiency * TILE.speed)
        epilogue = 128 * 128 * 2 * (0.139 + more * 0.139)
        for count in (1, 2, 5, 6):
            multiplied, ready = 594.0, [0.0, 0.0]
            for tile in range(count):
                multiplied = max(multiplied, ready[tile % 2]) + products
                ready[tile % 2] = multiplied + epilogue
            found = pingpong.time(TILE, kind, count * 132 - 5, k, hopper_info, 0.139, more)
            assert found == pytest.approx(max(ready) / clock)


def with_bias(out):
    return biased(out, 3072)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("columns", [3072, 3070])
@pytest.mark.parametrize("out", [dtypes.bfloat16, dtypes.float32], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("made", [store_epilogue, squaring, gating, with_bias])
def test_registers(hopper_info, made, dtype, out, columns):
    """Nothing is spilled, and setmaxnreg counts from the registers that a work-item begins with."""
    p = problem(4096, columns, 768, dtypes.as_dtype(dtype))
    launch = hopper_matmul.HopperMatmul(TILE).plan(p, hopper_info, made(out)).launches[-1]
    assert launch.local_size == (384,) and "REGISTERS(inc, 232)" in launch.source
    used = ptx.resources(launch.source, "sm_90", 384, sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
    assert used["registers"] == 168 and 168 * 384 >= 232 * 256 + 40 * 128
    assert used["local"] <= tiles.SHARED_LIMIT


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("sizes", [(200, 136, 424), (12000, 1000, 64), (3000, 2000, 1000)], ids=str)
def test_products_on_a_card(with_turns, sizes, dtype, rng):
    dev = with_turns
    m, n, k = sizes
    p, (a, b), want = product(rng, (m, n, k, (), ()), dtypes.as_dtype(dtype))
    more = random_array(rng, (m, n), dtypes.float32)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, dev.info, squaring(dtypes.float32))
    inputs, out = {"a": a, "b": b, "more": more}, poisoned((m, n), dtypes.float32)
    results = [run_plan(plan, inputs, out, dev) for _ in range(3)]
    assert test_wgmma.relative(results[0], np.square(want(a, b) + more)) < 2e-3
    assert len({r.tobytes() for r in results}) == 1
