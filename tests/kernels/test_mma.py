"""Solvers on NVIDIA's matrix units: on a device that has them, else emulated on a CPU."""

import dataclasses
import itertools

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.conv.problem import normalise_conv
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.units import nv_sm80
from kerascl.kernels.units import tile as unit_tile
from kerascl.kernels.units.conv import FragmentConv, _divisor
from kerascl.kernels.units.matmul import FragmentMatmul, gemm_side
from kerascl.runtime import device
from tests.kernels import mma_emulator, ptx, test_conv, test_gemm
from tests.kernels.harness import devices, poisoned, random_array, run_plan

KINDS = test_conv.KINDS
# dtype, precision, largest relative error of a product of well-scaled values
MODES = {
    "tf32": ("float32", "high", 2e-6),
    "bfloat16": ("bfloat16", "high", 4e-3),
    "float16": ("float16", "high", 6e-4),
}
# A square tile, one of each orientation, and depth in slices: each takes a second to build.
TILES = (unit_tile.TILES[6], unit_tile.TILES[5], unit_tile.TILES[1])
GEMM = (*map(FragmentMatmul, TILES), FragmentMatmul(unit_tile.TILES[3], split=3))
CONV = (FragmentConv(unit_tile.TILES[5]), FragmentConv(unit_tile.TILES[3], split=3))


@pytest.fixture(scope="module")
def dev():
    """A device with matrix units, else a CPU that emulates them."""
    found = sorted(devices().values(), key=lambda d: d.info.matrix not in nv_sm80.MATRIX)
    return found[0]


@pytest.fixture(scope="module")
def card():
    """Facts of a device with matrix units, present or not."""
    return of_a_card(next(found.info for found in device.find_devices() if found.info))


def of_a_card(info):
    return dataclasses.replace(
        info, kind="gpu", matrix="mma80", local_mem_bytes=49152, max_work_group_size=1024,
        compute_units=108,
    )  # fmt: skip


def run(solver, problem, inputs, shape, dev, late=False):
    """What a solver computes, or None where it does not apply; `late` is the emulator's."""
    real = dev.info.matrix in nv_sm80.MATRIX
    info = dev.info if real else of_a_card(dev.info)
    if not solver.applies(problem, info):
        return None
    plan = solver.plan(problem, info, store_epilogue(problem.a))
    plan = plan if real else mma_emulator.emulated(plan, late=late)
    return run_plan(plan, inputs, poisoned(shape, problem.a), dev).astype(np.float64)


def held_by_tf32(rng, shape, dtype):
    """Random values; float32 ones with the 10 bits of mantissa that TF32 holds, so that products
    of them are exact."""
    x = random_array(rng, shape, dtype)
    if dtype is dtypes.float32:
        x.view(np.uint32)[...] &= 0xFFFFE000
    return x


@pytest.fixture
def exact_inputs(monkeypatch):
    monkeypatch.setattr(test_gemm, "random_array", held_by_tf32)
    monkeypatch.setattr(test_conv, "random_array", held_by_tf32)


def with_mode(problem, mode):
    return dataclasses.replace(problem, precision=MODES[mode][1])


def check(solver, problem, inputs, want, dev, mode, late=False):
    got = run(solver, problem, inputs, want.shape, dev, late)
    if got is None:
        return
    assert np.isfinite(got).all(), "poison in the output"
    error = np.linalg.norm((got - want).ravel()) / np.linalg.norm(want.ravel())
    assert error <= MODES[mode][2], f"{solver.name} {problem}: relative error {error:.2e}"


SIZES = [(129, 33, 65), (64, 64, 32), (65, 132, 260), (256, 256, 512), (3, 200, 1000)]
ORDERS = ("normal", "transposed", "strided")
# Sizes and orders of the operands, the solvers in turn: building one takes long.
PRODUCTS = [
    (*case, *turn)
    for case, turn in zip(
        itertools.product(SIZES, ORDERS, ORDERS),
        itertools.cycle(itertools.product((False, True), GEMM)),
    )
]


@pytest.mark.every(7)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "size, a, b, late, solver", PRODUCTS, ids=lambda v: getattr(v, "name", str(v))
)
def test_products(dev, size, a, b, late, solver, mode, exact_inputs, rng):
    batch = (3,) if size[2] < 100 else ()
    problem, inputs, want = test_gemm.make(rng, *size, batch, a, b, MODES[mode][0])
    check(solver, normalise_matmul(with_mode(problem, mode)), inputs, want, dev, mode, late)


@pytest.mark.every(5)
@pytest.mark.parametrize("channels_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", test_conv.CASES)
@pytest.mark.parametrize("mode", MODES)
def test_convolution(dev, mode, case, kind, channels_first, exact_inputs, rng):
    problem, inputs, want = test_conv.make(
        rng, kind, **test_conv.CASES[case], channels_first=channels_first, dtype=MODES[mode][0]
    )
    problem = normalise_conv(with_mode(problem, mode))
    for solver in CONV:
        check(solver, problem, inputs, want, dev, mode)


def test_rounding_to_tf32_is_to_nearest_in_the_mean(dev, rng):
    problem, inputs, want = test_gemm.make(rng, 512, 512, 512)
    problem = normalise_matmul(with_mode(problem, "tf32"))
    got = run(GEMM[0], problem, inputs, want.shape, dev)
    # Rounding to nearest gives 2.9e-4, cutting off 7.8e-4 and results 7e-4 too small.
    assert np.linalg.norm(got - want) <= 3.3e-4 * np.linalg.norm(want)
    assert abs((got * want).sum() / (want * want).sum() - 1) < 3e-5


@pytest.mark.parametrize(
    "late, right, wrong",
    [(True, "WAIT(STAGES - 2);", ""), (True, "WAIT(STAGES - 2);", "WAIT(STAGES - 1);"),
     (True, "COMMIT;\n        fill", "fill"), (False, "LOAD(fill)", "LOAD(cur)")],
)  # fmt: skip
def test_the_emulator_sees(late, right, wrong, dev, rng, monkeypatch):
    """Copies that are not waited for, and one into a stage that is still read."""
    if dev.info.matrix in nv_sm80.MATRIX:
        pytest.skip("the device needs no emulator")
    text, plain = cl_source("units/mma_tile.cl"), cl_source
    assert right in text
    broken = text.replace(right, wrong)
    for module in (unit_tile, mma_emulator):
        monkeypatch.setattr(
            module, "cl_source", lambda name: broken if name == "units/mma_tile.cl" else plain(name)
        )
    problem, inputs, want = test_gemm.make(rng, 64, 64, 260)
    problem = normalise_matmul(with_mode(problem, "tf32"))
    got = run(FragmentMatmul(unit_tile.TILES[0]), problem, inputs, want.shape, dev, late)
    assert not np.linalg.norm(got - want) < 1e-2 * np.linalg.norm(want)


def test_nan_and_infinity_pass_through(dev):
    a = np.ones((64, 64), np.float32)
    a.view(np.uint32)[1, 2] = 0x7FFFFFFF  # the NaN that arithmetic on these devices gives
    a.view(np.uint32)[2, 3] = 0xFFFFFFFF
    a[3, 4], a[4, 5] = np.inf, -np.inf
    f32 = dtypes.float32
    problem = normalise_matmul(MatmulProblem(
        64, 64, 64, (), (64, 1), (64, 1), f32, f32, f32, precision="high"
    ))  # fmt: skip
    for solver in GEMM[:3]:
        inputs = {"a": a, "b": np.ones((64, 64), np.float32)}
        got = run(solver, problem, inputs, (64, 64), dev)
        assert np.isnan(got[1:3]).all()
        assert (got[3] == np.inf).all() and (got[4] == -np.inf).all()
        assert (got[5:] == 64).all() and (got[0] == 64).all()


def test_precision_and_dtypes_decide(card):
    f32, bf16, f16, i32 = (dtypes.as_dtype(n) for n in ("float32", "bfloat16", "float16", "int32"))
    takes = nv_sm80.UNIT.takes
    assert takes(f32, f32, f32, "high") and not takes(f32, f32, f32, "highest")
    assert takes(bf16, bf16, f32, "highest") and takes(f16, f16, f32, "high")
    assert not takes(bf16, f32, f32, "high") and not takes(i32, i32, i32, "high")
    problem = normalise_matmul(MatmulProblem(
        512, 512, 512, (), (512, 1), (512, 1), f32, f32, f32, precision="high"
    ))  # fmt: skip
    assert "mma" in choose(matmul.SOLVERS, problem, card).name
    assert "mma" not in choose(matmul.SOLVERS, problem, dataclasses.replace(card, matrix="")).name


@pytest.mark.parametrize(
    "strides, offset, sizes, side",
    [
        ((0, 0, 0, 64, 1), 0, (128, 64), unit_tile.Side(True, 4, "FULL")),
        ((0, 0, 0, 64, 1), 0, (128, 60), unit_tile.Side(True, 4, "SOME")),
        ((0, 0, 0, 64, 1), 0, (128, 63), unit_tile.Side(True, 4, "PART")),
        ((0, 0, 0, 63, 1), 0, (128, 64), unit_tile.Side(True, 1, "FULL")),
        ((0, 0, 0, 64, 1), 2, (128, 64), unit_tile.Side(True, 2, "FULL")),
        ((0, 0, 6, 64, 1), 0, (128, 64), unit_tile.Side(True, 2, "FULL")),
        ((0, 0, 0, 1, 128), 0, (128, 64), unit_tile.Side(False, 4, "FULL")),
        ((0, 0, 0, 1, 128), 0, (127, 64), unit_tile.Side(False, 4, "PART")),
        ((0, 0, 0, 7, 3), 0, (128, 64), unit_tile.Side(True, 1, "FULL")),
    ],
)
def test_copies_follow_alignment(strides, offset, sizes, side):
    got = gemm_side(dtypes.float32, strides, offset, *strides[-2:], *sizes, 16)
    assert got == side


def test_divisions_by_multiplication(rng):
    for n in (1, 2, 3, 7, 56, 112 * 112, 2**20 + 1, 2**31 - 1):
        factor, shift = _divisor(n)
        assert factor < 2**32
        for i in (0, 1, n - 1, n, 2**31 - 1, *map(int, rng.integers(0, 2**31, 200))):
            assert i * factor >> shift == i // n


COMPILED = {
    "gemm_tf32": (dict(a="normal", b="normal"), "tf32", 6),
    "gemm_tf32_transposed": (dict(a="transposed", b="transposed"), "tf32", 5),
    "gemm_bf16_strided": (dict(a="strided", b="transposed"), "bfloat16", 3),
}


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("name", COMPILED)
def test_gemm_sources_compile(card, name, rng):
    orders, mode, tile = COMPILED[name]
    problem, _, _ = test_gemm.make(rng, 256, 256, 256, **orders, dtype=MODES[mode][0])
    problem = normalise_matmul(with_mode(problem, mode))
    solver = FragmentMatmul(unit_tile.TILES[tile])
    assert solver.applies(problem, card)
    source = solver.plan(problem, card, store_epilogue(problem.a)).launches[0].source
    assert ptx.resources(source)["spills"] <= 64


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("case", ["3x3", "stem", "3d_groups"])
@pytest.mark.parametrize("kind", KINDS)
def test_convolution_sources_compile(card, kind, case, rng):
    mode, first = ("tf32", False) if case != "3d_groups" else ("float16", True)
    problem, _, _ = test_conv.make(
        rng, kind, **test_conv.CASES[case], dtype=MODES[mode][0], channels_first=first
    )
    problem = normalise_conv(with_mode(problem, mode))
    solver = FragmentConv(unit_tile.TILES[3])
    assert solver.applies(problem, card)
    source = solver.plan(problem, card, store_epilogue(problem.a)).launches[0].source
    assert ptx.resources(source)["spills"] <= 64
