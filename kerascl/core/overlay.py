"""Traces on top of the current one: assignments to States that can be taken back."""

from __future__ import annotations

from typing import Any

from kerascl.core.array import Array, State
from kerascl.core.context import Trace, current
from kerascl.core.holders import enrol
from kerascl.core.node import Node, is_closed, new_serial
from kerascl.core.op import ARGUMENT
from kerascl.dtypes import DType


class Overlay:
    """A trace on top of the current one (or of none): assignments to States stay in it.

    ```python
    with Overlay() as overlay:
        ...                     # State.assign changes nothing outside
    overlay.written             # {id(state): (state, value)}
    ```

    While it is active nothing is computed, unless the host asks for a value that is known.

    Attributes:
        guessed: whether unknown dimensions have made-up sizes.
        start: nodes of what is traced have a larger serial.
    """

    guessed = False
    index_checks: list[tuple[Any, Array, Array]] | None = None

    def __init__(self, start: int | None = None) -> None:
        self.outer: Trace | None = None
        self.written: dict[int, tuple[State, Array]] = {}
        self.start = new_serial() if start is None else start
        enrol(self)

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` where `array` stood; see `core.holders`."""
        for key, (state, value) in self.written.items():
            if value is array:
                self.written[key] = (state, other)

    def __enter__(self) -> Overlay:
        self.outer = current.trace
        current.trace = self
        return self

    def __exit__(self, *exception: object) -> None:
        current.trace = self.outer

    def read(self, state: State) -> Array:
        """The value of a state as seen inside."""
        entry = self.written.get(id(state))
        if entry is not None:
            return entry[1]
        with current.replaced(trace=self.outer):
            return state.value

    def write(self, state: State, value: Array) -> None:
        """Note an assignment."""
        self.written[id(state)] = (state, value)

    def commit(self) -> None:
        """Make the assignments outside; called after the end."""
        for state, value in self.written.values():
            state.assign(value)

    def knows_value(self, node: Node) -> bool:
        """Whether the host can have the value of a node."""
        if self.outer is not None:
            return self.outer.knows_value(node)
        return is_closed(node)


def sizes_are_guessed() -> bool:
    """Whether dimensions of arrays may now have sizes that stand for unknown ones."""
    trace = current.trace
    while isinstance(trace, Overlay):
        if trace.guessed:
            return True
        trace = trace.outer
    return False


def placeholder(shape: tuple[int, ...], dtype: DType) -> Array:
    """An Array without a value, where only shapes matter."""
    return Array(Node(ARGUMENT, (), (-1,), tuple(shape), dtype))
