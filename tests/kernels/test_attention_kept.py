"""What dropout keeps, in memory: the forward pass leaves it, gradients find it."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention import kept, solvers
from kerascl.kernels.attention.problem import Dropout, KeptProblem, kept_words
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.hopper import attention, probe
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.hopper.attention_gradient_whole import WholeAttentionGradient
from kerascl.kernels.hopper.ptx import sm_90a
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16
from tests.kernels import emulator, ptx
from tests.kernels.harness import poisoned, run_outputs
from tests.kernels.mma_emulator import emulated16, emulated_class
from tests.kernels.test_attention import Case, attention_of, card, close, tensor
from tests.kernels.test_wgmma_attention import DROPOUTS, of
from tests.kernels.test_wgmma_attention import hopper as hopper_card
from tests.kernels.test_wgmma_attention_gradient import RESULTS, inputs_of, outputs_of

hopper = hopper_card
assert card  # a fixture
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


def noisy(case):
    """`bits_of` with anything for keys that are hidden, or behind the last."""
    p, bits = case.forward, bits_of(case)
    noise = np.random.default_rng().integers(2**32, size=bits.shape, dtype=np.uint32)
    whole = np.full((*bits.shape[:3], 32 * bits.shape[3]), 1, np.uint8)
    whole[..., : p.source] = 0
    if p.causal:
        whole[..., : p.source] = 1 - np.tril(np.ones((p.length, p.source), np.uint8))
    free = np.packbits(whole, -1, bitorder="little").view("<u4")
    return bits & ~free | noise & free


def gradients(case, solver, info, dev, given):
    """By slot, with what is kept in memory or drawn."""
    p, inputs = case.backward, inputs_of(case)
    if given:
        p, inputs = keeping(p), inputs | {"h": noisy(case)}
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


# Blocks of attention_mma.cl that begin at whole words of 32 keys, of 16 and at whole bytes, of one
# and two fragments of rows, and sizes of a problem: the last block is within a row's words or not.
BLOCKS = {
    "16": ((2, 1, 16), (1, 1, 16), (1, 21, 50, 2, 1, 16, 12)),
    "32": ((2, 2, 32), (2, 1, 32), (1, 70, 75, 2, 2, 16, 24)),
    "40": ((2, 2, 40), (2, 1, 40), (1, 37, 139, 2, 1, 20, 16)),
    "last": ((1, 1, 40), (4, 1, 40), (2, 9, 126, 1, 1, 8, 8)),
}
OTHERS = {"bias": dict(bias=(1, 0, 0, 1)), "mask": dict(mask=(1, 0, 1, 1), causal=True)}


def unit_solvers(forward, backward, fault=None):
    kinds = unit_attention.FragmentAttention, unit_attention.FragmentAttentionGradient
    return tuple(
        emulated_class(kind, True, fault)(unit_attention.FragmentBlock(*block))
        for kind, block in zip(kinds, (forward, backward), strict=True)
    )


def check_forward(case, solver, dev):
    """What it computes, and leaves of keys that queries see."""
    p, bits = keeping(case.forward), bits_of(case)
    outs = {
        "out": poisoned(case.y.shape, p.dtype), "kept": poisoned(bits.shape, dtypes.uint32),
        "stat": poisoned(bits.shape[:3], dtypes.float32),
    }  # fmt: skip
    inputs = case.inputs | dict(zip("def", case.extra.values(), strict=False))
    found = run_outputs(solver.plan(p, dev.info, store_epilogue(p.dtype)), inputs, outs, dev)
    close(found["out"], case.y)
    np.testing.assert_array_equal(seen(found["kept"], p), seen(bits, p))
    return found["stat"], found["kept"]


def check_gradients(case, solver, dev, statistic, bits):
    """They are those of drawn numbers, bit for bit, whatever is left of hidden keys and whatever
    the generator would draw."""
    inputs = case.inputs | {"d": case.g, "e": statistic, "f": case.delta}
    drawn = inputs | dict(zip("ghi", case.extra.values(), strict=False))
    *extra, key = case.extra.values()
    given = inputs | dict(zip("ghij", (*extra, ~key, bits), strict=False))
    found = []
    for p, arrays in ((case.backward, drawn), (keeping(case.backward), given)):
        outs = {name: poisoned(getattr(case, of).shape, p.dtype) for name, of in RESULTS.items()}
        plan = solver.plan(p, dev.info, store_epilogue(p.dtype))
        found.append(run_outputs(plan, arrays, outs, dev))
    for slot, name in RESULTS.items():
        close(found[1][slot], getattr(case, name))
        np.testing.assert_array_equal(found[1][slot], found[0][slot])


def check_units(case, solvers, dev):
    forward, backward = solvers
    statistic, left = check_forward(case, forward, dev)
    bits = left if "mask" in case.extra else noisy(case)  # queries that see nothing meet all keys
    check_gradients(case, backward, dev, statistic, bits)


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_tiles_in_tf32(blocks, causal, name, cpu_dev, rng):
    *blocks, sizes = BLOCKS[blocks]
    case = Case(sizes, rng, causal=causal, dropout=DROPOUTS[name])
    check_units(case, unit_solvers(*blocks), cpu_dev)


@pytest.mark.parametrize("other", OTHERS)
def test_biases_and_masks_in_tf32(other, cpu_dev, rng):
    """What is kept lies in the slot behind the key."""
    sizes = (2, 21, 50, 2, 1, 16, 12)
    case = Case(sizes, rng, dropout=DROPOUTS["coarse"], **OTHERS[other])
    check_units(case, unit_solvers((2, 1, 16), (1, 1, 40)), cpu_dev)


TILES16 = {
    "held": attention16.Tile(2, 1, 16), "local": attention16.Tile(2, 2, 64, held=False),
    "odd": attention16.Tile(1, 2, 48, held=False, stages=3),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("tile", TILES16)
def test_tiles_in_16_bits(tile, name, cpu_dev, rng):
    case = Case((1, 70, 140, 2, 1, 16, 24), rng, causal=True, dtype=BF16, dropout=DROPOUTS[name])
    table = ((256, TILES16[tile]),)
    solvers = (
        emulated16(attention16.Attention16, True)((table,)),
        emulated16(attention16.Attention16Gradient, True)((table, table)),
    )
    check_units(case, solvers, cpu_dev)


FAULTS = {
    "drawn": ("words[e_] = KEPT_BIT(i, j, e_)", "words[e_] = 1"),
    "other rows": ("kept[i][(e) >> 1]", "kept[i][0]"),
    "other keys": (">> c0 % 32", ">> 0"),
    "the next word": ("(ulong)next_ << 32", "(ulong)0"),
    "other warps": ("4 * BC * (warp0 / 32 - r0 / 32)", "0"),
    "other halves": ("1u << (warp0 % 32 + g)", "1u << g"),
    "other queries": ("as_uint(kept_[(e) & 1])", "as_uint(kept_[0])"),
    "left for others": ("rows[1] = (t4 & 1 ? own_ : other_)", "rows[1] = (t4 & 1 ? other_ : own_)"),
    "left elsewhere": ("at_ = c0 / 8 + 2 * (nth)", "at_ = c0 / 8 + (nth)"),
    "beyond the row": (" && at_ + k_ < 2 * HALVES", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_tf32_are_seen(fault, cpu_dev, rng):
    case = Case((1, 37, 126, 2, 1, 8, 8), rng, dropout=DROPOUTS["coarse"])
    with pytest.raises(AssertionError, match=r"relative error|poison|not equal|written behind"):
        check_units(case, unit_solvers((2, 1, 40), (4, 1, 40), FAULTS[fault]), cpu_dev)


def test_where_kernels_serve(hopper, monkeypatch):
    plain, dropped = of(512, 64), of(512, 64, dropout=DROPOUTS["coarse"])
    assert kept.serves(dropped, hopper)
    assert not kept.serves(plain, hopper)
    with monkeypatch.context() as patched:
        patched.setattr(kept, "MOST_BITS", 1 << 20)
        assert not kept.serves(dropped, hopper)
    monkeypatch.setattr(probe, "available", lambda info, name, _: name != attention.SELF_TEST)
    other = of(500, 64, dropout=DROPOUTS["coarse"])  # for which nobody has chosen
    assert kept.serves(other, hopper)  # after a self-test failed, another kernel leaves it
    plan = kept.plan(keeping(other), hopper, store_epilogue(BF16))
    assert [x.name for x in plan.launches] == ["attention_mma16"]


def test_where_other_kernels_serve(card):
    for dtype in (dtypes.float32, BF16):
        p = attention_of(64, dtype, dropout=DROPOUTS["coarse"])
        assert kept.serves(p, card)
        assert not kept.serves(p, dataclasses.replace(card, matrix=""))
        (launch,) = kept.plan(keeping(p), card, store_epilogue(dtype)).launches
        assert launch.name.startswith("attention_mma")
    exact = attention_of(64, precision="highest", dropout=DROPOUTS["coarse"])
    assert not kept.serves(exact, card)
    plan = kept.plan(keeping(exact), card, store_epilogue(exact.dtype))
    assert [x.name for x in plan.launches] == ["attention_tile", "attention_kept"]


def test_nobody_keeps_it_elsewhere(cpu_dev):
    assert not kept.serves(of(512, 64, dropout=DROPOUTS["coarse"]), cpu_dev.info)


@pytest.mark.parametrize("name, dtype", [
    ("wgmma_attention_", BF16), ("mma16_grad", BF16), ("mma_grad", dtypes.float32),
])  # fmt: skip
def test_drawing_less_is_counted(name, dtype, hopper, monkeypatch):
    monkeypatch.setattr(unit_attention, "available", lambda *_: dtype is dtypes.float32)
    if name == "mma16_grad":
        monkeypatch.setattr(probe, "available", lambda *_: False)
    for length in (197, 1024):
        p, x = of(length, 64, dropout=DROPOUTS["coarse"]), tensor((16, length, 12, 64), dtype)
        back = dataclasses.replace(p, dtype=dtype, q=x, k=x, v=x, grad=x)
        chosen = contract.choose(solvers.SOLVERS, back, hopper)
        assert chosen.name.startswith(name)
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
