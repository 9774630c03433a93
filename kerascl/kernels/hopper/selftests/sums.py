"""Sums of products with wgmma.cl: a self-test for what these add to it."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import pingpong
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.tiles import SHAPES
from kerascl.kernels.matmul.problem import SumProblem, normalise_matmul, slots
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

M, N, K = 700, 392, 136  # sizes no tile divides, and a depth of no whole stages
TERMS = 3
BOUNDS = {"bfloat16": 2e-5, "float16": 2e-5, "float32": 1e-3}
PARTS = tuple(BOUNDS)


def problem(m: int, n: int, k: int, terms: int, dtype: DType, precision: str = "high"):
    """Products of left operands with the transposes of right ones, all contiguous."""
    found = normalise_matmul(
        SumProblem(
            m, n, k, (), (k, 1), (1, k), dtype, dtype, dtypes.float32, precision=precision,
            terms=terms,
        )
    )  # fmt: skip
    assert isinstance(found, SumProblem)
    return found


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Sums of three products: whole, in slices of the depth, and by teams that take turns."""
    dtype = dtypes.as_dtype(of)
    p = problem(M, N, K, TERMS, dtype)
    store = store_epilogue(dtypes.float32)
    for solver in (
        HopperMatmul(SHAPES[0], 1), HopperMatmul(SHAPES[0], 2), HopperMatmul(pingpong.SHAPES[0], 1)
    ):  # fmt: skip
        what = f"a sum of products ({solver.name}, {of})"
        yield Trial(solver.plan(p, info, store), functools.partial(_data, what, p, dtype))


def _data(what: str, p: SumProblem, dtype: DType) -> Data:
    rng = np.random.default_rng()
    inputs, want = {}, np.zeros((p.m, p.n))
    for a, b in slots(p):
        inputs[a] = rng.standard_normal((p.m, p.k), np.float32).astype(dtype.numpy)
        inputs[b] = rng.standard_normal((p.n, p.k), np.float32).astype(dtype.numpy)
        want += inputs[a].astype(np.float64) @ inputs[b].astype(np.float64).T
    out = np.empty((p.m, p.n), np.float32)
    return Data(inputs, {"out": out}, lambda: check(what, out, want, BOUNDS[dtype.name]))
