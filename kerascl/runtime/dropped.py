"""What is left of objects once nobody holds them, collected later."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator
from typing import Any


class _Reference(weakref.ref[Any]):
    __slots__ = ("left",)
    left: Any


class Dropped:
    """Keeps something for each of several objects until the object is gone and that is taken.

    It stands in for `__del__`, in which Ctrl-C would be lost: Python ignores what is raised there.
    When an object goes, in whatever thread, one C function is called and no Python code.
    """

    __slots__ = ("_alive", "_note", "gone")

    def __init__(self) -> None:
        self.gone: collections.deque[_Reference] = collections.deque()  # of these `take` tells
        self._note = self.gone.append
        self._alive: set[_Reference] = set()  # a reference must outlive its object

    def watch(self, thing: object, left: object) -> None:
        """Have `take` give `left` once `thing`, which must not be reachable from it, is gone."""
        reference = _Reference(thing, self._note)
        reference.left = left
        self._alive.add(reference)

    def take(self) -> Iterator[Any]:
        """What is left of objects that are gone, each once."""
        while self.gone:
            try:
                reference = self.gone.popleft()
            except IndexError:  # another thread was faster
                return
            self._alive.discard(reference)
            yield reference.left
