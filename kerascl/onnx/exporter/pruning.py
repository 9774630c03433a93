"""Leaving out nodes and initialisers that nobody reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx


def reads(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The names that nodes read, those in the bodies of loops too."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from reads(attribute.g.node)
                yield from (output.name for output in attribute.g.output)


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that `outputs` need, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(reads([node]))
    return kept[::-1]
