"""Matrix units of AMD and Intel: described, emulated on a CPU, and AMD's compiled for cards that
are not there (Intel's: test_xmx.py)."""

import dataclasses
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.conv import winograd
from kerascl.kernels.conv.problem import DATA_GRAD, FORWARD, normalise_conv
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.selftests import asked
from kerascl.kernels.units import (
    amd_gfx11,
    amd_gfx12,
    amd_mfma,
    attention_fragment,
    intel_xmx,
    known,
)
from kerascl.kernels.units.conv import CONV_SOLVERS
from kerascl.kernels.units.fragment import Fragment, Layout
from kerascl.kernels.units.matmul import GEMM_SOLVERS, FragmentMatmul
from kerascl.runtime import device, quirks
from tests import profiles
from tests.kernels import test_conv, test_gemm, unit_emulator
from tests.kernels.conftest import EMULATING
from tests.kernels.harness import poisoned, run_plan
from tests.offline.compilers import AMD, amd_kernels

CARDS = profiles.load()
# Of results that are stored in that type; of inputs that lose 13 bits.
BOUNDS = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 2e-6, "xf32": 2e-3}
WMMA = r"\tv_wmma_f32_16x16x16_{}\b"
MFMA = r"\tv_mfma_f32_16x16x{}\b"
NAMES = {"bfloat16": "bf16", "float16": "f16"}
# Unit, the profile of a card that has it, and each dtype's instruction as the vendor's assembler
# calls it.
UNITS = {
    "gfx11": (amd_gfx11.UNIT, "rx7900xtx", {t: WMMA.format(n) for t, n in NAMES.items()}),
    "gfx12": (amd_gfx12.UNIT, "rx9070xt", {t: WMMA.format(n) for t, n in NAMES.items()}),
    "gfx90a": (amd_mfma.CDNA2, "mi210", {"bfloat16": MFMA.format("16bf16_1k")}),
    "gfx90a, float32's": (
        amd_mfma.CDNA2_TRUE32, "mi210",
        {"float32": MFMA.format("4f32"), "float16": MFMA.format("4f32")},
    ),
    "gfx942": (
        amd_mfma.CDNA3, "mi300x",
        {
            "bfloat16": MFMA.format("16_bf16"), "float16": MFMA.format("16_f16"),
            "float32": MFMA.format("8_xf32"),
        },
    ),
    "gfx942, float32's": (
        amd_mfma.CDNA3_TRUE32, "mi300x", {"float32": MFMA.format("4_f32")},
    ),
    "xmx8": (intel_xmx.UNITS[0], "a770", dict.fromkeys(NAMES, r"\bdpasw?\.")),
    "xmx16": (intel_xmx.UNITS[1], "b580", dict.fromkeys(NAMES, r"\bdpasw?\.")),
}  # fmt: skip
AMDS = [unit for unit in UNITS if unit.startswith("gfx")]
CASES = [(unit, dtype) for unit, (_, _, instructions) in UNITS.items() for dtype in instructions]


@pytest.fixture(scope="module")
def dev():
    """One CPU that emulates: building for several takes minutes."""
    return next(iter(EMULATING.values()))


@pytest.fixture(autouse=True)
def passed(monkeypatch):
    """As if every self-test had passed."""
    monkeypatch.setattr(known, "available", lambda unit, info, *_: info.matrix in unit.matrix)


def of(solvers, unit):
    """A unit's solvers, those of large tiles first."""
    found = [s for s in solvers if s.unit is unit]
    assert found
    return found


def run(solver, problem, inputs, want, dev, card):
    info = CARDS[card].info
    if not solver.applies(problem, info):
        return None
    plan = solver.plan(problem, info, store_epilogue(problem.a))
    assert any(map(unit_emulator.is_emulated, plan.launches))
    plan = unit_emulator.emulated(plan)
    return run_plan(plan, inputs, poisoned(want.shape, problem.a), dev).astype(np.float64)


def error(got, want):
    return np.linalg.norm((got - want).ravel()) / np.linalg.norm(want.ravel())


def case(problem, unit, dtype):
    """The problem in the precision that a unit offers for a dtype, and a bound of its error."""
    rounded = dtype == "float32" and not unit.exact
    problem = dataclasses.replace(problem, precision="high" if rounded else "highest")
    return problem, BOUNDS["xf32" if rounded else dtype]


# m, n, k, batch, orders of a and b
PRODUCTS = {
    "bfloat16": (
        (129, 72, 64, (3,), "normal", "normal"), (65, 132, 264, (), "normal", "transposed"),
        (3, 200, 300, (), "strided", "strided"),
    ),
    "float16": (
        (64, 64, 32, (), "transposed", "transposed"), (40, 136, 72, (), "transposed", "normal"),
        (37, 70, 65, (), "normal", "normal"),
    ),
    "float32": (
        (40, 72, 50, (), "transposed", "normal"), (70, 64, 64, (2,), "normal", "transposed"),
        (37, 50, 65, (), "normal", "strided"),
    ),
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("i", range(3))
@pytest.mark.parametrize(("unit", "dtype"), CASES)
def test_products(dev, unit, dtype, i, rng):
    """Sizes and orders of the operands, the tiles in turn: building one takes long."""
    described, card, _ = UNITS[unit]
    m, n, k, batch, a, b = PRODUCTS[dtype][i]
    problem, inputs, want = test_gemm.make(rng, m, n, k, batch, a, b, dtype)
    problem, bound = case(normalise_matmul(problem), described, dtype)
    # Narrow copies leave small tiles only.
    solvers = [s for s in of(GEMM_SOLVERS, described) if s.applies(problem, CARDS[card].info)]
    solver = solvers[i % len(solvers)]
    got = run(solver, problem, inputs, want, dev, card)
    assert error(got, want) <= bound, solver.name


@pytest.mark.every(5)
@pytest.mark.parametrize("unit", UNITS)
def test_split_depth(dev, unit, rng):
    described, card, instructions = UNITS[unit]
    dtype = next(iter(instructions))
    tile = of(GEMM_SOLVERS, described)[0].tile
    problem, inputs, want = test_gemm.make(rng, 40, 36, 520, dtype=dtype)
    problem, bound = case(normalise_matmul(problem), described, dtype)
    got = run(FragmentMatmul(tile, 3, described), problem, inputs, want, dev, card)
    assert error(got, want) <= bound


@pytest.mark.every(5)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", test_conv.KINDS)
@pytest.mark.parametrize("unit", UNITS)
def test_convolutions(dev, unit, kind, channels_first, rng):
    described, card, instructions = UNITS[unit]
    solvers = of(CONV_SOLVERS, described)
    own = list(instructions)
    dtype = own[(test_conv.KINDS.index(kind) + channels_first) % len(own)]
    for example in ("stem", "3d") if channels_first else ("3x3", "groups_odd"):
        problem, inputs, want = test_conv.make(
            rng, kind, **test_conv.CASES[example], channels_first=channels_first, dtype=dtype
        )
        problem, bound = case(normalise_conv(problem), described, dtype)
        solver = [s for s in solvers if s.applies(problem, CARDS[card].info)][-1]
        got = run(solver, problem, inputs, want, dev, card)
        assert error(got, want) <= bound, example


def test_subnormal_numbers_of_float16_are_kept(dev, rng):
    """CDNA 2 widens them; its own instruction would not."""
    problem, inputs, want = test_gemm.make(rng, 32, 36, 64, dtype="float16")
    inputs["a"] = (inputs["a"].astype(np.float64) * 2.0**-20).astype(np.float16)
    want = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)
    plan = of(GEMM_SOLVERS, amd_mfma.CDNA2_TRUE32)[0].plan(
        normalise_matmul(problem), CARDS["mi210"].info, store_epilogue(dtypes.float32)
    )
    got = run_plan(unit_emulator.emulated(plan), inputs, poisoned(want.shape, dtypes.float32), dev)
    assert error(got.astype(np.float64), want) <= BOUNDS["float32"]


def each_once(f: Fragment) -> bool:
    """Whether the lanes together hold each element of a, b and d once."""
    for layout, shape in ((f.a, (f.m, f.k)), (f.b, (f.k, f.n)), (f.d, (f.m, f.n))):
        held = np.zeros(shape, int)
        for lane in range(f.lanes):
            for i in range(len(layout.elements)):
                held[layout.place(lane, i)] += 1
        if not (held == 1).all():
            return False
    return True


def _with(layout: Layout, **changes) -> Layout:
    return dataclasses.replace(layout, **changes)


def _turned(elements):
    half = len(elements) // 2
    return elements[half:] + elements[:half]


# What is wrong with a fragment, within the tile that it reads or writes.
FAULTS = {
    "sums transposed": lambda f: dict(
        d=_with(
            f.d, group=f.d.group[::-1], thread=(1, 0),
            elements=tuple((c, r) for r, c in f.d.elements),
        )
    ),
    "groups of lanes mistaken": lambda f: dict(
        a=_with(f.a, group=(0, 0) if f.a.group[1] else (1, 0))
    ),
    "depths in another order": lambda f: dict(
        b=_with(f.b, elements=_turned(f.b.elements))
        if len(f.b.elements) > 1 else _with(f.b, group=(0, 0))
    ),
}  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("unit", AMDS)
def test_faults_of_a_layout_are_seen(dev, unit, fault, rng):
    described, card, instructions = UNITS[unit]
    dtype = list(instructions)[-1]
    plain = described.fragments[dtypes.as_dtype(dtype)]
    wrong = dataclasses.replace(plain, **FAULTS[fault](plain))
    broken = dataclasses.replace(described, fragments={plain.dtype: wrong})
    tile = of(GEMM_SOLVERS, described)[0].tile
    problem, inputs, want = test_gemm.make(rng, 32, 32, 64, dtype=dtype)
    problem, bound = case(normalise_matmul(problem), described, dtype)
    for unit, right in ((described, True), (broken, False)):
        got = run(FragmentMatmul(tile, 1, unit), problem, inputs, want, dev, card)
        assert bool(error(got, want) < bound) == right


@pytest.mark.parametrize("f", amd_gfx11.FRAGMENTS.values(), ids=lambda f: str(f.dtype))
def test_layouts_of_gfx11(f):
    """Each element of a and b twice, of the sums once, and where AMD's manual has it."""
    for lane in range(32):
        for k in range(16):
            assert f.a.place(lane, k) == (lane % 16, k) and f.b.place(lane, k) == (k, lane % 16)
        for v in range(8):
            assert f.d.place(lane, v) == (2 * v + lane // 16, lane % 16)


@pytest.mark.parametrize("f", amd_gfx12.FRAGMENTS.values(), ids=lambda f: str(f.dtype))
def test_layouts_of_gfx12(f):
    """Each element once, and where AMD's manual has it."""
    for lane in range(32):
        for i in range(8):
            assert f.a.place(lane, i) == (lane % 16, i + 8 * (lane // 16))
            assert f.b.place(lane, i) == f.d.place(lane, i) == f.a.place(lane, i)[::-1]
    assert each_once(f)


@pytest.mark.parametrize("unit", [name for name in UNITS if name.startswith("gfx9")])
def test_layouts_of_cdna(unit):
    """Each element once, and where AMD's manuals have it: depths and rows of d in four quarters."""
    for f in UNITS[unit][0].fragments.values():
        own = f.k // 4
        for lane in range(64):
            for i in range(own):
                assert f.a.place(lane, i) == (lane % 16, i + own * (lane // 16))
                assert f.b.place(lane, i) == f.a.place(lane, i)[::-1]
            for v in range(4):
                assert f.d.place(lane, v) == (v + 4 * (lane // 16), lane % 16)
        assert each_once(f)


@pytest.mark.every(3)
@pytest.mark.parametrize(("unit", "dtype"), [case for case in CASES if case[0] in AMDS])
def test_compiled_for_amd(unit, dtype, rng):
    """The instruction is there, and no register is spilled, in the largest tiles of a product and a
    convolution."""
    if AMD.missing:
        pytest.skip(AMD.missing)
    unit, card, instructions = UNITS[unit]
    info, plans = CARDS[card].info, []
    problem, _, _ = test_gemm.make(rng, 256, 256, 256, b="transposed", dtype=dtype)
    plans.append((of(GEMM_SOLVERS, unit)[-1], case(normalise_matmul(problem), unit, dtype)[0]))
    kind = FORWARD if dtype == "float16" else DATA_GRAD
    problem, _, _ = test_conv.make(rng, kind, **test_conv.CASES["3x3"], dtype=dtype)
    plans.append((of(CONV_SOLVERS, unit)[-1], case(normalise_conv(problem), unit, dtype)[0]))
    for solver, problem in plans:
        assert solver.applies(problem, info)
        launch = solver.plan(problem, info, store_epilogue(problem.a)).launches[0]
        text = AMD.assembly(launch.source, launch.options, CARDS[card].target)
        kernel = amd_kernels(text)["mma_tile"]
        assert kernel.spills == kernel.private == 0 and kernel.lanes == unit.lanes
        assert kernel.local == solver.tile.local_bytes
        tile, f = solver.tile, unit.fragments[problem.a]
        # CDNA 2 takes each element of float16 by one of float32's.
        steps = tile.bk(problem.a) // (4 if f is amd_mfma.WIDENED else f.k)
        found = re.findall(instructions[dtype], text)
        assert len(found) == tile.wm // f.m * (tile.wn // f.n) * steps


def test_who_has_units_of_amd():
    infos = {name: profile.info for name, profile in CARDS.items()}
    assert infos["rx7900xtx"].matrix == "wmma11" and infos["rx9070xt"].matrix == "wmma12"
    assert infos["mi210"].matrix == "mfma90a" and infos["mi300x"].matrix == "mfma942"
    others = ("rx580", "radeon7", "rx6700xt", "apple", "rusticl")
    assert not any(infos[name].matrix for name in others)
    asked = device._amd_matrix
    amd = frozenset({"cl_amd_device_attribute_query"})
    assert asked("gfx1200", amd, 32) == "wmma12" and asked("gfx1151", amd, 32) == "wmma11"
    # Other instructions, wavefronts or drivers.
    assert not asked("gfx1250", amd, 32) and not asked("gfx1201", amd, 64)
    assert not asked("gfx950", amd, 64) and not asked("gfx908", amd, 64)
    assert not asked("gfx1201", frozenset(), 32)


@pytest.mark.parametrize(("card", "quirk"), [
    ("rx7900xtx", "no_wmma"), ("rx9070xt", "no_wmma"), ("mi210", "no_mfma"), ("mi300x", "no_mfma"),
])  # fmt: skip
def test_quirks_switch_units_off(card, quirk):
    for poorer in (dict(platform="rusticl"), dict(fp16=False)):
        found = quirks.apply(dataclasses.replace(CARDS[card].info, **poorer))
        assert found.matrix == "" and quirk in found.quirks


def name_of_choice(problem, info) -> str:
    return choose(matmul.SOLVERS, problem, info).name


@pytest.mark.parametrize(("unit", "dtype"), CASES)
def test_units_are_chosen_if_their_self_test_passes(unit, dtype, monkeypatch, rng):
    described, card, _ = UNITS[unit]
    info = CARDS[card].info
    problem, _, _ = test_gemm.make(rng, 512, 512, 512, dtype=dtype)
    problem, _ = case(normalise_matmul(problem), described, dtype)
    assert name_of_choice(problem, info).startswith(described.name)
    monkeypatch.setattr(known, "available", lambda unit, info, *_: not unit.tried)
    assert not name_of_choice(problem, info).startswith(described.name)


@pytest.mark.parametrize("card", ["rx7900xtx", "rx9070xt"])
def test_wmma_takes_no_true_float32(card, rng):
    problem, _, _ = test_gemm.make(rng, 512, 512, 512)
    assert "wmma" not in name_of_choice(normalise_matmul(problem), CARDS[card].info)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_serves_dtypes_without_matrix_units_still_does(dtype, rng, monkeypatch):
    """WMMA takes no true float32: Winograd and attention's kernels serve as on cards without.  (On
    matrix units attention has a self-test of its own.)"""
    monkeypatch.setattr(attention_fragment, "available", lambda *_: False)
    info = CARDS["rx7900xtx"].info
    problem, _, _ = test_conv.make(rng, FORWARD, (16, 16), 64, 64, 3, pads=1, dtype=dtype)
    assert winograd.SOLVERS[0].applies(normalise_conv(problem), info) == (dtype == "float32")
    heads, width, length = 4, 32, 50
    tensor = Tensor(dtypes.as_dtype(dtype), (length * heads * width, heads * width, width, 1), 0)
    problem = AttentionProblem(
        batch=2, length=length, source=length, heads=heads, groups=heads, width=width, depth=width,
        scale=1.0, causal=False, dtype=tensor.dtype, q=tensor, k=tensor, v=tensor, bias=None,
        mask=None, grad=None, precision="high",
    )  # fmt: skip
    assert attention.preferred(problem, info) == (dtype == "float32")


def test_self_test_decides(monkeypatch):
    monkeypatch.undo()
    asked.forget()
    modules = []

    def run(_, tests):
        modules.extend(test.module for test in tests)
        return [("wrong", False)] * len(tests)

    monkeypatch.setattr(asked, "_run", run)
    info = CARDS["rx7900xtx"].info
    asked_for = (dtypes.float16, "product")
    assert not known.available(amd_gfx11.UNIT, info, *asked_for)
    assert modules == ["kerascl.kernels.units.product_selftest"]
    monkeypatch.setattr(asked, "_run", lambda _, tests: [("", False)] * len(tests))
    asked.forget()
    assert known.available(amd_gfx11.UNIT, info, *asked_for)
    assert not known.available(amd_gfx11.UNIT, CARDS["rx6700xt"].info, *asked_for)
    asked.forget()
