"""Runs that only shapes come from, and what can be known of values while tracing."""

from __future__ import annotations

from kerascl.core import scope
from kerascl.core.array import Array
from kerascl.core.overlay import Overlay


class ShapeTrace(Overlay):
    """An overlay in which only shapes and dtypes matter; nothing that it records is ever run."""

    def __init__(self, guessed: bool = False):
        super().__init__()
        self.guessed = guessed


def shapes_only() -> bool:
    """Whether a `ShapeTrace` is active."""
    return isinstance(scope.current.trace, ShapeTrace)


class untraced:
    """Operations inside are neither captured nor recorded on tapes: they give real values."""

    def __enter__(self) -> None:
        self._before = scope.current.trace, scope.current.tapes
        scope.current.trace, scope.current.tapes = None, ()

    def __exit__(self, *exception) -> None:
        scope.current.trace, scope.current.tapes = self._before


def is_known(array: Array) -> bool:
    """Whether the host can have the value of an array now."""
    trace = scope.current.trace
    return trace is None or trace.knows_value(array._node)
