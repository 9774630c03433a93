"""Convolutions over one to three spatial dimensions, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kerascl.core import context, rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Op
from kerascl.core.types import Attrs, Gradients, Results
from kerascl.ops.batched import as_batches, merge
from kerascl.ops.declare import convert, library_operation
from kerascl.ops.movement import moveaxis
from kerascl.ops.views import permute, reshape_to

__all__ = ["conv", "conv_transpose", "depthwise_conv", "spatial"]

# Attributes of all three: (strides, pads, dilation, groups, channels_first, precision), one number
# (pads: one (low, high)) for each spatial dimension; precision as in core.context.  x is
# (N, *spatial, C) or (N, C, *spatial), y likewise with K channels, w is (*kernel, C // groups, K).
# Each one's gradients are the other two.


def _conv_vjp(g: Array, y: Array, x: Array, w: Array, *attrs: Any) -> Gradients:
    return _data_grad(g, w, x.shape, attrs), _filter_grad(x, g, w.shape, attrs)


def _data_grad_vjp(g: Array, y: Array, dy: Array, w: Array, *attrs: Any) -> Gradients:
    return _forward(g, w, dy.shape, attrs), _filter_grad(g, dy, w.shape, attrs)


def _filter_grad_vjp(g: Array, y: Array, x: Array, dy: Array, *attrs: Any) -> Gradients:
    return _data_grad(dy, g, x.shape, attrs), _forward(x, g, dy.shape, attrs)


def _conv_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    """x and y (N, …, channels) and w (*kernel, channels, filters), two of them inputs."""
    kernel_given = op is not FILTER_GRAD
    if kernel_given and not batched[1]:
        return _images(size, op, inputs, batched, attrs, results)
    ((shape, dtype),) = results
    strides, pads, dilation, groups, first, *rest = attrs
    inputs = as_batches(size, inputs, batched)

    def wide_images(x: Array) -> Array:
        """(size, N, …, C) as (N, …, size * C)."""
        axis = 2 if first else x.ndim - 1
        order = [a for a in range(1, x.ndim) if a != axis]
        place = axis - 1
        order[place:place] = [0, axis]
        moved = permute(x, tuple(order))
        lead = moved.shape[:place]
        rest = moved.shape[place + 2 :]
        return reshape_to(moved, (*lead, size * x.shape[axis], *rest))

    def wide_kernel(w: Array) -> Array:
        """(size, *kernel, C, K) as (*kernel, C, size * K)."""
        moved = permute(w, (*range(1, w.ndim - 1), 0, w.ndim - 1))
        return reshape_to(moved, (*moved.shape[:-2], size * w.shape[-1]))

    attrs = (strides, pads, dilation, groups * size, first, *rest)
    if kernel_given:
        axis = 1 if first else len(shape) - 1
        wide = (*shape[:axis], size * shape[axis], *shape[axis + 1 :])
        y = apply(op, (wide_images(inputs[0]), wide_kernel(inputs[1])), attrs, wide, dtype)
        y = reshape_to(y, (*shape[:axis], size, *shape[axis:]))
        return [moveaxis(y, axis, 0)]
    wide = (*shape[:-1], size * shape[-1])
    w = apply(op, tuple([wide_images(x) for x in inputs]), attrs, wide, dtype)
    return [moveaxis(reshape_to(w, (*shape[:-1], size, shape[-1])), -2, 0)]


def _images(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    """A convolution of batched images with one kernel."""
    ((shape, dtype),) = results
    flat = apply(op, (merge(inputs[0]), inputs[1]), attrs, (size * shape[0], *shape[1:]), dtype)
    return [reshape_to(flat, (size, *shape))]


CONV = library_operation("conv", _conv_vjp, batch=_conv_batch)
DATA_GRAD = library_operation("conv_data_grad", _data_grad_vjp, batch=_conv_batch)
FILTER_GRAD = library_operation("conv_filter_grad", _filter_grad_vjp, batch=_conv_batch)


def _forward(x: Array, w: Array, shape: tuple[int, ...], attrs: tuple[Any, ...]) -> Array:
    return apply(CONV, (x, w), attrs, shape, x.dtype)


def _data_grad(dy: Array, w: Array, shape: tuple[int, ...], attrs: tuple[Any, ...]) -> Array:
    return apply(DATA_GRAD, (dy, w), attrs, shape, dy.dtype)


def _filter_grad(x: Array, dy: Array, shape: tuple[int, ...], attrs: tuple[Any, ...]) -> Array:
    return apply(FILTER_GRAD, (x, dy), attrs, shape, x.dtype)


def spatial(value: int | Sequence[int], rank: int, name: str) -> tuple[int, ...]:
    """One positive integer for each of `rank` spatial dimensions, from one or a sequence.

    Raises:
        ValueError: for another number of them, or one below 1.
    """
    values = rules.normalize_shape(value)
    if len(values) == 1:
        values = values * rank
    if len(values) != rank or any(v < 1 for v in values):
        raise ValueError(f"{name} {value} must be a positive integer or {rank} of them")
    return values


def window_pads(
    padding: str | Sequence[tuple[int, int]],
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """(low, high) padding for each spatial dimension.

    Args:
        padding: "valid" (none), "same" (ceil(size / stride) windows, an odd element of padding
            goes to the end), or a sequence of (low, high).
        sizes: of the input.
        window: extents of the window, dilation included.
        strides: of the window.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(padding, str):
        kind = padding.lower()
        if kind == "valid":
            return ((0, 0),) * len(sizes)
        if kind == "same":
            pads = []
            for n, k, s in zip(sizes, window, strides, strict=True):
                total = max((-(-n // s) - 1) * s + k - n, 0)
                pads.append((total // 2, total - total // 2))
            return tuple(pads)
    elif len(padding) == len(sizes):
        return tuple((int(low), int(high)) for low, high in padding)
    raise ValueError(f"padding must be 'same', 'valid' or one (low, high) for each of {len(sizes)} "
                     f"spatial dimensions, not {padding!r}")  # fmt: skip


def window_counts(
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> tuple[int, ...]:
    """How many windows fit along each spatial dimension."""
    return tuple(
        max(0, (n + low + high - k) // s + 1)
        for n, k, s, (low, high) in zip(sizes, window, strides, pads, strict=True)
    )


def split_shape(x: Array, channels_first: bool, name: str) -> tuple[int, tuple[int, ...], int]:
    """(batch, spatial sizes, channels) of an array with one to three spatial dimensions."""
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"{name}: inputs of shape {x.shape} must have 1 to 3 spatial dimensions")
    if channels_first:
        return x.shape[0], x.shape[2:], x.shape[1]
    return x.shape[0], x.shape[1:-1], x.shape[-1]


def join_shape(
    batch: int, sizes: Sequence[int], channels: int, channels_first: bool
) -> tuple[int, ...]:
    """The inverse of `split_shape`."""
    return (batch, channels, *sizes) if channels_first else (batch, *sizes, channels)


def conv(
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "valid",
    dilation: int | Sequence[int] = 1,
    channels_first: bool = False,
) -> Array:
    """Convolution (cross-correlation) over one to three spatial dimensions.

    Args:
        x: (N, *spatial, C), or (N, C, *spatial) with `channels_first`.
        w: (*kernel, C // groups, K); the number of groups follows from its shape.
        strides, dilation: one integer, or one for each spatial dimension.
        padding: "valid", "same", or (low, high) for each spatial dimension.

    Returns:
        (N, *windows, K), or (N, K, *windows) with `channels_first`, in the promoted dtype.

    Raises:
        ValueError: when the shapes do not fit.
    """
    (x, w), _ = convert((x, w))
    batch, sizes, channels = split_shape(x, channels_first, "conv")
    rank = len(sizes)
    if w.ndim != rank + 2:
        raise ValueError(f"conv: a kernel {w.shape} does not fit inputs of shape {x.shape}")
    *kernel, depth, filters = w.shape
    groups = channels // depth if depth else 0
    if not groups or channels != groups * depth or filters % groups:
        raise ValueError(
            f"conv: {channels} input channels and {filters} filters cannot be divided into groups "
            f"of a kernel with {depth} input channels"
        )
    strides, dilation = spatial(strides, rank, "strides"), spatial(dilation, rank, "dilation")
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = window_pads(padding, sizes, window, strides)
    counts = window_counts(sizes, window, strides, pads)
    shape = join_shape(batch, counts, filters, channels_first)
    precision = context.product_precision(x.dtype)
    return _forward(x, w, shape, (strides, pads, dilation, groups, channels_first, precision))


def depthwise_conv(
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "valid",
    dilation: int | Sequence[int] = 1,
    channels_first: bool = False,
) -> Array:
    """Convolution of each channel on its own; see `conv`.

    Args:
        w: (*kernel, C, M): M filters for each of C channels.

    Returns:
        like `conv`, with C * M channels; those of one input channel are neighbours.
    """
    (x, w), _ = convert((x, w))
    *kernel, channels, multiple = w.shape
    _, _, found = split_shape(x, channels_first, "depthwise_conv")
    if found != channels:
        raise ValueError(
            f"depthwise_conv: inputs have {found} channels, the kernel {w.shape} {channels}"
        )
    w = reshape_to(w, (*kernel, 1, channels * multiple))
    return conv(x, w, strides, padding, dilation, channels_first)


def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    strides: int | Sequence[int] = 1,
    pads: Sequence[tuple[int, int]] = (),
    dilation: int | Sequence[int] = 1,
    channels_first: bool = False,
) -> Array:
    """Transposed convolution: the gradient of `conv` for its input.

    Args:
        x: (N, *spatial, C), or (N, C, *spatial) with `channels_first`.
        w: (*kernel, K, C).
        pads: zeros (low, high) around each spatial dimension of `x` once `stride - 1` zeros lie
            between its neighbours; at most the kernel's extent - 1 at the low end.

    Returns:
        (N, *sizes, K), or (N, K, *sizes), where a size is
        (n - 1) * stride + low + high + 2 - extent.
    """
    (x, w), _ = convert((x, w))
    batch, sizes, channels = split_shape(x, channels_first, "conv_transpose")
    rank = len(sizes)
    if w.ndim != rank + 2 or w.shape[-1] != channels:
        raise ValueError(
            f"conv_transpose: a kernel of shape {w.shape} does not fit inputs of shape {x.shape}"
        )
    *kernel, filters, _ = w.shape
    strides, dilation = spatial(strides, rank, "strides"), spatial(dilation, rank, "dilation")
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = tuple(pads) or tuple((e - 1, e - 1) for e in extents)
    results, inner = [], []
    for n, s, e, (low, high) in zip(sizes, strides, extents, pads, strict=True):
        if low > e - 1:
            raise ValueError(f"conv_transpose: low padding {low} exceeds the kernel's extent - 1")
        results.append(max(0, (n - 1) * s + low + high + 2 - e))
        # what the forward convolution, from the result to x, pads
        inner.append((e - 1 - low, max(e - 1 - high, 0)))
    shape = join_shape(batch, results, filters, channels_first)
    if 0 in shape or 0 in sizes:
        raise ValueError(f"conv_transpose: inputs of shape {x.shape} give the empty shape {shape}")
    precision = context.product_precision(x.dtype)
    attrs = (strides, tuple(inner), dilation, 1, channels_first, precision)
    return _data_grad(x, w, shape, attrs)
