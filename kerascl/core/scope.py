"""What the current thread is doing: its trace, tapes and device; and the execution hook.

`core` and `ops` never see OpenCL.  They reach it through `engine()`, which
`kerascl/__init__` installs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kerascl import config
from kerascl.dtypes import DType, float32

# Guards the graph and the places of States: evaluation turns nodes into data in place, and Keras
# runs callbacks, which read metrics, on another thread.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not wait for a thread that it does not have
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Engine(Protocol):
    """What executes graphs; implemented by the compiler room."""

    def evaluate(self, nodes: list) -> None:
        """Give every node a buffer."""

    def to_host(self, node) -> np.ndarray:
        """A copy of a node's value; waits for the device."""

    def to_hosts(self, nodes: list) -> list[np.ndarray]:
        """Copies of several values; waits once."""

    def from_host(self, value: np.ndarray, device) -> Any:
        """A buffer holding the contiguous `value`."""

    def default_device(self) -> Any:
        """The device used where none is named."""

    def find_device(self, name: str) -> Any:
        """A device by name."""

    def matrix_units(self, device) -> bool:
        """Whether products on the device run on units far faster than its ordinary arithmetic."""

    def matrix_attention(self, device) -> bool:
        """Whether attention's kernels run on them, too."""

    def memory_bytes(self, device) -> int:
        """The device's memory."""

    def copy_buffer(self, buffer, device) -> Any:
        """A new buffer with what lies in another one."""

    def copy_into(self, source, target, device) -> None:
        """Copy what lies in one buffer into another one of the same size."""


class _Thread(threading.local):
    def __init__(self):
        self.trace = None
        self.labels = None
        self.tapes: tuple = ()
        self.checked = False  # whether indices out of range raise: in eager steps of Keras
        self.lanes: tuple = ()  # of the vmaps whose functions run now
        self.device = None
        self.precision: str | None = None


current = _Thread()


def steady(function: Callable) -> Callable:
    """`function`, after whose exceptions the thread does again what it did before it.

    A KeyboardInterrupt may come where the end of a `with` block, which should see to that, is just
    about to run and then does not.
    """

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        before = current.__dict__.copy()
        try:
            return function(*args, **kwargs)
        except BaseException:
            current.__dict__.update(before)
            raise

    return wrapped


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


PRECISIONS = ("high", "highest")
_precision: list[str] = []


def _checked(name: str) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"precision must be 'high' or 'highest', not {name!r}")
    return name


def precision() -> str:
    """How exact float32 products and convolutions are: that of the innermost `precision_scope`,
    else of `set_precision`, else KERASCL_PRECISION."""
    if current.precision is not None:
        return current.precision
    return _precision[0] if _precision else config.precision()


def product_precision(dtype: DType) -> str:
    """The precision to note in a product of `dtype`; one word for all dtypes that know one only."""
    return precision() if dtype is float32 else "high"


def set_precision(name: str) -> None:
    """Choose how exact float32 matrix products and convolutions are from now on, in all threads.

    Args:
        name: "high" lets matrix units round float32 inputs to TF32 (10 bits of mantissa) or
            better; "highest" keeps true float32 accuracy.  Sums are float32 in both.

    Raises:
        ValueError: for another name.
    """
    _precision[:] = [_checked(name)]


@contextlib.contextmanager
def precision_scope(name: str):
    """`set_precision` for the operations (and their gradients) of a block, in this thread."""
    previous, current.precision = current.precision, _checked(name)
    try:
        yield
    finally:
        current.precision = previous
