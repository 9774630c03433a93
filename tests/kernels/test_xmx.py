"""Intel's matrix units: where the extension's operands lie, what goes wrong where they do not lie
there, who has them, and what Intel's compiler makes of them."""

import dataclasses
import re

import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import DATA_GRAD, FORWARD, normalise_conv
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.units import intel_xmx
from kerascl.kernels.units.conv import CONV_SOLVERS
from kerascl.kernels.units.matmul import GEMM_SOLVERS, FragmentMatmul
from kerascl.runtime import device, quirks
from tests.kernels import test_conv, test_gemm
from tests.kernels.test_units import BOUNDS, CARDS, UNITS, dev, each_once, error, of, passed, run
from tests.offline.compilers import INTEL

__all__ = ["dev", "passed"]  # fixtures

EXTENSION = "cl_intel_subgroup_matrix_multiply_accumulate"
XMX = ("xmx8", "xmx16")
TARGETS = [("xmx8", "dg2"), ("xmx16", "pvc")]


@pytest.mark.parametrize("unit", XMX)
def test_layouts(unit):
    """The extension's: components of a and of the sums are rows, of b words of depths; lanes are
    columns, of a two bytes of 32 or four of them."""
    lanes = int(unit[3:])
    for f in UNITS[unit][0].fragments.values():
        own, wide = f.k // lanes, f.wide
        assert (f.m, f.n, f.k, f.lanes) == (8, lanes, 8 * wide, lanes) and each_once(f)
        for lane in range(lanes):
            for row in range(8):
                assert f.d.place(lane, row) == (row, lane)
                for i in range(own):
                    assert f.a.place(lane, own * row + i) == (row, own * lane + i)
                for i in range(wide):
                    assert f.b.place(lane, wide * row + i) == (wide * row + i, lane)


def _turned(layout):
    half = len(layout.elements) // 2
    return dataclasses.replace(layout, elements=layout.elements[half:] + layout.elements[:half])


def _mirrored(layout):
    """Lanes of a in the opposite order."""
    first = 16 - layout.thread[1]
    return dataclasses.replace(
        layout, thread=(0, -layout.thread[1]),
        elements=tuple((row, first + depth) for row, depth in layout.elements),
    )  # fmt: skip


FAULTS = {
    "rows of a turned": lambda f: dict(a=_turned(f.a)),
    "depths of a mirrored": lambda f: dict(a=_mirrored(f.a)),
    "depths of b turned": lambda f: dict(b=_turned(f.b)),
    "rows of the sums turned": lambda f: dict(d=_turned(f.d)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("unit", XMX)
def test_faults_of_a_layout_are_seen(dev, unit, fault, rng):
    described, card, _ = UNITS[unit]
    plain = described.fragments[dtypes.bfloat16]
    wrong = dataclasses.replace(plain, **FAULTS[fault](plain))
    broken = dataclasses.replace(described, fragments={dtypes.bfloat16: wrong})
    tile = of(GEMM_SOLVERS, described)[0].tile
    problem, inputs, want = test_gemm.make(rng, 32, 32, 64, dtype="bfloat16")
    problem = normalise_matmul(problem)
    for used, right in ((described, True), (broken, False)):
        got = run(FragmentMatmul(tile, 1, used), problem, inputs, want, dev, card)
        assert bool(error(got, want) < BOUNDS["bfloat16"]) == right


CUBE = (256, 256, 256)
# Products, and convolutions of each kind, by what copies they need.
COMPILED = {
    "product": lambda rng, dtype: test_gemm.make(rng, *CUBE, b="transposed", dtype=dtype),
    "transposed": lambda rng, dtype: test_gemm.make(rng, *CUBE, a="transposed", dtype=dtype),
    "odd": lambda rng, dtype: test_gemm.make(rng, 255, 257, 253, dtype=dtype),
    **{
        f"{kind}, {case}": lambda rng, dtype, kind=kind, case=case: test_conv.make(
            rng, kind, **test_conv.CASES[case], channels_first=case in ("stem", "3d"), dtype=dtype
        )
        for case in ("3x3", "stem", "groups_odd", "3d")
        for kind in test_conv.KINDS
    },
}


def compiled(solver, problem, card, target):
    """Asserts that the instruction is there as often as a stage needs it, and that no register is
    spilled."""
    launch = solver.plan(problem, CARDS[card].info, store_epilogue(problem.a)).launches[0]
    outcome, text = INTEL.assembly(launch.source, launch.options, target)
    kernel = outcome.kernels["mma_tile"]
    tile, f = solver.tile, solver.unit.fragments[problem.a]
    assert kernel.spills == kernel.private == 0 and kernel.lanes == f.lanes, solver.name
    assert kernel.local == tile.local_bytes
    count = tile.wm // f.m * (tile.wn // f.n) * (tile.bk(problem.a) // f.k)
    assert len(re.findall(UNITS["xmx8"][2][problem.a.name], text)) == count, solver.name


# ocloc of Debian 12 knows no Xe2, whose sub-groups and instruction are those of Max.
@pytest.mark.skipif(bool(INTEL.missing), reason=INTEL.missing)
@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("unit", "target"), TARGETS)
def test_compiled_for_intel(unit, target, dtype, rng):
    """The largest tiles of a product and of a convolution."""
    described, card, _ = UNITS[unit]
    product = normalise_matmul(COMPILED["product"](rng, dtype)[0])
    compiled(of(GEMM_SOLVERS, described)[-1], product, card, target)
    kind = FORWARD if dtype == "float16" else DATA_GRAD
    problem = normalise_conv(COMPILED[f"{kind}, 3x3"](rng, dtype)[0])
    compiled(of(CONV_SOLVERS, described)[-1], problem, card, target)


@pytest.mark.skipif(bool(INTEL.missing), reason=INTEL.missing)
@pytest.mark.long
@pytest.mark.parametrize("what", COMPILED)
@pytest.mark.parametrize(("unit", "target"), TARGETS)
def test_every_tile_is_compiled_for_intel(unit, target, what, rng):
    described, card, _ = UNITS[unit]
    problem = COMPILED[what](rng, "bfloat16")[0]
    convolution = "," in what
    problem = (normalise_conv if convolution else normalise_matmul)(problem)
    for solver in of(CONV_SOLVERS if convolution else GEMM_SOLVERS, described):
        if solver.applies(problem, CARDS[card].info):
            compiled(solver, problem, card, target)


def test_who_has_xmx():
    infos = {name: profile.info for name, profile in CARDS.items()}
    assert infos["a770"].matrix == "xmx8"
    assert infos["b580"].matrix == infos["max1550"].matrix == "xmx16"
    assert not any(infos[name].matrix for name in ("uhd630", "irisxe", "adreno740", "rusticl"))
    asked, known = device._intel_matrix, frozenset({EXTENSION})
    assert asked(known, (8, 16, 32)) == "xmx8" and asked(known, (16, 32)) == "xmx16"
    assert not asked(frozenset(), (16, 32)) and not asked(known, ()) and not asked(known, (32,))


def test_a_quirk_switches_them_off():
    for changed in (dict(platform="rusticl"), dict(kind="cpu"), dict(vendor="Mesa")):
        found = quirks.apply(dataclasses.replace(CARDS["a770"].info, **changed))
        assert found.matrix == "" and "no_xmx" in found.quirks
    assert "no_xmx" not in CARDS["a770"].info.quirks


def test_the_function_is_declared_where_its_compiler_does_not():
    for unit in intel_xmx.UNITS:
        for f in unit.fragments.values():
            kind = "int8" if f.dtype.is_integer else "float8"
            declared = f.macro.index(f"{kind} __attribute__((overloadable)) intel_sub_group_")
            assert f.macro.index(f"#ifndef {EXTENSION}\n") < declared < f.macro.index("#endif")
