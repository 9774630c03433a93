"""Attention's gradients by way of those of logits in memory, on a CPU (`emulator`)."""

import dataclasses

import pytest

from kerascl import dtypes
from kerascl.kernels.attention import solvers
from kerascl.kernels.attention.problem import KeptProblem
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import attention_gradient_stored as stored
from kerascl.kernels.hopper import probe, tiles
from kerascl.kernels.hopper.attention_gradient import KEYS, Tile, rows_of
from kerascl.kernels.hopper.attention_gradient_stored import QueryTile, StoredAttentionGradient
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests import attention_gradient_stored as selftest
from kerascl.kernels.selftests import trial
from kerascl.runtime.errors import DeviceError
from tests.kernels import emulator, ptx, sass
from tests.kernels.harness import changed
from tests.kernels.test_attention import Case, close
from tests.kernels.test_wgmma_attention import DROPOUTS
from tests.kernels.test_wgmma_attention import hopper as hopper_card
from tests.kernels.test_wgmma_attention_gradient import RESULTS, inputs_of, of, outputs_of

hopper = hopper_card
BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(1, 32, 3, local=1)
FEW = QueryTile(1, 3)


def run(case, info, dev, keys=SMALL, queries=FEW, groups=2, heads=None, fault=None):
    """The gradients of a case, by slot."""
    p = case.backward
    solver = StoredAttentionGradient(keys, queries, groups, heads)
    plan = solver.plan(p, info, store_epilogue(p.dtype))
    if fault:
        changed(plan, fault)
    return emulator.run_outputs_of(plan, inputs_of(case), outputs_of(case), dev)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    for slot, name in RESULTS.items():
        close(got[slot], getattr(case, name))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length, source", [
    (1, 1), (64, 64), (65, 130), (130, 65), (150, 250), (3, 200), (200, 3), (77, 129),
])  # fmt: skip
def test_lengths(length, source, causal, cpu_dev, cpu_info, rng):
    """Whole and partial tiles and blocks, rows of queries of no whole 16 bytes, unseen keys."""
    case = Case((1, length, source, 2, 1, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("keys, queries", [
    (Tile(2, 48, 4, local=1), QueryTile(4, 4)), (Tile(2, 32, 4, local=1), QueryTile(2, 6)),
    (Tile(2, 64, 3), QueryTile(2, 2)), (Tile(1, 16, 3), QueryTile(3, 3)),
], ids=str)  # fmt: skip
def test_tiles(keys, queries, causal, cpu_dev, cpu_info, rng):
    """Tiles of queries that are larger than those of keys meet logits that nobody has written."""
    case = Case((1, 290, 310, 2, 2, 72, 64), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev, keys=keys, queries=queries)


@pytest.mark.parametrize("width, depth", [(8, 128), (128, 8), (128, 128), (72, 104), (40, 24)])
def test_features(width, depth, cpu_dev, cpu_info, rng):
    check(Case((2, 70, 75, 1, 1, width, depth), rng, dtype=F16), cpu_info, cpu_dev)


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("shared", [2, 4])
def test_some_heads_after_the_others(shared, heads, cpu_dev, cpu_info, rng):
    """In the same memory, of all batch entries, with keys of their own or shared."""
    case = Case((2, 70, 90, 4, shared, 16, 24), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, heads=heads)
    one, all_ = (run(case, cpu_info, cpu_dev, heads=n, groups=g) for n, g in ((heads, 3), (8, 1)))
    for slot in RESULTS:
        assert one[slot].tobytes() == all_[slot].tobytes()


FAULTS = {
    "logits of the other row": ("to_ + 16 * r_ *", "to_ + 16 * (1 - r_) *"),
    "logits of the other fragment": ("2 * (row_ * pitch_ + at_)", "2 * (row_ * pitch_ + c0)"),
    "logits of the neighbour": ("far_, near_lane_ & 1, 1)", "far_, 0, 1)"),
    "logits of another head": ("(entry_ * HEADS + h - FIRST", "(entry_ * HEADS - FIRST"),
    "queries of another launch": ("plane = FIRST_PLANE + in_", "plane = in_"),
    "keys of another head": ("h / REPEAT * K_HEADS", "0"),
    "logits of the other warpgroup": ("base + consumer * PANEL", "base"),
    "keys of other rows": ("right + at + (ulong)(k * 128)", "right + at"),
    "keys' features": ("(ulong)(PANEL >> 4) << 16", "1UL << 16"),
    "all keys, causal": ("CAUSAL ? min(count, (first", "0 ? min(count, (first"),
    "too few keys, causal": ("/ BC + 1) : count", "/ BC) : count"),
    "blocks of others are kept, causal": ("      HAND_BACK(stage);\n      NEXT", "      NEXT"),
    "handed back early": ("      if (before >= 0) HAND_BACK(before);\n      before = stage;",
                          "      HAND_BACK(stage);"),
    "sums not waited for": ("    WG_WAIT(0);\n    WGMMA_KEEP(sum);", "    WGMMA_KEEP(sum);"),
    "no fence": ("      WG_FENCE;\n      EACH(k, BC / 16) WGMMA(", "      EACH(k, BC / 16) WGMMA("),
    "no scale": ("STORE_ROW(results, r, scale, row < T,", "STORE_ROW(results, r, 1.0f, row < T,"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_seen(fault, cpu_dev, cpu_info, rng):
    case = Case((2, 150, 200, 4, 2, 72, 16), rng, causal="causal" in fault, dtype=F16)
    seen = r"relative error|poison|\['|a phase never ends|behind"
    with pytest.raises(AssertionError, match=seen):
        check(
            case, cpu_info, cpu_dev, fault=FAULTS[fault], queries=QueryTile(2, 3), heads=2,
        )  # fmt: skip


@pytest.mark.parametrize("length", [512, 2048, 8192])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_it_is_chosen(length, causal, hopper, monkeypatch):
    """For many features, of which neither kernel lacks local memory."""
    hopper = dataclasses.replace(hopper, global_mem_bytes=140 << 30)
    p = dataclasses.replace(of(length, 128, causal=causal), batch=max(1, 8192 // length))
    solver = contract.choose(solvers.SOLVERS, p, hopper)
    assert solver.name == "wgmma_attention_grad_stored"
    assert solver.key_tile(p, hopper).local_bytes(p, True) <= tiles.SHARED_LIMIT
    assert solver.query_tile(p, hopper).local_bytes(p) <= tiles.SHARED_LIMIT
    monkeypatch.setattr(probe, "available", lambda info, name, _: name != stored.SELF_TEST)
    assert contract.choose(solvers.SOLVERS, p, hopper).name == "wgmma_attention_grad"


def test_what_is_taken(hopper):
    """Few features go another way, as do logits that memory has no room for, and dropout that has
    to be drawn."""
    solver, p = StoredAttentionGradient(), of(512, 128)
    assert solver.applies(p, hopper)
    assert not solver.applies(of(512, 64), hopper)
    assert not solver.applies(of(512, 128, dropout=DROPOUTS["coarse"]), hopper)
    fields = {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}
    kept = KeptProblem(**fields | {"dropout": DROPOUTS["coarse"]})
    assert solver.applies(kept, hopper)
    assert not solver.applies(dataclasses.replace(p, length=60000, source=60000), hopper)


def test_memory_bounds_the_heads_of_a_launch(hopper):
    hopper = dataclasses.replace(hopper, global_mem_bytes=140 << 30)
    solver, p = StoredAttentionGradient(), dataclasses.replace(of(8192, 128), batch=3)
    p = dataclasses.replace(p, groups=p.heads // 2)
    parts = solver.parts(p, hopper)
    repeat = p.heads // p.groups
    most = hopper.global_mem_bytes / 256
    assert len(parts) > 1
    covered = [plane for first, count in parts for plane in range(first, first + count)]
    assert covered == list(range(p.batch * p.groups))
    nbytes = max(n for _, n in parts) * repeat * 8192 * 8192 * 2
    assert nbytes <= most
    plan = solver.plan(p, hopper, store_epilogue(BF16))
    assert plan.workspace[2] == nbytes and len(plan.launches) == 2 * len(parts)


# Bytes, of values that loops hardly read, of the kernel of keys and of that of queries.
SPILLS = 40, 0


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kept", [False, True], ids=["all", "dropped"])
@pytest.mark.parametrize("number", range(len(rows_of(KEYS, 128))))
def test_registers_hold_everything(number, kept, causal, hopper):
    """And no product waits for the one before, nor is a register of one under way overwritten."""
    p, tile = of(512, 128, causal=causal), rows_of(KEYS, 128)[number]
    if kept:
        fields = {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}
        p = KeptProblem(**fields | {"dropout": DROPOUTS["coarse"]})
    if not tile.holds(p):
        assert StoredAttentionGradient().key_tile(p, hopper) != tile
        return
    plan = StoredAttentionGradient(tile).plan(p, hopper, store_epilogue(BF16))
    for launch, most in zip(plan.launches, SPILLS, strict=False):
        used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
        assert used["spills"] <= most and used["lost"] == 0
        found = ptx.disassembly(launch.source, "sm_90", launch.local_size[0], sm_90a)
        assert not sass.hazards(found)


def test_self_test(cpu_dev, cpu_info, monkeypatch):
    """It passes where the hardware does as it should, and says what is wrong where not."""
    fault = ()

    def compute(plan, inputs, outs, dev):
        if fault:
            changed(plan, fault)
        for name, got in emulator.run_outputs_of(plan, inputs, outs, cpu_dev).items():
            outs[name][...] = got

    monkeypatch.setattr(trial, "compute", compute)
    monkeypatch.setattr(selftest, "CASES", {"128": ((1, 70, 130, 2, 16, 24, True, 0.75), 1)})
    monkeypatch.setattr(selftest, "HEADS", 1)
    trial.run(cpu_dev, selftest.trials(cpu_info, "float16 128"))
    fault = FAULTS["logits of the other row"]
    with pytest.raises(DeviceError, match="attention's gradient out is wrong"):
        trial.run(cpu_dev, selftest.trials(cpu_info, "float16 128"))
