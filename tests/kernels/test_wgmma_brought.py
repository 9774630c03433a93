"""What epilogues of teams' products read, brought by TMA; the hardware emulated."""

import contextlib
import dataclasses
import math
import re

import numpy as np
import pytest

import kerascl
from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.hopper import brought, pingpong, tiles
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests import pingpong as selftest
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.selftests import trial
from kerascl.kernels.tuning import database, machine
from kerascl.runtime import device
from kerascl.runtime.device import DeviceError
from tests.kernels import emulator, ptx, test_wgmma, test_wgmma_pingpong
from tests.kernels.harness import poisoned, random_array, run_plan
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_emulated import altered, product
from tests.solvers import emulated

hopper = test_wgmma.hopper
with_turns = test_wgmma.passing(pingpong.SELF_TEST)
(TILE,) = pingpong.SHAPES
FLOAT, HALF, BFLOAT = dtypes.float32, dtypes.float16, dtypes.bfloat16


def reading(out, *more):
    """(acc - more0) * (1 + more1) - more2 ... of operands of these dtypes: their order is seen."""
    names = [f"more{k}" for k in range(len(more))]
    value = "acc"
    for k, name in enumerate(names):
        value = f"({value} - {name}_)" if k % 2 == 0 else f"({value} * (1.0f + {name}_))"
    compute = f"const float s_ = {value};"
    reads = "".join(
        f"const float {n}_ = {d.load.format(p=n, i='i')}; "
        for n, d in zip(names, more, strict=True)
    )
    return Epilogue(
        f", __global {out.storage}* restrict out"
        + "".join(f", __global const {d.storage}* {n}" for n, d in zip(names, more, strict=True)),
        (Ref("out"), *map(Ref, names)),
        f"{reads}{compute} {out.store.format(p='out', i='i', v='s_')};",
        loads=tuple(VectorLoad(n, d, f"{n}_") for n, d in zip(names, more, strict=True)),
        compute=compute,
        stores=(VectorStore("out", out, "s_"),),
    )


def expected(product_, *more):
    """The same in float64."""
    for k, x in enumerate(more):
        x = x.astype(np.float64)
        product_ = product_ - x if k % 2 == 0 else product_ * (1 + x)
    return product_


def planned(rng, sizes, dtype, out, more, cpu_info):
    """(plan, inputs, reference) of a product whose epilogue has all of `more` brought."""
    p, (a, b), want = product(rng, sizes, dtype)
    shape = want(a, b).shape
    arrays = [random_array(rng, shape, d) for d in more]
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, reading(out, *more))
    if dtype is FLOAT:
        want = want(tf32(a), tf32(b))
    else:
        want = want(a, b)
    inputs = {"a": a, "b": b} | {f"more{k}": x for k, x in enumerate(arrays)}
    return plan, inputs, expected(want, *arrays)


def check(plan, inputs, want, out, cpu_dev):
    got = emulator.run_plan(plan, inputs, poisoned(want.shape, out), cpu_dev)
    error = test_wgmma.relative(got, want)
    bound = {FLOAT: 2e-6, BFLOAT: 4e-3, HALF: 6e-4}[out]
    assert error < bound, f"relative error {error:.2e}"


SIZES = {  # m, n, k, batch of a, batch of b; two work-groups
    "one tile": (70, 40, 136, (), ()),
    "two each": (256, 256, 64, (), ()),
    "three and two": (600, 88, 200, (), ()),
    "many of one stage": (300, 536, 64, (), ()),
    "as many stages as the ring": (300, 144, 448, (), ()),
    "more stages than twice the ring": (300, 136, 1000, (), ()),
    "batched": (150, 40, 136, (2, 3), (2, 1)),
}
KINDS = [
    (FLOAT, FLOAT, (FLOAT,)), (BFLOAT, BFLOAT, (BFLOAT,)), (BFLOAT, FLOAT, (BFLOAT,)),
    (BFLOAT, BFLOAT, (FLOAT,)), (HALF, HALF, (HALF, HALF)), (FLOAT, FLOAT, (FLOAT, FLOAT)),
    (BFLOAT, BFLOAT, (BFLOAT, FLOAT)), (FLOAT, FLOAT, (FLOAT, BFLOAT)),
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype, out, more", KINDS, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_what_is_read_is_brought(cpu_dev, cpu_info, name, dtype, out, more, rng):
    plan, inputs, want = planned(rng, SIZES[name], dtype, out, more, cpu_info)
    source = plan.launches[-1].source
    assert f"#define BROUGHT_PARTS {sum(d.itemsize for d in more)}\n" in source
    assert "#define READS 0\n" in source
    check(plan, inputs, want, out, cpu_dev)


def with_bias(out, more, columns):
    """Adds a bias, too."""
    inner, bias = reading(out, more), biased(out, columns)
    compute = f"{inner.compute} const float sum_ = s_ + bias_;"
    return dataclasses.replace(
        inner,
        params=f"{inner.params}, __global const float* bias",
        args=(*inner.args, Ref("bias")),
        loads=(*bias.loads, *inner.loads),
        compute=compute,
        decode=bias.decode,
        stores=(VectorStore("out", out, "sum_"),),
    )


@pytest.mark.parametrize("out, more", [(FLOAT, FLOAT), (BFLOAT, BFLOAT), (BFLOAT, FLOAT)], ids=str)
def test_with_a_bias(cpu_dev, cpu_info, out, more, rng):
    """Which a lane reads once for a tile, beside what is brought."""
    p, (a, b), want = product(rng, (600, 264, 72, (), ()), BFLOAT)
    x, bias = random_array(rng, (600, 264), more), rng.standard_normal(264).astype(np.float32)
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, with_bias(out, more, 264))
    source = plan.launches[-1].source
    assert "#define BROUGHT_COUNT 1\n" in source
    assert f"#define KEPT {4 if out is BFLOAT else 8}\n" in source
    inputs = {"a": a, "b": b, "bias": bias, "more0": x}
    check(plan, inputs, want(a, b) - x.astype(np.float64) + bias, out, cpu_dev)


@pytest.fixture
def forced(monkeypatch):
    """Products of the default device are made by teams, emulated."""

    def forget():
        database._choose.cache_clear()
        kerascl.engine.programs.clear()

    if device.default().info.kind != "cpu":
        pytest.skip("a GPU does not run the emulator")
    emulated.install(monkeypatch.setattr)
    monkeypatch.setenv("KERASCL_SOLVERS", f"wgmma{TILE.name}")
    forget()
    yield
    forget()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_of_gelu(forced, monkeypatch, dtype, rng):
    """What the compiler makes of it: the slope is that of an operand of the gradient's shape."""
    found = []
    made = brought.Brought.source

    def source(self, shape):
        found.append(self.loads)
        return made(self, shape)

    monkeypatch.setattr(brought.Brought, "source", source)
    dtype = dtypes.as_dtype(dtype)
    dy, w, u = (random_array(rng, shape, dtype) for shape in ((600, 72), (264, 72), (600, 264)))

    @kerascl.jit
    def gradient(dy, w, u):
        with kerascl.GradientTape() as tape:
            tape.watch(u)
            y = kerascl.gelu(u, approximate=False) @ w
        return tape.gradient(y, u, dy)

    got = np.asarray(gradient(*map(kerascl.array, (dy, w, u)))).astype(np.float64)
    assert [load.dtype for (load,) in found] == [dtype]
    wide = u.astype(np.float64)
    erf = np.vectorize(math.erf)(wide / math.sqrt(2))
    slope = (1 + erf) / 2 + wide * np.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    want = dy.astype(np.float64) @ w.astype(np.float64).T * slope
    assert test_wgmma.relative(got, want) < (2e-6 if dtype is FLOAT else 6e-3)


FAULTS = {
    "not waited for": ("      BAR_WAIT(came_, part_ / IN_RING & 1) \\\n", "", "CLOSED"),
    "waited for with the other parity": (
        "BAR_WAIT(came_, part_ / IN_RING & 1)", "BAR_WAIT(came_, ~part_ / IN_RING & 1)", "PARITY",
    ),
    "filled without a wait": ("      BAR_WAIT(bar + 8 * IN_RING, phase ^ 1) \\\n", "", "EARLY"),
    "filled after a wait with the other parity": (
        "BAR_WAIT(bar + 8 * IN_RING, phase ^ 1)", "BAR_WAIT(bar + 8 * IN_RING, phase)", "PARITY",
    ),
    "never handed back": ("if (lane == 0) BAR_ARRIVE(came_ + 8 * IN_RING);", "", "a phase"),
    "handed back by each lane": (
        "if (lane == 0) BAR_ARRIVE(came_", "BAR_ARRIVE(came_", "a phase",
    ),
    "handed back before it is read": (
        "BAR_WAIT(came_, part_ / IN_RING & 1) \\",
        "BAR_WAIT(came_, part_ / IN_RING & 1) if (lane == 0) BAR_ARRIVE(came_ + 8 * IN_RING); \\",
        "CLOSED",
    ),
    "more to hand it back": (
        "BAR_INIT(BROUGHT_BARRIERS(t) + 8 * (s + IN_RING), 4)",
        "BAR_INIT(BROUGHT_BARRIERS(t) + 8 * (s + IN_RING), 8)", "a phase",
    ),
    "no room for barriers": ("+ TURN_BYTES + BROUGHT_BARRIER_BYTES)", "+ TURN_BYTES)", "SHARED"),
    "no room for parts": (
        "(base + STAGES * STAGE + (team)", "(base + (STAGES - 1) * STAGE + (team)", "TARGET",
    ),
    "the other team's parts": ("(BROUGHT_AT(team) + row", "(BROUGHT_AT(1 - team) + row", "CLOSED"),
    "the other part": (
        "brought_from##k + part_ % IN_RING", "brought_from##k + (part_ + 1) % IN_RING", "CLOSED",
    ),
    "parts in another order": ("((j) + 4) / 4", "((j) + 3) / 4", "PARITY"),
    "all tiles for each team": (
        "      for (; tile < TILES; tile += PINGPONG * groups)",
        "      for (; tile < TILES; tile += groups)", "a phase",
    ),
    "the other team's tiles": (
        "get_group_id(0) + bringer * groups", "get_group_id(0) + (1 - bringer) * groups", "NEVER",
    ),
    "rows of another block": ("pm * BM + i * PANEL_ROWS", "pm * BM", None),
    "rows of another tile": ("pm * BM + i * PANEL_ROWS", "i * PANEL_ROWS", None),
    "columns of another panel": ("(n0 + 8 * j) *", "n0 *", None),
    "other bytes expected": ("BAR_EXPECT(bar, PART_BYTES)", "BAR_EXPECT(bar, 4096)", "BYTES"),
    "a map not written": ("      BROUGHT_OPERANDS(WRITE_BROUGHT_MAP) \\\n", "", "MAP"),
    "a map not acquired": ("      BROUGHT_OPERANDS(ACQUIRE_BROUGHT_MAP) \\\n", "", "ACQUIRED"),
    "another operand": ("BROUGHT_POINTER1 (more1)", "BROUGHT_POINTER1 (more0)", None),
    "no swizzle": (" ^ (quad << 4))", ")", "BANKS"),
    "another swizzle": (" ^ (quad << 4))", " ^ ((quad ^ 2) << 4))", None),
    "halves left as they came": ("q_[w_ + 4], q_[w_], quad & 1", "q_[w_], q_[w_ + 4], 0", None),
    "rows meet in banks": ("other_ = at_ ^ (quad & 1) << 6", "other_ = at_", "BANKS"),
    "the other of two rows": (
        "#define OF_ROW(n) const int second = n;", "#define OF_ROW(n) const int second = 1 - n;",
        None,
    ),
    "rows eight apart are the same": ("+ h_ * 1024)", ")", None),
    "the other half of a pair": ("+ w_] >> 16)", "+ w_])", None),
    "another vector": ("/ LANE_TILES * (VECTOR", "/ LANE_TILES * 0 * (VECTOR", None),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(cpu_dev, cpu_info, name, rng):
    """Operands of both lengths; the work-groups have three tiles, and two for one of its teams."""
    old, new, fault = FAULTS[name]
    plan, inputs, want = planned(
        rng, (600, 136, 264, (), ()), BFLOAT, BFLOAT, (FLOAT, BFLOAT), cpu_info
    )
    assert old in plan.launches[-1].source
    wrong = altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))
    text = emulator.FAULTS.get(fault, fault) if fault else "relative error"
    with pytest.raises(AssertionError, match=re.escape(text)):
        check(wrong, inputs, want, BFLOAT, cpu_dev)


SWAPPED = "q_[w_ + 4], q_[w_], quad & 1", "q_[w_ + 4], q_[w_], ~quad & 1"
SELFTEST_FAULTS = {  # and where it shows
    "": (("", ""), ""),
    "vectors of four": (("other_ ^ 32)", "other_ ^ 96)"), "float32"),
    "vectors of eight": (("LDS4((to) + 4, at_ ^ 16)", "LDS4((to) + 4, at_ ^ 48)"), "bfloat16"),
    "either": (SWAPPED, "float32"),
}


@pytest.mark.parametrize("name", SELFTEST_FAULTS)
def test_the_self_test_has_operands(cpu_dev, cpu_info, monkeypatch, name):
    (old, new), shown = SELFTEST_FAULTS[name]

    def compute(plan, inputs, outs, dev):
        source = plan.launches[-1].source
        assert "#define BROUGHT_COUNT 2\n" in source and old in source
        if name:
            plan = altered(plan, lambda x: dataclasses.replace(x, source=source.replace(old, new)))
        out = outs["out"]
        empty = poisoned(out.shape, dtypes.as_dtype(out.dtype))
        out[...] = emulator.run_plan(plan, inputs, empty, cpu_dev)

    monkeypatch.setattr(trial, "compute", compute)
    monkeypatch.setattr(selftest, "OPERANDS", (600, 264, 136))
    mark = "#define BROUGHT_COUNT 2"
    found = [x for x in selftest.trials(cpu_info, "bfloat16") if mark in x.plan.launches[-1].source]
    assert len(found) == 2
    context = pytest.raises(DeviceError, match=f"with operands.*{shown}") if name else (
        contextlib.nullcontext()
    )  # fmt: skip
    with context:
        trial.run(cpu_dev, [dataclasses.replace(x, times=1) for x in found])


def test_what_is_brought():
    def found(*more, columns=264, out=BFLOAT, tile=TILE):
        epilogue = brought.bring(reading(out, *more), tile, columns)
        assert [x.dtype for x in epilogue.brought] in ([], list(more))
        assert len(epilogue.reads) + len(epilogue.brought) == len(more)
        return len(epilogue.brought)

    assert found(FLOAT) == found(BFLOAT) == found(HALF) == 1 and found() == 0
    assert found(FLOAT, FLOAT) == found(HALF, FLOAT) == 2
    assert found(HALF, HALF, HALF) == 0  # no registers
    assert found(dtypes.int8) == found(dtypes.float64) == found(FLOAT, dtypes.int8) == 0
    assert found(FLOAT, columns=132) == 1 and found(HALF, columns=132) == 0  # whole 16 bytes
    assert found(FLOAT, columns=133) == 0
    assert found(FLOAT, tile=tiles.SHAPES[2]) == 0  # no teams
    alone = dataclasses.replace(reading(FLOAT, FLOAT), stores=())
    assert brought.bring(alone, TILE, 264) is alone
    bias = with_bias(FLOAT, FLOAT, 264)
    assert len(brought.bring(bias, TILE, 264).brought) == 1
    rows = tuple(dataclasses.replace(load, period=0) for load in bias.loads)
    rows = dataclasses.replace(bias, loads=rows)
    assert brought.bring(rows, TILE, 264) is rows


def test_what_it_costs(hopper_info):
    """As long as memory takes for its bytes, and no waits."""
    p = test_wgmma_pingpong.problem(12608, 3072, 768)
    solver = hopper_matmul.HopperMatmul()
    alone, tile, _ = solver.choice(p, hopper_info, store_epilogue(BFLOAT))
    for more in ((BFLOAT,), (FLOAT,), (BFLOAT, FLOAT)):
        time, chosen, _ = solver.choice(p, hopper_info, reading(BFLOAT, *more))
        nbytes = sum(d.itemsize for d in more) * p.total
        assert chosen is tile is TILE
        assert time - alone == pytest.approx(machine.of(hopper_info).moving(nbytes))
    other = test_wgmma_pingpong.problem(12608, 3070, 768)
    time = solver.choice(other, hopper_info, reading(BFLOAT, BFLOAT))[0]
    plain = solver.choice(other, hopper_info, store_epilogue(BFLOAT))[0]
    assert time - plain > machine.of(hopper_info).moving(2 * other.total)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("dtype, out, more", KINDS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_registers(hopper_info, dtype, out, more, bias):
    """Nothing is spilled."""
    p = test_wgmma_pingpong.problem(4096, 3072, 768, dtype)
    epilogue = with_bias(out, more[-1], 3072) if bias else reading(out, *more)
    launch = hopper_matmul.HopperMatmul(TILE).plan(p, hopper_info, epilogue).launches[-1]
    assert "#define BROUGHT_COUNT" in launch.source
    used = ptx.resources(launch.source, "sm_90", 384, sm_90a)
    assert (used["spills"], used["stack"], used["lost"]) == (0, 0, 0)
    assert used["registers"] == 168 and used["local"] <= tiles.SHARED_LIMIT


@pytest.mark.parametrize("dtype, out, more", KINDS, ids=str)
@pytest.mark.parametrize("sizes", [(200, 136, 424), (12008, 1000, 64), (3000, 2000, 1000)], ids=str)
def test_on_a_card(with_turns, sizes, dtype, out, more, rng):
    """As wide as TF32 rounds; the same bits as where lanes read, and again and again."""
    dev, (m, n, k) = with_turns, sizes
    plan, inputs, want = planned(rng, (m, n, k, (), ()), dtype, out, more, dev.info)
    results = [run_plan(plan, inputs, poisoned((m, n), out), dev) for _ in range(3)]
    error = test_wgmma.relative(results[0], want)
    assert error < (2e-3 if dtype is FLOAT else 4e-3)
    assert len({r.tobytes() for r in results}) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brought, "bring", lambda epilogue, *_: epilogue)
        p = product(rng, (m, n, k, (), ()), dtype)[0]
        plan = hopper_matmul.HopperMatmul(TILE).plan(p, dev.info, reading(out, *more))
    assert run_plan(plan, inputs, poisoned((m, n), out), dev).tobytes() == results[0].tobytes()
