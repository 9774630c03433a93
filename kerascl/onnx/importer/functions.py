"""Functions: those of a file, and those by which the standard explains operators that have no
rule here, are written out as the operators they consist of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, inliner

from kerascl.onnx.importer.errors import OnnxError
from kerascl.onnx.importer.rules import RULES

# A graph of more nodes is a trap rather than a model.
MOST_NODES = 500_000
_MOST_ROUNDS = 20

Key = tuple[str, str]


def nodes_of(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from nodes_of(attribute.g.node)
            for inner in attribute.graphs:
                yield from nodes_of(inner.node)


def check(model: ModelProto) -> None:
    """Refuse functions that call themselves, and those that would not end in a reasonable size.

    Raises:
        OnnxError: for either.
    """
    table: dict[Key, FunctionProto] = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[Key, int] = {}

    def size(nodes: Iterable[NodeProto], active: tuple[Key, ...]) -> int:
        total = 0
        for node in nodes_of(nodes):
            key = (node.domain, node.op_type)
            if key not in table:
                total += 1
                continue
            if key in active:
                raise OnnxError(f"function {key[1]} of the file calls itself")
            if key not in sizes:
                if len(active) > 100:
                    raise OnnxError("functions of the file call each other too deeply")
                sizes[key] = size(table[key].node, (*active, key))
            total += sizes[key]
        return total

    if size(model.graph.node, ()) > MOST_NODES:
        raise OnnxError(f"the file's functions grow to more than {MOST_NODES} nodes")


def expand(model: ModelProto) -> ModelProto:
    """The model without functions of its own, and without operators that only the standard's
    functions explain.

    Raises:
        OnnxError: when operators remain that kerascl does not have; it names all of them.
    """
    try:
        if model.functions:
            model = inliner.inline_local_functions(model, convert_version=True)
        for _ in range(_MOST_ROUNDS):
            missing = _missing(model)
            explained = sorted(key for key in missing if missing[key] and _explained(*key, missing))
            if not explained:
                break
            before = sum(1 for _ in nodes_of(model.graph.node))
            model = _inlined(model, explained)
            if sum(1 for _ in nodes_of(model.graph.node)) == before and missing == _missing(model):
                break
    except RuntimeError as error:
        raise OnnxError(f"the model's functions cannot be written out: {error}") from None
    missing = _missing(model)
    if missing:
        names = ", ".join(
            f"{op}{f' of {domain}' if domain else ''} (opset {missing[domain, op]})"
            for domain, op in sorted(missing)
        )
        raise OnnxError(f"the model needs operators that kerascl does not have: {names}")
    return model


def _inlined(model: ModelProto, keys: list[Key]) -> ModelProto:
    """The model with the standard's functions written out where they are used."""
    _write_defaults(model, keys)
    with contextlib.suppress(RuntimeError):
        return inliner.inline_selected_functions(model, keys, inline_schema_functions=True)
    # it stumbles over inputs that are left out: make the functions of the file first
    types = _types(model)
    opsets = versions(model)
    for place, node in enumerate(model.graph.node):
        if (node.domain, node.op_type) not in keys:
            continue
        schema: Any = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        if not schema.has_context_dependent_function:
            continue
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        version = max(v for v in schema.context_dependent_function_opset_versions
                      if v <= opsets[node.domain])  # fmt: skip
        made = FunctionProto()
        made.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), given
            )
        )
        made.domain, made.name = "kerascl.expanded", f"{node.op_type}_{place}"
        node.domain, node.op_type = made.domain, made.name
        model.functions.append(made)
        if all(imported.domain != made.domain for imported in model.opset_import):
            model.opset_import.append(onnx.helper.make_opsetid(made.domain, 1))
    return inliner.inline_local_functions(model, convert_version=True)


def _write_defaults(model: ModelProto, keys: list[Key]) -> None:
    """Attributes that nodes leave out, which bodies of functions refer to."""
    opsets = versions(model)
    for node in nodes_of(model.graph.node):
        if (node.domain, node.op_type) not in keys:
            continue
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        given = {attribute.name for attribute in node.attribute}
        for name, known in schema.attributes.items():
            if name not in given and known.default_value.type != AttributeProto.UNDEFINED:
                node.attribute.add().CopyFrom(known.default_value)
                node.attribute[-1].name = name


def _types(model: ModelProto) -> dict[str, onnx.TypeProto]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    found = {value.name: value.type for value in [*graph.input, *graph.value_info]}
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_type_proto(
            tensor.data_type, list(tensor.dims)
        )
    return found


def versions(model: ModelProto) -> dict[str, int]:
    """The opset of each domain; "ai.onnx" is the same as ""."""
    found = {imported.domain: imported.version for imported in model.opset_import}
    return {"" if domain == "ai.onnx" else domain: version for domain, version in found.items()}


def _missing(model: ModelProto) -> dict[Key, int]:
    opsets = versions(model)
    found: dict[Key, int] = {}
    for node in nodes_of(model.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = opsets.get(domain, 0 if domain else 1)
        if RULES.find(domain, node.op_type, version) is None:
            found[domain, node.op_type] = version
    return found


def _explained(domain: str, op: str, missing: dict[Key, int]) -> bool:
    try:
        schema: Any = onnx.defs.get_schema(op, missing[domain, op], domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


