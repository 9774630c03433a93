"""Arrays as sets: their different values."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.dtypes import as_dtype, int32
from kerascl.ops import host
from kerascl.ops.choosing import compress, flatnonzero
from kerascl.ops.declare import as_array, cast_to, convert, scalar
from kerascl.ops.gather import scatter_rows, take, take_from_start
from kerascl.ops.histograms import COUNTS
from kerascl.ops.movement import concatenate, iota, moveaxis, ravel
from kerascl.ops.pointwise import equal, imag, logical_and, logical_or, not_equal, real, where
from kerascl.ops.prepared import first, prepared, room_for
from kerascl.ops.reduction import any as some
from kerascl.ops.reduction import max as largest
from kerascl.ops.reduction import min as smallest
from kerascl.ops.scan import cumsum, places_of
from kerascl.ops.sorting import argsort, isin, searchsorted, sort
from kerascl.ops.views import expand_to, pad_with, reshape_to, window

__all__ = [
    "intersect1d", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all", "unique_counts",
    "unique_inverse", "unique_values",
]  # fmt: skip

_COUNTED_FROM = 1 << 16  # elements from which on looking for few different integers is worth it
_PER_VALUE = 16  # elements for each integer that is possible, at least


@overload
def unique(
    x: ArrayLike,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    *,
    equal_nan: bool = True,
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
    *,
    equal_nan: bool = True,
) -> Array | tuple[Array, ...]: ...
def unique(
    x: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    *,
    equal_nan: bool = True,
) -> Array | tuple[Array, ...]:
    """The different elements of `x`, sorted; or its different slices along `axis`.

    Args:
        return_index: also the int32 position of each one's first occurrence.
        return_inverse: also the int32 number in the result of each element.
        return_counts: also how often each occurs.
        size: of the result, which is cut or padded with `fill_value` (by default the smallest);
            without it, the number is read on the host.
        equal_nan: whether all NaN are one element, a complex one with a NaN in either part; each
            is for itself otherwise and, as in NumPy, always where slices along `axis` are compared.

    Returns:
        An Array, or a tuple with what was asked for, in this order.
    """
    x = as_array(x)
    if axis is not None:
        axis = rules.axis_index(axis, x.ndim)
    count = x.size if axis is None else x.shape[axis]
    if size is None and not return_index and (axis is None or x.ndim == 1):
        results = _by_counts(x, return_inverse, return_counts)
        if results is not None:
            return results[0] if len(results) == 1 else tuple(results)
    has_nan = x.dtype.is_float or x.dtype.is_complex
    one_nan = equal_nan and has_nan and (axis is None or x.ndim == 1)
    ordered, upto, *more = _in_order(x, axis, one_nan, return_index, return_inverse)
    if size is not None:
        found = room = size
    elif count:
        host.count("unique")
        found = int(upto._element(count - 1))
        room = room_for(found, count)
    else:
        found = room = 0
    wanted = (ordered, more[0]) if return_index else (ordered,)
    values, *rest = (first(y, found) for y in _first_of_each(upto, room, return_counts, *wanted))
    values = _slices(values, x.shape, axis)
    if size is not None and count:
        live = iota((size,), 0) < upto[-1]
        place = axis or 0
        wide = tuple(size if a == place else 1 for a in range(values.ndim))
        least = window(values, place, 0, 1) if fill_value is None else fill_value
        values = where(reshape_to(live, wide), values, least)
    results = [values, *rest]
    if return_inverse:  # the counts, if any, come last
        results.insert(1 + return_index, more[-1])
    return results[0] if len(results) == 1 else tuple(results)


@prepared
def _in_order(
    x: Array, axis: int | None, one_nan: bool, wants_order: bool, wants_inverse: bool
) -> tuple[Array, ...]:
    """Slices or elements sorted (n, …); how many different ones there are up to each, int32 (n,);
    where wanted, the position of each and the number of each of those of `x`."""
    shape = x.shape
    if axis is None:
        rows = reshape_to(x, (x.size, 1))
    else:
        rows = moveaxis(x, axis, 0)
        rows = reshape_to(rows, (shape[axis], rows.size // max(1, shape[axis])))
    count = rows.shape[0]
    order = iota((count,), 0)
    if rows.shape[1] == 1:
        rows = reshape_to(rows, (count,))
    if rows.ndim == 1 and not rows.dtype.is_complex and not (wants_order or wants_inverse):
        ordered = sort(rows, 0)  # nobody asks for the order itself
    elif rows.ndim == 1 and not rows.dtype.is_complex:
        order = argsort(rows, 0)
        ordered = take_from_start(rows, order)
    else:
        columns = 1 if rows.ndim == 1 else rows.shape[1]
        for column in reversed(range(columns)):  # stable sorts, the last column first
            keys = rows if rows.ndim == 1 else window(rows, 1, column, column + 1)
            for part in _sorted_by(reshape_to(keys, (count,))):
                order = take_from_start(order, argsort(take_from_start(part, order)))
        ordered = take_from_start(rows, order)
    if count:
        # a view: nothing is copied; what lies before the first does not matter
        ends = (0,) * (rows.ndim - 1)
        before = pad_with(ordered, (1, *ends), (-1, *ends), (0, *ends), 0)
        differs = not_equal(ordered, before)
        if one_nan:
            differs = logical_and(differs, equal(before, before))  # all NaN are sorted to the end
        differs = differs if rows.ndim == 1 else some(differs, 1)
        new = logical_or(equal(iota((count,), 0), 0), differs)
    else:
        new = expand_to(scalar(False, as_dtype(bool)), (0,))
    upto = cumsum(new, 0, int32)
    results = [ordered, upto]
    if wants_order:
        results.append(order)
    if wants_inverse:
        base = expand_to(scalar(0, int32), (count, 1))
        numbers = reshape_to(upto - 1, (count, 1))
        back = scatter_rows(base, order, numbers, "set") if count else base
        results.append(reshape_to(back, shape if axis is None else (count,)))
    return tuple(results)


@prepared
def _first_of_each(upto: Array, room: int, often: bool, *arrays: Array) -> tuple[Array, ...]:
    """The slices of arrays where each of the first `room` groups starts, those at 0 for groups that
    do not exist; and, where wanted, how many elements each group has."""
    count = upto.size
    ends = places_of(upto, room + 1 if often else room)
    starts = window(ends, 0, 0, room) if often else ends
    places = where(starts < count, starts, 0)
    results = [take_from_start(y, places) for y in arrays]
    return (*results, window(ends, 0, 1, room + 1) - starts) if often else tuple(results)


def _by_counts(x: Array, inverse: bool, often: bool) -> list[Array] | None:
    """The different values of integers and, where asked for, the number of each element's and how
    often each occurs, from counts of all values in between; None where those are not few beside the
    number of elements."""
    dtype, n = x.dtype, x.size
    if not (dtype.is_integer or dtype.is_bool) or n < _COUNTED_FROM:
        return None
    least: Array | int
    if dtype.is_bool:
        low, high = 0, 1
    elif dtype.itemsize == 1:
        low, high = (0, 255) if dtype.kind == "u" else (-128, 127)
    else:
        host.count("unique")
        least, greatest = _extremes(x)
        low, high = host.integers(least, greatest)
    most = n // _PER_VALUE
    if high - low >= most:
        return None
    if low >= 0 and high < most:
        low = least = 0
    elif dtype.itemsize == 1:
        least = low
    room = room_for(high - low + 1, most)
    number, *rest = _values_counted(x, least, room, often, inverse)
    host.count("unique")
    found = int(number._element(room - 1))
    results = [first(y, found) for y in (rest[:-1] if inverse else rest)]
    if inverse:
        results.insert(1, rest[-1])
    return results


@prepared
def _extremes(x: Array) -> tuple[Array, Array]:
    return smallest(x), largest(x)


@prepared
def _values_counted(
    x: Array, low: Array | int, room: int, often: bool, inverse: bool
) -> tuple[Array, ...]:
    """Of integers from `low` to less than `low` + `room`: how many of the first 1, 2, … of these
    there are in `x`, (room,); those that are, first, (room,); where wanted, how often each is
    there, (room,), and the number of each of those of `x`."""
    dtype = x.dtype
    keys = reshape_to(x, (x.size,))
    places = cast_to(keys, int32) if dtype.itemsize < 4 else keys  # which holds the differences
    shifted = isinstance(low, Array) or low != 0
    if shifted:
        places = places - cast_to(as_array(low), places.dtype)
    counts = apply(COUNTS, (places,), (room,), (room,), int32)
    number = cumsum(counts > 0, 0, int32)
    present = places_of(number, room)
    values = present
    if shifted:
        wide = int32 if dtype.itemsize < 4 else dtype
        values = cast_to(present, wide) + cast_to(as_array(low), wide)
    results = [number, cast_to(values, dtype)]
    if often:
        results.append(take_from_start(counts, present))
    if inverse:
        back = take_from_start(number - 1, places)
        results.append(back if x.ndim == 1 else reshape_to(back, x.shape))
    return tuple(results)


def _sorted_by(keys: Array) -> tuple[Array, ...]:
    """What elements are sorted by, the last first; complex ones with a NaN come last."""
    if not keys.dtype.is_complex:
        return (keys,)
    return imag(keys), real(keys), cast_to(not_equal(keys, keys), int32)


def _slices(rows: Array, shape: tuple[int, ...], axis: int | None) -> Array:
    if axis is None or len(shape) == 1:
        return rows
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
    return UniqueAll(*unique(x, True, True, True, equal_nan=False))


def unique_counts(x: ArrayLike) -> UniqueCounts:
    """The different elements of `x`, and how often each occurs; see `unique_all`."""
    return UniqueCounts(*unique(x, return_counts=True, equal_nan=False))


def unique_inverse(x: ArrayLike) -> UniqueInverse:
    """The different elements of `x`, and the number of each element's; see `unique_all`."""
    return UniqueInverse(*unique(x, return_inverse=True, equal_nan=False))


def unique_values(x: ArrayLike) -> Array:
    """The different elements of `x`, sorted, each NaN for itself."""
    return unique(x, equal_nan=False)


# -- two sets -------------------------------------------------------------------------------------
def union1d(ar1: ArrayLike, ar2: ArrayLike) -> Array:
    """The different elements of two arrays, sorted; their number is read.

    Examples:
        >>> kc.union1d([3, 1], [2, 1]).tolist()
        [1, 2, 3]
    """
    return unique(concatenate([ravel(ar1), ravel(ar2)]))


def intersect1d(
    ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, return_indices: bool = False
) -> Array | tuple[Array, Array, Array]:
    """The elements that two arrays have in common, sorted; their number is read.

    Args:
        assume_unique: say that elements of each array differ, which is faster.
        return_indices: also the int32 positions of the first of each in both flat arrays.

    Examples:
        >>> kc.intersect1d([3, 1, 1], [2, 1, 3]).tolist()
        [1, 3]
    """
    (a, b), _ = convert((ravel(ar1), ravel(ar2)))
    if not return_indices:
        values = sort(a) if assume_unique else unique(a)
        return compress(isin(values, b), values)
    values, first = unique(a, True)
    others, second = unique(b, True)
    places = flatnonzero(isin(values, others))
    values = take(values, places)
    return values, take(first, places), take(second, searchsorted(others, values))


def setdiff1d(ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False) -> Array:
    """The different elements of one array that are not in another; their number is read.

    They are sorted, unless `assume_unique` says that elements of each array differ already.

    Examples:
        >>> kc.setdiff1d([3, 1, 5, 3], [1, 2]).tolist()
        [3, 5]
    """
    values = ravel(ar1) if assume_unique else unique(ar1)
    return compress(isin(values, ravel(ar2), invert=True), values)


def setxor1d(ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False) -> Array:
    """The different elements that are in one of two arrays only, sorted; their number is read.

    Args:
        assume_unique: say that elements of each array differ, which is faster.

    Examples:
        >>> kc.setxor1d([1, 2, 3], [3, 4]).tolist()
        [1, 2, 4]
    """
    parts = [ravel(x) if assume_unique else unique(x) for x in (ar1, ar2)]
    values, counts = unique(concatenate(parts), return_counts=True, equal_nan=False)
    return compress(equal(counts, 1), values)
