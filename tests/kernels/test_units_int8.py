"""Products of int8 in int32 on matrix units of AMD and Intel, as in test_units.py: emulated bit for
bit, and as the vendors' compilers take them."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.units import amd_gfx11, amd_gfx12, amd_mfma, intel_xmx, known, product_selftest
from kerascl.kernels.units import tile as unit_tile
from kerascl.kernels.units.matmul import GEMM_SOLVERS, FragmentMatmul
from kerascl.runtime.errors import DeviceError
from tests.kernels import test_gemm, unit_emulator
from tests.kernels.harness import poisoned, run_plan
from tests.kernels.test_units import CARDS, dev, of, passed
from tests.offline.compilers import AMD, INTEL, amd_kernels

__all__ = ["dev", "passed"]  # fixtures

INT8, INT32 = dtypes.int8, dtypes.int32
WMMA, MFMA, DPAS = r"\tv_wmma_i32_16x16x16_iu8 .*", r"\tv_mfma_i32_16x16x{}\b", r"\bdpasw?\."
# Unit, the profile of a card that has it, what compilers call one, and the instruction.
UNITS = {
    "gfx11": (amd_gfx11.UNIT, "rx7900xtx", "gfx1100", WMMA),
    "gfx12": (amd_gfx12.UNIT, "rx9070xt", "gfx1201", WMMA),
    "gfx90a": (amd_mfma.CDNA2, "mi210", "gfx90a", MFMA.format("16i8")),
    "gfx942": (amd_mfma.CDNA3, "mi300x", "gfx942", MFMA.format("32_i8")),
    "xmx8": (intel_xmx.UNITS[0], "a770", "dg2", DPAS),
    "xmx16": (intel_xmx.UNITS[1], "b580", "pvc", DPAS),
}
NN, NT, TN, TT = itertools.product(("normal", "transposed"), repeat=2)
# m, n, k, batch, orders of a and b: with copies of 16, 8 and 4 bytes.
PRODUCTS = (
    (129, 80, 64, (3,), *NN), (64, 65, 208, (), *TT), (80, 136, 72, (), *TN),
    (37, 70, 68, (2,), *NT), (36, 44, 90, (), *TN),
)  # fmt: skip


@pytest.fixture(autouse=True)
def all_values(monkeypatch):
    """Operands have every value of int8."""
    monkeypatch.setattr(
        test_gemm, "random_array",
        lambda rng, shape, dtype: rng.integers(-128, 128, shape).astype(np.int8),
    )  # fmt: skip


def made(rng, *sizes):
    problem, inputs, want = test_gemm.make(rng, *sizes, dtype="int8", acc="int32")
    return normalise_matmul(problem), inputs, want


def run(solver, problem, inputs, want, dev, card):
    assert solver.applies(problem, CARDS[card].info), solver.name
    plan = solver.plan(problem, CARDS[card].info, store_epilogue(INT32))
    assert any(map(unit_emulator.is_emulated, plan.launches))
    return run_plan(unit_emulator.emulated(plan), inputs, poisoned(want.shape, INT32), dev)


@pytest.mark.every(4)
@pytest.mark.parametrize("i", range(len(PRODUCTS)))
@pytest.mark.parametrize("unit", UNITS)
def test_products(dev, unit, i, rng):
    """Sizes and orders of the operands, the tiles in turn."""
    described, card, *_ = UNITS[unit]
    problem, inputs, want = made(rng, *PRODUCTS[i])
    solvers = [s for s in of(GEMM_SOLVERS, described) if s.applies(problem, CARDS[card].info)]
    solver = solvers[(i - len(PRODUCTS)) % len(solvers)]
    np.testing.assert_array_equal(run(solver, problem, inputs, want, dev, card), want)


@pytest.mark.every(3)
@pytest.mark.parametrize("unit", UNITS)
def test_depth_in_slices(dev, unit, rng):
    described, card, *_ = UNITS[unit]
    problem, inputs, want = made(rng, 40, 36, 520)
    solver = FragmentMatmul(of(GEMM_SOLVERS, described)[0].tile, 3, described)
    np.testing.assert_array_equal(run(solver, problem, inputs, want, dev, card), want)


@pytest.mark.every(3)
@pytest.mark.parametrize("unit", UNITS)
def test_copies_that_are_cut_off(dev, unit, rng):
    """Rows lie further apart than they are long."""
    described, card, *_ = UNITS[unit]
    m, n, k = 34, 30, 70
    a, b = (rng.integers(-128, 128, (rows, 96)).astype(np.int8) for rows in (m, k))
    problem, _, _ = made(rng, m, n, k)
    problem = dataclasses.replace(
        problem, a_strides=(0, 0, 0, 96, 1), b_strides=(0, 0, 0, 96, 1), b_offset=16
    )
    solver = of(GEMM_SOLVERS, described)[0]
    assert {side.style for side in solver._sides(problem)} == {"PART"}
    want = a[:, :k].astype(np.int64) @ b[:, 16 : 16 + n]
    got = run(solver, problem, {"a": a, "b": b}, want, dev, card)
    np.testing.assert_array_equal(got, want)


def _turned(layout):
    half = len(layout.elements) // 2
    return dataclasses.replace(layout, elements=layout.elements[half:] + layout.elements[:half])


FAULTS = {
    "sums": lambda f: dict(d=_turned(f.d)),
    "depths of a": lambda f: dict(a=_turned(f.a)),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("unit", UNITS)
def test_faults_of_a_layout_are_seen(dev, unit, fault, rng):
    described, card, *_ = UNITS[unit]
    plain = described.fragments[INT8]
    if plain.k == 4 * len(plain.a.elements) == 16 and fault == "depths of a":
        fault = "sums"  # a word holds them all
    wrong = dataclasses.replace(plain, **FAULTS[fault](plain))
    broken = dataclasses.replace(described, fragments={INT8: wrong})
    problem, inputs, want = made(rng, 32, 32, 64)
    tile = of(GEMM_SOLVERS, described)[0].tile
    got = run(FragmentMatmul(tile, 1, broken), problem, inputs, want, dev, card)
    assert (got != want).mean() > 0.2


def test_a_fault_of_the_transposition_is_seen(dev, rng, monkeypatch):
    right, plain, name = "[c_ / 4] >> 8 * (c_ % 4)", unit_tile.cl_source, "units/mma_plain.cl"
    text = plain(name)
    assert right in text
    broken = text.replace(right, "[c_ / 4] >> 8 * (c_ % 2)")
    for module in (unit_tile, unit_emulator):
        monkeypatch.setattr(module, "cl_source", lambda x: broken if x == name else plain(x))
    described, card, *_ = UNITS["gfx12"]
    problem, inputs, want = made(rng, 32, 32, 64)
    got = run(of(GEMM_SOLVERS, described)[0], problem, inputs, want, dev, card)
    assert (got != want).mean() > 0.2


@pytest.mark.every(3)
@pytest.mark.parametrize("unit", UNITS)
def test_the_self_test(dev, unit):
    """Of its products of int8, the first, emulated: it passes, and sees one wrong sum."""
    described, card, *_ = UNITS[unit]
    info = CARDS[card].info
    assert "int8 product" in product_selftest.parts(info)
    assert f"int8 {product_selftest.FORWARD}" not in product_selftest.parts(info)
    trials = list(product_selftest.trials(info, "int8 product"))
    assert len(trials) == len(of(GEMM_SOLVERS, described))
    for trial in trials[:1]:
        data = trial.data()
        out = poisoned(data.outs["out"].shape, INT32)
        got = run_plan(unit_emulator.emulated(trial.plan), data.inputs, out, dev)
        data.outs["out"][:] = got
        data.verdict()
        data.outs["out"][3, 5] += 1
        with pytest.raises(DeviceError):
            data.verdict()


@pytest.mark.parametrize("unit", UNITS)
def test_int8_is_chosen_if_its_self_test_passes(unit, monkeypatch, rng):
    described, card, *_ = UNITS[unit]
    info = CARDS[card].info
    problem, _, _ = made(rng, 512, 512, 512)
    assert choose(matmul.SOLVERS, problem, info).name.startswith(described.name)
    monkeypatch.setattr(known, "available", lambda unit, info, dtype, kind: dtype is not INT8)
    assert not choose(matmul.SOLVERS, problem, info).name.startswith(described.name)


@pytest.mark.every(2)
@pytest.mark.parametrize("orders", [NT, TN], ids="-".join)
@pytest.mark.parametrize("unit", UNITS)
def test_compiled(unit, orders, rng):
    """The instruction is there, and no register is spilled, in the largest tile."""
    described, card, target, instruction = UNITS[unit]
    compiler = INTEL if unit.startswith("xmx") else AMD
    if compiler.missing:
        pytest.skip(compiler.missing)
    solver, info = of(GEMM_SOLVERS, described)[-1], CARDS[card].info
    problem, _, _ = made(rng, 256, 256, 256, (), *orders)
    assert solver.applies(problem, info)
    launch = solver.plan(problem, info, store_epilogue(INT32)).launches[0]
    found = compiler.assembly(launch.source, launch.options, target)
    if compiler is INTEL:
        outcome, text = found
        kernel = outcome.kernels["mma_tile"]
    else:
        text, kernel = found, amd_kernels(found)["mma_tile"]
    tile, f = solver.tile, described.fragments[INT8]
    assert kernel.spills == kernel.private == 0 and kernel.local == tile.local_bytes
    instructions = re.findall(instruction, text)
    assert len(instructions) == tile.wm // f.m * (tile.wn // f.n) * (tile.bk(INT8) // f.k)
    if instruction is WMMA:  # both operands signed
        assert all("neg_lo:[1,1,0]" in line and "clamp" not in line for line in instructions)
