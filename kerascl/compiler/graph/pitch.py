"""Large products with rows of an odd length get longer rows.

The rows of a language model's logits (50,257 words) begin anywhere in memory: vectors of them are
not aligned, and loads of matrix units cannot take them without a copy.  So such a product is
computed with a few columns more, and with it what is computed from it elementwise.  Whoever else
wants these values reads a part of the longer rows.  The columns beyond hold anything: reductions
take neutral values in their place, and nothing that is read depends on them.

Logits that are cut from longer rows, and whose slopes are padded to these again, are computed with
all of a row's columns: one kernel then goes from the logits to the slopes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kerascl import dtypes
from kerascl.compiler.graph.in_place import STORE
from kerascl.core.node import Node, const
from kerascl.core.op import CONST, Kind, Op
from kerascl.core.types import Attrs, Shape
from kerascl.dtypes import DType
from kerascl.kernels.contract.sizes import round_up
from kerascl.ops.contraction import MATMUL
from kerascl.ops.movement import IOTA
from kerascl.ops.pointwise import WHERE, less
from kerascl.ops.reduction import ARGMAX, MAX
from kerascl.ops.views import EXPAND, PAD, PERMUTE, RESHAPE, SLICE, SUM_OP
from kerascl.runtime.device import DeviceInfo

VECTOR_BYTES = 16  # rows of a multiple stay as they are
COLUMNS = 64  # longer rows have a multiple: whole lines of memory
LEAST_COLUMNS = 1024  # from which the columns beyond cost next to nothing
LEAST_SIZE = 1 << 22  # elements of a product
CUT_PART = 8  # of columns, those that are cut off are no more than a part of this
# What a reduction of floats takes where there is nothing.
NEUTRAL: dict[Op, float] = {SUM_OP: 0.0, MAX.op: -math.inf, ARGMAX.op: -math.inf}
# Other readers take a part of the longer rows as it lies; others yet would have it copied.
READERS = (Kind.POINTWISE, Kind.REDUCTION, Kind.GATHER)


def with_longer_rows(
    nodes: list[Node], roots: Sequence[Node], info: DeviceInfo
) -> LongerRows | None:
    """The graph with longer rows; None where all stays as it is.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
        info: the device's facts: it is done for GPUs.
    """
    if info.kind != "gpu":
        return None
    lengths = {node.shape[-1]: 0 for node in nodes if _is_odd(node)}
    lengths = _cut_lengths(nodes) | {n: round_up(n, COLUMNS) for n in lengths}
    if not lengths:
        return None
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for x in node.inputs:
            readers.setdefault(id(x), []).append(node)
    wanted = {id(root) for root in roots}
    found = [
        rows
        for length, longer in lengths.items()
        if (rows := _Rows(length, longer, nodes, readers, wanted)).follow
    ]
    return LongerRows(found, nodes) if found else None


def _is_odd(node: Node) -> bool:
    """Whether a node is a large product whose rows are no whole vectors."""
    if node.op is not MATMUL or node.size < LEAST_SIZE or node.shape[-1] < LEAST_COLUMNS:
        return False
    return node.shape[-1] * node.dtype.itemsize % VECTOR_BYTES != 0


def _cut_lengths(nodes: list[Node]) -> dict[int, int]:
    """Lengths of rows that are cut from longer ones and padded to them, and those of these."""
    cut = {(x.shape[-1], x.inputs[0].shape[-1]) for x in nodes if _is_cut(x)}
    padded = {(x.inputs[0].shape[-1], x.shape[-1]) for x in nodes if _is_padded(x)}
    return dict(cut & padded) if cut and padded else {}


def _is_cut(node: Node) -> bool:
    """Whether a node is most of each row of its input, from the first element on."""
    if node.op is not SLICE or not node.shape:
        return False
    starts, steps = node.attrs
    plain = not any(starts) and all(k == 1 for k in steps)
    (x,) = node.inputs
    length, longer = node.shape[-1], x.shape[-1]
    few = LEAST_COLUMNS <= length < longer <= length + length // CUT_PART
    return plain and few and node.shape[:-1] == x.shape[:-1]


def _is_padded(node: Node) -> bool:
    """Whether a node is its input with more at the end of each row."""
    if node.op is not PAD or not node.shape:
        return False
    low, gap, _ = node.attrs
    return not any(low) and not any(gap) and node.shape[:-1] == node.inputs[0].shape[:-1]


class _Rows:
    """The nodes with rows of one length that are computed with longer ones.

    Attributes:
        length, longer: elements of a row before and after.
        products: ids of the products, and of what is cut from longer rows.
        follow: ids of these and of what is computed from them.
        needed: ids of what has longer rows only because `follow` reads it.
    """

    def __init__(
        self,
        length: int,
        longer: int,
        nodes: list[Node],
        readers: dict[int, list[Node]],
        wanted: set[int],
    ) -> None:
        self.length = length
        self.longer = longer
        self.possible: set[int] = set()
        rows = [node for node in nodes if node.shape and node.shape[-1] == length]
        left = {id(node) for node in rows if _is_odd(node) or self._begins(node)}
        self.products: set[int] = set()
        while left != self.products:
            self.products = left
            origins = self._origins(rows)
            bad = (
                origins[id(x)]
                for x in rows
                if id(x) in origins and (id(x) in wanted or self._copied(x, readers, origins))
            )
            left = left.difference(*bad)
        self.follow = set(origins)
        self.needed: set[int] = set()
        for node in reversed(rows):
            if id(node) in self.follow or id(node) in self.needed:
                own = node.inputs[1:] if id(node) in self.products else node.inputs
                self.needed |= {id(x) for x in own if id(x) in self.possible - self.follow}

    def _origins(self, rows: list[Node]) -> dict[int, frozenset[int]]:
        """By ids of what can have longer rows because of products: the ids of these."""
        origins: dict[int, frozenset[int]] = {}
        self.possible = set()
        for node in rows:
            if id(node) in self.products and self._widens(node):
                origins[id(node)] = frozenset([id(node)])
            elif self._can(node):
                own = [origins[id(x)] for x in node.inputs if id(x) in origins]
                if own:
                    origins[id(node)] = frozenset().union(*own)
            else:
                continue
            self.possible.add(id(node))
        return origins

    def _begins(self, node: Node) -> bool:
        """Whether a node is cut from longer rows of the length in question."""
        return _is_cut(node) and node.inputs[0].shape[-1] == self.longer

    def ends(self, node: Node) -> bool:
        """Whether a node is padded to rows of the length in question."""
        return _is_padded(node) and node.shape[-1] == self.longer

    def _widens(self, product: Node) -> bool:
        """Whether the right operand has longer rows anyway, or they cost little."""
        if product.op is SLICE:
            return True
        right = product.inputs[1]
        return id(right) in self.possible or (right.op is not EXPAND and right.size <= product.size)

    def _can(self, node: Node) -> bool:
        """Whether a node can be computed with longer rows as its inputs are."""
        if node.op is IOTA:
            return True
        if node.op is EXPAND or node.op is RESHAPE:
            (x,) = node.inputs
            if x.shape and x.shape[-1] == self.length and id(x) in self.possible:
                return True
            return node.op is EXPAND and (x.shape[-1] == 1 or x.size == self.length)
        if node.op.kind is not Kind.POINTWISE or node.op is STORE:
            return False
        return bool(node.inputs) and all(
            x.op is CONST or not x.shape or id(x) in self.possible for x in node.inputs
        )

    def _copied(
        self, node: Node, readers: dict[int, list[Node]], origins: dict[int, frozenset[int]]
    ) -> bool:
        """Whether somebody reads a node who cannot read a part of longer rows as it lies."""
        for reader in readers.get(id(node), ()):
            if id(reader) in origins or reader.op is MATMUL or reader.op.kind in READERS:
                continue
            if self.ends(reader):
                continue
            turned = reader.op is PERMUTE and all(
                x.op is MATMUL or x.op.kind in READERS for x in readers.get(id(reader), ())
            )
            if not turned:
                return True
        return False


class LongerRows:
    """A graph that is built again with longer rows.

    Attributes:
        new: what stands for each old node, by the id of that.
        origin: by the id of each node that was made, that of the old node which it was made for.
    """

    def __init__(self, found: Iterable[_Rows], nodes: list[Node]) -> None:
        self.new: dict[int, Node] = {}
        self.origin: dict[int, int] = {}
        self._rows = {key: rows for rows in found for key in rows.follow | rows.needed}
        self._longer: dict[int, Node] = {}  # by id of the old node: the same with longer rows
        self._parts: dict[int, Node] = {}  # by id of the old node: the part of these that it was
        for node in nodes:
            self._old = node
            rows = self._rows.get(id(node))
            if rows is not None:
                self._longer[id(node)] = self._lengthened(node, rows)
            follows = rows is not None and id(node) in rows.follow
            self.new[id(node)] = self._part(node) if follows else self._rebuilt(node)

    def _make(
        self, op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType
    ) -> Node:
        made = Node(op, inputs, attrs, shape, dtype, self._old.device)
        self.origin[id(made)] = id(self._old)
        return made

    def _like(self, node: Node, inputs: tuple[Node, ...], shape: Shape) -> Node:
        return self._make(node.op, inputs, node.attrs, shape, node.dtype)

    def _rebuilt(self, node: Node) -> Node:
        """A node whose own rows stay as they are."""
        if node.op.kind is Kind.REDUCTION and id(node.inputs[0]) in self._rows:
            return self._reduced(node, self._rows[id(node.inputs[0])])
        if node.inputs and (rows := self._rows.get(id(node.inputs[0]))) and rows.ends(node):
            return self._masked(self._longer[id(node.inputs[0])], rows, node.attrs[2])
        takes_parts = node.op is MATMUL or node.op is PERMUTE
        inputs = tuple(
            self._part(x) if takes_parts and id(x) in self._longer else self.new[id(x)]
            for x in node.inputs
        )
        return node if inputs == node.inputs else self._like(node, inputs, node.shape)

    def _lengthened(self, node: Node, rows: _Rows) -> Node:
        """A node with longer rows."""
        shape = (*node.shape[:-1], rows.longer)
        if node.op is SLICE:
            return self.new[id(node.inputs[0])]
        if node.op is MATMUL:
            left, right = node.inputs
            return self._like(node, (self.new[id(left)], self._padded(right, rows)), shape)
        if node.op is EXPAND or node.op is RESHAPE:
            (x,) = node.inputs
            x = self.new[id(x)] if x.shape[-1] == 1 else self._padded(x, rows)
            return self._make(node.op, (x,), (shape,), shape, node.dtype)
        inputs = tuple(self._longer[id(x)] if x.shape else self.new[id(x)] for x in node.inputs)
        return self._like(node, inputs, shape)

    def _padded(self, node: Node, rows: _Rows) -> Node:
        """A node in longer rows: with zeros at their ends, if it is not computed so."""
        if id(node) not in self._longer:
            axis, inner = len(node.shape) - 1, node
            if node.op is PERMUTE:  # where it lies, so that it is not turned in memory as well
                ((*_, axis),), (inner,) = node.attrs, node.inputs
            shape = (*inner.shape[:axis], rows.longer, *inner.shape[axis + 1 :])
            attrs = (0,) * len(shape), (0,) * len(shape), 0
            made = self._make(PAD, (self.new[id(inner)],), attrs, shape, node.dtype)
            if inner is not node:
                made = self._like(node, (made,), (*node.shape[:-1], rows.longer))
            self._longer[id(node)] = made
        return self._longer[id(node)]

    def _part(self, node: Node) -> Node:
        """The part of longer rows that a node was."""
        if id(node) not in self._parts:
            self._parts[id(node)] = self._cut(self._longer[id(node)], node.shape)
        return self._parts[id(node)]

    def _cut(self, node: Node, shape: Shape) -> Node:
        at = (0,) * len(shape), (1,) * len(shape)
        return self._make(SLICE, (node,), at, shape, node.dtype)

    def _reduced(self, node: Node, rows: _Rows) -> Node:
        """A reduction of what has longer rows."""
        (x,), (axes,) = node.inputs, node.attrs
        longer, last = self._longer[id(x)], len(x.shape) - 1
        if last not in axes:
            whole = self._like(node, (longer,), (*node.shape[:-1], rows.longer))
            return self._cut(whole, node.shape)
        if node.op not in NEUTRAL or not x.dtype.is_float:
            return self._like(node, (self._part(x),), node.shape)
        masked = self._masked(longer, rows, NEUTRAL[node.op])
        return self._like(node, (masked,), node.shape)

    def _masked(self, longer: Node, rows: _Rows, other: float) -> Node:
        """Longer rows with something else beyond the columns that they had."""
        shape, last = longer.shape, len(longer.shape) - 1
        place = self._make(IOTA, (), (last,), shape, dtypes.positions(rows.longer))
        end = const(rows.length, place.dtype)
        inside = self._make(less.op, (place, end), (), shape, dtypes.bool_)
        nothing = const(other, longer.dtype)
        return self._make(WHERE, (inside, longer, nothing), (), shape, longer.dtype)
