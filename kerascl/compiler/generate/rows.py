"""How work-items share the rows of a reduction."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from kerascl.compiler.generate.blocked import rename
from kerascl.compiler.generate.builder import power_of_two
from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.kernels.contract.lanes import Lanes, lanes_of
from kerascl.kernels.contract.sizes import ceil_div, last_power
from kerascl.kernels.contract.solver import joined
from kerascl.kernels.tuning.machine import of_facts
from kerascl.runtime.device import DeviceInfo

# Work-items of a GPU's group at most for a row, and for one that is read again, if each then has so
# many of its elements: with larger groups fewer rows are under way, and may stay in the cache.
USUAL = 256
MOST_AGAIN = 1024
MANY_EACH = 48
TOGETHER = 16  # values in local memory that one work-item merges
# Elements, or vectors, of a row that is split, for each work-item: of neighbours, and of others,
# which many loads at a time read.
LEAST_EACH = {True: 16, False: 32}
# Of rows of which vectors stay in registers: work-items of a group, so that groups that end make
# room in small steps; elements of each at most; and the part of its registers that holds what was
# read, of as many as it has while a quarter of the work-items run that a unit has room for.
HELD_GROUP = 128
HELD_EACH = 32
HELD_LANES = 32  # work-items of a row, where lanes do not give each other values
HELD_PART = 0.375
# Elements of all rows that a CPU's work-item reads alone where launches are joined, which take such
# only: 16 would take a launch of their own.
FEW = 512
WORDS = ("float", "int", "uint")  # of 32 bits, which lanes exchange


@dataclass(frozen=True)
class Held:
    """What a work-item reads at once of rows that it may keep in registers.

    Attributes:
        vector: neighbours that one load moves.
        nbytes: of an element, of all that is read of each.
        most: elements that may be written out one after the other.
    """

    vector: int
    nbytes: int
    most: int


@dataclass
class Layout:
    """A group has `row_threads` work-items for each of `group_rows` rows, and a row has `splits`
    groups.  `threads_first` has neighbouring work-items read one row."""

    group_rows: int
    row_threads: int
    splits: int
    threads_first: bool
    per_thread: int = 0  # elements that a work-item keeps in registers, if it does
    lanes: int = 1  # elements of the vectors that it reads
    near: int = 1  # neighbours that it reads and stores together
    ragged: bool = False  # whether rows begin or end beside such vectors
    held: bool = False  # whether they are vectors of short rows
    wide: int = 1  # neighbouring rows that a work-item has
    chunk: int = 0  # elements of a split, where they are not as many as can be
    together: int = 0  # elements of a column that a work-item reads at once, if it is known
    gathers: bool = False  # whether barriers are dearer than reads of local memory
    exchange: Lanes | None = None  # how its lanes give each other values

    def header(self, writer: Writer, rows: int, length: int) -> list[str]:
        """A kernel's first lines: a work-item's place in its group, its row, and its part of it."""
        ctype = writer.index_type
        lines = ["const int lid = get_local_id(0);", *self.places(writer, rows)]
        total = writer.number(length)
        if self.splits > 1:
            chunk = writer.number(self.chunk or ceil_div(length, self.splits))
            lines += [
                f"{ctype} r_begin = ({ctype})get_group_id(1) * {chunk};",
                f"{ctype} r_end = min(({ctype})(r_begin + {chunk}), ({ctype}){total});",
            ]
        else:
            lines += [f"const {ctype} r_begin = 0;", f"const {ctype} r_end = {total};"]
        return lines

    def places(self, writer: Writer, rows: int) -> list[str]:
        """Which row a work-item has, the first one's number, and its place among those of it."""
        ctype, lines = writer.index_type, []
        group_rows, threads = self.group_rows, self.row_threads
        # plain where they can be: compilers that see which neighbours read neighbours make vectors
        if group_rows == threads == 1:
            lines += ["const int rl = 0;", "const int ol = 0;"]
        elif group_rows == 1:
            lines += ["const int rl = lid;", "const int ol = 0;"]
        elif threads == 1:
            lines += ["const int rl = 0;", "const int ol = lid;"]
        elif self.threads_first:
            lines += [f"const int rl = lid % {threads};", f"const int ol = lid / {threads};"]
        else:
            lines += [f"const int ol = lid % {group_rows};", f"const int rl = lid / {group_rows};"]
        row = f"({ctype})get_group_id(0) * {group_rows} + ol"
        row = row if self.wide == 1 else f"{self.wide} * ({row})"
        lines.append(f"const {ctype} row = {row};")
        if rows % (group_rows * self.wide):
            count = writer.number(rows)
            lines += [
                f"const int live = row < {count};",
                f"const {ctype} o = live ? row : {count} - {self.wide};",
            ]
        else:
            lines += ["const int live = 1;", f"const {ctype} o = row;"]
        return lines

    def groups(self, rows: int) -> int:
        """Groups that all rows have, each of their parts."""
        return ceil_div(rows, self.group_rows * self.wide)

    @property
    def shares_columns(self) -> bool:
        """Whether several work-items have parts of several neighbouring columns each."""
        return self.wide > 1 and self.row_threads > 1 and not self.threads_first

    def each(self, length: int) -> int:
        """How many elements of a row, or vectors, a work-item reads."""
        return length // (self.splits * self.row_threads * self.lanes)

    def narrowed(self) -> Layout:
        """The layout in which the same groups have the same rows, one a work-item."""
        rows, threads = self.group_rows * self.wide, self.row_threads // self.wide
        return replace(self, group_rows=rows, row_threads=threads, wide=1, exchange=None)

    def owner(self) -> str:
        """The condition of the one work-item that stores a row's results."""
        return "live" if self.row_threads == 1 else "live && rl == 0"

    def combine(self, scope: Scope, register: Any, local_lines: list[str]) -> None:
        """Merge the registers of a row's threads; all threads then hold the result."""
        if self.row_threads == 1:
            return
        _, states = register
        lanes = self._lanes(states)
        places = self.row_threads // lanes
        own = "lid"
        if lanes > 1:
            assert self.exchange is not None
            scope.writer.helper(self.exchange.helper)
            self._merge_lanes(scope, register, lanes)
            own = f"ol * {places} + rl / {lanes}"
        if places == 1:
            return
        for ctype, name in states:
            local_lines.append(f"__local {ctype} l{name}[{self.group_rows * places}];")
        stores = [f"l{name}[{own}] = {name};" for _, name in states]
        scope.lines += [f"if (rl % {lanes} == 0) {{", *stores, "}"] if lanes > 1 else stores
        scope.lines.append("barrier(CLK_LOCAL_MEM_FENCE);")
        if places > lanes:  # else lanes take what is left
            if self.gathers:
                self._gather(scope, register, places)
            else:
                self._halve(scope, register)
        self.take(scope, register)

    def take(self, scope: Scope, register: Any) -> None:
        """Read into each of a row's threads what `combine` has left."""
        spec, states = register
        lanes = self._lanes(states)
        places = self.row_threads // lanes
        if places == 1:
            assert self.exchange is not None
            own = [self.exchange.other(ctype, name, 0) for ctype, name in states]
            scope.lines += [f"{name} = {x};" for (_, name), x in zip(states, own, strict=True)]
        elif places <= lanes:
            start = f"ol * {places} + rl % {places}"
            scope.lines += [f"{name} = l{name}[{start}];" for _, name in states]
            self._merge_lanes(scope, register, places)
        elif self.gathers:
            start, left = f"ol * {places}", _counts(places)[-1]
            scope.lines += [f"{name} = l{name}[{start}];" for _, name in states]
            others = [f"l{name}[{start} + k]" for _, name in states]
            scope.lines.append(
                f"for (int k = 1; k < {left}; ++k) {{ {merged(spec, states, others)} }}"
            )
        else:
            start = f"lid - rl * {1 if self.threads_first else self.group_rows}"
            scope.lines += [f"{name} = l{name}[{start}];" for _, name in states]

    def _merge_lanes(self, scope: Scope, register: Any, count: int) -> None:
        """Merge the registers of so many neighbours; all of them then hold the result."""
        spec, states = register
        assert self.exchange is not None
        for bit in reversed(range(count.bit_length() - 1)):
            others = [self.exchange.other(ctype, name, 1 << bit) for ctype, name in states]
            scope.lines.append(f"{{ {merged(spec, states, others)} }}")

    def _lanes(self, states: list[tuple[str, str]]) -> int:
        """How many of a row's threads merge these registers lane by lane."""
        if self.exchange is None or any(ctype not in WORDS for ctype, _ in states):
            return 1
        return min(self.exchange.width, self.row_threads)

    def _halve(self, scope: Scope, register: Any) -> None:
        """Half of the threads merge the other half's values, until one has the result."""
        spec, states = register
        stride = 1 if self.threads_first else self.group_rows
        others = [f"l{name}[lid + d * {stride}]" for _, name in states]
        scope.lines += [
            f"for (int d = {self.row_threads // 2}; d > 0; d >>= 1) {{",
            "  if (rl < d) {",
            f"    {merged(spec, states, others)}",
            *(f"    l{name}[lid] = {name};" for _, name in states),
            "  }",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            "}",
        ]

    def _gather(self, scope: Scope, register: Any, places: int) -> None:
        """Fewer threads merge several values each, until all may merge what is left."""
        spec, states = register
        for before, after in itertools.pairwise(_counts(places)):
            own = f"ol * {places} + rl"
            others = [f"l{name}[{own} + k * {after}]" for _, name in states]
            first = [f"{name} = l{name}[{own}];" for _, name in states]
            scope.lines += [
                f"if (rl < {after}) {{",
                *(f"  {line}" for line in first),
                f"  for (int k = 1; k < {before // after}; ++k) "
                f"{{ {merged(spec, states, others)} }}",
                *(f"  l{name}[{own}] = {name};" for _, name in states),
                "}",
                "barrier(CLK_LOCAL_MEM_FENCE);",
            ]


def merged(spec: Any, states: list[tuple[str, str]], others: list[str]) -> str:
    """Statements that merge others' registers, given as expressions, into one's own."""
    taken = [f"const {c} t{name} = {x};" for (c, name), x in zip(states, others, strict=True)]
    names = {f"t{k}": f"t{name}" for k, (_, name) in enumerate(states)}
    return " ".join([*taken, rename(spec.combine, states, names)])


def _counts(places: int) -> list[int]:
    """How many values of a row are left after each step in local memory."""
    found = [places]
    while found[-1] > TOGETHER:
        found.append(found[-1] // max(2, min(TOGETHER, found[-1] // TOGETHER)))
    return found


def layout_of(
    rows: int,
    length: int,
    threads_first: bool,
    whole: bool,
    info: DeviceInfo,
    per_thread: int = 0,
    lanes: int = 1,
    again: bool = False,
    held: Held | None = None,
) -> Layout:
    """The layout of `rows` rows of `length` elements on a device.

    Args:
        threads_first: whether neighbouring elements of memory belong to one row.
        whole: whether a row must not be split.
        per_thread: how many elements a work-item may keep in registers, if rows are short.
        lanes: elements of the vectors that one work-item a row reads, if it reads vectors.
        again: whether a row is read several times.
        held: vectors of short rows that a GPU's work-item may keep in registers.
    """
    cpu = info.kind == "cpu"
    most = info.max_work_group_size
    if rows == 1:
        threads_first = True
    if threads_first:
        if again and not cpu:
            most = min(max(USUAL, min(MOST_AGAIN, last_power(length // MANY_EACH))), most)
        else:
            most = min(USUAL, most)
        if lanes > 1:
            group_rows = threads = 1
        elif cpu:
            few = joined() and rows * length <= FEW
            threads = 16 if length >= 32 and not few else 1
            group_rows = 1 if threads > 1 or few else min(64, power_of_two(rows))
        else:
            threads = min(most, max(1, power_of_two(length) // 4))
            group_rows = max(1, min(most // threads, power_of_two(rows)))
        kept = _held_layout(rows, length, most, info, held) if held else None
        kept = kept or _register_layout(rows, length, most, info, per_thread)
        if kept is not None and lanes == 1:
            return _agreeing(kept, info)
    elif cpu:
        group_rows, threads = min(64, power_of_two(rows)), 1
    else:
        # 32 neighbours read whole lines of memory: a third faster than eight on an H200
        most = min(512, most)
        group_rows = min(32, power_of_two(rows))
        threads = max(1, min(most // group_rows, power_of_two(length) // 4))
    splits = 1
    if not whole:
        groups = ceil_div(rows, group_rows)
        wanted = info.compute_units * (4 if cpu else 8)
        if groups < wanted:
            # parts are added up at the end: split only where each is long
            shortest = threads * lanes * LEAST_EACH[threads_first]
            splits = max(1, min(-(-wanted // groups), length // shortest))
    layout = Layout(group_rows, threads, splits, threads_first, lanes=lanes)
    return _agreeing(layout, info)


def _agreeing(layout: Layout, info: DeviceInfo) -> Layout:
    """A layout, with the way in which a row's threads agree on a result there."""
    if info.kind != "gpu" or not layout.threads_first:
        return layout
    exchange = lanes_of(info)
    if exchange is not None and layout.group_rows * layout.row_threads % exchange.width:
        exchange = None
    return replace(layout, gathers=True, exchange=exchange)


def few_rows(rows: int, info: DeviceInfo) -> bool:
    """Whether each row has a compute unit for itself, so that it counts how long one takes."""
    return info.kind == "gpu" and rows <= info.compute_units


def _held_layout(
    rows: int, length: int, most: int, info: DeviceInfo, held: Held
) -> Layout | None:
    """The layout of many rows of a few vectors a work-item: the fewest work-items whose registers
    hold a row, a sub-group at best, which agrees without local memory and barriers, and for which
    what each does for a row rather than for an element counts least."""
    lanes = lanes_of(info)
    machine = of_facts(info)
    registers = min(4 * machine.registers / machine.resident, info.registers or math.inf)
    room = 4 * HELD_PART * registers  # bytes
    vectors = ceil_div(length, held.vector)
    threads = min(lanes.width if lanes else HELD_LANES, last_power(vectors))
    while 1 < threads <= min(most, vectors):
        each = ceil_div(vectors, threads) * held.vector
        group_rows = max(1, min(most, HELD_GROUP) // threads)
        fits = each <= min(held.most, HELD_EACH) and each * held.nbytes <= room
        if fits and rows >= group_rows * 2 * info.compute_units:
            return Layout(
                group_rows, threads, 1, True, ceil_div(length, threads), held=True
            )
        threads *= 2
    return None


def _register_layout(
    rows: int, length: int, most: int, info: DeviceInfo, per_thread: int
) -> Layout | None:
    """The layout where a row is read once, if it is short enough, and there are many rows or so few
    that each has a compute unit for itself.

    On GPUs fewer threads take fewer steps and barriers to agree on a sum, and eight neighbours
    still read a whole sector of memory.  On CPUs a row has one or two vectors of threads.
    """
    if info.kind == "cpu":
        threads = 16 if length <= 256 else 32
        count = -(-length // threads)
        fits = 2 <= count <= per_thread and threads <= most
        return Layout(1, threads, 1, True, count) if fits and rows >= 16 else None
    if few_rows(rows, info):
        threads = min(most, max(1, power_of_two(length) // 4))
        count = -(-length // threads)
        group_rows = max(1, min(most // threads, power_of_two(rows)))
        fits = 2 <= count <= per_thread
        return Layout(group_rows, threads, 1, True, count) if fits else None
    while per_thread >= 4:
        threads = max(8, power_of_two(length) // per_thread)
        group_rows = most // threads
        if group_rows and length > threads and rows >= group_rows * 2 * info.compute_units:
            return Layout(group_rows, threads, 1, True, -(-length // threads))
        per_thread //= 2
    return None
