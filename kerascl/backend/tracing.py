"""Runs that only shapes come from, and what can be known of values while tracing."""

from __future__ import annotations

import contextlib

from kerascl.core import scope
from kerascl.core.array import Array
from kerascl.core.overlay import Overlay
from kerascl.core.tape import pause


class ShapeTrace(Overlay):
    """An overlay in which only shapes and dtypes matter; nothing that it records is ever run."""

    def __init__(self, guessed: bool = False):
        super().__init__()
        self.guessed = guessed


def shapes_only() -> bool:
    """Whether a `ShapeTrace` is active."""
    return isinstance(scope.current.trace, ShapeTrace)


@contextlib.contextmanager
def untraced():
    """Operations inside are neither captured nor recorded on tapes: they give real values."""
    trace, scope.current.trace = scope.current.trace, None
    try:
        with pause():
            yield
    finally:
        scope.current.trace = trace


def is_known(array: Array) -> bool:
    """Whether the host can have the value of an array now."""
    trace = scope.current.trace
    return trace is None or trace.knows_value(array._node)
