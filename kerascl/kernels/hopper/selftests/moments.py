"""Products with the moments of their columns: a self-test for that alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import tiles
from kerascl.kernels.hopper.selftests.products import matmul
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

TIMES = 3  # arrival counters must be zero again after each
CASES = (  # m, n, k, the number of a tile
    (70001, 136, 40, None), (20000, 320, 64, 0), (9000, 72, 64, 2),
)  # fmt: skip


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Products of many tiles, with rows and columns no tile divides."""
    for m, n, k, number in CASES:
        epilogue = dataclasses.replace(
            store_epilogue(dtypes.float32),
            moments=f"out[{m * n} + col] = mean; out[{(m + 1) * n} + col] = squares;",
        )
        tile = None if number is None else tiles.SHAPES[number]
        problem = matmul(m, n, k, dtypes.bfloat16)
        plan = hopper_matmul.HopperMatmul(tile).plan(problem, info, epilogue)
        yield Trial(plan, functools.partial(_data, m, n, k), TIMES)


def _data(m: int, n: int, k: int) -> Data:
    rng = np.random.default_rng()
    bfloat16 = dtypes.bfloat16.numpy
    a = (rng.standard_normal((m, k)) + 1).astype(bfloat16)
    b = rng.standard_normal((k, n)).astype(bfloat16)
    want = a.astype(np.float64) @ b.astype(np.float64)
    mean = want.mean(0)
    squares = np.square(want - mean).sum(0)
    got = np.empty((m + 2, n), np.float32)

    def verdict() -> None:
        check("a product with moments", got[:m], want, 2e-5)
        check("a column's mean", got[m], mean, 2e-5)
        check("a column's squares", got[m + 1], squares, 2e-5)

    return Data({"a": a, "b": b}, {"out": got}, verdict)
