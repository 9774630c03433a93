"""Which part of a model each node of a trace belongs to: marks along the serial numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from kerascl.core.context import current
from kerascl.core.node import new_serial

GRADIENT = " (gradient)"


class Labels:
    """Names for ranges of serial numbers, from each mark to the next."""

    def __init__(self) -> None:
        self._starts: list[int] = [-1]
        self._names: list[str] = [""]

    def mark(self, name: str) -> None:
        """Nodes made from now on belong to `name`."""
        if name != self._names[-1]:
            self._starts.append(new_serial())
            self._names.append(name)

    def at(self, serial: int) -> str:
        """The name of the node with this serial number."""
        return self._names[bisect_right(self._starts, serial) - 1]

    def through(self, serials: Mapping[int, int]) -> Moved:
        """The same for nodes that stand for others.

        Args:
            serials: of a node, that of the one which it stands for.
        """
        return Moved(self, serials)

    @property
    def last(self) -> str:
        """The name in force."""
        return self._names[-1]


class Moved:
    """Labels of nodes that stand for others."""

    def __init__(self, labels: Labels | Moved, serials: Mapping[int, int]) -> None:
        self._labels = labels
        self._serials = serials

    def at(self, serial: int) -> str:
        """The name of the node with this serial number."""
        return self._labels.at(self._serials.get(serial, serial))

    def through(self, serials: Mapping[int, int]) -> Moved:
        """See `Labels.through`."""
        return Moved(self, serials)


def mark(name: str) -> None:
    """What this thread traces from now on belongs to `name`; without a trace, nothing."""
    if current.labels is not None:
        current.labels.mark(name)
