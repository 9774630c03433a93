"""Operands that heavy kernels compute as they read them: an expression instead of memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import BufferArg, Scope, Writer
from kerascl.compiler.generate.grouped import grouped
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.symbolic import Expr, Var, unravel, variables
from kerascl.core.node import Node
from kerascl.kernels.contract.computed import Computed, Reading, Term
from kerascl.kernels.contract.epilogue import WORDS
from kerascl.kernels.contract.plan import Ref
from kerascl.runtime.device import DeviceInfo

MOST_BYTES = 16  # that a load takes
_Read = tuple[int, Node, Expr, str]


class _Choice(NamedTuple):
    """What a gather gives: a variable, declared in a line, that where a test holds is what it read,
    else a word."""

    line: int
    name: str
    test: str
    other: int


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
        outer = _Elements(writer, None, set(), terms)
        scope = _Elements(writer, outer, {terms[0].name}, terms)
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
            outer.separate()
        read = [arg.node for arg in writer.args if isinstance(arg, BufferArg)]
        lines = (*outer.lines, *scope.lines)
        found = grouped(outer.first, scope.first, terms, lines, values, writer.params)
        args = tuple(
            Ref(self._slot_of(a.node)) if isinstance(a, BufferArg) else a for a in writer.args
        )
        return Reading(
            params=tuple(p.replace("__global ", "__global const ") for p in writer.params),
            args=args,
            first=(*outer.first, *scope.first),
            fixed=tuple(outer.lines),
            lines=tuple(scope.lines),
            values=tuple(values),
            helpers=tuple(writer.helpers),
            uses_double=writer.uses_double,
            nbytes=sum(x.nbytes for x in read) / node.size,
            steady=steady,
            apart=apart,
            grouped=found if joined else None,
        )


class _Elements(Scope):
    """Statements of a few elements, which read what lies side by side at once."""

    def __init__(
        self, writer: Writer, parent: Scope | None, own: set[str], terms: Sequence[Term]
    ) -> None:
        super().__init__(writer, parent, own)
        self._terms = {term.name for term in terms}
        self.first: list[tuple[str, str, str]] = []  # see `Reading`
        # of each read: its line, the memory, the index, the variable
        self._reads: list[_Read] = []
        self._guarded: list[_Read] = []
        # of each choice between what was read and something else: its line, by what was read
        self._choices: dict[str, list[_Choice]] = {}

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        before = len(self.lines)
        name = super().element(node, index, guards)
        if len(self.lines) > before:
            plain = not guards and node.dtype.itemsize in WORDS
            (self._reads if plain else self._guarded).append((before, node, index, name))
        return name

    def choose(self, node: Node, test: str, found: str, other: str) -> str:
        name = super().choose(node, test, found, other)
        if any(found == read[3] for read in self._reads):
            bits = np.asarray(node.op.extra["fill"](node.dtype)).astype(node.dtype.numpy)
            word = int(bits.view(f"u{node.dtype.itemsize}"))
            self._choices.setdefault(found, []).append(
                _Choice(len(self.lines) - 1, name, test, word)
            )
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
        self.separate()

    def separate(self) -> None:
        """Take the loads that need nothing but the terms out of the lines."""
        for line, node, index, name in self._reads:
            if self._alone(index):
                start = f"const {self.writer.ctype(node.dtype)} {name} = "
                assert self.lines[line].startswith(start)
                load = self.lines[line].removeprefix(start).removesuffix(";")
                self.first.append((self.writer.ctype(node.dtype), name, load))
                self.lines[line] = ""
        self.lines = [line for line in self.lines if line]

    def _alone(self, index: Expr) -> bool:
        """Whether an index depends on the terms alone."""
        return all(var.name in self._terms for var, _ in variables(index))

    def _load(self, first: Expr, reads: list[_Read]) -> None:
        """Read neighbours in words of up to four bytes, which compilers do not take apart before
        they must."""
        node, dtype = reads[0][1], reads[0][1].dtype
        nbytes = len(reads) * dtype.itemsize
        wide = max(min(4, nbytes), dtype.itemsize)
        word, part, each = WORDS[wide], WORDS[dtype.itemsize], wide // dtype.itemsize
        vector = f"{word}{nbytes // wide}" if nbytes > wide else word
        words, pointer = self.writer.name("words"), self.writer.buffer(node)
        place = f"(__global const {part}*){pointer} + {self.writer.index(first)}"
        load, lines = f"*(__global const {vector}*)({place})", []
        if self._alone(first):
            self.first.append((vector, words, load))
        else:
            lines.append(f"const {vector} {words} = {load};")
        choice = self._shared_choice(reads)
        if choice is not None:
            read, words = words, self.writer.name("words")
            other = int.from_bytes(choice.other.to_bytes(dtype.itemsize, "little") * each, "little")
            value = f"({choice.test}) ? {read} : ({vector})({other}u)"
            lines.append(f"const {vector} {words} = {value};")
        for line, _, index, name in reads:
            lane = index.const - first.const
            own, at = f"{words}.s{lane // each}" if nbytes > wide else words, lane % each
            if dtype.name == "bfloat16" and each == 2:
                value = f"as_float({own} {'& 0xffff0000u' if at else '<< 16'})"
            else:
                own = f"({part})({own} >> {8 * dtype.itemsize * at})" if at else f"({part}){own}"
                lines.append(f"const {part} {name}_ = {own};")
                value = dtype.load.format(p=f"((const {dtype.storage}*)&{name}_)", i="0")
            lines.append(f"const {dtype.compute} {name} = {value};")
            self.lines[line] = ""
            if choice is not None:
                chosen = self._choices[name][0]
                self.lines[chosen.line] = f"const {dtype.compute} {chosen.name} = {name};"
        self.lines[min(line for line, *_ in reads)] = " ".join(lines)

    def _shared_choice(self, reads: list[_Read]) -> _Choice | None:
        """The choice that is made of each read, if nothing else is: words may be chosen then."""
        text = "\n".join(self.lines)
        found = None
        for *_, name in reads:
            own = self._choices.get(name, [])
            uses = len(re.findall(rf"\b{name}\b", text)) - 1
            if len(own) != 1 or uses != 1 or (found and found[2:] != own[0][2:]):
                return None
            found = found or own[0]
        return found
