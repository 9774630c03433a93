"""Nested structures of lists, tuples and dicts, flattened and rebuilt; keys of values."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

Rebuild = Callable[[Iterator[Any]], Any]


def flatten(value: Any, leaves: list[Any]) -> tuple[tuple[Hashable, ...], Rebuild]:
    """Append the leaves of `value` to `leaves`.

    Returns:
        A hashable description of the structure, and a function that rebuilds
        it from an iterator of new leaves.
    """
    if isinstance(value, dict):
        parts = {k: flatten(v, leaves) for k, v in value.items()}
        described = (type(value), tuple((exact(k), p[0]) for k, p in parts.items()))
        return described, lambda items: {k: p[1](items) for k, p in parts.items()}
    if isinstance(value, list | tuple):
        kind = type(value)
        items = [flatten(v, leaves) for v in value]
        make = kind._make if hasattr(kind, "_make") else kind
        rebuilds = [p[1] for p in items]
        return (kind, tuple(p[0] for p in items)), lambda new: make([r(new) for r in rebuilds])
    leaves.append(value)
    return ("*",), next


class Same:
    """A key that only the same object equals; it keeps the object, so that its id stays taken."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


# Their own keys: equal ones are alike, and nothing of another kind equals them.
_PLAIN = frozenset({int, str, bytes, type(None)})
_IDENTITY: Any = object.__eq__  # the comparison of classes that define none


def exact(value: Any) -> Hashable:
    """A key that two values share only if no function can tell them apart.

    True, 1 and 1.0 differ, as do 0.0 and -0.0; a NaN equals a NaN of its sign.  Containers,
    dataclasses and NumPy arrays count by what they hold now, so that a change of it changes the
    key.  Other objects count as they compare or, if they cannot be hashed, by identity and by their
    attributes.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]  # its kind is hashable
    if kind is tuple:
        for x in value:
            if type(x) not in _PLAIN:
                # all keys made here begin with a type, and no plain tuple does
                return (kind, *[exact(x) for x in value])
        return value  # type: ignore[no-any-return]  # its kind is hashable
    if kind is bool:
        return (kind, value)
    if isinstance(value, float):
        return (kind, _digits(value))
    return _exact(value, kind)


def _digits(value: float) -> float | str:
    if value and value == value:
        return value  # equals no other float
    return float.hex(value) if value == value else f"{math.copysign(1, value)} nan"


def _exact(value: Any, kind: type[Any]) -> Hashable:
    if isinstance(value, type):
        return (kind, value)
    if kind.__eq__ is _IDENTITY and not dataclasses.is_dataclass(kind):
        return value  # type: ignore[no-any-return]  # its kind is hashable
    if isinstance(value, complex):
        return (kind, _digits(value.real), _digits(value.imag))
    if isinstance(value, np.generic | np.ndarray):
        if value.dtype.hasobject:
            return (kind, value.shape, exact(value.tolist()))
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, list | tuple | collections.deque):
        return (kind, *[exact(x) for x in value])
    if isinstance(value, set | frozenset):
        return (kind, frozenset([exact(x) for x in value]))
    if isinstance(value, dict):
        return (kind, *[(exact(k), exact(x)) for k, x in value.items()])
    if isinstance(value, bytearray):
        return (kind, bytes(value))
    if isinstance(value, slice | range):
        return (kind, exact((value.start, value.stop, value.step)))
    if hasattr(kind, "__array__"):  # compares element by element
        return (kind, Same(value))
    if dataclasses.is_dataclass(kind):
        same = Same(value) if kind.__eq__ is _IDENTITY else None
        held = [getattr(value, field.name, None) for field in dataclasses.fields(kind)]
        return (kind, same, *[exact(x) for x in held])
    try:
        hash(value)
    except TypeError:
        fields: dict[str, Any] = getattr(value, "__dict__", {})
        return (kind, Same(value), *[(name, exact(x)) for name, x in fields.items()])
    return (kind, value)
