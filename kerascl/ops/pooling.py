"""Pooling over windows of one to three spatial dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Op
from kerascl.core.types import Gradients
from kerascl.ops.batched import more_rows
from kerascl.ops.convolution import join_shape, spatial, split_shape, window_counts, window_pads
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, floating, library_operation
from kerascl.ops.gather import take
from kerascl.ops.pointwise import where
from kerascl.ops.reduction import max as largest
from kerascl.ops.views import reshape_to

__all__ = ["adaptive_average_pool", "adaptive_max_pool", "average_pool", "max_pool"]

# Attributes of all five: (window, strides, pads, channels_first, count_include_pad).


def _max_vjp(g: Array, y: Array, x: Array, *attrs: Any) -> Gradients:
    return (apply(MAX_GRAD, (x, y, g), attrs, x.shape, x.dtype),)


def _max_grad_vjp(g: Array, result: Array, x: Array, y: Array, dy: Array, *attrs: Any) -> Gradients:
    return None, None, apply(MAX_SELECT, (x, y, g), attrs, y.shape, g.dtype)


def _max_select_vjp(
    g: Array, result: Array, x: Array, y: Array, gx: Array, *attrs: Any
) -> Gradients:
    return None, None, apply(MAX_GRAD, (x, y, g), attrs, x.shape, g.dtype)


def _average_vjp(g: Array, y: Array, x: Array, *attrs: Any) -> Gradients:
    return (apply(AVERAGE_GRAD, (g,), attrs, x.shape, x.dtype),)


def _average_grad_vjp(g: Array, result: Array, dy: Array, *attrs: Any) -> Gradients:
    return (apply(AVERAGE, (g,), attrs, dy.shape, dy.dtype),)


MAX = library_operation("pool_max", _max_vjp, batch=more_rows)
MAX_GRAD = library_operation("pool_max_grad", _max_grad_vjp, batch=more_rows)
MAX_SELECT = library_operation("pool_max_select", _max_select_vjp, batch=more_rows)
AVERAGE = library_operation("pool_average", _average_vjp, batch=more_rows)
AVERAGE_GRAD = library_operation("pool_average_grad", _average_grad_vjp, batch=more_rows)


def _pool(
    op: Op,
    x: Array,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: str | Sequence[tuple[int, int]],
    channels_first: bool,
    count: bool,
) -> Array:
    batch, sizes, channels = split_shape(x, channels_first, op.name)
    rank = len(sizes)
    window = spatial(window, rank, "pool_size")
    strides = window if strides is None else spatial(strides, rank, "strides")
    pads = window_pads(padding, sizes, window, strides)
    counts = window_counts(sizes, window, strides, pads)
    shape = join_shape(batch, counts, channels, channels_first)
    return apply(op, (x,), (window, strides, pads, channels_first, count), shape, x.dtype)


def max_pool(
    x: ArrayLike,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "valid",
    channels_first: bool = False,
) -> Array:
    """The largest element of each window; padding never wins.

    Args:
        x: (N, *spatial, C), or (N, C, *spatial) with `channels_first`.
        window, strides: one integer, or one for each spatial dimension; strides are the window by
            default.
        padding: "valid", "same", or (low, high) for each spatial dimension.
    """
    return _pool(MAX, as_array(x), window, strides, padding, channels_first, False)


def average_pool(
    x: ArrayLike,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "valid",
    channels_first: bool = False,
    count_include_pad: bool = False,
) -> Array:
    """The mean of each window, over its elements inside `x` (or all, with `count_include_pad`).

    Integers give float32; see `max_pool` for the arguments.
    """
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    return _pool(AVERAGE, x, window, strides, padding, channels_first, count_include_pad)


def _even_window(
    x: Array, output_size: int | Sequence[int], channels_first: bool
) -> tuple[int, ...] | None:
    """The window of an ordinary pooling that does the same, where sizes divide."""
    _, sizes, _ = split_shape(x, channels_first, "adaptive pooling")
    targets = spatial(output_size, len(sizes), "output_size")
    if any(n % m for n, m in zip(sizes, targets, strict=True)):
        return None
    return tuple(n // m for n, m in zip(sizes, targets, strict=True))


def _adaptive(
    x: Array,
    output_size: int | Sequence[int],
    channels_first: bool,
    reduce: Callable[[Array, Array, Array, int], Array],
) -> Array:
    _, sizes, _ = split_shape(x, channels_first, "adaptive pooling")
    targets = spatial(output_size, len(sizes), "output_size")
    first = 2 if channels_first else 1
    for axis, (n, m) in enumerate(zip(sizes, targets, strict=True), first):
        if n == m:
            continue
        places = np.arange(m)
        starts, stops = places * n // m, -(-(places + 1) * n // m)
        widest = int((stops - starts).max())
        steps = np.arange(widest)
        # windows of fewer elements repeat their last one, which `reduce` leaves out
        inside = steps < (stops - starts)[:, None]
        index = np.where(inside, starts[:, None] + steps, (stops - 1)[:, None]).astype(np.int32)
        windows = take(x, as_array(index), axis)
        shape = (m, widest, *[1] * (x.ndim - axis - 1))
        mask = reshape_to(as_array(inside), shape)
        sizes_of = reshape_to(as_array((stops - starts).astype(np.float32)), (m, *shape[2:]))
        x = reduce(windows, mask, cast_to(sizes_of, x.dtype), axis + 1)
    return x


def adaptive_max_pool(
    x: ArrayLike, output_size: int | Sequence[int], channels_first: bool = False
) -> Array:
    """The largest elements of `output_size` windows that cover each spatial dimension evenly.

    Window i of m over n elements goes from floor(i * n / m) to ceil((i + 1) * n / m).
    """

    def reduce(windows: Array, mask: Array, sizes: Array, axis: int) -> Array:
        return largest(windows, axis)

    x = as_array(x)
    even = _even_window(x, output_size, channels_first)
    if even is not None:
        return max_pool(x, even, None, "valid", channels_first)
    return _adaptive(x, output_size, channels_first, reduce)


def adaptive_average_pool(
    x: ArrayLike, output_size: int | Sequence[int], channels_first: bool = False
) -> Array:
    """The means of `output_size` windows; see `adaptive_max_pool`."""
    x = as_array(x)

    def reduce(windows: Array, mask: Array, sizes: Array, axis: int) -> Array:
        return total(where(mask, windows, 0), axis) / sizes

    even = _even_window(x, output_size, channels_first)
    if even is not None:
        return average_pool(x, even, None, "valid", channels_first)
    return _adaptive(cast_to(x, floating(x.dtype)[0]), output_size, channels_first, reduce)
