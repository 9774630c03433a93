"""Host arrays on their way to a step while the device still works on the step before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.opencl import cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device

# Smaller arrays arrive sooner than two queues agree.
SMALLEST = 1 << 20


class Upload:
    """Where one argument of a captured function is copied to at each call.

    On a device with memory of its own, large arguments go by turns into two buffers through a
    second queue, so that the copy runs beside the previous step; all others go in order.

    Args:
        device: where to.
        nbytes: size of the argument.
    """

    def __init__(self, device: Device, nbytes: int):
        self._device = device
        self._nbytes = nbytes
        self._buffers: list[Buffer] = [device.buffers.allocate(nbytes)]
        self._free: list[cl.Event | None] = [None]  # of each buffer, the event after its last use
        self._turn = 0
        if device.info.staged_copies and nbytes >= SMALLEST:
            self._buffers.append(device.buffers.allocate(nbytes))
            # what these buffers were before may still be in use
            self._free = [device.queue.mark()] * 2

    def send(self, array: np.ndarray) -> Buffer:
        """Begin to copy a contiguous array; commands enqueued from now on find it in the buffer.

        The array may be changed as soon as this returns.
        """
        queue = self._device.queue
        self._turn = (self._turn + 1) % len(self._buffers)
        buffer = self._buffers[self._turn]
        if len(self._buffers) == 1 or queue.recorder is not None:
            queue.write(buffer, array)
        else:
            queue.write_ahead(buffer, array, self._free[self._turn])
        return buffer

    def used(self) -> None:
        """The commands that read the last array have been enqueued."""
        if len(self._buffers) > 1:
            self._free[self._turn] = self._device.queue.mark()
