"""Computes filter gradients with channel_major.py's solver: a self-test for that alone.

`python -m kerascl.kernels.hopper.selftests.channel_major <index>` exits 0 and prints OK, or fails
in whatever way the driver fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import FILTER_GRAD
from kerascl.kernels.hopper import channel_major, tiles
from kerascl.kernels.hopper.selftests.basics import check, convolution, run
from kerascl.runtime import device, selftest_child


def filter_gradients(dev: device.Device) -> None:
    """Filter gradients with strides and dilations, sizes no tile divides, every tile of "highest".

    Batches of many sizes: TMA faults where a shift by pixels is no multiple of 16 bytes.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    cases = (
        (3, 13, 13, 64, 64, 3, 1, 1, 1), (5, 15, 12, 96, 40, 3, 2, 1, 1),
        (2, 11, 9, 70, 36, 3, 1, 2, 2), (1, 14, 17, 20, 133, 2, 3, 0, 1),
        (32, 7, 7, 48, 72, 3, 1, 1, 1),
    )  # fmt: skip
    many = (1, 8, 8, 256, 320, 3, 1, 1, 1)  # more tiles than there are work-groups
    tries: list[tuple[tuple[int, ...], str, Any, int | None]]
    tries = [(case, precision, None, None) for case in cases for precision in ("high", "highest")]
    tries += [(cases[0], "highest", tile, 2) for tile in tiles.PROMOTED]
    tries += [(many, "highest", tile, 3) for tile in tiles.PROMOTED[:2]]
    for case, precision, tile, splits in tries:
        problem, inputs, want = convolution(rng, FILTER_GRAD, case, dtypes.float32, precision)
        got = np.empty(want.shape, np.float32)
        solver = channel_major.ChannelMajorFilterGradient(tile, splits)
        plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
        run(plan, inputs, got, dev)
        name = f"a filter gradient ({precision}{', ' + tile.name if tile else ''})"
        check(name, got, want, 2e-6 if precision == "highest" else 1e-3)


if __name__ == "__main__":
    selftest_child.main(filter_gradients)
