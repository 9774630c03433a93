"""Runs that only shapes come from, and what can be known of values while tracing."""

from __future__ import annotations

from contextlib import AbstractContextManager

from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.core.overlay import Overlay


class ShapeTrace(Overlay):
    """An overlay in which only shapes and dtypes matter; nothing that it records is ever run."""

    def __init__(self, guessed: bool = False):
        super().__init__()
        self.guessed = guessed


def shapes_only() -> bool:
    """Whether a `ShapeTrace` is active."""
    return isinstance(current.trace, ShapeTrace)


def untraced() -> AbstractContextManager[None]:
    """A block whose operations are neither captured nor recorded on tapes: they give real
    values."""
    return current.replaced(trace=None, tapes=())


def is_known(array: Array) -> bool:
    """Whether the host can have the value of an array now."""
    trace = current.trace
    return trace is None or trace.knows_value(array._node)
