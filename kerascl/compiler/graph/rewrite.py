"""Simplify a graph before compiling it: equal values once, fewer views, padding in convolutions,
attention that is written out by its kernels, sums of products as one, gradients of dense layers
together, large products in pieces and with aligned rows.

The graph that users hold is never changed: new nodes are made where something
differs.  Leaves are kept, so that a compiled program finds its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from kerascl.compiler import library
from kerascl.compiler.graph.chains import Replacement, chains
from kerascl.compiler.graph.dense import dense_gradients
from kerascl.compiler.graph.formula import Formula, formula_of
from kerascl.compiler.graph.kept import kept_dropout
from kerascl.compiler.graph.pieces import Pieces, in_pieces
from kerascl.compiler.graph.pitch import LongerRows, with_longer_rows
from kerascl.compiler.graph.products import summed_products
from kerascl.compiler.graph.scaled import scaled_queries
from kerascl.compiler.graph.symbolic import strides_of
from kerascl.compiler.graph.views import storage
from kerascl.core.node import Node, const, identity, topological
from kerascl.core.op import CONST, COPY, PICK, Kind, Op
from kerascl.core.tape import ALIAS
from kerascl.core.traced import BARRIER
from kerascl.core.types import Attrs, Shape
from kerascl.dtypes import DType
from kerascl.ops.declare import CAST
from kerascl.ops.pointwise import multiply
from kerascl.ops.views import EXPAND, PAD, PERMUTE, RESHAPE, SLICE
from kerascl.runtime.device import DeviceInfo

MOST_IN_PIECES = 8  # products of a graph that are computed in pieces


def rewrite(
    nodes: list[Node], roots: list[Node], info: DeviceInfo
) -> tuple[list[Node], list[Node], dict[int, int]]:
    """A simpler graph with the same values.

    Args:
        nodes: in topological order.
        roots: the values wanted; no order-keeping views.
        info: the device's facts: which library operations its kernels serve, and which their
            formulas.

    Returns:
        The new nodes in topological order; the new node for each root (these have memory of
        their own, unless the root is a leaf); and by id of each new node the serial number of
        the first old one that it stands for.
    """
    graph = _Rewriter(nodes, info)
    for node in nodes:
        graph.add(node)
    found = [graph.new[id(root)] for root in roots]
    simpler = topological(found)
    now = _Simplified(graph, found, simpler, info)
    for replacements in (chains, scaled_queries, kept_dropout, summed_products):
        now.replace(replacements(now.nodes, now.roots, info))
    for _ in range(MOST_IN_PIECES):
        if not now.rebuild(in_pieces(now.nodes, now.roots, info)):
            break
    now.replace(dense_gradients(now.nodes, now.roots, info))
    now.rebuild(with_longer_rows(now.nodes, now.roots, info))
    found = now.roots
    taken: set[int] = set()
    new_roots = []
    for root, new in zip(roots, found, strict=True):
        place = storage(new)
        if root.op.kind is not Kind.LEAF and (place.op.kind is Kind.LEAF or id(place) in taken):
            new = place = Node(COPY, (new,), (), new.shape, new.dtype)
        taken.add(id(place))
        new_roots.append(new)
    return topological(new_roots), new_roots, now.graph.origin


class _Simplified:
    """A graph on its way from one pass to the next: its nodes, its roots, and who made it."""

    def __init__(
        self, graph: _Rewriter, roots: list[Node], nodes: list[Node], info: DeviceInfo
    ) -> None:
        self.graph, self.roots, self.nodes, self.info = graph, roots, nodes, info

    def replace(self, instead: Mapping[int, Replacement]) -> None:
        """Put formulas in place of nodes."""
        if not instead:
            return
        serials = self.graph.origin
        self.graph = _Rewriter(self.nodes, self.info, instead)
        for node in _in_order(self.nodes, instead):
            self.graph.add(node, serials.get(id(node)))
        self._take(self.roots)

    def rebuild(self, built: Pieces | LongerRows | None) -> bool:
        """Go on with what a pass has built again; whether there is anything."""
        if built is None:
            return False
        serials = self.graph.origin
        roots = [built.new[id(root)] for root in self.roots]
        nodes = topological(roots)
        self.graph = _Rewriter(nodes, self.info)
        for node in nodes:
            self.graph.add(node, serials.get(built.origin.get(id(node), id(node))))
        self._take(roots)
        return True

    def _take(self, roots: list[Node]) -> None:
        self.roots = [self.graph.new[id(root)] for root in roots]
        self.nodes = topological(self.roots)


def _in_order(nodes: Sequence[Node], instead: Mapping[int, Replacement]) -> list[Node]:
    """Nodes in their order, but behind those that what stands for them is made of."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(node, False) for node in reversed(nodes)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            other = instead.get(id(node))
            stack.extend((x, False) for x in reversed(other.values if other else node.inputs))
    return order


class _Rewriter:
    def __init__(
        self, nodes: list[Node], info: DeviceInfo, instead: Mapping[int, Replacement] | None = None
    ) -> None:
        self.info = info
        self.instead = instead or {}
        self.new: dict[int, Node] = {}
        self.origin: dict[int, int] = {}
        self.known: dict[Hashable, Node] = {}
        self.readers: dict[int, int] = {}
        self.single: set[int] = set()  # new nodes whose original has one reader
        self.formulas: dict[int, Formula] = {}  # by the id of the node that each replaces
        self._count(nodes)

    def _count(self, nodes: list[Node]) -> None:
        for node in nodes:
            for x in node.inputs:
                self.readers[id(x)] = self.readers.get(id(x), 0) + 1

    def add(self, node: Node, serial: int | None = None) -> None:
        """Find the new node of an old one, or of one of a formula's, which is there for the old one
        of number `serial`."""
        serial = node.serial if serial is None else serial
        if id(node) in self.new:
            return
        if node.op.kind is Kind.LEAF:
            self.new[id(node)] = node
            return
        if node.op is PICK and id(node.inputs[0]) in self.formulas:
            result = self.formulas[id(node.inputs[0])].results[node.attrs[0]]
            self.new[id(node)] = self.new[id(result)]
            return
        other = self.instead.get(id(node))
        if other is not None:
            self._insert(other.formula, other.values, serial)
            self.new[id(node)] = self.new[id(other.formula.results[other.index])]
            return
        formula = formula_of(node, self.info) if node.op.kind is Kind.LIBRARY else None
        if formula is not None:
            self.formulas[id(node)] = formula
            self._insert(formula, node.inputs, serial)
            self.new[id(node)] = self.new[id(formula.results[0])]
            return
        inputs = tuple([self.new[id(x)] for x in node.inputs])
        result = self._simplify(node.op, inputs, node.attrs, node.shape, node.dtype)
        self.new[id(node)] = result
        made = id(result) not in self.origin
        self.origin.setdefault(id(result), serial)
        # a view of a view may be what was there before both: all between must have one reader
        passed = node.op.kind is Kind.VIEW and id(inputs[0]) in self.single
        if self.readers.get(id(node), 0) > 1 or not (made or passed):
            self.single.discard(id(result))
        elif made:
            self.single.add(id(result))

    def _insert(self, formula: Formula, values: Sequence[Node], serial: int) -> None:
        """Add a formula's nodes, once, for nodes of number `serial`."""
        if id(formula.results[0]) in self.new:
            return
        for argument, x in zip(formula.arguments, values, strict=True):
            self.new[id(argument)] = self.new[id(x)]
        inside = topological(formula.results)
        self._count(inside)
        for x in inside:
            self.add(x, serial)

    def make(
        self,
        op: Op,
        inputs: tuple[Any, ...],
        attrs: tuple[Any, ...],
        shape: tuple[Any, ...],
        dtype: DType,
    ) -> Node:
        """A node, or the equal one made before."""
        key = identity(op, tuple([id(x) for x in inputs]), attrs, shape, dtype)
        found = self.known.get(key)
        if found is None:
            found = const(attrs[0], dtype) if op is CONST else Node(op, inputs, attrs, shape, dtype)
            self.known[key] = found
        return found

    def _simplify(
        self, op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType
    ) -> Node:
        if op.kind is Kind.VIEW and len(inputs) == 1:
            return self._view(op, inputs[0], attrs, shape, dtype)
        if op.kind is Kind.POINTWISE:
            inputs = tuple([_scalar_behind(x) for x in inputs])
            same = _unchanged(op, inputs)
            if same is not None and same.shape == shape and same.dtype is dtype:
                return same
        elif op.kind is Kind.LIBRARY and inputs:
            if inputs[0].op is PAD:
                inputs, attrs = _without_padding(op, inputs, attrs)
            inputs = self._without_repeats(op, _without_zeros(op, inputs))
            inputs, attrs = self._without_scale(op, inputs, attrs)
        return self.make(op, inputs, attrs, shape, dtype)

    def _without_scale(self, op: Op, inputs: tuple[Node, ...], attrs: Attrs) -> tuple[Any, ...]:
        """The inputs and attributes of a library operation whose kernels multiply its first input
        by a number themselves, where nobody else reads the product."""
        x, through = inputs[0], []
        while id(x) in self.single and x.op in (PERMUTE, RESHAPE):
            through.append(x)
            x = x.inputs[0]
        record = library.record(op)
        if not record or id(x) not in self.single or x.op is not multiply.op:
            return inputs, attrs
        a, b = x.inputs
        number, rest = (a, b) if a.op is CONST else (b, a)
        if number.op is not CONST or not x.dtype.is_float or rest.dtype is not x.dtype:
            return inputs, attrs
        own = record.scaled(attrs, float(number.attrs[0]))
        if own is None or rest.shape != x.shape:
            return inputs, attrs
        for view in reversed(through):
            rest = self._view(view.op, rest, view.attrs, view.shape, view.dtype)
        return (rest, *inputs[1:]), own

    def _without_repeats(self, op: Op, inputs: tuple[Node, ...]) -> tuple[Node, ...]:
        """The inputs of a library operation without the repeated groups that it shares itself."""
        record = library.record(op)
        shared = record.shared if record else frozenset()
        groups = {k: _before_repeats(inputs[k]) for k in shared}
        if not groups or len({x and x.shape[2] for x in groups.values()}) > 1:
            return inputs
        found = list(inputs)
        for k, x in groups.items():
            if x is None:
                return inputs
            shape = x.shape[:3] + x.shape[4:]
            found[k] = self._view(RESHAPE, x, (shape,), shape, x.dtype)
        return tuple(found)

    def _view(self, op: Op, x: Node, attrs: Attrs, shape: Shape, dtype: DType) -> Node:
        if op is ALIAS:
            return x
        if op is BARRIER:  # never the same as another: what follows is computed again
            return Node(op, (x,), attrs, shape, dtype)
        if op in (RESHAPE, EXPAND, SLICE) and x.shape == shape:
            return x
        if op is RESHAPE:
            while x.op is RESHAPE:
                x = x.inputs[0]
            if x.shape == shape:
                return x
        elif op is EXPAND and x.op is EXPAND:
            return self._view(op, x.inputs[0], attrs, shape, dtype)
        elif op is PERMUTE:
            (axes,) = attrs
            if x.op is PERMUTE:
                (inner,) = x.attrs
                axes = tuple(inner[a] for a in axes)
                x = x.inputs[0]
            if _keeps_order(x.shape, axes):
                return self._view(RESHAPE, x, (shape,), shape, dtype)
            return self.make(op, (x,), (axes,), shape, dtype)
        elif op is SLICE and id(x) in self.single and (record := library.record(x.op)):
            cropped = record.cropped(x, *attrs, shape)
            if cropped is not None:
                return self.make(x.op, x.inputs, cropped, shape, dtype)
        return self.make(op, (x,), attrs, shape, dtype)


def _without_padding(op: Op, inputs: tuple[Node, ...], attrs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs and attributes of a library operation whose kernels add zeros themselves."""
    record = library.record(op)
    own = record.padded(attrs, inputs[0]) if record else None
    return (inputs, attrs) if own is None else ((inputs[0].inputs[0], *inputs[1:]), own)


def _without_zeros(op: Op, inputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The inputs without those at the end that are 0 and that an operation then does without."""
    record = library.record(op)
    while record and len(inputs) - 1 in record.zeros and _is_zero(inputs[-1]):
        inputs = inputs[:-1]
    return inputs


def _before_repeats(x: Node) -> Node | None:
    """Of (batch, length, heads, features) whose heads are groups, each repeated as often: these,
    (batch, length, groups, 1, features)."""
    if x.op is not RESHAPE or len(x.shape) != 4 or x.inputs[0].op is not EXPAND:
        return None
    wide = x.inputs[0].shape
    before: Node = x.inputs[0].inputs[0]
    fits = len(wide) == 5 and (wide[:2], wide[4:]) == (x.shape[:2], x.shape[3:])
    return before if fits and before.shape == (*wide[:3], 1, *wide[4:]) else None


def _is_zero(x: Node) -> bool:
    while x.op in (CAST, EXPAND, PERMUTE, RESHAPE, SLICE):
        x = x.inputs[0]
    # a negative zero is not left out: it may be seen in a result
    return x.op is CONST and x.attrs[0] == 0 and "-" not in str(x.attrs[0])


def _scalar_behind(x: Node) -> Node:
    """The constant behind broadcasts of a constant: pointwise code takes it as it is."""
    y = x
    while y.op in (EXPAND, RESHAPE):
        y = y.inputs[0]
    return y if y.op is CONST else x


def _unchanged(op: Op, inputs: tuple[Node, ...]) -> Node | None:
    """The input that an operation with its neutral number leaves as it is."""
    if op.neutral == (None, None):
        return None
    a, b = inputs
    left, right = op.neutral
    if a.op is not CONST and _is_number(b, right):
        return a
    if b.op is not CONST and _is_number(a, left):
        return b
    return None


def _is_number(x: Node, number: float | None) -> bool:
    """Whether a node is this constant, with its sign if it is a zero of floats."""
    # products and sums with complex numbers, which have two zeros, are left to the device
    if number is None or x.op is not CONST or x.attrs[0] != number or x.dtype.is_complex:
        return False
    return not x.dtype.is_float or math.copysign(1, x.attrs[0]) == math.copysign(1, number)


def _keeps_order(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a permutation only moves axes of size 1."""
    strides = strides_of(shape)
    order = [strides[a] for a in axes if shape[a] != 1]
    return all(a > b for a, b in zip(order, order[1:], strict=False))
