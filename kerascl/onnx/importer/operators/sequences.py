"""Sequences, which are lists on the host, optional values, and strings, which no device has."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.onnx.importer.graph import Call, Graph, axis_of, device, on_host
from kerascl.onnx.importer.operators.shapes import parts
from kerascl.onnx.importer.rules import operator
from kerascl.ops import movement
from kerascl.ops.views import reshape_to


def _place(position: Any, size: int, ends: int) -> int:
    found = int(on_host(position).reshape(()))
    if not -size <= found < size + ends:
        raise IndexError(f"position {found} in a sequence of {size}")
    return found + size if found < 0 else found


@operator("SequenceEmpty", raw=True)
def empty(call: Call) -> list[Any]:
    """A sequence of nothing."""
    return []


@operator("SequenceConstruct", raw=True)
def construct(call: Call, *values: Any) -> list[Any]:
    """A sequence of the inputs."""
    return list(values)


@operator("SequenceAt", raw=True)
def element(call: Call, sequence: list[Any], position: Any) -> Any:
    """One element of a sequence; negative positions count from the end.

    Raises:
        IndexError: for a position that there is not.
    """
    return sequence[_place(position, len(sequence), 0)]


@operator("SequenceInsert", raw=True)
def insert(call: Call, sequence: list[Any], value: Any, position: Any = None) -> list[Any]:
    """A sequence with a value before `position`; at the end by default.

    Raises:
        IndexError: for a position outside of the sequence and its end.
    """
    size = len(sequence)
    place = size if position is None else _place(position, size, 1)
    return [*sequence[:place], value, *sequence[place:]]


@operator("SequenceErase", raw=True)
def erase(call: Call, sequence: list[Any], position: Any = None) -> list[Any]:
    """A sequence without one element, by default the last.

    Raises:
        IndexError: for a position that there is not.
    """
    size = len(sequence)
    place = size - 1 if position is None else _place(position, size, 0)
    return [*sequence[:place], *sequence[place + 1 :]]


@operator("SequenceLength", raw=True)
def length(call: Call, sequence: list[Any]) -> np.ndarray:
    """The number of elements, an int64 scalar."""
    return np.asarray(len(sequence), np.int64)


@operator("ConcatFromSequence", raw=True)
def concat(call: Call, sequence: list[Any]) -> Array:
    """All elements joined along an axis, a new one where `new_axis` is set."""
    arrays = [device(v) for v in sequence]
    if call["new_axis"]:
        return movement.stack(arrays, axis_of(call["axis"], arrays[0].ndim + 1))
    return movement.concatenate(arrays, call.axis(arrays[0].ndim))


@operator("SplitToSequence", raw=True)
def split(call: Call, x: Any, sizes: Any = None) -> list[Array]:
    """`x` cut along an axis into a sequence.

    Args:
        sizes: of each part, or one number for all but the last, which may be smaller.  None: parts
            of size 1, without the axis unless `keepdims` is set.

    Raises:
        ValueError: when sizes are not that of the axis together, or the one number is not positive.
    """
    x = device(x)
    axis = call.axis(x.ndim)
    size = x.shape[axis]
    if sizes is None:
        found = parts(x, [1] * size, axis)
        if call["keepdims"]:
            return found
        rest = (*x.shape[:axis], *x.shape[axis + 1 :])
        return [reshape_to(v, rest) for v in found]
    given = on_host(sizes)
    if given.ndim:
        return parts(x, [int(n) for n in given], axis)
    each = int(given)
    if each <= 0:
        raise ValueError(f"parts of {each}")
    counts = [min(each, size - start) for start in range(0, size, each)]
    return parts(x, counts, axis)


@operator("SequenceMap", raw=True)
def each(call: Call, sequence: list[Any], *others: Any) -> tuple[list[Any], ...]:
    """Sequences of what a graph makes of each element.

    Of `others`, sequences go along element by element, and arrays are the same for all.
    """
    body: Graph = call["body"]
    results: list[list[Any]] = [[] for _ in body.outputs]
    for place, value in enumerate(sequence):
        rest = [v[place] if isinstance(v, list) else v for v in others]
        for found, made in zip(results, body.run([value, *rest], call.scope, call.run)):
            found.append(made)
    return tuple(results)


# -- optional values -----------------------------------------------------------
@operator("Optional", raw=True)
def optional(call: Call, value: Any = None) -> Any:
    """The value itself: an optional value is None where it is empty."""
    return value


@operator("OptionalHasElement", raw=True)
def has_element(call: Call, value: Any = None) -> np.ndarray:
    """Whether an optional value is not empty, on the host."""
    return np.asarray(value is not None)


@operator("OptionalGetElement", raw=True)
def get_element(call: Call, value: Any) -> Any:
    """What an optional value holds.

    Raises:
        ValueError: when it is empty.
    """
    if value is None:
        raise ValueError("the optional is empty")
    return value


# -- strings ---------------------------------------------------------------------
@operator("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch", raw=True)
def of_strings(call: Call, *values: Any) -> tuple[Any, ...]:
    """On the host, by onnx's own reference: no device has strings."""
    return tuple(call.node.on_host(*(np.asarray(v) for v in values)))
