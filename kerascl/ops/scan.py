"""Cumulative operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.types import Gradients
from kerascl.dtypes import DTypeLike, as_dtype, positions
from kerascl.ops.batched import more_rows
from kerascl.ops.declare import as_array, cast_to, floating, library_operation, scalar
from kerascl.ops.gather import take_along_axis
from kerascl.ops.movement import iota
from kerascl.ops.pointwise import LARGEST, clip, equal, exp, isnan, log, not_equal, where
from kerascl.ops.views import expand_to, pad_with, reshape_to, window

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "logcumsumexp",
    "nancumprod", "nancumsum",
]  # fmt: skip


def _scan_vjp(g: Array, y: Array, x: Array, kind: str, reverse: bool, exclusive: bool) -> Gradients:
    if kind == "sum":
        return (_scan(g, "sum", not reverse, exclusive),)
    if kind == "prod":
        return (_cumprod_gradient(g, y, x, reverse, exclusive),)
    if kind == "logsumexp":
        # the sum over later positions j of g_j exp(x_i - y_j), in logarithms by sign of g
        up, down = (_log_or_nothing(part, y) for part in (g, -g))
        sums = (_scan(part, "logsumexp", not reverse, exclusive) for part in (up, down))
        more, fewer = (exp(x + part) for part in sums)
        return (more - fewer,)
    return (_extreme_gradient(g, y, x, kind, reverse, exclusive),)


def _log_or_nothing(g: Array, y: Array) -> Array:
    """log(g) - y where g is positive, else so little that its exponential is 0."""
    positive = g > 0
    return where(positive, log(where(positive, g, 1)) - y, -LARGEST[g.dtype.name] / 4)


def _cumprod_gradient(g: Array, y: Array, x: Array, reverse: bool, exclusive: bool) -> Array:
    # dx_i = sum over later j of g_j y_j / x_i.  At a zero, y_j / x_i is the product of
    # the others, which is taken with the first zero replaced by 1.
    zero = equal(x, 0)
    safe = where(zero, 1, x)
    plain = _scan(g * y, "sum", not reverse, exclusive) / safe
    zeros = _scan(where(zero, 1, 0), "sum", reverse, False)
    first = zero & equal(zeros, 1)
    y_first = _scan(where(first, 1, x), "prod", reverse, exclusive)
    at_first = _scan(g * y_first, "sum", not reverse, exclusive)
    return where(first, at_first, where(zero, 0, plain))


def _extreme_gradient(
    g: Array, y: Array, x: Array, kind: str, reverse: bool, exclusive: bool
) -> Array:
    if exclusive:
        raise NotImplementedError(f"gradient of an exclusive cumulative {kind}")
    # a new extreme starts a run of equal results; its gradient is the sum over the run
    start = not_equal(y, _shifted(y, reverse)) | _edge(y, reverse)
    total = _scan(g, "sum", not reverse, False)
    after = _next_start(total, start, reverse)
    return where(start, total - after, 0)


def _edge(y: Array, reverse: bool) -> Array:
    from_start = _positions(y)
    return equal(from_start, y.shape[1] - 1 if reverse else 0)


def _positions(y: Array) -> Array:
    return iota(y.shape, 1)


def _shifted(y: Array, reverse: bool) -> Array:
    n = y.shape[1]
    low, high = ([0, 0, 0], [0, 1, 0]) if reverse else ([0, 1, 0], [0, 0, 0])
    moved = pad_with(y, low, high, [0, 0, 0], 0)
    return window(moved, 1, 1, n + 1) if reverse else window(moved, 1, 0, n)


def _next_start(total: Array, start: Array, reverse: bool) -> Array:
    """For each position the value of `total` at the next run's start, 0 after the last."""
    n = total.shape[1]
    place = _positions(total)
    if reverse:
        marked = where(start, place, -1)
        nearest = _scan(marked, "max", False, True)
        found = nearest >= 0
    else:
        marked = where(start, place, n)
        nearest = _scan(marked, "min", True, True)
        found = nearest < n
    picked = take_along_axis(total, clip(nearest, 0, n - 1), 1)
    return where(found, picked, 0)


SCAN = library_operation("scan", _scan_vjp, batch=more_rows)


def _scan(x: Array, kind: str, reverse: bool, exclusive: bool) -> Array:
    return apply(SCAN, (x,), (kind, reverse, exclusive), x.shape, x.dtype)


def cumulative(x: Array, kind: str, axis: int | None, reverse: bool, exclusive: bool) -> Array:
    """A cumulative operation along one axis (None: of the flat array)."""
    if axis is None:
        x, axis = reshape_to(x, (x.size,)), 0
    axis = rules.axis_index(axis, x.ndim)
    if not x.size:
        return x
    shape = x.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = reshape_to(x, (outer, shape[axis], inner))
    return reshape_to(_scan(flat, kind, reverse, exclusive), shape)


def cumsum(
    x: ArrayLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    reverse: bool = False,
    exclusive: bool = False,
) -> Array:
    """Cumulative sum along `axis` (None: of the flat array).

    Args:
        dtype: of the sums; by default that of `x`, int64 or uint64 for integers and bools.
        reverse: from the last element to the first.
        exclusive: each sum leaves out its own element.
    """
    x = as_array(x)
    x = cast_to(x, x.dtype.summed if dtype is None else as_dtype(dtype))
    return cumulative(x, "sum", axis, reverse, exclusive)


def cumprod(
    x: ArrayLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    reverse: bool = False,
    exclusive: bool = False,
) -> Array:
    """Cumulative product along `axis`; arguments as for `cumsum`."""
    x = as_array(x)
    x = cast_to(x, x.dtype.summed if dtype is None else as_dtype(dtype))
    return cumulative(x, "prod", axis, reverse, exclusive)


def _with_first(
    x: ArrayLike,
    axis: int | None,
    dtype: DTypeLike | None,
    include_initial: bool,
    accumulate: Callable[..., Array],
    first: int,
) -> Array:
    x = as_array(x)
    if axis is None:
        if x.ndim != 1:
            raise ValueError(
                f"{accumulate.__name__} of an array of shape {x.shape} needs an axis, "
                "or the array raveled"
            )
        axis = 0
    axis = rules.axis_index(axis, x.ndim)
    y = accumulate(x, axis, dtype)
    if not include_initial:
        return y
    low = [int(a == axis) for a in range(x.ndim)]
    none = [0] * x.ndim
    return pad_with(y, low, none, none, scalar(first, y.dtype)._node.attrs[0])


def cumulative_sum(
    x: ArrayLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """Cumulative sum along `axis`, which only a vector may leave out; `dtype` as for `cumsum`.

    With `include_initial` the result begins with 0 and is one longer.
    """
    return _with_first(x, axis, dtype, include_initial, cumsum, 0)


def cumulative_prod(
    x: ArrayLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """Cumulative product along `axis`, which only a vector may leave out; `dtype` as for `cumsum`.

    With `include_initial` the result begins with 1 and is one longer.
    """
    return _with_first(x, axis, dtype, include_initial, cumprod, 1)


def cummax(x: ArrayLike, axis: int | None = None, reverse: bool = False) -> Array:
    """Largest element so far along `axis`; NaN from the first NaN on."""
    return cumulative(as_array(x), "max", axis, reverse, False)


def cummin(x: ArrayLike, axis: int | None = None, reverse: bool = False) -> Array:
    """Smallest element so far along `axis`; NaN from the first NaN on."""
    return cumulative(as_array(x), "min", axis, reverse, False)


def logcumsumexp(x: ArrayLike, axis: int | None = None, reverse: bool = False) -> Array:
    """Logarithm of the cumulative sum of exponentials along `axis`, without overflow."""
    x = as_array(x)
    return cumulative(cast_to(x, floating(x.dtype)[0]), "logsumexp", axis, reverse, False)


def nancumsum(x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Array:
    """`cumsum` with NaN counting as 0."""
    x = as_array(x)
    return cumsum(where(isnan(x), 0, x) if x.dtype.is_float else x, axis, dtype)


def nancumprod(x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Array:
    """`cumprod` with NaN counting as 1."""
    x = as_array(x)
    return cumprod(where(isnan(x), 1, x) if x.dtype.is_float else x, axis, dtype)


# Rows of counts that never fall (rows, length) -> for each k the first place whose count is over k.
PLACES = library_operation("places", batch=more_rows)


def places_of(counts: Array, size: int) -> Array:
    """For each k < `size` the first place of `counts` (n,) that is over k, or n where none is.

    Args:
        counts: integers that never fall, as cumulative sums of flags are, from 0 or more on.

    Returns:
        (size,), int32 or, of counts of more than 2**31 - 1 places, int64.
    """
    n = counts.shape[0]
    dtype = positions(n + 1)
    if not n or not size:
        return expand_to(scalar(n, dtype), (size,))
    y = apply(PLACES, (reshape_to(counts, (1, n)),), (size,), (1, size), dtype)
    return reshape_to(y, (size,))
