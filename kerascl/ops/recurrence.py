"""A recurrence as one node: `states = cell(x[t], states[0] @ kernel, states)` for all t.

The cell is traced once, over one row of units.  If it is elementwise, a kernel runs all steps
without leaving the device.  The derivative is another such recurrence, in the other direction: a
cell, derived from the trace, that reads what the forward cell had dear to compute.
"""

from __future__ import annotations

from collections.abc import Callable
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
SAVE_COST = 3  # dearer values are kept for the derivative rather than computed again
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
        dear = node.op.kind is Kind.POINTWISE and node.op.cost > SAVE_COST and node.dtype.is_float
        return id(node) in forward and dear and node.shape != ()

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
    length, batch, width = inputs.shape
    units, count = kernel.shape[0], len(states)
    gates = width // units
    dtype, acc = inputs.dtype, inputs.dtype.accumulator
    if not dtype.is_float or not inputs.size:
        return None
    if kernel.size > MOST_WEIGHTS or len(current.tapes) > 1:
        return None
    traced = _trace(cell, gates, count, units, acc, bias is not None, mask is not None)
    if traced is None:
        return None
    extra = ([bias] if bias is not None else [], [mask] if mask is not None else [])
    state = (batch, units)
    own = _Streams(count)
    own.add(inputs, "step", traced.x)
    own.add(bias, "unit", traced.bias)
    own.add(mask, "row", traced.valid)
    products = [p._node for p in traced.products]
    new = [n._node for n in traced.new]
    leaves = [s._node for s in traced.states]

    def launch(
        groups: list[list[Node]],
        dtypes: list[DType],
        arrays: list[Array],
        initial: list[Array],
    ) -> list[Array]:
        body = Body(leaves, own.leaves, products, new, [n for g in groups for n in g])
        attrs = Recurrence(
            body, tuple(own.streams), 0, tuple(map(len, groups)), tuple(dtypes), reverse
        )
        shapes: list[tuple[Shape, DType]] = [
            ((length, batch, len(g) * units), d) for g, d in zip(groups, dtypes, strict=True)
        ]
        shapes += [(state, dtype)] * count
        return list(apply_multi(RECURRENCE, (arrays[0], *initial, *arrays[1:]), (attrs,), shapes))

    if not current.tapes:
        outputs, *final = launch([new[:1]], [dtype], [kernel, *own.arrays], states)
        return outputs, final
    derived = _Derivative(traced, units, acc)

    @custom_gradient
    def run(inputs: Array, kernel: Array, *rest: Array) -> tuple[Any, Callable[..., Gradients]]:
        initial, arrays = list(rest[:count]), [inputs, *rest[count:]]
        groups = [new[:1], *([n] for n in leaves)]
        dtypes = [dtype] * (1 + count)
        if derived.saved:
            groups, dtypes = [*groups, derived.saved], [*dtypes, acc]
        outputs, *found = launch(groups, dtypes, [kernel, *arrays], initial)
        before, saved, final = found[:count], found[count:-count], found[-count:]

        def gradient(d_outputs: Array, *d_final: Array) -> Gradients:
            spread = _Streams(count)
            for s in saved:
                spread.add(s, "step", derived.saved_leaves)
            for b, leaf in zip(before, traced.states, strict=True):
                spread.add(b, "step", [leaf])
            spread.add(inputs, "step", traced.x)
            spread.add(bias, "unit", traced.bias)
            spread.add(mask, "row", traced.valid)
            if not is_zero(d_outputs):
                spread.add(d_outputs, "step", [derived.upstream])
            attrs = derived.recurrence(spread, not is_zero(d_outputs), dtype, not reverse)
            shapes: list[tuple[Shape, DType]]
            shapes = [((length, batch, n * units), dtype) for n in attrs.groups]
            shapes += [(state, dtype)] * count
            found = apply_multi(
                RECURRENCE, (transpose(kernel), *d_final, *spread.arrays), (attrs,), shapes
            )
            d_products, d_initial = found[0], found[-count:]
            d_inputs = found[0] if len(attrs.groups) == 1 else found[1]
            flat_h = reshape_to(before[0], (length * batch, units))
            flat_z = reshape_to(d_products, (length * batch, width))
            d_kernel = matmul(transpose(flat_h), flat_z)
            d_bias = [sum(flat_z, 0)] if bias is not None else []
            return (d_inputs, d_kernel, *d_initial, *d_bias, *[None for _ in extra[1]])

        return (outputs, *final), gradient

    outputs, *final = run(inputs, kernel, *states, *extra[0], *extra[1])
    return outputs, final


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
        self, spread: _Streams, outside: bool, dtype: DType, reverse: bool
    ) -> Recurrence:
        """What the node computes; drops the streams that it does not need."""
        roots = self.bodies[outside]
        d_x, d_z = roots[: self.gates], roots[self.gates : 2 * self.gates]
        same = all(a is b for a, b in zip(d_x, d_z, strict=True))
        results = [*d_z, *d_z, *([] if same else d_x)]
        spread.keep({id(n) for n in topological(roots)})
        body = Body(
            [c._node for c in self.carry], spread.leaves, [self.product._node],
            roots[2 * self.gates :], results,
        )  # fmt: skip
        groups = (self.gates,) if same else (self.gates, self.gates)
        dtypes = (dtype,) * len(groups)
        return Recurrence(body, tuple(spread.streams), self.gates, groups, dtypes, reverse)
