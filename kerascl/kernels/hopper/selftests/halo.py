"""Convolutions with wgmma_halo.cl: a self-test for that alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import DATA_GRAD, FORWARD
from kerascl.kernels.hopper import halo
from kerascl.kernels.hopper.selftests.convolutions import convolution, problem, values
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

CASES = (  # as convolutions.CASE
    (3, 13, 17, 72, 136, 3, 1, 1, 1), (5, 21, 9, 24, 72, 2, 1, 0, 1),
    (40, 30, 30, 32, 64, 3, 1, 1, 1),
)  # fmt: skip


BOUNDS = {"bfloat16": 2e-5, "float16": 2e-5, "float32": 1e-3}
PARTS = tuple(f"{name} {kind}" for name in BOUNDS for kind in (FORWARD, DATA_GRAD))


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Convolutions or data gradients of every tile, sizes that no box divides; columns' mean and
    squares beside a convolution."""
    dtype, _, (kind,) = part.parsed(of)
    bound = BOUNDS[dtype.name]
    for number, tile in enumerate(halo.SHAPES):
        case = CASES[number % 2 if tile.weights else -1]
        what = f"{kind} of boxes with a halo ({dtype.name}, {tile.name})"
        solver = halo.HaloConv(tile)
        if solver.takes(problem(kind, case, dtype)):
            yield convolution(info, solver, kind, case, dtype, what, bound)
    if kind != FORWARD:
        return
    asked = problem(FORWARD, CASES[-1], dtype)
    f, total = asked.out_shape[-1], math.prod(asked.out_shape)
    epilogue = dataclasses.replace(
        store_epilogue(dtypes.float32),
        moments=f"out[{total} + col] = mean; out[{total + f} + col] = squares;",
    )
    for tile in (halo.SHAPES[0], halo.SHAPES[-1]):
        plan = halo.HaloConv(tile).plan(asked, info, epilogue)
        yield Trial(plan, functools.partial(_moments, tile.name, dtype))


def _moments(name: str, dtype: DType) -> Data:
    inputs, want = values(FORWARD, CASES[-1], dtype)
    f, total = want.shape[-1], math.prod(want.shape)
    flat = want.reshape(-1, f)
    got = np.empty(total + 2 * f, np.float32)

    def verdict() -> None:
        squares = np.square(flat - flat.mean(0)).sum(0)
        results = got[:total].reshape(want.shape)
        check(f"a convolution with moments ({name})", results, want, BOUNDS[dtype.name])
        check(f"a column's mean ({name})", got[total:-f], flat.mean(0), 1e-3)
        check(f"a column's squares ({name})", got[-f:], squares, 1e-3)

    return Data(inputs, {"out": got}, verdict)
