"""The Keras layer that runs a graph, and the model around it where tensors are not all there is."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, TypeProto

from kerascl.backend.ops.core import compute_output_spec
from kerascl.core.array import Array
from kerascl.onnx.importer import functions, types
from kerascl.onnx.importer import operators as _rules  # noqa: F401  (fills the table)
from kerascl.onnx.importer.errors import OnnxError
from kerascl.onnx.importer.graph import Run, device, read_graph
from kerascl.onnx.importer.reading import Weight
from kerascl.onnx.importer.types import NarrowArray
from kerascl.ops.movement import transpose

PACKAGE = "kerascl"


@keras.saving.register_keras_serializable(PACKAGE)
class OnnxGraph(keras.layers.Layer):
    """Runs the graph of an ONNX model.

    Call it with the graph's inputs: one tensor, a list of several, or a dictionary by name. It
    returns one tensor or a list of several. Elements of 4 bits and less and rare float8 types lie
    in wider ones (`types.NARROW`). With `training` None the graph decides
    itself what trains (attributes `training_mode`); True trains all of it, False nothing.

    Args:
        model: a model that was checked, without the weights, which are inputs of its graph.
        weights: name to `Weight`; or, as it is saved, to [shape, dtype, trainable, axes].
    """

    def __init__(self, model: ModelProto | str, weights: Mapping[str, Any], **options: Any):
        options.setdefault("autocast", False)
        super().__init__(**options)
        if isinstance(model, str):
            model = _decoded(model)
        self.proto = model
        self.graph = read_graph(model)
        self.weight_by_name: dict[str, keras.Variable] = {}
        self._described: dict[str, list[Any]] = {}
        self._axes: dict[str, list[int]] = {}
        for name, weight in weights.items():
            if not isinstance(weight, Weight):
                weight = _empty(*weight)
            self._add(name, weight)
        self.input_names = [n for n in self.graph.inputs if n not in self.weight_by_name]
        self.output_names = list(self.graph.outputs)
        missing = self.graph.outer - set(self.weight_by_name)
        if missing:
            raise OnnxError(f"nothing in the model makes {', '.join(sorted(missing))}")
        self.narrow = {
            value.name: types.NARROW[value.type.tensor_type.elem_type]
            for value in model.graph.input
            if value.type.tensor_type.elem_type in types.NARROW
        }
        self.seen: list[Any] | None = None
        self.seeds = keras.random.SeedGenerator() if _is_random(model) else None
        self.built = True

    def _add(self, name: str, weight: Weight) -> None:
        value = weight.value
        self.weight_by_name[name] = self.add_weight(
            shape=value.shape,
            dtype=value.dtype.name,
            initializer=lambda shape, dtype=None: value,
            trainable=weight.trainable,
            name=name.replace("/", ".").strip(".") or "weight",
        )
        axes = list(weight.axes)
        self._axes[name] = axes
        self._described[name] = [list(value.shape), value.dtype.name, weight.trainable, axes]

    def build(self, *shapes: Any) -> None:
        """Nothing: the weights are made with the layer."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The graph's outputs; see the class."""
        given = self._in_order(inputs)
        values = {
            name: NarrowArray(device(value), self.narrow[name]) if name in self.narrow else value
            for name, value in zip(self.input_names, given)
        }
        values.update({n: self.as_in_file(n, v.value) for n, v in self.weight_by_name.items()})
        run = Run(training, not self.trainable, self._assign, self.seeds)
        run.seen = self.seen
        results = self.graph.run([values[n] for n in self.graph.inputs], values, run)
        results = [_result(value) for value in results]
        return results[0] if len(results) == 1 else results

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Shapes and dtypes of what `call` returns, by running it without values."""
        return compute_output_spec(self.call, inputs, training)

    def as_in_file(self, name: str, value: Array) -> Array:
        """The value or the gradient of a weight, with its axes as the file has them: variables of
        kernels of convolutions have filters last."""
        axes = self._axes[name]
        return transpose(value, axes) if axes else value

    def _assign(self, name: str, value: Array) -> None:
        if name in self.weight_by_name:
            self.weight_by_name[name].assign(value)

    def _in_order(self, inputs: Any) -> list[Any]:
        names = self.input_names
        if isinstance(inputs, Mapping):
            missing = [n for n in names if n not in inputs]
            if missing:
                raise ValueError(f"inputs {missing} are missing; the graph takes {names}")
            return [inputs[n] for n in names]
        if len(names) == 1:
            kind = _input_kind(self.proto, names[0])
            if isinstance(inputs, list | tuple) and kind == "tensor_type" and len(inputs) == 1:
                return list(inputs)
            return [inputs]
        found = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(found) != len(names):
            raise ValueError(f"{len(found)} inputs are given; the graph takes {names}")
        return found

    def get_config(self) -> dict[str, Any]:
        """What the layer is made from again; weights are saved apart."""
        encoded = base64.b64encode(self.proto.SerializeToString(deterministic=True)).decode()
        return {**super().get_config(), "model": encoded, "weights": self._described}


def _decoded(text: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(base64.b64decode(text, validate=True))
    except (DecodeError, ValueError) as error:
        raise OnnxError(f"a saved layer holds no ONNX graph: {error}") from None
    functions.check(model)
    return model


def _empty(shape: Any, dtype: Any, trainable: Any, axes: Any = ()) -> Weight:
    """A weight without its value; models that were saved before kernels had filters last say
    nothing of axes."""
    value = np.broadcast_to(np.zeros((), types.BY_NAME[dtype].numpy), shape)
    return Weight(value, bool(trainable), tuple(axes))


def _input_kind(model: ModelProto, name: str) -> str:
    for value in model.graph.input:
        if value.name == name:
            return value.type.WhichOneof("value") or "tensor_type"
    return "tensor_type"


def _is_random(model: ModelProto) -> bool:
    random = ("Dropout", "Bernoulli", "Multinomial")
    return any(
        node.op_type in random or node.op_type.startswith("Random")
        for node in functions.nodes_of(model.graph.node)
    )


def _result(value: Any) -> Any:
    if isinstance(value, list):
        return [_result(v) for v in value]
    if isinstance(value, Array) or value is None:
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUST":
        return value
    return value.array if isinstance(value, NarrowArray) else device(value)


@keras.saving.register_keras_serializable(PACKAGE)
class OnnxModel(keras.Model):
    """A model around an `OnnxGraph` whose inputs or outputs are not all tensors of known rank."""

    def __init__(self, graph: OnnxGraph | Mapping[str, Any], **options: Any):
        options.setdefault("autocast", False)
        super().__init__(**options)
        made: Any = graph
        if isinstance(graph, Mapping):
            made = keras.saving.deserialize_keras_object(graph)
        self.graph = made
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        made._convert_input_args = False
        made._allow_non_tensor_positional_args = True
        self.built = True

    def build(self, *shapes: Any) -> None:
        """Nothing: the weights are made with the graph."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The graph's outputs."""
        return self.graph(inputs, training=training)

    def get_config(self) -> dict[str, Any]:
        """What the model is made from again."""
        graph = keras.saving.serialize_keras_object(self.graph)
        return {**super().get_config(), "graph": graph}


def shape_of(kind: TypeProto) -> tuple[int | None, ...] | None:
    """The shape that a file gives a tensor; None where it says nothing."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None
        for d in tensor.shape.dim
    )
