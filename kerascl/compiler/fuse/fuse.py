"""Which nodes share a kernel.

First decide which values must lie in memory (targets); everything else is
computed inline where it is used.  Then group targets into clusters, each of
which becomes one kernel (or one heavy kernel with its epilogue).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from kerascl.compiler import library
from kerascl.compiler.fuse.inline import Statements
from kerascl.compiler.graph import views
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.dtypes import float32
from kerascl.ops.contraction import MATMUL
from kerascl.ops.convolution import CONV
from kerascl.ops.declare import CAST
from kerascl.ops.nn import VARIANCE
from kerascl.ops.pointwise import add
from kerascl.ops.views import CONCAT, EXPAND, PAD, RESHAPE, SUM_OP

INLINE_LIMIT = 160  # arithmetic cost of one kernel's expression before it is cut
# Cost up to which a value with several readers is computed again, from several values in memory
# and from one: then its readers read no more than if it were stored.
RECOMPUTE_LIMIT = 3
RECOMPUTE_ONE_LIMIT = 8
EXPAND_LIMIT = 30  # cost up to which a value is recomputed for each element it is broadcast to
ROW_LIMIT = 1 << 16  # longest row that one work-group reduces and then reads again
ROW_ALONE_LIMIT = 8192  # longest row that is worth it when there are few rows
GATHER_LIMIT = 4
# Statements of an element from which a concatenation, padding or gather is stored, where it has
# several readers and where it has one: parts of parts would multiply.
REPEAT_LIMIT = 24
PARTS_LIMIT = 96
# Statements of a value beyond which its longest inputs are stored, and of a kernel.
VALUE_LIMIT = 256
KERNEL_LIMIT = 512
# Products that may be asked for their columns' moments, and the folds that follow from these: sums
# beside a variance only, as alone they stay finite or infinite where a mean becomes NaN.
PRODUCTS = (CONV, MATMUL)
MOMENTS = (SUM_OP, VARIANCE)


@dataclass(eq=False)
class Cluster:
    """Targets computed by one kernel.

    Attributes:
        kind: "map", "fold" or "family".
        shape: the full index space; for folds the shape before reducing.
        axes: reduced axes of a fold cluster, or of the folds beside a product.
        members: targets in order of computation.
        row: ids of members that live on the kept axes only.
        how: how each value from memory is read, over all members.
        streamed: ids of members stored at the place of the current loop step.
        staged: members that need the folds' results over the full space exist.
        stores: members whose value must be written to memory.
        statements: about how many one element takes.
    """

    kind: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()
    members: list[Node] = field(default_factory=list)
    row: set[int] = field(default_factory=set)
    how: dict[int, set] = field(default_factory=dict)
    streamed: set[int] = field(default_factory=set)
    staged: bool = False
    stores: list[Node] = field(default_factory=list)
    statements: int = 0
    index: int = 0
    before: int = 0  # bit set of clusters that must run earlier

    @property
    def head(self) -> Node:
        return self.members[0]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return math.prod(n for a, n in enumerate(self.shape) if a not in self.axes)


class Reads:
    """What one target reads from memory, and how.

    `how` maps a stored node's id to "same" (every read is at the reader's own
    linear index), "row" (through a broadcast along `axes`), or "other".
    """

    def __init__(self):
        self.nodes: dict[int, Node] = {}
        self.how: dict[int, set] = {}

    def add(self, node: Node, how) -> None:
        self.nodes[id(node)] = node
        self.how.setdefault(id(node), set()).add(how)


def reads_of(target: Node, stored: set[int]) -> Reads:
    """Walk the inline expression of a target."""
    reads = Reads()
    seen: set[tuple] = set()
    stack: list[tuple[Node, object]] = []

    def push_inputs(node: Node, how) -> None:
        kind = node.op.kind
        if kind is Kind.VIEW and not views.keeps_order(node):
            if node.op is EXPAND and how == "same":
                x = node.inputs[0]
                axes = tuple(
                    a for a, (m, n) in enumerate(zip(x.shape, node.shape, strict=True)) if m != n
                )
                how = ("row", node.shape, axes)
            else:
                how = "other"
            for x in node.inputs:
                stack.append((x, how))
            return
        if kind is Kind.GATHER:
            stack.append((node.inputs[0], "other"))
            for x in node.inputs[1:]:
                stack.append((x, how))
            return
        for x in node.inputs:
            stack.append((x, how))

    push_inputs(target, "same")
    while stack:
        node, how = stack.pop()
        if (id(node), how) in seen or node.op is CONST:
            continue
        seen.add((id(node), how))
        if id(node) in stored:
            reads.add(node, how)
        else:
            push_inputs(node, how)
    return reads


def choose_targets(
    nodes: list[Node], roots: Iterable[Node]
) -> tuple[list[Node], set[int], dict[int, int]]:
    """The nodes that get memory, in topological order, the ids of all stored nodes, and by id how
    many statements compute a node."""
    stored: set[int] = set()
    target: set[int] = set()
    readers: dict[int, int] = {}
    for node in nodes:
        for read_id in {id(x) for x in node.inputs}:
            readers[read_id] = readers.get(read_id, 0) + 1
    for node in roots:
        target.add(id(views.storage(node)))
    for node in nodes:
        if node.op.kind is Kind.FAMILY:
            for read in library.operands(node):
                target.add(id(read.base))
    cost: dict[int, int] = {}
    whole: dict[int, frozenset[int]] = {}  # what is read from memory, but for rows; two say "many"
    statements, length = Statements(), dict[int, int]()
    for node in nodes:
        key, kind = id(node), node.op.kind
        whole[key] = frozenset((key,))
        if kind is Kind.LEAF:
            stored.add(key)
            cost[key] = 0
            statements.read(node)
            continue
        if kind is Kind.CONST:
            statements.read(node)
            if key in target:
                stored.add(key)
            else:
                whole[key] = frozenset()
            cost[key] = 0
            continue
        if kind in (Kind.FAMILY, Kind.PICK):
            target.add(key)
        elif kind is Kind.FOLD:
            target.add(key)
        inline = node.op.cost if kind is Kind.POINTWISE else 0
        sources: frozenset[int] = frozenset()
        for x in node.inputs:
            own, reads = cost[id(x)], whole[id(x)]
            if node.op is EXPAND:
                spread = node.size > 4 * x.size
                if own > EXPAND_LIMIT and spread and x.op.kind is not Kind.VIEW:
                    _demand(x, target, stored, cost)
                    whole[id(x)] = frozenset((id(x),))
                if spread:  # computed once for a row, or nearly so
                    own, reads = 0, frozenset()
            elif kind is Kind.GATHER and own > GATHER_LIMIT and x is node.inputs[0]:
                _demand(x, target, stored, cost)
                own, reads = 0, frozenset((id(x),))
                whole[id(x)] = reads
            inline += own
            sources |= reads
        if kind is Kind.POINTWISE and len(node.inputs) > 1:
            inline += 1
        again = RECOMPUTE_LIMIT if len(sources) > 1 else RECOMPUTE_ONE_LIMIT
        if readers.get(key, 0) > 1 and kind is Kind.POINTWISE and inline > again:
            target.add(key)
        if inline > INLINE_LIMIT and kind in (Kind.POINTWISE, Kind.GATHER):
            target.add(key)
        lines = statements.compute(node)
        while lines > VALUE_LIMIT and kind is not Kind.FOLD:
            *through, x = statements.largest(node)
            if statements.count(x) < 2:
                break
            _demand(x, target, stored, cost)
            whole[id(x)] = frozenset((id(x),))
            statements.read(x)
            for view in reversed(through):
                statements.compute(view)
            lines = statements.compute(node)
        if kind is Kind.GATHER or node.op in (CONCAT, PAD):
            several = readers.get(key, 0) > 1
            if lines > (REPEAT_LIMIT if several else PARTS_LIMIT):
                target.add(key)
        length[key] = lines
        if key in target:
            stored.add(key)
            statements.read(node)
            inline = 0
        else:
            whole[key] = sources if len(sources) <= 2 else frozenset(list(sources)[:2])
        cost[key] = inline
    return [n for n in nodes if id(n) in target and n.op.kind is not Kind.LEAF], stored, length


def _demand(x: Node, target: set[int], stored: set[int], cost: dict[int, int]) -> None:
    """Give a node memory after the walk has passed it."""
    if x.op.kind in (Kind.LEAF, Kind.CONST):
        return
    target.add(id(x))
    stored.add(id(x))
    cost[id(x)] = 0


class Grouping:
    """Builds clusters greedily, in topological order, keeping the order of clusters acyclic."""

    def __init__(
        self, stored: set[int], alone: set[int], fold_capacity: int, update_limit: float,
        apart: set[int] | None, varied: set[int], length: dict[int, int],
    ):  # fmt: skip
        self.stored = stored
        self.length = length  # of each value: how many statements compute it
        self.alone = alone  # ids of targets that an earlier attempt could not fuse
        self.apart = apart  # ids of folds that stay out of products' clusters; None says all do
        self.varied = varied  # ids of values of which there is a variance
        self.fold_capacity = fold_capacity
        self.update_limit = update_limit
        self.clusters: list[Cluster] = []
        self.of: dict[int, Cluster] = {}
        self.reads: dict[int, set[int]] = {}
        self._readers: dict[int, list[Cluster]] = {}

    def add(self, node: Node) -> None:
        kind = node.op.kind
        if kind is Kind.FAMILY:
            self._open(Cluster("family", node.shape), node, self._family_reads(node))
            return
        if kind is Kind.PICK:
            self.of[id(node)] = self.of[id(node.inputs[0])]
            self.of[id(node)].members.append(node)
            return
        reads = reads_of(node, self.stored)
        if id(node) not in self.alone and node.size > 0:
            home = self._home(node, reads)
            if home is not None:
                self._join(home, node, reads)
                return
        if kind is Kind.FOLD:
            cluster = Cluster("fold", node.inputs[0].shape, node.attrs[0])
            cluster.row.add(id(node))
        else:
            cluster = Cluster("map", node.shape)
        self._open(cluster, node, reads)

    def _family_reads(self, node: Node) -> Reads:
        reads = Reads()
        for read in library.operands(node):
            reads.add(read.base, "other")
        return reads

    def _open(self, cluster: Cluster, node: Node, reads: Reads) -> None:
        cluster.index = len(self.clusters)
        self.clusters.append(cluster)
        self._join(cluster, node, reads)

    def _join(self, cluster: Cluster, node: Node, reads: Reads) -> None:
        cluster.members.append(node)
        cluster.statements += self.length.get(id(node), 0)
        self.of[id(node)] = cluster
        self.reads[id(node)] = set(reads.nodes)
        for key, how in reads.how.items():
            cluster.how.setdefault(key, set()).update(how)
        if cluster.kind != "family":
            for key in reads.nodes:
                self._readers.setdefault(key, []).append(cluster)
        extra = 0
        for key in reads.nodes:
            other = self.of.get(key)
            if other is not None and other is not cluster:
                extra |= other.before | (1 << other.index)
        if extra & ~cluster.before:
            cluster.before |= extra
            bit = 1 << cluster.index
            for other in self.clusters:
                if other.before & bit:
                    other.before |= cluster.before

    def _home(self, node: Node, reads: Reads) -> Cluster | None:
        """The latest cluster that this target can join with profit."""
        tried: set[int] = set()
        candidates = []
        for key in reads.nodes:
            cluster = self.of.get(key)
            if cluster is not None and cluster.index not in tried:
                tried.add(cluster.index)
                candidates.append(cluster)
        own_size = node.inputs[0].size if node.op.kind is Kind.FOLD else node.size
        for key, read in reads.nodes.items():  # neighbours that read the same large value
            if read.size >= own_size:
                for cluster in self._readers.get(key, ())[-8:]:
                    if cluster.index not in tried:
                        tried.add(cluster.index)
                        candidates.append(cluster)
        candidates.sort(key=lambda c: -c.index)
        for cluster in candidates:
            if self._acyclic(cluster, reads) and self._fits(cluster, node, reads):
                return cluster
        return None

    def _acyclic(self, cluster: Cluster, reads: Reads) -> bool:
        bit = 1 << cluster.index
        for key in reads.nodes:
            other = self.of.get(key)
            if other is not None and other is not cluster and other.before & bit:
                return False
        return True

    def _fits(self, cluster: Cluster, node: Node, reads: Reads) -> bool:
        if len(cluster.members) >= 24:
            return False
        if cluster.statements + self.length.get(id(node), 0) > KERNEL_LIMIT:
            return False
        inside = {k: how for k, how in reads.how.items() if self.of.get(k) is cluster}
        if node.op.kind is Kind.FOLD:
            return self._fold_fits(cluster, node, inside)
        if cluster.row and node.size == cluster.rows:
            # a member over the kept axes
            among_rows = all(how == {"same"} and k in cluster.row for k, how in inside.items())
            if inside and among_rows:
                cluster.row.add(id(node))
            return bool(inside) and among_rows
        if cluster.kind == "family":
            # An update reads and writes several states: with the few work-groups of a large
            # product's kernel that takes longer than a pass of its own.
            updates = cluster.size >= self.update_limit and any(
                x.op.kind is Kind.LEAF and x.size == node.size for x in reads.nodes.values()
            )
            return (
                bool(inside)
                and not updates
                and cluster.size == node.size
                and cluster.head.op.outputs == 1
                and all(how == {"same"} for how in inside.values())
            )
        if cluster.kind == "map":
            return cluster.size == node.size and all(how == {"same"} for how in inside.values())
        # fold clusters: a member over the full space
        if node.size != cluster.size:
            return False
        needs_fold = False
        for key, how in inside.items():
            if key in cluster.row:
                if not all(self._is_row_read(cluster, h) for h in how):
                    return False
                needs_fold = True
            elif how != {"same"}:
                return False
        if needs_fold:
            if not self._can_stage(cluster):
                return False
            cluster.staged = True
        elif cluster.staged and not inside:
            return False
        return True

    def _is_row_read(self, cluster: Cluster, how) -> bool:
        if not isinstance(how, tuple):
            return False
        _, shape, axes = how
        if shape == cluster.shape:
            return axes == tuple(a for a in cluster.axes if cluster.shape[a] != 1)
        return False

    def _can_stage(self, cluster: Cluster) -> bool:
        if cluster.staged:
            return True
        rank = len(cluster.shape)
        kept = [a for a in range(rank) if a not in cluster.axes and cluster.shape[a] != 1]
        reduced = [a for a in cluster.axes if cluster.shape[a] != 1]
        if reduced and kept and max(kept) > min(reduced):
            return False  # rows would be strided
        length = cluster.size // max(1, cluster.rows)
        if length > ROW_LIMIT:
            return False
        return length <= ROW_ALONE_LIMIT or cluster.rows >= self.fold_capacity

    def _fold_fits(self, cluster: Cluster, node: Node, inside: dict) -> bool:
        if cluster.kind == "map":
            # a map whose result is reduced at once: fold and store in one pass
            x = node.inputs[0]
            if not inside or x.size != cluster.size or any(h != {"same"} for h in inside.values()):
                return False
            if cluster.size // max(1, node.size) < 2:
                return False
            cluster.kind, cluster.shape, cluster.axes = "fold", x.shape, node.attrs[0]
            cluster.row.add(id(node))
            return True
        if cluster.kind == "family":
            if self.apart is None or id(node) in self.apart or not inside:
                return False
            if any(how != {"same"} or k in cluster.row for k, how in inside.items()):
                return False
            if node.size == cluster.size or id(node.inputs[0]) not in self.varied:
                return False
            if not _from_moments(cluster.head, node):
                return False
            cluster.axes = tuple(range(len(cluster.shape) - 1))
            cluster.row.add(id(node))
            return True
        if cluster.shape != node.inputs[0].shape or cluster.axes != node.attrs[0]:
            return False
        staged = False
        for key, how in inside.items():
            if key in cluster.row:
                if not all(self._is_row_read(cluster, h) for h in how):
                    return False
                staged = True
            elif how != {"same"}:
                return False
        if staged:
            if not self._can_stage(cluster):
                return False
            cluster.staged = True
        cluster.row.add(id(node))
        return True


def _from_moments(head: Node, fold: Node) -> bool:
    """Whether a fold over what follows a product `head` follows from its columns' moments."""
    return (
        head.op in PRODUCTS
        and head.dtype.accumulator is float32
        and fold.op in MOMENTS
        and fold.inputs[0].shape[-1:] == head.shape[-1:]
        and fold.attrs[0] == tuple(range(len(fold.inputs[0].shape) - 1))
        and _shifted(fold.inputs[0], head)
    )


def _shifted(node: Node, head: Node) -> bool:
    """Whether `node` is `head` with something added to each column."""
    while node is not head:
        if node.dtype.accumulator is not float32 or node.dtype.is_float8:
            return False
        reshaped = node.op is RESHAPE and node.inputs[0].shape[-1:] == head.shape[-1:]
        if node.op is CAST or reshaped:
            (node,) = node.inputs
        elif node.op is add.op:
            rows = [x for x in node.inputs if _same_in_rows(x)]
            if len(rows) != 1:
                return False
            (node,) = (x for x in node.inputs if x is not rows[0])
        else:
            return False
    return True


def _same_in_rows(node: Node) -> bool:
    """Whether a value is one vector, repeated for each row."""
    return node.op is EXPAND and node.inputs[0].size == node.inputs[0].shape[-1]


def group(
    nodes: list[Node],
    roots: list[Node],
    alone: set[int],
    fold_capacity: int,
    update_limit: float = math.inf,
    apart: set[int] | None = None,
) -> tuple[list[Cluster], set[int]]:
    """Clusters in an order that respects dependencies, and the ids of stored nodes.

    Args:
        nodes: the graph in topological order.
        roots: the values wanted.
        alone: ids of targets that must not join another's cluster.
        fold_capacity: rows from which a device is busy with a row a work-group.
        update_limit: elements from which a product is not joined by what reads states.
        apart: ids of folds that must not join a product, None for all.
    """
    targets, stored, length = choose_targets(nodes, roots)
    varied = {id(node.inputs[0]) for node in nodes if node.op is VARIANCE}
    grouping = Grouping(stored, alone, fold_capacity, update_limit, apart, varied, length)
    for node in targets:
        grouping.add(node)
    order = _ordered(grouping.clusters)
    _choose_stores(order, grouping, roots)
    return order, stored


def _ordered(clusters: list[Cluster]) -> list[Cluster]:
    """A topological order; clusters keep their place where nothing forces another."""
    done = 0
    result: list[Cluster] = []
    waiting = list(clusters)
    while waiting:
        rest = []
        for cluster in waiting:
            if cluster.before & ~done:
                rest.append(cluster)
            else:
                result.append(cluster)
                done |= 1 << cluster.index
        if len(rest) == len(waiting):
            raise AssertionError("clusters depend on each other in a circle")
        waiting = rest
    return result


def _choose_stores(clusters: list[Cluster], grouping: Grouping, roots: list[Node]) -> None:
    """Members that nobody outside their cluster reads stay in registers."""
    needed = {id(views.storage(node)) for node in roots}
    for cluster in clusters:
        for member in cluster.members:
            if member.op.kind is not Kind.PICK:
                reads = grouping.reads[id(member)]
                needed |= {k for k in reads if grouping.of.get(k) is not cluster}
    for cluster in clusters:
        cluster.stores = [m for m in cluster.members if id(m) in needed]
