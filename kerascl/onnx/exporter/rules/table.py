"""The table of rules: how the nodes of one operation become operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kerascl.core.op import REGISTRY, Kind, Op
from kerascl.onnx.exporter.errors import ExportError
from kerascl.onnx.exporter.graph import Graph
from kerascl.onnx.exporter.merging import Loop, Value

# Adds nodes for a Value, whose inputs are bound, and binds it.
Rule: TypeAlias = Callable[[Graph, Value], None]

# Several nodes that are one operator: binds the last of them and says so, or does nothing.
Pattern: TypeAlias = Callable[[Graph, Value], bool]

RULES: dict[Op, Rule] = {}
PATTERNS: dict[Op, list[Pattern]] = {}  # tried first


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Declares a function as the rule of operations."""

    def declare(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return declare


def pattern(*names: str) -> Callable[[Pattern], Pattern]:
    """Declares a function as a pattern that ends in one of some operations."""

    def declare(function: Pattern) -> Pattern:
        for op in named(*names):
            PATTERNS.setdefault(op, []).append(function)
        return function

    return declare


def named(*names: str) -> list[Op]:
    """Operations of the registry by their names."""
    return [REGISTRY[name] for name in names]


def check(values: Iterable[Value]) -> None:
    """See that there is a rule for everything.

    Raises:
        ExportError: naming the operations that have none, and their layers.
    """
    missing: dict[str, set[str]] = {}
    stack = list(values)
    while stack:
        value = stack.pop()
        if value.op not in RULES and value.op.kind is not Kind.LEAF:
            missing.setdefault(value.op.name, set()).add(value.label)
        for attribute in value.attrs:
            parts = attribute if isinstance(attribute, tuple) else (attribute,)
            stack += [v for part in parts if isinstance(part, Loop) for v in part.order]
    if not missing:
        return
    lines = []
    for name, labels in missing.items():
        found = sorted(label for label in labels if label)
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        where = f" (layer {', '.join(found[:3])}{more})" if found else ""
        lines.append(name + where)
    reason = ""
    if any(name.startswith("random_") for name in missing):
        reason = (
            "; random numbers are drawn from a seed that ONNX operators do not have, so leave "
            "random layers out, or call them with training=False"
        )
    raise ExportError(f"no ONNX operator for {'; '.join(lines)}{reason}")


def emit(graph: Graph, values: Iterable[Value]) -> None:
    """Apply the rules to Values, inputs first; those that are bound already stay as they are."""
    for value in values:
        if not graph.is_bound(value):
            graph.label = value.label
            if not any(fits(graph, value) for fits in PATTERNS.get(value.op, ())):
                RULES[value.op](graph, value)
