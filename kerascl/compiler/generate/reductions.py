"""Kernels of reductions, with what feeds them and what follows."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

from kerascl.compiler.generate import blocked, columns, held, loops, online, second, space, vectors
from kerascl.compiler.generate.blocked import BLOCK, Blocked, rename
from kerascl.compiler.generate.builder import Builder, Generated, Kernels, promised
from kerascl.compiler.generate.emit import Scope, rounded
from kerascl.compiler.generate.loops import Kept
from kerascl.compiler.generate.neighbours import Neighbours
from kerascl.compiler.generate.online import Online
from kerascl.compiler.generate.reduced import Reduced, ctypes, native
from kerascl.compiler.generate.rows import Layout, few_rows, layout_of
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.symbolic import ZERO, Expr, linear, unravel, variable
from kerascl.core.node import Node
from kerascl.core.op import Kind, ReductionSpec
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.ops.views import SUM_OP
from kerascl.runtime.device import DeviceInfo

# Elements of a short row that a work-item keeps in registers (a power of two), and of all that it
# reads: more of few rows, which would wait for each read again.  CPUs' compilers save registers at
# each barrier.
IN_REGISTERS = {"gpu": (8, 24), "few": (32, 32), "cpu": (16, 16)}
STATEMENTS = 1024  # of all elements that are written out one after the other
# A negation, a factor that compilers make one of, or a function that may have either.
_NEGATION = re.compile(r"\bval\d+ = .*([^\w)\]\s]\s*-\s*[A-Za-z_(]|\(-[01](\.0*)?f?\)|kcu_)")

_SUM = ReductionSpec((("acc", "0"),), "s0 += x;", "s0 += t0;")


class _Reduction:
    """Generates the kernels of one cluster."""

    def __init__(self, cluster: Cluster, stored: set[int], info: DeviceInfo, generic: bool) -> None:
        self.build = Builder(cluster, stored, info, generic)
        self.cluster = cluster
        self.info = info
        self.of = of = Reduced(self.build)
        self.rows, self.length, self.visible = of.rows, of.length, of.visible
        self.results: dict[int, str] = {}  # of each reduction, the variable that holds it
        self.read = 0  # lines up to where a row is read that stays in registers
        self.kept: Kept | None = None
        self.levels = of.levels()
        self.column = ""  # the variable of the last dimension
        self.phase = ZERO  # see Neighbours

    def kernels(self) -> Kernels:
        if self.rows == 0:
            return Kernels()
        if self.length == 0:
            dims: tuple[int, ...] = (self.rows,)
            marks = [False]
        else:
            dims, marks = self.of.dims()
        if not dims:
            dims, marks = (1,), [True]
        per_thread = self._per_thread()
        result = self._fitted(dims, marks, per_thread)
        wrong = per_thread > 0 and "keeps_choices_wrongly" in self.info.quirks
        body = result.launches[0].source.body
        if wrong and (loops.CHOICE.search(body) or _NEGATION.search(body)):
            return self._fitted(dims, marks, 0)
        return result

    def _fitted(self, dims: tuple[int, ...], marks: Any, per_thread: int) -> Kernels:
        whole = self.cluster.staged or self.length == 0
        layout = layout_of(
            self.rows, self.length, marks[-1], whole, self.info, per_thread,
            again=self.of.is_again(), held=held.vectors(self.build, self.of, marks[-1], per_thread),
        )  # fmt: skip
        for _ in range(2):
            fixed = {d for d in range(len(dims) - 1) if marks[d] != marks[d + 1]}
            result, indices = self._write(dims, marks, layout)
            joined = space.mergeable(dims, indices, fixed)
            if not any(joined):
                break
            marks = [marks[0]] + [m for m, j in zip(marks[1:], joined, strict=True) if not j]
            dims = space.merge(dims, joined)
        each = layout.per_thread or held.turn(self.build, self.of, layout, STATEMENTS)
        if each == 1:  # in a loop, one vector after the other
            each = layout.each(self.length)
        near = held.together(self.build, self.of, dims, marks, layout, each)
        ragged = held.ragged(self.build, self.of, marks, layout, each)
        if ragged > near:
            return self._write(dims, marks, replace(layout, near=ragged, ragged=True))[0]
        if near > 1:
            if layout.held:
                count = ceil_div(self.length, layout.row_threads * near) * near
                layout = replace(layout, per_thread=count)
                wide = held.several(self.build, self.of, dims, marks, layout)
                layout = replace(layout, wide=wide)
            return self._write(dims, marks, replace(layout, near=near))[0]
        beside = columns.found(self.build, self.of, dims, marks, layout)
        beside = beside or columns.many(self.build, self.of, dims, marks, layout)
        beside = beside or columns.shared(self.build, self.of, dims, marks, layout)
        if beside is not None:
            return self._write(dims, marks, beside)[0]
        return self._in_vectors(dims, marks) or result

    def _in_vectors(self, dims: tuple[int, ...], marks: Any) -> Kernels | None:
        """Rows in vectors, where a CPU's compiler makes none; None where that cannot be."""
        along = marks[-1] and sum(marks) == 1 and self.length >= vectors.LEAST
        if self.info.kind != "cpu" or self.cluster.staged or not along:
            return None
        rows = self.cluster.row
        if any(id(m) not in rows and id(m) in self.build.writes for m in self.cluster.members):
            return None
        lanes = vectors.width(self.of.values())
        layout = layout_of(self.rows, self.length, True, False, self.info, lanes=lanes)
        try:
            return self._write(dims, marks, layout)[0]
        except vectors.Unfit:
            return None

    def _per_thread(self) -> int:
        """How many elements of a row a work-item may keep; 0 where each is read once anyway."""
        if self.build.generic or not self.cluster.staged or self.length == 0:
            return 0
        kind = "few" if few_rows(self.rows, self.info) else self.info.kind
        per_thread, every = IN_REGISTERS.get(kind, IN_REGISTERS["gpu"])
        while per_thread * len(self.of.read_whole()) > every or not self._is_short(per_thread):
            per_thread //= 2
        return per_thread

    def _is_short(self, copies: int) -> bool:
        """Whether so many elements may be written out one after the other."""
        return copies < 2 or copies * self.cluster.statements <= STATEMENTS

    def _write(
        self, dims: tuple[int, ...], marks: Any, layout: Layout
    ) -> tuple[Kernels, list[Expr]]:
        writer = self.build.writer()
        writer.members = self.of.reductions
        outer = Scope(writer)
        variables = space.axes(dims)
        names = space.names(len(dims))
        self.column = names[-1]
        kept = [d for d, m in enumerate(marks) if not m]
        reduced = [d for d, m in enumerate(marks) if m]
        kept_dims = tuple(dims[d] for d in kept)
        row = linear(tuple(variables[d] for d in kept), kept_dims)
        ctype = writer.index_type
        head = layout.header(writer, self.rows, self.length)
        decoded = space.decode("o", kept_dims, [names[d] for d in kept], writer.number, ctype)
        outer.lines.extend(head + decoded)
        reduced_dims = tuple(dims[d] for d in reduced)

        self.phase = self.of.phase(variables, dims, kept) if layout.ragged else ZERO
        if layout.ragged:
            outer.lines.append(loops.head(writer, self.phase, layout.near))

        def place(
            copy: int, column: int = 0, alone: bool = False, end: int = 0
        ) -> tuple[str, Expr, list[str], list[str]]:
            """Of the element `copy` strides on, or neighbours, and `column` aside: the variable of
            its place along the reduction, its index over the full space, the variables it has and
            the lines that set them.  One `alone` may be any of its row, others before `end`."""
            near = 1 if alone else layout.near
            lane = copy % near
            own = [names[d] + _suffix(copy - lane) for d in reduced]
            coords = list(variables)
            for d, name in zip(reduced, own, strict=True):
                coords[d] = variable(name, (end or dims[d]) - near + 1) + lane
            if layout.wide > 1:
                own_row = variable(names[kept[-1]], dims[kept[-1]] - layout.wide + 1)
                coords[kept[-1]] = own_row + column
            r = "r" + _suffix(copy)
            lines = [] if lane else space.decode(r, reduced_dims, own, writer.number, ctype)
            return r, linear(tuple(coords), dims), own, lines

        result = Kernels()
        local_lines: list[str] = []
        reductions = [m for m in self.cluster.members if m.op.kind is Kind.REDUCTION]
        stages = 1 + max(self.levels[id(m)] for m in self.cluster.members)
        shared = layout.splits > 1 or layout.shares_columns  # columns that work-items merge
        side_by_side: list[dict[int, tuple[ReductionSpec, list[tuple[str, str]]]]]
        side_by_side = [{} for _ in range(layout.wide)]
        registers = side_by_side[0]
        plain = layout.per_thread == 0 and layout.lanes == layout.wide == layout.splits == 1
        pair = online.found(self.build, self.of, self.levels) if plain and self.length else None
        for stage in range(stages):
            now = [m for m in reductions if self.levels[id(m)] == stage]
            side = [
                m
                for m in self.cluster.members
                if id(m) not in self.cluster.row
                and self.levels[id(m)] == stage
                and id(m) in self.build.writes
            ]
            if (now or side) and not (pair and stage == 1):
                decode = space.decode(
                    "again", kept_dims, [names[d] for d in kept], writer.number, ctype
                )
                again = self._place_again(stage, ctype, decode)
                self._loop(outer, now, side, side_by_side, place, layout, stage == 0, again, pair)
            if shared:
                break
            for column, own in enumerate(side_by_side):
                # what is known of one row is not so of the next
                scope = Scope(writer, outer) if layout.wide > 1 else outer
                for reduction in now:
                    self.results.pop(id(reduction), None)
                for reduction in now:
                    if layout.per_thread:
                        here = functools.partial(place, column=column)
                        self._centre(scope, reduction, own, here, layout, local_lines)
                    known = pair and stage == 0 and scope.define("float", pair.running)
                    self._complete(scope, reduction, own[id(reduction)], layout, local_lines)
                    if pair and known:
                        pair.end(scope, self.results[id(reduction)], known)
                self._again(scope, own, layout)
                self._row_members(scope, stage + 1, row + column, layout)
                if scope is not outer:
                    outer.lines += scope.lines
        arrives = layout.splits > 1 and arrival.supported(self.info)
        if shared:
            scope, narrow = outer, layout
            if layout.wide > 1:
                scope, narrow = Scope(writer), layout.narrowed()
                scope.lines += [*narrow.places(writer, self.rows), *decoded]
                made = {id(m): self._declare(scope, m, narrow) for m in reductions}
                every = [[own[id(m)] for m in reductions] for own in side_by_side]
                columns.combine(outer, scope, layout, every, [*made.values()], local_lines)
                registers = made
            if layout.splits == 1:
                self._results(scope, reductions, registers, row, narrow, local_lines)
            else:
                places = self._partial(scope, reductions, registers, narrow, local_lines, result)
            if arrives:
                self._arrive(scope, reductions, places, row, narrow, local_lines)
            if scope is not outer:
                outer.lines += ["{", *("  " + line for line in scope.lines), "}"]
        size = layout.group_rows * layout.row_threads
        if self.kept and self.kept.read:
            local_lines.append(self.kept.declaration(size))
        body = "".join(f"  {line}\n" for line in local_lines) + outer.text()
        whole = layout.groups(self.rows) * size, layout.splits
        lanes = columns.sub_group(layout, self.info)
        source = writer.source(self.build.name, body, promised(size, self.info), lanes)
        launch = Generated(source, writer.args, whole, (size, 1))
        result.launches.insert(0, launch)
        indices = writer.indices
        if layout.splits > 1 and not arrives:
            kinds = [kind for reduction in reductions for kind, _ in registers[id(reduction)][1]]
            last, more = self._second(reductions, layout.splits, kinds)
            result.launches.append(last)
            # rows are decoded alike in both kernels
            indices = indices + more if len(kept_dims) == len(dims) else indices
        return result, indices

    def _declare(
        self, scope: Scope, reduction: Node, layout: Layout
    ) -> tuple[ReductionSpec, list[tuple[str, str]]]:
        assert reduction.op.reduction is not None
        spec = reduction.op.reduction(reduction.inputs[0].dtype)
        if layout.per_thread and spec.centred:
            spec = _SUM  # first; see _centre
        if ctypes(scope.writer, reduction) == ["float"]:
            spec = native(spec, scope.writer, self.info)
        return spec, self._registers(scope, reduction, spec.states)

    def _registers(self, scope: Scope, reduction: Node, wanted: Any) -> list[tuple[str, str]]:
        writer = scope.writer
        made = []
        kinds = ctypes(writer, reduction, [kind for kind, _ in wanted])
        for ctype, (_, init) in zip(kinds, wanted, strict=True):
            name = writer.name("s")
            scope.lines.append(f"{ctype} {name} = {init};")
            made.append((ctype, name))
        return made

    def _loop(
        self,
        outer: Scope,
        reductions: list[Node],
        side: Any,
        columns: Any,
        place: Any,
        layout: Layout,
        first: bool,
        again: list[str],
        pair: Online | None,
    ) -> None:
        """Over the row: take its elements into `reductions` and store those of `side`."""
        if layout.lanes > 1:
            self._vectors(outer, reductions, columns[0], place, layout)
            return
        sums = {}
        start = len(outer.lines)
        for column, registers in enumerate(columns):
            for reduction in reductions:
                register = registers[id(reduction)] = self._declare(outer, reduction, layout)
                sums[id(reduction), column] = self._blocked(outer, reduction, register, layout)
        if self.length == 0:
            return
        ctype = outer.writer.index_type
        pair = pair if first else None
        if pair:
            registers = columns[0][id(pair.total)] = self._declare(outer, pair.total, layout)
            own = sums[id(pair.total), 0] = self._blocked(outer, pair.total, registers, layout)
            pair.begin(outer, columns[0][id(pair.most)][1][0][1], own)

        along = layout.threads_first
        together = layout.near if along else layout.wide
        vectors_of = Neighbours(together, phase=self.phase) if together > 1 else None

        def element(
            scope: Scope, copy: int, r: str, full: Expr, condition: str, alone: bool = False,
            end: int = 0,
        ) -> list[str]:  # fmt: skip
            """Read into `scope`; gives what then takes it into the reductions."""
            steps = []
            near = scope.neighbours = None if alone else vectors_of
            for column in range(layout.wide):
                if column:
                    full = place(copy, column)[1]
                if near and along:
                    near.at(copy, place(copy)[2], again=column > 0)
                elif near:
                    near.at(column, [self.column])
                for node in side:
                    value = scope.compute(node, unravel(full, node.shape), (), self.visible)
                    self.build.store(scope, node, full, value, condition)
                for reduction in reductions:
                    x = reduction.inputs[0]
                    value = scope.value(x, unravel(full, x.shape), (), self.visible)
                    text = sums[id(reduction), column].step(value)
                    steps.append(f"{{ const {ctype} r = {r}; {text} }}" if copy else text)
            scope.neighbours = None
            return steps

        def summed(scope: Scope, copy: int, alone: bool, end: int) -> str:
            """What `pair` sums, read into `scope`."""
            assert pair is not None
            near = scope.neighbours = None if alone else vectors_of
            _, full, own, _ = place(copy, alone=alone, end=end)
            if near:
                near.at(copy, own)
            x = pair.total.inputs[0]
            return scope.value(x, unravel(full, x.shape), (), self.visible)

        if layout.per_thread:
            self._unrolled(outer, element, place, layout, first)
        else:
            turn = functools.partial(pair.turn, outer, value=summed) if pair else None
            alone = len(place(0)[2]) == 1 and layout.splits == 1  # dimension, group
            inside = loops.inside(self.of) if alone and self.info.kind == "gpu" else 0
            together = held.turn(self.build, self.of, layout, STATEMENTS)
            few = few_rows(self.rows, self.info)  # then reads come first
            row = loops.Row(outer, layout, place, element, together, turn, inside, few)
            # CPUs' compilers make better vectors of a loop that stays one
            hint = '_Pragma("nounroll") ' if self.info.kind == "cpu" else ""
            # what a row's first pass read last is still in a cache
            backwards = (
                self.info.kind == "gpu" and along and not (first or reductions or again)
                and layout.wide == layout.splits == 1 and not layout.ragged
            )
            if first:
                self.read, self.kept = start, held.kept(self.build, self.of, layout)
            kept = self.kept if first or backwards else None
            loops.write(row, list(sums.values()), again, hint, backwards, kept)
            if backwards and self.read:
                held.move(outer.lines, start, self.read)
        for own in sums.values():
            outer.lines += own.finish()

    def _blocked(self, outer: Scope, reduction: Node, register: Any, layout: Layout) -> Blocked:
        """Declare what a loop needs beside a reduction's registers."""
        spec, states = register
        made = self._registers(outer, reduction, spec.scratch)
        scratch = {f"u{k}": name for k, (_, name) in enumerate(made)}
        resets = [(name, init) for (_, name), (_, init) in zip(made, spec.scratch, strict=True)]
        per_thread = 0 if layout.per_thread else layout.each(self.length)
        sizes = blocked.sizes(spec.block, per_thread, blocked.BLOCKS_FROM)
        levels = [(size, self._registers(outer, reduction, spec.states)) for size in sizes]
        return Blocked(spec, states, scratch, resets, levels)

    def _vectors(
        self, outer: Scope, reductions: list[Node], registers: Any, place: Any, layout: Layout
    ) -> None:
        """Over the row, in vectors."""
        made = []
        for reduction in reductions:
            registers[id(reduction)] = self._declare(outer, reduction, layout)
            made.append((reduction, *registers[id(reduction)]))
        here = place(0)
        axis = variable(here[2][0], self.length)
        length = layout.each(self.length)
        vectors.loop(outer, made, here, axis, self.visible, layout.lanes, length)

    def _unrolled(
        self, outer: Scope, element: Any, place: Any, layout: Layout, first: bool
    ) -> None:
        """Without a loop: what one stage has read or computed the next ones know."""
        ctype, threads, near = outer.writer.index_type, layout.row_threads, layout.near
        steps: list[Any] = []
        start = len(outer.lines)
        for copy in range(layout.per_thread):
            r, full, _, decode = place(copy)
            # threads beyond the row's end repeat its end, and leave it out
            lane = copy % near
            last = copy >= layout.per_thread - near
            beyond = last and self.length % (threads * near) != 0
            if first:
                at = f"rl + {copy * threads}" if near == 1 else f"{near} * rl + {copy * threads}"
                if lane:
                    at = f"r{_suffix(copy - lane)} + {lane}"
                elif beyond:
                    outer.lines.append(f"const int inside = {at} < r_end;")
                    at = f"inside ? {at} : r_end - {near}"
                outer.lines += [f"const {ctype} {r} = {at};", *decode]
            found = element(outer, copy, r, full, "live && inside" if beyond else "live")
            steps += [f"if (inside) {{ {text} }}" for text in found] if beyond else found
        early = held.early(
            self.build, self.of, outer.writer, layout, outer.lines[start:], first
        )
        taken = set(early)
        outer.lines[start:] = [x for x in outer.lines[start:] if x not in taken]
        if first:
            self.read = start
        outer.lines[self.read : self.read] = early
        self.read = len(outer.lines) if first and not layout.held else self.read + len(early)
        outer.lines += steps
        outer.flush()

    def _centre(
        self, outer: Scope, reduction: Node, registers: Any, place: Any, layout: Layout,
        local_lines: list[str],
    ) -> None:  # fmt: skip
        """Go through a row in registers once more, where the sum was the first of two passes."""
        x = reduction.inputs[0]
        assert reduction.op.reduction is not None
        spec = reduction.op.reduction(x.dtype).centred
        if spec is None:
            return
        same = (m for m in self.cluster.members if m.op is SUM_OP and m.inputs[0] is x)
        total = next((self.results[id(m)] for m in same if id(m) in self.results), None)
        if total is None:  # else the compiler drops this reduction's own
            layout.combine(outer, registers[id(reduction)], local_lines)
            total = registers[id(reduction)][1][0][1]
        states = self._registers(outer, reduction, spec.states)
        acc = states[0][0]
        names = {"n": f"(({acc}){self.length})"}
        names["m"] = outer.define(acc, f"{total} / {names['n']}")

        def element(scope: Scope, copy: int, r: str, full: Expr, condition: str) -> list[str]:
            value = scope.value(x, unravel(full, x.shape), (), self.visible)
            return [rename(spec.step, states, names | {"x": f"(({acc}){value})"})]

        self._unrolled(outer, element, place, layout, False)
        finish = rename(spec.finish, [], names)
        registers[id(reduction)] = (replace(spec, finish=finish), states)

    def _place_again(self, stage: int, ctype: str, decode: list[str]) -> list[str]:
        """Where a compiler keeps choices wrongly from one loop to the next, the lines that find the
        row's place anew in the loop of `stage`: plus what is always 0, which it cannot know."""
        if stage == 0 or "keeps_choices_wrongly" not in self.info.quirks:
            return []
        return [f"const {ctype} again = o + {stage} * ({ctype})get_global_offset(2);", *decode]

    def _complete(
        self,
        scope: Scope,
        reduction: Node,
        register: Any,
        layout: Layout,
        local_lines: list[str],
    ) -> None:
        """Merge a reduction's threads and know its result."""
        layout.combine(scope, register, local_lines)
        self._finish(scope, reduction, register)

    def _again(self, scope: Scope, registers: Any, layout: Layout) -> None:
        """Where a compiler keeps choices wrongly, let none of a row live from barrier to barrier:
        forget what was computed for it, and read all results again that are complete.

        What was read is read again, too: kernels of several stages overwrite nothing that they
        read, and those of one stage only in the lines that come next.
        """
        kept = layout.row_threads > 1 and layout.per_thread == 0
        if not kept or "keeps_choices_wrongly" not in self.info.quirks:
            return
        around: Scope | None = scope
        while around is not None:
            around.memo.clear()
            around = around.parent
        for reduction in self.cluster.members:
            if id(reduction) in registers:
                layout.take(scope, registers[id(reduction)])
                self._finish(scope, reduction, registers[id(reduction)])

    def _finish(self, scope: Scope, reduction: Node, register: Any) -> None:
        spec, states = register
        value = rounded(rename(spec.finish, states, {}), reduction.dtype)
        name = scope.define(scope.writer.ctype(reduction.dtype), value)
        scope.hold(reduction, name)
        self.results[id(reduction)] = name

    def _row_members(
        self, outer: Scope, level: int, row: Expr, layout: Layout, ahead: bool = False
    ) -> list[str]:
        """Store the reductions that are complete at `level`, and the members over the kept axes
        that can be computed now; gives what may be read for them `ahead` of the reductions."""
        found = (m for m in self.cluster.members if m.op.kind is Kind.REDUCTION)
        done = [m for m in found if self.levels[id(m)] == level - 1 and id(m) in self.build.writes]
        ready = [
            m
            for m in self.cluster.members
            if id(m) in self.cluster.row
            and m.op.kind is not Kind.REDUCTION
            and self.levels[id(m)] == level
            and id(m) in self.build.writes
        ]
        if not done and not ready:
            return []
        # one work-item a row, so that a member may overwrite what it reads
        inner = Scope(outer.writer, outer)
        for node in done:
            self.build.store(inner, node, row, self.results[id(node)])
        for node in ready:
            value = inner.compute(node, unravel(row, node.shape), (), self.visible)
            self.build.store(inner, node, row, value)
        early, lines = second.early(inner.lines, layout.owner()) if ahead else ([], inner.lines)
        inner.lines = lines
        inner.flush()
        outer.lines.append(f"if ({layout.owner()}) {{")
        outer.lines.extend("  " + line for line in inner.lines)
        outer.lines.append("}")
        return early

    def _results(
        self, scope: Scope, reductions: list[Node], registers: Any, row: Expr, layout: Layout,
        local_lines: list[str],
    ) -> None:  # fmt: skip
        """Merge the threads of all reductions, finish, and compute what follows."""
        for reduction in reductions:
            self._complete(scope, reduction, registers[id(reduction)], layout, local_lines)
        self._again(scope, registers, layout)
        self._row_members(scope, 1, row, layout)

    def _partial(
        self,
        scope: Scope,
        reductions: list[Node],
        registers: Any,
        layout: Layout,
        local_lines: list[str],
        result: Any,
    ) -> list[str]:
        """Each split leaves its registers in workspace; gives the pointers."""
        writer, pointers = scope.writer, []
        place = f"({writer.index_type})get_group_id(1) * {writer.number(self.rows)} + o"
        for reduction in reductions:
            layout.combine(scope, registers[id(reduction)], local_lines)
            for kind, name in registers[id(reduction)][1]:
                pointer = writer.workspace(len(result.workspace), kind)
                pointers.append(pointer)
                result.workspace.append(columns.sizeof(kind) * layout.splits * self.rows)
                scope.lines.append(f"if ({layout.owner()}) {pointer}[{place}] = {name};")
        return pointers

    def _arrive(
        self,
        outer: Scope,
        reductions: list[Node],
        pointers: list[str],
        row: Expr,
        layout: Layout,
        local_lines: list[str],
    ) -> None:
        """The last group of each row goes on with all splits."""
        writer = outer.writer
        counters, first = writer.counters(layout.groups(self.rows), self.info)
        local_lines.append("__local int last_group;")
        counter = f"{counters} + {first} + get_group_id(0)"
        outer.lines.append(f"if (kcl_last_group({counter}, {layout.splits}, &last_group)) {{")
        inner = Scope(writer, outer)
        inner.lines += ["r_begin = 0;", f"r_end = {layout.splits};"]
        self._gather(inner, reductions, pointers, row, layout, layout.splits, local_lines)
        outer.lines.extend("  " + line for line in inner.lines)
        outer.lines.append("}")

    def _gather(
        self,
        scope: Scope,
        reductions: list[Node],
        pointers: list[str],
        row: Expr,
        layout: Layout,
        splits: int,
        local_lines: list[str],
    ) -> None:
        """Combine what the splits left, finish, and compute what follows."""
        writer = scope.writer
        registers = {id(m): self._declare(scope, m, layout) for m in reductions}
        ctype, threads = writer.index_type, layout.row_threads
        sums: list[Blocked] = []
        for reduction in reductions:
            spec, states = registers[id(reduction)]
            sizes = blocked.sizes(spec.block and BLOCK, splits // threads, blocked.PARTS_FROM)
            levels = [(size, self._registers(scope, reduction, spec.states)) for size in sizes]
            sums.append(Blocked(replace(spec, close=""), states, {}, [], levels))

        rows = writer.number(self.rows)
        read = functools.partial(blocked.parts, sums, pointers, ctype, rows, threads)
        each = ceil_div(splits, threads)
        together, tail = second.turns(layout, splits, self.info)
        scope.lines += [
            f"{ctype} r = r_begin + rl;",
            *blocked.loop(sums, threads, together, read(together, True), ""),
        ]
        if together == 1 or each >= together:
            scope.lines += [
                f"for (; r_end - r > {(together - 1) * threads}; r += {together * threads}) {{",
                *(f"  {line}" for line in read(together, True)),
                "}",
            ]
        if tail:
            scope.lines += ["if (r < r_end) {", *read(tail, False), "}"]
        scope.lines += [line for own in sums for line in own.finish()]
        self._results(scope, reductions, registers, row, layout, local_lines)

    def _gather_at_once(
        self, scope: Scope, reductions: list[Node], pointers: list[str], row: Expr, layout: Layout,
        splits: int, local_lines: list[str],
    ) -> None:  # fmt: skip
        """The same in the layout of `second`, of which the narrowed one's places are known."""
        narrow, start = layout.narrowed(), len(scope.lines)
        made = [self._declare(scope, m, narrow) for m in reductions]
        wide, own = Scope(scope.writer), Scope(scope.writer)
        wide.lines += layout.places(scope.writer, self.rows)
        every = [[self._declare(wide, m, layout) for m in reductions] for _ in range(layout.wide)]
        wide.lines += second.parts(scope.writer, every, pointers, self.rows, splits, layout)
        columns.combine(wide, own, layout, every, made, local_lines, alone=True)
        scope.lines += ["{", *("  " + line for line in wide.lines), "}", *own.lines]
        for reduction, register in zip(reductions, made, strict=True):
            self._finish(scope, reduction, register)
        scope.lines[start:start] = self._row_members(scope, 1, row, narrow, ahead=True)

    def _second(
        self, reductions: list[Node], splits: int, kinds: list[str], copies: int = 1
    ) -> tuple[Generated, list[Expr]]:
        """Second of two kernels: combine the splits, finish, and compute what follows; one of so
        many equal `copies` in a launch."""
        build, rows = self.build, self.rows
        able = len(kinds) == len(reductions) and not build.generic  # a register of each
        found = second.layout(rows, splits, kinds, self.info, copies) if able else None
        layout = found.narrowed() if found else layout_of(rows, splits, rows == 1, True, self.info)
        writer = build.writer()
        writer.members = self.of.reductions
        dims: tuple[int, ...] = (rows,)
        outer = Scope(writer)
        outer.lines.extend(layout.header(writer, rows, splits))
        shapes = [m.shape for m in self.cluster.members if id(m) in self.cluster.row]
        dims = space.refine((rows,), shapes) or (1,)
        names, ctype = space.names(len(dims)), writer.index_type
        outer.lines += space.decode("o", dims, names, writer.number, ctype)
        row = linear(space.axes(dims), dims)
        local_lines: list[str] = []
        pointers = [writer.workspace(k, ctype) for k, ctype in enumerate(kinds)]
        gather = self._gather_at_once if found else self._gather
        gather(outer, reductions, pointers, row, found or layout, splits, local_lines)
        body = "".join(f"  {line}\n" for line in local_lines) + outer.text()
        size = layout.group_rows * layout.row_threads
        lanes = columns.sub_group(found, self.info) if found and found.wide > 1 else 0
        source = writer.source(build.name + "_2", body, promised(size, self.info), lanes)
        made = Generated(source, writer.args, (layout.groups(rows) * size, 1), (size, 1))
        if found and copies == 1:
            made.among = lambda count: self._second(reductions, splits, kinds, count)[0]
        return made, writer.indices


def _suffix(copy: int) -> str:
    """Of the names of the element `copy` strides on."""
    return f"_{copy}" if copy else ""


def parts_kernel(
    cluster: Cluster, stored: set[int], info: DeviceInfo, kinds: list[str], splits: int
) -> Generated:
    """What combines the registers, of C types `kinds`, that `splits` groups left of each row."""
    reductions = [m for m in cluster.members if m.op.kind is Kind.REDUCTION]
    return _Reduction(cluster, stored, info, False)._second(reductions, splits, kinds)[0]


def reduction_kernels(
    cluster: Cluster, stored: set[int], info: DeviceInfo, generic: bool
) -> Kernels:
    """Reductions, with what feeds them and what follows."""
    return _Reduction(cluster, stored, info, generic).kernels()
