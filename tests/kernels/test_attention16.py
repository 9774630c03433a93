"""Attention of 16-bit floats with 16-bit tiles on emulated matrix units, against float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention.problem import Dropout, KeptProblem, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.selftests import trial
from kerascl.kernels.units import (
    attention16,
    attention16_large_selftest,
    attention16_selftest,
    attention_selftest,
)
from kerascl.kernels.units.attention16 import Attention16, Attention16Gradient, Tile, takes
from kerascl.runtime.errors import DeviceError
from tests.kernels import ptx
from tests.kernels.harness import poisoned, run_outputs
from tests.kernels.mma_emulator import emulated16
from tests.kernels.test_attention import WAYS, Case, attention_of, card, contiguous, tensor

assert card  # a fixture


@pytest.fixture
def dev(cpu_dev):
    """A device that emulates."""
    return cpu_dev


BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(2, 1, 16)
# Rows of one warp, operands from local memory, three stages; blocks no multiple of the other's.
TILES = {
    "held": SMALL, "local": Tile(2, 1, 32, held=False), "three": Tile(1, 2, 32, stages=3),
    "odd": Tile(1, 2, 48, held=False, stages=3),
}  # fmt: skip
SIZES = (1, 37, 70, 2, 1, 16, 24)


def solvers(tile=SMALL, late=True, fault=None):
    one = ((256, tile),)
    return (
        emulated16(Attention16, late, fault)((one,)),
        emulated16(Attention16Gradient, late, fault)((one, one)),
    )


@pytest.mark.every(3)
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("tile", list(TILES))
def test_tiles(tile, late, dev, rng):
    case = Case((1, 70, 75, 2, 1, 40, 24), rng, causal=True, dtype=BF16)
    case.check(solvers(TILES[tile], late), dev)


@pytest.mark.parametrize("sizes", [
    (1, 1, 1, 1, 1, 8, 8), (2, 16, 16, 2, 2, 16, 16), (1, 65, 40, 3, 1, 32, 64),
    (1, 9, 129, 2, 1, 40, 8), (1, 20, 33, 1, 1, 128, 128),
], ids=str)  # fmt: skip
def test_sizes(sizes, dev, rng):
    Case(sizes, rng, dtype=F16).check(solvers(), dev)


@pytest.mark.parametrize("way", list(WAYS))
def test_ways(way, dev, rng):
    tile = TILES["local" if way == "mask_causal" else "held"]
    Case(SIZES, rng, dtype=BF16, **WAYS[way]).check(solvers(tile), dev)


@pytest.mark.parametrize("way, tile", [
    (dict(dropout=Dropout(int(0.9 * 2**32), 1 / 0.9)), "held"),  # of 32 bits, the others of 16
    (dict(mask=(1, 1, 1, 1), causal=True, dropout=Dropout(3 * 2**30, 4 / 3), dtype=F16), "held"),
    (dict(causal=True, dropout=Dropout(2**31, 2.0, first=2**32 - 99)), "held"),
    (dict(dropout=Dropout(3 * 2**30, 4 / 3)), "odd"),
], ids=["plain", "mask", "far", "odd"])  # fmt: skip
def test_dropout(way, tile, dev, rng):
    Case(SIZES, rng, **dict(dtype=BF16) | way).check(solvers(TILES[tile]), dev)


def test_strided_rows(dev, rng):
    """Heads before rows, and keys and values as parts of longer rows."""
    case = Case((2, 19, 35, 4, 2, 16, 16), rng, causal=True, dtype=BF16)
    q, k, v = (case.inputs[x] for x in "abc")
    moved = np.ascontiguousarray(q.transpose(0, 2, 1, 3))
    a, b, c, d = contiguous(moved.shape)
    both = np.concatenate([k, v], -1)
    steps = contiguous(both.shape)
    case.inputs.update(a=moved, b=both, c=both)
    for name in ("forward", "backward"):
        setattr(case, name, dataclasses.replace(
            getattr(case, name), q=Tensor(BF16, (a, c, b, d)), k=Tensor(BF16, steps),
            v=Tensor(BF16, steps, 16),
        ))  # fmt: skip
    assert takes(case.backward)
    case.check(solvers(), dev)


def test_results_do_not_vary(dev, rng):
    """Not by a bit, whenever copies arrive."""
    case = Case(SIZES, rng, causal=True, dtype=BF16)
    found = []
    for late in (False, True):
        forward, _ = solvers(late=late)
        outs = {"out": poisoned(case.y.shape, BF16), "stat": poisoned((1, 2, 37), dtypes.float32)}
        plan = forward.plan(case.forward, dev.info, store_epilogue(BF16))
        found.append(run_outputs(plan, case.inputs, outs, dev))
    for name in ("out", "stat"):
        assert found[0][name].tobytes() == found[1][name].tobytes()


FAULTS = {
    "no wait": ("WAIT(STAGES - 2);", ""),
    "waits for too few": ("WAIT(STAGES - 2);", "WAIT(STAGES - 1);"),
    "wrong stage": ("stage == 0 ? STAGES - 1 : stage - 1", "stage"),
    "other half of the depth": ("(lane >> 3 & 1) * 16", "(lane >> 3 & 0) * 16"),
    "other features": ("(lane >> 4) * 16 \\\n                + 16 * k", "0 + 16 * k"),
    "rows swapped": ("(e >> 1)][2 * (e & 1)],", "(e >> 1)][2 * (~e & 1)],"),
    "last block as any other": ("(last) >= S || ", ""),
    "diagonal as any other": ("(CAUSAL && (last) > (first_query))", "0"),
    "zeros left out": ("r_ < left_ && CHUNK * c_ < (features)", "1"),
    "one statistic": ("4 * COLUMN(j, 0));\n        GET", "0);\n        GET"),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_seen(fault, dev, rng):
    causal = fault != "last block as any other"
    case = Case((1, 37, 45, 1, 1, 24, 16), rng, causal=causal, dtype=F16)
    with pytest.raises(AssertionError, match=r"relative error|poison"):
        case.check(solvers(Tile(2, 1, 16), True, FAULTS[fault]), dev)


def test_what_is_taken():
    p = attention_of(64, BF16)
    assert takes(p) and takes(attention_of(72, F16)) and takes(dataclasses.replace(p, grad=p.q))
    for other in (
        attention_of(64), attention_of(20, BF16), dataclasses.replace(p, scale=-1.0),
        dataclasses.replace(p, k=dataclasses.replace(p.k, offset=4)),
        dataclasses.replace(p, v=Tensor(BF16, (*p.v.strides[:2], 1, 384))),
        dataclasses.replace(p, v=tensor((4, 200, 6, 64), F16)),
    ):  # fmt: skip
        assert not takes(other)


def pair(features, **more):
    """Both solvers with problems that they take, of enough work for any card."""
    p = dataclasses.replace(attention_of(features, BF16, **more), batch=64)
    return (Attention16(), p), (Attention16Gradient(), dataclasses.replace(p, grad=p.q))


@pytest.fixture
def hopper(card):
    """The same of a card that gives more local memory."""
    return dataclasses.replace(card, matrix="wgmma90", nvidia_capability=(9, 0), compute_units=132)


def test_tiles_fit(card, hopper):
    """The tables have a tile for every head of up to 128 features in 48 KiB, and larger ones where
    a unit's memory holds two work-groups with them."""
    large = set()
    for features in range(8, 129, 8):
        for info, room in ((card, card.local_mem_bytes - 256), (hopper, 113 << 10)):
            for solver, problem in pair(features):
                assert solver.applies(problem, info)
                for k, tile in enumerate(solver.block(problem, info)):
                    assert tile.local_bytes(problem, k > 0) <= room
                    if tile.large(problem, k > 0):
                        large.add((info.matrix, solver.backward, k))
    assert large == {("wgmma90", False, 0), ("wgmma90", True, 0), ("wgmma90", True, 1)}
    assert [t.drops for solver, p in pair(128, dropout=Dropout(2**31, 2.0))
            for t in solver.block(p, card)] == [True] * 3  # fmt: skip
    assert not Attention16().applies(attention_of(136, BF16), card)
    for solver, p in pair(64):  # its own rows of the tables, not those of more features
        own = [{t for most, t in table if most == 64} for table in solver.tables]
        assert all(t in rows for t, rows in zip(solver.block(p, hopper), own, strict=True))


def test_large_tiles_want_their_self_test(hopper, monkeypatch):
    monkeypatch.setattr(attention16, "available", lambda info, p, name=attention16.BASE: (
        name == attention16.BASE
    ))  # fmt: skip
    for solver, problem in pair(128):
        assert solver.applies(problem, hopper)
        for launch in solver.plan(problem, hopper, store_epilogue(BF16)).launches:
            assert not launch.options


@pytest.mark.parametrize("rows, blocks", [(257, 1), (2048, 2), (64, 1)])
def test_tiles_waste_little(card, rows, blocks):
    """Blocks of 128 rows leave 127 of the last one idle, those of 64 rows 63."""
    p = dataclasses.replace(attention_of(64, BF16), length=rows, source=rows, batch=64)
    assert [t.blocks for t in Attention16().block(p, card)] == [blocks]


# Microseconds on an H100 of batch entries * heads, rows, features, forward, dq and dk, dv; the
# first tile's of a table.
MEASURED = (
    (128, 2048, 64, False, 456, 629, 832), (32, 8192, 64, True, 962, 1296, 1686),
    (512, 512, 64, False, 158, 208, 285), (64, 2048, 128, False, 434, 577, 979),
    (16, 8192, 128, True, 1001, 1284, 1926), (256, 512, 128, False, 154, 197, 334),
)  # fmt: skip


@pytest.mark.parametrize("measured", MEASURED, ids=str)
def test_costs_are_what_was_measured(measured, hopper, monkeypatch):
    """To a fifth, launches aside, with the matrix units' rate at 1.755 GHz."""
    batch, rows, features, causal, *times = measured
    x = tensor((batch, rows, 1, features), BF16)
    p = dataclasses.replace(
        attention_of(features, BF16), batch=batch, length=rows, source=rows, heads=1, groups=1,
        causal=causal, q=x, k=x, v=x,
    )  # fmt: skip
    rate = 0.62 * 132 * 2048 * 1755
    back = dataclasses.replace(p, grad=p.q)
    tiles = *Attention16().block(p, hopper), *Attention16Gradient().block(back, hopper)
    for tile, problem, keys, time in zip(
        tiles, (p, back, back), (False, False, True), times, strict=True
    ):
        assert time / 1.2 < tile.work(problem, hopper, keys) / rate < time * 1.2


# Bytes, of values that no loop reads often: smaller tiles without are slower.  What NVIDIA's own
# compiler keeps may differ, as clang's versions do: of what drops, 14 keeps 44 and 19 16.
SPILLS, DROPPING_SPILLS = 56, 44


@pytest.mark.every(3)
@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("drop", ["", "drop", "kept"])
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("where", ["card", "hopper"])
def test_registers_hold_everything(where, features, drop, request):
    info = request.getfixturevalue(where)
    for solver, p in pair(features, dropout=Dropout(2**31, 2.0) if drop else None):
        if drop == "kept":
            p = KeptProblem(**{f.name: getattr(p, f.name) for f in dataclasses.fields(p)})
        for launch in solver.plan(p, info, store_epilogue(BF16)).launches:
            arch, rewrite = ("sm_90", sm_90a) if launch.options else ("sm_80", None)
            used = ptx.resources(launch.source, arch, launch.local_size[0], rewrite)
            assert used["spills"] <= (SPILLS if p.dropout is None else DROPPING_SPILLS)
            assert used["registers"] > 60


def test_self_test(dev, monkeypatch):
    """It passes where the units work, and says what is wrong where they do not."""
    case = (1, 20, 37, 2, 16, 24, True, 0.75)
    for module in (attention16_selftest, attention16_large_selftest):
        monkeypatch.setattr(module, "CASES", {"64": case})

    def emulate(fault=None):
        for kind in (Attention16, Attention16Gradient):
            made = emulated16(kind, True, fault)
            made.tables = tuple(((64, SMALL),) for _ in kind.tables)
            monkeypatch.setattr(attention16, kind.__name__, made)

    emulate()
    for module in (attention16_selftest, attention16_large_selftest):
        for way in attention_selftest.WAYS:
            trial.run(dev, module.trials(dev.info, f"bfloat16 64 {way}"))
    emulate(FAULTS["other half of the depth"])
    with pytest.raises(DeviceError, match="attention is wrong"):
        trial.run(dev, attention16_selftest.trials(dev.info, "bfloat16 64 forward"))
