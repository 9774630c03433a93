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
from kerascl.kernels.units import amd_gfx11, amd_gfx12, intel_xmx, known
from kerascl.kernels.units.conv import CONV_SOLVERS
from kerascl.kernels.units.fragment import Fragment, Layout
from kerascl.kernels.units.matmul import GEMM_SOLVERS, FragmentMatmul
from kerascl.runtime import device, quirks, selftest
from tests import profiles
from tests.kernels import test_conv, test_gemm, unit_emulator
from tests.kernels.conftest import EMULATING
from tests.kernels.harness import poisoned, run_plan
from tests.offline.compilers import AMD, amd_kernels

CARDS = profiles.load()
BOUNDS = {"bfloat16": 4e-3, "float16": 6e-4}  # of results that are stored in that type
WMMA = r"\tv_wmma_f32_16x16x16_{}\b"
NAMES = {"bfloat16": "bf16", "float16": "f16"}
# Unit, the profile of a card that has it, and each dtype's instruction as the vendor's assembler
# calls it.
UNITS = {
    "gfx11": (amd_gfx11.UNIT, "rx7900xtx", {t: WMMA.format(n) for t, n in NAMES.items()}),
    "gfx12": (amd_gfx12.UNIT, "rx9070xt", {t: WMMA.format(n) for t, n in NAMES.items()}),
    "xmx8": (intel_xmx.UNITS[0], "a770", dict.fromkeys(NAMES, r"\bdpasw?\.")),
    "xmx16": (intel_xmx.UNITS[1], "b580", dict.fromkeys(NAMES, r"\bdpasw?\.")),
}
AMDS = [unit for unit in UNITS if unit.startswith("gfx")]
CASES = [(unit, dtype) for unit, (_, _, instructions) in UNITS.items() for dtype in instructions]


@pytest.fixture(scope="module")
def dev():
    """One CPU that emulates: building for several takes minutes."""
    return next(iter(EMULATING.values()))


@pytest.fixture(autouse=True)
def passed(monkeypatch):
    """As if every self-test had passed."""
    monkeypatch.setattr(known, "available", lambda unit, info: info.matrix in unit.matrix)


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
}  # fmt: skip


@pytest.mark.parametrize(("unit", "dtype"), CASES)
def test_products(dev, unit, dtype, rng):
    """Sizes and orders of the operands, the tiles in turn: building one takes long."""
    described, card, _ = UNITS[unit]
    solvers = of(GEMM_SOLVERS, described)
    tried = set()
    for i, (m, n, k, batch, a, b) in enumerate(PRODUCTS[dtype]):
        problem, inputs, want = test_gemm.make(rng, m, n, k, batch, a, b, dtype)
        problem = normalise_matmul(problem)
        # Narrow copies leave small tiles only.
        fitting = [s for s in solvers if s.applies(problem, CARDS[card].info)]
        solver = fitting[i % len(fitting)]
        tried.add(solver.name)
        got = run(solver, problem, inputs, want, dev, card)
        assert error(got, want) <= BOUNDS[dtype], (solver.name, m, n, k, a, b)
    assert len(tried) == len(PRODUCTS[dtype])


@pytest.mark.parametrize("unit", UNITS)
def test_split_depth(dev, unit, rng):
    described, card, _ = UNITS[unit]
    tile = of(GEMM_SOLVERS, described)[-1].tile
    problem, inputs, want = test_gemm.make(rng, 40, 36, 520, dtype="bfloat16")
    problem = normalise_matmul(problem)
    got = run(FragmentMatmul(tile, 3, described), problem, inputs, want, dev, card)
    assert error(got, want) <= BOUNDS["bfloat16"]


@pytest.mark.every(5)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", test_conv.KINDS)
@pytest.mark.parametrize("unit", UNITS)
def test_convolutions(dev, unit, kind, channels_first, rng):
    described, card, _ = UNITS[unit]
    solvers = of(CONV_SOLVERS, described)
    dtype = "float16" if channels_first else "bfloat16"
    for case in ("stem", "3d") if channels_first else ("3x3", "groups_odd"):
        problem, inputs, want = test_conv.make(
            rng, kind, **test_conv.CASES[case], channels_first=channels_first, dtype=dtype
        )
        problem = normalise_conv(problem)
        solver = [s for s in solvers if s.applies(problem, CARDS[card].info)][-1]
        got = run(solver, problem, inputs, want, dev, card)
        assert error(got, want) <= BOUNDS[dtype], case


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
    "depths in another order": lambda f: dict(b=_with(f.b, elements=_turned(f.b.elements))),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("unit", AMDS)
def test_faults_of_a_layout_are_seen(dev, unit, fault, rng):
    described, card, _ = UNITS[unit]
    plain = described.fragments[dtypes.bfloat16]
    wrong = dataclasses.replace(plain, **FAULTS[fault](plain))
    broken = dataclasses.replace(described, fragments={dtypes.bfloat16: wrong})
    tile = of(GEMM_SOLVERS, described)[-1].tile
    problem, inputs, want = test_gemm.make(rng, 32, 32, 64, dtype="bfloat16")
    problem = normalise_matmul(problem)
    for unit, right in ((described, True), (broken, False)):
        got = run(FragmentMatmul(tile, 1, unit), problem, inputs, want, dev, card)
        assert bool(error(got, want) < BOUNDS["bfloat16"]) == right


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


@pytest.mark.parametrize(("unit", "dtype"), [case for case in CASES if case[0] in AMDS])
def test_compiled_for_amd(unit, dtype, rng):
    """The instruction is there, and no register is spilled, in the largest tiles of a product and a
    convolution."""
    if AMD.missing:
        pytest.skip(AMD.missing)
    unit, card, instructions = UNITS[unit]
    info, plans = CARDS[card].info, []
    problem, _, _ = test_gemm.make(rng, 256, 256, 256, b="transposed", dtype=dtype)
    plans.append((of(GEMM_SOLVERS, unit)[0], normalise_matmul(problem)))
    kind = FORWARD if dtype == "float16" else DATA_GRAD
    problem, _, _ = test_conv.make(rng, kind, **test_conv.CASES["3x3"], dtype=dtype)
    plans.append((of(CONV_SOLVERS, unit)[0], normalise_conv(problem)))
    for solver, problem in plans:
        assert solver.applies(problem, info)
        launch = solver.plan(problem, info, store_epilogue(problem.a)).launches[0]
        text = AMD.assembly(launch.source, launch.options, CARDS[card].target)
        kernel = amd_kernels(text)["mma_tile"]
        assert kernel.spills == kernel.private == 0 and kernel.lanes == unit.lanes
        assert kernel.local == solver.tile.local_bytes
        tile, f = solver.tile, unit.fragments[problem.a]
        steps = tile.bk(problem.a) // f.k
        found = re.findall(instructions[dtype], text)
        assert len(found) == tile.wm // f.m * (tile.wn // f.n) * steps


def test_who_has_units_of_amd():
    infos = {name: profile.info for name, profile in CARDS.items()}
    assert infos["rx7900xtx"].matrix == "wmma11" and infos["rx9070xt"].matrix == "wmma12"
    others = ("rx580", "radeon7", "mi210", "mi300x", "rx6700xt", "apple", "rusticl")
    assert not any(infos[name].matrix for name in others)
    asked = device._amd_matrix
    amd = frozenset({"cl_amd_device_attribute_query"})
    assert asked("gfx1200", amd, 32) == "wmma12" and asked("gfx1151", amd, 32) == "wmma11"
    # Other instructions, wavefronts or drivers.
    assert not asked("gfx1250", amd, 32) and not asked("gfx1201", amd, 64)
    assert not asked("gfx1201", frozenset(), 32)


@pytest.mark.parametrize(("card", "quirk"), [("rx7900xtx", "no_wmma"), ("rx9070xt", "no_wmma")])
def test_quirks_switch_units_off(card, quirk):
    for poorer in (dict(platform="rusticl"), dict(fp16=False)):
        found = quirks.apply(dataclasses.replace(CARDS[card].info, **poorer))
        assert found.matrix == "" and quirk in found.quirks


def name_of_choice(problem, info) -> str:
    return choose(matmul.SOLVERS, normalise_matmul(problem), info).name


@pytest.mark.parametrize(("unit", "dtype"), CASES)
def test_units_are_chosen_if_their_self_test_passes(unit, dtype, monkeypatch, rng):
    described, card, _ = UNITS[unit]
    info = CARDS[card].info
    problem, _, _ = test_gemm.make(rng, 512, 512, 512, dtype=dtype)
    assert name_of_choice(problem, info).startswith(described.name)
    monkeypatch.setattr(known, "available", lambda unit, info: not unit.tried)
    assert not name_of_choice(problem, info).startswith(described.name)


@pytest.mark.parametrize("card", ["rx7900xtx", "rx9070xt"])
def test_wmma_takes_no_float32(card, rng):
    problem, _, _ = test_gemm.make(rng, 512, 512, 512)
    assert "wmma" not in name_of_choice(problem, CARDS[card].info)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_serves_dtypes_without_matrix_units_still_does(dtype, rng):
    """WMMA takes no float32: there Winograd and attention's kernels serve as on cards without."""
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
    known._passes.cache_clear()
    asked = []

    def in_child(module, index):
        asked.append(module)
        return "wrong", False

    monkeypatch.setattr(selftest, "in_child", in_child)
    info = CARDS["rx7900xtx"].info
    assert not known.available(amd_gfx11.UNIT, info)
    assert asked == ["kerascl.kernels.units.product_selftest"]
    monkeypatch.setattr(selftest, "in_child", lambda module, index: ("", False))
    known._passes.cache_clear()
    assert known.available(amd_gfx11.UNIT, info)
    assert not known.available(amd_gfx11.UNIT, CARDS["rx6700xt"].info)
    known._passes.cache_clear()
