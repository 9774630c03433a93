"""Attention's gradients by one work-group a head, on a CPU (`emulator`) against float64."""

import dataclasses

import pytest

from kerascl import dtypes
from kerascl.kernels.attention import solvers
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import probe, tiles
from kerascl.kernels.hopper.attention_gradient_whole import (
    SELF_TEST,
    WholeAttentionGradient,
    WholeTile,
)
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.hopper.selftests import attention_gradient_whole as selftest
from kerascl.kernels.selftests import trial
from kerascl.runtime.errors import DeviceError
from tests.kernels import emulator, ptx
from tests.kernels.harness import changed
from tests.kernels.test_attention import Case, close
from tests.kernels.test_wgmma_attention import DROPOUTS
from tests.kernels.test_wgmma_attention import hopper as hopper_card
from tests.kernels.test_wgmma_attention_gradient import RESULTS, inputs_of, of, outputs_of

hopper = hopper_card
BF16, F16 = dtypes.bfloat16, dtypes.float16


def run(case, info, dev, groups=2, fault=None):
    """The gradients of a case, by slot."""
    p = case.backward
    plan = WholeAttentionGradient(groups=groups).plan(p, info, store_epilogue(p.dtype))
    if fault:
        (launch,) = plan.launches
        assert launch.source.count(fault[0]) == 1, fault[0]
        changed(plan, fault)
    return emulator.run_outputs_of(plan, inputs_of(case), outputs_of(case), dev)


def check(case, info, dev, **more):
    got = run(case, info, dev, **more)
    for slot, name in RESULTS.items():
        close(got[slot], getattr(case, name))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length, source", [
    (1, 1), (64, 64), (130, 100), (65, 128), (197, 197), (150, 250), (250, 150), (20, 200),
    (128, 129), (300, 70),
])  # fmt: skip
def test_lengths(length, source, causal, cpu_dev, cpu_info, rng):
    """Keys of one tile and of several, whole and partial blocks, keys that no query sees."""
    case = Case((1, length, source, 2, 2, 24, 16), rng, causal=causal, dtype=BF16)
    check(case, cpu_info, cpu_dev)


@pytest.mark.parametrize("width, depth", [(8, 64), (64, 8), (64, 64), (40, 24), (16, 56)])
def test_features(width, depth, cpu_dev, cpu_info, rng):
    """Each warpgroup sums one half of the keys' features, of which the second may be partial."""
    check(Case((2, 70, 140, 2, 2, width, depth), rng, dtype=F16), cpu_info, cpu_dev)


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_heads_of_a_group(groups, cpu_dev, cpu_info, rng):
    case = Case((2, 70, 140, 3, 3, 16, 16), rng, causal=True, dtype=BF16)
    check(case, cpu_info, cpu_dev, groups=groups)


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_dropout(causal, name, cpu_dev, cpu_info, rng):
    case = Case(
        (2, 70, 150, 2, 2, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    check(case, cpu_info, cpu_dev)


FAULTS = {
    "own rows handed back early": (
        "        WG_WAIT(1);\n        WGMMA_KEEP_Q(part);",
        "        HAND_BACK(OWN_X(turn));\n        WG_WAIT(1);\n        WGMMA_KEEP_Q(part);",
    ),
    "sums of queries not waited for": (
        "        WG_WAIT(1);\n        WGMMA_KEEP_Q", "        WGMMA_KEEP_Q"
    ),
    "other rows of own keys": ("own_columns + own_at + (ulong)(k_ * 128)", "own_columns + own_at"),
    "own keys of the other tile": (
        "own_columns + own_at + (ulong)(k_ * 128)", "own_columns + (ulong)(k_ * 128)"
    ),
    "the other warpgroup's features": ("STAGE + consumer * WP);", "STAGE);"),
    "the other warpgroup's slopes": ("consumer * 512 + k_ * 2", "k_ * 2"),
    "slopes of the block before": (
        "const ulong left_ = ROW_WISE(SLOPES_AT + area * SLOPE_BYTES);",
        "const ulong left_ = ROW_WISE(SLOPES_AT + (area ^ 1) * SLOPE_BYTES);",
    ),
    "slopes not swizzled": ("(((n) ^ g) << 4)", "((n) << 4)"),
    "slopes of the other row": ("PUT_SLOPE(to_ + 1024 * (r)", "PUT_SLOPE(to_ + 1024 * (1 - (r))"),
    "sums before left out": ("if (WAITING && nth_tile_ > 0)", "if (0)"),
    "sums of another block": ("+ block_ * WAITING_BYTES", "+ 0 * WAITING_BYTES"),
    "queries end with the first tile": ("WAITING && nth_tile_ < (", "0 && nth_tile_ < ("),
    "queries end with the last tile, causal": (
        "(CAUSAL ? min(BLOCKS - 1, ((at) + BC - 1) / BR) : BLOCKS - 1)", "(BLOCKS - 1)"
    ),
    "queries of the next block": ("END_QUERIES(ended)", "END_QUERIES(c0)"),
    "queries of the other warpgroup": ("(at) + mine - 64 * consumer", "(at) + mine"),
    "features of the other warpgroup": ("from_ = consumer * (WP / 2);", "from_ = 0;"),
    "no scale": ("STORE_ROW(parts_, r_, scale,", "STORE_ROW(parts_, r_, 1.0f,"),
    "tiles of several groups": (
        "((tile) % BLOCKS == BLOCKS - 1 ? (groups - 1) * BLOCKS : 0) + 1)",
        "(groups - 1) * BLOCKS + 1)",
    ),
    "parity of one area": ("((turn) / OWN_LOCAL & 1)", "((turn) & 1)"),
    "bits of the block before, dropped": (
        "          NEXT_BLOCK\n          DRAW_BLOCK\n", "          NEXT_BLOCK\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_seen(fault, cpu_dev, cpu_info, rng):
    case = Case(
        (1, 150, 250, 4, 4, 64, 24), rng, causal="causal" in fault, dtype=F16,
        dropout=DROPOUTS["coarse"] if "dropped" in fault else None,
    )  # fmt: skip
    with pytest.raises(AssertionError, match=r"relative error|poison|\['|a phase never ends"):
        check(case, cpu_info, cpu_dev, fault=FAULTS[fault])


def test_keys_behind_the_last(cpu_dev, cpu_info, rng):
    """Beside other keys' far smaller logits theirs, of 0, would be infinite."""
    case = Case((1, 40, 40, 1, 1, 16, 16), rng, dtype=F16)
    case.inputs["a"][..., 0] = 200
    case.inputs["b"][..., 0] = -2
    case._expect(*case.inputs.values(), case.g, (1, 1, 40, 40))
    check(case, cpu_info, cpu_dev)
    fault = "row0 + 8 * (r) < S ? (pair) : 0u", "pair"
    with pytest.raises(AssertionError, match="poison or overflow"):
        check(case, cpu_info, cpu_dev, fault=fault)


def test_results_do_not_vary(cpu_dev, cpu_info, rng):
    """Not by a bit, with the number of work-groups."""
    case = Case((2, 130, 170, 2, 2, 16, 24), rng, causal=True, dtype=BF16)
    one, three = (run(case, cpu_info, cpu_dev, groups=groups) for groups in (1, 3))
    for slot in RESULTS:
        assert one[slot].tobytes() == three[slot].tobytes()


@pytest.mark.parametrize("drop", [None, *DROPOUTS.values()], ids=["all", *DROPOUTS])
@pytest.mark.parametrize("length", [77, 128, 197, 256])
def test_it_is_chosen(length, drop, hopper, monkeypatch):
    p = of(length, 64, dropout=drop)
    chosen = contract.choose(solvers.SOLVERS, p, hopper)
    assert chosen.name == "wgmma_attention_grad_whole"
    assert WholeTile().local_bytes(p, True) <= tiles.SHARED_LIMIT
    monkeypatch.setattr(probe, "available", lambda info, name, _: name != SELF_TEST)
    assert contract.choose(solvers.SOLVERS, p, hopper).name == "wgmma_attention_grad"


def test_what_is_taken(hopper):
    """Not lengths whose sums have no room, not shared keys, not more features."""
    solver = WholeAttentionGradient()
    assert solver.applies(of(256, 64), hopper) and not solver.applies(of(300, 64), hopper)
    one_tile = dataclasses.replace(of(128, 64), length=1000)
    assert solver.applies(one_tile, hopper)
    assert not solver.applies(of(128, 128), hopper)
    p = of(128, 64)
    assert not solver.applies(dataclasses.replace(p, groups=p.heads // 2), hopper)


# Bytes, of values that loops hardly read, where 32-bit words decide.
SPILLS = 16


@pytest.mark.every(2)
@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("drop", [None, *DROPOUTS.values()], ids=["all", *DROPOUTS])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("length", [128, 197])
def test_registers_hold_everything(length, causal, drop, hopper):
    """And no product waits for the one before."""
    p = of(length, 64, causal=causal, dropout=drop)
    (launch,) = WholeAttentionGradient().plan(p, hopper, store_epilogue(BF16)).launches
    used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
    assert used["spills"] <= (SPILLS if drop else 0) and used["lost"] == 0
    assert used["local"] == WholeTile().local_bytes(p, True)


def test_self_test(cpu_dev, cpu_info, monkeypatch):
    """It passes where the hardware does as it should, and says what is wrong where not."""
    fault = ()

    def compute(plan, inputs, outs, dev):
        if fault:
            changed(plan, fault)
        for name, got in emulator.run_outputs_of(plan, inputs, outs, cpu_dev).items():
            outs[name][...] = got

    monkeypatch.setattr(trial, "compute", compute)
    monkeypatch.setattr(selftest, "CASES", {"64": (1, 70, 130, 2, 16, 24, True, 0.75)})
    trial.run(cpu_dev, selftest.trials(cpu_info, "float16 64"))
    fault = FAULTS["slopes of the other row"]
    with pytest.raises(DeviceError, match="attention's gradient out is wrong"):
        trial.run(cpu_dev, selftest.trials(cpu_info, "float16 64"))
