"""Captured launches: arguments bound once, then one enqueue loop with the least Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.launch import Argument, bind, bind_buffer, bind_value, size_array
from kerascl.runtime.opencl import RAW
from kerascl.runtime.programs import Kernel
from kerascl.runtime.repeat import Deferred, repeat

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


@dataclass(frozen=True)
class Round:
    """Launches that are run again while the int in `flag` is not 0: see `repeat`.

    Attributes:
        order: indices of launches, and rounds within.
        most: how often at most, or None.
    """

    order: Sequence[int | Round]
    flag: Buffer
    most: int | None = None


class Replay:
    """A fixed list of launches that can be run again and again.

    It has kernel objects of its own, so eager launches never disturb its
    arguments, and it keeps every Buffer it was given alive.

    Args:
        device: where to run.
        launches: tuples (kernel, global_size, local_size, args) as for `Queue.launch`.
        order: indices into `launches` to run, where some run more than once, and rounds of such;
            each launch once by default.
        notes: of the first launches, what a profile says of them.

    Raises:
        TypeError, ValueError, LaunchError: as `Queue.launch`, before anything runs.
    """

    def __init__(
        self,
        device: Device,
        launches: Iterable[Launch],
        order: Sequence[int | Round] | None = None,
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

        calls = self._calls
        order = range(len(calls)) if order is None else order
        self._parts = _parts(calls, order)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def run(self) -> None:
        """Enqueue every launch in order; waits only for what rounds need to know.

        A KeyboardInterrupt comes before the first launch or after the last: no value that several
        of them make together is left half made. It ends rounds early.

        Raises:
            LaunchError, OutOfDeviceMemory, ContextLost: as `Queue.launch`.
        """
        if len(self._parts) == 1 and isinstance(self._parts[0], _Flat):
            self._run_flat(self._parts[0])
        else:
            with Deferred() as interrupt:
                for part in self._parts:
                    self._run_part(part, interrupt)
        self._queue.drive_progress()

    def _run_part(self, part: _Flat | _Loop, interrupt: Deferred) -> None:
        if isinstance(part, _Flat):
            self._run_flat(part)
            return

        def iterate(count: int) -> None:
            for _ in range(count):
                for inner in part.parts:
                    self._run_part(inner, interrupt)

        repeat(self._queue, part.flag, iterate, len(part), part.most, interrupt)

    def _run_flat(self, flat: _Flat) -> None:
        queue = self._queue
        calls = flat.calls
        with queue.lock:
            if queue.recorder is not None or queue.wait_each or RAW is None:
                self._run_slowly(flat)
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
                            self._failed(flat, start + len(part) - rest.__length_hint__() - 1)
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

    def rebind(self, launch: int, argument: int, value: Argument) -> None:
        """Give one argument of one launch another Buffer, NumPy scalar or LocalMemory."""
        kernel = self._kernels[launch]
        with self._queue.lock:
            if type(value) is Buffer:
                bind_buffer(kernel, argument, value)
                self._buffers[launch][argument] = value
            else:
                bind_value(kernel, argument, value)

    def _run_slowly(self, flat: _Flat) -> None:
        queue = self._queue
        for k in flat.order:
            kernel = self._kernels[k]
            note = self._notes[k] if k < len(self._notes) else None
            queue.enqueue_slowly(kernel, *self._sizes[k], note)
            if queue.wait_each:
                queue.finish_after(kernel.name)
        queue.pace(len(flat))

    def _failed(self, flat: _Flat, index: int) -> None:
        # Again through the careful path: it retries for memory or says what is wrong.
        queue = self._queue
        self._device.buffers.relieve()
        for k in flat.order[index : min(len(flat), index // 256 * 256 + 256)]:
            queue.enqueue_slowly(self._kernels[k], *self._sizes[k])


class _Flat:
    """Launches in a row."""

    def __init__(self, calls: list[tuple[Any, ...]], order: list[int]) -> None:
        self.order = order
        self.calls = [calls[k] for k in order]

    def __len__(self) -> int:
        return len(self.order)


class _Loop:
    """A round, ready to run."""

    def __init__(self, calls: list[tuple[Any, ...]], found: Round) -> None:
        self.parts = _parts(calls, found.order)
        self.flag = found.flag
        self.most = found.most

    def __len__(self) -> int:
        return sum(map(len, self.parts))


def _parts(calls: list[tuple[Any, ...]], order: Sequence[int | Round]) -> list[_Flat | _Loop]:
    parts: list[_Flat | _Loop] = []
    for is_round, items in itertools.groupby(order, lambda item: isinstance(item, Round)):
        if is_round:
            parts.extend(_Loop(calls, item) for item in items if isinstance(item, Round))
        else:
            parts.append(_Flat(calls, [item for item in items if not isinstance(item, Round)]))
    return parts
