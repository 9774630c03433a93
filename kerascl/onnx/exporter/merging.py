"""The graphs of several traces as one graph, in which sizes that differ are Dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.core.labels import Labels
from kerascl.core.node import Node
from kerascl.core.op import ARGUMENT, CONST, DATA, PICK, Kind, Op
from kerascl.core.overlay import Overlay
from kerascl.dtypes import DType
from kerascl.onnx.exporter.errors import ExportError
from kerascl.onnx.exporter.sizes import Shape, joined, same_everywhere
from kerascl.ops import attention, elimination, histograms, updates
from kerascl.ops.control import Body
from kerascl.ops.recurrence import Recurrence

# Operations that are taken apart before rules see them: `formula(*inputs, *attrs)` gives the nodes
# of all results.
FORMULAS: dict[Op, Callable[..., Sequence[Array]]] = {
    attention.ATTENTION: attention.formula,
    elimination.SOLVE: lambda a, b: (elimination.gauss_jordan(a, b),),
    histograms.COUNTS: lambda *values: (histograms.counted(*values),),
    histograms.BINNED: lambda *values: (histograms.binned(*values),),
    updates.UPDATE: lambda *values: (updates.formula(*values),),
}


@dataclass(eq=False)
class Value:
    """A node of all traces.

    Attributes:
        label: the layer that it belongs to.
        node: that of the first trace.
        results: for operations with several results: (shape, dtype) of each.
    """

    op: Op
    inputs: tuple[Value, ...]
    attrs: tuple[Any, ...]
    shape: Shape
    dtype: DType
    label: str
    node: Node
    results: tuple[tuple[Shape, DType], ...] = ()

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.dtype.name}{list(self.shape)}>"


@dataclass(eq=False)
class Loop:
    """The body of a loop, of all traces; see `ops.control.Body`."""

    carry: list[Value]
    slices: list[Value]
    captured: list[Value]
    next_carry: list[Value]
    results: list[Value]
    order: list[Value]


class Merger:
    """Merges nodes of all traces, one of each, into Values.

    Attributes:
        order: all Values so far, inputs first.
    """

    def __init__(self, labels: Labels, start: int = -1):
        """
        Args:
            start: nodes with smaller serials are constants, made before all traces.
        """
        self._start = start
        self.order: list[Value] = []
        self._labels = labels
        self._merged: dict[tuple[int, ...], Value] = {}
        self._alive: list[Any] = []  # whose ids are keys
        self._formulas: dict[int, list[Node]] = {}

    def leaf(self, nodes: Sequence[Node]) -> Value:
        """The Value of nodes that stand for something from outside: an argument."""
        value = self._value(nodes, ARGUMENT, (), ())
        self._keep(nodes, value)
        return value

    def merge(self, roots: Sequence[Sequence[Node]]) -> list[Value]:
        """The Values of `roots`, each a node of every trace.

        Raises:
            ExportError: when the traces differ in more than sizes.
        """
        wanted = [tuple(self._apart(n) for n in nodes) for nodes in roots]
        stack = wanted[::-1]
        while stack:
            nodes = stack[-1]
            self._settle(nodes[0])
            if _key(nodes) in self._merged:
                stack.pop()
                continue
            self._check_alike(nodes)
            reads = [
                tuple(self._apart(n) for n in each)
                for each in zip(*(n.inputs for n in nodes), strict=True)
            ]
            missing = [r for r in reads if _key(r) not in self._merged]
            if missing:
                stack += missing[::-1]
                continue
            stack.pop()
            self._keep(nodes, self._join(nodes, tuple(self._merged[_key(r)] for r in reads)))
        return [self._merged[_key(nodes)] for nodes in wanted]

    def _settle(self, node: Node) -> None:
        """What the function reads from outside, and what nobody has computed yet, is a constant."""
        if node.serial < self._start and node.op.kind is not Kind.LEAF and node.op is not CONST:
            current.engine.evaluate([node])

    def _keep(self, nodes: Sequence[Node], value: Value) -> None:
        self._alive.append(tuple(nodes))
        self._merged[_key(nodes)] = value
        self.order.append(value)

    def _apart(self, node: Node) -> Node:
        """The node that stands for a result of an operation that is taken apart, else itself."""
        whole = node.inputs[0] if node.op is PICK else node
        if whole.op not in FORMULAS or (whole is node and node.op.outputs > 1):
            return node
        found = self._formulas.get(id(whole))
        if found is None:
            inputs = [_array(x) for x in whole.inputs]
            self._labels.mark(self._labels.at(whole.serial))
            with current.replaced(trace=Overlay(), labels=None, tapes=(), tracers=()):
                results = FORMULAS[whole.op](*inputs, *whole.attrs)
            self._alive += [whole, inputs, results]
            found = self._formulas[id(whole)] = [y._node for y in results]
        return found[node.attrs[0] if node.op is PICK else 0]

    def _check_alike(self, nodes: tuple[Node, ...]) -> None:
        first = nodes[0]
        for other in nodes[1:]:
            alike = (
                other.op is first.op
                and len(other.inputs) == len(first.inputs)
                and len(other.shape) == len(first.shape)
                and other.dtype is first.dtype
            )
            if not alike:
                raise ExportError(
                    f"{self._place(first)}the graph depends on the sizes of the inputs: where one "
                    f"size gives {first!r}, another gives {other!r}. Give the inputs fixed shapes: "
                    "a shape without None in input_signature, or dynamic_batch=False"
                )

    def _place(self, node: Node) -> str:
        label = self._labels.at(node.serial)
        return f"layer {label}: " if label else ""

    def _value(
        self, nodes: Sequence[Node], op: Op, inputs: tuple[Value, ...], attrs: tuple[Any, ...]
    ) -> Value:
        first = nodes[0]
        shape = tuple(joined(each) for each in zip(*(n.shape for n in nodes), strict=True))
        value = Value(op, inputs, attrs, shape, first.dtype, self._labels.at(first.serial), first)
        if op.outputs > 1:
            value.results = tuple(
                (tuple(joined(n) for n in zip(*(shape for shape, _ in each), strict=True)),
                 each[0][1])
                for each in zip(*(n.results for n in nodes), strict=True)
            )  # fmt: skip
        return value

    def _join(self, nodes: tuple[Node, ...], inputs: tuple[Value, ...]) -> Value:
        op = nodes[0].op
        if op is DATA:
            self._check_constant(nodes)
        elif op.kind is Kind.LEAF and any(n is not nodes[0] for n in nodes):
            raise ExportError(
                f"{self._place(nodes[0])}the function reads {nodes[0]!r}, whose value is not known"
            )
        attrs = tuple(
            joined(each) if op is CONST else self._attribute(nodes[0], each)
            for each in zip(*(n.attrs for n in nodes), strict=True)
        )
        return self._value(nodes, op, inputs, attrs)

    def _check_constant(self, nodes: tuple[Node, ...]) -> None:
        first = nodes[0]
        for other in nodes[1:]:
            if other is first:
                continue
            a, b = (Array(n).numpy() for n in (first, other))
            if a.shape != b.shape or a.tobytes() != b.tobytes():
                what = f"{self._place(first)}a constant of shape {first.shape}"
                same_everywhere(joined([a.shape, b.shape]), what)
                same_everywhere(joined([a.tolist(), b.tolist()]), what)

    def _attribute(self, node: Node, each: Sequence[Any]) -> Any:
        first = each[0]
        if isinstance(first, tuple) and all(len(x) == len(first) for x in each):
            return tuple(self._attribute(node, x) for x in zip(*each, strict=True))
        if isinstance(first, Body):
            return self.body(each)
        if isinstance(first, Recurrence):
            self._attribute(node, [(r.streams, r.groups, r.operand, r.reverse) for r in each])
            return first, self.body([r.body for r in each])
        if type(first) is int:
            return joined(each)
        if any(x != first for x in each):
            same_everywhere(joined(each), f"{self._place(node)}an attribute of {node.op.name}")
        return first

    def body(self, bodies: Sequence[Body]) -> Loop:
        """The merged body of a loop."""
        inner = Merger(self._labels)
        inner._alive.append(bodies)

        def each(name: str) -> list[tuple[Node, ...]]:
            return list(zip(*(getattr(b, name) for b in bodies), strict=True))

        held, slices, captured = (
            [inner.leaf(n) for n in each(name)] for name in ("carry", "slices", "captured")
        )
        carry, results = each("next_carry"), each("results")
        roots = inner.merge([*carry, *results])
        next_carry, found = roots[: len(carry)], roots[len(carry) :]
        return Loop(held, slices, captured, next_carry, found, inner.order)


def _key(nodes: Sequence[Node]) -> tuple[int, ...]:
    return tuple(id(n) for n in nodes)


def _array(node: Node) -> Array:
    held = None if node.handle is None else node.handle()
    return Array(node) if held is None else held
