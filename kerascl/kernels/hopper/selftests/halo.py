"""Computes convolutions with wgmma_halo.cl: a self-test for that alone.

`python -m kerascl.kernels.hopper.selftests.halo <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import DATA_GRAD, FORWARD
from kerascl.kernels.hopper import halo
from kerascl.kernels.hopper.selftests.basics import check, convolution, run
from kerascl.runtime import device, selftest_child

CASES = (
    (3, 13, 17, 72, 136, 3, 1, 1, 1), (5, 21, 9, 24, 72, 2, 1, 0, 1),
    (40, 30, 30, 32, 64, 3, 1, 1, 1),
)  # fmt: skip


def boxes(dev: device.Device) -> None:
    """Convolutions or data gradients of every tile, sizes that no box divides.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    kinds = itertools.cycle(
        (kind, dtype, bound)
        for dtype, bound in ((dtypes.bfloat16, 2e-5), (dtypes.float32, 1e-3))
        for kind in (FORWARD, DATA_GRAD)
    )
    for number, tile in enumerate(halo.SHAPES):
        kind, dtype, bound = next(kinds)
        case = CASES[number % 2 if tile.weights else -1]
        problem, inputs, want = convolution(rng, kind, case, dtype)
        got = np.empty(want.shape, np.float32)
        plan = halo.HaloConv(tile).plan(problem, dev.info, store_epilogue(dtypes.float32))
        run(plan, inputs, got, dev)
        check(f"{kind} of boxes with a halo ({dtype.name}, {tile.name})", got, want, bound)


def moments(dev: device.Device) -> None:
    """Columns' mean and squares beside a convolution.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    for tile in (halo.SHAPES[0], halo.SHAPES[-1]):
        problem, inputs, want = convolution(rng, FORWARD, CASES[-1], dtypes.bfloat16)
        f, total = want.shape[-1], math.prod(want.shape)
        epilogue = dataclasses.replace(
            store_epilogue(dtypes.float32),
            moments=f"out[{total} + col] = mean; out[{total + f} + col] = squares;",
        )
        got = np.empty(total + 2 * f, np.float32)
        plan = halo.HaloConv(tile).plan(problem, dev.info, epilogue)
        run(plan, inputs, got, dev)
        flat = want.reshape(-1, f)
        squares = np.square(flat - flat.mean(0)).sum(0)
        for name, part, expected in (
            ("a convolution with moments", got[:total].reshape(want.shape), want),
            ("a column's mean", got[total:-f], flat.mean(0)),
            ("a column's squares", got[-f:], squares),
        ):
            check(f"{name} ({tile.name})", part, expected, 2e-5 if part.size > f else 1e-3)


if __name__ == "__main__":
    selftest_child.main(boxes, moments)
