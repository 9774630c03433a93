"""A recurrence as one node: `states = cell(x[t], states[0] @ kernel, states)` for all t.

The cell is traced once, over one row of units.  If it is elementwise, a kernel runs all steps
without leaving the device.  The derivative is another such recurrence, in the other direction: a
cell, derived from the trace, that reads what was expensive for the forward cell to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kerascl.core.array import Array, apply_multi
from kerascl.core.context import current
from kerascl.core.node import Node, topological
from kerascl.core.op import ARGUMENT, CONST, Kind
from kerascl.core.tape import ALIAS, GradientTape, custom_gradient, pause
from kerascl.core.types import Gradients, Shape
from kerascl.dtypes import DType, bool_
from kerascl.ops.contraction import matmul
from kerascl.ops.control import Body, BodyTrace, is_zero
from kerascl.ops.declare import cast_to, library_operation, scalar
from kerascl.ops.movement import transpose
from kerascl.ops.pointwise import add, where
from kerascl.ops.reduction import sum
from kerascl.ops.views import EXPAND, RESHAPE, expand_to, reshape_to

# (x for each gate, product for each gate, states) -> new states; elementwise
Cell = Callable[[list[Array], list[Array], list[Array]], list[Array]]

MOST_WEIGHTS = 1 << 18  # beyond that, reading the weights takes longer than launching each step
SAVE_COST = 3  # more expensive values are kept for the derivative rather than computed again
_IDENTITIES = (RESHAPE, ALIAS)


@dataclass(frozen=True)
class Stream:
    """Where the cell's k-th slice comes from.

    `kind` is "step", "row" or "unit" as in the kernel's problem; `source` numbers the node's
    inputs.
    """

    source: int
    kind: str
    block: int = 0
    blocks: int = 1


@dataclass(frozen=True)
class Recurrence:
    """What a recurrence node computes.

    Its inputs are the weights, the initial states and the streams' sources; its outputs the
    groups (time, batch, blocks * units) and then the final states.

    Attributes:
        body: carry are the states, slices the streams, captured the products; results are the
            operand's blocks (if any), then the blocks of each group.
        operand: how many results make up what the next step multiplies; 0: the first state.
        groups, dtypes: number of blocks in each group, and their dtype.
    """

    body: Body
    streams: tuple[Stream, ...]
    operand: int
    groups: tuple[int, ...]
    dtypes: tuple[DType, ...]
    reverse: bool


RECURRENCE = library_operation("recurrence", outputs=2)


@dataclass
class _Traced:
    """The cell over one row: its leaves, its new states and, on request, their derivatives."""

    x: list[Array]
    products: list[Array]
    bias: list[Array]
    states: list[Array]
    valid: list[Array]
    new: list[Array]
    tape: GradientTape
    sums: list[Array]

    def __post_init__(self) -> None:
        self.nodes = topological([n._node for n in self.new])
        leaves = [*self.x, *self.products, *self.bias, *self.states, *self.valid]
        self.leaves = {id(a._node) for a in leaves}

    def is_elementwise(self, units: int) -> bool:
        return all(
            id(n) in self.leaves
            or n.op is CONST
            or (n.op.kind is Kind.POINTWISE and n.inputs and n.shape == (1, units))
            or (n.op.kind is Kind.POINTWISE and n.shape == ())
            or (n.op.kind is Kind.VIEW and _is_plain_view(n))
            for n in self.nodes
        )


def _is_plain_view(node: Node) -> bool:
    """Whether element k of the view is element k of its input, or its one constant."""
    (x, *others) = node.inputs
    if others:
        return False
    if node.op in _IDENTITIES and x.shape == node.shape:
        return True
    while x.op in (RESHAPE, EXPAND) and x.size == 1:
        x = x.inputs[0]
    return node.op in (RESHAPE, EXPAND) and x.op is CONST


def _leaf(shape: tuple[int, ...], dtype: DType) -> Array:
    return Array(Node(ARGUMENT, (), ("cell", 0), shape, dtype))


def _trace(
    cell: Cell, gates: int, states: int, units: int, acc: DType, bias: bool, masked: bool
) -> _Traced | None:
    """The traced cell; None when it is not elementwise, or reads arrays from outside."""
    row = (1, units)
    x, products = [_leaf(row, acc) for _ in range(gates)], [_leaf(row, acc) for _ in range(gates)]
    shift = [_leaf(row, acc) for _ in range(gates if bias else 0)]
    old = [_leaf(row, acc) for _ in range(states)]
    valid = [_leaf(row, bool_)] if masked else []
    with (
        current.replaced(trace=BodyTrace(), tapes=()),
        GradientTape(persistent=True) as tape,
    ):
        sums = [add(p, b) for p, b in zip(products, shift, strict=True)] if bias else products
        new = list(cell(x, sums, old))
        if any(n.shape != row or n.dtype is not acc for n in new):
            return None
        if masked:
            new = [where(valid[0], n, o) for n, o in zip(new, old, strict=True)]
    traced = _Traced(x, products, shift, old, valid, new, tape, sums)
    return traced if traced.is_elementwise(units) else None


def _cut(roots: list[Node], traced: _Traced) -> tuple[list[Node], list[Node], list[Node]]:
    """The graph of the derivative on its own.

    Returns:
        `roots` over stand-ins, the forward nodes that they stand for, and the stand-ins.
    """
    forward = {id(n) for n in traced.nodes}
    sums = {id(s._node) for s in traced.sums}

    def is_saved(node: Node) -> bool:
        if id(node) in sums:
            return True
        expensive = (
            node.op.kind is Kind.POINTWISE and node.op.cost > SAVE_COST and node.dtype.is_float
        )
        return id(node) in forward and expensive and node.shape != ()

    reached: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) not in reached:
            reached.add(id(node))
            if not is_saved(node):
                stack.extend(node.inputs)
    saved, stand_ins = [], []
    new: dict[int, Node] = {}
    for node in topological(roots):
        if id(node) not in reached:
            continue
        if is_saved(node):
            saved.append(node)
            new[id(node)] = Node(ARGUMENT, (), ("cell", 0), node.shape, node.dtype)
            stand_ins.append(new[id(node)])
        elif not node.inputs:
            new[id(node)] = node
        else:
            inputs = tuple(new[id(x)] for x in node.inputs)
            new[id(node)] = Node(node.op, inputs, node.attrs, node.shape, node.dtype)
    return [new[id(r)] for r in roots], saved, stand_ins


def recurrence(
    cell: Cell,
    inputs: Array,
    states: list[Array],
    kernel: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    reverse: bool = False,
) -> tuple[Array, list[Array]] | None:
    """Run the cell over all steps in one launch, with a derivative that does the same.

    Args:
        cell: gets the inputs' gates, the products' gates (with their bias) and the states.
        inputs: (time, batch, gates * units).
        states: each (batch, units); the first one enters the product.
        kernel: (units, gates * units).
        bias: (gates * units,), added to the product.
        mask: bool (time, batch); a step that is not valid keeps the states.
        reverse: from the last step to the first.

    Returns:
        The first state after each step (time, batch, units), and the final states; None when
        this form does not serve: the cell is not elementwise, the weights are too many, or two
        tapes are active (the derivative here has none itself).
    """
    units, dtype = kernel.shape[0], inputs.dtype
    if not dtype.is_float or not inputs.size:
        return None
    if kernel.size > MOST_WEIGHTS or len(current.tapes) > 1:
        return None
    gates, acc = inputs.shape[-1] // units, dtype.accumulator
    traced = _trace(cell, gates, len(states), units, acc, bias is not None, mask is not None)
    if traced is None:
        return None
    steps = _Steps(traced, inputs, units, bias, mask, reverse)
    outputs, *final = steps.run(inputs, kernel, states)
    return outputs, final


class _Steps:
    """All steps of a traced cell, and their derivative.

    Args:
        inputs: whose shape and dtype all calls have.
        bias, mask: as of `recurrence`.
    """

    def __init__(
        self,
        traced: _Traced,
        inputs: Array,
        units: int,
        bias: Array | None,
        mask: Array | None,
        reverse: bool,
    ) -> None:
        self.traced, self.units, self.reverse = traced, units, reverse
        self.bias, self.mask = bias, mask
        self.length, self.batch, self.width = inputs.shape
        self.dtype, self.count = inputs.dtype, len(traced.states)
        self.leaves = [s._node for s in traced.states]
        self.new = [n._node for n in traced.new]

    def run(self, inputs: Array, kernel: Array, states: list[Array]) -> list[Array]:
        """The outputs and the final states, which have a derivative where a tape records."""
        own = self._read(_Streams(self.count), inputs)
        if not current.tapes:
            return self._launch(own, [self.new[:1]], [self.dtype], [kernel, *own.arrays], states)
        derived = _Derivative(self.traced, self.units, self.dtype.accumulator)
        count = self.count

        @custom_gradient
        def run(inputs: Array, kernel: Array, *rest: Array) -> tuple[Any, Callable[..., Gradients]]:
            initial, arrays = list(rest[:count]), [kernel, inputs, *rest[count:]]
            groups = [self.new[:1], *([n] for n in self.leaves)]
            dtypes = [self.dtype] * (1 + count)
            if derived.saved:
                groups = [*groups, derived.saved]
                dtypes = [*dtypes, self.dtype.accumulator]
            outputs, *found = self._launch(own, groups, dtypes, arrays, initial)
            before, saved, final = found[:count], found[count:-count], found[-count:]

            def gradient(d_outputs: Array, *d_final: Array) -> Gradients:
                return self._gradient(derived, inputs, kernel, before, saved, d_outputs, d_final)

            return (outputs, *final), gradient

        rest = [x for x in (self.bias, self.mask) if x is not None]
        return list(run(inputs, kernel, *states, *rest))

    def _read(self, streams: _Streams, inputs: Array) -> _Streams:
        """Add what the cell reads in both directions."""
        streams.add(inputs, "step", self.traced.x)
        streams.add(self.bias, "unit", self.traced.bias)
        streams.add(self.mask, "row", self.traced.valid)
        return streams

    def _apply(
        self, attrs: Recurrence, weights: Array, initial: Sequence[Array], arrays: list[Array]
    ) -> list[Array]:
        """The groups and the final states of a recurrence node."""
        shapes: list[tuple[Shape, DType]] = [
            ((self.length, self.batch, blocks * self.units), dtype)
            for blocks, dtype in zip(attrs.groups, attrs.dtypes, strict=True)
        ]
        shapes += [((self.batch, self.units), self.dtype)] * self.count
        return list(apply_multi(RECURRENCE, (weights, *initial, *arrays), (attrs,), shapes))

    def _launch(
        self,
        own: _Streams,
        groups: list[list[Node]],
        dtypes: list[DType],
        arrays: list[Array],
        initial: list[Array],
    ) -> list[Array]:
        """Run forward, keeping groups of values of every step."""
        products = [p._node for p in self.traced.products]
        body = Body(self.leaves, own.leaves, products, self.new, [n for g in groups for n in g])
        blocks = tuple(map(len, groups))
        attrs = Recurrence(body, tuple(own.streams), 0, blocks, tuple(dtypes), self.reverse)
        return self._apply(attrs, arrays[0], initial, arrays[1:])

    def _gradient(
        self,
        derived: _Derivative,
        inputs: Array,
        kernel: Array,
        before: list[Array],
        saved: list[Array],
        d_outputs: Array,
        d_final: Sequence[Array],
    ) -> Gradients:
        """Gradients of inputs, kernel, states, bias (where there is one) and mask (None)."""
        streams = _Streams(self.count)
        for s in saved:
            streams.add(s, "step", derived.saved_leaves)
        for b, leaf in zip(before, self.traced.states, strict=True):
            streams.add(b, "step", [leaf])
        self._read(streams, inputs)
        outside = not is_zero(d_outputs)
        if outside:
            streams.add(d_outputs, "step", [derived.upstream])
        attrs = derived.recurrence(streams, outside, self.dtype, not self.reverse)
        found = self._apply(attrs, transpose(kernel), d_final, streams.arrays)
        d_products, d_initial = found[0], found[-self.count :]
        d_inputs = found[0] if len(attrs.groups) == 1 else found[1]
        flat_h = reshape_to(before[0], (self.length * self.batch, self.units))
        flat_z = reshape_to(d_products, (self.length * self.batch, self.width))
        d_kernel = matmul(transpose(flat_h), flat_z)
        d_bias = [sum(flat_z, 0)] if self.bias is not None else []
        d_mask = [None] if self.mask is not None else []
        return (d_inputs, d_kernel, *d_initial, *d_bias, *d_mask)


class _Streams:
    """Collects a node's streams: which leaf of the body reads which block of which array."""

    def __init__(self, states: int) -> None:
        self.first = 1 + states  # inputs of the node that come before
        self.arrays: list[Array] = []
        self.leaves: list[Node] = []
        self.streams: list[Stream] = []

    def add(self, array: Array | None, kind: str, leaves: list[Array]) -> None:
        if array is None or not leaves:
            return
        for k, leaf in enumerate(leaves):
            self.leaves.append(leaf._node)
            self.streams.append(Stream(self.first + len(self.arrays), kind, k, len(leaves)))
        self.arrays.append(array)

    def keep(self, used: set[int]) -> None:
        """Drop what no leaf in `used` (ids) reads."""
        pairs = [(n, s) for n, s in zip(self.leaves, self.streams, strict=True) if id(n) in used]
        sources = sorted({s.source for _, s in pairs})
        self.leaves = [n for n, _ in pairs]
        self.streams = [
            Stream(self.first + sources.index(s.source), s.kind, s.block, s.blocks)
            for _, s in pairs
        ]
        self.arrays = [self.arrays[k - self.first] for k in sources]


class _Derivative:
    """The cell of the backward pass.

    Attributes:
        saved: forward values that it reads; saved_leaves: what stands for them in it.
        upstream: leaf for the gradient of the outputs.
    """

    def __init__(self, traced: _Traced, units: int, acc: DType) -> None:
        row = (1, units)
        self.carry = [_leaf(row, acc) for _ in traced.states]
        self.product = _leaf(row, acc)
        self.upstream = _leaf(row, acc)
        self.gates = len(traced.x)
        sources = [*traced.x, *traced.products, *traced.states]
        self.bodies = []
        for outside in (False, True):
            with pause():
                first = add(self.carry[0], self.product)
                first = add(first, self.upstream) if outside else first
                found = traced.tape.gradient(traced.new, sources, [first, *self.carry[1:]])
                zero = expand_to(scalar(0, acc), row)
                found = [zero if g is None else cast_to(g, acc) for g in found]
            self.bodies.append([g._node for g in found])
        both = [n for body in self.bodies for n in body]
        roots, self.saved, stand_ins = _cut(both, traced)
        self.bodies = [roots[: len(sources)], roots[len(sources) :]]
        self.saved_leaves = [Array(n) for n in stand_ins]

    def recurrence(
        self, streams: _Streams, outside: bool, dtype: DType, reverse: bool
    ) -> Recurrence:
        """What the node computes; drops the streams that it does not need."""
        roots = self.bodies[outside]
        d_x, d_z = roots[: self.gates], roots[self.gates : 2 * self.gates]
        same = all(a is b for a, b in zip(d_x, d_z, strict=True))
        results = [*d_z, *d_z, *([] if same else d_x)]
        streams.keep({id(n) for n in topological(roots)})
        body = Body(
            [c._node for c in self.carry], streams.leaves, [self.product._node],
            roots[2 * self.gates :], results,
        )  # fmt: skip
        groups = (self.gates,) if same else (self.gates, self.gates)
        dtypes = (dtype,) * len(groups)
        return Recurrence(body, tuple(streams.streams), self.gates, groups, dtypes, reverse)
