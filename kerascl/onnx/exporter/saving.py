"""`save`: a function or a Keras model as an ONNX file."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from kerascl.core.array import State
from kerascl.core.node import Node
from kerascl.core.structure import flatten
from kerascl.dtypes import DType, as_dtype
from kerascl.onnx.exporter import rules
from kerascl.onnx.exporter.errors import ExportError
from kerascl.onnx.exporter.graph import Graph, type_of
from kerascl.onnx.exporter.merging import Merger, Value
from kerascl.onnx.exporter.pruning import needed, reads
from kerascl.onnx.exporter.sizes import Shape, Symbol, Symbols
from kerascl.onnx.exporter.tracing import States, Traced
from kerascl.onnx.exporter.writing import write

OLDEST, DEFAULT = 17, 18  # of opsets; layer normalisation came with 17
# Sizes that a batch is traced with, the last far from the others; and those tried for other free
# dimensions: large ones first, which suit images, then smaller ones, which suit sequences of a
# limited length.
_BATCH = (2, 3, 257)
_OTHERS = ((96, 128, 165), (32, 45, 58), (6, 9, 13))


@dataclass(frozen=True)
class Input:
    """What an input of the file is: `shape` has a name where the size is free."""

    name: str
    shape: tuple[int | str, ...]
    dtype: DType


def save(
    function: Callable[..., Any],
    path: str | os.PathLike[str],
    inputs: Sequence[Any] | None = None,
    *,
    opset: int = DEFAULT,
    dynamic_batch: bool = True,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write a function of arrays, or a Keras model, as an ONNX file (https://onnx.ai).

    The function is traced, at several sizes where sizes are free; its States (a model's variables)
    become initialisers of their names.  Models run in inference.  The file is checked, with full
    shape inference, before it takes the place of one at `path`; weights of more than 2 GB go to a
    file beside it, named `path` with ".data" behind.

    Gathers that give NaN for indices out of range here are refused by ONNX runtimes there.

    Args:
        function: `function(*inputs)` gives an array or a structure of arrays.
        path: of the file.
        inputs: what the function takes: arrays, or anything with a shape and a dtype such as
            `keras.InputSpec`, in lists, tuples and dicts. A None in a shape is a size that is only
            known when the file runs. Not needed for a Keras model that was built.
        opset: version of ONNX' operators, from 17 on; some came later, and are named then.
        dynamic_batch: whether the first axis of each input is a batch of any size; else a None
            there is 1.
        output_names: by default a Functional model's layers, else output_0, output_1, …

    Raises:
        ExportError: for a function that has no form in ONNX: random numbers, operations without
            an operator (all are named, with their layers), assignments to States, reads on the
            host. There is no file then.
        ValueError: for an opset that there is not, or inputs that are missing or have no shape.
        OSError: where no file can be written at `path`.
    """
    place = Path(path)
    if not place.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {place.parent} to put {place.name} in")
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder; name a file")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise ValueError(
            f"opset must be from {OLDEST} to {newest}, the newest of onnx {onnx.__version__}, "
            f"not {opset}"
        )
    is_model = _is_model(function)
    if inputs is None:
        if not is_model:
            raise ValueError("inputs are missing: give arrays, or shapes and dtypes, for them")
        inputs = _signature(function)
    described = _described(inputs, dynamic_batch)
    called = _inference(function) if is_model else function
    values, symbols, states = _merged(called, inputs, described)
    arguments, outputs, order = values
    rules.check(order)
    taken = {put.name for put in described}
    names = list(output_names or _output_names(function, len(outputs), taken))
    if len(names) != len(outputs) or len({*names, *taken}) != len(names) + len(taken):
        raise ValueError(
            f"output_names must be {len(outputs)} different ones that no input has, not {names}"
        )
    graph = Graph(opset, symbols)
    graph.reserve([*taken, *names])
    for value, put in zip(arguments, described, strict=True):
        graph.bind(value, put.name)
    for leaf, state in states:
        graph.bind_state(leaf, state)
    rules.emit(graph, order)
    write(_proto(graph, described, outputs, names), place)


def export_model(
    model: Any,
    filepath: str | os.PathLike[str],
    input_signature: Sequence[Any],
    opset_version: int | None = None,
    **options: Any,
) -> None:
    """`model.export(filepath, format="onnx")` of Keras; see `save`."""
    opset = DEFAULT if opset_version is None else opset_version
    save(model, filepath, input_signature, opset=opset, **options)


# -- Keras models ---------------------------------------------------------------
def _is_model(function: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(function, keras.layers.Layer)


def _signature(model: Any) -> Sequence[Any]:
    from keras.src.export.export_utils import get_input_signature

    signature: Sequence[Any] = get_input_signature(model)
    # with the sizes of batches that are fixed
    if hasattr(model, "_functional"):
        return list(model.inputs)
    return [model._inputs_struct] if hasattr(model, "_inputs_struct") else signature


def _inference(model: Any) -> Callable[..., Any]:
    def function(*inputs: Any) -> Any:
        return model(*inputs, training=False)

    return function


def _output_names(function: Any, count: int, taken: set[str]) -> list[str]:
    names = getattr(function, "output_names", None)
    if isinstance(names, list) and len(names) == count:
        if len({*names, *taken}) == count + len(taken):
            return names
    return [f"output_{k}" for k in range(count)]


# -- inputs ---------------------------------------------------------------------
def _described(inputs: Sequence[Any], dynamic_batch: bool) -> list[Input]:
    leaves: list[Any] = []
    flatten(list(inputs), leaves)
    found: list[Input] = []
    for k, leaf in enumerate(leaves):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None:
            raise ValueError(
                f"input {k} must be an array or have a shape and a dtype, not {leaf!r}"
            )
        sizes: list[int | str] = []
        for axis, n in enumerate(shape):
            if axis == 0 and (dynamic_batch or n is None):
                sizes.append("batch" if dynamic_batch else 1)
            else:
                sizes.append(f"dim_{k}_{axis}" if n is None else int(n))
        name = getattr(leaf, "name", None)
        name = name if isinstance(name, str) and name else f"input_{k}"
        if any(name == other.name for other in found):
            name = f"{name}_{k}"
        found.append(Input(name, tuple(sizes), as_dtype(dtype)))
    return found


def _choices(described: Sequence[Input]) -> list[tuple[list[Input], Symbols]]:
    """What to take free sizes for, one after the other."""

    def shared(put: Input) -> Input:
        sizes = tuple(
            n if isinstance(n, int) or n == "batch" else f"dim_{a}" for a, n in enumerate(put.shape)
        )
        return Input(put.name, sizes, put.dtype)

    forms = [list(described)]
    if (one := [shared(put) for put in described]) != forms[0]:
        forms.append(one)
    found = []
    for form, others in itertools.product(forms, _OTHERS):
        names = list(dict.fromkeys(n for put in form for n in put.shape if isinstance(n, str)))
        if len(names) > 4 and form is not forms[-1]:
            continue
        symbols = [
            Symbol(n, *(_BATCH if n == "batch" else (s + k for s in others)))
            for k, n in enumerate(names)
        ]
        found.append((form, Symbols(symbols)))
        if all(n == "batch" for n in names):
            break
    return found


def _merged(
    function: Callable[..., Any], inputs: Sequence[Any], described: list[Input]
) -> tuple[tuple[list[Value], list[Value], list[Value]], Symbols, list[tuple[Value, State]]]:
    """Arguments, outputs and all Values; the free sizes; and the States that are read.

    `described` gets the names of the free sizes that were taken."""
    problem: Exception | None = None
    for form, symbols in _choices(described):
        states = States()
        try:
            traces = [
                Traced(function, inputs, _at(form, symbols, point), [i.dtype for i in form], states)
                for point in symbols.points
            ]
            merger, found = _merge(traces, states)
        except Exception as error:
            problem = problem or error
            continue
        described[:] = form
        return found, symbols, merger
    assert problem is not None
    is_free = any(isinstance(n, str) for put in described for n in put.shape)
    if isinstance(problem, ExportError) or not is_free:
        raise problem
    raise ExportError(
        f"the function does not take inputs of any size: {type(problem).__name__}: {problem}. Give "
        "the inputs fixed shapes, or dynamic_batch=False where their first axis is no batch"
    ) from problem


def _at(form: Sequence[Input], symbols: Symbols, point: tuple[int, ...]) -> list[tuple[int, ...]]:
    sizes = {s.name: n for s, n in zip(symbols.symbols, point, strict=True)}
    return [tuple(n if isinstance(n, int) else sizes[n] for n in put.shape) for put in form]


def _merge(
    traces: list[Traced], states: States
) -> tuple[list[tuple[Value, State]], tuple[list[Value], list[Value], list[Value]]]:
    first = traces[0]
    if any(t.structure != first.structure for t in traces):
        raise ExportError("the number of outputs depends on the sizes of the inputs")
    merger = Merger(first.labels, first.start)

    def each(nodes: list[list[Node]]) -> list[tuple[Node, ...]]:
        return list(zip(*nodes, strict=True))

    arguments = [merger.leaf(nodes) for nodes in each([t.arguments for t in traces])]
    leaves = [
        (merger.leaf((stand_in,) * len(traces)), state)
        for state, stand_in in states.found.values()
    ]
    outputs = merger.merge(each([t.outputs for t in traces]))
    return leaves, (arguments, outputs, merger.order)


# -- the file -------------------------------------------------------------------
def _proto(
    graph: Graph, described: Sequence[Input], outputs: Sequence[Value], names: Sequence[str]
) -> onnx.ModelProto:
    found = [graph.name(value) for value in outputs]
    made = {name for node in graph.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for name, new in zip(found, names, strict=True):
        if name in made and name not in renamed:
            renamed[name] = new
        else:
            graph.nodes.append(helper.make_node("Identity", [renamed.get(name, name)], [new], new))
    _rename(graph.nodes, renamed)
    nodes = needed(graph.nodes, names)
    read = {*reads(nodes)}

    def info(name: str, shape: Shape, dtype: DType) -> onnx.ValueInfoProto:
        sizes = [graph.symbols.text(n) for n in shape]
        return helper.make_tensor_value_info(name, type_of(dtype, graph.opset), sizes)

    inputs = [
        helper.make_tensor_value_info(i.name, type_of(i.dtype, graph.opset), list(i.shape))
        for i in described
    ]
    written = {name for node in nodes for name in node.output}
    between = [
        info(name, shape, dtype)
        for name, (shape, dtype) in graph.shapes.items()
        if name in written and name not in renamed
    ]
    results = [info(n, v.shape, v.dtype) for n, v in zip(names, outputs, strict=True)]
    tensors = [t for name, t in graph.initializers.items() if name in read]
    proto = helper.make_graph(nodes, "kerascl", inputs, results, tensors, value_info=between)
    opsets = [helper.make_opsetid("", graph.opset)]
    return helper.make_model(
        proto, opset_imports=opsets, producer_name="kerascl",
        ir_version=helper.find_min_ir_version_for(opsets),
    )  # fmt: skip


def _rename(nodes: Sequence[onnx.NodeProto], names: dict[str, str]) -> None:
    for node in nodes:
        for field in (node.input, node.output):
            for k, name in enumerate(field):
                if name in names:
                    field[k] = names[name]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g.node, names)
                for output in attribute.g.output:
                    output.name = names.get(output.name, output.name)
