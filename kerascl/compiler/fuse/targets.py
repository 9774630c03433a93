"""Which values must lie in memory, and how each of them reads the others.

Everything else is computed inline where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kerascl.compiler import library
from kerascl.compiler.fuse.inline import Statements
from kerascl.compiler.graph import views
from kerascl.compiler.graph.in_place import STORE, UPDATED
from kerascl.compiler.graph.pieces import phases
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.ops.declare import CAST
from kerascl.ops.views import CONCAT, EXPAND, PAD

INLINE_LIMIT = 160  # arithmetic cost of one kernel's expression before it is cut
# Cost up to which a value with several readers is computed again, from several values in memory
# and from one: then its readers read no more than if it were stored.
RECOMPUTE_LIMIT = 3
RECOMPUTE_ONE_LIMIT = 8
RECOMPUTE_BYTES_LIMIT = 16  # where what it is made of takes hardly more bytes than itself
RECOMPUTE_BYTES = 1.05
EXPAND_LIMIT = 30  # cost up to which a value is recomputed for each element it is broadcast to
# The same of what the epilogue of a heavy kernel computes once, where memory is what kernels wait
# for: a division takes many instructions.
EXPAND_ENDED_LIMIT = 3
# Cost up to which what a gather reads is computed there, and where it reads a small part: one of so
# many elements at most.
GATHER_LIMIT = 4
GATHER_PART, GATHER_PART_LIMIT = 8, 64
# Statements of an element from which a concatenation, padding or gather is stored, where it has
# several readers and where it has one: parts of parts would multiply.
REPEAT_LIMIT = 24
PARTS_LIMIT = 96
# Of an operand that the kernel of a product computes, for a few elements at once: statements, and
# values in memory.
COMPUTED_LIMIT = 48
COMPUTED_BUFFERS = 8
COMPUTED_BYTES = 1.1  # of these values, for each of the operand's own
VALUE_LIMIT = 256  # statements of a value beyond which its longest inputs are stored


class Reads:
    """What one target reads from memory, and how.

    `patterns` maps a stored node's id to "same" (every read is at the reader's own
    linear index), "row" (through a broadcast along `axes`), or "other".
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.patterns: dict[int, set[Any]] = {}

    def add(self, node: Node, pattern: Any) -> None:
        """Note that `node` is read with this access pattern."""
        self.nodes[id(node)] = node
        self.patterns.setdefault(id(node), set()).add(pattern)


def reads_of(target: Node, stored: set[int]) -> Reads:
    """Walk the inline expression of a target."""
    reads = Reads()
    seen: set[tuple[Any, ...]] = set()
    stack: list[tuple[Node, object]] = []

    def push_inputs(node: Node, pattern: Any) -> None:
        kind = node.op.kind
        if kind is Kind.VIEW and not views.keeps_order(node):
            if node.op is EXPAND and pattern == "same":
                x = node.inputs[0]
                axes = tuple(
                    a for a, (m, n) in enumerate(zip(x.shape, node.shape, strict=True)) if m != n
                )
                pattern = ("row", node.shape, axes)
            else:
                pattern = "other"
            for x in node.inputs:
                stack.append((x, pattern))
            return
        if kind is Kind.GATHER:
            stack.append((node.inputs[0], "other"))
            for x in node.inputs[1:]:
                stack.append((x, pattern))
            return
        for x in node.inputs:
            stack.append((x, pattern))

    push_inputs(target, "same")
    while stack:
        node, pattern = stack.pop()
        if (id(node), pattern) in seen or node.op is CONST:
            continue
        seen.add((id(node), pattern))
        if id(node) in stored:
            reads.add(node, pattern)
        else:
            push_inputs(node, pattern)
    return reads


class Targets(NamedTuple):
    """What gets memory.

    Attributes:
        nodes: those that do, in topological order.
        stored: ids of all that have memory, leaves too.
        length: by id, how many statements compute a node.
        apart: ids of nodes that no kernel computes which reads them.
        computed: by id of a library operation, the input that its kernel computes as it reads it.
    """

    nodes: list[Node]
    stored: set[int]
    length: dict[int, int]
    apart: frozenset[int]
    computed: dict[int, int]


class Computing:
    """What the kernels of library operations compute, as they read it, instead of finding it in
    memory: nothing."""

    def which(self, node: Node) -> int | None:
        """The input of a library operation for which that is possible."""
        return None

    def pays(self, node: Node, base: Node, stored: set[int]) -> bool:
        """Whether it pays, where that input is read from `base`, which is computed from `stored`
        values."""
        return True


def choose_targets(
    nodes: list[Node],
    roots: Iterable[Node],
    most_buffers: float = math.inf,
    computing: Computing | None = None,
    memory_bound: bool = False,
) -> Targets:
    """The nodes that get memory.

    Where a value reads more than `most_buffers` stored ones, some inputs are stored first.  On a
    device that is `memory_bound` a value is computed for each reader, within limits, where what it
    is made of takes no more bytes than itself.
    """
    walk = _Walk(nodes, roots, most_buffers, computing or Computing(), memory_bound)
    for node in nodes:
        walk.visit(node)
    targets = [n for n in nodes if id(n) in walk.target and n.op.kind is not Kind.LEAF]
    return Targets(targets, walk.stored, walk.length, frozenset(walk.apart), walk.computed)


class _Walk:
    """Passes over a graph, inputs first, and decides of each node whether it gets memory.

    Attributes, all by id:
        target: what must lie in memory.
        stored: what does, leaves too.
        readers: how many nodes read a node.
        cost: instructions that compute an element from memory.
        whole: what a node reads from memory, but for rows; two say "many".
        buffers: all that a node reads from memory.
        length: statements that compute a node.
        exact: whether a node has the same bits wherever it is computed.
        apart: what no kernel computes that reads it.
        possible: of a library operation, the input that its kernel could compute, and its base.
        computed: of a library operation, the input that its kernel does compute.
        memory: what stores in place replace, before and after.
    """

    def __init__(
        self,
        nodes: list[Node],
        roots: Iterable[Node],
        most_buffers: float,
        computing: Computing,
        memory_bound: bool,
    ) -> None:
        self.most_buffers = most_buffers
        self.computing = computing
        self.memory_bound = memory_bound
        self.target = {id(views.storage(node)) for node in roots}
        self.stored: set[int] = set()
        self.readers: dict[int, int] = {}
        self.cost: dict[int, int] = {}
        self.whole: dict[int, frozenset[int]] = {}
        self.buffers: dict[int, frozenset[int]] = {}
        self.length: dict[int, int] = {}
        self.exact: dict[int, bool] = {}
        self.apart: set[int] = set()
        self.memory = {id(y) for x in nodes if x.op is UPDATED for y in (x, x.inputs[1])}
        self.statements = Statements()
        for node in nodes:
            for key in {id(x) for x in node.inputs}:
                self.readers[key] = self.readers.get(key, 0) + 1
        self.nbytes = {id(node): node.nbytes for node in nodes}
        self.possible: dict[int, tuple[int, Node]] = {}
        self.computed: dict[int, int] = {}
        self._end_phases(nodes)
        for node in nodes:
            if node.op.kind is Kind.LIBRARY:
                bases = [read.base for read in library.operands(node)]
                k = self._single(node, bases)
                if k is not None:
                    self.possible[id(node)] = k, bases.pop(k)
                self.target.update(map(id, bases))

    def _end_phases(self, nodes: list[Node]) -> None:
        """Store what a phase computes for a later one, and what is made of that first, as sums of
        pieces are, and what is joined with it: else what all this is made of would live on."""
        phase = phases(nodes)
        for node in nodes if phase else ():
            now = phase.get(id(node), 0)
            before = [x for x in node.inputs if 0 < phase.get(id(x), 0) < now]
            if before:
                ends = [*(node.inputs if node.op is CONCAT else before), node]
                kept = (x for x in map(_shown, ends) if phase.get(id(x), 0))
                self.target.update(
                    id(x) for x in kept if x.op.kind in (Kind.POINTWISE, Kind.GATHER)
                )

    def _single(self, node: Node, bases: list[Node]) -> int | None:
        """The input that the kernel of a library operation could compute, if nothing else reads
        any of it."""
        if not any(x.op.kind in (Kind.POINTWISE, Kind.VIEW) for x in bases):
            return None
        k = self.computing.which(node)
        if k is None or bases[k].op.kind not in (Kind.POINTWISE, Kind.VIEW):
            return None
        if sum(base is bases[k] for base in bases) > 1:
            return None
        x = node.inputs[k]
        while self.readers[id(x)] == 1 and id(x) not in self.target:
            if x is bases[k]:
                return k
            x = x.inputs[0]
        return None

    def visit(self, node: Node) -> None:
        """Decide about a node whose inputs have been visited."""
        key, kind = id(node), node.op.kind
        self.exact[key] = self._is_exact(node)
        self.buffers[key] = self.whole[key] = frozenset((key,))
        if kind in (Kind.LEAF, Kind.CONST):
            self._visit_source(node)
            return
        if kind in (Kind.LIBRARY, Kind.PICK, Kind.REDUCTION):
            self.target.add(key)
        if node.op is STORE:
            self._store(node)
        if node.op is UPDATED:  # its memory is whole when the kernel that stores has ended
            self.apart.add(key)
        if kind is Kind.POINTWISE and node.dtype.is_bool:
            self._keep_compared(node)
        if id(node) in self.possible:
            self._choose_computed(node)
        inline, sources = self._inline(node)
        again = RECOMPUTE_LIMIT if len(sources) > 1 else RECOMPUTE_ONE_LIMIT
        several = self.readers.get(key, 0) > 1
        if several and kind is Kind.POINTWISE and inline > again:
            if self._again(node, inline):
                inline, sources = self._inline(node)
            else:
                self.target.add(key)
        if inline > INLINE_LIMIT and kind in (Kind.POINTWISE, Kind.GATHER):
            self.target.add(key)
        lines, buffers = self._shorten(node)
        if kind is Kind.GATHER or node.op in (CONCAT, PAD):
            if lines > (REPEAT_LIMIT if several else PARTS_LIMIT):
                self.target.add(key)
        self.length[key] = lines
        if key in self.target:
            self.stored.add(key)
            self.statements.read(node)
            inline = 0
        else:
            self.buffers[key] = buffers
            self.whole[key] = sources if len(sources) <= 2 else frozenset(list(sources)[:2])
        self.cost[key] = inline

    def _store(self, node: Node) -> None:
        """What a store writes does not read, in its kernel, memory that stores replace."""
        self.target.add(id(node))
        for x in node.inputs:
            if not self.buffers[id(x)].isdisjoint(self.memory):
                x = views.storage(x)
                self._demand(x)
                self.buffers[id(x)] = self.whole[id(x)]
                self.statements.read(x)

    def _again(self, node: Node, inline: int) -> bool:
        """Whether each of several readers rather computes a value, for its memory's sake."""
        if not self.memory_bound:
            return False
        if node.op is CAST and node.inputs[0].dtype.itemsize < node.dtype.itemsize:
            self._demand_through(node.inputs[0])  # which says the same in fewer bytes
            return True
        read = frozenset[int]().union(*(self.buffers[id(x)] for x in node.inputs))
        nbytes = sum(self.nbytes[key] for key in read)
        return inline <= RECOMPUTE_BYTES_LIMIT and nbytes <= RECOMPUTE_BYTES * node.nbytes

    def _choose_computed(self, node: Node) -> None:
        """Have a kernel compute its input, if that is made of hardly more bytes than it has itself
        and takes little text; else the input gets memory."""
        k, base = self.possible[id(node)]
        if id(base) in self.stored:
            return
        read = self.buffers[id(base)]
        short = self.statements.count(base) <= COMPUTED_LIMIT
        few = len(read) <= min(COMPUTED_BUFFERS, self.most_buffers // 2)
        nbytes = sum(self.nbytes[key] for key in read)
        small = nbytes <= COMPUTED_BYTES * base.nbytes
        if short and few and small and self.computing.pays(node, base, self.stored):
            self.computed[id(node)] = k
            return
        self._demand(base)
        self.buffers[id(base)] = frozenset((id(base),))
        self.statements.read(base)

    def _visit_source(self, node: Node) -> None:
        """A leaf, or a constant, which lies in memory only where it must."""
        key = id(node)
        self.cost[key] = 0
        self.statements.read(node)
        if node.op.kind is Kind.LEAF or key in self.target:
            self.stored.add(key)
        else:
            self.buffers[key] = self.whole[key] = frozenset()

    def _is_exact(self, node: Node) -> bool:
        if node.op.kind in (Kind.LIBRARY, Kind.PICK, Kind.REDUCTION):
            return True
        exact = node.op.exact or node.op.kind is not Kind.POINTWISE
        return exact and all(self.exact[id(x)] for x in node.inputs)

    def _keep_compared(self, node: Node) -> None:
        """Store what is compared with a reduction of it, unless it is exact: computed twice, in
        loops that a compiler makes other instructions of, it may differ in the last bit, and
        nothing be the largest."""
        bases = [_base(x) for x in node.inputs]
        for base in bases:
            if base.op.kind is Kind.REDUCTION:
                for reduced in map(_base, base.inputs):
                    if not self.exact[id(reduced)] and any(reduced is x for x in bases):
                        self._demand(reduced)
                        self.apart.add(id(reduced))

    def _inline(self, node: Node) -> tuple[int, frozenset[int]]:
        """Instructions that compute an element, and what they read from memory, but for rows."""
        kind = node.op.kind
        inline = node.op.cost if kind is Kind.POINTWISE else 0
        sources: frozenset[int] = frozenset()
        for x in node.inputs:
            own, reads = self.cost[id(x)], self.whole[id(x)]
            if node.op is EXPAND:
                broadcast = node.size > 4 * x.size
                moved = views.storage(x).op.kind is Kind.VIEW
                most = EXPAND_LIMIT
                if self.memory_bound and own > EXPAND_ENDED_LIMIT and self._is_epilogue(x):
                    most = EXPAND_ENDED_LIMIT
                if own > most and broadcast and not moved:
                    self._demand_through(x)
                if broadcast:  # computed once for a row, or nearly so
                    own, reads = 0, frozenset()
            elif kind is Kind.GATHER and x is node.inputs[0]:
                most = GATHER_LIMIT if GATHER_PART * node.size > x.size else GATHER_PART_LIMIT
                if own > most or (own and node.size > x.size and _ends_product(x)):
                    x = views.storage(x)
                    self._demand(x)
                    own, reads = 0, self.whole[id(x)]
            inline += own
            sources |= reads
        if kind is Kind.POINTWISE and len(node.inputs) > 1:
            inline += 1
        return inline, sources

    def _is_epilogue(self, x: Node) -> bool:
        """Whether what a node shows follows from a heavy kernel's result, element by element."""
        x = views.storage(x)
        while x.op.kind is Kind.POINTWISE and not _ends_product(x):
            inputs = [y for y in map(views.storage, x.inputs) if y.size == x.size]
            if len(inputs) != 1 or id(inputs[0]) in self.stored:
                return False
            x = inputs[0]
        return x.op.kind is Kind.POINTWISE

    def _shorten(self, node: Node) -> tuple[int, frozenset[int]]:
        """The statements that compute the node and all that they read from memory, after inputs
        that are too long, or read too much, got memory."""
        statements, kind = self.statements, node.op.kind
        lines, found = statements.compute(node), frozenset[int]()
        while kind is not Kind.LIBRARY:
            found = frozenset[int]().union(*(self.buffers[id(x)] for x in node.inputs))
            if len(found) > self.most_buffers:
                *through, x = _path(node, lambda x: len(self.buffers[id(x)]))
            elif lines > VALUE_LIMIT and kind is not Kind.REDUCTION:
                *through, x = _path(node, statements.count)
            else:
                break
            if statements.count(x) < 2:
                break
            self._demand(x)
            self.buffers[id(x)] = self.whole[id(x)]
            statements.read(x)
            for view in reversed(through):
                self.buffers[id(view)] = self.buffers[id(x)]
                statements.compute(view)
            lines = statements.compute(node)
        return lines, found

    def _demand_through(self, x: Node) -> None:
        """Give what a node shows through views that keep the order memory; know it of these."""
        views_above = []
        while views.keeps_order(x):
            views_above.append(x)
            x = x.inputs[0]
        self._demand(x)
        self.buffers[id(x)] = self.whole[id(x)]
        self.statements.read(x)
        for view in reversed(views_above):
            self.cost[id(view)] = 0
            self.buffers[id(view)] = self.whole[id(view)] = self.whole[id(x)]
            self.length[id(view)] = self.statements.compute(view)

    def _demand(self, x: Node) -> None:
        """Give a node memory after it has been visited."""
        self.whole[id(x)] = frozenset((id(x),))
        if x.op.kind not in (Kind.LEAF, Kind.CONST):
            self.target.add(id(x))
            self.stored.add(id(x))
            self.cost[id(x)] = 0


def _ends_product(node: Node) -> bool:
    """Whether a value follows from a heavy kernel's result, whose epilogue computes it once."""
    node = views.storage(node)
    for x in map(views.storage, node.inputs if node.op.kind is Kind.POINTWISE else ()):
        record = library.record(x.op)
        if record is not None and record.takes_epilogue and x.size == node.size:
            return True
    return False


def _base(node: Node) -> Node:
    """What a node shows, through views and broadcasts."""
    while views.is_view(node) or node.op is EXPAND:
        node = node.inputs[0]
    return node


def _shown(node: Node) -> Node:
    """What a node shows, through views."""
    while views.is_view(node):
        node = node.inputs[0]
    return node


def _path(node: Node, size: Callable[[Node], int]) -> list[Node]:
    """The path, through views, from the largest input to what these show."""
    path = [max(node.inputs, key=size)]
    while views.is_view(path[-1]):
        path.append(path[-1].inputs[0])
    return path
