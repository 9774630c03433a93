"""x[key] = value: the array takes a new value, which is computed as any other is.

Values of the graph never change, so an array that was taken from `x` before keeps what it had,
views too: the one difference from NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerascl.core.array import Array, ArrayLike, State
from kerascl.core.holders import rebind
from kerascl.core.tape import distinct
from kerascl.dtypes import bool_
from kerascl.ops.declare import as_array, cast_to, is_scalar, scalar
from kerascl.ops.indexing import At, Basic, Key, basic, box_of, fitting, is_flag, kept_shape
from kerascl.ops.movement import flip
from kerascl.ops.pointwise import where
from kerascl.ops.views import expand_to, pad_with, reshape_to


def setitem(x: Array, key: Any, value: ArrayLike) -> None:
    """x[key] = value with NumPy's rules: `value` broadcasts to what `key` selects, and takes the
    dtype of `x`.

    The array object takes a new value: every name of it sees that, as in NumPy.  Arrays that were
    computed from it before, views such as `x[1:]` included, keep the value that they had, and
    assigning to a view changes that view alone.  Tapes record it; in a captured function it works
    on arrays that were made inside and on arguments, which belong to the function.

    Raises:
        IndexError: for integers and host arrays out of range, masks that do not fit, too many
            indices.
        ValueError: when `value` does not broadcast to what `key` selects.
        CaptureError: inside a captured function, for an array from outside, and for a mask whose
            values on the host decide how many elements `value` must have.
    """
    rebind(x, _updated(x, key, value))


@distinct
def _updated(x: Array, key: Any, value: ArrayLike) -> Array:
    """`x` with the elements at `key` replaced."""
    key = key.value if isinstance(key, State) else key
    if isinstance(key, np.ndarray) and key.dtype == bool and key.ndim:
        key = as_array(key)
    new = _converted(value, x)
    if is_flag(key):
        return _flagged(x, key, new)
    if isinstance(key, Array) and key.dtype.is_bool and key.ndim:
        masked = _masked(x, key, new)
        if masked is not None:
            return masked
    box = box_of(x.shape, key)
    if box is not None:
        return box.put(x, new)
    parts = Key(x.shape, key).parts
    found = basic(x.shape, parts)
    if found.advanced:
        return At(x)[key].set(new)
    return _replaced(x, found, fitting(new, kept_shape(parts, found)))


def _converted(value: ArrayLike, x: Array) -> Array:
    if is_scalar(value):
        if isinstance(value, complex) and not x.dtype.is_complex:
            raise TypeError(f"cannot assign a complex number to elements of {x.dtype.name}")
        return scalar(value, x.dtype)
    new = as_array(value)
    if new.dtype.is_complex and not x.dtype.is_complex:
        raise TypeError(f"cannot assign {new.dtype.name} to elements of {x.dtype.name}")
    return cast_to(new, x.dtype)


def _flagged(x: Array, flag: Any, value: Array) -> Array:
    """x[flag] = value for a single bool: all elements or none."""
    if value.ndim == x.ndim + 1 and not value.shape[0] and not bool(flag):
        return x
    return where(cast_to(as_array(flag), bool_), fitting(value, x.shape), x)


def _masked(x: Array, mask: Array, value: Array) -> Array | None:
    """x[mask] = value where every selected element takes the same; else None."""
    rest = x.ndim - mask.ndim
    if rest < 0 or mask.shape != x.shape[: mask.ndim]:
        return None  # the key's own check says so
    if value.ndim > rest:
        return None
    if mask.ndim < x.ndim:
        mask = expand_to(reshape_to(mask, (*mask.shape, *[1] * rest)), x.shape)
    return where(mask, fitting(value, x.shape), x)


def _replaced(x: Array, found: Basic, value: Array) -> Array:
    """`x` with what integers and slices select replaced by `value`, of the shape they give."""
    counts = [max(0, -(-(b - a) // s)) for a, b, s in
              zip(found.starts, found.stops, found.steps, strict=True)]  # fmt: skip
    if 0 in counts:
        return x
    value = reshape_to(value, tuple(counts))
    if found.reverse:
        value = flip(value, found.reverse)
    low, gap = found.starts, [s - 1 for s in found.steps]
    high = [n - a - (m - 1) * s - 1 for n, a, m, s in
            zip(x.shape, low, counts, found.steps, strict=True)]  # fmt: skip
    if not (any(low) or any(high) or any(gap)):
        return value
    inside = pad_with(expand_to(scalar(True, bool_), tuple(counts)), low, high, gap, False)
    return where(inside, pad_with(value, low, high, gap, 0), x)
