"""Views: operations that only move elements.  They cost nothing: they become index arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from kerascl.core import rules
from kerascl.core.array import Array, apply
from kerascl.core.op import Kind, Op, register
from kerascl.dtypes import int32
from kerascl.ops.declare import as_array, convert, expand_to, reshape_to, scalar
from kerascl.ops.pointwise import where

PERMUTE = register(
    Op("permute", Kind.VIEW, vjp=lambda g, y, x, axes: (_permute(g, _inverse(axes)),))
)
SLICE = register(
    Op(
        "slice", Kind.VIEW,
        vjp=lambda g, y, x, starts, steps: (_unslice(g, x.shape, starts, steps),),
    )
)  # fmt: skip
FLIP = register(Op("flip", Kind.VIEW, vjp=lambda g, y, x, axes: (_flip(g, axes),)))
# Element o of axis a comes from (o - low) / (gap + 1) where that is whole and in range, else `value`.
PAD = register(
    Op(
        "pad", Kind.VIEW,
        vjp=lambda g, y, x, low, gap, value: (
            strided(g, low, [l + (n - 1) * (s + 1) + 1 for l, n, s in zip(low, x.shape, gap)],
                    [s + 1 for s in gap]) if x.size else None,
        ),
    )
)  # fmt: skip


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    inverse = [0] * len(axes)
    for position, axis in enumerate(axes):
        inverse[axis] = position
    return tuple(inverse)


def _permute(x: Array, axes: tuple[int, ...]) -> Array:
    if axes == tuple(range(len(axes))):
        return x
    shape = tuple(x.shape[a] for a in axes)
    return apply(PERMUTE, (x,), (axes,), shape, x.dtype)


def _flip(x: Array, axes: tuple[int, ...]) -> Array:
    axes = tuple(a for a in axes if x.shape[a] > 1)
    return apply(FLIP, (x,), (axes,), x.shape, x.dtype) if axes else x


def _unslice(g: Array, shape, starts, steps) -> Array:
    high = [
        n - s - ((m - 1) * k + 1 if m else 0)
        for n, s, m, k in zip(shape, starts, g.shape, steps, strict=True)
    ]
    return pad_with(g, list(starts), high, [k - 1 for k in steps], 0)


def reshape(x, shape) -> Array:
    """`x` with another shape of the same size; one dimension may be -1."""
    x = as_array(x)
    return reshape_to(x, rules.reshape(x.shape, shape))


def transpose(x, axes=None) -> Array:
    """`x` with its axes permuted (reversed by default)."""
    x = as_array(x)
    if axes is None:
        axes = tuple(reversed(range(x.ndim)))
    else:
        axes = tuple(rules.axis_index(a, x.ndim, "axes") for a in axes)
        if sorted(axes) != list(range(x.ndim)):
            raise ValueError(f"transpose: axes {axes} do not permute {x.ndim} dimensions")
    return _permute(x, axes)


def broadcast_to(x, shape) -> Array:
    """`x` broadcast to `shape`."""
    x = as_array(x)
    shape = rules.normalize_shape(shape)
    if rules.broadcast(x.shape, shape) != shape:
        raise ValueError(f"cannot broadcast an array of shape {x.shape} to {shape}")
    return expand_to(x, shape)


def expand_dims(x, axis) -> Array:
    """`x` with dimensions of size 1 inserted at `axis` (an int or a tuple)."""
    x = as_array(x)
    axes = axis if isinstance(axis, Sequence) else (axis,)
    rank = x.ndim + len(axes)
    places = rules.axes_tuple(tuple(axes), rank)
    shape = list(x.shape)
    for place in places:
        shape.insert(place, 1)
    return reshape_to(x, tuple(shape))


def squeeze(x, axis=None) -> Array:
    """`x` without dimensions of size 1 (all of them, or those of `axis`)."""
    x = as_array(x)
    if axis is None:
        return reshape_to(x, tuple(n for n in x.shape if n != 1))
    axes = rules.axes_tuple(axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ValueError(f"squeeze: axis {a} of shape {x.shape} is not 1")
    return reshape_to(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def strided(x: Array, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Array:
    """x[starts:stops:steps] with one non-negative start, stop and positive step for each axis."""
    shape = tuple(
        max(0, -(-(e - s) // k)) for s, e, k in zip(starts, stops, steps, strict=True)
    )
    if shape == x.shape:
        return x
    return apply(SLICE, (x,), (tuple(starts), tuple(steps)), shape, x.dtype)


def flip(x, axis=None) -> Array:
    """`x` with the order of elements reversed along `axis` (all axes by default)."""
    x = as_array(x)
    return _flip(x, rules.axes_tuple(axis, x.ndim))


def pad_with(x: Array, low, high, gap, value) -> Array:
    """Pad (negative: crop) each axis, with `gap` new elements between neighbours."""
    starts = [max(0, -(-(-l) // (s + 1))) if l < 0 else 0 for l, s in zip(low, gap, strict=True)]
    low = list(low)
    high = list(high)
    if any(l < 0 for l in low) or any(h < 0 for h in high):
        stops = list(x.shape)
        for a in range(x.ndim):
            if low[a] < 0:
                low[a] += starts[a] * (gap[a] + 1)
            if high[a] < 0:
                cut = -(high[a] // (gap[a] + 1))
                stops[a] = max(starts[a], stops[a] - cut)
                high[a] += cut * (gap[a] + 1)
        x = strided(x, starts, stops, [1] * x.ndim)
    shape = tuple(
        l + h + (n + (n - 1) * s if n else 0)
        for n, l, h, s in zip(x.shape, low, high, gap, strict=True)
    )
    if shape == x.shape and not any(low):
        return x
    value = scalar(value, x.dtype)._node.attrs[0]
    return apply(PAD, (x,), (tuple(low), tuple(gap), value), shape, x.dtype)


def concatenate(arrays, axis: int = 0) -> Array:
    """Join arrays along an existing axis."""
    arrays, _ = convert(list(arrays))
    if axis is None:
        arrays, axis = [reshape(x, -1) for x in arrays], 0
    rank = arrays[0].ndim
    axis = rules.axis_index(axis, rank)
    for x in arrays[1:]:
        if x.ndim != rank or any(
            m != n for a, (m, n) in enumerate(zip(x.shape, arrays[0].shape, strict=True)) if a != axis
        ):
            shapes = ", ".join(str(x.shape) for x in arrays)
            raise ValueError(f"concatenate along axis {axis}: shapes {shapes} do not fit")
    arrays = [x for x in arrays if x.shape[axis]] or arrays[:1]
    if len(arrays) == 1:
        return arrays[0]
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    return apply(CONCAT, tuple(arrays), (axis,), tuple(shape), arrays[0].dtype)


def _concat_vjp(g, y, *rest):
    *arrays, axis = rest
    parts, start = [], 0
    for x in arrays:
        starts = [0] * g.ndim
        stops = list(g.shape)
        starts[axis], stops[axis] = start, start + x.shape[axis]
        parts.append(strided(g, starts, stops, [1] * g.ndim))
        start += x.shape[axis]
    return parts


CONCAT = register(Op("concat", Kind.VIEW, vjp=_concat_vjp))


def stack(arrays, axis: int = 0) -> Array:
    """Join arrays of one shape along a new axis."""
    arrays, _ = convert(list(arrays))
    axis = rules.axis_index(axis, arrays[0].ndim + 1)
    return concatenate([expand_dims(x, axis) for x in arrays], axis)


def pad(x, pad_width, value=0) -> Array:
    """Pad each axis by `pad_width` ((low, high) for each axis, or for all) with `value`."""
    x = as_array(x)
    widths = list(pad_width) if isinstance(pad_width, Sequence) else [(pad_width, pad_width)]
    if widths and not isinstance(widths[0], Sequence):
        widths = [tuple(widths)] if len(widths) == 2 else [(w, w) for w in widths]
    if len(widths) == 1:
        widths = widths * x.ndim
    if len(widths) != x.ndim:
        raise ValueError(f"pad: pad_width {pad_width} does not fit {x.ndim} dimensions")
    return pad_with(x, [w[0] for w in widths], [w[1] for w in widths], [0] * x.ndim, value)


def tril(x, k: int = 0) -> Array:
    """`x` with zeros above diagonal `k` of its last two axes."""
    return _triangle(x, k, lower=True)


def triu(x, k: int = 0) -> Array:
    """`x` with zeros below diagonal `k` of its last two axes."""
    return _triangle(x, k, lower=False)


def _triangle(x, k: int, lower: bool) -> Array:
    x = as_array(x)
    rows = iota(x.shape, x.ndim - 2)
    columns = iota(x.shape, x.ndim - 1)
    keep = columns <= rows + k if lower else columns >= rows + k
    return where(keep, x, 0)


IOTA = register(Op("iota", Kind.POINTWISE, "((int){coordinate})"))


def iota(shape: tuple[int, ...], axis: int) -> Array:
    """int32 array whose elements are their position along `axis`."""
    return apply(IOTA, (), (axis,), tuple(shape), int32)
