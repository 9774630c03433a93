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
MOST = 4  # elements of a vector
PLACE = "{p}[{i}]"  # in a dtype's templates


def fits(dtype: DType, count: int) -> bool:
    """Whether vectors of so many can be moved as one: as they lie, not by functions for halves."""
    alike = PLACE in dtype.load and PLACE in dtype.store and not dtype.is_complex
    return alike and dtype.itemsize * count <= VECTOR_BYTES


def most(read: Iterable[DType], each: int, length: int) -> int:
    """How many neighbours in a row of `length` elements, of which a work-item takes `each`, it may
    take together; of dtypes `read`."""
    count = min(MOST, VECTOR_BYTES // max((t.itemsize for t in read), default=VECTOR_BYTES))
    while count > 1 and (each % count or length % count):
        count //= 2
    return max(1, count)


@dataclass
class Neighbours:
    """The vectors of a work-item.

    Attributes:
        count: elements of a vector.
        first: the variable of the first element's place, a multiple of `count`.
        lane: which of them is computed now.
    """

    count: int
    first: str = ""
    lane: int = 0
    _read: dict[tuple[int, Expr], str] = field(default_factory=dict)
    _stored: dict[tuple[int, Expr, str], list[str]] = field(default_factory=dict)

    def at(self, element: int, variables: list[str]) -> None:
        """Turn to an element, of whose vector the first has its place in the one of `variables`;
        to element 0 where new statements begin."""
        self.lane, (self.first,) = element % self.count, variables
        if element == 0:
            self._read.clear()
            self._stored.clear()

    def _start(self, node: Node, index: Expr) -> Expr | None:
        """The index of the vector that has an element; None where there is none."""
        start = index - self.lane
        if not fits(node.dtype, self.count) or start.const % self.count:
            return None
        steps = {atom.name: k for atom, k in start.terms if isinstance(atom, Var)}
        others = [k for atom, k in start.terms if getattr(atom, "name", "") != self.first]
        whole = all(k % self.count == 0 for k in others)
        return start if whole and steps.get(self.first) == 1 else None

    def _of(self, text: str, vector: str) -> str:
        """The template of a load or store, of the lane of a vector."""
        return text.replace(PLACE, f"{vector}.s{self.lane}")

    def read(self, scope: Scope, node: Node, index: Expr) -> str | None:
        """C text of an element of a node's memory, as of a vector; None where it is of none."""
        start = self._start(node, index)
        if start is None:
            return None
        key = id(node), start
        kind = f"{node.dtype.storage}{self.count}"
        if key not in self._read:
            writer = scope.writer
            name = self._read[key] = writer.name("vec")
            place = f"{writer.buffer(node)} + {writer.index(start)}"
            scope.lines.append(f"const {kind} {name} = *(__global const {kind}*)({place});")
        return self._of(node.dtype.load, self._read[key]).format()

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
        lanes = self._stored.setdefault((id(node), start, condition), [])
        lanes.append(self._of(text, "out").format(v=value))
        if len(lanes) == self.count:
            kind, writer = f"{node.dtype.storage}{self.count}", scope.writer
            place = f"{writer.buffer(node)} + {writer.index(start)}"
            body = f"{kind} out; {'; '.join(lanes)}; *(__global {kind}*)({place}) = out;"
            scope.stores.append(f"if ({condition}) {{ {body} }}" if condition else f"{{ {body} }}")
        return True
