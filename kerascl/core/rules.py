"""Shape rules, shared by every operation."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from numpy.exceptions import AxisError

from kerascl.core.types import Axes, ShapeLike


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcast of shapes.

    Raises:
        ValueError: naming the shapes that do not fit.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        if shape == result:
            continue
        rank = max(len(result), len(shape))
        a = (1,) * (rank - len(result)) + result
        b = (1,) * (rank - len(shape)) + shape
        merged = []
        for m, n in zip(a, b, strict=True):
            if m != n and m != 1 and n != 1:
                text = " and ".join(str(s) for s in shapes)
                raise ValueError(f"shapes {text} cannot be broadcast together")
            merged.append(n if m == 1 else m)
        result = tuple(merged)
    return result


def is_integer(value: Any) -> bool:
    """Whether it stands for one integer: a number, or an array without dimensions."""
    return hasattr(value, "__index__") and not getattr(value, "ndim", 0)


def integers(value: Any) -> tuple[int, ...]:
    """What `is_integer`, or the integers of a sequence, as Python's.

    Raises:
        TypeError: of anything else.
    """
    if is_integer(value):
        return (operator.index(value),)
    return tuple(map(operator.index, value))


def axis_index(axis: SupportsIndex, rank: int, name: str = "axis") -> int:
    """A non-negative axis.

    Raises:
        AxisError: NumPy's ValueError and IndexError, when it is out of range for `rank` dimensions.
    """
    index = operator.index(axis)
    if not -rank <= index < rank:
        raise AxisError(f"{name} {axis} is out of bounds for an array of {rank} dimensions")
    return index % rank if rank else 0


def axes_tuple(axis: Axes, rank: int, name: str = "axis") -> tuple[int, ...]:
    """Sorted non-negative axes from None (all), an integer or a sequence.

    Raises:
        ValueError: when one is out of range or named twice.
    """
    if axis is None:
        return tuple(range(rank))
    if not isinstance(axis, Sequence):
        return (axis_index(axis, rank, name),)
    axes = tuple(sorted(axis_index(a, rank, name) for a in axis))
    if len(set(axes)) != len(axes):
        raise ValueError(f"{name} {tuple(axis)} names an axis twice")
    return axes


def reshape(shape: tuple[int, ...], new: ShapeLike, guessed: bool = False) -> tuple[int, ...]:
    """The shape that `new` asks for, with one -1 filled in.

    Args:
        guessed: whether sizes in `shape` may be made up: then the number of elements may differ,
            and a -1 gives a size that is made up, too.

    Raises:
        ValueError: when the number of elements differs.
    """
    new = integers(new)
    size = math.prod(shape)
    if new.count(-1) > 1:
        raise ValueError(f"reshape: only one dimension may be -1, got {new}")
    if -1 in new:
        known = math.prod(n for n in new if n != -1)
        if known == 0 or (size % known and not guessed):
            raise ValueError(f"cannot reshape an array of shape {shape} to {new}")
        new = tuple((size // known or size) if n == -1 else n for n in new)
    if (math.prod(new) != size and not guessed) or any(n < 0 for n in new):
        raise ValueError(f"cannot reshape an array of shape {shape} to {new}")
    return new


def normalize_shape(shape: ShapeLike) -> tuple[int, ...]:
    """A shape from an integer or a sequence of integers.

    Raises:
        ValueError: for negative sizes.
    """
    found = integers(shape)
    if any(n < 0 for n in found):
        raise ValueError(f"a shape cannot have negative sizes: {found}")
    return found
