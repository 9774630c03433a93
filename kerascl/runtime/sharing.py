"""Device memory that others use where it lies: the host, where it is the device itself, and
pyopencl (documen.tician.de/pyopencl)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.device import Device, of_context


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


def lent(
    device: Device,
    queue: cl.CommandQueue | None,
    buffer: Buffer | None,
    owner: object,
    shape: tuple[int, ...],
    dtype: np.dtype,
) -> Any:
    """A buffer as a pyopencl.array.Array.

    Args:
        queue: of the array; None: the device's. Another waits for what is enqueued there.
        buffer: None for an array of no bytes.
        owner: what must stay alive as long as the array does.

    Raises:
        ValueError: `queue` is of another context.
    """
    from pyopencl.array import Array  # (takes a tenth of a second)

    usual: Any = device.queue
    if queue is not None and queue.context != device.context:
        raise ValueError(
            "to_pyopencl: queue is of another context; make one of kerascl.current_device().context"
        )
    if queue is not None and queue != usual.handle:
        usual.finish()
    memory = None if buffer is None else buffer.handle
    made: Any = Array(queue or usual.handle, shape, dtype, data=memory)
    made._kerascl_owner = owner
    return made


class Borrowed:
    """Memory of pyopencl's arrays and buffers, when all that was enqueued for it is done.

    Attributes:
        shape, dtype: as NumPy has them, None of a buffer.
        offset: the first byte.
        nbytes: how many there are from it to the end.
        device: whose context it is in, None if it is of nobody here.

    Raises:
        TypeError: for what is neither.
        ValueError: for an array that is not contiguous.
    """

    def __init__(self, x: Any):
        self.shape, self.dtype, self.offset = None, None, 0
        memory = x
        if not isinstance(x, cl.MemoryObject):
            if not hasattr(x, "base_data") or not hasattr(x, "flags"):
                raise TypeError(
                    "from_pyopencl needs a pyopencl.array.Array or a pyopencl.Buffer, not "
                    f"{type(x).__name__}"
                )
            if not x.flags.c_contiguous:
                raise ValueError("from_pyopencl: x must be C-contiguous; copy it first")
            memory = x.base_data
            if memory is not None and not isinstance(memory, cl.MemoryObject):
                if not hasattr(memory, "int_ptr"):
                    raise TypeError("from_pyopencl: x lies in shared virtual memory, in no buffer")
                memory = cl.Buffer.from_int_ptr(memory.int_ptr)  # of a pool
            self.shape, self.dtype, self.offset = x.shape, x.dtype, x.offset
        self._memory: Any = memory
        self._x = x
        self.nbytes = 0 if memory is None else memory.size - self.offset
        self.device = None if memory is None else of_context(memory.context)
        if memory is not x:
            self._wait(x)

    def _wait(self, x: Any) -> None:
        x.finish()  # the events that it knows
        ours: Any = None if self.device is None else self.device.queue
        if x.queue is not None and (ours is None or x.queue != ours.handle):
            x.queue.finish()

    def buffer(self) -> Buffer:
        """Ours over the same memory, from the beginning of theirs."""
        assert self.device is not None
        return self.device.buffers.borrow(self._memory, self._x)

    def read(self, nbytes: int) -> np.ndarray:
        """A copy of the first bytes on the host."""
        host = np.empty(nbytes, np.uint8)
        queue = cl.CommandQueue(self._memory.context)
        cl.enqueue_copy(queue, host, self._memory, src_offset=self.offset, is_blocking=True)
        return host
