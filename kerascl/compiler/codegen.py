"""Clusters to generated kernels: one schedule for maps, one for folds, and epilogues."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from kerascl.compiler import space
from kerascl.compiler.emit import BufferArg, Scope, Source, Writer, rounded
from kerascl.compiler.fuse import Cluster
from kerascl.compiler.symbolic import LOOP_INDEX, Expr, linear, strides_of, unravel
from kerascl.core.node import Node
from kerascl.core.op import FoldSpec, Kind
from kerascl.kernels import arrival
from kerascl.kernels.solver import Epilogue, Ref, VectorStore


@dataclass
class Generated:
    """A kernel launch whose buffers are still nodes."""

    source: Source
    args: list
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass
class Kernels:
    """All launches of one cluster, and the bytes of workspace they share."""

    launches: list[Generated] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)


def _is_wide(cluster: Cluster) -> bool:
    largest = cluster.size
    for member in cluster.members:
        stack = list(member.inputs)
        for x in stack:
            largest = max(largest, x.size)
    return largest >= 2**31


def _shapes(cluster: Cluster, stored: set[int]) -> list[tuple[int, ...]]:
    """Shapes met inside the cluster, for choosing dimensions that avoid divisions."""
    found: dict[tuple[int, ...], None] = {}
    seen: set[int] = set()
    stack = list(cluster.members)
    members = {id(m) for m in cluster.members}
    while stack:
        node = stack.pop()
        if id(node) in seen or (id(node) in stored and id(node) not in members):
            continue
        seen.add(id(node))
        if node.op.kind is Kind.FAMILY:
            found.setdefault(node.shape)
            continue
        found.setdefault(node.shape)
        if node.op.name == "reshape":
            found.setdefault(node.inputs[0].shape)
        stack.extend(node.inputs)
    return list(found)


def _power_of_two(n: int) -> int:
    return 1 << max(0, math.ceil(n) - 1).bit_length()


class _Builder:
    """State shared by the three schedules."""

    def __init__(self, cluster: Cluster, stored: set[int], info, generic: bool):
        self.cluster = cluster
        self.info = info
        self.generic = generic
        self.wide = _is_wide(cluster)
        self.members = {id(m) for m in cluster.members}
        self.outside = stored - self.members
        self.writes = {id(m) for m in cluster.stores}
        self.shapes = _shapes(cluster, stored)
        self.name = cluster.kind + "_" + "_".join(m.op.name for m in cluster.members[:4])

    def writer(self) -> Writer:
        return Writer(self.generic, self.wide)

    def store(self, scope: Scope, node: Node, index: Expr, value: str, condition: str = "") -> None:
        """Store an element; it happens at `scope.flush()`, after everything has been read."""
        writer = scope.writer
        pointer = writer.buffer(node)
        if id(node) in self.cluster.streamed:
            index = index + Expr(((LOOP_INDEX, node.size),), 0)
        text = node.dtype.store.format(p=pointer, i=writer.index(index), v=value)
        scope.stores.append(f"if ({condition}) {{ {text}; }}" if condition else f"{text};")


def map_kernel(cluster: Cluster, stored: set[int], info, generic: bool) -> Kernels:
    """One work-item for each element."""
    build = _Builder(cluster, stored, info, generic)
    total = cluster.size
    if total == 0:
        return Kernels()
    dims = space.refine(cluster.shape, build.shapes) or (1,)
    for _ in range(2):
        writer = build.writer()
        scope = Scope(writer)
        index = linear(space.axes(dims), dims)
        known: set[int] = set()
        for node in cluster.members:
            value = scope.compute(node, unravel(index, node.shape), (), build.outside)
            known.add(id(node))
            if id(node) in build.writes:
                build.store(scope, node, index, value)
        scope.flush()
        merged = space.merge(dims, space.mergeable(dims, writer.indices, set()))
        if merged == dims:
            break
        dims = merged
    ctype = writer.index_type
    body = f"  const {ctype} i = get_global_id(0);\n  if (i >= {writer.number(total)}) return;\n"
    for line in space.decode("i", dims, space.names(len(dims)), writer.number, ctype):
        body += f"  {line}\n"
    body += scope.text()
    limit = 1024 if info.kind == "cpu" else 256
    local = min(limit, info.max_work_group_size, _power_of_two(total))
    groups = -(-total // local)
    source = writer.source(build.name, body)
    return Kernels([Generated(source, writer.args, (groups * local,), (local,))])


@dataclass
class _Shape:
    """How a fold is laid over work-items: `outs` rows by `lanes` a group, `splits` groups a row."""

    outs: int
    lanes: int
    splits: int
    lanes_first: bool


def _layout(rows: int, length: int, lanes_first: bool, whole: bool, info) -> _Shape:
    cpu = info.kind == "cpu"
    most = info.max_work_group_size
    if rows == 1:
        lanes_first = True
    if lanes_first:
        most = min(256, most)
        if cpu:
            lanes = 16 if length >= 32 else 1
            outs = 1 if lanes > 1 else min(64, _power_of_two(rows))
        else:
            lanes = min(most, max(1, _power_of_two(length) // 4))
            outs = max(1, min(most // lanes, _power_of_two(rows)))
    elif cpu:
        outs, lanes = min(64, _power_of_two(rows)), 1
    else:
        # 32 neighbours read whole lines of memory: a third faster than eight on an H200
        most = min(512, most)
        outs = min(32, _power_of_two(rows))
        lanes = max(1, min(most // outs, _power_of_two(length) // 4))
    splits = 1
    if not whole:
        groups = -(-rows // outs)
        wanted = info.compute_units * (4 if cpu else 8)
        if groups < wanted:
            # a second kernel costs a launch: split only where each part is long
            shortest = lanes * 32
            splits = max(1, min(-(-wanted // groups), length // shortest))
    return _Shape(outs, lanes, splits, lanes_first)


class _Fold:
    """Generates the kernels of a fold cluster."""

    def __init__(self, cluster: Cluster, stored: set[int], info, generic: bool):
        self.build = _Builder(cluster, stored, info, generic)
        self.cluster = cluster
        self.info = info
        self.shape = cluster.shape
        self.rows = cluster.rows
        self.length = math.prod(self.shape[a] for a in cluster.axes)
        folds = {id(m) for m in cluster.members if m.op.kind is Kind.FOLD}
        self.visible = self.build.outside | folds  # what is read by its index: memory and folds
        self.folds = folds
        self.results: dict[int, str] = {}  # of each fold, the variable that holds it
        self.levels = self._levels()

    def _levels(self) -> dict[int, int]:
        """How many fold stages must be complete before each member can be computed."""
        levels: dict[int, int] = {}
        available: dict[int, int] = {}
        for member in self.cluster.members:
            level = 0
            seen: set[int] = set()
            stack = list(member.inputs)
            while stack:
                node = stack.pop()
                if id(node) in seen or id(node) in self.build.outside:
                    continue
                seen.add(id(node))
                if id(node) in available:
                    level = max(level, available[id(node)])
                else:
                    stack.extend(node.inputs)
            levels[id(member)] = level
            available[id(member)] = level + (member.op.kind is Kind.FOLD)
        return levels

    def _dims(self) -> tuple[tuple[int, ...], list[bool]]:
        """Refined dimensions, and for each whether it is reduced."""
        dims = space.refine(self.shape, self.build.shapes)
        strides = strides_of(self.shape)
        marks = []
        for stride in strides_of(dims):
            owner = next(
                a
                for a in range(len(self.shape) - 1, -1, -1)
                if self.shape[a] > 1 and strides[a] <= stride < strides[a] * self.shape[a]
            )
            marks.append(owner in self.cluster.axes)
        return dims, marks

    def kernels(self) -> Kernels:
        if self.rows == 0:
            return Kernels()
        if self.length == 0:
            dims: tuple[int, ...] = (self.rows,)
            marks = [False]
        else:
            dims, marks = self._dims()
        if not dims:
            dims, marks = (1,), [True]
        inner_last = marks[-1]
        whole = self.cluster.staged or self.length == 0
        layout = _layout(self.rows, self.length, inner_last, whole, self.info)
        for _ in range(2):
            fixed = {d for d in range(len(dims) - 1) if marks[d] != marks[d + 1]}
            result, indices = self._write(dims, marks, layout)
            joined = space.mergeable(dims, indices, fixed)
            if not any(joined):
                break
            marks = [marks[0]] + [m for m, j in zip(marks[1:], joined, strict=True) if not j]
            dims = space.merge(dims, joined)
        return result

    def _write(self, dims, marks, layout: _Shape) -> tuple[Kernels, list[Expr]]:
        writer = self.build.writer()
        writer.members = self.folds
        outer = Scope(writer)
        variables = space.axes(dims)
        names = space.names(len(dims))
        kept = [d for d, m in enumerate(marks) if not m]
        reduced = [d for d, m in enumerate(marks) if m]
        kept_dims = tuple(dims[d] for d in kept)
        full = linear(variables, dims)
        row = linear(tuple(variables[d] for d in kept), kept_dims)
        ctype = writer.index_type
        head = self._header(writer, layout, self.rows, self.length)
        head += space.decode("o", kept_dims, [names[d] for d in kept], writer.number, ctype)
        outer.lines.extend(head)
        inner_decode = space.decode(
            "r", tuple(dims[d] for d in reduced), [names[d] for d in reduced], writer.number, ctype
        )
        result = Kernels()
        local_lines: list[str] = []
        folds = [m for m in self.cluster.members if m.op.kind is Kind.FOLD]
        stages = 1 + max(self.levels[id(m)] for m in self.cluster.members)
        registers: dict[int, tuple[FoldSpec, list[tuple[str, str]]]] = {}
        for stage in range(stages):
            now = [m for m in folds if self.levels[id(m)] == stage]
            side = [
                m
                for m in self.cluster.members
                if id(m) not in self.cluster.row
                and self.levels[id(m)] == stage
                and id(m) in self.build.writes
            ]
            if now or side:
                self._loop(outer, now, side, registers, full, inner_decode, layout)
            if layout.splits > 1:
                break
            for fold in now:
                self._combine(outer, registers[id(fold)], layout, local_lines)
                spec, states = registers[id(fold)]
                value = outer.define(writer.ctype(fold.dtype), self._finish(fold, spec, states))
                outer.know(fold, row, value)
                self.results[id(fold)] = value
            self._row_members(outer, stage + 1, row, layout)
        arrives = layout.splits > 1 and arrival.supported(self.info)
        if layout.splits > 1:
            places = self._partial(outer, folds, registers, writer, layout, local_lines, result)
            if arrives:
                self._arrive(outer, folds, places, row, layout, local_lines)
        body = "".join(f"  {line}\n" for line in local_lines) + outer.text()
        size = layout.outs * layout.lanes
        groups = -(-self.rows // layout.outs)
        launch = Generated(
            writer.source(self.build.name, body),
            writer.args,
            (groups * size, layout.splits),
            (size, 1),
        )
        result.launches.insert(0, launch)
        indices = writer.indices
        if layout.splits > 1 and not arrives:
            kinds = [kind for fold in folds for kind, _ in registers[id(fold)][1]]
            second, more = self._second(folds, layout, kinds)
            result.launches.append(second)
            # rows are decoded alike in both kernels
            indices = indices + more if len(kept_dims) == len(dims) else indices
        return result, indices

    def _header(self, writer: Writer, layout: _Shape, rows: int, length: int) -> list[str]:
        ctype = writer.index_type
        outs, lanes = layout.outs, layout.lanes
        lines = ["const int lid = get_local_id(0);"]
        if layout.lanes_first:
            lines += [f"const int rl = lid % {lanes};", f"const int ol = lid / {lanes};"]
        else:
            lines += [f"const int ol = lid % {outs};", f"const int rl = lid / {outs};"]
        count = writer.number(rows)
        lines += [
            f"const {ctype} row = ({ctype})get_group_id(0) * {outs} + ol;",
            f"const int live = row < {count};",
            f"const {ctype} o = live ? row : {count} - 1;",
        ]
        total = writer.number(length)
        if layout.splits > 1:
            chunk = writer.number(-(-length // layout.splits))
            lines += [
                f"{ctype} r_begin = ({ctype})get_group_id(1) * {chunk};",
                f"{ctype} r_end = min(({ctype})(r_begin + {chunk}), ({ctype}){total});",
            ]
        else:
            lines += [f"const {ctype} r_begin = 0;", f"const {ctype} r_end = {total};"]
        return lines

    def _owner(self, layout: _Shape) -> str:
        return "live" if layout.lanes == 1 else "live && rl == 0"

    def _declare(self, scope: Scope, fold: Node) -> tuple[FoldSpec, list[tuple[str, str]]]:
        spec = fold.op.fold(fold.inputs[0].dtype)
        return spec, self._registers(scope, fold, spec.states)

    def _registers(self, scope: Scope, fold: Node, wanted) -> list[tuple[str, str]]:
        writer = scope.writer
        acc = writer.ctype(fold.inputs[0].dtype.accumulator)
        made = []
        for kind, init in wanted:
            ctype = acc if kind == "acc" else writer.index_type if kind == "index" else kind
            name = writer.name("s")
            scope.lines.append(f"{ctype} {name} = {init};")
            made.append((ctype, name))
        return made

    def _loop(self, outer: Scope, folds, side, registers, full, inner_decode, layout) -> None:
        writer = outer.writer
        for fold in folds:
            registers[id(fold)] = self._declare(outer, fold)
        if self.length == 0:
            return
        scratch = {}
        for fold in folds:
            made = self._registers(outer, fold, registers[id(fold)][0].scratch)
            scratch[id(fold)] = {f"u{k}": name for k, (_, name) in enumerate(made)}
        inner = Scope(writer, outer)
        inner.lines.extend(inner_decode)
        for node in side:
            value = inner.compute(node, unravel(full, node.shape), (), self.visible)
            self.build.store(inner, node, full, value, "live")
        for fold in folds:
            x = fold.inputs[0]
            value = inner.value(x, unravel(full, x.shape), (), self.visible)
            spec, states = registers[id(fold)]
            acc = states[0][0]
            text = _rename(spec.step, states, {"x": f"(({acc}){value})"} | scratch[id(fold)])
            inner.lines.append(text)
        inner.flush()
        outer.lines.append(
            f"for ({writer.index_type} r = r_begin + rl; r < r_end; r += {layout.lanes}) {{"
        )
        outer.lines.extend("  " + line for line in inner.lines)
        outer.lines.append("}")
        for fold in folds:
            spec, states = registers[id(fold)]
            if spec.close:
                outer.lines.append(_rename(spec.close, states, scratch[id(fold)]))

    def _combine(self, scope: Scope, register, layout: _Shape, local_lines: list[str]) -> None:
        """Merge the registers of a row's lanes; all lanes then hold the result."""
        if layout.lanes == 1:
            return
        spec, states = register
        size = layout.outs * layout.lanes
        arrays = []
        for ctype, name in states:
            local_lines.append(f"__local {ctype} l{name}[{size}];")
            arrays.append(f"l{name}")
        stride = 1 if layout.lanes_first else layout.outs
        scope.lines += [f"{a}[lid] = {name};" for a, (_, name) in zip(arrays, states, strict=True)]
        scope.lines.append("barrier(CLK_LOCAL_MEM_FENCE);")
        scope.lines.append(f"for (int d = {layout.lanes // 2}; d > 0; d >>= 1) {{")
        scope.lines.append("  if (rl < d) {")
        others = {}
        for k, (a, (ctype, name)) in enumerate(zip(arrays, states, strict=True)):
            scope.lines.append(f"    const {ctype} t{name} = {a}[lid + d * {stride}];")
            others[f"t{k}"] = f"t{name}"
        scope.lines.append("    " + _rename(spec.combine, states, others))
        scope.lines += [
            f"    {a}[lid] = {name};" for a, (_, name) in zip(arrays, states, strict=True)
        ]
        scope.lines += ["  }", "  barrier(CLK_LOCAL_MEM_FENCE);", "}"]
        base = f"lid - rl * {stride}"
        scope.lines += [
            f"{name} = {a}[{base}];" for a, (_, name) in zip(arrays, states, strict=True)
        ]

    def _finish(self, fold: Node, spec: FoldSpec, states) -> str:
        return rounded(_rename(spec.finish, states, {}), fold.dtype)

    def _row_members(self, outer: Scope, level: int, row: Expr, layout: _Shape) -> None:
        """Store the folds that are complete at `level`, and the members over the kept axes that
        can be computed now."""
        folded = (m for m in self.cluster.members if m.op.kind is Kind.FOLD)
        done = [m for m in folded if self.levels[id(m)] == level - 1 and id(m) in self.build.writes]
        ready = [
            m
            for m in self.cluster.members
            if id(m) in self.cluster.row
            and m.op.kind is not Kind.FOLD
            and self.levels[id(m)] == level
            and id(m) in self.build.writes
        ]
        if not done and not ready:
            return
        # one work-item a row, so that a member may overwrite what it reads
        inner = Scope(outer.writer, outer)
        for node in done:
            self.build.store(inner, node, row, self.results[id(node)])
        for node in ready:
            value = inner.compute(node, unravel(row, node.shape), (), self.visible)
            self.build.store(inner, node, row, value)
        inner.flush()
        outer.lines.append(f"if ({self._owner(layout)}) {{")
        outer.lines.extend("  " + line for line in inner.lines)
        outer.lines.append("}")

    def _partial(self, outer, folds, registers, writer, layout, local_lines, result) -> None:
        """Each split leaves its registers in workspace; gives the pointers."""
        ctype = writer.index_type
        pointers = []
        for fold in folds:
            self._combine(outer, registers[id(fold)], layout, local_lines)
            _, states = registers[id(fold)]
            for kind, name in states:
                pointer = writer.workspace(len(result.workspace), kind)
                pointers.append(pointer)
                result.workspace.append(_sizeof(kind) * layout.splits * self.rows)
                place = f"({ctype})get_group_id(1) * {writer.number(self.rows)} + o"
                outer.lines.append(f"if ({self._owner(layout)}) {{ {pointer}[{place}] = {name}; }}")
        return pointers

    def _arrive(self, outer: Scope, folds, pointers, row: Expr, layout, local_lines) -> None:
        """The last group of each row goes on with all splits."""
        writer = outer.writer
        groups = -(-self.rows // layout.outs)
        counters, first = writer.counters(groups, self.info)
        local_lines.append("__local int last_group;")
        counter = f"{counters} + {first} + get_group_id(0)"
        outer.lines.append(f"if (kcl_last_group({counter}, {layout.splits}, &last_group)) {{")
        inner = Scope(writer, outer)
        inner.lines += ["r_begin = 0;", f"r_end = {layout.splits};"]
        self._gather(inner, folds, pointers, row, layout, local_lines)
        outer.lines.extend("  " + line for line in inner.lines)
        outer.lines.append("}")

    def _gather(self, scope: Scope, folds, pointers, row: Expr, layout, local_lines) -> None:
        """Combine what the splits left, finish, and compute what follows."""
        writer = scope.writer
        registers = {id(fold): self._declare(scope, fold) for fold in folds}
        scope.lines += [
            f"for ({writer.index_type} r = r_begin + rl; r < r_end; r += {layout.lanes}) {{",
            f"  const {writer.index_type} p = r * {writer.number(self.rows)} + o;",
        ]
        pointer = iter(pointers)
        for fold in folds:
            spec, states = registers[id(fold)]
            others = {}
            for k, (ctype, name) in enumerate(states):
                scope.lines.append(f"  const {ctype} t{name} = {next(pointer)}[p];")
                others[f"t{k}"] = f"t{name}"
            scope.lines.append("  " + _rename(spec.combine, states, others))
        scope.lines.append("}")
        for fold in folds:
            self._combine(scope, registers[id(fold)], layout, local_lines)
            spec, states = registers[id(fold)]
            value = scope.define(writer.ctype(fold.dtype), self._finish(fold, spec, states))
            scope.know(fold, row, value)
            self.results[id(fold)] = value
        self._row_members(scope, 1, row, layout)

    def _second(
        self, folds: list[Node], first: _Shape, kinds: list[str]
    ) -> tuple[Generated, list[Expr]]:
        """Second of two kernels: combine the splits, finish, and compute what follows."""
        build, rows = self.build, self.rows
        layout = _layout(rows, first.splits, rows == 1, True, self.info)
        writer = build.writer()
        writer.members = self.folds
        dims = (rows,)
        outer = Scope(writer)
        outer.lines.extend(self._header(writer, layout, rows, first.splits))
        shapes = [m.shape for m in self.cluster.members if id(m) in self.cluster.row]
        dims = space.refine((rows,), shapes) or (1,)
        for line in space.decode(
            "o", dims, space.names(len(dims)), writer.number, writer.index_type
        ):
            outer.lines.append(line)
        row = linear(space.axes(dims), dims)
        local_lines: list[str] = []
        pointers = [writer.workspace(k, ctype) for k, ctype in enumerate(kinds)]
        self._gather(outer, folds, pointers, row, layout, local_lines)
        body = "".join(f"  {line}\n" for line in local_lines) + outer.text()
        size = layout.outs * layout.lanes
        groups = -(-rows // layout.outs)
        source = writer.source(build.name + "_2", body)
        return Generated(source, writer.args, (groups * size, 1), (size, 1)), writer.indices


def _sizeof(ctype: str) -> int:
    return 16 if ctype == "double2" else 8 if ctype in ("long", "ulong", "double", "float2") else 4


def _rename(text: str, states: list[tuple[str, str]], others: dict[str, str]) -> str:
    """Replace the registers s0, t0, u0, x … of a fold's text by variables."""
    table = {f"s{k}": name for k, (_, name) in enumerate(states)} | others
    return re.sub(r"\b(s\d|t\d|u\d|x)\b", lambda m: table.get(m.group(1), m.group(1)), text)


def fold_kernels(cluster: Cluster, stored: set[int], info, generic: bool) -> Kernels:
    """Reductions, with what feeds them and what follows."""
    return _Fold(cluster, stored, info, generic).kernels()


def epilogue(cluster: Cluster, stored: set[int], info, generic: bool, slot_of) -> Epilogue:
    """What follows a heavy kernel, as the statements it runs on each result.

    `slot_of(node)` names the slot of a node's memory.
    """
    build = _Builder(cluster, stored, info, generic)
    head = cluster.head
    dims = space.refine(cluster.shape, build.shapes) or (1,)
    for _ in range(2):
        writer = build.writer()
        writer.members = {id(head)}
        scope = Scope(writer)
        index = linear(space.axes(dims), dims)
        value = rounded(f"({head.dtype.compute})acc", head.dtype)
        value = scope.define(writer.ctype(head.dtype), value)
        scope.know(head, index, value)
        stores = []
        if id(head) in build.writes:
            build.store(scope, head, index, value)
            stores.append(VectorStore(writer.buffer(head), head.dtype, value))
        for node in cluster.members[1:]:
            coords = unravel(index, node.shape)
            value = scope.compute(node, coords, (), build.outside | {id(head)})
            if id(node) in build.writes:
                build.store(scope, node, index, value)
                stores.append(VectorStore(writer.buffer(node), node.dtype, value))
        computed = len(scope.lines)
        scope.flush()
        merged = space.merge(dims, space.mergeable(dims, writer.indices, set()))
        if merged == dims:
            break
        dims = merged
    lines = space.decode("i", dims, space.names(len(dims)), writer.number, writer.index_type)
    compute = lines + scope.lines[:computed]
    lines += scope.lines
    if cluster.streamed:  # what each step of a loop stores may begin anywhere
        stores = []
    args = tuple(Ref(slot_of(a.node)) if isinstance(a, BufferArg) else a for a in writer.args)
    params = "".join(f", {p}" for p in writer.params)
    helpers = "".join(writer.helpers)
    if writer.uses_double:
        helpers = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + helpers
    return Epilogue(params, args, "\n".join(lines), helpers, "\n".join(compute), tuple(stores))
