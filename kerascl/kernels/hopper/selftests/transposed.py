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
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

TIMES = 3  # a fragment overwritten too early may show now and then only
BOUND = 4e-4  # TF32's rounding of both operands is 2.9e-4; were one truncated, 4.6e-4
WIDE = transposed.SHAPES[0]
CASES = (  # batch, m, n, k, result, tile, slices
    *((1, 333, 200, 424, dtypes.float32, tile, None) for tile in transposed.SHAPES),
    (1, 2600, 2600, 72, dtypes.float32, WIDE, 1),  # more tiles than there are work-groups
    (1, 700, 520, 5000, dtypes.float32, WIDE, 1), (1, 300, 520, 5000, dtypes.float32, None, 3),
    (3, 200, 136, 104, dtypes.float32, None, None), (1, 500, 392, 128, dtypes.bfloat16, WIDE, 1),
    (1, 150, 131, 77, dtypes.float32, None, 1),
)
LEFT_CASES = (  # m, n, k, tile, slices; whether b's k is contiguous.  Only stores are its own.
    (332, 200, 424, left.LeftMatmul.shapes[-1], 1, False), (2600, 2500, 72, WIDE, 1, True),
    (700, 520, 5000, left.LeftMatmul.shapes[1], 1, False), (520, 300, 5000, None, 3, False),
    (152, 131, 77, None, 1, False),
)  # fmt: skip


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Every tile, sizes no tile divides, batches, deep products, short and scattered results; and
    a bias that is read before the product, by every tile."""
    float32 = dtypes.float32
    for batch, m, n, k, out, tile, splits in CASES:
        row = _row(n)
        problem = normalise_matmul(
            MatmulProblem(
                m, n, k, (batch,), (m * k, k, 1), (k * row, row, 1), float32, float32, float32,
                precision="high",
            )
        )  # fmt: skip
        plan = transposed.TransposedMatmul(tile, splits).plan(problem, info, store_epilogue(out))
        what = f"a transposed product ({tile.name if tile else (batch, m, n, k)})"
        yield Trial(plan, functools.partial(_data, what, batch, m, n, k, out), TIMES)
    solvers = tuple(transposed.TransposedMatmul(tile, 1) for tile in transposed.SHAPES)
    yield from products.with_a_bias(info, solvers, float32, BOUND)
    for m, n, k, tile, splits, turn_b in LEFT_CASES:
        problem = products.matmul(m, n, k, float32, True, turn_b)
        plan = left.LeftMatmul(tile, splits).plan(problem, info, store_epilogue(float32))
        what = f"a product of columns from registers ({tile.name if tile else (m, n, k)})"
        data = functools.partial(products.product, what, m, n, k, float32, True, turn_b, BOUND)
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
