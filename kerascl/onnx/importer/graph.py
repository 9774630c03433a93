"""A graph of operators, and how it runs.

Values on the way are Arrays on the device, NumPy arrays on the host (shapes and what is computed
from them, constants), `NarrowArray`s, images with `ChannelsLast` or `Grouped`, lists (sequences) or
None (an optional without a value).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from kerascl.core.array import Array
from kerascl.onnx.importer import types
from kerascl.onnx.importer.errors import OnnxError
from kerascl.onnx.importer.functions import versions
from kerascl.onnx.importer.layout import (
    ChannelsLast,
    Grouped,
    aligned,
    as_in_graph,
    elementwise_rank,
)
from kerascl.onnx.importer.rules import RULES, Rule
from kerascl.onnx.importer.types import NarrowArray
from kerascl.ops import host as host_reads
from kerascl.ops.creation import array, full

Value = Any
Scope = MutableMapping[str, Value]

# Operators that are computed on the host where all their inputs are there: arithmetic of shapes.
_FOLDED = frozenset((
    "Abs", "Add", "And", "BitShift", "Cast", "CastLike", "Ceil", "Clip", "Concat",
    "ConstantOfShape", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod",
    "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice",
    "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "TopK", "Transpose", "Trunc", "Unsqueeze",
    "Where", "Xor",
))  # fmt: skip
# A folded value of more elements is data and belongs on the device.
_MOST_FOLDED = 1 << 14


@dataclass
class Run:
    """What operators depend on besides their inputs.

    Attributes:
        training: as in Keras; None where the graph itself decides.
        frozen: whether running statistics stay as they are.
        assign: takes the name of a weight and its new value.
        seed: what random operators draw their keys from.
        seen: gets each node that is carried out, and whether on the host.
    """

    training: bool | None = None
    frozen: bool = False
    assign: Callable[[str, Array], None] = lambda name, value: None
    seed: Any = None
    seen: list[tuple[Node, bool]] | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of a graph.

    Attributes:
        attributes: with the standard's defaults; graphs as `Graph`.
        version: the opset in which the operator got its present meaning.
        opset: of the model.
        last: names that nobody reads after this node.
    """

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    version: int
    opset: int
    rule: Rule
    proto: NodeProto
    last: list[str] = field(default_factory=list)

    @cached_property
    def on_host(self) -> Callable[..., list[np.ndarray]]:
        """The operator on NumPy arrays, by onnx's own reference where that is right."""
        if self.op == "GatherElements" and not self.domain:
            return self._gather_elements
        made = onnx.helper.make_graph(
            [self.proto], "one",
            [onnx.helper.make_empty_tensor_value_info(n) for n in self.inputs if n],
            [onnx.helper.make_empty_tensor_value_info(n) for n in self.outputs if n],
        )  # fmt: skip
        model = onnx.helper.make_model(
            made, opset_imports=[onnx.helper.make_opsetid(self.domain, self.opset)]
        )
        evaluator = ReferenceEvaluator(model)

        def call(*values: np.ndarray | None) -> list[np.ndarray]:
            feeds = {n: v for n, v in zip(self.inputs, values) if n}
            return [np.asarray(v) for v in evaluator.run(None, feeds)]

        return call

    def _gather_elements(self, data: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
        """GatherElements; onnx's reference fails along more than NumPy has dimensions."""
        axis = self.attributes.get("axis", 0) % data.ndim
        kept = [n if a == axis else indices.shape[a] for a, n in enumerate(data.shape)]
        data = data[tuple(slice(n) for n in kept)]
        if list(data.shape) != kept:
            raise ValueError(f"indices of shape {indices.shape} are larger than what they index")
        return [np.take_along_axis(data, indices, axis)]


class Graph:
    """Nodes in order, with names of inputs and outputs and the constants they read."""

    def __init__(self, proto: GraphProto, opsets: dict[str, int]):
        self.constants = {t.name: constant(t) for t in proto.initializer}
        self.inputs = tuple(v.name for v in proto.input if v.name not in self.constants)
        self.outputs = tuple(v.name for v in proto.output)
        self.nodes = tuple(_node(node, opsets) for node in proto.node)
        made = {name for node in self.nodes for name in node.outputs}
        read = [self._reads(node) for node in self.nodes]
        self.outer = {
            name
            for name in set(self.outputs).union(*read)
            if name and name not in made | set(self.inputs) | set(self.constants)
        }
        done = set(self.outputs) | self.outer
        for node, names in zip(reversed(self.nodes), reversed(read)):
            node.last.extend(n for n in names if n in made and n not in done)
            node.last.extend(n for n in node.outputs if n and n not in done | names)
            done |= names

    @property
    def is_unconditional(self) -> bool:
        """Whether the body of a loop goes on whatever happens: it passes its condition on."""
        name, made = self.outputs[0], {n.outputs[0]: n for n in self.nodes if n.outputs}
        while name in made and made[name].op == "Identity":
            name = made[name].inputs[0]
        if name in made and made[name].op == "Constant":
            return bool(np.all(made[name].attributes.get("value", False)))
        return name == self.inputs[1] or bool(np.all(self.constants.get(name, False)))

    @staticmethod
    def _reads(node: Node) -> set[str]:
        names = {name for name in node.inputs if name}
        for value in node.attributes.values():
            if isinstance(value, Graph):
                names |= value.outer
        return names

    def run(self, inputs: Sequence[Value], outer: Scope, run: Run) -> list[Value]:
        """The outputs, given the inputs and the scope that the graph lies in."""
        made: dict[str, Value] = dict(self.constants)
        made.update(zip(self.inputs, inputs))
        scope: Scope = ChainMap(made, outer) if outer else made
        for node in self.nodes:
            values = [scope[name] if name else None for name in node.inputs]
            results = _carry_out(self, node, values, scope, run)
            made.update((n, v) for n, v in zip(node.outputs, results) if n)
            for name in node.last:
                made.pop(name, None)
        return [_standard(scope[name]) for name in self.outputs]

    def replay(self, scope: Scope, until: Node, known: set[str], run: Run) -> None:
        """Carry out the nodes before one again, but those whose results are known."""
        for node in self.nodes[: self.nodes.index(until)]:
            if not known.issuperset(node.outputs):
                values = [scope[name] if name else None for name in node.inputs]
                scope.update(zip(node.outputs, _carry_out(self, node, values, scope, run)))


def read_graph(model: ModelProto) -> Graph:
    """The graph of a model that was checked."""
    return Graph(model.graph, versions(model))


def constant(tensor: onnx.TensorProto) -> np.ndarray:
    """The value of a tensor that a file holds, on the host."""
    return numpy_helper.to_array(tensor)


def _node(proto: NodeProto, opsets: dict[str, int]) -> Node:
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    opset = opsets.get(domain, 1)
    rule = RULES.find(domain, proto.op_type, opset)
    if rule is None:
        raise OnnxError(f"kerascl does not have the operator {proto.op_type} (opset {opset})")
    attributes: dict[str, Any] = {}
    version = 1
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, domain)
    except onnx.defs.SchemaError:
        pass
    else:
        version = schema.since_version
        for name, known in schema.attributes.items():
            if known.default_value.type != AttributeProto.UNDEFINED:
                attributes[name] = _attribute(known.default_value, opsets)
    for attribute in proto.attribute:
        attributes[attribute.name] = _attribute(attribute, opsets)
    return Node(
        proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attributes,
        version, opset, rule, proto,
    )  # fmt: skip


def _attribute(attribute: AttributeProto, opsets: dict[str, int]) -> Any:
    kind = attribute.type
    if kind == AttributeProto.GRAPH:
        return Graph(attribute.g, opsets)
    if kind == AttributeProto.TENSOR:
        return constant(attribute.t)
    value = onnx.helper.get_attribute_value(attribute)
    if kind == AttributeProto.STRING:
        return value.decode()
    if kind == AttributeProto.STRINGS:
        return [text.decode() for text in value]
    if kind in (AttributeProto.INTS, AttributeProto.FLOATS):
        return list(value)
    return value


# -- one node -----------------------------------------------------------------
@dataclass
class Call:
    """A node that is being carried out."""

    graph: Graph
    node: Node
    scope: Scope
    run: Run

    def __getitem__(self, name: str) -> Any:
        return self.node.attributes[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` where it is left out."""
        return self.node.attributes.get(name, default)

    @property
    def version(self) -> int:
        """The opset in which the operator got its present meaning."""
        return self.node.version

    @property
    def results(self) -> int:
        """How many outputs are asked for."""
        return len(self.node.outputs)

    def wants(self, place: int) -> bool:
        """Whether somebody asks for an output."""
        return place < len(self.node.outputs) and bool(self.node.outputs[place])

    def ints(self, name: str, given: np.ndarray | None = None) -> list[int] | None:
        """Integers that were an attribute in older opsets and are an input in newer ones."""
        found = given if given is not None else self.get(name)
        if found is None:
            return None
        return [int(n) for n in np.asarray(found).reshape(-1)]

    def number(self, place: int) -> bool | int | float | None:
        """The number that an input is, where the host knows it."""
        value = self.scope[self.node.inputs[place]]
        known = isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf"
        return value.item() if known else None

    def axis(self, rank: int, name: str = "axis") -> int:
        """The attribute that names an axis, counted from the front."""
        return axis_of(self[name], rank)

    def assign(self, place: int, value: Array) -> None:
        """Give a weight that is an input a new value."""
        self.run.assign(self.node.inputs[place], value)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        OnnxError: when there is no such axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise OnnxError(f"axis {axis} of an array with {rank} dimensions")
    return axis % rank if rank else 0


def device(value: Value) -> Array:
    """A value as an Array."""
    if isinstance(value, Array):
        return value
    if isinstance(value, NarrowArray):
        return value.array
    if isinstance(value, ChannelsLast | Grouped):
        return as_in_graph(value)
    if isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
        if value.dtype.kind in "OUST":
            raise OnnxError("arrays of strings do not exist on a device")
        value = types.to_carrier(value)
        if value.size == 1:  # a number in the text of kernels
            return full(value.shape, value.item(), value.dtype)
        return array(value)
    raise OnnxError(f"an array is needed, not {type(value).__name__}")


def on_host(value: Value) -> np.ndarray:
    """A value as a NumPy array; one on the device is read."""
    if isinstance(value, np.ndarray):
        return value
    array = device(value)
    host_reads.count("onnx setting")
    return np.asarray(array.numpy())


def _carry_out(
    graph: Graph, node: Node, values: list[Value], scope: Scope, run: Run
) -> Sequence[Value]:
    try:
        found = _folded(node, values)
        if found is not None:
            _see(run, node, found)
            return found
        call = Call(graph, node, scope, run)
        results = _results(call, values)
    except (ValueError, TypeError, IndexError, KeyError, NotImplementedError) as error:
        if isinstance(error, OnnxError) and error.args[0].startswith("node "):
            raise
        which = f"node {node.name or node.outputs[0]!r} ({node.op})"
        text = str(error) if not isinstance(error, KeyError) else f"{error} is missing"
        raise OnnxError(f"{which}: {text}") from error
    _see(run, node, results)
    return results


def _results(call: Call, values: list[Value]) -> tuple[Value, ...]:
    """What a node's rule makes of its inputs, each in the layout that the rule takes."""
    rule, node = call.node.rule, call.node
    if rule.layout != "groups":
        values = [as_in_graph(v) if isinstance(v, Grouped) else v for v in values]
    if not rule.raw:
        values = [
            v if v is None
            or (rule.layout and isinstance(v, ChannelsLast | Grouped) and p not in rule.host)
            else on_host(v) if p in rule.host
            else device(v)
            for p, v in enumerate(values)
        ]  # fmt: skip
    rank = 0
    if rule.layout == "elementwise" and (node.opset >= 7 or len(values) == 1):
        # before opset 7 operands were laid along axes by an attribute
        rank = elementwise_rank([v for p, v in enumerate(values) if p not in rule.host])
    if rank:
        values = [
            v if v is None or p in rule.host else aligned(v, rank) for p, v in enumerate(values)
        ]
    elif rule.layout not in ("own", "groups"):
        values = [_standard(v) for v in values]
    results = rule.function(call, *values)
    results = results if isinstance(results, tuple) else (results,)
    return tuple([ChannelsLast(y) for y in results]) if rank else results


def _standard(value: Value) -> Value:
    return as_in_graph(value) if isinstance(value, ChannelsLast | Grouped) else value


def _see(run: Run, node: Node, results: Sequence[Value]) -> None:
    if run.seen is not None:
        run.seen.append((node, all(isinstance(v, np.ndarray) for v in results)))


def _folded(node: Node, values: list[Value]) -> list[np.ndarray] | None:
    if node.domain or node.op not in _FOLDED or not node.outputs:
        return None
    if not all(v is None or isinstance(v, np.ndarray) for v in values) or not values:
        return None
    if sum(v.size for v in values if v is not None) > _MOST_FOLDED or _grows(node, values):
        return None
    return node.on_host(*values)


def _grows(node: Node, values: list[Value]) -> bool:
    """Whether the result is too large to be a shape."""
    if node.op == "Range":
        start, stop, step = (float(v.reshape(())) for v in values)
        return not step or (stop - start) / step > _MOST_FOLDED
    if node.op == "ConstantOfShape":
        return _product(values[0]) > _MOST_FOLDED
    if node.op == "Expand":
        return values[0].size * _product(values[1]) > _MOST_FOLDED
    if node.op == "Tile":
        return values[0].size * _product(values[1]) > _MOST_FOLDED
    return False


def _product(values: np.ndarray) -> int:
    total = 1
    for value in values.reshape(-1):
        total *= max(int(value), 1)
    return total
