"""Computes products with the moments of their columns: a self-test for that alone.

`python -m kerascl.kernels.hopper.selftests.moments <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import tiles
from kerascl.kernels.hopper.selftests.basics import check, run
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.runtime import device, selftest_child

TIMES = 3  # arrival counters must be zero again after each


def moments(dev: device.Device) -> None:
    """Products of many tiles, with rows and columns no tile divides.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    bfloat16 = dtypes.bfloat16
    for m, n, k, tile in (
        (70001, 136, 40, None), (20000, 320, 64, tiles.SHAPES[0]), (9000, 72, 64, tiles.SHAPES[2]),
    ):  # fmt: skip
        a = (rng.standard_normal((m, k)) + 1).astype(bfloat16.numpy)
        b = rng.standard_normal((k, n)).astype(bfloat16.numpy)
        problem = normalise_matmul(
            MatmulProblem(m, n, k, (), (k, 1), (n, 1), bfloat16, bfloat16, dtypes.float32)
        )
        epilogue = dataclasses.replace(
            store_epilogue(dtypes.float32),
            moments=f"out[{m * n} + col] = mean; out[{(m + 1) * n} + col] = squares;",
        )
        want = a.astype(np.float64) @ b.astype(np.float64)
        got = np.empty((m + 2, n), np.float32)
        plan = hopper_matmul.HopperMatmul(tile).plan(problem, dev.info, epilogue)
        for _ in range(TIMES):
            run(plan, {"a": a, "b": b}, got, dev)
            check("a product with moments", got[:m], want, 2e-5)
            check("a column's mean", got[m], want.mean(0), 2e-5)
            check("a column's squares", got[m + 1], np.square(want - want.mean(0)).sum(0), 2e-5)


if __name__ == "__main__":
    selftest_child.main(moments)
