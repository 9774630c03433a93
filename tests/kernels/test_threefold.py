"""float32 on matrix units without TF32, each number as two bfloat16: how near results are, what
becomes of numbers that are large, small or none, and what the vendors' compilers make of it."""

import dataclasses
import re

import numpy as np
import pytest

from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.conv.problem import normalise_conv
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.units.conv import CONV_SOLVERS
from kerascl.kernels.units.matmul import GEMM_SOLVERS
from tests.kernels import test_conv, test_gemm, unit_emulator
from tests.kernels.harness import poisoned, run_plan
from tests.kernels.test_units import CARDS, UNITS, dev, error, of, passed, run
from tests.offline.compilers import AMD, INTEL, amd_kernels

__all__ = ["dev", "passed"]  # fixtures

# Units and what the vendors' compilers call the cards.
TARGETS = {"gfx11": "gfx1100", "gfx12": "gfx1201", "xmx8": "dg2", "xmx16": "pvc"}
# Of normal numbers: each part is off by 2**-9 of itself at most, and of products that of two rests
# is missing: 3 * 2**-18 at worst, and less than half of it in the mean.
BOUND = 2.0**-17
SIZES = (
    (129, 72, 64, (3,), "normal", "normal"), (65, 132, 264, (), "normal", "transposed"),
    (40, 136, 72, (), "transposed", "normal"), (37, 70, 65, (), "normal", "normal"),
)  # fmt: skip


def product(rng, *sizes, **more):
    problem, inputs, want = test_gemm.make(rng, *sizes, dtype="float32", **more)
    return normalise_matmul(dataclasses.replace(problem, precision="high")), inputs, want


def convolution(rng, kind, case, channels_first=False):
    problem, inputs, want = test_conv.make(
        rng, kind, **test_conv.CASES[case], channels_first=channels_first, dtype="float32"
    )
    return normalise_conv(dataclasses.replace(problem, precision="high")), inputs, want


def tf32(x):
    """Nearest, ties away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.every(3)
@pytest.mark.parametrize("unit", TARGETS)
def test_products_are_nearer_than_those_of_tf32(dev, unit, rng):
    described, card, _ = UNITS[unit]
    number = list(TARGETS).index(unit)
    problem, inputs, want = product(rng, *SIZES[number])
    fitting = [s for s in of(GEMM_SOLVERS, described) if s.applies(problem, CARDS[card].info)]
    got = run(fitting[number % len(fitting)], problem, inputs, want, dev, card)
    assert error(got, want) <= BOUND
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b
    assert error(tf32(a).astype(np.float64) @ tf32(b), exact) > 16 * BOUND


@pytest.mark.every(7)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", test_conv.KINDS)
@pytest.mark.parametrize("unit", TARGETS)
def test_convolutions(dev, unit, kind, channels_first, rng):
    described, card, _ = UNITS[unit]
    for case in ("stem", "3d") if channels_first else ("3x3", "groups_odd"):
        problem, inputs, want = convolution(rng, kind, case, channels_first)
        solvers = [s for s in of(CONV_SOLVERS, described) if s.applies(problem, CARDS[card].info)]
        got = run(solvers[-1], problem, inputs, want, dev, card)
        assert error(got, want) <= BOUND, case


SPECIAL = np.array(
    [np.inf, -np.inf, np.nan, 0, -0.0, 1, -1, 2, np.pi, -1e20, 1e-20, 1e-30, -3.39e38, 3.4e38,
     np.finfo("f").max, -np.finfo("f").max],
    np.float32,
)  # fmt: skip


@pytest.mark.parametrize("unit", ["xmx16"])
def test_numbers_that_are_large_small_or_none(dev, unit, rng):
    """Each product of two numbers as float32 has it."""
    described, card, _ = UNITS[unit]
    a, b = np.zeros((2, 16, 16), np.float32)
    at = rng.integers(16)
    a[:, at], b[at] = rng.permutation(SPECIAL), rng.permutation(SPECIAL)
    # A NaN's bits beyond those of a bfloat16.
    a.view(np.uint32)[np.isnan(a)] = 0x7F800001
    problem, _, _ = product(rng, 16, 16, 16)
    solver = of(GEMM_SOLVERS, described)[0]
    got = run(solver, problem, {"a": a, "b": b}, np.zeros((16, 16)), dev, card)
    with np.errstate(all="ignore"):
        want = (a[:, at, None] * b[at]).astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    np.testing.assert_allclose(got[finite], want[finite], rtol=4 * BOUND, atol=1e-37)


FAULTS = {
    "no rests": ("parts_.y << 16", "0 << 16"),
    "rests by rests": ("PART_OF(s, 1, SB)", "PART_OF(s, 0, SB)"),
    "cut off, not rounded": ("return (x + 0x7fff + (x >> 16 & 1)) >> 16;", "return x >> 16;"),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(dev, fault, rng):
    described, card, _ = UNITS["xmx8"]
    problem, inputs, want = product(rng, 32, 32, 64)
    solver, info, (old, new) = of(GEMM_SOLVERS, described)[0], CARDS[card].info, FAULTS[fault]
    plan = unit_emulator.emulated(solver.plan(problem, info, store_epilogue(problem.a)))
    (launch,) = plan.launches
    assert old in launch.source
    plan.launches[0] = dataclasses.replace(launch, source=launch.source.replace(old, new))
    got = run_plan(plan, inputs, poisoned(want.shape, problem.a), dev).astype(np.float64)
    assert not error(got, want) <= BOUND


def compiled(unit, solver, problem):
    """Asserts that the instruction is there as often as a stage needs it, and that no register is
    spilled."""
    described, card, instructions = UNITS[unit]
    launch = solver.plan(problem, CARDS[card].info, store_epilogue(problem.a)).launches[0]
    given = launch.source, launch.options, TARGETS[unit]
    if unit.startswith("xmx"):
        outcome, text = INTEL.assembly(*given)
        kernel = outcome.kernels["mma_tile"]
    else:
        text = AMD.assembly(*given)
        kernel = amd_kernels(text)["mma_tile"]
    tile, f = solver.tile, described.fragments[problem.a]
    assert kernel.spills == kernel.private == 0, solver.name
    assert kernel.local == tile.local_bytes
    count = 3 * tile.wm // f.m * (tile.wn // f.n) * (tile.bk(problem.a) // f.k)
    assert len(re.findall(instructions["bfloat16"], text)) == count, solver.name


def _missing(unit: str) -> str:
    return INTEL.missing if unit.startswith("xmx") else AMD.missing


@pytest.mark.every(3)
@pytest.mark.parametrize("unit", TARGETS)
def test_compiled(unit, rng):
    """The largest tile of a product."""
    if _missing(unit):
        pytest.skip(_missing(unit))
    problem, _, _ = product(rng, 256, 256, 256, b="transposed")
    compiled(unit, of(GEMM_SOLVERS, UNITS[unit][0])[-1], problem)


@pytest.mark.long
@pytest.mark.parametrize("case", ["normal", "transposed", "odd", "3x3", "stem", "groups_odd"])
@pytest.mark.parametrize("unit", TARGETS)
def test_every_tile_is_compiled(unit, case, rng):
    if _missing(unit):
        pytest.skip(_missing(unit))
    described, card, _ = UNITS[unit]
    if case in test_conv.CASES:
        found = [(CONV_SOLVERS, convolution(rng, k, case, case == "stem")) for k in test_conv.KINDS]
    else:
        sizes = (255, 257, 253) if case == "odd" else (256, 256, 256)
        order = "normal" if case == "odd" else case
        found = [(GEMM_SOLVERS, product(rng, *sizes, a=order))]
    for solvers, (problem, _, _) in found:
        for solver in of(solvers, described):
            if solver.applies(problem, CARDS[card].info):
                compiled(unit, solver, problem)


def test_where_they_are_chosen(rng):
    """In precision "high", and where they are counted to win."""
    for card, size, wins in (
        ("b580", 2048, True), ("max1550", 2048, True), ("rx9070xt", 2048, True),
        ("rx7900xtx", 2048, False), ("a770", 2048, False),
    ):  # fmt: skip
        problem, info = product(rng, 8, 8, 8)[0], CARDS[card].info
        strides = (0, 0, 0, size, 1)
        problem = dataclasses.replace(
            problem, m=size, n=size, k=size, a_strides=strides, b_strides=strides
        )
        chosen = choose(matmul.SOLVERS, problem, info)
        assert bool(getattr(chosen, "unit", None)) == wins, card
        exact = dataclasses.replace(problem, precision="highest")
        assert not hasattr(choose(matmul.SOLVERS, exact, info), "unit")
