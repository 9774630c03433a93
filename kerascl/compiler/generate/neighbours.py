"""Neighbouring elements that a work-item of a GPU reads and stores as one vector.

A work-item computes each of them by itself.  Where neighbours lie together at a place that is
aligned, their reads become one load, and their stores one store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kerascl.compiler.generate.emit import Scope
from kerascl.compiler.graph.symbolic import Expr, Var
from kerascl.core.node import Node
from kerascl.dtypes import DType

VECTOR_BYTES = 16
MOST = 8  # elements of a vector
PLACE = "{p}[{i}]"  # in a dtype's templates


def fits(dtype: DType, count: int) -> bool:
    """Whether vectors of so many can be moved as one: as they lie, not by functions for halves."""
    alike = PLACE in dtype.load and PLACE in dtype.store and not dtype.is_complex
    return alike and dtype.itemsize * count <= VECTOR_BYTES


def most(read: Iterable[DType], each: int, length: int) -> int:
    """How many neighbours in a row of `length` elements, of which a work-item takes `each`, it may
    take together; of dtypes `read`, those that the row's bytes are of."""
    count = min(MOST, VECTOR_BYTES // max((t.itemsize for t in read), default=VECTOR_BYTES))
    while count > 1 and (each % count or length % count):
        count //= 2
    return max(1, count)


@dataclass
class Neighbours:
    """The vectors of a work-item.  Of dtypes of which no load moves so many, vectors are shorter.

    Attributes:
        count: elements that are taken together.
        first: the variable of the first element's place, a multiple of `count`.
        lane: which of them is computed now.
    """

    count: int
    first: str = ""
    lane: int = 0
    _read: dict[tuple[int, Expr], str] = field(default_factory=dict)
    _stored: dict[tuple[int, Expr, str], list[str]] = field(default_factory=dict)

    def at(self, element: int, variables: list[str], again: bool = False) -> None:
        """Turn to an element, of whose vector the first has its place in the one of `variables`;
        to element 0 where new statements begin, unless it is so `again`, of another row."""
        self.lane, (self.first,) = element % self.count, variables
        if element == 0 and not again:
            self._read.clear()
            self._stored.clear()

    def _own(self, dtype: DType) -> int:
        """How many elements a vector of a dtype has."""
        return min(self.count, VECTOR_BYTES // dtype.itemsize)

    def _start(self, node: Node, index: Expr) -> Expr | None:
        """The index of the vector that has an element; None where there is none."""
        own = self._own(node.dtype)
        start = index - self.lane % own
        if own == 1 or not fits(node.dtype, own) or start.const % own:
            return None
        steps = {atom.name: k for atom, k in start.terms if isinstance(atom, Var)}
        others = [k for atom, k in start.terms if getattr(atom, "name", "") != self.first]
        whole = all(k % own == 0 for k in others)
        return start if whole and steps.get(self.first) == 1 else None

    def _of(self, text: str, vector: str, own: int) -> str:
        """The template of a load or store, of the lane of a vector."""
        return text.replace(PLACE, f"{vector}.s{self.lane % own}")

    def read(self, scope: Scope, node: Node, index: Expr) -> str | None:
        """C text of an element of a node's memory, as of a vector; None where it is of none."""
        start = self._start(node, index)
        if start is None:
            return None
        key = id(node), start
        own = self._own(node.dtype)
        kind = f"{node.dtype.storage}{own}"
        if key not in self._read:
            writer = scope.writer
            name = self._read[key] = writer.name("vec")
            place = f"{writer.buffer(node)} + {writer.index(start)}"
            scope.lines.append(f"const {kind} {name} = *(__global const {kind}*)({place});")
        return self._of(node.dtype.load, self._read[key], own).format()

    def store(
        self, scope: Scope, node: Node, index: Expr, value: str, condition: str, text: str
    ) -> bool:
        """Store an element with the others of its vector; False where it is of none.

        Args:
            text: the template of a store.
        """
        start = self._start(node, index)
        if start is None:
            return False
        own = self._own(node.dtype)
        lanes = self._stored.setdefault((id(node), start, condition), [])
        lanes.append(self._of(text, "out", own).format(v=value))
        if len(lanes) == own:
            kind, writer = f"{node.dtype.storage}{own}", scope.writer
            place = f"{writer.buffer(node)} + {writer.index(start)}"
            body = f"{kind} out; {'; '.join(lanes)}; *(__global {kind}*)({place}) = out;"
            scope.stores.append(f"if ({condition}) {{ {body} }}" if condition else f"{{ {body} }}")
        return True
