"""Loops that the device ends: the host enqueues ahead, and learns of the end later."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from kerascl.runtime.buffers import Buffer

if TYPE_CHECKING:
    from kerascl.runtime.launch import Pending, Queue

# Launches that are enqueued before the host looks again: enough to hide the time of a look, few
# enough that those of a loop that has ended, which do nothing, take little.
_LAUNCHES = 128


class Deferred:
    """A block in which Ctrl-C is only noted, and raised at its end.

    Attributes:
        came: whether it was noted.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True

    def __enter__(self) -> Deferred:
        self.came = False
        self._before = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if self.came:
                self._before(signal.SIGINT, None)


def repeat(
    queue: Queue,
    flag: Buffer,
    iterate: Callable[[int], None],
    launches: int,
    most: int | None = None,
    interrupt: Deferred | None = None,
) -> None:
    """Enqueue iterations until the int in `flag` is 0, or `most` of them.

    The flag is read while further iterations, which must do nothing once it is 0, run already: the
    host never waits for the last one that it enqueued.

    Args:
        iterate: enqueues so many iterations.
        launches: about how many one takes.
        interrupt: where Ctrl-C is noted, which ends the loop.
    """
    done, count, largest = 0, 1, max(1, _LAUNCHES // max(1, launches))
    looks: deque[tuple[Pending, np.ndarray]] = deque()
    while most is None or done < most:
        if interrupt is not None and interrupt.came:
            queue.fill(flag, np.int32(0))
            break
        if most is not None:
            count = min(count, most - done)
        iterate(count)
        done += count
        count = min(2 * count, largest)
        if done == most:
            break
        value = np.zeros(1, np.int32)
        looks.append((queue.read_async(flag, value), value))
        if len(looks) > 1:
            pending, value = looks.popleft()
            pending.wait()
            if not value[0]:
                break
