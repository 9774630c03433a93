"""ONNX files: read, checked, and taken apart into a graph without weights and its weights.

Nothing here believes a file: sizes are compared with what is there before memory is taken, data
in other files must lie in the folder of the model, and functions may not grow without end.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    numpy_helper,
)

from kerascl.onnx.importer import functions, types
from kerascl.onnx.importer.errors import OnnxError
from kerascl.onnx.importer.rules import RULES

OLDEST_OPSET = 1
# Integer initialisers of at most so many elements are settings (axes, shapes), not data.
_FEW = 1024

# Bits of an element as it lies in a file, where NumPy's item takes more.
_PACKED: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4,
           TensorProto.INT2: 2, TensorProto.UINT2: 2}  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """An initialiser that becomes a variable.

    Attributes:
        value: in the order of axes of the variable.
        trainable: whether it is trained.
        axes: the place of each axis of the file's among them; empty where they are the same.
    """

    value: np.ndarray
    trainable: bool
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Source:
    """A model that was checked.

    Attributes:
        model: without weights, which are inputs of its graph, and without functions that have no
            rule.
        inputs: names of the graph's own inputs.
        weights: by name.
    """

    model: ModelProto
    inputs: tuple[str, ...]
    weights: dict[str, Weight]


def read(path: str | os.PathLike[str]) -> Source:
    """Read and check an ONNX file.

    Raises:
        FileNotFoundError: when there is none.
        OnnxError: when it is no valid model, or one that kerascl cannot run.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise OnnxError(f"{path.name} is not an ONNX model: {error}") from None
    return take_apart(model, path.parent)


def take_apart(model: ModelProto, folder: Path | None = None) -> Source:
    """Check a model, whose external data lies in `folder`; see `read`.

    The model is changed.

    Raises:
        OnnxError: when it is not valid, or kerascl cannot run it.
    """
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise OnnxError("this is not an ONNX model: it has no graph")
    for tensor in _tensors(model):
        _complete(tensor, folder)
    opsets = {imported.domain: imported.version for imported in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", OLDEST_OPSET) > newest:
        raise OnnxError(
            f"the model needs opset {opsets['']}; the installed onnx {onnx.__version__} knows "
            f"opsets up to {newest}: install a newer one"
        )
    functions.check(model)
    graph = model.graph
    given = {t.name for t in graph.initializer}
    inputs = tuple(value.name for value in graph.input if value.name not in given)
    weights = _without_weights(graph)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise OnnxError(f"not a valid ONNX model: {_first(str(error))}") from None
    model = functions.expand(model)
    return Source(model, inputs, weights)


def _first(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


# -- tensors ------------------------------------------------------------------
def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all that lie in attributes of its nodes."""
    yield graph
    yield from _inner(graph.node)


def _inner(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs(attribute.g)
            for inner in attribute.graphs:
                yield from graphs(inner)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    bodies: list[GraphProto | FunctionProto] = [*graphs(model.graph)]
    for function in model.functions:
        bodies += [function, *_inner(function.node)]
    for body in bodies:
        if isinstance(body, GraphProto):
            yield from body.initializer
            for sparse in body.sparse_initializer:
                yield sparse.values
                yield sparse.indices
        for node in body.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def _complete(tensor: TensorProto, folder: Path | None) -> None:
    """Bring a tensor's data into it, and compare its size with what its shape says."""
    name = tensor.name or "without a name"
    if any(n < 0 for n in tensor.dims):
        raise OnnxError(f"tensor {name} has a negative dimension: {list(tensor.dims)}")
    dtype, count = types.numpy_type(tensor.data_type), math.prod(tensor.dims)
    bits = _PACKED.get(tensor.data_type, dtype.itemsize * 8)
    size = -(-count * bits // 8)
    if tensor.data_location == TensorProto.EXTERNAL:
        if tensor.data_type == TensorProto.STRING:
            raise OnnxError(f"tensor {name}: strings cannot lie in another file")
        tensor.raw_data = _external(tensor, size, folder)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
        return
    if tensor.data_type == TensorProto.STRING:
        found, wanted = len(tensor.string_data), count
    elif tensor.HasField("raw_data"):
        found, wanted = len(tensor.raw_data), size
    else:
        found, wanted = _stored(tensor), _items(tensor.data_type, count)
    if found != wanted:
        raise OnnxError(
            f"tensor {name}: a shape of {list(tensor.dims)} takes {wanted} items or bytes of data, "
            f"but {found} are there"
        )


def _stored(tensor: TensorProto) -> int:
    fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data,
              tensor.uint64_data)  # fmt: skip
    return sum(len(field) for field in fields)


def _items(code: int, count: int) -> int:
    if code in _PACKED:
        return -(-count * _PACKED[code] // 8)
    return count * 2 if code in (TensorProto.COMPLEX64, TensorProto.COMPLEX128) else count


def _external(tensor: TensorProto, size: int, folder: Path | None) -> bytes:
    """The data of a tensor that lies in another file of the model's folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    where = f"tensor {tensor.name}: external data {location!r}"
    if folder is None:
        raise OnnxError(f"{where}: load the model from its file, so that its folder is known")
    path = folder / location
    inside = os.path.realpath(folder)
    real = os.path.realpath(path)
    if not location or os.path.isabs(location) or os.path.commonpath([inside, real]) != inside:
        raise OnnxError(f"{where} does not lie in the folder of the model")
    if not os.path.isfile(real):
        raise OnnxError(f"{where} is not there")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError:
        raise OnnxError(f"{where}: offset and length must be numbers") from None
    if length != size or offset < 0 or offset + length > os.path.getsize(real):
        raise OnnxError(
            f"{where}: {length} bytes at {offset} of {os.path.getsize(real)}, but the shape "
            f"{list(tensor.dims)} takes {size}"
        )
    with open(real, "rb") as file:
        file.seek(offset)
        return file.read(length)


# -- weights ------------------------------------------------------------------
def _without_weights(graph: GraphProto) -> dict[str, Weight]:
    """Take those initialisers out of a graph that become variables; they become inputs of it."""
    names = _names(graph)
    for inner in list(graphs(graph))[1:]:
        for tensor in list(inner.initializer):
            if names.count(tensor.name) == 1:
                graph.initializer.append(tensor)
                inner.initializer.remove(tensor)
                for value in [v for v in inner.input if v.name == tensor.name]:
                    inner.input.remove(value)
    settings, statistics, kernels = _uses(graph)
    shown = {value.name for value in graph.input}
    weights: dict[str, Weight] = {}
    kept: list[TensorProto] = []
    for tensor in graph.initializer:
        code = tensor.data_type
        size = math.prod(tensor.dims)
        number = code != TensorProto.STRING
        floating = number and types.device_type(code).is_float and code not in types.NARROW
        setting = tensor.name in settings or not tensor.dims or not floating
        if not number or (setting and size <= _FEW):
            kept.append(tensor)
            continue
        if tensor.name in weights:
            raise OnnxError(f"two initialisers have the name {tensor.name!r}")
        value = types.to_carrier(numpy_helper.to_array(tensor))
        trainable = floating and not setting and tensor.name not in statistics
        weights[tensor.name] = Weight(value, trainable)
        if tensor.name in kernels and value.ndim > 2:  # filters last, as Keras has them
            order = (*range(2, value.ndim), 1, 0)
            axes = tuple(order.index(a) for a in range(value.ndim))
            value = np.ascontiguousarray(value.transpose(order))
            weights[tensor.name] = Weight(value, trainable, axes)
        if tensor.name not in shown:
            made = onnx.helper.make_tensor_value_info(tensor.name, code, list(tensor.dims))
            graph.input.append(made)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return weights


def _names(graph: GraphProto) -> list[str]:
    names = []
    for inner in graphs(graph):
        names += [t.name for t in inner.initializer]
        names += [n for node in inner.node for n in node.output]
        given = {t.name for t in inner.initializer}
        names += [v.name for v in inner.input if v.name not in given]
    return names


def _uses(graph: GraphProto) -> tuple[set[str], set[str], set[str]]:
    """Names that are read as settings only, those of running statistics, and of kernels of
    convolutions."""
    settings: set[str] = set()
    data: set[str] = set()
    statistics: set[str] = set()
    kernels: set[str] = set()
    for inner in graphs(graph):
        for node in inner.node:
            rule = RULES.latest(node.domain, node.op_type)
            for place, name in enumerate(node.input):
                if rule is not None and place in rule.settings:
                    settings.add(name)
                elif rule is not None and place in rule.statistics:
                    statistics.add(name)
                elif rule is not None and place in rule.kernels:
                    kernels.add(name)
                else:
                    data.add(name)
    data |= kernels
    return settings - data, statistics - data, kernels
