"""Products whose left operand comes from registers, with the solvers of transposed.py and left.py:
a self-test for these alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import left, transposed
from kerascl.kernels.hopper.selftests import products
from kerascl.kernels.hopper.tiles import Shape
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

TIMES = 3  # a fragment overwritten too early may show now and then only
BOUND = 4e-4  # TF32's rounding of both operands is 2.9e-4; were one truncated, 4.6e-4
CASES = (  # batch, m, n, k, result, slices
    (1, 300, 520, 5000, dtypes.float32, 3), (3, 500, 392, 128, dtypes.bfloat16, 1),
    (1, 150, 131, 77, dtypes.float32, 1),
)
# The second has several tiles for a work-group.
BIASED = (333, 392, 424), (20000, 392, 72), (700, 392, 5000)
# Rows, columns and depth, slices, and whether b's k is contiguous; the second, too.
LEFT_CASES = (
    (332, 200, 424, 1, False), (20000, 392, 72, 1, True), (700, 520, 5000, 1, False),
    (520, 300, 5000, 3, False), (152, 131, 77, 1, False),
)  # fmt: skip
SOLVERS = transposed.TransposedMatmul, left.LeftMatmul
TILES = {kind.proof(tile): (kind, tile) for kind in SOLVERS for tile in kind.shapes}
PARTS = tuple(TILES)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A tile: sizes that it does not divide, batches, deep products, short and scattered results;
    and a bias that is read before the product."""
    float32 = dtypes.float32
    kind, tile = TILES[of]
    if kind is left.LeftMatmul:
        yield from _left(info, tile)
        return
    for batch, m, n, k, out, splits in CASES:
        row = _row(n)
        problem = normalise_matmul(
            MatmulProblem(
                m, n, k, (batch,), (m * k, k, 1), (k * row, row, 1), float32, float32, float32,
                precision="high",
            )
        )  # fmt: skip
        plan = transposed.TransposedMatmul(tile, splits).plan(problem, info, store_epilogue(out))
        what = f"a transposed product ({tile.name}, {batch} x {m} x {n} x {k})"
        yield Trial(plan, functools.partial(_data, what, batch, m, n, k, out), TIMES)
    solver = transposed.TransposedMatmul(tile, 1)
    for sizes in BIASED:  # one program
        yield products.with_a_bias(info, solver, float32, BOUND, sizes, times=TIMES)


def _left(info: DeviceInfo, tile: Shape) -> Iterator[Trial]:
    """The same of products whose first operand's m is contiguous."""
    for m, n, k, splits, turn_b in LEFT_CASES:
        problem = products.matmul(m, n, k, dtypes.float32, True, turn_b)
        plan = left.LeftMatmul(tile, splits).plan(problem, info, store_epilogue(dtypes.float32))
        what = f"a product of columns from registers ({tile.name}, {m} x {n} x {k})"
        data = functools.partial(
            products.product, what, m, n, k, dtypes.float32, True, turn_b, BOUND
        )
        yield Trial(plan, data, TIMES)


def _row(n: int) -> int:
    """From row to row of the second operand, which TMA wants in units of 16 bytes."""
    return -(-n // 4) * 4


def _data(what: str, batch: int, m: int, n: int, k: int, out: DType) -> Data:
    rng = np.random.default_rng()
    a = rng.standard_normal((batch, m, k), np.float32)
    b = rng.standard_normal((batch, k, _row(n)), np.float32)
    want = a.astype(np.float64) @ b[:, :, :n].astype(np.float64)
    got = np.empty((batch, m, n), out.numpy)
    bound = BOUND if out is dtypes.float32 else 4e-3
    return Data(
        {"a": a, "b": b}, {"out": got},
        lambda: check(what, got.astype(np.float64), want, bound),
    )  # fmt: skip
