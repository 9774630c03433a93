"""Which values must lie in memory, and how each of them reads the others.

Everything else is computed inline where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from kerascl.compiler import library
from kerascl.compiler.fuse.inline import Statements
from kerascl.compiler.graph import views
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.ops.views import CONCAT, EXPAND, PAD

INLINE_LIMIT = 160  # arithmetic cost of one kernel's expression before it is cut
# Cost up to which a value with several readers is computed again, from several values in memory
# and from one: then its readers read no more than if it were stored.
RECOMPUTE_LIMIT = 3
RECOMPUTE_ONE_LIMIT = 8
EXPAND_LIMIT = 30  # cost up to which a value is recomputed for each element it is broadcast to
GATHER_LIMIT = 4
# Statements of an element from which a concatenation, padding or gather is stored, where it has
# several readers and where it has one: parts of parts would multiply.
REPEAT_LIMIT = 24
PARTS_LIMIT = 96
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


def choose_targets(
    nodes: list[Node], roots: Iterable[Node], most_buffers: float = math.inf
) -> tuple[list[Node], set[int], dict[int, int]]:
    """The nodes that get memory, in topological order, the ids of all stored nodes, and by id how
    many statements compute a node.

    Where a value reads more than `most_buffers` stored ones, some inputs are stored first.
    """
    stored: set[int] = set()
    target: set[int] = set()
    readers: dict[int, int] = {}
    for node in nodes:
        for read_id in {id(x) for x in node.inputs}:
            readers[read_id] = readers.get(read_id, 0) + 1
    for node in roots:
        target.add(id(views.storage(node)))
    for node in nodes:
        if node.op.kind is Kind.LIBRARY:
            for read in library.operands(node):
                target.add(id(read.base))
    cost: dict[int, int] = {}
    whole: dict[int, frozenset[int]] = {}  # what is read from memory, but for rows; two say "many"
    buffers: dict[int, frozenset[int]] = {}  # all that is read from memory
    statements, length = Statements(), dict[int, int]()
    for node in nodes:
        key, kind = id(node), node.op.kind
        buffers[key] = whole[key] = frozenset((key,))
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
                buffers[key] = whole[key] = frozenset()
            cost[key] = 0
            continue
        if kind in (Kind.LIBRARY, Kind.PICK):
            target.add(key)
        elif kind is Kind.REDUCTION:
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
        while kind is not Kind.LIBRARY:
            found = frozenset[int]().union(*(buffers[id(x)] for x in node.inputs))
            if len(found) > most_buffers:
                *through, x = _path(node, lambda x: len(buffers[id(x)]))
            elif lines > VALUE_LIMIT and kind is not Kind.REDUCTION:
                *through, x = _path(node, statements.count)
            else:
                break
            if statements.count(x) < 2:
                break
            _demand(x, target, stored, cost)
            buffers[id(x)] = whole[id(x)] = frozenset((id(x),))
            statements.read(x)
            for view in reversed(through):
                buffers[id(view)] = buffers[id(x)]
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
            buffers[key] = found
            whole[key] = sources if len(sources) <= 2 else frozenset(list(sources)[:2])
        cost[key] = inline
    return [n for n in nodes if id(n) in target and n.op.kind is not Kind.LEAF], stored, length


def _path(node: Node, size: Callable[[Node], int]) -> list[Node]:
    """The path, through views, from the largest input to what these show."""
    path = [max(node.inputs, key=size)]
    while views.is_view(path[-1]):
        path.append(path[-1].inputs[0])
    return path


def _demand(x: Node, target: set[int], stored: set[int], cost: dict[int, int]) -> None:
    """Give a node memory after the walk has passed it."""
    if x.op.kind in (Kind.LEAF, Kind.CONST):
        return
    target.add(id(x))
    stored.add(id(x))
    cost[id(x)] = 0
