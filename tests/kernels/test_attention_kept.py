"""What dropout keeps, in memory: the forward pass leaves it, gradients find it."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention import kept, solvers
from kerascl.kernels.attention.problem import Dropout, KeptProblem, kept_words
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.hopper import attention, probe
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.hopper.attention_gradient_whole import WholeAttentionGradient
from kerascl.kernels.hopper.ptx import sm_90a
from tests.kernels import emulator, ptx
from tests.kernels.harness import poisoned, run_outputs
from tests.kernels.test_attention import Case, close
from tests.kernels.test_wgmma_attention import DROPOUTS, of
from tests.kernels.test_wgmma_attention import hopper as hopper_card
from tests.kernels.test_wgmma_attention_gradient import RESULTS, inputs_of, outputs_of

hopper = hopper_card
BF16 = dtypes.bfloat16
TILES = {"32": attention.Tile(2, 32, 3), "80": attention.Tile(2, 80, 4)}


def keeping(p):
    """The problem whose dropout lies in memory."""
    fields = {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}
    return KeptProblem(**fields)


def bits_of(case):
    """What is to lie there, by NumPy's packing: zeros behind the last key."""
    p = case.forward
    whole = np.zeros((p.batch, p.heads, p.length, 32 * kept_words(p.source)), np.uint8)
    whole[..., : p.source] = case.factors > 0
    return np.packbits(whole, -1, bitorder="little").view("<u4")


def seen(bits, p):
    """The bits of keys that queries see."""
    found = np.unpackbits(bits.view(np.uint8), -1, bitorder="little")[..., : p.source]
    return found * np.tril(np.ones((p.length, p.source), np.uint8)) if p.causal else found


def drawn(case, dev, plan):
    """What a plan of launches for any device leaves."""
    p, outs = case.forward, {"kept": poisoned(bits_of(case).shape, dtypes.uint32)}
    keys = dict(zip("def", case.extra.values(), strict=False))
    if len(plan.launches) > 1:
        outs |= {"out": poisoned(case.y.shape, p.dtype)}
        outs["stat"] = poisoned((p.batch, p.heads, p.length), dtypes.float32)
    inputs = case.inputs | keys if len(outs) > 1 else keys
    return run_outputs(plan, inputs, outs, dev)


@pytest.mark.parametrize("name", [*DROPOUTS, "half"])
@pytest.mark.parametrize("length, source", [(3, 5), (2, 31), (1, 128), (9, 197)])
def test_a_launch_that_only_draws(length, source, name, cpu_dev, rng):
    drop = DROPOUTS.get(name, Dropout(2**31, 2.0))
    case = Case((2, length, source, 3, 1, 4, 4), rng, dropout=drop)
    found = drawn(case, cpu_dev, Plan([kept.drawn(case.forward)]))
    np.testing.assert_array_equal(found["kept"], bits_of(case))


def test_who_leaves_nothing_has_it_drawn(cpu_dev, rng):
    """Also where a bias and a mask stand before the key."""
    case = Case(
        (2, 7, 40, 2, 1, 8, 8), rng, bias=(1, 1, 1, 1), mask=(1, 0, 1, 1),
        dropout=DROPOUTS["coarse"],
    )  # fmt: skip
    p = keeping(case.forward)
    plan = kept.plan(p, cpu_dev.info, store_epilogue(p.dtype))
    assert plan.launches[-1].name == "attention_kept"
    found = drawn(case, cpu_dev, plan)
    np.testing.assert_array_equal(found["kept"], bits_of(case))
    close(found["out"], case.y)


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("length, source", [(70, 75), (150, 290), (197, 197)])
def test_the_forward_pass_on_hopper(length, source, tile, causal, name, cpu_dev, cpu_info, rng):
    case = Case(
        (1, length, source, 2, 1, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    p = keeping(case.forward)
    plan = attention.HopperAttention(TILES[tile], 2).plan(p, cpu_info, store_epilogue(BF16))
    bits = bits_of(case)
    outs = {
        "out": poisoned(case.y.shape, BF16), "kept": poisoned(bits.shape, dtypes.uint32),
        "stat": poisoned(bits.shape[:3], dtypes.float32),
    }  # fmt: skip
    inputs = case.inputs | dict(zip("d", case.extra.values(), strict=False))
    found = emulator.run_outputs_of(plan, inputs, outs, cpu_dev)
    close(found["out"], case.y)
    np.testing.assert_array_equal(seen(found["kept"], p), seen(bits, p))


def gradients(case, solver, info, dev, given):
    """By slot, with what is kept in memory or drawn."""
    p, inputs = case.backward, inputs_of(case)
    if given:
        p, bits = keeping(p), bits_of(case)
        noise = np.random.default_rng().integers(2**32, size=bits.shape, dtype=np.uint32)
        whole = np.full((*bits.shape[:3], 32 * bits.shape[3]), 1, np.uint8)
        whole[..., : p.source] = 0
        if p.causal:  # of hidden keys, as of those behind the last, it may be anything
            whole[..., : p.source] = 1 - np.tril(np.ones((p.length, p.source), np.uint8))
        free = np.packbits(whole, -1, bitorder="little").view("<u4")
        inputs = inputs | {"h": bits & ~free | noise & free}
    plan = solver.plan(p, info, store_epilogue(p.dtype))
    return emulator.run_outputs_of(plan, inputs, outputs_of(case), dev)


SOLVERS = {
    "whole": WholeAttentionGradient(groups=2),
    "two": gradient.HopperAttentionGradient(
        gradient.Tile(2, 112, 2), gradient.Tile(2, 48, 3), groups=2
    ),
    "two local": gradient.HopperAttentionGradient(
        gradient.Tile(2, 80, 2, local=1), gradient.Tile(1, 32, 3, local=1), groups=2
    ),
}


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("length, source", [(70, 75), (197, 197)])
def test_gradients_on_hopper(length, source, solver, causal, name, cpu_dev, cpu_info, rng):
    """They are those of drawn numbers, bit for bit, and nothing is drawn."""
    case = Case(
        (1, length, source, 2, 2, 16, 24), rng, causal=causal, dtype=BF16, dropout=DROPOUTS[name]
    )
    found = gradients(case, SOLVERS[solver], cpu_info, cpu_dev, True)
    drawn = gradients(case, SOLVERS[solver], cpu_info, cpu_dev, False)
    for slot, name in RESULTS.items():
        close(found[slot], getattr(case, name))
        np.testing.assert_array_equal(found[slot], drawn[slot])


def test_where_kernels_serve(hopper, monkeypatch):
    plain, dropped = of(512, 64), of(512, 64, dropout=DROPOUTS["coarse"])
    assert kept.serves(dropped, hopper)
    assert not kept.serves(plain, hopper)
    with monkeypatch.context() as patched:
        patched.setattr(kept, "MOST_BITS", 1 << 20)
        assert not kept.serves(dropped, hopper)
    monkeypatch.setattr(probe, "available", lambda info, name, _: name != attention.SELF_TEST)
    other = of(500, 64, dropout=DROPOUTS["coarse"])  # for which nobody has chosen
    assert not kept.serves(other, hopper)
    plan = kept.plan(keeping(other), hopper, store_epilogue(BF16))  # after its self-test failed
    assert [x.name for x in plan.launches] == ["attention_mma16", "attention_kept"]


def test_nobody_keeps_it_elsewhere(cpu_dev):
    assert not kept.serves(of(512, 64, dropout=DROPOUTS["coarse"]), cpu_dev.info)


def test_drawing_less_is_counted(hopper):
    for length in (197, 1024):
        p = of(length, 64, dropout=DROPOUTS["coarse"])
        back = dataclasses.replace(p, grad=p.q)
        chosen = solvers.chosen(back, hopper)
        assert chosen.cost(keeping(back), hopper) < chosen.cost(back, hopper)


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("name", ["coarse", "fine"])
def test_registers_hold_everything(name, causal, features, hopper):
    length = 197 if features == 64 and not causal else 512
    p = keeping(of(length, features, causal=causal, dropout=DROPOUTS[name]))
    for q in (p, dataclasses.replace(p, grad=p.q)):
        for launch in solvers.chosen(q, hopper).plan(q, hopper, store_epilogue(BF16)).launches:
            used = ptx.resources(launch.source, "sm_90", launch.local_size[0], sm_90a)
            assert used["spills"] <= 16 and used["lost"] == 0, launch.name
