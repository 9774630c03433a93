"""Launches that are known but for their memory, which each run gives: eager evaluation's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.buffers import Buffer
from kerascl.runtime.launch import Argument, bind_buffer, bind_value, size_array
from kerascl.runtime.opencl import RAW
from kerascl.runtime.programs import Kernel

if TYPE_CHECKING:
    from kerascl.runtime.launch import Queue


class ReadyLaunch:
    """One launch, checked once: what `Queue.launch` does with the least Python.

    Its kernel may be launched by others in between: what is bound is looked at each time.

    Args:
        queue: where to launch.
        kernel, global_size, local_size: as for `Queue.launch`.
        args: as for that, with None in place of each Buffer.

    Raises:
        TypeError, ValueError: as `Queue.launch`.
    """

    __slots__ = ("_args", "_call", "_global", "_kernel", "_local", "_places", "_queue", "_values")

    def __init__(
        self,
        queue: Queue,
        kernel: Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        args: Sequence[Argument | None],
    ):
        # bytes, so that comparing them with what is bound needs no conversion
        self._args = [a.tobytes() if isinstance(a, np.generic) else a for a in args]
        if len(args) != kernel.num_args:
            raise TypeError(f"{kernel.name} takes {kernel.num_args} arguments, got {len(args)}")
        self._queue, self._kernel = queue, kernel
        self._global, self._local = global_size, local_size
        wide = size_array(global_size)
        group = None if local_size is None else size_array(local_size)
        if group is not None and len(group) != len(wide):
            raise ValueError(f"global {global_size} and local {local_size} differ in dimensions")
        self._call = (queue.arg, kernel.arg, len(wide), None, wide, group, 0, None, None)
        self._places = [k for k, a in enumerate(self._args) if a is None]
        self._values = [(k, a) for k, a in enumerate(self._args) if a is not None]

    def run(self, buffers: Sequence[Buffer]) -> None:
        """Enqueue it with these Buffers, one for each None of its arguments.

        Raises:
            LaunchError, OutOfDeviceMemory, ContextLost: as `Queue.launch`.
        """
        queue, kernel = self._queue, self._kernel
        with queue.lock:
            if RAW is None or queue.recorder is not None or queue.wait_each:
                self._run_carefully(buffers)
                return
            bound = kernel.bound
            for index, value in self._values:
                known = bound[index]
                if known is not value and known != value:
                    bind_value(kernel, index, value)
            for index, buffer in zip(self._places, buffers, strict=True):
                if bound[index] != buffer.key:
                    bind_buffer(kernel, index, buffer)
            if RAW.enqueue(*self._call):
                self._run_carefully(buffers)  # frees memory and tries again, or says what is wrong
                return
            queue.pace(1)

    def _run_carefully(self, buffers: Sequence[Buffer]) -> None:
        args = list(self._args)
        for index, buffer in zip(self._places, buffers, strict=True):
            args[index] = buffer
        filled = [a for a in args if a is not None]
        self._queue.launch(self._kernel, self._global, self._local, filled)
