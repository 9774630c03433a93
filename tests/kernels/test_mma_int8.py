"""Products of int8 in int32 on NVIDIA's matrix units, as in test_mma.py: bit for bit."""

import dataclasses
import itertools

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, store_epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.conv.problem import FORWARD, normalise_conv
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import nv_sm80
from kerascl.kernels.units import tile as unit_tile
from kerascl.kernels.units.conv import CONV_SOLVERS
from kerascl.kernels.units.matmul import FragmentMatmul
from kerascl.kernels.units.tile import TILES, Side, operand_defines
from tests.kernels import mma_emulator, ptx, test_conv, test_gemm
from tests.kernels.harness import devices, poisoned, run_plan
from tests.kernels.test_mma import of_a_card

INT8, INT32 = dtypes.int8, dtypes.int32


@pytest.fixture(scope="module")
def dev():
    """A device with matrix units, else a CPU that emulates them."""
    return min(devices().values(), key=lambda d: d.info.matrix not in nv_sm80.MATRIX)


@pytest.fixture(scope="module")
def card(dev):
    """Facts of a device with matrix units, present or not."""
    return of_a_card(dev.info)


@pytest.fixture(autouse=True)
def all_values(monkeypatch):
    """Operands have every value of int8, the least one, which has no opposite, often."""

    def drawn(rng, shape, dtype):
        x = rng.integers(-128, 128, shape).astype(np.int8)
        return np.where(rng.random(shape) < 0.1, np.int8(-128), x)

    monkeypatch.setattr(test_gemm, "random_array", drawn)


def made(rng, m, n, k, batch=(), a="normal", b="normal"):
    problem, inputs, want = test_gemm.make(rng, m, n, k, batch, a, b, "int8", "int32")
    return normalise_matmul(problem), inputs, want


def plan_of(solver, problem, dev, epilogue=None, late=False):
    real = dev.info.matrix in nv_sm80.MATRIX
    info = dev.info if real else of_a_card(dev.info)
    assert solver.applies(problem, info)
    plan = solver.plan(problem, info, epilogue or store_epilogue(INT32))
    return plan if real else mma_emulator.emulated(plan, late=late)


def run(solver, problem, inputs, want, dev, late=False):
    plan = plan_of(solver, problem, dev, late=late)
    return run_plan(plan, inputs, poisoned(want.shape, INT32), dev)


NN, NT, TN, TT = itertools.product(("normal", "transposed"), repeat=2)
# m, n, k, batch, orders of a and b, tile, bytes of a copy of each: whole ones, and such as sizes
# leave out (SOME) or cut off (PART), of 16, 8 and 4 bytes.
PRODUCTS = [
    (129, 160, 128, (), *NN, 6, (16, 16)), (144, 130, 64, (3,), *TT, 6, (16, 16)),
    (128, 150, 192, (), *TT, 5, (16, 16)), (131, 65, 208, (), *NT, 5, (16, 16)),
    (80, 144, 100, (2,), *TN, 4, (16, 16)), (70, 200, 72, (), *NN, 4, (8, 8)),
    (72, 44, 90, (), *TN, 3, (8, 4)), (65, 67, 60, (), *NT, 3, (4, 4)),
    (140, 33, 64, (), *TT, 2, (4, 16)), (129, 40, 132, (2,), *NN, 2, (4, 8)),
    (3, 304, 1000, (), *NN, 1, (8, 16)), (36, 131, 76, (3,), *TT, 1, (4, 4)),
    (40, 36, 33, (), *TN, 0, (8, 4)), (31, 30, 44, (2,), *NT, 0, (4, 4)),
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: "-".join(map(str, case[:7])))
def test_products(dev, case, late, rng):
    *sizes, tile, copies = case
    problem, inputs, want = made(rng, *sizes)
    solver = FragmentMatmul(TILES[tile])
    assert tuple(side.copy for side in solver._sides(problem)) == copies
    np.testing.assert_array_equal(run(solver, problem, inputs, want, dev, late), want)


@pytest.mark.parametrize("tile", [6, 3, 0])
def test_rows_and_depths_that_are_cut_off(dev, tile, rng):
    """A copy may end behind the last row, or behind the depth, wherever rows are far apart."""
    m, n, k = 66, 50, 70
    for along_k in itertools.product((True, False), repeat=2):
        a = rng.integers(-128, 128, (m if along_k[0] else k, 96)).astype(np.int8)
        b = rng.integers(-128, 128, (n if along_k[1] else k, 80)).astype(np.int8)
        view_a = a[:, 16 : 16 + k] if along_k[0] else a[:, 16 : 16 + m].T
        view_b = b[:, :k].T if along_k[1] else b[:, :n]
        problem = normalise_matmul(MatmulProblem(
            m, n, k, (), view_a.strides, view_b.strides, INT8, INT8, INT32, 16, 0
        ))  # fmt: skip
        solver = FragmentMatmul(TILES[tile])
        assert {s.style for s in solver._sides(problem)} == {"PART"}
        want = view_a.astype(np.int64) @ view_b.astype(np.int64)
        got = run(solver, problem, {"a": a, "b": b}, want, dev)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("a, b", [("heads", "broadcast"), ("broadcast", "heads")])
def test_batches_of_views(dev, a, b, rng):
    problem, inputs, want = made(rng, 40, 48, 64, (2, 3), a, b)
    got = run(FragmentMatmul(TILES[0]), problem, inputs, want, dev)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("m, n", [(68, 64), (67, 63)])  # slices are added up by fours, or not
def test_depth_in_slices(dev, m, n, rng):
    problem, inputs, want = made(rng, m, n, 592, b="transposed")
    solver = FragmentMatmul(TILES[3], split=3)
    plan = plan_of(solver, problem, dev)
    assert [x.name for x in plan.launches] == ["mma_tile", "gemm_reduce" + "4" * (m % 4 == 0)]
    assert plan.workspace == [3 * m * n * 4]
    got = run_plan(plan, inputs, poisoned(want.shape, INT32), dev)
    np.testing.assert_array_equal(got, want)


def test_sums_are_exact_where_floats_are_not(dev, rng):
    """Of the least values, beyond 2**24, and with a remainder."""
    problem, inputs, want = made(rng, 32, 32, 4096)
    inputs["a"][:], inputs["b"][:] = -128, -128
    inputs["a"][:, 7], inputs["b"][7] = 127, 1
    want[:] = 4095 * 128 * 128 + 127
    np.testing.assert_array_equal(run(FragmentMatmul(TILES[0]), problem, inputs, want, dev), want)


@pytest.mark.parametrize("split", [1, 2])
def test_an_epilogue(dev, split, rng):
    """What a quantised layer does: sums are floats at once, times a scale of each column."""
    problem, inputs, want = made(rng, 40, 48, 256)
    scales = rng.random(48, np.float32)
    epilogue = Epilogue(
        ", __global float* restrict out, __global const float* restrict scales",
        (Ref("out"), Ref("scales")), "out[i] = (float)acc * scales[i % 48];",
    )  # fmt: skip
    plan = plan_of(FragmentMatmul(TILES[0], split), problem, dev, epilogue)
    got = run_plan(plan, {**inputs, "scales": scales}, poisoned(want.shape, dtypes.float32), dev)
    np.testing.assert_array_equal(got, want.astype(np.float32) * scales)


FAULTS = {
    "bytes mistaken": ("BYTES(even, x, y, 0x6420)", "BYTES(even, x, y, 0x6240)"),
    "columns mistaken": ("BYTES(odd, x, y, 0x7531)", "BYTES(odd, x, y, 0x7521)"),
    "depths mistaken": ("+ 2 * (lane >> 3 & 1) + 16", "+ 8 * (lane >> 3 & 1) + 16"),
    "chunks read elsewhere": ("^ SWAP_MN(BYTES_DEPTH, BN)", "^ SWAP_K(BYTES_DEPTH)"),
    "a's chunks elsewhere": ("^ SWAP_MN(BYTES_DEPTH, BM)", "^ SWAP_K(BYTES_DEPTH)"),
    "columns in order": ("((j) / 2 * 16 + 2 * (2 * t + (v)) + (j) % 2)", "(8 * (j) + 2 * t + (v))"),
    "rows in order": ("(16 * (i) + 2 * g + (h))", "(16 * (i) + 8 * (h) + g)"),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(dev, fault, rng, monkeypatch):
    right, wrong = FAULTS[fault]
    text, plain = cl_source("units/nv_sm80.cl"), cl_source
    assert right in text
    broken = text.replace(right, wrong)
    for module in (unit_tile, mma_emulator):
        monkeypatch.setattr(
            module, "cl_source", lambda name: broken if name == "units/nv_sm80.cl" else plain(name)
        )
    problem, inputs, want = made(rng, 64, 64, 64, a="transposed")
    got = run(FragmentMatmul(TILES[3]), problem, inputs, want, dev)
    assert (got != want).mean() > 0.2


# Which places of a stage lanes read: each of LDM4T's addresses, in turn.
PLACES = """
#undef LDM4T
#define LDM4T(d0, d1, d2, d3, at) { out[n++ * 32 + lane] = (at); d0 = d1 = d2 = d3 = 0; }
#define UNROLL
#define KB BK
#define SA (BM * KB)
#define MI (WM / FRAGMENT_M)
#define NI (WN / FRAGMENT_N)
__kernel void places(__global uint* out) {
  const int lane = get_local_id(0), wm = 0, wn = 0;
  uint fa[1][MI][4], fb[1][NI][2], n = 0;
  MOVES
  PLACES
  for (int s = 0; s < BK / FRAGMENT_K; ++s) { FRAGMENTS_A(0, 0, s) FRAGMENTS_B(0, 0, s) }
}
"""


@pytest.mark.parametrize("tile", [6, 4, 1])
def test_rows_that_are_read_at_once_lie_in_other_banks(tile, dev):
    """Eight of 16 bytes; of tiles of 32 rows or columns twice as many as there are banks for."""
    tile, side = TILES[tile], Side(False, 16)
    text = mma_emulator._without_ptx(cl_source("units/nv_sm80.cl"))
    head = prelude("int", ACC=INT32) + operand_defines(nv_sm80.UNIT, tile, INT8, side, side, False)
    _, head = mma_emulator._without_mma(head)
    count = 2 * (tile.wm // 16 + tile.wn // 16)
    plan = Plan([Launch(head + text + PLACES, "places", (Ref("out"),), (32,), (32,))])
    out = run_plan(plan, {}, poisoned((count, 4, 8), dtypes.uint32), dev)
    stage = (tile.bm + tile.bn) * 64
    assert (out < stage).all() and not (out % 16).any()
    for s in range(2):
        for of, (rows, wide) in enumerate(((tile.wm, tile.bm), (tile.wn, tile.bn))):
            first = s * (count // 2) + of * (tile.wm // 16)
            for matrix in out[first : first + rows // 16].reshape(-1, 8):
                banks = np.bincount(matrix // 16 % 8, minlength=8)
                assert banks.max() == (1 if wide > 32 else 2)
    assert len(np.unique(out)) == out.size == (tile.wm + tile.wn) * 64 // 16


def test_who_takes_int8(card, rng):
    """Products in int32 with copies of 4 bytes, of any device with the units; no convolution."""
    takes = nv_sm80.UNIT.takes
    for precision in ("high", "highest"):
        assert takes(INT8, INT8, INT32, precision)
    assert not takes(INT8, INT8, dtypes.float32, "high") and not takes(INT8, INT8, INT8, "high")
    assert not takes(INT8, dtypes.bfloat16, INT32, "high")
    assert not takes(dtypes.uint8, dtypes.uint8, INT32, "high")
    assert not takes(dtypes.bfloat16, dtypes.bfloat16, INT32, "high")
    for m, n, k in ((1024, 2048, 2048), (1024, 8192, 2048), (512, 512, 512)):
        problem = normalise_matmul(
            MatmulProblem(m, n, k, (), (k, 1), (n, 1), INT8, INT8, INT32)
        )
        for info in (card, dataclasses.replace(card, matrix="wgmma90")):
            assert "mma" in choose(matmul.SOLVERS, problem, info).name
        plain = dataclasses.replace(card, matrix="")
        assert "mma" not in choose(matmul.SOLVERS, problem, plain).name
    for strides, offset in (((511, 1), 0), ((1024, 2), 0), ((512, 1), 2), ((512, -1), 511)):
        p = MatmulProblem(64, 256, 256, (), strides, (256, 1), INT8, INT8, INT32, offset)
        assert not any(FragmentMatmul(t).applies(normalise_matmul(p), card) for t in TILES)
    problem, _, _ = test_conv.make(rng, FORWARD, **test_conv.CASES["3x3"], dtype="int8")
    problem = normalise_conv(dataclasses.replace(problem, acc=INT32))
    assert not any(s.applies(problem, card) for s in CONV_SOLVERS)


def test_int8_is_twice_as_fast_as_floats_of_16_bits(card):
    for matrix, times in (("mma80", 2), ("wgmma90", 2)):
        found = machine.of_facts(dataclasses.replace(card, matrix=matrix, nvidia_capability=None))
        assert found.matrix_rate(INT8) == times * found.matrix_rate(dtypes.bfloat16) > 0
    found = machine.of_facts(dataclasses.replace(card, nvidia_capability=(8, 9)))
    assert found.matrix_rate(INT8) == 4 * found.matrix_rate(dtypes.bfloat16)  # GeForce


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("orders", [NN, NT, TN, TT], ids="-".join)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_sources_compile(card, tile, orders, rng):
    """No register is spilled but two where ptxas wants 96, and a few where copies are narrow."""
    solver = FragmentMatmul(tile)
    for size, most, arch in ((256, 0, "sm_80"), (256, 8, "sm_90"), (264, 64, "sm_80")):
        problem, _, _ = made(rng, size, size, size, (), *orders)
        assert solver.applies(problem, card)
        launch = solver.plan(problem, card, store_epilogue(INT32)).launches[0]
        used = ptx.resources("#define KCL_PTX\n" + launch.source, arch, tile.threads)
        assert used["spills"] <= most
