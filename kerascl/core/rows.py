"""Iteration over arrays: lazy slices, of which the first that the host reads brings all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.core.node import Node, new_serial

MOST_ELEMENTS = 2**14  # of an array that is read whole


class Rows:
    """The slices of a small array along its first axis; a row is one of them and its place."""

    __slots__ = ("_items", "_serials", "_value", "source")

    def __init__(self, source: Node) -> None:
        self.source = source
        self._value: np.ndarray | None = None
        self._items: list[Any] = []
        # Their nodes count as made now: they are no part of a captured function that asks for one.
        self._serials = new_serial(), new_serial()

    def read(self, place: int) -> Any:
        """A slice's value on the host: a view, or a scalar of NumPy's."""
        if self._value is None:
            self._value = current.engine.to_host(self.source)
            if self._value.ndim == 1:
                self._items = self._value.tolist()
        return self._value[place]

    def item(self, place: int) -> Any:
        """The only element of a slice, as a Python scalar."""
        return self._items[place] if self._items else self.read(place).item()

    def node(self, place: int) -> Node:
        """A slice in the graph."""
        whole = Array.__new__(Array)
        whole._node = self.source  # of which another Array is the handle
        with current.replaced(trace=None, labels=None, tapes=(), tracers=()):
            found: Node = whole[place]._node
        made, serials = found, list(self._serials)
        while made is not self.source:
            made.serial = serials.pop()
            (made,) = made.inputs
        return found


def iterate(array: Array) -> Iterator[Array]:
    """The slices along the first axis, lazy ones; of a small array the host reads all at once."""
    if not array.shape:
        raise TypeError("iteration over an array of shape ()")
    return _slices(array)


def _slices(array: Array) -> Iterator[Array]:
    small = array.size <= MOST_ELEMENTS
    rows = Rows(array._node)
    here = current.__dict__  # of this thread: read for every row, and slowly through `current`
    for place in range(array.shape[0]):
        if not small or here["trace"] is not None or here["tracers"]:
            yield array[place]
            continue
        if rows.source is not array._node:  # assigned meanwhile
            rows = Rows(array._node)
        found = array[place] if here["tapes"] else Array.__new__(Array)
        found.__dict__["_row"] = rows, place
        yield found
