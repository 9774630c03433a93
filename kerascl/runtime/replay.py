"""Captured launches: arguments bound once, then one enqueue loop with the least Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.launch import Argument, bind, bind_buffer, bind_value, size_array
from kerascl.runtime.opencl import RAW
from kerascl.runtime.programs import Kernel

if TYPE_CHECKING:
    from kerascl.runtime.device import Device

# (kernel, global_size, local_size, args), as for `Queue.launch`.
Launch: TypeAlias = tuple[Kernel, Sequence[int], Sequence[int] | None, Sequence[Argument]]


@dataclass(frozen=True)
class Note:
    """What a launch is for: the part of the model, floating point operations, bytes of memory."""

    layer: str = ""
    flops: int = 0
    nbytes: int = 0


class Replay:
    """A fixed list of launches that can be run again and again.

    It has kernel objects of its own, so eager launches never disturb its
    arguments, and it keeps every Buffer it was given alive.

    Args:
        device: where to run.
        launches: tuples (kernel, global_size, local_size, args) as for `Queue.launch`.
        order: indices into `launches` to run, where some run more than once; each once by default.
        notes: of the first launches, what a profile says of them.

    Raises:
        TypeError, ValueError, LaunchError: as `Queue.launch`, before anything runs.
    """

    def __init__(
        self,
        device: Device,
        launches: Iterable[Launch],
        order: Sequence[int] | None = None,
        notes: Sequence[Note] = (),
    ):
        self._device = device
        self._notes = notes
        self._queue = device.queue
        self._kernels: list[Kernel] = []
        self._sizes: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = []
        self._buffers: list[list[Buffer | None]] = []
        self._calls: list[tuple[Any, ...]] = []
        for kernel, global_size, local_size, args in launches:
            own = kernel.clone()
            bind(own, args)
            wide = size_array(tuple(global_size))
            local = None if local_size is None else tuple(local_size)
            group = None if local is None else size_array(local)
            if group is not None and len(group) != len(wide):
                raise ValueError(
                    f"{kernel.name}: global {global_size} and local {local_size} differ in "
                    "dimensions"
                )
            self._kernels.append(own)
            self._sizes.append((tuple(global_size), local))
            self._buffers.append([arg if type(arg) is Buffer else None for arg in args])
            self._calls.append(
                (self._queue.arg, own.arg, len(wide), None, wide, group, 0, None, None)
            )

        self._order = list(range(len(self._calls)) if order is None else order)
        self._calls = [self._calls[k] for k in self._order]

    def __len__(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        """Enqueue every launch in order; does not wait.

        A KeyboardInterrupt comes before the first launch or after the last: no value that several
        of them make together is left half made.

        Raises:
            LaunchError, OutOfDeviceMemory, ContextLost: as `Queue.launch`.
        """
        queue = self._queue
        calls = self._calls
        with queue.lock:
            if queue.recorder is not None or queue.wait_each or RAW is None:
                self._run_slowly()
                return
            start = 0
            part: list[tuple[Any, ...]] = []
            rest: Any = None  # an iterator of part, which tells its length
            interrupt: KeyboardInterrupt | None = None
            while True:
                try:
                    while start < len(calls):
                        part = calls if len(calls) <= 256 else calls[start : start + 256]
                        rest = iter(part)
                        if any(starmap(RAW.enqueue, rest)):
                            self._failed(start + len(part) - rest.__length_hint__() - 1)
                        queue.pace(len(part))
                        start += len(part)
                        rest = None
                    break
                except KeyboardInterrupt as error:
                    interrupt = error
                    # nothing interrupts `any`: it has enqueued the whole part, or not begun
                    if rest is not None and rest.__length_hint__() < len(part):
                        start += len(part)
                        rest = None
            if interrupt is not None:
                raise interrupt
            queue.drive_progress()

    def rebind(self, launch: int, argument: int, value: Argument) -> None:
        """Give one argument of one launch another Buffer, NumPy scalar or LocalMemory."""
        kernel = self._kernels[launch]
        with self._queue.lock:
            if type(value) is Buffer:
                bind_buffer(kernel, argument, value)
                self._buffers[launch][argument] = value
            else:
                bind_value(kernel, argument, value)

    def _run_slowly(self) -> None:
        queue = self._queue
        for k in self._order:
            kernel = self._kernels[k]
            note = self._notes[k] if k < len(self._notes) else None
            queue.enqueue_slowly(kernel, *self._sizes[k], note)
            if queue.wait_each:
                queue.finish_after(kernel.name)
        queue.pace(len(self._calls))

    def _failed(self, index: int) -> None:
        # Again through the careful path: it retries for memory or says what is wrong.
        queue = self._queue
        self._device.buffers.relieve()
        for k in self._order[index : min(len(self._calls), index // 256 * 256 + 256)]:
            queue.enqueue_slowly(self._kernels[k], *self._sizes[k])
