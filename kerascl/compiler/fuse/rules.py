"""Whether a target may join a cluster, and how: pure functions, which change nothing.

Each kind of cluster has a rule for elementwise targets and one for reductions.  They promise the
emitter that a kernel's own values are read only where they were computed: at the reader's own index
("same"), or a row's reduction by the elements of that row.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerascl.compiler.fuse.targets import Reads
from kerascl.compiler.generate.moments import RESULTS
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.in_place import STORE
from kerascl.core.node import Node
from kerascl.core.op import Kind
from kerascl.dtypes import float32
from kerascl.ops.declare import CAST
from kerascl.ops.pointwise import add
from kerascl.ops.views import EXPAND, RESHAPE

MOST_MEMBERS = 24
KERNEL_LIMIT = 512  # statements of a kernel
ROW_LIMIT = 1 << 16  # longest row that one work-group reduces and then reads again
ROW_ALONE_LIMIT = 8192  # longest row that is worth it when there are few rows


class Part(enum.Enum):
    """What a library operation's kernel may do beside its problem."""

    EPILOGUE = "elementwise operations on each result"
    UPDATE = "the same, with large states of their own"
    MOMENTS = "sums and variances over the rows of its results"


@dataclass(frozen=True)
class Context:
    """What the rules know beside a cluster and a target.

    Attributes:
        accepts: whether the kernel of a library operation's node takes such a part.
        length: by id, how many statements compute a value.
        varied: ids of values of which there is a variance.
        busy_rows: rows from which a device is busy with a row a work-group.
        update_limit: elements from which what reads states is an `UPDATE`.
        most_buffers: arguments of a kernel that are memory.
        most_reductions: of one kernel, where some read others' results.
        apart: ids of values that no kernel computes which reads them.
    """

    accepts: Callable[[Node, Part], bool]
    length: dict[int, int]
    varied: frozenset[int] = frozenset()
    busy_rows: int = 0
    update_limit: float = math.inf
    most_buffers: float = math.inf
    most_reductions: float = math.inf
    apart: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Join:
    """How a target joins a cluster, and what the cluster becomes by it.

    Attributes:
        row: whether the target lives on the kept axes only.
        staged: whether it needs a reduction's result over the full space.
        kind, shape, axes: the cluster's from now on, where they change.
    """

    row: bool = False
    staged: bool = False
    kind: str | None = None
    shape: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None


def join(cluster: Cluster, node: Node, reads: Reads, inside: set[int], now: Context) -> Join | None:
    """How a target joins a cluster, None if it must not.

    Args:
        reads: what the target reads.
        inside: ids of those values that the cluster computes.
    """
    if len(cluster.members) >= MOST_MEMBERS or inside & now.apart:
        return None
    if cluster.statements + now.length.get(id(node), 0) > KERNEL_LIMIT:
        return None
    if len(cluster.patterns.keys() | reads.patterns.keys()) + len(cluster.members) >= (
        now.most_buffers
    ):
        return None
    if node.op is STORE and (cluster.kind == "reduction" or cluster.row):
        return None
    own = {key: patterns for key, patterns in reads.patterns.items() if key in inside}
    if node.op.kind is Kind.REDUCTION:
        if any(member.op is STORE for member in cluster.members):
            return None
        rules = {"map": _reduced_map, "reduction": _second_reduction, "library": _moments}
        rule = rules[cluster.kind]
        return rule(cluster, node, own, now)
    if cluster.row and node.size == cluster.rows:
        among_rows = all(
            patterns == {"same"} and key in cluster.row for key, patterns in own.items()
        )
        return Join(row=True) if own and among_rows else None
    if cluster.kind == "library":
        return _epilogue(cluster, node, own, reads, now)
    if node.size != cluster.size:
        return None
    if cluster.kind == "map":
        return Join() if _all_same(own) else None
    return _beside_reduction(cluster, own, now)


def _all_same(own: dict[int, set[Any]]) -> bool:
    return all(patterns == {"same"} for patterns in own.values())


def _epilogue(
    cluster: Cluster, node: Node, own: dict[int, set[Any]], reads: Reads, now: Context
) -> Join | None:
    """An elementwise target behind a library operation."""
    if not own or cluster.size != node.size or not _all_same(own):
        return None
    states = (x for x in reads.nodes.values() if x.op.kind is Kind.LEAF and x.size == node.size)
    updates = cluster.size >= now.update_limit and any(states)
    part = Part.UPDATE if updates else Part.EPILOGUE
    return Join() if now.accepts(cluster.head, part) else None


def _beside_reduction(cluster: Cluster, own: dict[int, set[Any]], now: Context) -> Join | None:
    """An elementwise target over the full space of a reduction."""
    staged = _reads_rows(cluster, own)
    if staged is None or (staged and not _can_stage(cluster, now)):
        return None
    if cluster.staged and not own:
        return None
    return Join(staged=staged)


def _reduced_map(
    cluster: Cluster, node: Node, own: dict[int, set[Any]], now: Context
) -> Join | None:
    """A map whose result is reduced at once: reduce and store in one pass."""
    x = node.inputs[0]
    if not own or x.size != cluster.size or not _all_same(own):
        return None
    if cluster.size // max(1, node.size) < 2:
        return None
    return Join(row=True, kind="reduction", shape=x.shape, axes=node.attrs[0])


def _second_reduction(
    cluster: Cluster, node: Node, own: dict[int, set[Any]], now: Context
) -> Join | None:
    """A reduction beside others over the same axes, or of what follows from their results."""
    if cluster.shape != node.inputs[0].shape or cluster.axes != node.attrs[0]:
        return None
    staged = _reads_rows(cluster, own)
    if staged is None or (staged and not _can_stage(cluster, now)):
        return None
    reductions = sum(member.op.kind is Kind.REDUCTION for member in cluster.members)
    if (staged or cluster.staged) and reductions >= now.most_reductions:
        return None
    return Join(row=True, staged=staged)


def _moments(cluster: Cluster, node: Node, own: dict[int, set[Any]], now: Context) -> Join | None:
    """A sum or a variance over the rows of a product, which follow from its columns' moments.

    Sums beside a variance only: alone they stay finite or infinite where a mean becomes NaN.
    """
    head, x = cluster.head, node.inputs[0]
    if not own or not _all_same(own) or any(key in cluster.row for key in own):
        return None
    if node.size == cluster.size or id(x) not in now.varied or node.op not in RESULTS:
        return None
    if x.shape[-1:] != head.shape[-1:] or node.attrs[0] != tuple(range(len(x.shape) - 1)):
        return None
    if head.dtype.accumulator is not float32 or not _shifted(x, head):
        return None
    if cluster.computed is not None or not now.accepts(head, Part.MOMENTS):
        return None
    return Join(row=True, axes=tuple(range(len(cluster.shape) - 1)))


def _reads_rows(cluster: Cluster, own: dict[int, set[Any]]) -> bool | None:
    """Whether the cluster's values are read through its rows' results; None if one is read at an
    index other than the reader's own."""
    rows = False
    for key, patterns in own.items():
        if key in cluster.row:
            if not all(is_row_read(cluster, p) for p in patterns):
                return None
            rows = True
        elif patterns != {"same"}:
            return None
    return rows


def is_row_read(cluster: Cluster, pattern: Any) -> bool:
    """Whether a row's result is read by the elements of that row."""
    if not isinstance(pattern, tuple):
        return False
    _, shape, axes = pattern
    reduced = tuple(a for a in cluster.axes if cluster.shape[a] != 1)
    return bool(shape == cluster.shape and axes == reduced)


def _can_stage(cluster: Cluster, now: Context) -> bool:
    """Whether a work-group may own a row and go through it more than once."""
    if cluster.staged:
        return True
    axes = range(len(cluster.shape))
    kept = [a for a in axes if a not in cluster.axes and cluster.shape[a] != 1]
    reduced = [a for a in cluster.axes if cluster.shape[a] != 1]
    if reduced and kept and max(kept) > min(reduced):
        return False  # rows would be strided
    length = cluster.size // max(1, cluster.rows)
    if length > ROW_LIMIT:
        return False
    return length <= ROW_ALONE_LIMIT or cluster.rows >= now.busy_rows


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
