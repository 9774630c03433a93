"""Which nodes share a kernel: targets become clusters, greedily, by the rules of rules.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kerascl.compiler import library
from kerascl.compiler.fuse.crossed import Accepts, Crossing
from kerascl.compiler.fuse.rules import Context, Join, Part, join
from kerascl.compiler.fuse.targets import Computing, Reads, choose_targets, reads_of
from kerascl.compiler.graph import views
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.in_place import STORE, UPDATED, ReadLater, carry_of
from kerascl.compiler.graph.pieces import phases
from kerascl.core.node import Node
from kerascl.core.op import Kind
from kerascl.ops.nn import VARIANCE

NEIGHBOURS = 8  # clusters that read the same value and are looked at, the latest first


class Grouping:
    """Builds clusters greedily, in topological order, keeping the order of clusters acyclic."""

    def __init__(
        self,
        stored: set[int],
        now: Context,
        computed: dict[int, int],
        memory: dict[int, Node],
        phase: dict[int, int],
    ) -> None:
        self.stored = stored
        self.now = now
        self.computed = computed
        self.phase = phase
        self.memory = memory  # by the id of each store in place: what it replaces
        self.replaced: dict[int, Node] = {}  # by id: what stores among the clusters do
        self.clusters: list[Cluster] = []
        self.of: dict[int, Cluster] = {}
        self.reads: dict[int, dict[int, set[Any]]] = {}  # by id: what each target reads, and how
        self.seen: dict[int, Node] = {}  # what they read
        self._readers: dict[int, list[Cluster]] = {}

    def add(self, node: Node) -> None:
        """Put the next target into a cluster: one that takes it, or a new one."""
        kind = node.op.kind
        if kind is Kind.LIBRARY:
            cluster = Cluster("library", node.shape, computed=self.computed.get(id(node)))
            self._open(cluster, node, self._operands(node), Join())
            return
        if node.op is UPDATED:
            self.of[id(node)] = self.of[id(node.inputs[0])]
            return
        if kind is Kind.PICK:
            self.of[id(node)] = self.of[id(node.inputs[0])]
            self.of[id(node)].members.append(node)
            return
        reads = reads_of(node, self.stored)
        home, joined = self._home(node, reads) if node.size > 0 else (None, None)
        if home is not None and joined is not None:
            self._join(home, node, reads, joined)
        elif kind is Kind.REDUCTION:
            cluster = Cluster("reduction", node.inputs[0].shape, node.attrs[0])
            self._open(cluster, node, reads, Join(row=True))
        else:
            self._open(Cluster("map", node.shape), node, reads, Join())

    def _operands(self, node: Node) -> Reads:
        reads = Reads()
        for k, read in enumerate(library.operands(node)):
            found = [read.base]
            if self.computed.get(id(node)) == k:
                found = list(reads_of(read.base, self.stored).nodes.values())
            for base in found:
                reads.add(base, "other")
        return reads

    def _open(self, cluster: Cluster, node: Node, reads: Reads, joined: Join) -> None:
        cluster.index = len(self.clusters)
        cluster.phase = self.phase.get(id(node), 0)
        self.clusters.append(cluster)
        self._join(cluster, node, reads, joined)

    def _join(self, cluster: Cluster, node: Node, reads: Reads, joined: Join) -> None:
        cluster.kind = joined.kind or cluster.kind
        cluster.shape = cluster.shape if joined.shape is None else joined.shape
        cluster.axes = cluster.axes if joined.axes is None else joined.axes
        cluster.staged |= joined.staged
        if joined.row:
            cluster.row.add(id(node))
        cluster.members.append(node)
        cluster.statements += self.now.length.get(id(node), 0)
        self.of[id(node)] = cluster
        self.reads[id(node)] = reads.patterns
        self.seen.update(reads.nodes)
        if node.op is STORE:
            self.replaced[id(self.memory[id(node)])] = self.memory[id(node)]
        for key in reads.nodes:
            if key in self.replaced:
                raise ReadLater(carry_of(self.replaced[key]))
        for key, patterns in reads.patterns.items():
            cluster.patterns.setdefault(key, set()).update(patterns)
        if cluster.kind != "library":
            for key in reads.nodes:
                self._readers.setdefault(key, []).append(cluster)
        extra = 0
        for other in self._earlier(node, reads):
            if other is not cluster:
                extra |= other.before | (1 << other.index)
        if extra & ~cluster.before:
            cluster.before |= extra
            bit = 1 << cluster.index
            for other in self.clusters:
                if other.before & bit:
                    other.before |= cluster.before

    def _home(self, node: Node, reads: Reads) -> tuple[Cluster, Join] | tuple[None, None]:
        """The latest cluster that this target can join with profit, and how."""
        found: dict[int, Cluster] = {}
        for key in reads.nodes:
            if key in self.of:
                found.setdefault(self.of[key].index, self.of[key])
        own_size = node.inputs[0].size if node.op.kind is Kind.REDUCTION else node.size
        for key, read in reads.nodes.items():  # neighbours that read the same large value
            if read.size >= own_size:
                for cluster in self._readers.get(key, ())[-NEIGHBOURS:]:
                    found.setdefault(cluster.index, cluster)
        earlier = self._earlier(node, reads)
        for _, cluster in sorted(found.items(), reverse=True):
            if cluster.phase != self.phase.get(id(node), 0):
                continue
            if self._acyclic(cluster, earlier) and not self._uses_replaced(cluster, node):
                inside = {key for key in reads.nodes if self.of.get(key) is cluster}
                joined = join(cluster, node, reads, inside, self.now)
                if joined is not None:
                    return cluster, joined
        return None, None

    def _earlier(self, node: Node, reads: Reads) -> list[Cluster]:
        """The clusters that must have run: those that a target reads, and those that use memory
        which it replaces."""
        found = [self.of[key] for key in reads.nodes if key in self.of]
        if node.op is STORE:
            memory = self.memory[id(node)]
            found += [x for x in self.clusters if id(memory) in x.patterns]
            if id(memory) in self.of:
                found.append(self.of[id(memory)])
        return found

    def _uses_replaced(self, cluster: Cluster, node: Node) -> bool:
        """Whether a cluster reads or writes memory that a store in place replaces."""
        if node.op is not STORE:
            return False
        memory = id(self.memory[id(node)])
        return memory in cluster.patterns or self.of.get(memory) is cluster

    def _acyclic(self, cluster: Cluster, earlier: list[Cluster]) -> bool:
        bit = 1 << cluster.index
        return not any(x is not cluster and x.before & bit for x in earlier)


def group(
    nodes: list[Node],
    roots: list[Node],
    accepts: Callable[[Node, Part], bool],
    busy_rows: int = 0,
    update_limit: float = math.inf,
    most_buffers: float = math.inf,
    most_reductions: float = math.inf,
    computing: Computing | None = None,
    memory_bound: bool = False,
    crosses: Callable[[Cluster, set[int], int], bool] | None = None,
) -> tuple[list[Cluster], set[int]]:
    """Clusters in an order that respects dependencies, and the ids of stored nodes.

    Args:
        nodes: the graph in topological order.
        roots: the values wanted.
        accepts, busy_rows, update_limit, most_buffers, most_reductions: see
            `rules.Context`.
        computing: see `targets.Computing`.
        memory_bound: see `targets.choose_targets`.
        crosses: whether a kernel serves for a cluster that reduces rows and columns, made of two
            that read so many bytes both; given the ids of stored nodes, too.

    Raises:
        ReadLater: what a store in place replaces is read afterwards.
    """
    chosen = choose_targets(nodes, roots, most_buffers, computing, memory_bound)
    targets, stored, length, apart, computed = chosen
    varied = frozenset(id(node.inputs[0]) for node in nodes if node.op is VARIANCE)
    now = Context(
        accepts, length, varied, busy_rows, update_limit, most_buffers, most_reductions, apart
    )
    memory = {id(node.inputs[0]): node.inputs[1] for node in nodes if node.op is UPDATED}
    grouping = Grouping(stored, now, computed, memory, phases(nodes))
    for node in targets:
        grouping.add(node)
    if crosses is not None:
        _cross(grouping, nodes, roots, lambda made, saved: crosses(made, stored, saved))
    order = _ordered(grouping.clusters)
    _choose_stores(order, grouping, roots)
    return order, stored


def _cross(grouping: Grouping, nodes: list[Node], roots: list[Node], accepts: Accepts) -> None:
    """Merge clusters that reduce the rows and the columns of the same values."""
    position = {id(node): k for k, node in enumerate(nodes)}
    wanted = {id(views.storage(node)) for node in roots}
    crossing = Crossing(position, grouping.reads, wanted, grouping.now)
    crossing.join(grouping.clusters, grouping.seen, accepts)
    for cluster in grouping.clusters:
        grouping.of.update((id(m), cluster) for m in cluster.members)


def _ordered(clusters: list[Cluster]) -> list[Cluster]:
    """A topological order, phase after phase; clusters keep their place where nothing forces
    another."""
    done = 0
    result: list[Cluster] = []
    waiting = sorted(clusters, key=lambda cluster: cluster.phase)
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
            if member.op is STORE:
                needed.add(id(member))
            if member.op.kind is not Kind.PICK:
                reads = grouping.reads[id(member)]
                needed |= {k for k in reads if grouping.of.get(k) is not cluster}
    for cluster in clusters:
        cluster.stores = [m for m in cluster.members if id(m) in needed]
