"""Device memory that the host reads where it lies, on devices that are the host's processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.device import Device


class _Mapped:
    """Mapped memory as NumPy takes it; alive as long as an array over it is."""

    def __init__(self, memory: np.ndarray, owner: object):
        self._memory, self._owner = memory, owner
        address = memory.__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3, "shape": memory.shape, "typestr": "|u1", "data": (address, False),
        }  # fmt: skip


def on_host(device: Device, buffer: Buffer, owner: object) -> np.ndarray | None:
    """The bytes of a buffer as an array over the same memory, when all that was enqueued is done.

    Nobody may write to them, neither on the host nor by a kernel, while the array is in use.

    Args:
        owner: what must stay alive as long as the array does.

    Returns:
        None where the device has memory of its own.
    """
    if device.info.kind != "cpu":
        return None
    queue: Any = device.queue
    with queue.lock:
        memory, _ = cl.enqueue_map_buffer(
            queue.handle, buffer.handle, cl.map_flags.READ, 0, (buffer.nbytes,), np.uint8,
            is_blocking=True,
        )  # fmt: skip
    return np.asarray(_Mapped(memory, owner))
