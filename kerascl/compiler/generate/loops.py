"""Rows that work-items go through in loops.

A row may begin and end anywhere: what lies beside whole vectors is taken by the last work-items,
which have the fewest of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerascl.compiler.generate import blocked
from kerascl.compiler.generate.blocked import Blocked
from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.compiler.generate.reduced import Reduced
from kerascl.compiler.generate.rows import Layout
from kerascl.compiler.graph.symbolic import Expr
from kerascl.core.op import CONST
from kerascl.ops.movement import IOTA
from kerascl.ops.pointwise import less

CHOICE = re.compile(r"\bval\d+ = .*([?<>&|]|[=!]=|kc[lu]_)")  # a comparison, in a kernel's text
# Reads, in the text of a kernel, that only need to know their element's place; that place; and what
# a line declares.
READ = re.compile(r"const \w+ val\d+ = (\w+\()?buf\d+\[[()x\d_ +*]+\]\)?;")
VECTOR = re.compile(r"const \w+ vec\d+ = \*\(__global const \w+\*\)\((buf\d+) \+ [()x\d_ +*]+;")
PLACE = re.compile(r"const (int|long) (r|q?x|inside)[\d_]* = [^\[]*;")
_DECLARED, _NAME = re.compile(r"(?:const )?\w+ (\w+) = "), re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Row:
    """How a row's elements are taken.

    Attributes:
        place: of an element's number, and whether it is taken alone, the variable of its place,
            its index, the variables that it has and the lines that set them.
        element: reads one into a scope, and gives what then takes it into the reductions.
        together: how many elements a work-item reads before it takes them.
        turn: what takes them instead, given the lines of `element` and their scopes; or None.
        inside: how many elements from the row's first on are in no need of choices that tell them
            from others; 0 if none are.
        reads_first: whether what is read of all comes before what is computed of the first:
            compilers leave a read behind a division.
    """

    outer: Scope
    layout: Layout
    place: Callable[..., Any]
    element: Callable[..., list[str]]
    together: int
    turn: Callable[..., list[str]] | None
    inside: int
    reads_first: bool = False

    def elements(self, count: int, alone: bool = False, end: int = 0) -> list[str]:
        """The lines for so many elements, before `end` if that is known: they are all read before
        the first is stored."""
        near, threads = self.layout.near, self.layout.row_threads
        ctype = self.outer.writer.index_type
        reads, steps, stores, scopes = [], [], [], []
        for copy in range(count):
            r, full, own, decode = self.place(copy, alone=alone, end=end)
            inner = Scope(self.outer.writer, self.outer, own)
            if copy % near:
                before = f"r_{copy - copy % near}" if copy >= near else "r"
                inner.lines.append(f"const {ctype} {r} = {before} + {copy % near};")
            elif copy:
                inner.lines.append(f"const {ctype} {r} = r + {copy * threads};")
            inner.lines.extend(decode)
            steps += self.element(inner, copy, r, full, "live", alone=alone, end=end)
            reads += inner.lines
            stores += inner.stores
            scopes.append(inner)
        if self.turn:
            steps = self.turn(steps, scopes, alone=alone, end=end)
        if self.reads_first:
            early = read_early(reads)
            reads = [*early, *(x for x in reads if x not in early)]
        return reads + steps + stores

    def beside(self) -> list[str]:
        """The lines for the elements that are in no vector of their row."""
        near, ctype = self.layout.near, self.outer.writer.index_type
        return [
            "{",
            f"  const {ctype} tail = r_end - (r_end - head) % {near};",
            f"  const int edge = {self.layout.row_threads - 1} - rl;",
            f"  const {ctype} r = edge < head ? edge : tail + edge - head;",
            "  if (r < r_end) {",
            *(f"    {line}" for line in self.elements(1, alone=True)),
            "  }",
            "}",
        ]


def read_early(lines: list[str], wanted: Callable[[str], bool] | None = None) -> list[str]:
    """Those of a text's lines that read, and that give the places of what they read, as far as they
    need nothing of the other lines.

    Args:
        wanted: which of the lines that read; without it all.
    """
    early: list[str] = []
    later: set[str] = set()
    for line in lines:
        reads = READ.fullmatch(line) or VECTOR.fullmatch(line)
        if (PLACE.fullmatch(line) or (reads and (wanted is None or wanted(line)))) and not (
            later & set(_NAME.findall(line))
        ):
            early.append(line)
        elif declared := _DECLARED.match(line):
            later.add(declared[1])
    return early


def head(writer: Writer, phase: Expr, near: int) -> str:
    """The line that sets how many elements of a row come before its first whole vector.

    Args:
        phase: the place of its first element.
        near: elements of a vector, a power of two.
    """
    return f"const int head = (int)(-{writer.index(phase)} & {near - 1});"


def inside(of: Reduced) -> int:
    """How many elements of each row, from the first on, some choice holds for: the fewest that are
    most of it.  0 where there is none."""
    last, found = len(of.shape) - 1, [0]
    if of.cluster.axes != (last,) or of.shape[-1:] != (of.length,):
        return 0
    for node in of.values():
        if node.op is less.op and node.shape == of.shape and node.inputs[1].op is CONST:
            place, end = node.inputs
            if place.op is IOTA and place.attrs == (last,) and 2 * end.attrs[0] >= of.length:
                found.append(int(end.attrs[0]))
    ends = [end for end in found if 0 < end < of.length]
    return min(ends, default=0)


@dataclass
class Kept:
    """The first vectors of each work-item, which it keeps from a row's first pass to the next.

    Attributes:
        count: how many.
        near: whether they lie in local memory, and not in registers.
        kind, read: a vector's type and where it was read, C texts; empty before.
    """

    count: int
    near: bool
    kind: str = ""
    read: str = ""

    def leave(self, lines: list[str]) -> list[list[str]]:
        """For each vector the lines that take its elements and keep it, if they read but one."""
        found = [match for match in map(_VECTOR.fullmatch, lines) if match]
        if len(found) != 1:
            return []
        (match,) = found
        self.kind, self.read = match["kind"], match["read"]
        at = lines.index(match[0]) + 1
        return [
            [*lines[:at], f"{self._name(k)} = {match['name']};", *lines[at:]]
            for k in range(self.count)
        ]

    def take(self, lines: list[str]) -> list[list[str]]:
        """For each vector the lines, with what was kept instead of what they would read again."""
        count = self.count if self.read else 0
        return [[x.replace(self.read, self._name(k)) for x in lines] for k in range(count)]

    def _name(self, k: int) -> str:
        return f"kept[lid + {k} * get_local_size(0)]" if self.near else f"kept_{k}"

    def declaration(self, items: int) -> str:
        """Declares them, of groups of so many work-items."""
        if self.near:
            return f"__local {self.kind} kept[{self.count * items}];"
        return f"{self.kind} {', '.join(map(self._name, range(self.count)))};"


_VECTOR = re.compile(r"const (?P<kind>\w+) (?P<name>vec\d+) = (?P<read>\*\(__global const .*\));")


def write(
    row: Row, sums: list[Blocked], again: list[str], hint: str, backwards: bool = False,
    kept: Kept | None = None,
) -> None:  # fmt: skip
    """Write the loops from r_begin to r_end.

    Args:
        again: lines that come first where something is chosen.
        hint: to compilers, of loops over blocks.
        backwards: from the end on, of rows of whole vectors, without blocks.
        kept: the first vectors of each work-item, all inside; none where sums are made in blocks.
    """
    outer, layout, together = row.outer, row.layout, row.together
    ctype, threads, near = outer.writer.index_type, layout.row_threads, layout.near
    rest = near - 1 if layout.ragged else 0  # of the last vector, elements that must be there
    found = [(str(row.inside), near - 1, row.inside)] if row.inside else []
    found.append(("r_end", rest, 0))
    parts: list[list[_Body]] = []
    for end, last, known in found:
        bodies: list[_Body] = []
        count = near if parts else together  # few are left after those inside
        while count > near:
            test = f"{end} - r > {(count - near) * threads + last}"
            bodies.append(_Body(row.elements(count, end=known), count, test))
            count = count // 4 if layout.wide > 1 else near
        test = f"{end} - r > {last}" if last else f"r < {end}"
        bodies.append(_Body(row.elements(near, end=known), near, test))
        parts.append(bodies)
    end, _, known = found[0]
    whole = row.elements(together, end=known) if any(own.levels for own in sums) else []
    first = "rl" if near == 1 else f"{near} * rl"
    first = f"head + {first}" if layout.ragged else first
    outer.lines += ["{", f"  {ctype} r = r_begin + {first};"]
    if any(CHOICE.search(line) for bodies in parts for body in bodies for line in body.lines):
        outer.lines += [f"  {line}" for line in again]
    if backwards:
        taken = kept.take(parts[0][-1].lines) if kept else []
        outer.lines += [*_backwards(parts, ctype, threads, near, taken), "}"]
        return
    if kept and not any(own.levels for own in sums):
        for lines in kept.leave(parts[0][-1].lines):
            outer.lines += [*_block(lines), f"  r += {near * threads};"]
    early = -(near - 1) * (threads - 1)  # the last vector of a block begins so much before
    blocks = blocked.loop(sums, threads, together, whole, hint, early, end)
    outer.lines += [f"  {line}" for line in blocks]
    for body in (body for bodies in parts for body in bodies):
        outer.lines += _loop(f"; {body.test}; r += {body.count * threads}", body.lines)
    outer.lines += ["}", *(row.beside() if layout.ragged else [])]


@dataclass(frozen=True)
class _Body:
    """Lines that take `count` elements from r on, as they may where `test` holds."""

    lines: list[str]
    count: int
    test: str


def _loop(head: str, lines: list[str]) -> list[str]:
    return [f"  for ({head}) {{", *(f"    {line}" for line in lines), "  }"]


def _block(lines: list[str]) -> list[str]:
    return ["  {", *(f"    {line}" for line in lines), "  }"]


def _backwards(
    parts: list[list[_Body]], ctype: str, threads: int, near: int, first: list[list[str]]
) -> list[str]:
    """The loops from the end of a row to r: over its parts, of which a later one has the places
    that the one before leaves.

    Args:
        first: what is done at r and at places behind it, where vectors are known.
    """
    step = near * threads
    lines = [
        f"  const {ctype} least = r + {len(first) * step};",
        f"  r += r < r_end ? (r_end - 1 - r) / {step} * {step} : -{step};",
    ]
    for k in reversed(range(len(parts))):
        left = f" && !({parts[k - 1][-1].test})" if k else ""
        for body in parts[k]:
            back = (body.count - near) * threads  # from the last of its places to the first
            begin, test = f"r -= {back}" if back else "", f"r >= least{left}"
            lines += _loop(f"{begin}; {test}; r -= {body.count * threads}", body.lines)
            lines += [f"  r += {back};"] if back else []
    for block in reversed(first):
        lines += [*_block(block), f"  r -= {step};"]
    return lines
