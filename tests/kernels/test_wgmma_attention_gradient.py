"""Attention's gradients by warpgroup matrix instructions on a CPU (`emulator`) against float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention import solvers
from kerascl.kernels.attention.problem import Tensor
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.hopper import probe, tiles
from kerascl.kernels.hopper.attention_gradient import HopperAttentionGradient, Tile, takes
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests import attention_gradient as selftest
from kerascl.kernels.selftests import trial
from kerascl.kernels.units import attention16
from kerascl.runtime.errors import DeviceError
from tests.kernels import emulator, ptx
from tests.kernels.harness import changed, poisoned, run_outputs
from tests.kernels.mma_emulator import emulated16
from tests.kernels.test_attention import Case, attention_of, close, contiguous, tensor
from tests.kernels.test_wgmma_attention import DROPOUTS, statistic
from tests.kernels.test_wgmma_attention import hopper as hopper_card
from tests.kernels.test_wgmma_attention import of as forward_of

hopper = hopper_card
BF16, F16 = dtypes.bfloat16, dtypes.float16
SMALL = Tile(1, 32, 3)
RESULTS = {"out": "dq", "dk": "dk", "dv": "dv"}


def inputs_of(case):
    """By slot."""
    found = case.inputs | {"d": case.g, "e": statistic(case).astype(np.float32), "f": case.delta}
    return found | dict(zip("g", case.extra.values(), strict=False))


def outputs_of(case):
    return {
        slot: poisoned(getattr(case, name).shape, case.backward.dtype)
        for slot, name in RESULTS.items()
    }


def run(case, info, dev, queries=SMALL, keys=SMALL, groups=2, fault=None):
    """The gradients of a case, by slot."""
    p = case.backward
    assert takes(p)
    plan = HopperAttentionGradient(queries, keys, groups).plan(p, info, store_epilogue(p.dtype))
    if fault:
        changed(plan, fault)
    return emulator.run_outputs_of(plan, inputs_of(case), outputs_of(case), dev)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    for slot, name in RESULTS.items():
        close(got[slot], getattr(case, name))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_lengths(length, causal, cpu_dev, cpu_info, rng):
    """Of one and of several blocks and tiles, whole and partial, one tile a work-group and more."""
    case = Case((1, length, length, 2, 1, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("queries, keys", [
    (Tile(2, 64, 4), Tile(2, 64, 4)), (Tile(1, 64, 2), Tile(1, 64, 2)),
    (Tile(1, 80, 3), Tile(2, 48, 3)), (Tile(1, 64, 2, local=True), Tile(2, 64, 2, local=True)),
    (Tile(1, 32, 3, local=True), Tile(1, 32, 3, local=True)),
], ids=str)  # fmt: skip
def test_tiles(queries, keys, cpu_dev, cpu_info, rng):
    """Own rows in registers and in local memory, columns no multiple of the rows, short rings."""
    case = Case((1, 150, 210, 2, 1, 72, 64), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, queries=queries, keys=keys)


@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
@pytest.mark.parametrize("width, depth", [
    (8, 128), (128, 8), (128, 128), (64, 104), (40, 24), (64, 64), (32, 32),
])  # fmt: skip
def test_features(width, depth, local, cpu_dev, cpu_info, rng):
    """One panel of 64 or two, whole and partial, of keys and of values."""
    case = Case((2, 70, 75, 1, 1, width, depth), rng, dtype=F16)
    tile = Tile(1, 64, 2, local)
    check(case, cpu_info, cpu_dev, queries=tile, keys=tile)


@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_shared_keys(groups, local, cpu_dev, cpu_info, rng):
    """Neighbouring heads share keys, and all do; three work-groups for all tiles."""
    case = Case((2, 100, 90, 6, groups, 16, 24), rng, causal=True, dtype=BF16)
    tile = Tile(1, 64, 3, local)
    check(case, cpu_info, cpu_dev, groups=3, queries=tile, keys=tile)


@pytest.mark.parametrize("length, source", [(20, 150), (150, 20), (1, 200), (200, 3)])
@pytest.mark.parametrize("local", [False, True], ids=["held", "local"])
def test_keys_that_no_query_sees(length, source, local, cpu_dev, cpu_info, rng):
    """Get zeros for gradients: their tiles meet no block."""
    case = Case((1, length, source, 2, 1, 16, 16), rng, causal=True, dtype=BF16)
    tile = Tile(1, 32, 3, local)
    check(case, cpu_info, cpu_dev, queries=tile, keys=tile)


@pytest.mark.parametrize("handed", [False, True], ids=["drawn", "handed"])
@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dropout(causal, name, handed, cpu_dev, cpu_info, rng, monkeypatch):
    """The numbers are those of `philox`, which all kernels draw, or one draws for both."""
    monkeypatch.setattr(gradient, "MOST_BITS", gradient.MOST_BITS * handed)
    case = Case(
        (2, 70, 75, 2, 1, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    assert (gradient.handed_bytes(case.backward) > 0) == handed
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("length, source", [(150, 290), (290, 150)])
@pytest.mark.parametrize("queries, keys", [
    (Tile(2, 112, 2), Tile(2, 48, 3)), (Tile(1, 16, 3), Tile(2, 80, 2, local=True)),
    (Tile(2, 80, 2, local=True), Tile(1, 64, 3)),
], ids=str)  # fmt: skip
def test_dropout_of_other_tiles(queries, keys, length, source, cpu_dev, cpu_info, rng):
    """Bits go over from blocks of one size to tiles and blocks of others."""
    case = Case(
        (1, length, source, 2, 1, 16, 24), rng, causal=True, dtype=BF16,
        dropout=DROPOUTS["coarse"],
    )  # fmt: skip
    check(case, cpu_info, cpu_dev, queries=queries, keys=keys)


FAULTS = {
    "blocks handed back early": (
        "        WG_WAIT(1);  // for x, and so for the sums of the block before\n",
        "        if (before >= 0) HAND_BACK(before);\n        WG_WAIT(1);\n        before = -1;\n",
    ),
    "products not waited for": ("        WG_WAIT(1);  // for x, and so for", "        // for"),
    "slopes not waited for": (
        "        WG_WAIT(0);\n#endif\n        WGMMA_KEEP_P", "#endif\n        WGMMA_KEEP_P"
    ),
    "slopes of keys not waited for": ("OTHER_Y, stage)\n        WG_WAIT(1);", "OTHER_Y, stage)"),
    "sums not waited for": ("WG_WAIT(0);\n      WGMMA_KEEP_K(sum);", "WGMMA_KEEP_K(sum);"),
    "last block never handed back": ("#endif\n      HAND_BACK(before);", "#endif"),
    "own rows never handed back": ("HAND_BACK(OWN_Y(turn));", ""),
    "own rows' other phase": (
        "OWN_X(turn), OWN_PHASE(turn));\n      BAR", "OWN_X(turn), 0);\n      BAR"
    ),
    "other phase": ("BAR_WAIT(empty + 8 * stage, phase ^ 1)", "BAR_WAIT(empty + 8 * stage, phase)"),
    "no fence": ("WG_FENCE; \\\n    EACH(k_, BC / 16)", "EACH(k_, BC / 16)"),
    "other bytes": ("BAR_EXPECT(bar, FACTS);", "BAR_EXPECT(bar, FACTS - 128);"),
    "other steps of rows": ("PANEL >> 4) + k_ % 4 * 2), k_ != 0); \\\n    WG_COMMIT; \\\n    WG_F",
                            "PANEL >> 4) + k_ % 4 * 4), k_ != 0); \\\n    WG_COMMIT; \\\n    WG_F"),
    "other steps of columns": ("at_ + (ulong)(k_ * 128)", "at_ + (ulong)(k_ * 64)"),
    "values for queries": ("WGMMA_A_K, sum, slopes, 0,", "WGMMA_A_K, sum, slopes, OTHER_Y,"),
    "queries for gradients": ("sumV, weights, OTHER_Y,", "sumV, weights, 0,"),
    "own rows of another tile": ("{ HOLD(NEXT_TILE(tile)) }", "{ HOLD(tile) }"),
    "other columns of own rows": ("(from_ + 16 * k_)", "(from_ + 16 * (k_ & ~1))"),
    "other lanes' pairs stored": ("EXCHANGE(v_[0], v_[2], t4 & 2, 2)", ""),
    "other columns stored": ("const int f_ = (4 * n_ + m_)", "const int f_ = (4 * n_ + 3 - m_)"),
    "other warpgroup's rows": ("OWN_X(0) * STAGE + consumer * 64 * 128", "OWN_X(0) * STAGE"),
    "statistic of other columns": ("facts + 4 * COLUMN(n, 0)", "facts + 4 * COLUMN(0, 0)"),
    "delta of other columns": ("facts + 4 * BC + 4 * COLUMN(n, 0)", "facts + 4 * COLUMN(n, 0)"),
    "delta left out": ("#define SLOPE(v, less) ((v) - (less))", "#define SLOPE(v, less) (v)"),
    "rows' statistics swapped": ("#define TOP(e) top[(e) >> 1]", "#define TOP(e) top[(e) & 1]"),
    "rows' deltas swapped": ("#define LESS(e) less[(e) >> 1]", "#define LESS(e) less[(e) & 1]"),
    "diagonal as any other": ("#define HIDDEN(n, e) (CAUSAL && KEY_OF(n, e) > QUERY_OF(n, e))",
                              "#define HIDDEN(n, e) 0"),
    "diagonal begins late": ("+ 63 > c0)", "- 1 > c0)"),
    "one head of several": ("{ ++h; c0 = BEGIN; }", "{ c0 = BEGIN; }"),
    "statistic of one head": ("b * HEADS + h) * T + t_]", "b * HEADS + owner) * T + t_]"),
    "no scale": ("STORE_ROW(results, r, scale, row < ROWS, at * WIDTH, WIDTH, WP, PUT_R",
                 "STORE_ROW(results, r, 1.0f, row < ROWS, at * WIDTH, WIDTH, WP, PUT_R"),
    "no factor, dropped": ("#define FACTOR_V keepFactor", "#define FACTOR_V 1.0f"),
    "slopes' factor, dropped": ("((v) * keepFactor - (less))", "((v) - (less))"),
    "other row, dropped, drawn": ("DRAWS_ACROSS(words, c0 + COLUMN(n, 0), row0)",
                           "DRAWS_ACROSS(words, c0 + COLUMN(n, 0), row0 + 8)"),
    "other bits, dropped": (">> BIT_OF(n, e) & 1u", ">> BIT_OF(n, (e) ^ 1) & 1u"),
    "other fours, dropped, coarse": ("8 * m_ + 2 * (t4 & 2)", "8 * m_"),
    "fours' halves, dropped, coarse": ("if (block_.x << 16 < k", "if (block_.y << 16 < k"),
    "fours' rows, dropped, coarse": ("(t4 & 1 ? other_ : own_) >", "own_ >"),
    "bits of other fours, dropped, coarse": ("own_ <<= 2 * (t4 & 2);", ""),
    "bits of one half, dropped, coarse": ("t4 >> 1) \\\n      EXCHANGE", "0) \\\n      EXCHANGE"),
    "bits of other keys, dropped": ("first / 32 + w]", "w]"),
    "bits of other warps, dropped": ("own_bits = 4 * BC * (2 + tid / 64)", "own_bits = 4 * BC * 2"),
    "bits of the warp beside, dropped": ("((tid & 32) / 2 + g)", "g"),
    "bits of other rows, dropped": ("own_bit << 8 * ((e) >> 1)", "own_bit"),
    "bits of other lanes, dropped": ("0x03030303u) << 2 * t4", "0x03030303u)"),
    "bits of the other row handed, dropped": ("t4 & 1 ? row_[1]", "t4 & 2 ? row_[1]"),
    "bits not brought together, dropped": ("OR_OF(row_[r_], 2)", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_seen(fault, cpu_dev, cpu_info, rng, monkeypatch):
    monkeypatch.setattr(gradient, "MOST_BITS", 0 if "drawn" in fault else gradient.MOST_BITS)
    case = Case(
        (1, 130, 70, 2, 1, 40, 24), rng, causal="bits" not in fault, dtype=F16,
        dropout=DROPOUTS["coarse" if "coarse" in fault else "fine"] if "dropped" in fault else None,
    )  # fmt: skip
    local = "never" in fault or "own rows' " in fault or "warpgroup" in fault
    tile = Tile(2, 64, 3, True) if local else Tile(1, 32, 3)
    with pytest.raises(AssertionError, match=r"relative error|poison|\['|a phase never ends"):
        check(case, cpu_info, cpu_dev, queries=tile, keys=tile, fault=FAULTS[fault])


def test_columns_beyond_the_last_key(cpu_dev, cpu_info, rng):
    """They weigh nothing; beside other keys' far smaller logits theirs, of 0, would be infinite."""
    case = Case((1, 40, 40, 1, 1, 16, 16), rng, dtype=F16)
    case.inputs["a"][..., 0] = 200
    case.inputs["b"][..., 0] = -2
    case._expect(*case.inputs.values(), case.g, (1, 1, 40, 40))
    assert statistic(case).max() < -90
    check(case, cpu_info, cpu_dev)
    fault = "#define HIDDEN(n, e) (KEY_OF(n, e) >= S || (", "#define HIDDEN(n, e) (0 || ("
    with pytest.raises(AssertionError, match="poison or overflow"):
        check(case, cpu_info, cpu_dev, fault=fault)


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_is_bit_for_bit_that_of_the_other_kernel(name, cpu_dev, cpu_info, rng):
    """Gradients of results that are the identity show in dv which probabilities are kept."""
    size = 64
    case = Case((1, size, 70, 1, 1, 16, size), rng, dtype=F16, dropout=DROPOUTS[name])
    case.g[:] = np.eye(size, dtype=np.float16).reshape(1, size, 1, size)
    inputs = inputs_of(case)
    got = emulator.run_outputs_of(
        HopperAttentionGradient(SMALL, SMALL).plan(case.backward, cpu_info, store_epilogue(F16)),
        inputs, outputs_of(case), cpu_dev,
    )  # fmt: skip
    table = ((256, attention16.Tile(2, 1, 16)),)
    other = emulated16(attention16.Attention16Gradient)((table, table))
    plan = other.plan(case.backward, cpu_info, store_epilogue(F16))
    want = run_outputs(plan, inputs, outputs_of(case), cpu_dev)
    kept = case.factors[0, 0].T != 0
    np.testing.assert_array_equal(got["dv"][0, :, 0] != 0, kept)
    np.testing.assert_array_equal(want["dv"][0, :, 0] != 0, kept)
    for slot in RESULTS:
        close(got[slot], want[slot].astype(np.float64), 2e-3)


def test_strided_rows(cpu_dev, cpu_info, rng):
    """Heads before rows, keys and values as parts of longer rows, gradients too."""
    case = Case((2, 70, 75, 4, 2, 16, 16), rng, causal=True, dtype=BF16)
    stat = statistic(case).astype(np.float32)
    q, k, v = (case.inputs[x] for x in "abc")
    moved = np.ascontiguousarray(q.transpose(0, 2, 1, 3))
    a, b, c, d = contiguous(moved.shape)
    both, wide = np.concatenate([k, v], -1), np.concatenate([case.g, case.g], -1)
    wide[..., :16] = np.nan
    steps = contiguous(both.shape)
    case.backward = dataclasses.replace(
        case.backward, q=Tensor(BF16, (a, c, b, d)), k=Tensor(BF16, steps),
        v=Tensor(BF16, steps, 16), grad=Tensor(BF16, contiguous(wide.shape), 16),
    )  # fmt: skip
    inputs = {"a": moved, "b": both, "c": both, "d": wide, "e": stat, "f": case.delta}
    for tile in (SMALL, Tile(1, 64, 2, local=True)):
        plan = HopperAttentionGradient(tile, tile).plan(
            case.backward, cpu_info, store_epilogue(BF16)
        )
        got = emulator.run_outputs_of(plan, inputs, outputs_of(case), cpu_dev)
        for slot, name in RESULTS.items():
            close(got[slot], getattr(case, name))


def test_repeated_rows(cpu_dev, cpu_info, rng):
    """Queries and gradients of the first batch entry and head serve all, by strides of zero; so do
    keys and values."""
    case = Case((2, 40, 70, 2, 2, 16, 16), rng, dtype=BF16)
    flat = (0, 16, 0, 1)
    for slot in "abc":
        case.inputs[slot][...] = case.inputs[slot][:1, :, :1]
    case.g[...] = case.g[:1, :, :1]
    case._expect(*case.inputs.values(), case.g, (2, 2, 40, 70))
    inputs = inputs_of(case)
    for slot in "abcd":
        inputs[slot] = np.ascontiguousarray(inputs[slot][:1, :, :1])
    p = dataclasses.replace(
        case.backward, **{name: Tensor(BF16, flat) for name in ("q", "k", "v", "grad")}
    )
    for tile in (SMALL, Tile(1, 64, 2, local=True)):
        plan = HopperAttentionGradient(tile, tile).plan(p, cpu_info, store_epilogue(BF16))
        got = emulator.run_outputs_of(plan, inputs, outputs_of(case), cpu_dev)
        for slot, name in RESULTS.items():
            close(got[slot], getattr(case, name))


def test_results_do_not_vary(cpu_dev, cpu_info, rng):
    """Not by a bit, with the number of work-groups."""
    case = Case((2, 130, 70, 2, 1, 16, 24), rng, causal=True, dtype=BF16)
    one, three = (run(case, cpu_info, cpu_dev, groups=groups) for groups in (1, 3))
    for slot in RESULTS:
        assert one[slot].tobytes() == three[slot].tobytes()


def test_what_is_taken():
    p = dataclasses.replace(attention_of(64, BF16), grad=tensor((4, 200, 6, 64), BF16))
    assert takes(p) and takes(dataclasses.replace(p, dropout=DROPOUTS["far"]))
    steps = p.k.strides
    for other in (
        dataclasses.replace(p, grad=None), dataclasses.replace(p, scale=-1.0),
        dataclasses.replace(p, bias=tensor((1, 1, 200, 200), BF16)),
        dataclasses.replace(p, mask=tensor((1, 1, 200, 200), dtypes.bool_)),
        dataclasses.replace(p, grad=dataclasses.replace(p.grad, offset=4)),
        dataclasses.replace(p, q=Tensor(BF16, (steps[0], -steps[1], *steps[2:]), 199 * steps[1])),
        dataclasses.replace(p, grad=Tensor(BF16, (steps[0], 0, *steps[2:]))),
    ):  # fmt: skip
        assert not takes(other)


def of(length, features, **more):
    """Enough work for any card."""
    p = forward_of(length, features, **more)
    return dataclasses.replace(p, grad=p.q)


@pytest.mark.parametrize("drop", [None, *DROPOUTS.values()], ids=["all", *DROPOUTS])
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("length", [197, 512, 2048, 8192])
def test_it_is_chosen(length, features, drop, hopper, monkeypatch):
    p = of(length, features, dropout=drop)
    others = [
        s for s in solvers.SOLVERS if not getattr(s, "whole", False) | getattr(s, "stored", False)
    ]
    chosen = contract.choose(others, p, hopper)
    assert chosen.name == "wgmma_attention_grad"
    for keys, tile in enumerate(chosen.block(p, hopper)):
        assert tile.holds(p) and tile.local_bytes(p, bool(keys)) <= tiles.SHARED_LIMIT
    monkeypatch.setattr(probe, "available", lambda info, name, _: name != gradient.SELF_TEST)
    assert contract.choose(others, p, hopper).name == "mma16_grad"


def test_blocks():
    """A causal tile of keys meets queries from its own first on, of all heads that share it."""
    tile = Tile(2, 64, 3)
    p = dataclasses.replace(of(300, 64, causal=True), groups=4)
    assert tile.blocks(p, True) == [15, 9, 3]
    assert tile.blocks(p, False) == [2, 4, 5]
    p = dataclasses.replace(p, causal=False, length=150)
    assert tile.blocks(p, True) == [9, 9, 9]
    assert tile.blocks(p, False) == [5, 5]


# Bytes, of values that loops hardly read; what NVIDIA's own compiler keeps may differ.
SPILLS = 16


@pytest.mark.every(3)
@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("drop", [None, *DROPOUTS.values()], ids=["all", *DROPOUTS])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("keys, number", [
    *((False, n) for n in range(len(gradient.QUERIES))),
    *((True, n) for n in range(len(gradient.KEYS))),
])  # fmt: skip
def test_registers_hold_everything(keys, number, causal, drop, hopper):
    """And no product waits for the one before."""
    features, tile = (gradient.KEYS if keys else gradient.QUERIES)[number]
    p = of(512, features, causal=causal, dropout=drop)
    if not tile.holds(p):
        assert HopperAttentionGradient().block(p, hopper)[keys] != tile
        return
    given = (None, tile) if keys else (tile, None)
    plan = HopperAttentionGradient(*given).plan(p, hopper, store_epilogue(BF16))
    launch = plan.launches[keys]
    used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
    assert used["spills"] <= SPILLS and used["lost"] == 0
    assert used["local"] == tile.local_bytes(p, keys)


def test_self_test(cpu_dev, cpu_info, monkeypatch):
    """It passes where the hardware does as it should, and says what is wrong where not."""
    fault = ()

    def compute(plan, inputs, outs, dev):
        if fault:
            changed(plan, fault)
        for name, got in emulator.run_outputs_of(plan, inputs, outs, cpu_dev).items():
            outs[name][...] = got

    monkeypatch.setattr(trial, "compute", compute)
    small = {"64": ((1, 70, 130, 2, 16, 24, True, 0.75), (3, 1))}
    monkeypatch.setattr(selftest, "CASES", small)
    trial.run(cpu_dev, selftest.trials(cpu_info, "float16 64"))
    fault = FAULTS["delta of other columns"]
    with pytest.raises(DeviceError, match="attention's gradient dk is wrong"):
        trial.run(cpu_dev, selftest.trials(cpu_info, "float16 64"))
