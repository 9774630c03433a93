"""Host arrays on their way to a step while the device still works on the step before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.opencl import cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device

# A batch of fewer bytes arrives sooner than two queues agree.
SMALLEST = 1 << 20


@dataclass(slots=True)
class _Room:
    """Memory of one batch: a buffer for each argument that was in host memory once.

    `free` is an event after the last command that uses the buffers; None: nobody has noted it.
    """

    buffers: dict[int, Buffer] = field(default_factory=dict)
    free: cl.Event | None = None


class Uploads:
    """Where the host arguments of a captured function are copied to at each call.

    Where the device can copy beside its other work (`Queue.copies_beside`), large batches go by
    turns into two rooms on a queue of their own, so that the copy runs beside the previous step;
    small ones go in order, always into the same room.

    Args:
        device: where to.
        sizes: bytes of each argument, by its number; None for those that nobody reads.
    """

    def __init__(self, device: Device, sizes: Sequence[int | None]):
        self._device = device
        self._sizes = sizes
        self._rooms = (_Room(), _Room())
        self._turn = 0
        self._beside = False  # how the last batch went

    def send(self, arrays: Mapping[int, np.ndarray]) -> dict[int, Buffer]:
        """Begin to copy contiguous arrays, by number; commands enqueued from now on find them.

        The arrays may be changed as soon as this returns.

        Returns:
            the buffer of each, good until the next call.

        Raises:
            OutOfDeviceMemory, DeviceError: as `Allocator.allocate` and `Queue.write`.
        """
        queue = self._device.queue
        nbytes = sum(array.nbytes for array in arrays.values())
        self._beside = queue.copies_beside and nbytes >= SMALLEST
        self._turn = 1 - self._turn if self._beside else 0
        room = self._rooms[self._turn]
        # What an interrupt leaves half done may have used the room: it is noted anew by `used`.
        free, room.free = room.free, None
        for k in arrays:
            if k not in room.buffers:
                size = self._sizes[k]
                assert size is not None
                room.buffers[k] = self._device.buffers.allocate(size)
                free = None  # what this memory was before may be in use
        sent = {k: room.buffers[k] for k in arrays}
        if self._beside:
            after = queue.mark() if free is None else free
            queue.write_beside([(sent[k], array) for k, array in arrays.items()], after)
        else:
            for k, array in arrays.items():
                queue.write(sent[k], array)
        return sent

    def used(self) -> None:
        """The commands that read the last batch have been enqueued."""
        if self._beside:
            self._rooms[self._turn].free = self._device.queue.mark()
