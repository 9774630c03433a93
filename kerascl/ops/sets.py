"""Arrays as sets: their different values."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.dtypes import as_dtype, int32
from kerascl.ops.declare import as_array, scalar
from kerascl.ops.gather import scatter_rows, take
from kerascl.ops.indexing import selected
from kerascl.ops.movement import concatenate, iota, moveaxis
from kerascl.ops.pointwise import equal, imag, logical_or, not_equal, real, where
from kerascl.ops.reduction import any as some
from kerascl.ops.scan import cumsum
from kerascl.ops.sorting import argsort, bincount
from kerascl.ops.views import expand_to, reshape_to, window

__all__ = ["unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


@overload
def unique(
    x: ArrayLike,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array: ...
@overload
def unique(
    x: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array | tuple[Array, ...]: ...
def unique(
    x: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array | tuple[Array, ...]:
    """The different elements of `x`, sorted; or its different slices along `axis`.

    Args:
        return_index: also the int32 position of each one's first occurrence.
        return_inverse: also the int32 number in the result of each element.
        return_counts: also how often each occurs.
        size: of the result, which is cut or padded with `fill_value` (by default the smallest);
            without it, the number is read on the host.

    Returns:
        An Array, or a tuple with what was asked for, in this order.
    """
    x = as_array(x)
    shape = x.shape
    if axis is None:
        rows = reshape_to(x, (x.size, 1))
    else:
        axis = rules.axis_index(axis, x.ndim)
        rows = moveaxis(x, axis, 0)
        rows = reshape_to(rows, (shape[axis], rows.size // max(1, shape[axis])))
    count = rows.shape[0]
    order = iota((count,), 0)
    for column in reversed(range(rows.shape[1])):  # stable sorts, the last column first
        keys = reshape_to(window(rows, 1, column, column + 1), (count,))
        for part in (imag(keys), real(keys)) if keys.dtype.is_complex else (keys,):
            order = take(order, argsort(take(part, order)))
    ordered = take(rows, order, 0)
    if count:
        before = concatenate([window(ordered, 0, 0, 1), window(ordered, 0, 0, count - 1)], 0)
        new = logical_or(equal(iota((count,), 0), 0), some(not_equal(ordered, before), 1))
    else:
        new = expand_to(scalar(False, as_dtype(bool)), (0,))
    number = cumsum(new, 0, int32) - 1
    starts = selected(new, "unique") if size is None else _first_places(new, number, size)
    results = [_slices(take(ordered, starts, 0), shape, axis)]
    found = starts.shape[0]
    if size is not None and count:
        live = iota((size,), 0) <= number[-1]
        place = axis or 0
        wide = tuple(size if a == place else 1 for a in range(results[0].ndim))
        live = reshape_to(live, wide)
        first = window(results[0], place, 0, 1)
        results[0] = where(live, results[0], first if fill_value is None else fill_value)
    if return_index:
        results.append(take(order, starts))
    if return_inverse:
        base = expand_to(scalar(0, int32), (count, 1))
        back = scatter_rows(base, order, reshape_to(number, (count, 1)), "set") if count else base
        results.append(reshape_to(back, shape if axis is None else (count,)))
    if return_counts:
        results.append(bincount(number, length=found))
    return results[0] if len(results) == 1 else tuple(results)


def _first_places(new: Array, number: Array, size: int) -> Array:
    """Where each of the first `size` groups starts; 0 for those that do not exist."""
    base = expand_to(scalar(0, int32), (size, 1))
    target = where(new, number, -1)
    count = new.shape[0]
    if not count or not size:
        return reshape_to(base, (size,))
    updates = reshape_to(iota((count,), 0), (count, 1))
    return reshape_to(scatter_rows(base, target, updates, "set"), (size,))


def _slices(rows: Array, shape: tuple[int, ...], axis: int | None) -> Array:
    if axis is None:
        return reshape_to(rows, (rows.shape[0],))
    rest = (*shape[:axis], *shape[axis + 1 :])
    return moveaxis(reshape_to(rows, (rows.shape[0], *rest)), 0, axis)


# -- the array API standard's ----------------------------------------------------------------------
class UniqueAll(NamedTuple):
    """The different values, where each comes first, the number of each element's, how often."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The different values, and how often each occurs."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The different values, and the number of each element's."""

    values: Array
    inverse_indices: Array


def unique_all(x: ArrayLike) -> UniqueAll:
    """The different elements of `x`, sorted, each NaN for itself.

    Returns:
        `values`; `indices`, the int32 position of each one's first occurrence in the flat array;
        `inverse_indices`, of the shape of `x`, the int32 number in `values` of each element;
        `counts`, how often each occurs.
    """
    return UniqueAll(*unique(x, True, True, True))


def unique_counts(x: ArrayLike) -> UniqueCounts:
    """The different elements of `x`, and how often each occurs; see `unique_all`."""
    return UniqueCounts(*unique(x, return_counts=True))


def unique_inverse(x: ArrayLike) -> UniqueInverse:
    """The different elements of `x`, and the number of each element's; see `unique_all`."""
    return UniqueInverse(*unique(x, return_inverse=True))


def unique_values(x: ArrayLike) -> Array:
    """The different elements of `x`, sorted, each NaN for itself."""
    return unique(x)
