"""Sorting, selection, searching, and what needs a size from the data."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl import dtypes
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply, apply_multi
from kerascl.core.op import CONST
from kerascl.core.types import Axes, Gradients
from kerascl.dtypes import DType, int32, positions
from kerascl.ops import host
from kerascl.ops.batched import more_rows
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    library_operation,
    numeric,
    scalar,
)
from kerascl.ops.gather import scatter_rows, take, take_along_axis
from kerascl.ops.movement import iota, moveaxis, ravel, repeat_evenly, unstack
from kerascl.ops.pointwise import (
    clip,
    equal,
    floor,
    imag,
    isnan,
    logical_and,
    logical_not,
    logical_or,
    real,
    where,
)  # fmt: skip
from kerascl.ops.reduction import any as some
from kerascl.ops.reduction import max as largest
from kerascl.ops.scan import cumsum
from kerascl.ops.views import expand_to, permute, reshape_to, window

__all__ = [
    "argpartition", "argsort", "digitize", "in_top_k", "isin", "lexsort", "median", "nanmedian",
    "nanpercentile", "nanquantile", "partition", "percentile", "quantile", "repeat",
    "searchsorted", "segment_max", "segment_min", "segment_prod", "segment_sum", "sort",
    "sort_complex", "top_k",
]  # fmt: skip


# -- sorting ------------------------------------------------------------------
def _sort_vjp(g: Array, y: Array, x: Array, descending: bool, k: int) -> Gradients:
    _, places = y
    rows, length = x.shape
    flat = places + iota(places.shape, 0) * length
    base = expand_to(scalar(0, x.dtype), (rows * length, 1))
    updates = reshape_to(g[0], (g[0].size, 1))
    back = scatter_rows(base, reshape_to(flat, (flat.size,)), updates, "add")
    return (reshape_to(back, x.shape),)


SORT = library_operation("sort", _sort_vjp, outputs=2, batch=more_rows)


def _sorted_rows(x: Array, descending: bool, k: int) -> tuple[Array, Array]:
    """The first `k` of each sorted last axis, and their int32 positions."""
    *lead, length = x.shape
    if length > dtypes.NARROW_POSITIONS:
        raise ValueError(f"an axis of {length} elements cannot be sorted: 2**31 - 1 at most")
    shape = (*lead, k)
    if not x.size or not k:
        return expand_to(scalar(0, x.dtype), shape), expand_to(scalar(0, int32), shape)
    rows = math.prod(lead)
    flat = reshape_to(x, (rows, length))
    result = [((rows, k), x.dtype), ((rows, k), int32)]
    values, places = apply_multi(SORT, (flat,), (descending, k), result)
    return reshape_to(values, shape), reshape_to(places, shape)


def _sorted(x: ArrayLike, axis: int | None, descending: bool) -> tuple[Array, Array]:
    x = as_array(x)
    if x.dtype.is_complex:
        raise TypeError(f"{x.dtype.name} cannot be sorted; sort real(x), imag(x) or absolute(x)")
    if axis is None:
        x, axis = ravel(x), 0
    if not x.ndim and axis in (0, -1):
        return x, scalar(0, int32)
    axis = rules.axis_index(axis, x.ndim)
    values, places = _sorted_rows(moveaxis(x, axis, -1), descending, x.shape[axis])
    return moveaxis(values, -1, axis), moveaxis(places, -1, axis)


def sort(
    x: ArrayLike, axis: int | None = -1, descending: bool = False, stable: bool = True
) -> Array:
    """`x` sorted along `axis` (None: flattened); NaN counts as the largest value.

    Equal values keep their order, `stable` or not.
    """
    return _sorted(x, axis, descending)[0]


def argsort(
    x: ArrayLike, axis: int | None = -1, descending: bool = False, stable: bool = True
) -> Array:
    """int32 positions that sort `x` along `axis`; equal values keep their order in any case."""
    return _sorted(x, axis, descending)[1]


def argpartition(x: ArrayLike, kth: int | Sequence[int], axis: int | None = -1) -> Array:
    """int32 positions that put element `kth` where sorting would; here they sort everything."""
    x = as_array(x)
    _check_kth(x, kth, axis)
    return argsort(x, axis)


def _check_kth(x: Array, kth: int | Sequence[int], axis: int | None) -> None:
    size = x.size if axis is None else x.shape[rules.axis_index(axis, x.ndim)]
    for k in rules.integers(kth):
        rules.axis_index(k, size, "kth")


def partition(x: ArrayLike, kth: int | Sequence[int], axis: int | None = -1) -> Array:
    """`x` with element `kth` where sorting would put it, no larger ones before it and no smaller
    ones after it along `axis` (None: flattened); here everything is sorted.

    Raises:
        ValueError: for a `kth` out of range.

    Examples:
        >>> kc.partition([3, 1, 2], 1).tolist()[1]
        2
    """
    x = as_array(x)
    _check_kth(x, kth, axis)
    return sort(x, axis)


def lexsort(keys: ArrayLike | Sequence[ArrayLike], axis: int = -1) -> Array:
    """int32 positions that sort by several keys, the last one first; equal ones keep their order.

    Args:
        keys: arrays of one shape, or an array whose first axis numbers them.

    Raises:
        TypeError: for no key.

    Examples:
        >>> kc.lexsort(([2, 1, 0], [5, 5, 4])).tolist()
        [2, 1, 0]
    """
    table = as_array(keys) if isinstance(keys, Array) else None
    rows = unstack(table, 0) if table is not None else [as_array(key) for key in keys]  # type: ignore[union-attr]
    if not rows:
        raise TypeError("lexsort needs at least one key")
    order = argsort(rows[0], axis)
    for row in rows[1:]:
        order = take_along_axis(order, argsort(take_along_axis(row, order, axis), axis), axis)
    return order


def sort_complex(x: ArrayLike) -> Array:
    """`x` as complex numbers, sorted along the last axis by real, then by imaginary parts.

    Examples:
        >>> kc.sort_complex([2 + 1j, 1 + 3j, 2 - 1j]).tolist()
        [(1+3j), (2-1j), (2+1j)]
    """
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0].complex)
    return take_along_axis(x, lexsort((imag(x), real(x))), -1)


def top_k(x: ArrayLike, k: int, sorted: bool = True) -> tuple[Array, Array]:
    """The `k` largest elements of the last axis, the largest first, and their int32 positions."""
    x = as_array(x)
    k = operator.index(k)
    if x.ndim < 1 or not 0 <= k <= x.shape[-1]:
        raise ValueError(f"top_k: {k} elements of an array of shape {x.shape}")
    return _sorted_rows(x, True, k)


def in_top_k(targets: ArrayLike, predictions: ArrayLike, k: int) -> Array:
    """Whether the prediction for each target is among the `k` largest of its row.

    Ties count as being in; a target whose prediction is not finite is not.
    """
    targets, predictions = as_array(targets), as_array(predictions)
    wide = reshape_to(targets, (*targets.shape, 1))
    value = take_along_axis(predictions, wide, -1)
    larger = total(cast_to(predictions > value, int32), -1)
    finite = reshape_to(equal(value - value, 0), targets.shape)
    return logical_and(larger < k, finite)


# -- searching ----------------------------------------------------------------
SEARCH = library_operation("search", batch=more_rows)


def searchsorted(
    sorted_sequence: ArrayLike,
    values: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
) -> Array:
    """int32 places at which `values` would keep a sorted vector sorted.

    "left" is before equal elements, "right" after them; NaN counts as the largest value. `sorter`
    gives the positions that sort the vector, where it is not sorted itself.
    """
    if sorter is not None:
        sorted_sequence = take(as_array(sorted_sequence), sorter, 0)
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side {side!r} must be 'left' or 'right'")
    (a, v), _ = convert((sorted_sequence, values))
    if a.ndim != 1:
        raise ValueError(f"searchsorted: the sorted sequence has shape {a.shape}, not 1 dimension")
    if not a.size or not v.size:
        return expand_to(scalar(0, int32), v.shape)
    rows = (reshape_to(a, (1, a.size)), reshape_to(v, (1, v.size)))
    places = apply(SEARCH, rows, (side,), (1, v.size), positions(a.size))
    return reshape_to(places, v.shape)


def digitize(x: ArrayLike, bins: ArrayLike) -> Array:
    """int32 number of the bin of each element: bins[i - 1] <= x < bins[i]."""
    return searchsorted(bins, x, "right")


def isin(x1: ArrayLike, x2: ArrayLike, assume_unique: bool = False, invert: bool = False) -> Array:
    """Whether each element of x1 is among those of x2."""
    (a, b), _ = convert((x1, x2))
    b = ravel(b)
    if b.size <= 32:
        found = some(equal(reshape_to(a, (*a.shape, 1)), b), -1)
    else:
        ordered = sort(b)
        place = clip(searchsorted(ordered, a), 0, b.size - 1)
        found = equal(take(ordered, place), a)
    return logical_not(found) if invert else found


# -- quantiles ----------------------------------------------------------------
_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantiles(
    x: ArrayLike,
    q: ArrayLike,
    axis: Axes,
    method: str,
    keepdims: bool,
    skip_nan: bool,
    one: float = 1.0,
) -> Array:
    """Quantiles for q in parts of `one`."""
    if method not in _METHODS:
        raise ValueError(f"quantile: method {method!r} must be one of {', '.join(_METHODS)}")
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    work = x.dtype.accumulator
    _check_parts(q, one)
    q = as_array(q, work) / one
    q_shape = q.shape
    q = ravel(q)
    axes = rules.axes_tuple(axis, x.ndim)
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    lead = tuple(x.shape[a] for a in kept)
    length = math.prod(x.shape[a] for a in axes)
    if not length:
        raise ValueError(f"quantile of an empty array of shape {x.shape}")
    rows = reshape_to(permute(x, (*kept, *axes)), (*lead, length))
    ordered, _ = _sorted_rows(rows, False, length)
    wide = (q.size, *[1] * len(lead))
    if skip_nan:
        count = total(cast_to(logical_not(isnan(rows)), int32), -1)
        last = cast_to(where(count > 0, count - 1, 0), work)
        spot = reshape_to(q, wide) * reshape_to(last, (1, *lead))
    else:
        spot = expand_to(reshape_to(q * float(length - 1), wide), (q.size, *lead))
    low = floor(spot)
    share = spot - low
    first = clip(cast_to(low, int32), 0, length - 1)
    second = clip(cast_to(low, int32) + where(share > 0, 1, 0), 0, length - 1)
    y0, y1 = (_pick(ordered, place) for place in (first, second))
    if method == "linear":
        share = cast_to(share, x.dtype)
        y = where(equal(y0, y1), y0, y0 * (1 - share) + y1 * share)
    elif method == "midpoint":
        y = where(equal(share, 0), y0, (y0 + y1) * 0.5)
    elif method == "nearest":
        odd_tie = logical_and(equal(share, 0.5), equal(first % 2, 1))
        y = where(logical_or(share > 0.5, odd_tie), y1, y0)
    else:
        y = y0 if method == "lower" else y1
    if skip_nan:
        y = where(count > 0, y, math.nan)
    else:
        # NaN sorts last, so the last element tells whether there is one
        last = reshape_to(window(ordered, ordered.ndim - 1, length - 1, length), lead)
        y = where(isnan(last), math.nan, y)
    tail = tuple(1 if a in axes else n for a, n in enumerate(x.shape)) if keepdims else lead
    return reshape_to(y, (*q_shape, *tail))


def _check_parts(q: Any, one: float) -> None:
    """Raise ValueError for q out of range, as far as it is known on the host."""
    if isinstance(q, Array):
        q = q._node.attrs[0] if q._node.op is CONST else None
    if q is None or not isinstance(q, np.ndarray | list | tuple | int | float):
        return
    host = np.asarray(q)
    if host.dtype.kind in "biuf" and host.size and not (host.min() >= 0 and host.max() <= one):
        raise ValueError(f"quantile: q must lie between 0 and {one:g}, got {q}")


def _pick(ordered: Array, place: Array) -> Array:
    """ordered[…, place[k, …]] for each k."""
    back = moveaxis(place, 0, -1)
    return moveaxis(take_along_axis(ordered, back, -1), -1, 0)


def quantile(
    x: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """The q-th quantiles (0 … 1) over `axis`; the axes of `q` come first in the result.

    `method` is "linear", "lower", "higher", "midpoint" or "nearest".
    """
    return _quantiles(x, q, axis, method, keepdims, False)


def percentile(
    x: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """Quantiles for q in percent; see `quantile`."""
    return _quantiles(x, q, axis, method, keepdims, False, 100.0)


def median(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """The middle value over `axis`, or the mean of the two middle ones."""
    return quantile(x, 0.5, axis, "midpoint", keepdims)


def nanquantile(
    x: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """`quantile` of the numbers; NaN where there are none."""
    return _quantiles(x, q, axis, method, keepdims, True)


def nanpercentile(
    x: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """`percentile` of the numbers; NaN where there are none."""
    return _quantiles(x, q, axis, method, keepdims, True, 100.0)


def nanmedian(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """`median` of the numbers; NaN where there are none."""
    return nanquantile(x, 0.5, axis, "midpoint", keepdims)


# -- results whose size depends on the data -----------------------------------
def repeat(
    x: ArrayLike, repeats: ArrayLike, axis: int | None = None, total_length: int | None = None
) -> Array:
    """Each element of `x` repeated along `axis` (None: of the flat array).

    Args:
        repeats: a number, or one for each element along `axis`.
        total_length: the sum of several repeats; without it, it is read on the host.
    """
    x = as_array(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = rules.axis_index(axis, x.ndim)
    if isinstance(repeats, int):
        return repeat_evenly(x, repeats, axis)
    repeats = as_array(repeats)
    if repeats.size == 1:
        host.count("repeat")
        return repeat_evenly(x, int(repeats.item()), axis)
    if repeats.shape != (x.shape[axis],):
        raise ValueError(f"repeat: repeats {repeats.shape} do not fit axis {axis} of {x.shape}")
    ends = cumsum(repeats, 0, int32)
    if total_length is None:
        host.count("repeat")
        total_length = int(ends[-1].item()) if ends.size else 0
    return take(x, searchsorted(ends, iota((total_length,), 0), "right"), axis)


# -- segments -----------------------------------------------------------------
def _segments(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None,
    mode: str,
    start: Callable[[DType], float],
) -> Array:
    data, ids = as_array(data), as_array(segment_ids)
    if ids.ndim != 1 or data.shape[:1] != ids.shape:
        raise ValueError(f"segments: ids {ids.shape} do not fit data {data.shape}")
    data = cast_to(data, numeric(data.dtype)[0])
    if num_segments is None:
        host.count("segment")
        num_segments = int(largest(ids).item()) + 1 if ids.size else 0
    count, rest = operator.index(num_segments), data.shape[1:]
    width = math.prod(rest)
    base = expand_to(scalar(start(data.dtype), data.dtype), (count, width))
    if not base.size or not data.size:
        return reshape_to(base, (count, *rest))
    y = scatter_rows(base, ids, reshape_to(data, (ids.size, width)), mode)
    return reshape_to(y, (count, *rest))


def _edge_of(sign: int) -> Callable[[DType], float]:
    def start(dtype: DType) -> float:
        if dtype.is_float:
            return sign * math.inf
        bits = 8 * dtype.itemsize - (dtype.kind == "i")
        return (1 << bits) - 1 if sign > 0 else (-(1 << bits) if dtype.kind == "i" else 0)

    return start


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """Sums of the rows of `data` with the same id; ids out of range are left out."""
    return _segments(data, segment_ids, num_segments, "add", lambda d: 0)


def segment_prod(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """Products of the rows of `data` with the same id; 1 for empty segments."""
    return _segments(data, segment_ids, num_segments, "mul", lambda d: 1)


def segment_max(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """Largest elements of the rows with the same id; the lowest value for empty segments."""
    return _segments(data, segment_ids, num_segments, "max", _edge_of(-1))


def segment_min(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Array:
    """Smallest elements of the rows with the same id; the highest value for empty segments."""
    return _segments(data, segment_ids, num_segments, "min", _edge_of(1))
