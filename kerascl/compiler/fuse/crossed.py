"""Clusters that reduce the rows of the same values and their columns become one.

As the gradient of a norm's input, which takes sums along each row, and those of the norm's weights,
which are sums over all rows: both read what was normalised and the gradient of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerascl.compiler.fuse.rules import KERNEL_LIMIT, MOST_MEMBERS, Context, is_row_read
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.in_place import STORE
from kerascl.core.node import Node
from kerascl.core.op import Kind

# Whether a kernel serves for a cluster that two made, which read so many bytes both.
Accepts = Callable[[Cluster, int], bool]


class Crossing:
    """Merges clusters in pairs.

    Args:
        position: the place of each node in topological order, by id.
        reads: by id of each member, what it reads, and how.
        roots: ids of values that are wanted.
        now: what the rules know.
    """

    def __init__(
        self,
        position: dict[int, int],
        reads: dict[int, dict[int, set[Any]]],
        roots: set[int],
        now: Context,
    ) -> None:
        self.position = position
        self.reads = reads
        self.roots = roots
        self.now = now
        self.readers: dict[int, list[int]] = {}
        for key, patterns in reads.items():
            for x in patterns:
                self.readers.setdefault(x, []).append(key)

    def join(self, clusters: list[Cluster], nodes: dict[int, Node], accepts: Accepts) -> None:
        """Merge what can be merged among `clusters`, a list that is shortened.

        Args:
            nodes: all that members read, by id.
        """
        near: dict[int, list[Cluster]] = {}  # by id of a value: who reads or computes it
        for cluster in clusters:
            if _is_plain(cluster):
                for key in [*cluster.patterns, *(id(m) for m in cluster.members)]:
                    near.setdefault(key, []).append(cluster)
        for first in [x for x in clusters if _is_plain(x) and _reduces_columns(x)]:
            own: Cluster | None = first if first in clusters else None
            while own is not None:
                own = self._extended(own, clusters, nodes, near, accepts)

    def _extended(
        self,
        own: Cluster,
        clusters: list[Cluster],
        nodes: dict[int, Node],
        near: dict[int, list[Cluster]],
        accepts: Accepts,
    ) -> Cluster | None:
        """A cluster with the first of its neighbours that can be merged with it, or None."""
        keys = own.patterns.keys() | {id(m) for m in own.members}
        large = [key for key in keys if key in nodes and nodes[key].size >= own.size]
        others = {x.index: x for key in large for x in near[key] if x is not own}
        for _, other in sorted(others.items()):
            shared = [key for key in large if other in near[key]]
            saved = sum(own.size * nodes[key].dtype.itemsize for key in shared)
            made = self._trial(own, other)
            if made is None or not _acyclic(own, other, clusters) or not accepts(made, saved):
                continue
            replace(own, other, made, clusters)
            for key in {*made.patterns, *map(id, made.members)}:
                left = (x for x in near[key] if x is not own and x is not other)
                near[key] = [*left, made]
            return made
        return None

    def _trial(self, one: Cluster, two: Cluster) -> Cluster | None:
        """What two clusters would make, if no value is read where it is not known."""
        if one.shape != two.shape or one.phase != two.phase:
            return None
        rows = [x for x in (one, two) if x.columns or not _reduces_columns(x)]
        if not rows or {_axes(x) for x in rows} != {_axes(rows[0])}:
            return None
        kept, reduced = _axes(rows[0])
        if not kept or not reduced or max(kept) > min(reduced):
            return None
        members = sorted(one.members + two.members, key=lambda m: self.position[id(m)])
        trial = Cluster("reduction", one.shape, rows[0].axes, members, index=one.index)
        trial.staged, trial.phase = True, one.phase
        for x in (one, two):
            if x in rows:
                trial.row |= x.row
                trial.columns |= x.columns
            elif _axes(x) == (reduced, kept):
                trial.columns |= x.row
            else:
                return None
            for key, patterns in x.patterns.items():
                trial.patterns.setdefault(key, set()).update(patterns)
        after = [m for m in members if _follows(trial, m)]
        before = [m for m in members if not _follows(trial, m)]
        trial.statements, later = (
            sum(self.now.length.get(id(m), 0) for m in part) for part in (before, after)
        )
        along = (m for m in before if id(m) not in trial.columns)
        reductions = sum(m.op.kind is Kind.REDUCTION for m in along)
        buffers = len(trial.patterns.keys() | {id(m) for m in members})
        if max(len(before), len(after)) > MOST_MEMBERS:
            return None
        if max(trial.statements, later) > KERNEL_LIMIT or buffers >= self.now.most_buffers:
            return None
        if reductions > self.now.most_reductions:
            return None
        own = {id(m) for m in members}
        trial.stores = [
            m for m in members
            if id(m) in self.roots or any(x not in own for x in self.readers.get(id(m), ()))
        ]  # fmt: skip
        return trial if all(self._known(trial, m, own) for m in members) else None

    def _known(self, cluster: Cluster, member: Node, own: set[int]) -> bool:
        """Whether what a member reads of its own cluster is there at its place."""
        full = member.op.kind is Kind.REDUCTION or id(member) not in cluster.row | cluster.columns
        same = cluster.row if id(member) in cluster.row else cluster.columns
        for key, patterns in self.reads[id(member)].items():
            if key not in own:
                continue
            if key in self.now.apart or key in cluster.columns and full:
                return False
            if full and key in cluster.row:
                if not all(is_row_read(cluster, pattern) for pattern in patterns):
                    return False
            elif patterns != {"same"} or not (full or key in same):
                return False
        return True


def replace(one: Cluster, two: Cluster, made: Cluster, clusters: list[Cluster]) -> None:
    """Put what two clusters make in their place."""
    first, second = 1 << one.index, 1 << two.index
    made.before = (one.before | two.before) & ~(first | second)
    clusters[clusters.index(one)] = made
    clusters.remove(two)
    for x in clusters:
        if x.before & (first | second):
            x.before = (x.before | made.before | first) & ~second


def _acyclic(one: Cluster, two: Cluster, clusters: list[Cluster]) -> bool:
    """Whether no cluster must run after one of two and before the other."""
    both, before = 1 << one.index | 1 << two.index, one.before | two.before
    between = (x for x in clusters if x is not one and x is not two and before >> x.index & 1)
    return not any(x.before & both for x in between)


def _follows(cluster: Cluster, member: Node) -> bool:
    """Whether a member follows from its columns' results, in the second kernel."""
    return id(member) in cluster.columns and member.op.kind is not Kind.REDUCTION


def _is_plain(cluster: Cluster) -> bool:
    stores = any(m.op is STORE for m in cluster.members)
    return cluster.kind == "reduction" and cluster.size > 0 and not stores


def _reduces_columns(cluster: Cluster) -> bool:
    """Whether all axes but the last ones are reduced, and nothing follows there."""
    kept, reduced = _axes(cluster)
    return bool(kept and reduced) and max(reduced) < min(kept) and not cluster.staged


def _axes(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes that are kept, and those that are reduced, but for those of one element."""
    axes = [a for a, n in enumerate(cluster.shape) if n != 1]
    kept = tuple(a for a in axes if a not in cluster.axes)
    return kept, tuple(a for a in axes if a in cluster.axes)
