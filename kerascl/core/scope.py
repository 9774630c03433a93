"""What the current thread is doing: its trace, tapes and device; and the execution hook.

`core` and `ops` never see OpenCL.  They reach it through `engine()`, which
`kerascl/__init__` installs.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

import numpy as np


class Engine(Protocol):
    """What executes graphs; implemented by the compiler room."""

    def evaluate(self, nodes: list) -> None:
        """Give every node a buffer."""

    def to_host(self, node) -> np.ndarray:
        """A copy of a node's value; waits for the device."""

    def from_host(self, value: np.ndarray, device) -> Any:
        """A buffer holding the contiguous `value`."""

    def default_device(self) -> Any:
        """The device used where none is named."""

    def find_device(self, name: str) -> Any:
        """A device by name."""

    def copy_buffer(self, node) -> Any:
        """A new buffer with a copy of a realized node's value."""

    def copy_into(self, node, buffer) -> None:
        """Copy a realized node's value into a buffer of the same size."""


class _Thread(threading.local):
    def __init__(self):
        self.trace = None
        self.tapes: tuple = ()
        self.device = None


current = _Thread()
_engine: list[Engine] = []


def install_engine(engine: Engine) -> None:
    """Set the one engine of this process."""
    _engine[:] = [engine]


def engine() -> Engine:
    """The installed engine."""
    return _engine[0]


def device():
    """The device for new arrays: that of the innermost `device_scope`, else the default."""
    return current.device if current.device is not None else engine().default_device()


@contextlib.contextmanager
def device_scope(name):
    """Create new arrays on a device: a name such as "gpu:0" or "cpu:0", or a device object."""
    chosen = engine().find_device(name) if isinstance(name, str) else name
    previous, current.device = current.device, chosen
    try:
        yield chosen
    finally:
        current.device = previous
