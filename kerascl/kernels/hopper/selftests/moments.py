"""Products with the moments of their columns: a self-test for that alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import tiles
from kerascl.kernels.hopper.selftests.products import matmul
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

TIMES = 3  # arrival counters must be zero again after each
CASES = (  # m, n, k, the number of a tile
    (70001, 136, 40, None), (20000, 320, 64, 0), (9000, 72, 64, 2),
)  # fmt: skip


PARTS = ("float32", "float32 highest", "bfloat16", "float16")
ROUNDED = 1e-3  # of TF32's products; others are exact but for their sums


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Products of many tiles, with rows and columns no tile divides."""
    dtype, precision, _ = part.parsed(of)
    exact = precision == "highest"
    bound = ROUNDED if dtype is dtypes.float32 and not exact else 2e-5
    for m, n, k, number in CASES:
        epilogue = dataclasses.replace(
            store_epilogue(dtypes.float32),
            moments=f"out[{m * n} + col] = mean; out[{(m + 1) * n} + col] = squares;",
        )
        tile = None if number is None else (tiles.PROMOTED if exact else tiles.SHAPES)[number]
        problem = matmul(m, n, k, dtype, precision=precision)
        plan = hopper_matmul.HopperMatmul(tile).plan(problem, info, epilogue)
        yield Trial(plan, functools.partial(_data, m, n, k, dtype, bound), TIMES)


def _data(m: int, n: int, k: int, dtype: DType, bound: float) -> Data:
    rng = np.random.default_rng()
    a = (rng.standard_normal((m, k)) + 1).astype(dtype.numpy)
    b = rng.standard_normal((k, n)).astype(dtype.numpy)
    want = a.astype(np.float64) @ b.astype(np.float64)
    mean = want.mean(0)
    squares = np.square(want - mean).sum(0)
    got = np.empty((m + 2, n), np.float32)

    def verdict() -> None:
        check("a product with moments", got[:m], want, bound)
        check("a column's mean", got[m], mean, bound)
        check("a column's squares", got[m + 1], squares, bound)

    return Data({"a": a, "b": b}, {"out": got}, verdict)
