"""Sums along rows and sums over all rows of the same values in one pass, on GPUs.

As of a layer norm: the gradient of its input takes sums along each row, those of its weights are
sums over all rows.  Work-groups that stay take rows in turns.  A work-item has the same columns of
each, so that it sums these in registers; what the rows of a group left is added up in local memory,
what groups left by a second, small kernel, in a fixed order.  A row's values are asked for while
the row before is computed, as waits of one row after another would leave memory idle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from kerascl.compiler.generate import held, neighbours
from kerascl.compiler.generate.blocked import BLOCKS_FROM, rename
from kerascl.compiler.generate.builder import Builder, Generated, Kernels, promised
from kerascl.compiler.generate.emit import Scope, rounded
from kerascl.compiler.generate.neighbours import Neighbours
from kerascl.compiler.generate.reduced import Reduced, ctypes, native
from kerascl.compiler.generate.reductions import parts_kernel
from kerascl.compiler.generate.rows import HELD_LANES, WORDS, Layout, merged
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.symbolic import linear, unravel, variable
from kerascl.core.node import Node
from kerascl.core.op import Kind, ReductionSpec
from kerascl.kernels.contract.lanes import lanes_of
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import narrowest
from kerascl.kernels.tuning.machine import Machine, of_facts
from kerascl.runtime.device import DeviceInfo

GROUP = 1024  # work-items of a group at most, and of a row
ROW = 512
LEAST_BYTES = 8  # of a vector of what is widest, else memory is read in too many steps
LEAST_TURNS = 3  # rows one after the other, from which sums stay in registers long enough
# Of the registers that a work-item has while a quarter of those run that a unit has room for, the
# part for sums and for two rows of what is read; and about how many others a kernel takes, with
# those of one weight.
PART = 0.6
OTHERS = 48
SCHEDULERS = 4  # of a compute unit: each has its part of the registers, and whole sub-groups
# Reads of a row's values, in the text of a kernel: what they declare, and from where they read.
_PLACE = r"[()x\d_ +*/%]+"
_READ = re.compile(
    r"const (\w+) (vec\d+|val\d+) = "
    rf"((?:\w+\()?(?:\*\(__global const \w+\*\)\(buf\d+ \+ {_PLACE}|buf\d+\[{_PLACE}\])\)?);"
)


@dataclass(frozen=True)
class Turns:
    """How groups take rows.

    Attributes:
        layout: of a group's rows.
        groups: how many there are.
        blocks: of rows, each of which a group takes at once.
    """

    layout: Layout
    groups: int
    blocks: int


class _Crossed:
    """Generates the kernels of one cluster."""

    def __init__(self, cluster: Cluster, stored: set[int], info: DeviceInfo) -> None:
        self.build = Builder(cluster, stored, info, False)
        self.stored = stored
        self.cluster = cluster
        self.info = info
        self.of = Reduced(self.build)
        self.rows, self.length, self.visible = self.of.rows, self.of.length, self.of.visible
        self.levels = self.of.levels()
        reductions = [m for m in cluster.members if m.op.kind is Kind.REDUCTION]
        self.along = [m for m in reductions if id(m) not in cluster.columns]
        self.over = [m for m in reductions if id(m) in cluster.columns]

    def turns(self) -> Turns | None:
        """How groups take rows; None where they cannot, or would do so too few times."""
        info, of = self.info, self.of
        if info.kind != "gpu" or "keeps_choices_wrongly" in info.quirks or not of.read_whole():
            return None
        if not all(map(self._is_simple, self.along)) or not all(map(self._is_sum, self.over)):
            return None
        writer = self.build.writer()
        words = all(kind in WORDS for m in self.along for kind in ctypes(writer, m))
        machine, lanes = of_facts(info), lanes_of(info) if words else None
        row = self._row(lanes.width if lanes else HELD_LANES, machine)
        if row is None:
            return None
        threads, near, registers = row
        each, most = self.length // threads, min(GROUP, info.max_work_group_size)
        registers += each * max(0, self._weights() - 1)
        items = min(machine.resident, machine.registers / (registers + OTHERS))
        whole = SCHEDULERS * HELD_LANES
        group_rows = max(1, int(min(items // whole * whole, most) // threads))
        left = 4 * self.length  # bytes of local memory for each row but the first
        group_rows = min(group_rows, 1 + info.local_mem_bytes // (2 * left))
        layout = Layout(group_rows, threads, 1, True, each, near=near, gathers=True, exchange=lanes)
        slots = info.compute_units * max(1, int(items // (group_rows * threads)))
        blocks = ceil_div(self.rows, group_rows)
        slots *= ceil_div(blocks, slots * BLOCKS_FROM)  # longer sums would lose digits
        turns = ceil_div(blocks, slots)
        # a multiple: second kernels of as many groups are equal, and may become one launch
        groups = min(slots, round_up(ceil_div(blocks, turns), info.compute_units))
        return Turns(layout, groups, blocks) if turns >= LEAST_TURNS else None

    def _row(self, unit: int, machine: Machine) -> tuple[int, int, float] | None:
        """Work-items of a row, the fewest of whose registers that are multiples of `unit`; elements
        of their vectors, the longest that rows allow; and how many registers hold what they read
        and sum.  None where there are none."""
        of, info = self.of, self.info
        streams = held.streams(self.build, of)
        near = neighbours.most(streams, neighbours.MOST, self.length)
        room = min(4 * machine.registers / machine.resident, info.registers or machine.registers)
        most = min(ROW, info.max_work_group_size)
        while near * max(t.itemsize for t in streams) >= LEAST_BYTES:
            for threads in range(unit, most + 1, unit):
                each = self.length // threads
                registers = each * (of.bytes_each() / 2 + len(self.over))
                text = each * self.cluster.statements
                fits = registers <= PART * room and text <= held.STATEMENTS
                if fits and self.length % (threads * near) == 0:
                    return threads, near, registers
            near //= 2
        return None

    def _weights(self) -> int:
        """How many values an element has that all rows read, in registers."""
        found: set[int] = set()
        stack = [x for m in self.over for x in m.inputs]
        seen = {id(x) for x in stack}
        stack += [x for m in self.cluster.members if id(m) not in self.cluster.columns
                  for x in m.inputs]  # fmt: skip
        while stack:
            node = stack.pop()
            if id(node) not in self.build.outside:
                stack += [x for x in node.inputs if id(x) not in seen]
                seen.update(map(id, node.inputs))
            elif node.size == self.length:
                found.add(id(node))
        return len(found)

    def _is_simple(self, reduction: Node) -> bool:
        """Whether a result needs no more than one pass."""
        assert reduction.op.reduction is not None
        spec = reduction.op.reduction(reduction.inputs[0].dtype)
        plain = not spec.scratch and spec.centred is None
        return plain and all(kind == "acc" for kind, _ in spec.states)

    def _is_sum(self, reduction: Node) -> bool:
        """Whether a column's result is one float, of which parts are left."""
        spec = reduction.op.reduction
        assert spec is not None
        one = len(spec(reduction.inputs[0].dtype).states) == 1
        simple = self._is_simple(reduction)
        return simple and one and ctypes(self.build.writer(), reduction) == ["float"]

    def kernels(self) -> Kernels:
        """All launches."""
        turns = self.turns()
        assert turns is not None
        result = Kernels([self._first(turns)])
        nbytes = 4 * turns.groups * self.length
        result.workspace = [nbytes] * len(self.over)
        members = [m for m in self.cluster.members if id(m) in self.cluster.columns]
        axes = self.over[0].attrs[0]
        later = Cluster("reduction", self.cluster.shape, axes, members, {id(m) for m in members})
        later.stores = [m for m in self.cluster.stores if id(m) in later.row]
        later.streamed = self.cluster.streamed
        kinds = ["float"] * len(self.over)
        result.launches.append(parts_kernel(later, self.stored, self.info, kinds, turns.groups))
        return result

    def _first(self, turns: Turns) -> Generated:
        """The kernel that reads the rows."""
        layout = turns.layout
        threads, near, length = layout.row_threads, layout.near, self.length
        writer = self.build.writer(wide=turns.groups * length >= 1 << 31)
        writer.members = self.of.reductions
        ctype, dims = writer.index_type, (self.rows, length)
        outer = Scope(writer)
        outer.lines += _places(layout)
        for copy in range(0, layout.per_thread, near):
            outer.lines.append(f"const {ctype} x1_{copy} = {near} * rl + {copy * threads};")
        sums = self._sums(outer, layout)
        inner = Scope(writer, outer, ["x0"])
        inner.neighbours = outer.neighbours = near_by = Neighbours(near)
        local_lines: list[str] = []
        row = variable("x0", self.rows)
        stages = 1 + max(self.levels[id(m)] for m in self.cluster.members
                         if id(m) not in self.cluster.columns or m in self.over)  # fmt: skip
        for stage in range(stages):
            now = [m for m in self.along if self.levels[id(m)] == stage]
            registers = {id(m): self._declare(inner, m) for m in now}
            taken: list[str] = []
            steps: list[str] = []  # what takes elements into columns' sums
            for copy in range(layout.per_thread):
                lane = copy % near
                column = variable(f"x1_{copy - lane}", length - near + 1) + lane
                full = linear((row, column), dims)
                near_by.at(copy, [f"x1_{copy - lane}"])
                self._stores(inner, stage, full)
                for m in now:
                    x = m.inputs[0]
                    value = inner.value(x, unravel(full, x.shape), (), self.visible)
                    taken.append(_step(registers[id(m)], value))
                for k, m in enumerate(self.over):
                    if self.levels[id(m)] == stage:
                        x = m.inputs[0]
                        value = inner.value(x, unravel(full, x.shape), (), self.visible)
                        steps.append(_step(sums[k][copy], value))
            inner.lines += taken
            # before what others know: then fewer values stay in registers
            inner.lines += ["if (live) {", *(f"  {x}" for x in steps), "}"] if steps else []
            self._agree(inner, layout, [registers[id(m)] for m in now], local_lines)
            for m in now:
                self._finish(inner, m, registers[id(m)])
            inner.neighbours = outer.neighbours = None
            self._row_members(inner, stage + 1, row)
            inner.neighbours = outer.neighbours = near_by
        inner.flush()
        self._loop(outer, inner, turns)
        outer.neighbours = None
        self._leave(outer, layout, sums, local_lines)
        body = "".join(f"  {line}\n" for line in local_lines) + outer.text()
        size = layout.group_rows * threads
        fewest = narrowest(self.info)  # as in columns.py: more lanes would spill
        source = writer.source(
            self.build.name + "_columns", body, promised(size, self.info),
            fewest if fewest >= 16 else 0,
        )  # fmt: skip
        return Generated(source, writer.args, (turns.groups * size, 1), (size, 1))

    def _sums(self, outer: Scope, layout: Layout) -> list[list[Any]]:
        """The registers of each sum over rows, for each column of a work-item."""
        return [[self._declare(outer, m) for _ in range(layout.per_thread)] for m in self.over]

    def _declare(self, scope: Scope, reduction: Node) -> tuple[ReductionSpec, Any]:
        writer = scope.writer
        assert reduction.op.reduction is not None
        spec = reduction.op.reduction(reduction.inputs[0].dtype)
        kinds = ctypes(writer, reduction)
        if kinds == ["float"]:
            spec = native(spec, writer, self.info)
        states = [(kind, writer.name("s")) for kind in kinds]
        for (kind, name), (_, init) in zip(states, spec.states, strict=True):
            scope.lines.append(f"{kind} {name} = {init};")
        return spec, states

    def _stores(self, scope: Scope, stage: int, full: Any) -> None:
        """Store an element of members over the full space."""
        apart = self.cluster.row | self.cluster.columns
        for m in self.cluster.members:
            wanted = id(m) in self.build.writes and id(m) not in apart
            if wanted and self.levels[id(m)] == stage:
                value = scope.compute(m, unravel(full, m.shape), (), self.visible)
                self.build.store(scope, m, full, value, "live")

    def _agree(
        self, scope: Scope, layout: Layout, registers: list[Any], local_lines: list[str]
    ) -> None:
        """Let all work-items of a row know its results, with one barrier where lanes exchange
        values: what they leave alternates between two places."""
        lanes = layout.exchange
        if lanes is None:
            for register in registers:
                layout.combine(scope, register, local_lines)
            return
        places, stores = layout.row_threads // lanes.width, []
        alone = replace(layout, row_threads=lanes.width)
        for register in registers:
            alone.combine(scope, register, local_lines)
            for ctype, name in register[1]:
                if places > 1:
                    room = 2 * layout.group_rows * places
                    local_lines.append(f"__local {ctype} l{name}[{room}];")
                stores.append(f"l{name}[place + rl / {lanes.width}] = {name};")
        if places == 1 or not registers:
            return
        scope.lines += [
            f"if (rl % {lanes.width} == 0) {{", *(f"  {x}" for x in stores), "}",
            "barrier(CLK_LOCAL_MEM_FENCE);",
        ]  # fmt: skip
        for spec, states in registers:
            scope.lines += [f"{name} = l{name}[place];" for _, name in states]
            others = [f"l{name}[place + k]" for _, name in states]
            scope.lines.append(
                f"for (int k = 1; k < {places}; ++k) {{ {merged(spec, states, others)} }}"
            )

    def _finish(self, scope: Scope, reduction: Node, register: Any) -> None:
        spec, states = register
        value = rounded(rename(spec.finish, states, {}), reduction.dtype)
        scope.hold(reduction, scope.define(scope.writer.ctype(reduction.dtype), value))

    def _row_members(self, scope: Scope, level: int, row: Any) -> None:
        """Store what is known of the row."""
        inner = Scope(scope.writer, scope)
        for m in self.cluster.members:
            if id(m) not in self.cluster.row or id(m) not in self.build.writes:
                continue
            reduction = m.op.kind is Kind.REDUCTION
            if self.levels[id(m)] + reduction == level:
                value = (
                    inner.element(m, row, ()) if reduction
                    else inner.compute(m, unravel(row, m.shape), (), self.visible)
                )  # fmt: skip
                self.build.store(inner, m, row, value)
        inner.flush()
        if inner.lines:
            scope.lines += ["if (live && rl == 0) {", *(f"  {x}" for x in inner.lines), "}"]

    def _loop(self, outer: Scope, inner: Scope, turns: Turns) -> None:
        """Over the rows of a group: each asks for what the next one reads."""
        layout, ctype = turns.layout, outer.writer.index_type
        count, groups = layout.group_rows, turns.groups
        divides = self.rows % count == 0
        last = outer.writer.number(self.rows - 1)

        def place(block: str) -> list[str]:
            at = f"({ctype}){block} * {count} + ol"
            at = at if divides else f"min(({ctype})({at}), ({ctype}){last})"
            return [f"const {ctype} x0 = {at};"]

        reads = {line: m for line in inner.lines if (m := _READ.fullmatch(line))}
        rest = [line for line in inner.lines if line not in reads]
        ask = [f"next_{m[2]} = {m[3]};" for m in reads.values()]
        live = "1" if divides else f"({ctype})block * {count} + ol <= {last}"
        lanes = layout.exchange
        ends, size = [], 0
        if lanes is None:
            ends = ["barrier(CLK_LOCAL_MEM_FENCE);"]  # before what was left there is written again
        else:
            size = layout.group_rows * layout.row_threads // lanes.width
        body = [
            f"const int live = {live};",
            *place("block"),
            *([f"const int place = turn * {size} + ol * {size // count};"] if size else []),
            *(f"const {m[1]} {m[2]} = next_{m[2]};" for m in reads.values()),
            f"if (block + {groups} < {turns.blocks}) {{",
            *(f"  {line}" for line in [*place(f"(block + {groups})"), *ask]),
            "}",
            *rest,
            *ends,
        ]
        outer.lines += [
            *(f"{m[1]} next_{m[2]};" for m in reads.values()),
            "{",
            *(f"  {line}" for line in [*place("get_group_id(0)"), *ask]),
            "}",
            *(["int turn = 0;"] if size else []),
            f"for (int block = get_group_id(0); block < {turns.blocks}; block += {groups}) {{",
            *(f"  {line}" for line in body),
            *(["  turn ^= 1;"] if size else []),
            "}",
        ]

    def _leave(
        self, scope: Scope, layout: Layout, sums: list[list[Any]], local_lines: list[str]
    ) -> None:
        """Add up what the rows of a group left, and leave it for the second kernel."""
        writer = scope.writer
        others, threads = layout.group_rows - 1, layout.row_threads
        if others:
            local_lines.append(f"__local float left[{others * self.length}];")
        for k, own in enumerate(sums):
            pointer = writer.workspace(k, "float")
            if others:
                stride = others * threads
                stores = [f"left[{copy * stride} + lid - {threads}] = {states[0][1]};"
                          for copy, (_, states) in enumerate(own)]  # fmt: skip
                scope.lines += [
                    "barrier(CLK_LOCAL_MEM_FENCE);",
                    "if (ol > 0) {", *(f"  {x}" for x in stores), "}",
                    "barrier(CLK_LOCAL_MEM_FENCE);",
                ]  # fmt: skip
            lines = []
            for copy, (spec, states) in enumerate(own):
                if others:
                    text = merged(spec, states, [f"left[{copy * stride} + k * {threads} + rl]"])
                    lines.append(f"for (int k = 0; k < {others}; ++k) {{ {text} }}")
                lane = copy % layout.near
                at = f"x1_{copy - lane} + {lane}"
                group = f"({writer.index_type})get_group_id(0) * {self.length}"
                lines.append(f"{pointer}[{group} + {at}] = {states[0][1]};")
            scope.lines += ["if (ol == 0) {", *(f"  {x}" for x in lines), "}"]


def _places(layout: Layout) -> list[str]:
    """A kernel's first lines: a work-item's place in its group, in its row, and which that is."""
    threads = layout.row_threads
    return [
        "const int lid = get_local_id(0);",
        f"const int rl = lid % {threads};",
        f"const int ol = lid / {threads};",
    ]


def _step(register: Any, value: str) -> str:
    spec, states = register
    return rename(spec.step, states, {"x": f"(({states[0][0]}){value})"})


def pays(info: DeviceInfo, cluster: Cluster, stored: set[int], saved: int) -> bool:
    """Whether one kernel for a cluster is faster than two that both read `saved` bytes."""
    of = _Crossed(cluster, stored, info)
    turns = of.turns()
    if turns is None:
        return False
    left = 4 * turns.groups * of.length * len(of.over)
    return saved > 2 * left  # which is written and read


def kernels(cluster: Cluster, stored: set[int], info: DeviceInfo, generic: bool) -> Kernels:
    """The kernels of a cluster that reduces rows and columns, for which `pays` holds."""
    return _Crossed(cluster, stored, info).kernels()
