"""Loops and recurrences, as Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx
from onnx import helper

from kerascl.dtypes import DType, bool_, int64
from kerascl.onnx.exporter.errors import ExportError
from kerascl.onnx.exporter.graph import Graph, type_of
from kerascl.onnx.exporter.merging import Loop, Value
from kerascl.onnx.exporter.pruning import needed
from kerascl.onnx.exporter.rules.table import emit, rule
from kerascl.onnx.exporter.sizes import Dim
from kerascl.ops.control import LOOP
from kerascl.ops.recurrence import RECURRENCE, Recurrence
from kerascl.ops.repeat import WHILE

Tensor: TypeAlias = tuple[str, DType]
# (graph of the body, carried values, slices) -> new carried values, results
Step: TypeAlias = Callable[[Graph, list[str], list[str]], tuple[list[Tensor], list[Tensor]]]


def scan(
    g: Graph, carry: Sequence[Tensor], xs: Sequence[Tensor], step: Step, reverse: bool
) -> list[str]:
    """A loop over the leading axis of `xs`: the final carried values, then the stacked results.

    Scan's own directions and axes are left alone, since not every runtime has them.
    """
    if reverse:
        xs = [(_backwards(g, name), t) for name, t in xs]
    inner = Graph(g.opset, g.symbols, g)
    inner.label = g.label
    held, slices = _leaves(inner, carry, "carry"), _leaves(inner, xs, "slice")
    new, results = step(inner, [name for name, _ in held], [name for name, _ in slices])
    outputs = [*new, *results]
    body = _body(g, inner, [*held, *slices], outputs, {})
    found = g.add_several(
        len(outputs), "Scan", *(name for name, _ in (*carry, *xs)), body=body,
        num_scan_inputs=len(xs),
    )  # fmt: skip
    count = len(carry)
    return [*found[:count], *(_backwards(g, y) if reverse else y for y in found[count:])]


def _leaves(inner: Graph, tensors: Sequence[Tensor], name: str) -> list[Tensor]:
    """Names inside a body for what it is given."""
    label = f"{inner.label}/{name}" if inner.label else name
    return [(inner.unique(label), t) for _, t in tensors]


def _body(
    g: Graph,
    inner: Graph,
    inputs: list[Tensor],
    outputs: list[Tensor],
    shapes: dict[str, tuple[()]],
) -> onnx.GraphProto:
    """The body of a loop; `shapes` are those of inputs that ONNX wants to know."""
    made = {name for node in inner.nodes for name in node.output}
    distinct: list[Tensor] = []
    for name, dtype in outputs:  # each is one tensor of the body
        if name not in made or any(name == other for other, _ in distinct):
            name = inner.add("Identity", name)
        distinct.append((name, dtype))

    def described(tensors: Sequence[Tensor]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, type_of(t, g.opset), shapes.get(name))
            for name, t in tensors
        ]

    nodes = needed(inner.nodes, [name for name, _ in distinct])
    name = g.unique(f"{g.label}/body" if g.label else "body")
    return helper.make_graph(nodes, name, described(inputs), described(distinct))


def _backwards(g: Graph, name: str) -> str:
    back, axis = g.constant([-1], int64), g.constant([0], int64)
    return g.add("Slice", name, back, g.constant([-(2**63) + 1], int64), axis, back)


@rule(LOOP)
def _loop(g: Graph, v: Value) -> None:
    loop, length, reverse, _ = v.attrs
    assert isinstance(loop, Loop)
    carries, slices = len(loop.carry), len(loop.slices)
    carry = [(g.name(x), x.dtype) for x in v.inputs[:carries]]
    xs = [(g.name(x), x.dtype) for x in v.inputs[carries : carries + slices]]
    captured = v.inputs[carries + slices :]
    if not xs:  # something to count the steps by
        xs = [(_count(g, length), int64)]

    def step(
        inner: Graph, held: list[str], now: list[str]
    ) -> tuple[list[Tensor], list[Tensor]]:
        for leaf, name in zip((*loop.carry, *loop.slices), (*held, *now), strict=False):
            inner.bind(leaf, name)
        for leaf, outside in zip(loop.captured, captured, strict=True):
            inner.bind_captured(leaf, outside)
        emit(inner, loop.order)
        found = [(inner.name(x), x.dtype) for x in (*loop.next_carry, *loop.results)]
        return found[:carries], found[carries:]

    g.several[v] = scan(g, carry, xs, step, reverse)


def _count(g: Graph, length: int | Dim) -> str:
    if not isinstance(length, Dim):
        return g.constant(list(range(length)), int64)
    ends = g.constant(0, int64), g.add("Squeeze", g.size(length)), g.constant(1, int64)
    return g.add("Range", *ends)


@rule(WHILE)
def _while(g: Graph, v: Value) -> None:
    loop, most = v.attrs
    assert isinstance(loop, Loop)
    count = len(loop.carry)
    carry = [(g.name(x), x.dtype) for x in v.inputs[:count]]
    captured = v.inputs[count + 1 :]
    inner = Graph(g.opset, g.symbols, g)
    inner.label = g.label
    number, going = inner.unique("iteration"), inner.unique("going")
    held = _leaves(inner, carry, "carry")
    for leaf, (name, _) in zip(loop.carry, held, strict=True):
        inner.bind(leaf, name)
    for leaf, outside in zip(loop.captured, captured, strict=True):
        inner.bind_captured(leaf, outside)
    emit(inner, loop.order)
    new = [(inner.name(x), x.dtype) for x in (*loop.results, *loop.next_carry)]
    given: list[Tensor] = [(number, int64), (going, bool_), *held]
    trips = "" if most is None else g.constant(most, int64)
    body = _body(g, inner, given, new, {number: (), going: ()})
    names = [name for name, _ in carry]
    g.several[v] = g.add_several(count, "Loop", trips, g.name(v.inputs[count]), *names, body=body)


@rule(RECURRENCE)
def _recurrence(g: Graph, v: Value) -> None:
    ((what, loop),) = v.attrs
    assert isinstance(what, Recurrence) and isinstance(loop, Loop)
    if what.operand:
        raise ExportError(f"{v.label or 'a recurrence'}: its derivative has no form in ONNX")
    count = len(loop.carry)
    weights, *rest = v.inputs
    acc = loop.carry[0].dtype
    carry = [(_as(g, g.name(x), x.dtype, acc), acc) for x in rest[:count]]
    steps = sorted({s.source for s in what.streams if s.kind != "unit"})
    xs = [(g.name(v.inputs[k]), v.inputs[k].dtype) for k in steps]
    kernel = _as(g, g.name(weights), weights.dtype, acc)
    units = loop.carry[0].shape[1]
    fixed = {
        k: _parts(g, v.inputs[k], g.name(v.inputs[k]), blocks, 0, acc)
        for k, blocks in {(s.source, s.blocks) for s in what.streams if s.kind == "unit"}
    }

    def step(
        inner: Graph, held: list[str], now: list[str]
    ) -> tuple[list[Tensor], list[Tensor]]:
        moving: dict[int, list[str]] = {}
        for k, name in zip(steps, now, strict=True):
            stream = next(s for s in what.streams if s.source == k)
            x = v.inputs[k]
            if stream.kind == "row":  # one for each row of the batch
                moving[k] = [inner.add("Unsqueeze", name, inner.constant([1], int64))]
            else:
                moving[k] = _parts(inner, x, name, stream.blocks, 1, acc)
        for leaf, name in zip(loop.carry, held, strict=True):
            inner.bind(leaf, name)
        for leaf, stream in zip(loop.slices, what.streams, strict=True):
            parts = fixed if stream.kind == "unit" else moving
            inner.bind(leaf, parts[stream.source][stream.block])
        operand = held[0]
        if weights.dtype is not acc:  # the product reads what was stored
            operand = inner.cast(inner.cast(operand, weights.dtype), acc)
        gates = len(loop.captured)
        product = inner.add("MatMul", operand, kernel)
        each = inner.split(product, gates, 1)
        for leaf, name in zip(loop.captured, each, strict=True):
            inner.bind(leaf, name)
        emit(inner, loop.order)
        new = [(inner.name(x), acc) for x in loop.next_carry]
        results, start = [], 0
        for size, dtype in zip(what.groups, what.dtypes, strict=True):
            names = [inner.name(x) for x in loop.results[start : start + size]]
            start += size
            joined = names[0] if size == 1 else inner.add("Concat", *names, axis=1)
            results.append((_as(inner, joined, acc, dtype), dtype))
        return new, results

    assert not isinstance(units, Dim)
    found = scan(g, carry, xs, step, what.reverse)
    states = [
        _as(g, name, acc, dtype)
        for name, (_, dtype) in zip(found[:count], v.results[-count:], strict=True)
    ]
    g.several[v] = [*found[count:], *states]


def _as(g: Graph, name: str, dtype: DType, other: DType) -> str:
    return name if dtype is other else g.cast(name, other)


def _parts(g: Graph, x: Value, name: str, blocks: int, axis: int, acc: DType) -> list[str]:
    """Equal parts of an axis, in the accumulator's dtype."""
    name = _as(g, name, x.dtype, acc)
    return [name] if blocks == 1 else g.split(name, blocks, axis)
