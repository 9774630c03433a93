"""Nested structures of lists, tuples and dicts, flattened and rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Rebuild = Callable[[Iterator], Any]


def flatten(value: Any, leaves: list) -> tuple[tuple, Rebuild]:
    """Append the leaves of `value` to `leaves`.

    Returns:
        A hashable description of the structure, and a function that rebuilds
        it from an iterator of new leaves.
    """
    if isinstance(value, dict):
        parts = {k: flatten(v, leaves) for k, v in value.items()}
        described = (type(value).__name__, tuple((k, p[0]) for k, p in parts.items()))
        return described, lambda items: {k: p[1](items) for k, p in parts.items()}
    if isinstance(value, list | tuple):
        parts = [flatten(v, leaves) for v in value]
        kind = type(value)
        described = (kind.__name__, tuple(p[0] for p in parts))
        make = kind._make if hasattr(kind, "_make") else kind
        return described, lambda items: make([p[1](items) for p in parts])
    leaves.append(value)
    return ("*",), next
