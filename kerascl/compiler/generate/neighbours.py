"""Neighbouring elements that a work-item of a GPU reads and stores as one vector.

A work-item computes each of them by itself.  Where neighbours lie together at a place that is
aligned, their reads become one load, and their stores one store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kerascl.compiler.generate.emit import Scope
from kerascl.compiler.graph.symbolic import ZERO, Expr, Var
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
        phase: the place of a row's first element in memory.
        first: the variable of the first element's place, which `phase` makes a multiple of `count`.
        lane: which of them is computed now.
    """

    count: int
    phase: Expr = ZERO
    first: str = ""
    lane: int = 0
    _read: dict[tuple[int, Expr], str] = field(default_factory=dict)
    _stored: dict[tuple[int, Expr, str], list[tuple[str, str]]] = field(default_factory=dict)

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
        rest = (start - self.phase).terms
        others = [k for atom, k in rest if getattr(atom, "name", "") != self.first]
        whole = all(k % own == 0 for k in others)
        return start if whole and steps.get(self.first) == 1 else None

    def _words(self, dtype: DType) -> int:
        """How many words of 32 bits a vector of smaller elements has: compilers for NVIDIA's cards
        move no more than four elements at once.  0 where it has none."""
        nbytes = self._own(dtype) * dtype.itemsize
        return nbytes // 4 if dtype.itemsize < 4 and nbytes % 4 == 0 else 0

    def read(self, scope: Scope, node: Node, index: Expr) -> str | None:
        """C text of an element of a node's memory, as of a vector; None where it is of none."""
        start = self._start(node, index)
        if start is None:
            return None
        dtype, key = node.dtype, (id(node), start)
        own, words = self._own(dtype), self._words(dtype)
        lane = self.lane % own
        if key not in self._read:
            writer = scope.writer
            name = self._read[key] = writer.name("vec")
            place = f"{writer.buffer(node)} + {writer.index(start)}"
            kind = _words_type(words) or f"{dtype.storage}{own}"
            scope.lines.append(f"const {kind} {name} = *(__global const {kind}*)({place});")
        text = f"{self._read[key]}.s{lane}"
        if words:
            word, part = divmod(lane, 4 // dtype.itemsize)
            text = f"{self._read[key]}.s{word}" if words > 1 else self._read[key]
            text = f"({dtype.storage})({text} >> {8 * dtype.itemsize * part})"
        return dtype.load.replace(PLACE, text).format()

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
        dtype, writer = node.dtype, scope.writer
        own, words = self._own(dtype), self._words(dtype)
        lanes = self._stored.setdefault((id(node), start, condition), [])
        lanes.append((text.replace(PLACE, f"out{self.lane % own}").format(v=value), value))
        if len(lanes) == own:
            kind = _words_type(words) or f"{dtype.storage}{own}"
            exact = [writer.unrounded.get(lane, "") for _, lane in lanes]
            if words and dtype.pair and all(exact):
                made, outs = "", _paired(exact, dtype)
            else:
                outs = [f"out{k}" for k in range(own)]
                made = f"{dtype.storage} {', '.join(outs)}; {'; '.join(x for x, _ in lanes)}; "
                outs = _packed(outs, dtype.itemsize) if words else outs
            place = f"{writer.buffer(node)} + {writer.index(start)}"
            body = f"{made}*(__global {kind}*)({place}) = ({kind})({', '.join(outs)});"
            scope.stores.append(f"if ({condition}) {{ {body} }}" if condition else f"{{ {body} }}")
        return True


def _words_type(words: int) -> str:
    """The C type of so many words, "" of none."""
    return f"uint{words if words > 1 else ''}" if words else ""


def _paired(elements: list[str], dtype: DType) -> list[str]:
    """C texts of the words of elements of 16 bits that are still to be rounded: two at once."""
    pairs = zip(elements[::2], elements[1::2], strict=True)
    return [dtype.pair.format(low=low, high=high) for low, high in pairs]


def _packed(elements: list[str], itemsize: int) -> list[str]:
    """C texts of the words that small elements make."""
    kind, each = {1: "uchar", 2: "ushort"}[itemsize], 4 // itemsize
    parts = [f"(uint)({kind}){x} << {8 * itemsize * (k % each)}" for k, x in enumerate(elements)]
    return [" | ".join(parts[k : k + each]) for k in range(0, len(parts), each)]
