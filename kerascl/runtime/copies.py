"""What copies of given sizes take by the device's clock, a launch's fixed cost counted: what
kernels that memory bounds compare with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.profile import profile

if TYPE_CHECKING:
    from kerascl.runtime.buffers import Buffer
    from kerascl.runtime.device import Device

_COPY = """\
__kernel void equal_copy(__global const float4* restrict a, __global float4* restrict b,
                         const uint first, const uint count) {
  const uint i = get_global_id(0);
  if (i < count) b[first + i] = a[first + i];
}
"""
_ITEM = 16  # bytes that a work-item reads, and writes
_GROUP = 256
# Copies go round through arrays that no cache holds.
_ARRAY_BYTES = 1 << 28
_STEP = math.sqrt(2)  # from one size that is timed to the next
_RUNS = 15


class Copies:
    """Nanoseconds of copies that read and write so many bytes together.

    Medians of a number of sizes, between which times are taken to grow by the byte.

    Args:
        device: whose clock it is; no profile of it may be under way.
        wanted: the sizes that will be asked for, in bytes.
    """

    def __init__(self, device: Device, wanted: Iterable[int]) -> None:
        info = device.info
        most = min(_ARRAY_BYTES, info.global_mem_bytes // 16, info.max_alloc_bytes)
        sizes = [min(n, most) for n in wanted if n > 0]
        self._sizes: list[float] = []
        self._times: list[float] = []
        if not sizes:
            return
        grid = [max(min(sizes), 2 * _ITEM)]
        while grid[-1] < max(sizes):
            grid.append(min(math.ceil(grid[-1] * _STEP), most))
        a, b = device.buffers.allocate(most), device.buffers.allocate(most)
        for buffer in (a, b):  # also what is written: where it lies may be found at first use
            device.queue.fill(buffer, np.float32(1.5))
        for size in grid:
            self._sizes.append(size)
            self._times.append(_median(device, a, b, most // _ITEM, size // (2 * _ITEM)))

    def __call__(self, nbytes: int) -> float:
        """Of a copy that reads and writes `nbytes` together; 0 of none."""
        if nbytes <= 0 or not self._sizes:
            return 0.0
        if nbytes > self._sizes[-1]:
            return self._times[-1] * nbytes / self._sizes[-1]
        return float(np.interp(nbytes, self._sizes, self._times))


def _median(device: Device, a: Buffer, b: Buffer, room: int, count: int) -> float:
    """Nanoseconds of a copy of `count` items among arrays of `room` items."""
    kernel = device.programs.kernel(_COPY, "equal_copy")
    group = min(_GROUP, device.info.max_work_group_size)
    size = -(-count // group) * group
    with profile(device, show=False) as recorded:
        for k in range(_RUNS + 1):
            first = k * count % max(1, room - count)
            args = (a, b, np.uint32(first), np.uint32(count))
            device.queue.launch(kernel, (size,), (group,), args)
    return statistics.median(span.end - span.start for span in recorded.spans[1:])
