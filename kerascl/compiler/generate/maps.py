"""Elementwise clusters: kernels of their own, and epilogues of heavy kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kerascl import dtypes
from kerascl.compiler.generate import lanes, moments, space, transposed
from kerascl.compiler.generate.builder import (
    Builder,
    Generated,
    Kernels,
    power_of_two,
    promised,
)
from kerascl.compiler.generate.emit import BufferArg, Scope, Writer, rounded
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.symbolic import Expr, Var, linear, unravel, variable, variables
from kerascl.core.node import Node
from kerascl.core.op import Kind
from kerascl.kernels.contract.epilogue import (
    LOAD_VECTOR,
    STORE_VECTOR,
    WORDS,
    Epilogue,
    VectorLoad,
    VectorStore,
    narrow,
)
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.ops.random import KEEP_COARSE
from kerascl.runtime.device import DeviceInfo

# Elements of a map that a work-item of a GPU reads at once: the memory is busy only while enough
# bytes are under way.
TOGETHER = 4
GROUPS = 4  # work-groups of a compute unit from which a map is large enough for that
FARTHEST = 1 << 13  # elements that those of a work-item may lie apart
# Work-items of a CPU's work-group in a map that reads across the order in which it stores: columns,
# and rows that find in the cache the lines of memory that those before them have read.
TILE = 32, 16
LONG_ROW = 32  # elements of a row from which a CPU's work-items have coordinates, not one index
FAR = 16  # elements between neighbours' reads from which they share no line of memory
# A value that is rounded to bfloat16, in the text of a kernel.
_ROUNDED = re.escape(dtypes.bfloat16.round).replace(re.escape("{v}"), "(.*)") + ";"
LONGEST = 120  # statements of an element up to which it is written out several times


@dataclass
class _Laid:
    """A map's kernel: its lines, the work-items of a group, and how many elements, how far apart,
    each has."""

    writer: Writer
    lines: list[str]
    local: int
    count: int
    stride: int


def map_kernel(cluster: Cluster, stored: set[int], info: DeviceInfo, generic: bool) -> Kernels:
    """A work-item for each element or, on GPUs, for a few, neighbours where vectors hold them, else
    apart; on CPUs in tiles where it reads across the order in which it stores."""
    build = Builder(cluster, stored, info, generic)
    total = cluster.size
    if total == 0:
        return Kernels()
    limit = 1024 if info.kind == "cpu" else 256
    local = min(limit, info.max_work_group_size, power_of_two(total))
    large = _large(build, local)
    draws = any(node.op is KEEP_COARSE for node in build.computed())
    if (draws or large) and (found := _fours(build, limit, large)):
        return Kernels([found])
    dims = space.refine(cluster.shape, build.shapes) or (1,)
    for _ in range(2):
        laid = _single(build, dims, local)
        if large and len(laid.lines) <= LONGEST:
            laid = _several(build, dims, local)
        merged = space.merge(dims, space.mergeable(dims, laid.writer.indices, set()))
        if merged == dims:
            break
        dims = merged
    if info.kind == "cpu" and len(dims) > 1 and dims[-1] >= FAR:
        rows = _across(dims, laid.writer.indices)
        if rows is not None:
            moved = transposed.kernel(build, dims, rows)
            return Kernels([moved or _grid(build, dims, rows, TILE)])
        if dims[-1] >= LONG_ROW:
            return Kernels([_grid(build, dims, len(dims) - 2, _row_tile(dims[-1], limit))])
    body = "".join(f"  {line}\n" for line in laid.lines)
    groups = -(-total // (laid.count * laid.stride)) * (laid.stride // laid.local)
    source = laid.writer.source(build.name, body, promised(laid.local, info))
    return Kernels([Generated(source, laid.writer.args, (groups * laid.local,), (laid.local,))])


def _large(build: Builder, local: int) -> bool:
    """Whether a work-item of a GPU should have several elements."""
    if build.info.kind != "gpu":
        return False
    enough = build.info.compute_units * GROUPS * local * TOGETHER
    # The last group's indices go past the end, and must still be numbers of their type.
    fits = build.wide or build.cluster.size + TOGETHER * FARTHEST < 2**31
    return build.cluster.size >= enough and fits


def _compute(build: Builder, scope: Scope, dims: tuple[int, ...], names: list[str]) -> None:
    """Every member at the element with these variables."""
    coords = tuple(variable(name, n) for name, n in zip(names, dims, strict=True))
    index = linear(coords, dims)
    for node in build.cluster.members:
        value = scope.compute(node, unravel(index, node.shape), (), build.outside)
        if id(node) in build.writes:
            build.store(scope, node, index, value)


def _single(build: Builder, dims: tuple[int, ...], local: int) -> _Laid:
    """One element a work-item."""
    # Intel's compiler for CPUs sees that neighbours read neighbours by indices as wide as sizes
    # are: simple maps take a quarter of the time.
    writer = build.writer(wide=build.info.kind == "cpu" and len(dims) == 1)
    scope = Scope(writer)
    ctype, names = writer.index_type, space.names(len(dims))
    total = writer.number(build.cluster.size)
    scope.lines = [f"const {ctype} i = get_global_id(0);", f"if (i >= {total}) return;"]
    scope.lines += space.decode("i", dims, names, writer.number, ctype)
    _compute(build, scope, dims, names)
    scope.flush()
    return _Laid(writer, scope.lines, local, 1, local)


def _across(dims: tuple[int, ...], indices: list[Expr]) -> int | None:
    """The dimension, not the last, along which neighbours are read that lie far apart along the
    last one; None where there is none."""
    last = len(dims) - 1
    place = {name: d for d, name in enumerate(space.names(len(dims)))}
    for expr in indices:
        steps = {place[a.name]: k for a, k in expr.terms if isinstance(a, Var) and a.name in place}
        if abs(steps.pop(last, 0)) < FAR or dims[last] < FAR:
            continue
        near = [d for d, k in steps.items() if abs(k) == 1 and dims[d] >= FAR]
        if near:
            return near[0]
    return None


def _row_tile(columns: int, limit: int) -> tuple[int, int]:
    """Equal parts of a row, and so many rows that a group has up to `limit` work-items."""
    parts = ceil_div(columns, limit)
    width = round_up(ceil_div(columns, parts), FAR)
    return width, max(1, limit // width)


def _grid(build: Builder, dims: tuple[int, ...], rows: int, tile: tuple[int, int]) -> Generated:
    """One element a work-item, by its coordinates; groups are tiles of the last dimension and of
    dimension `rows`."""
    writer = build.writer(wide=True)
    scope = Scope(writer)
    ctype, number, names = writer.index_type, writer.number, space.names(len(dims))
    last = len(dims) - 1
    rest = [d for d in range(last) if d != rows]
    scope.lines += [
        f"const {ctype} {names[last]} = get_global_id(0);",
        f"const {ctype} {names[rows]} = get_global_id(1);",
    ]
    scope.lines += [f"if ({names[d]} >= {number(dims[d])}) return;" for d in (last, rows)]
    scope.lines += space.decode(
        "get_global_id(2)", tuple(dims[d] for d in rest), [names[d] for d in rest], number, ctype
    )
    _compute(build, scope, dims, names)
    scope.flush()
    body = "".join(f"  {line}\n" for line in scope.lines)
    tile = tile[0], max(1, min(tile[1], build.info.max_work_group_size // tile[0]))
    size = (
        -(-dims[last] // tile[0]) * tile[0],
        -(-dims[rows] // tile[1]) * tile[1],
        math.prod(dims[d] for d in rest),
    )
    return Generated(writer.source(build.name, body), writer.args, size, (*tile, 1))


def _several(build: Builder, dims: tuple[int, ...], local: int) -> _Laid:
    """Elements that lie apart, all read before the first is stored."""
    count = TOGETHER
    writer = build.writer()
    ctype, number = writer.index_type, writer.number
    names = space.names(len(dims))
    total = number(build.cluster.size)
    # In a table of rows: so far apart that all have the same column, where that is possible.
    columns = dims[-1] if len(dims) == 2 else 1
    local = _matching(columns, local, build.info.max_work_group_size)
    stride = columns if columns % local == 0 and columns <= FARTHEST else local
    one_column = len(dims) == 2 and stride % columns == 0

    def element(outer: Scope, copy: int) -> Scope:
        """The block of the element `copy` strides on."""
        suffix = f"_{copy}" if copy else ""
        own = [name + suffix for name in (names[:1] if one_column else names)]
        scope = Scope(writer, outer, own)
        if copy and one_column:
            step = number(copy * (stride // columns))
            scope.lines.append(f"const {ctype} {own[0]} = {names[0]} + {step};")
        elif copy:
            scope.lines.append(f"const {ctype} i{suffix} = i + {number(copy * stride)};")
            scope.lines += space.decode(f"i{suffix}", dims, own, number, ctype)
        _compute(build, scope, dims, [*own, *names[len(own) :]])
        return scope

    def block(copies: int) -> list[str]:
        outer = Scope(writer)
        outer.lines += space.decode("i", dims, names, number, ctype)
        scopes = [element(outer, copy) for copy in range(copies)]
        lines = outer.lines + [line for scope in scopes for line in scope.lines]
        return lines + [line for scope in scopes for line in scope.stores]

    group, parts = "get_group_id(0)", stride // local
    first = f"({ctype}){group} * {number(count * stride)}"
    if parts > 1:
        within = f"{group} % {number(parts)} * {number(local)}"
        first = f"({ctype})({group} / {number(parts)}) * {number(count * stride)} + {within}"
    lines = [
        f"{ctype} i = {first} + get_local_id(0);",
        f"if ({total} - i > {number((count - 1) * stride)}) {{",
        *(f"  {line}" for line in block(count)),
        "}",
        f"else for (; i < {total}; i += {number(stride)}) {{",
        *(f"  {line}" for line in block(1)),
        "}",
    ]
    return _Laid(writer, lines, local, count, stride)


def _matching(columns: int, local: int, most: int) -> int:
    """A work-group's size near `local`, at most `most`, of which rows are multiples or parts, else
    `local`."""
    near = range(local // 2, min(2 * local, most + 1), 32)
    sizes = [n for n in near if n % columns == 0 or columns % n == 0]
    return min(sizes, key=lambda n: abs(n - local), default=local)


class _Beside(Scope):
    """Statements of an element that may be written out for neighbours; what they read at the
    element's own index is listed instead.

    Attributes:
        fours: blocks of random bits that four neighbours share: the variables, and their values.
    """

    def __init__(self, writer: Writer, dims: tuple[int, ...]) -> None:
        super().__init__(writer)
        axes = space.axes(dims)
        self.index = linear(axes, dims)
        self.last, self.columns = axes[-1], dims[-1]
        self.others = {var.name for axis in axes[:-1] for var, _ in variables(axis)}
        self.loads: list[VectorLoad] = []
        self.fours: dict[str, str] = {}

    def together(self, index: Expr, count: int = 4) -> bool:
        """Whether so many neighbours of the last dimension have neighbouring indices, the first a
        multiple of that and known by the other coordinates (a gather's is read from memory)."""
        before = index - self.last
        apart = before.const % count or any(k % count for _, k in before.terms)
        apart = apart or any(var.name not in self.others for var, _ in variables(before))
        return not (self.columns % count or apart)

    def four(self, keys: list[str], place: Expr, ctype: str) -> str | None:
        if not self.together(place):
            return None
        # Compilers do not see that the coordinates of neighbours lead to neighbours.
        index = self.writer.index(place)
        at = f"({ctype}){'i' if place == self.index else index} / 4u"
        value = f"kcl_philox({', '.join(keys)}, {at})"
        known = [name for name, text in self.fours.items() if text == value]
        name = known[0] if known else self.writer.name("four")
        self.fours[name] = value
        if not known:
            self.lines.append(f"if (FIRST_OF_FOUR) {name} = {value};")
        return f"kcl_quarter({name}, NUMBER_OF_FOUR)"

    def written(self, first: str, number: str) -> list[str]:
        """The lines, with whether it is the first of four neighbours, and its number."""
        return [
            line.replace("FIRST_OF_FOUR", first).replace("NUMBER_OF_FOUR", number)
            for line in self.lines
        ]

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        own = index == self.index
        apart = guards or node.dtype.itemsize > 8 or not (own or self.together(index, 8))
        if apart or id(node) in self.writer.members or self.find((id(node), index, ())):
            return super().element(node, index, guards)
        self.writer.ctype(node.dtype)
        name = self.writer.name()
        at = "" if own else self.writer.index(index)
        rows = any(var.name in self.others for var, _ in variables(index))
        period = 0 if own or rows else self.columns
        self.loads.append(VectorLoad(self.writer.buffer(node), node.dtype, name, at, period))
        self.know(node, index, name)
        return name


class _Four(_Beside):
    """Statements of four neighbours, and whatever they read that lies beside each other.

    Attributes:
        apart: whether neighbours read what lies apart, or each row reads the same, as where it is
            scaled by columns: elements of a column need that once.
    """

    def __init__(self, writer: Writer, dims: tuple[int, ...]) -> None:
        super().__init__(writer, dims)
        self.places: list[str] = []
        self.apart = False

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        beside = node.dtype.itemsize <= 8 and self.together(index)
        names = {var.name for var, _ in variables(index)}
        if not guards and names - self.others:  # neighbours read different elements
            self.apart |= not beside or names.isdisjoint(self.others) and bool(self.others)
        if guards or not beside or self.find((id(node), index, ())):
            return Scope.element(self, node, index, guards)
        self.writer.ctype(node.dtype)
        name = self.writer.name()
        self.loads.append(VectorLoad(self.writer.buffer(node), node.dtype, name))
        place = self.writer.index(index)
        self.places.append("i" if index == self.index else place)
        self.know(node, index, name)
        return name


def _fours(build: Builder, limit: int, large: bool) -> Generated | None:
    """Four neighbours a work-item, which share a block of random bits or, where the map is large,
    whose vectors they read; None where they do neither."""
    cluster = build.cluster
    widest = max(node.dtype.itemsize for node in cluster.stores)
    if cluster.size % 4 or cluster.streamed or widest > 8:
        return None
    dims = space.refine(cluster.shape, build.shapes) or (1,)
    for _ in range(2):
        # With ints Intel's compiler for CPUs takes twice the time.
        writer = build.writer(wide=build.info.kind == "cpu")
        scope = _Four(writer, dims)
        stores = []
        for node in cluster.members:
            coords = unravel(scope.index, node.shape)
            value = scope.compute(node, coords, (), build.outside)
            if id(node) in build.writes:
                stores.append(VectorStore(writer.buffer(node), node.dtype, value, True))
        writer.index(scope.index)
        if not scope.fours and (not large or scope.apart):
            return None
        merged = space.merge(dims, space.mergeable(dims, writer.indices, set()))
        if merged == dims:
            break
        dims = merged
    if dims[-1] % 4 or len(scope.lines) > LONGEST:
        return None
    items = cluster.size // 4
    local = min(limit, build.info.max_work_group_size, power_of_two(items))
    lines = _written_out(writer, scope, stores, dims)
    source = writer.source(build.name, "".join(f"  {line}\n" for line in lines))
    return Generated(source, writer.args, (round_up(items, local),), (local,))


def _written_out(
    writer: Writer, scope: _Four, stores: list[VectorStore], dims: tuple[int, ...]
) -> list[str]:
    """An element's statements for four neighbours, between vector loads and stores.

    Without a loop and with literal indices: Intel's compiler for CPUs takes half the time then.
    Vectors are counted by work-items: of places four times that it makes gathers and scatters.
    """
    writer.helper(STORE_VECTOR)
    writer.helper(LOAD_VECTOR)
    ctype, names = writer.index_type, space.names(len(dims))
    first = f"const {ctype} {names[-1]} = column"
    lines = [
        f"const {ctype} item = get_global_id(0), i = item * 4;",
        f"if (i >= {writer.number(math.prod(dims))}) return;",
        *space.decode("i", dims, [*names[:-1], "column"], writer.number, ctype),
        f"{first};",
        *(f"uint2 {name};" for name in scope.fours),
    ]
    for k, (load, at) in enumerate(zip(scope.loads, scope.places, strict=True)):
        word = WORDS[load.dtype.itemsize]
        place = f"(__global const {word}*)({load.pointer}) + {at}"
        if at == "i":
            place = f"(__global const {word}*)((__global const {word}4*)({load.pointer}) + item)"
        lines += [f"{word} read{k}[4];", f"KCL_LOAD_VECTOR4_{word}(read{k}, ({place}))"]
    lines += [f"{WORDS[store.dtype.itemsize]} kept{k}[4];" for k, store in enumerate(stores)]
    for j in range(4):
        lines += ["{", f"  {first} + {j};"]
        lines += [
            "  " + load.line(f"((const {load.dtype.storage}*)read{k})", str(j))
            for k, load in enumerate(scope.loads)
        ]
        lines += [f"  {line}" for line in scope.written(str(int(j == 0)), str(j))]
        lines += [
            "  " + store.line(f"(({store.dtype.storage}*)kept{k})", str(j))
            for k, store in enumerate(stores)
        ]
        lines.append("}")
    for k, store in enumerate(stores):
        word = WORDS[store.dtype.itemsize]
        place = f"(__global {word}4*)({store.pointer}) + item"
        lines.append(f"KCL_STORE_VECTOR4({word}, {place}, kept{k})")
    return lines


def _rounds_pairs(info: DeviceInfo) -> bool:
    """Whether an instruction rounds two floats to bfloat16."""
    return "native_bfloat16_conversion" in info.quirks


def _in_pairs(lines: list[str], stores: list[VectorStore]) -> list[VectorStore]:
    """Let those values that are only stored be rounded there, two at once; changes `lines`."""
    for k, store in enumerate(stores):
        if store.dtype is not dtypes.bfloat16:
            continue
        pattern = re.compile(rf"(const float {store.value} = ){_ROUNDED}")
        at = next((n for n, line in enumerate(lines) if pattern.fullmatch(line)), None)
        others = [*(line for n, line in enumerate(lines) if n != at), *(s.value for s in stores)]
        uses = sum(len(re.findall(rf"\b{store.value}\b", text)) for text in others)
        if store.exact and (at is None or uses > 1):
            continue
        if store.exact and at is not None:
            lines[at] = pattern.sub(r"\1\2;", lines[at])
        stores[k] = replace(store, exact=False, pairs=True)
    return stores


def epilogue(
    cluster: Cluster,
    stored: set[int],
    info: DeviceInfo,
    generic: bool,
    slot_of: Callable[[Node], str],
) -> Epilogue:
    """What follows a heavy kernel, as the statements it runs on each result.

    `slot_of(node)` names the slot of a node's memory.
    """
    build = Builder(cluster, stored, info, generic)
    head = cluster.head
    dims = space.refine(cluster.shape, build.shapes) or (1,)
    for _ in range(2):
        writer = build.writer()
        writer.members = {id(head), *cluster.row}
        scope = _Beside(writer, dims)
        index = scope.index
        value, alone = f"({head.dtype.compute})acc", len(cluster.members) == 1
        if not alone:  # else the store rounds
            value = rounded(value, head.dtype)
        value = scope.define(writer.ctype(head.dtype), value)
        scope.hold(head, value)
        stores = []
        if id(head) in build.writes:
            build.store(scope, head, index, value, exact=not alone)
            stores.append(VectorStore(writer.buffer(head), head.dtype, value, not alone))
        for node in cluster.members[1:]:
            if id(node) in cluster.row:
                continue
            coords = unravel(index, node.shape)
            value = scope.compute(node, coords, (), build.outside | {id(head)})
            if id(node) in build.writes:
                build.store(scope, node, index, value)
                stores.append(VectorStore(writer.buffer(node), node.dtype, value, True))
        if _rounds_pairs(info) and not cluster.streamed and not cluster.row:
            stores = _in_pairs(scope.lines, stores)
        computed = len(scope.lines)
        scope.flush()
        folded = moments.body(build, writer) if cluster.row else ""
        merged = space.merge(dims, space.mergeable(dims, writer.indices, set()))
        if merged == dims:
            break
        dims = merged
    names, ctype = space.names(len(dims)), writer.index_type
    lines = space.decode("i", dims, names, writer.number, ctype)
    compute, decode = lines, []
    if dims[-1] % 8 == 0:  # coordinates of eight results at once
        decode = space.decode("first", dims, [*names[:-1], "column"], writer.number, ctype)
        decode.append(f"const {ctype} {names[-1]} = column;")
        compute = [f"const {ctype} {names[-1]} = column + j_;"]
    compute = compute + scope.written("j_ % 4 == 0", "j_ % 4")[:computed]
    alone_lines = scope.written("1", "(uint)i")
    lines += [load.line(load.pointer, load.at or "i") for load in scope.loads]
    lines = [f"uint2 {name};" for name in scope.fours] + lines + alone_lines[:computed]
    work = sum(node.op.cost for node in build.computed() if node.op.kind is Kind.POINTWISE)
    if cluster.streamed:  # what each step of a loop stores may begin anywhere
        lines += alone_lines[computed:]
        stores = []
    lines += [s.line(s.pointer, "i") for s in stores]
    together, wide = lanes.body(build, writer, space.axes(dims), names), lanes.width(build)
    args = tuple(Ref(slot_of(a.node)) if isinstance(a, BufferArg) else a for a in writer.args)
    params = "".join(f", {p}" for p in writer.params)
    return Epilogue(
        params, args, "\n".join(lines), tuple(writer.helpers), tuple(scope.loads),
        "\n".join(compute), tuple(stores), writer.uses_double, folded, tuple(scope.fours),
        "\n".join(decode), work, narrow(head.dtype),
        "\n".join(together), wide, f"{head.dtype.compute}{wide}",
    )  # fmt: skip
