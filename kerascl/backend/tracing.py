"""Overlays on the current trace: writes to States that can be taken back, and shape-only runs."""

from __future__ import annotations

import contextlib

from kerascl.core import scope
from kerascl.core.array import Array, State
from kerascl.core.node import Node, topological
from kerascl.core.op import ARGUMENT
from kerascl.core.tape import pause
from kerascl.dtypes import DType


class Overlay:
    """A trace on top of the current one (or of none): assignments to States stay in it.

    ```python
    with Overlay() as overlay:
        ...                     # State.assign changes nothing outside
    overlay.written             # {id(state): (state, value)}
    ```

    While it is active nothing is computed, unless the host asks for a value that is known.
    """

    def __init__(self):
        self.outer = None
        self.written: dict[int, tuple[State, Array]] = {}

    def __enter__(self) -> Overlay:
        self.outer = scope.current.trace
        scope.current.trace = self
        return self

    def __exit__(self, *exception) -> None:
        scope.current.trace = self.outer

    def read(self, state: State) -> Array:
        """The value of a state as seen inside."""
        entry = self.written.get(id(state))
        if entry is not None:
            return entry[1]
        scope.current.trace = self.outer
        try:
            return state.value
        finally:
            scope.current.trace = self

    def write(self, state: State, value: Array) -> None:
        """Note an assignment."""
        self.written[id(state)] = (state, value)

    def knows_value(self, node: Node) -> bool:
        """Whether the host can have the value of a node."""
        if self.outer is not None:
            return self.outer.knows_value(node)
        return all(n.op is not ARGUMENT for n in topological([node]))


class ShapeTrace(Overlay):
    """An overlay in which only shapes and dtypes matter; nothing that it records is ever run."""


def placeholder(shape: tuple[int, ...], dtype: DType) -> Array:
    """An Array without a value, for use in a `ShapeTrace`."""
    return Array(Node(ARGUMENT, (), (-1,), tuple(shape), dtype))


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
