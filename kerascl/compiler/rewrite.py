"""Simplify a graph before compiling it: equal values once, fewer views, padding in convolutions.

The graph that users hold is never changed: new nodes are made where something
differs.  Leaves are kept, so that a compiled program finds its inputs.
"""

from __future__ import annotations

from kerascl.compiler.symbolic import strides_of
from kerascl.compiler.views import storage
from kerascl.core.node import Node, const, topological
from kerascl.core.op import CONST, COPY, REGISTRY, Kind, Op
from kerascl.dtypes import DType


def rewrite(nodes: list[Node], roots: list[Node]) -> tuple[list[Node], list[Node], dict[int, int]]:
    """A simpler graph with the same values.

    Args:
        nodes: in topological order.
        roots: the values wanted; no order-keeping views.

    Returns:
        The new nodes in topological order; the new node for each root (these have memory of
        their own, unless the root is a leaf); and by id of each new node the serial number of
        the first old one that it stands for.
    """
    graph = _Rewriter(nodes)
    for node in nodes:
        graph.add(node)
    taken: set[int] = set()
    new_roots = []
    for root in roots:
        new = graph.new[id(root)]
        place = storage(new)
        if root.op.kind is not Kind.LEAF and (place.op.kind is Kind.LEAF or id(place) in taken):
            new = place = Node(COPY, (new,), (), new.shape, new.dtype)
        taken.add(id(place))
        new_roots.append(new)
    return topological(new_roots), new_roots, graph.origin


class _Rewriter:
    def __init__(self, nodes: list[Node]):
        self.new: dict[int, Node] = {}
        self.origin: dict[int, int] = {}
        self.known: dict[tuple, Node] = {}
        self.readers: dict[int, int] = {}
        for node in nodes:
            for x in node.inputs:
                self.readers[id(x)] = self.readers.get(id(x), 0) + 1
        self.single: set[int] = set()  # new nodes whose original has one reader

    def add(self, node: Node) -> None:
        if node.op.kind is Kind.LEAF:
            self.new[id(node)] = node
            return
        inputs = tuple([self.new[id(x)] for x in node.inputs])
        result = self._simplify(node.op, inputs, node.attrs, node.shape, node.dtype)
        self.new[id(node)] = result
        self.origin.setdefault(id(result), node.serial)
        if self.readers.get(id(node), 0) <= 1:
            self.single.add(id(result))
        else:
            self.single.discard(id(result))

    def make(self, op: Op, inputs: tuple, attrs: tuple, shape: tuple, dtype: DType) -> Node:
        """A node, or the equal one made before."""
        if op is CONST:
            value = attrs[0]
            key = (op, type(value), repr(value), dtype)
        else:
            key = (op, tuple([id(x) for x in inputs]), repr(attrs), shape, dtype)
            if any(hasattr(a, "captured") for a in attrs):  # a loop body: compared by itself
                key = (op, tuple([id(x) for x in inputs]), attrs, shape, dtype)
        found = self.known.get(key)
        if found is None:
            found = const(attrs[0], dtype) if op is CONST else Node(op, inputs, attrs, shape, dtype)
            self.known[key] = found
        return found

    def _simplify(self, op: Op, inputs, attrs, shape, dtype) -> Node:
        if op.kind is Kind.VIEW and len(inputs) == 1:
            return self._view(op, inputs[0], attrs, shape, dtype)
        if op.kind is Kind.POINTWISE:
            inputs = tuple([_scalar_behind(x) for x in inputs])
            same = _neutral(op.name, inputs)
            if same is not None and same.shape == shape and same.dtype is dtype:
                return same
        elif op.kind is Kind.FAMILY and op.name in ("conv", "conv_filter_grad"):
            return self._padded_input(op, inputs, attrs, shape, dtype)
        return self.make(op, inputs, attrs, shape, dtype)

    def _view(self, op: Op, x: Node, attrs, shape, dtype) -> Node:
        name = op.name
        if name == "alias":
            return x
        if name == "barrier":  # never the same as another: what follows is computed again
            return Node(op, (x,), attrs, shape, dtype)
        if name in ("reshape", "expand", "slice") and x.shape == shape:
            return x
        if name == "reshape":
            while x.op.name == "reshape":
                x = x.inputs[0]
            if x.shape == shape:
                return x
        elif name == "expand" and x.op.name == "expand":
            return self._view(op, x.inputs[0], attrs, shape, dtype)
        elif name == "permute":
            (axes,) = attrs
            if x.op.name == "permute":
                (inner,) = x.attrs
                axes = tuple(inner[a] for a in axes)
                x = x.inputs[0]
            if _keeps_order(x.shape, axes):
                return self._view(REGISTRY["reshape"], x, (shape,), shape, dtype)
            return self.make(op, (x,), (axes,), shape, dtype)
        elif name == "slice" and x.op.name == "conv_data_grad" and id(x) in self.single:
            cropped = self._cropped(x, attrs, shape, dtype)
            if cropped is not None:
                return cropped
        return self.make(op, (x,), attrs, shape, dtype)

    def _padded_input(self, op: Op, inputs, attrs, shape, dtype) -> Node:
        """Zeros around a convolution's input become its own padding."""
        x = inputs[0]
        strides, pads, dilation, groups, first, precision = attrs
        if x.op.name == "pad":
            low, gap, value = x.attrs
            inner = x.inputs[0]
            high = [n - p - m for n, p, m in zip(x.shape, low, inner.shape, strict=True)]
            spatial = range(2, len(low)) if first else range(1, len(low) - 1)
            others = [a for a in range(len(low)) if a not in spatial]
            if value == 0 and not any(gap) and not any(low[a] or high[a] for a in others):
                pads = tuple(
                    (p + low[a], q + high[a]) for (p, q), a in zip(pads, spatial, strict=True)
                )
                attrs = (strides, pads, dilation, groups, first, precision)
                inputs = (inner, *inputs[1:])
        return self.make(op, inputs, attrs, shape, dtype)

    def _cropped(self, x: Node, attrs, shape, dtype) -> Node | None:
        """Only the part of a convolution's input gradient that is wanted."""
        starts, steps = attrs
        strides, pads, dilation, groups, first, precision = x.attrs
        if any(s != 1 for s in steps):
            return None
        spatial = range(2, len(shape)) if first else range(1, len(shape) - 1)
        if any(x.shape[a] != shape[a] for a in range(len(shape)) if a not in spatial):
            return None
        pads = tuple(
            (p + starts[a], q + x.shape[a] - starts[a] - shape[a])
            for (p, q), a in zip(pads, spatial, strict=True)
        )
        attrs = (strides, pads, dilation, groups, first, precision)
        return self.make(x.op, x.inputs, attrs, shape, dtype)


def _scalar_behind(x: Node) -> Node:
    """The constant behind broadcasts of a constant: pointwise code takes it as it is."""
    y = x
    while y.op.kind is Kind.VIEW and y.op.name in ("expand", "reshape"):
        y = y.inputs[0]
    return y if y.op is CONST else x


def _neutral(name: str, inputs: tuple[Node, ...]) -> Node | None:
    """The input that an addition of 0 or a multiplication by 1 leaves as it is."""
    name = name.removesuffix("_int")
    if name not in ("add", "subtract", "multiply", "divide"):
        return None
    a, b = inputs
    neutral = 0 if name in ("add", "subtract") else 1
    if b.op is CONST and b.attrs[0] == neutral and a.op is not CONST:
        return a
    if (
        name in ("add", "multiply")
        and a.op is CONST
        and a.attrs[0] == neutral
        and b.op is not CONST
    ):
        return b
    return None


def _keeps_order(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a permutation only moves axes of size 1."""
    strides = strides_of(shape)
    order = [strides[a] for a in axes if shape[a] != 1]
    return all(a > b for a, b in zip(order, order[1:], strict=False))
