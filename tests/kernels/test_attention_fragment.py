"""Attention on the matrix units of AMD and Intel: emulated on a CPU against float64, the self-test
with faults put in, who takes it, and what the vendors' compilers make of it."""

import dataclasses
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem, Dropout
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.selftests import asked, trial
from kerascl.kernels.units import attention_fragment as fragment
from kerascl.kernels.units import attention_fragment_selftest
from kerascl.runtime import quirks
from kerascl.runtime.errors import DeviceError
from tests.kernels import test_xmx, unit_emulator
from tests.kernels.harness import poisoned, run_outputs
from tests.kernels.test_attention import DROPPED, WAYS, Case, close, tensor
from tests.kernels.test_units import AMDS, CARDS, FAULTS, UNITS, dev
from tests.offline.compilers import AMD, INTEL, amd_kernels

__all__ = ["dev"]  # a fixture

CASES = [(name, dtype.name) for name, (unit, _, _) in UNITS.items() for dtype in unit.floats]
KINDS = fragment.FragmentAttention, fragment.FragmentAttentionGradient
# Of numbers that are two bfloat16: as of products, but in three of them one after the other.
PAIRS = 2.0**-15
# Of numbers that are cut: two operands each, by a half of 2**-10 in the mean.
CUT = 3 * 2 * 2.0**-11
# (batch, length, source, heads, groups, width, depth): few, as instructions are emulated.
SIZES = (1, 37, 45, 2, 1, 20, 12), (2, 20, 33, 2, 2, 7, 18)


@pytest.fixture(autouse=True)
def passed(monkeypatch):
    """As if every self-test had passed."""
    monkeypatch.setattr(fragment, "available", lambda unit, info, *_: info.matrix in unit.matrix)


def emulated(kind, unit, card, dtype, block=None, exact=True):
    """A solver for a card as one for any device."""

    class Emulated(kind):
        def plan(self, problem, info, epilogue):
            facts = CARDS[card].info
            assert self.applies(problem, facts)
            plan = super().plan(problem, facts, epilogue)
            assert all(map(unit_emulator.is_emulated, plan.launches))
            return unit_emulator.emulated(plan, exact)

    f = unit.fragments[dtype]
    return Emulated(unit, (fragment.FragmentBlock(f, *block),) * 2 if block else None)


def check(name, dtype, dev, rng, sizes=SIZES[0], block=None, exact=True, **way):
    """A case of float64's formula, in the precision that a unit offers."""
    unit, card, _ = UNITS[name]
    known = dtypes.as_dtype(dtype)
    case = Case(sizes, rng, dtype=known, **way)
    precision = "highest" if unit.exact or dtype != "float32" else "high"
    for which in ("forward", "backward"):
        problem = dataclasses.replace(getattr(case, which), precision=precision)
        setattr(case, which, problem)
    solvers = tuple(emulated(kind, unit, card, known, block, exact) for kind in KINDS)
    pairs = unit.fragments[known].products > 1
    case.check(solvers, dev, PAIRS if pairs else None if exact else CUT)


@pytest.mark.every(4)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_units(dev, name, dtype, sizes, rng):
    check(name, dtype, dev, rng, sizes, causal=sizes is SIZES[0])


@pytest.mark.every(8)
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("name", UNITS)
def test_ways(dev, name, way, rng):
    """Masks, biases and causal problems, each unit's dtypes in turn."""
    own = list(UNITS[name][0].floats)
    check(name, own[list(WAYS).index(way) % len(own)].name, dev, rng, **WAYS[way])


@pytest.mark.every(8)
@pytest.mark.parametrize("way", list(DROPPED))
@pytest.mark.parametrize("name", UNITS)
def test_dropout(dev, name, way, rng):
    """The weights kept are those that the generator's text in NumPy keeps, in both passes."""
    given = {k: v for k, v in DROPPED[way].items() if k != "dtype"}
    own = list(UNITS[name][0].floats)
    check(name, own[list(DROPPED).index(way) % len(own)].name, dev, rng, **given)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", UNITS)
def test_strides(dev, name, rng):
    """Keys whose features are far apart, from an odd place on."""
    own = list(UNITS[name][0].floats)
    check(name, own[-1].name, dev, rng, (1, 18, 21, 4, 2, 12, 20), swapped=True)


# Sub-groups, fragments of rows of each, columns at a time.
BLOCKS = (4, 1, 32), (2, 2, 16), (1, 2, 64)


@pytest.mark.every(4)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("name", UNITS)
def test_blocks(dev, name, block, rng, monkeypatch):
    """Those that small problems do not choose, and that some units have no registers for."""
    monkeypatch.setattr(fragment, "MOST_REGISTERS", 10**6)
    own = list(UNITS[name][0].floats)
    dtype = own[BLOCKS.index(block) % len(own)].name
    sizes = (1, 70, 50, 2, 2, 16, 20)
    check(name, dtype, dev, rng, sizes, block, causal=True, mask=(1, 0, 0, 1), bias=(0, 0, 1, 1))


def test_xf32_loses_thirteen_bits(dev, rng):
    check("gfx942", "float32", dev, rng, exact=False)


@pytest.mark.parametrize("name", ["gfx11", "xmx8"])
def test_large_logits_do_not_overflow(dev, name, rng):
    unit, card, _ = UNITS[name]
    case = Case((1, 20, 40, 1, 1, 16, 16), rng, dtype=dtypes.bfloat16)
    case.inputs["a"] = (case.inputs["a"].astype(np.float32) * 1e3).astype(dtypes.bfloat16.numpy)
    q, k, v = (case.inputs[x].astype(np.float64)[0, :, 0] for x in "abc")
    logits = q @ k.T * case.forward.scale
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    case.y = ((weights / weights.sum(-1, keepdims=True)) @ v)[None, :, None]
    outs = {
        "out": poisoned(case.y.shape, dtypes.bfloat16),
        "stat": poisoned((1, 1, 20), dtypes.float32),
    }
    solver = emulated(KINDS[0], unit, card, dtypes.bfloat16)
    plan = solver.plan(case.forward, None, store_epilogue(dtypes.bfloat16))
    close(run_outputs(plan, case.inputs, outs, dev)["out"], case.y)


class Disguised:
    """A device with the facts of a card."""

    def __init__(self, dev, card):
        self._dev, self.info = dev, CARDS[card].info

    def __getattr__(self, name):
        return getattr(self._dev, name)


SMALL, WHOLE = (1, 70, 37, 2, 20, 12, True, 0.75), attention_fragment_selftest.CASES


def self_test(dev, monkeypatch, name, change=lambda text: text, broken=lambda f: f, dtype=None):
    """Runs the self-test of a unit, emulated, with a change of its kernels' text or of what is
    known of an instruction: a small case of one dtype."""
    unit, card, _ = UNITS[name]
    dtype = dtype or next(iter(unit.fragments))
    unit = dataclasses.replace(unit, fragments={dtype: broken(unit.fragments[dtype])})
    whole_self_test(dev, monkeypatch, card, change, [unit], (SMALL,))


def whole_self_test(dev, monkeypatch, card, change=lambda text: text, units=None, cases=None):
    """Runs that of a card's units, emulated."""

    def changed(kind):
        def make(unit, blocks=None):
            class Emulated(kind):
                def plan(self, *args):
                    plan = unit_emulator.emulated(super().plan(*args), exact=True)
                    for n, launch in enumerate(plan.launches):
                        text = change(launch.source)
                        plan.launches[n] = dataclasses.replace(launch, source=text)
                    return plan

            return Emulated(unit, blocks)

        return make

    with monkeypatch.context() as patched:
        patched.setattr(fragment, "UNITS", units or fragment.UNITS)
        patched.setattr(attention_fragment_selftest, "CASES", cases or WHOLE)
        for kind in KINDS:
            patched.setattr(fragment, kind.__name__, changed(kind))
        shown = Disguised(dev, card)
        for part in attention_fragment_selftest.parts(shown.info):
            trial.run(shown, attention_fragment_selftest.trials(shown.info, part))


@pytest.mark.every(4)
@pytest.mark.parametrize("name", UNITS)
def test_self_test_passes(dev, name, monkeypatch):
    self_test(dev, monkeypatch, name)


@pytest.mark.long
@pytest.mark.parametrize("card", dict.fromkeys(card for _, card, _ in UNITS.values()))
def test_whole_self_test_passes(dev, card, monkeypatch):
    whole_self_test(dev, monkeypatch, card)


LAYOUTS = [
    *((name, fault, FAULTS) for name in AMDS for fault in FAULTS),
    *((name, fault, test_xmx.FAULTS) for name in test_xmx.XMX for fault in test_xmx.FAULTS),
]


@pytest.mark.every(8)
@pytest.mark.parametrize(("name", "fault", "faults"), LAYOUTS, ids=lambda x: str(x)[:30])
def test_faults_of_a_layout_are_seen(dev, name, fault, faults, monkeypatch):
    def broken(f):
        return dataclasses.replace(f, **faults[fault](f))

    with pytest.raises(DeviceError, match=r"attention.* is wrong"):
        self_test(dev, monkeypatch, name, broken=broken)


TEXTS = {
    "sums of one lane": ("EACH(l, D_LANES) total", "EACH(l, 1) total"),
    "sums not rescaled": ("sum[i][e] *= again;", ""),
    "results not rescaled": ("o[i][n][e] *= again;", ""),
    "not transposed": ("TURN(B, TURNED_V, DP, BC)", "KEEP(B, TURNED_V, DP, BC)"),
    "another sub-group's rows": ("ADD_PRODUCTS(x, 0, BR, own0,", "ADD_PRODUCTS(x, 0, BR, 0,"),
    "slopes not scaled": ("sum[i][n][e] * scale", "sum[i][n][e]"),
    "columns mistaken": ("s = s0 + j * FRAGMENT_N", "s = s0 + FRAGMENT_N"),
    "dropout forgotten": ("x[i][j][e] = KEPT(w, WORD(t, s))", "x[i][j][e] = w"),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("fault", TEXTS)
def test_faults_of_the_kernel_are_seen(dev, fault, monkeypatch):
    old, new = TEXTS[fault]
    found = []

    def change(text):
        found.append(old in text)
        return text.replace(old, new)

    with pytest.raises(DeviceError, match=r"attention.* is wrong"):
        self_test(dev, monkeypatch, "xmx16", change)
    assert any(found)


def test_second_halves_of_pairs_are_needed(dev, monkeypatch):
    """The self-test's bound is tight enough to see that float32 lost 16 bits."""
    with pytest.raises(DeviceError, match=r"attention.* is wrong"):
        self_test(
            dev, monkeypatch, "gfx12", lambda text: text.replace("= parts_.s1;", "= 0;")
            .replace("(s0_.s1, s1_.s1, s2_.s1, s3_.s1)", "(0)"), dtype=dtypes.float32,
        )  # fmt: skip


def problem_of(features, dtype, length=2048, batch=4, heads=16, **more):
    x = tensor((batch, length, heads, features), dtypes.as_dtype(dtype))
    return AttentionProblem(
        batch, length, length, heads, heads, features, features, features**-0.5, True, x.dtype,
        x, x, x, **more,
    )  # fmt: skip


def backward(problem):
    return dataclasses.replace(problem, grad=problem.q)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_chosen_if_the_self_test_passes(name, dtype, monkeypatch):
    unit, card, _ = UNITS[name]
    info = CARDS[card].info
    exact = "highest" if unit.exact else "high"
    problem = problem_of(64, dtype, precision=exact)
    pair = [choose(attention.SOLVERS, p, info) for p in (problem, backward(problem))]
    # Three products for one do not pay everywhere, least where blocks must be small.
    if dtype != "float32" or unit.fragments[problem.dtype].products == 1:
        assert [solver.unit for solver in pair] == [unit, unit]
        assert [solver.name for solver in pair] == [f"{pair[0].name}", f"{pair[0].name}_grad"]
    for solver, p in zip(pair, (problem, backward(problem)), strict=True):
        plain = [s for s in attention_tiled.SOLVERS if s.applies(p, info)]
        assert solver.cost(p, info) <= min(s.cost(p, info) for s in plain)
    monkeypatch.setattr(fragment, "available", lambda unit, info, *_: False)
    assert choose(attention.SOLVERS, problem, info).name == "tile"


def test_true_float32_is_left_to_who_has_it():
    for card in ("rx7900xtx", "rx9070xt", "a770", "b580"):
        problem = problem_of(64, "float32", precision="highest")
        assert choose(attention.SOLVERS, problem, CARDS[card].info).name == "tile"
    assert choose(attention.SOLVERS, problem, CARDS["mi300x"].info).name == "cdna3f32mfma"


def test_a_self_test_of_their_own_decides(monkeypatch):
    monkeypatch.undo()
    info, modules = CARDS["b580"].info, []

    def run(_, tests):
        modules.extend(test.module for test in tests)
        return [("wrong", False)] * len(tests)

    monkeypatch.setattr(asked, "_run", run)
    asked.forget()
    asked_for = (dtypes.float16, "forward")
    assert not fragment.available(UNITS["xmx16"][0], info, *asked_for)
    assert modules == ["kerascl.kernels.units.attention_fragment_selftest"]
    assert not fragment.available(UNITS["xmx8"][0], info, *asked_for) and len(modules) == 1
    asked.forget()


@pytest.mark.parametrize("card", ["rx7900xtx", "mi300x", "a770"])
def test_a_quirk_switches_them_off(card):
    info = quirks.apply(dataclasses.replace(CARDS[card].info, platform="rusticl"))
    problem = problem_of(64, "bfloat16")
    assert choose(attention.SOLVERS, problem, info).name == "tile"


def test_the_formula_serves_where_it_is_counted_to_be_faster(monkeypatch):
    info = CARDS["rx9070xt"].info
    small = problem_of(64, "bfloat16", 128, 8)
    assert attention.preferred(small, info) and attention.preferred(backward(small), info)
    monkeypatch.setattr(attention, "FORMULA_MOVES", 0)
    monkeypatch.setattr(attention, "FORMULA_SHARE", 1e9)
    monkeypatch.setattr(attention, "FORMULA_LAUNCHES", 1)
    assert not attention.preferred(small, info)
    assert not attention.preferred(backward(small), info)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_blocks_fit_small_local_memory(name, dtype):
    unit, card, _ = UNITS[name]
    info = dataclasses.replace(CARDS[card].info, local_mem_bytes=32768)
    for features in (8, 32, 64):
        problem = problem_of(features, dtype, precision="highest" if unit.exact else "high")
        for kind, p in zip(KINDS, (problem, backward(problem)), strict=True):
            solver = kind(unit)
            blocks = solver.block(p, info)
            # 64 features take 32 KiB in 32 bits, and twice in 16.
            assert blocks or (features == 64 and dtype == "float32" and p.grad)
            for keys, block in enumerate(blocks or ()):
                assert block.local_bytes(p, keys > 0) <= 32768 - fragment.SPARE


def launches(name, dtype, features, **more):
    """Launches of both passes for a card, where these kernels are chosen, each with its bytes of
    local memory and how often the instruction is in it: for each fragment of results."""
    unit, card, _ = UNITS[name]
    info = CARDS[card].info
    problem = problem_of(features, dtype, precision="highest" if unit.exact else "high", **more)
    for kind, p in zip(KINDS, (problem, backward(problem)), strict=True):
        solver = kind(unit)
        if choose(attention.SOLVERS, p, info).name != solver.name:
            continue
        plan = solver.plan(p, info, store_epilogue(p.dtype))
        for keys, (launch, block) in enumerate(zip(plan.launches, solver.block(p, info))):
            columns = block.bc * (1 + solver.backward) + features * (1 + keys)
            yield launch, block.local_bytes(p, keys > 0), block.blocks * columns // block.f.n


def compiled(name, launch, instruction):
    """What a vendor's compiler says of a launch, and how often the instruction is in it."""
    target = {"xmx16": "pvc"}.get(name) or CARDS[UNITS[name][1]].target
    if name in AMDS:
        text = AMD.assembly(launch.source, launch.options, target)
        return amd_kernels(text)[launch.name], len(re.findall(instruction, text))
    outcome, text = INTEL.assembly(launch.source, launch.options, target)
    return outcome.kernels[launch.name], len(re.findall(instruction, text))


def instruction_of(name, dtype):
    unit, _, instructions = UNITS[name]
    pairs = unit.fragments[dtypes.as_dtype(dtype)].products > 1
    return instructions["bfloat16" if pairs else dtype]


def fits(name, dtype, features, **more):
    """Asserts that the instruction is there and that no register is spilled."""
    unit = UNITS[name][0]
    missing = AMD.missing if name in AMDS else INTEL.missing
    if missing:
        pytest.skip(missing)
    for launch, local, least in launches(name, dtype, features, **more):
        kernel, count = compiled(name, launch, instruction_of(name, dtype))
        assert kernel.spills == kernel.private == 0, launch.name
        padding = kernel.local - local  # compilers align what lies in local memory
        assert kernel.lanes == unit.lanes and 0 <= padding < 32
        assert count >= least


@pytest.mark.every(4)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_compiled(name, dtype):
    fits(name, dtype, 64)


@pytest.mark.long
@pytest.mark.parametrize("features", [32, 128])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_more_blocks_are_compiled(name, dtype, features):
    drop = Dropout(3 * 2**30, 4 / 3) if features == 32 else None
    fits(name, dtype, features, dropout=drop)
