"""Operands that heavy kernels compute as they read them: an expression instead of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import BufferArg, Scope, Writer
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.symbolic import Expr, Var, unravel, variables
from kerascl.core.node import Node
from kerascl.kernels.contract.computed import Computed, Reading, Term
from kerascl.kernels.contract.epilogue import WORDS
from kerascl.kernels.contract.plan import Ref
from kerascl.runtime.device import DeviceInfo

MOST_BYTES = 16  # that a load takes
_Read = tuple[int, Node, Expr, str]


class Expression(Computed):
    """The operand `node`, which is not among the `stored` ones.

    `slot_of(node)` names the slot of a stored node's memory.
    """

    def __init__(
        self, node: Node, stored: set[int], info: DeviceInfo, slot_of: Callable[[Node], str]
    ) -> None:
        self._node = node
        self._stored = stored
        self._build = Builder(Cluster("map", node.shape, members=[node]), stored, info, False)
        self._slot_of = slot_of

    def reading(
        self, terms: Sequence[Term], offset: int, neighbours: Sequence[int], joined: bool
    ) -> Reading:
        node = self._node
        writer = Writer(False, self._build.wide, "part")
        outer = Scope(writer)
        scope = _Elements(writer, outer, {terms[0].name})
        start = Expr((), offset)
        for name, size, step in terms:
            if size > 1 and step:
                start = start + Expr(((Var(name, 0, size - 1), step),), 0)
        values = [
            scope.compute(node, unravel(start + near, node.shape), (), self._stored)
            for near in neighbours
        ]
        apart, steady = scope.apart(terms[0].name), scope.steady(terms[0].name)
        if joined:
            scope.join()
        read = [arg.node for arg in writer.args if isinstance(arg, BufferArg)]
        args = tuple(
            Ref(self._slot_of(a.node)) if isinstance(a, BufferArg) else a for a in writer.args
        )
        return Reading(
            params=tuple(p.replace("__global ", "__global const ") for p in writer.params),
            args=args,
            fixed=tuple(outer.lines),
            lines=tuple(scope.lines),
            values=tuple(values),
            helpers=tuple(writer.helpers),
            uses_double=writer.uses_double,
            nbytes=sum(x.nbytes for x in read) / node.size,
            steady=steady,
            apart=apart,
        )


class _Elements(Scope):
    """Statements of a few elements, which read what lies side by side at once."""

    def __init__(self, writer: Writer, parent: Scope, own: set[str]) -> None:
        super().__init__(writer, parent, own)
        # of each read: its line, the memory, the index, the variable
        self._reads: list[_Read] = []
        self._guarded: list[_Read] = []

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        before = len(self.lines)
        name = super().element(node, index, guards)
        if len(self.lines) > before:
            plain = not guards and node.dtype.itemsize in WORDS
            (self._reads if plain else self._guarded).append((before, node, index, name))
        return name

    def steady(self, name: str) -> bool:
        """Whether each read moves on by one element with a variable."""
        return not self._guarded and all(self._step(read[2], name) == 1 for read in self._reads)

    def apart(self, name: str) -> float:
        """Bytes by which a variable's next value moves the place in the largest array; infinity
        where that is not always the same."""
        reads = self._reads + self._guarded
        if not reads:
            return math.inf
        _, node, index, _ = max(reads, key=lambda read: read[1].nbytes)
        return abs(self._step(index, name)) * node.dtype.itemsize

    def _step(self, index: Expr, name: str) -> float:
        """By how much a variable's next value moves an index; infinity where that is not always
        the same."""
        own = self.own or ()
        if any(var.name in own and (var.name != name or not top) for var, top in variables(index)):
            return math.inf
        return sum(k for atom, k in index.terms if isinstance(atom, Var) and atom.name == name)

    def join(self) -> None:
        """Let one load take all neighbours that begin at a multiple of their number."""
        for count in (8, 4, 2):
            blocks: dict[tuple[int, Expr], list[_Read]] = {}
            for read in self._reads:
                _, node, index, _ = read
                apart = node.size % count or any(k % count for _, k in index.terms)
                if not apart and count * node.dtype.itemsize <= MOST_BYTES:
                    first = index - index.const % count
                    blocks.setdefault((id(node), first), []).append(read)
            for (_, first), reads in blocks.items():
                if len(reads) == count:
                    self._load(first, reads)
                    self._reads = [read for read in self._reads if read not in reads]
        self.lines = [line for line in self.lines if line]

    def _load(self, first: Expr, reads: list[_Read]) -> None:
        node, count = reads[0][1], len(reads)
        dtype, word = node.dtype, WORDS[node.dtype.itemsize]
        words, pointer = self.writer.name("words"), self.writer.buffer(node)
        place = f"(__global const {word}*){pointer} + {self.writer.index(first)}"
        lines = [f"const {word}{count} {words} = *(__global const {word}{count}*)({place});"]
        for line, _, index, name in reads:
            lane = index.const - first.const
            lines.append(f"const {word} {name}_ = {words}.s{lane};")
            value = dtype.load.format(p=f"((const {dtype.storage}*)&{name}_)", i="0")
            lines.append(f"const {dtype.compute} {name} = {value};")
            self.lines[line] = ""
        self.lines[min(line for line, *_ in reads)] = " ".join(lines)
