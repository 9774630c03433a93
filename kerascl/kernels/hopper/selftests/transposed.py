"""Computes products with transposed.py's solver: a self-test for that alone.

`python -m kerascl.kernels.hopper.selftests.transposed <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import transposed
from kerascl.kernels.hopper.selftests.basics import biases, check, run
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.runtime import device, selftest_child

TIMES = 3  # a fragment overwritten too early may show now and then only
BOUND = 4e-4  # TF32's rounding of both operands is 2.9e-4; were one truncated, 4.6e-4


def products(dev: device.Device) -> None:
    """Every tile, sizes no tile divides, batches, deep products, short and scattered results.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    float32, bfloat16 = dtypes.float32, dtypes.bfloat16
    wide = transposed.SHAPES[0]
    cases = [  # batch, m, n, k, result, tile, slices
        (1, 333, 200, 424, float32, tile, None) for tile in transposed.SHAPES
    ] + [
        (1, 2600, 2600, 72, float32, wide, 1),  # more tiles than there are work-groups
        (1, 700, 520, 5000, float32, wide, 1), (1, 300, 520, 5000, float32, None, 3),
        (3, 200, 136, 104, float32, None, None), (1, 500, 392, 128, bfloat16, wide, 1),
        (1, 150, 131, 77, float32, None, 1),
    ]  # fmt: skip
    for batch, m, n, k, out, tile, splits in cases:
        row = -(-n // 4) * 4  # from row to row of b, which TMA wants in units of 16 bytes
        a = rng.standard_normal((batch, m, k)).astype(np.float32)
        b = rng.standard_normal((batch, k, row)).astype(np.float32)
        problem = normalise_matmul(
            MatmulProblem(
                m, n, k, (batch,), (m * k, k, 1), (k * row, row, 1), float32, float32, float32,
                precision="high",
            )
        )  # fmt: skip
        want = a.astype(np.float64) @ b[:, :, :n].astype(np.float64)
        got = np.empty((batch, m, n), out.numpy)
        plan = transposed.TransposedMatmul(tile, splits).plan(
            problem, dev.info, store_epilogue(out)
        )
        name = f"a transposed product ({tile.name if tile else (batch, m, n, k)})"
        for _ in range(TIMES):
            run(plan, {"a": a, "b": b}, got, dev)
            check(name, got.astype(np.float64), want, BOUND if out is float32 else 4e-3)


def with_a_bias(dev: device.Device) -> None:
    """Products whose bias is read before them, by every tile.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    solvers = tuple(transposed.TransposedMatmul(tile, 1) for tile in transposed.SHAPES)
    biases(dev, solvers, dtypes.float32, BOUND)


if __name__ == "__main__":
    selftest_child.main(products, with_a_bias)
