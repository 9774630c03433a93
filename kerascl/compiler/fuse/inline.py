"""How much text a value takes where it is computed inline."""

from __future__ import annotations

from typing import Any

from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.ops.views import CONCAT, PAD

_NONE: frozenset[int] = frozenset()


class Statements:
    """Of each value, the statements that compute one of its elements.

    They are kept as sets of numbers: what two inputs have in common is written once, if they read
    it at the same place; each view of it is another place.
    """

    def __init__(self) -> None:
        self._of: dict[int, frozenset[int]] = {}

    def count(self, node: Node) -> int:
        """How many statements compute the node."""
        return len(self._of[id(node)])

    def read(self, node: Node) -> None:
        """The node lies in memory."""
        self._of[id(node)] = _NONE if node.op is CONST else frozenset((id(node),))

    def compute(self, node: Node) -> int:
        """The node is computed where it is used; gives how many statements that takes."""
        op = node.op
        own = frozenset((id(node),))
        if op.kind is Kind.POINTWISE:
            found = own.union(*[self._of[id(x)] for x in node.inputs])
        elif op.kind is Kind.GATHER:
            x, *indices = node.inputs
            found = own.union(self._moved(x, id(node)), *[self._of[id(i)] for i in indices])
        elif op is CONCAT:
            start, parts = 0, []
            for x in node.inputs:
                parts.append(self._moved(x, (node.attrs, start, x.shape, node.shape)))
                start += x.shape[node.attrs[0]]
            found = own.union(*parts)
        elif op.kind is Kind.VIEW:
            x = node.inputs[0]
            found = self._moved(x, (op.name, repr(node.attrs), x.shape, node.shape))
            found = found | own if op is PAD else found
        elif op.kind is Kind.REDUCTION:
            found = own | self._of[id(node.inputs[0])]
        else:
            found = own
        self._of[id(node)] = found
        return len(found)

    def _moved(self, x: Node, place: Any) -> frozenset[int]:
        return frozenset([hash((statement, place)) for statement in self._of[id(x)]])
