"""Filter gradients with channel_major.py's solver: a self-test for that alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kerascl import dtypes
from kerascl.kernels.conv.problem import FILTER_GRAD
from kerascl.kernels.hopper import channel_major, tiles
from kerascl.kernels.hopper.selftests.convolutions import convolution
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.runtime.device import DeviceInfo

# As convolutions.CASE.  Batches of many sizes: TMA faults where a shift by pixels is no multiple of
# 16 bytes.
CASES = (
    (3, 13, 13, 64, 64, 3, 1, 1, 1), (5, 15, 12, 96, 40, 3, 2, 1, 1),
    (2, 11, 9, 70, 36, 3, 1, 2, 2), (1, 14, 17, 20, 133, 2, 3, 0, 1),
    (32, 7, 7, 48, 72, 3, 1, 1, 1),
)  # fmt: skip
MANY = (1, 8, 8, 256, 320, 3, 1, 1, 1)  # more tiles than there are work-groups


PARTS = ("float32", "float32 highest")


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Filter gradients with strides and dilations, sizes no tile divides; every tile of "highest"
    precision."""
    _, precision, _ = part.parsed(of)
    tries: list[tuple[tuple[int, ...], Any, int | None]]
    tries = [(case, None, None) for case in CASES]
    if precision == "highest":
        tries += [(CASES[0], tile, 2) for tile in tiles.PROMOTED]
        tries += [(MANY, tile, 3) for tile in tiles.PROMOTED[:2]]
    for case, tile, splits in tries:
        solver = channel_major.ChannelMajorFilterGradient(tile, splits)
        what = f"a filter gradient ({precision}{', ' + tile.name if tile else ''})"
        bound = 2e-6 if precision == "highest" else 1e-3
        yield convolution(
            info, solver, FILTER_GRAD, case, dtypes.float32, what, bound, precision
        )
