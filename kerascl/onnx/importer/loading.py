"""`load`: from a file to a Keras model."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import keras
from onnx import ModelProto

from kerascl.onnx.importer import reading, types
from kerascl.onnx.importer.errors import OnnxError
from kerascl.onnx.importer.layer import OnnxGraph, OnnxModel, shape_of
from kerascl.ops import host


def load(model: str | os.PathLike[str] | ModelProto, name: str | None = None) -> keras.Model:
    """A Keras model that computes what an ONNX model does.

    It is a Functional model with the inputs and outputs of the file (an `OnnxModel` where those
    are not all tensors), in the file's layout. Floating-point initialisers are trainable
    variables, but for single numbers, operators' settings and running statistics; larger integer
    ones are variables that are not trained. BatchNormalization and Dropout train when the model
    does. Call `model.compile` and `model.fit` as ever; `model.save("m.keras")` needs nothing
    else, and loading that needs `import kerascl.onnx` before.

    Args:
        model: a file, whose external data lies in the same folder, or a model in memory.
        name: of the model; that of the file by default.

    Returns:
        a model that is not compiled; its graph's weights by their names in the file are
        `model.get_layer("graph").weight_by_name`. Kernels of convolutions have filters last, as
        Keras has them; `as_in_file` of the same layer gives axes back their order.

    Raises:
        FileNotFoundError: when there is no such file.
        OnnxError: when it is no valid ONNX model, or needs what kerascl does not have.
        RuntimeError: under another Keras backend.
    """
    if keras.backend.backend() != "kerascl":
        raise RuntimeError(
            f"kerascl.onnx needs KERAS_BACKEND=kerascl, not {keras.backend.backend()}"
        )
    if isinstance(model, ModelProto):
        copied = ModelProto()
        copied.CopyFrom(model)
        source = reading.take_apart(copied)
    else:
        source = reading.read(model)
        name = name or Path(model).stem
    name = _plain(name or source.model.graph.name or "onnx")
    graph = OnnxGraph(source.model, source.weights, name="graph")
    inputs = _inputs(source)
    if inputs is not None:
        outputs = _outputs(graph, inputs)
        flat = outputs if isinstance(outputs, list) else [outputs]
        if all(isinstance(value, keras.KerasTensor) for value in flat):
            return keras.Model(inputs[0] if len(inputs) == 1 else inputs, outputs, name=name)
    return OnnxModel(graph, name=name)


def _outputs(graph: OnnxGraph, inputs: list[Any]) -> Any:
    """The symbolic outputs; None where shapes depend on values."""
    before = host.calls.total()
    given = inputs if len(inputs) != 1 else inputs[0]
    try:
        graph.compute_output_spec(given)  # errors as they are, without Keras' words around them
        outputs = graph(given)
    except Exception:
        if host.calls.total() == before:
            raise
        return None
    return outputs if host.calls.total() == before else None


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "onnx"


def _inputs(source: reading.Source) -> list[Any] | None:
    """Keras' inputs for those of a graph; None where one is no tensor that Keras knows."""
    graph = source.model.graph
    if any(value.type.WhichOneof("value") != "tensor_type" for value in graph.output):
        return None
    known = {value.name: value for value in graph.input}
    made = []
    for name in source.inputs:
        kind = known[name].type
        shape = shape_of(kind)
        if kind.WhichOneof("value") != "tensor_type" or shape is None:
            return None
        try:
            dtype = types.device_type(kind.tensor_type.elem_type)
        except OnnxError:
            return None
        made.append(keras.Input(batch_shape=shape, dtype=dtype.name, name=_plain(name)))
    return made or None
