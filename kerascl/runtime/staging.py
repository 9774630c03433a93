"""Pinned host memory through which a discrete GPU is copied to and from at full speed."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.dropped import Dropped
from kerascl.runtime.opencl import cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device


class Slot:
    """A mapped chunk; `event` is the last copy that used it."""

    __slots__ = ("array", "event", "memory")

    def __init__(self, memory: cl.Buffer, array: np.ndarray):
        self.memory = memory
        self.array = array
        self.event: cl.Event | None = None


class Staging:
    """A ring of pinned chunks.  `write`, `take` and `next` need the device's lock.

    One thread copies in host memory at a fifth of what the bus takes, so large
    copies use several.
    """

    CHUNK = 4 << 20
    SLOTS = 16
    THREADS = min(6, max(1, (os.cpu_count() or 1) // 2))

    def __init__(self, device: Device):
        self._pool: ThreadPoolExecutor | None = None
        self._device = device
        # of its own: a new slot is mapped at once, not after what the device has to do
        self._maps = cl.CommandQueue(device.context, device.handle)
        self._slots: collections.deque[Slot] = collections.deque()
        self._dropped = Dropped()  # slots of reads that nobody waited for
        self._made = 0

    @property
    def window(self) -> int:
        """Bytes of one part of a large read; two parts are under way at a time."""
        return self.SLOTS // 4 * self.CHUNK

    def write(
        self,
        handle: cl.CommandQueue,
        buffer: Buffer,
        data: np.ndarray,
        offset: int,
        note: Callable[[cl.Event], None],
    ) -> cl.Event | None:
        """Copy bytes into a buffer, from `offset` on; `data` may be changed when this returns.

        Args:
            handle: the in-order queue that the copies go to.
            data: one-dimensional.
            note: is given the event of each copy.

        Returns:
            the event of the last copy, None where there is nothing to copy.

        Raises:
            pyopencl.Error: the driver refuses.
        """
        under_way: collections.deque[tuple[Future[None] | None, Slot, int, int]]
        under_way = collections.deque()
        event = None

        def send() -> cl.Event:
            future, slot, start, nbytes = under_way[0]
            if future is not None:
                future.result()
            slot.event = event = cl.enqueue_copy(
                handle,
                buffer.handle,
                slot.array[:nbytes],
                is_blocking=False,
                dst_offset=offset + start,
            )
            note(event)
            handle.flush()
            under_way.popleft()
            self.give_back([slot])
            return event

        try:
            for start in range(0, data.size, self.CHUNK):
                piece = data[start : start + self.CHUNK]
                slot = self.next()
                future = None
                if data.size <= self.CHUNK:
                    slot.array[: piece.size] = piece
                else:
                    future = self.copy(slot.array[: piece.size], piece)
                under_way.append((future, slot, start, piece.size))
                if len(under_way) > self.THREADS:
                    event = send()
            while under_way:
                event = send()
            return event
        finally:
            for future, slot, _, _ in under_way:  # after an error or Ctrl-C
                if future is not None:
                    with contextlib.suppress(Exception):
                        future.result()
                self.give_back([slot])

    def next(self) -> Slot:
        """A slot that is free to be written, waiting for the oldest copy if need be."""
        self._collect()
        if not self._slots or (self._busy(self._slots[0]) and self._made < self.SLOTS):
            # Slots may all be held by unfinished reads: then the ring grows past its size.
            self._make()
        slot = self._slots.popleft()
        if slot.event is not None:
            slot.event.wait()
            slot.event = None
        return slot

    def take(self, nbytes: int) -> list[Slot]:
        """Slots for so many bytes, or [] when that is more than the ring has to spare."""
        count = -(-nbytes // self.CHUNK)
        if count > self.SLOTS // 2:
            return []
        self._collect()
        while len(self._slots) < count and self._made < self.SLOTS:
            self._make()
        if len(self._slots) < count:
            return []
        return [self._slots.popleft() for _ in range(count)]

    def give_back(self, slots: list[Slot]) -> None:
        """Return slots, whose events may still be running, and empty the list."""
        while slots:
            self._slots.append(slots.pop())

    def give_back_after(self, reader: object, slots: list[Slot]) -> None:
        """Return those slots that are still in the list when `reader` is gone."""
        self._dropped.watch(reader, slots)

    def _collect(self) -> None:
        for slots in self._dropped.take():
            self.give_back(slots)

    def copy(self, target: np.ndarray, source: np.ndarray) -> Future[None]:
        """Begin `target[:] = source` in another thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.THREADS, thread_name_prefix="kerascl-copy")
        return self._pool.submit(np.copyto, target, source)

    def _busy(self, slot: Slot) -> bool:
        done = cl.command_execution_status.COMPLETE
        return slot.event is not None and slot.event.command_execution_status != done

    def _make(self) -> None:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        memory = cl.Buffer(self._device.context, flags, self.CHUNK)
        array, _ = cl.enqueue_map_buffer(
            self._maps,
            memory,
            cl.map_flags.READ | cl.map_flags.WRITE,
            0,
            (self.CHUNK,),
            np.uint8,
            is_blocking=True,
        )
        self._made += 1
        self._slots.appendleft(Slot(memory, array))
