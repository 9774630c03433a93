"""Moving elements.  Most of it is views, which cost nothing: they become index arithmetic."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from kerascl import dtypes
from kerascl.core import overlay, rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Kind, Op, register
from kerascl.core.tape import another
from kerascl.core.types import Axes, ShapeLike
from kerascl.dtypes import bool_
from kerascl.ops.declare import as_array, convert, scalar
from kerascl.ops.pointwise import where
from kerascl.ops.views import (
    concat,
    expand_to,
    flip_axes,
    pad_with,
    permute,
    reshape_to,
    window,
)
from kerascl.ops.views import (
    strided as strided,
)

__all__ = [
    "append", "array_split", "broadcast_arrays", "broadcast_to", "concatenate", "copy", "diag",
    "diagflat", "diagonal", "dsplit", "dstack", "expand_dims", "flip", "fliplr", "flipud",
    "hsplit", "hstack", "matrix_transpose", "meshgrid", "moveaxis", "pad", "positive", "ravel",
    "reshape", "roll", "rot90", "split", "squeeze", "stack", "swapaxes", "tile", "transpose",
    "tril", "triu", "unstack", "vsplit", "vstack",
]  # fmt: skip

IOTA = register(Op("iota", Kind.POINTWISE, "(({T}){coordinate})"))


def iota(shape: tuple[int, ...], axis: int) -> Array:
    """Array whose elements are their position along `axis`: int32 where that is enough."""
    return apply(IOTA, (), (axis,), tuple(shape), dtypes.positions(shape[axis]))


def reshape(x: ArrayLike, shape: ShapeLike, copy: bool | None = None) -> Array:
    """`x` with another shape of the same size; one dimension may be -1.

    Nothing is ever copied in memory; `copy` True gives an Array that item assignment cannot change
    together with `x`.
    """
    x = as_array(x)
    shape = rules.reshape(x.shape, shape, guessed := overlay.sizes_are_guessed())
    if guessed and math.prod(shape) != x.size:
        return overlay.placeholder(shape, x.dtype)
    return another(x) if copy and shape == x.shape else reshape_to(x, shape)


def ravel(x: ArrayLike) -> Array:
    """`x` as one dimension."""
    x = as_array(x)
    return reshape_to(x, (x.size,))


def copy(x: ArrayLike) -> Array:
    """`x`; arrays never change, so nothing is copied."""
    return as_array(x)


def positive(x: ArrayLike) -> Array:
    """+x: the same values, as an Array of its own."""
    return another(as_array(x))


def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """`x` with its axes permuted (reversed by default)."""
    x = as_array(x)
    if axes is None:
        return permute(x, tuple(reversed(range(x.ndim))))
    axes = tuple(rules.axis_index(a, x.ndim, "axes") for a in axes)
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"transpose: axes {axes} do not permute {x.ndim} dimensions")
    return permute(x, axes)


def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> Array:
    """`x` with two axes exchanged."""
    x = as_array(x)
    a, b = rules.axis_index(axis1, x.ndim), rules.axis_index(axis2, x.ndim)
    axes = list(range(x.ndim))
    axes[a], axes[b] = b, a
    return permute(x, tuple(axes))


def matrix_transpose(x: ArrayLike) -> Array:
    """Matrices (…, m, n) transposed to (…, n, m).

    Raises:
        ValueError: for less than two dimensions.
    """
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose needs at least 2 dimensions, got shape {x.shape}")
    return swapaxes(x, -1, -2)


def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """`x` with axes `source` (one or several) moved to `destination`; the rest keep their order."""
    x = as_array(x)
    source = source if isinstance(source, Sequence) else (source,)
    destination = destination if isinstance(destination, Sequence) else (destination,)
    source = [rules.axis_index(a, x.ndim, "source") for a in source]
    destination = [rules.axis_index(a, x.ndim, "destination") for a in destination]
    if len(source) != len(destination) or len(set(source)) != len(source):
        raise ValueError("moveaxis: source and destination must be as many different axes")
    order = [a for a in range(x.ndim) if a not in source]
    for place, axis in sorted(zip(destination, source, strict=True)):
        order.insert(place, axis)
    return permute(x, tuple(order))


def broadcast_to(x: ArrayLike, shape: ShapeLike) -> Array:
    """`x` broadcast to `shape`."""
    x = as_array(x)
    shape = rules.normalize_shape(shape)
    if rules.broadcast(x.shape, shape) != shape:
        raise ValueError(f"cannot broadcast an array of shape {x.shape} to {shape}")
    return expand_to(x, shape)


def broadcast_arrays(*arrays: ArrayLike) -> list[Array]:
    """Arrays broadcast against each other, each in its own dtype."""
    found = [as_array(x) for x in arrays]
    shape = rules.broadcast(*(x.shape for x in found))
    return [expand_to(x, shape) for x in found]


def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """`x` with dimensions of size 1 inserted at `axis` (an int or a tuple)."""
    x = as_array(x)
    axes = axis if isinstance(axis, Sequence) else (axis,)
    shape = list(x.shape)
    for place in rules.axes_tuple(tuple(axes), x.ndim + len(axes)):
        shape.insert(place, 1)
    return reshape_to(x, tuple(shape))


def squeeze(x: ArrayLike, axis: Axes = None) -> Array:
    """`x` without dimensions of size 1 (all of them, or those of `axis`)."""
    x = as_array(x)
    if axis is None:
        return reshape_to(x, tuple(n for n in x.shape if n != 1))
    axes = rules.axes_tuple(axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ValueError(f"squeeze: axis {a} of shape {x.shape} is not 1")
    return reshape_to(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def flip(x: ArrayLike, axis: Axes = None) -> Array:
    """`x` with the order of elements reversed along `axis` (all axes by default)."""
    x = as_array(x)
    return flip_axes(x, rules.axes_tuple(axis, x.ndim))


def fliplr(x: ArrayLike) -> Array:
    """`x` reversed along axis 1."""
    return flip(x, 1)


def flipud(x: ArrayLike) -> Array:
    """`x` reversed along axis 0."""
    return flip(x, 0)


def rot90(x: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """`x` rotated by k quarter turns in the plane of two axes, from the first to the second."""
    x = as_array(x)
    a, b = (rules.axis_index(axis, x.ndim) for axis in axes)
    if a == b:
        raise ValueError(f"rot90: axes {tuple(axes)} must differ")
    k %= 4
    if k == 0:
        return x
    if k == 2:
        return flip_axes(x, (a, b))
    return swapaxes(flip_axes(x, (b,)), a, b) if k == 1 else flip_axes(swapaxes(x, a, b), (b,))


# -- joining and splitting ----------------------------------------------------
def _check_fit(arrays: list[Array], axis: int) -> None:
    first = arrays[0].shape
    for x in arrays[1:]:
        if x.ndim != len(first) or builtins.any(
            m != n for a, (m, n) in enumerate(zip(x.shape, first, strict=True)) if a != axis
        ):
            shapes = ", ".join(str(x.shape) for x in arrays)
            raise ValueError(f"concatenate along axis {axis}: shapes {shapes} do not fit")


def _several(arrays: Any) -> list[Array]:
    if isinstance(arrays, Array):
        arrays = unstack(arrays)
    arrays = list(arrays)
    if not arrays:
        raise ValueError("at least one array is needed to join or to stack, got none")
    return convert(arrays)[0]


def concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0) -> Array:
    """Join arrays along an existing axis (None: all flattened)."""
    parts = _several(arrays)
    if axis is None:
        parts, axis = [ravel(x) for x in parts], 0
    axis = rules.axis_index(axis, parts[0].ndim)
    _check_fit(parts, axis)
    return concat(parts, axis)


def append(x: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """`values` joined to the end of `x` along `axis` (None: both flattened)."""
    return concatenate([x, values], axis)


def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Join arrays of one shape along a new axis."""
    parts = _several(arrays)
    axis = rules.axis_index(axis, parts[0].ndim + 1)
    for x in parts[1:]:
        if x.shape != parts[0].shape:
            shapes = ", ".join(str(x.shape) for x in parts)
            raise ValueError(f"stack: shapes {shapes} differ")
    return concat([expand_dims(x, axis) for x in parts], axis)


def _at_least(x: Array, rank: int) -> Array:
    if x.ndim >= rank:
        return x
    if rank == 3:
        return reshape_to(x, (1, x.size, 1) if x.ndim < 2 else (*x.shape, 1))
    return reshape_to(x, (1,) * (rank - x.ndim) + x.shape)


def hstack(arrays: Sequence[ArrayLike]) -> Array:
    """Join arrays along axis 1 (axis 0 for vectors)."""
    parts = [_at_least(x, 1) for x in _several(arrays)]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(arrays: Sequence[ArrayLike]) -> Array:
    """Join arrays along axis 0; vectors become rows."""
    return concatenate([_at_least(x, 2) for x in _several(arrays)], 0)


def dstack(arrays: Sequence[ArrayLike]) -> Array:
    """Join arrays along axis 2; smaller ones get axes of size 1."""
    return concatenate([_at_least(x, 3) for x in _several(arrays)], 2)


def _pieces(x: Array, cuts: Sequence[int], axis: int) -> list[Array]:
    size = x.shape[axis]
    edges = [0]
    for cut in cuts:
        cut = operator.index(cut)
        edges.append(builtins.min(size, cut + size if cut < 0 else cut))
    edges.append(size)
    pairs = itertools.pairwise(edges)
    return [window(x, axis, start, builtins.max(start, stop)) for start, stop in pairs]


def split(x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """`x` cut into equal parts, or before each of several positions, along `axis`.

    Raises:
        ValueError: when the parts would not be equal.
    """
    x = as_array(x)
    axis = rules.axis_index(axis, x.ndim)
    if isinstance(indices_or_sections, Iterable) and getattr(indices_or_sections, "ndim", True):
        return _pieces(x, [int(i) for i in indices_or_sections], axis)
    parts = operator.index(cast(int, indices_or_sections))
    if parts <= 0 or x.shape[axis] % parts:
        raise ValueError(f"split: axis {axis} of shape {x.shape} has no {parts} equal parts")
    return array_split(x, parts, axis)


def array_split(
    x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[Array]:
    """Like `split`; the first parts are one larger when the size is not a multiple."""
    x = as_array(x)
    axis = rules.axis_index(axis, x.ndim)
    if isinstance(indices_or_sections, Iterable) and getattr(indices_or_sections, "ndim", True):
        return _pieces(x, [int(i) for i in indices_or_sections], axis)
    parts = operator.index(cast(int, indices_or_sections))
    if parts <= 0:
        raise ValueError(f"array_split: {parts} parts are not possible")
    size, larger = divmod(x.shape[axis], parts)
    cuts = itertools.accumulate(size + (k < larger) for k in range(parts - 1))
    return _pieces(x, list(cuts), axis)


def hsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """`split` along axis 1 (axis 0 of a vector)."""
    x = as_array(x)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """`split` along axis 0 of at least two dimensions."""
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError("vsplit works on arrays of 2 or more dimensions")
    return split(x, indices_or_sections, 0)


def dsplit(x: ArrayLike, indices_or_sections: int | Sequence[int]) -> list[Array]:
    """`split` along axis 2 of at least three dimensions."""
    x = as_array(x)
    if x.ndim < 3:
        raise ValueError("dsplit works on arrays of 3 or more dimensions")
    return split(x, indices_or_sections, 2)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """The slices of `x` along `axis`, without that axis."""
    x = as_array(x)
    axis = rules.axis_index(axis, x.ndim)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return tuple(reshape_to(window(x, axis, k, k + 1), shape) for k in range(x.shape[axis]))


# -- repeating ----------------------------------------------------------------
def tile(x: ArrayLike, repeats: int | Sequence[int]) -> Array:
    """`x` repeated as a whole, so many times along each axis."""
    x = as_array(x)
    repeats = rules.normalize_shape(repeats)
    rank = builtins.max(x.ndim, len(repeats))
    repeats = (1,) * (rank - len(repeats)) + repeats
    shape = (1,) * (rank - x.ndim) + x.shape
    split_shape = tuple(itertools.chain.from_iterable((1, n) for n in shape))
    wide = tuple(itertools.chain.from_iterable(zip(repeats, shape, strict=True)))
    result = tuple(r * n for r, n in zip(repeats, shape, strict=True))
    return reshape_to(expand_to(reshape_to(x, split_shape), wide), result)


def repeat_evenly(x: Array, repeats: int, axis: int) -> Array:
    """Each element of `x` repeated `repeats` times along `axis`; a view."""
    lead, n, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = expand_to(reshape_to(x, (*lead, n, 1, *tail)), (*lead, n, repeats, *tail))
    return reshape_to(wide, (*lead, n * repeats, *tail))


def roll(x: ArrayLike, shift: int | Sequence[int], axis: Axes = None) -> Array:
    """`x` with elements moved by `shift` places along `axis`, those that leave coming back in."""
    x = as_array(x)
    if axis is None:
        return reshape_to(roll(ravel(x), shift, 0), x.shape)
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    shifts = list(rules.integers(shift))
    if len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for by, a in zip(shifts, axes, strict=True):
        a = rules.axis_index(a, x.ndim)
        size = x.shape[a]
        by = by % size if size else 0
        if by:
            x = concat([window(x, a, size - by, size), window(x, a, 0, size - by)], a)
    return x


def meshgrid(*vectors: ArrayLike, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays over the grid of several vectors; "xy" swaps the first two axes."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing {indexing!r} must be 'xy' or 'ij'")
    arrays = [ravel(as_array(x)) for x in vectors]
    places = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        places[:2] = [1, 0]
    shape = [0] * len(arrays)
    for x, place in zip(arrays, places, strict=True):
        shape[place] = x.size
    return [
        expand_to(
            reshape_to(x, tuple(x.size if a == place else 1 for a in range(len(arrays)))),
            tuple(shape),
        )
        for x, place in zip(arrays, places, strict=True)
    ]


# -- padding ------------------------------------------------------------------
def _widths(pad_width: Any, rank: int) -> list[tuple[int, int]]:
    one = rules.is_integer(pad_width)
    widths: list[Any] = [operator.index(pad_width)] if one else list(pad_width)
    if widths and not hasattr(widths[0], "__iter__"):
        widths = [tuple(widths)] if len(widths) == 2 else [(w, w) for w in widths]
    widths = [tuple(w) * (2 if len(tuple(w)) == 1 else 1) for w in widths]
    if len(widths) == 1:
        widths = widths * rank
    if len(widths) != rank or builtins.any(len(w) != 2 for w in widths):
        raise ValueError(f"pad: pad_width {pad_width} does not fit {rank} dimensions")
    return [(operator.index(low), operator.index(high)) for low, high in widths]


def pad(
    x: ArrayLike,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    constant_values: ArrayLike = 0,
) -> Array:
    """`x` with new elements around it.

    Args:
        pad_width: (low, high) for each axis, or one pair or number for all.
        mode: "constant", "edge", "reflect", "symmetric" or "wrap".
        constant_values: for "constant": one value, or a (low, high) pair, or a pair for each axis.

    Raises:
        ValueError: for another mode, or widths that do not fit.
    """
    x = as_array(x)
    widths = _widths(pad_width, x.ndim)
    if mode == "constant":
        return _pad_constant(x, widths, constant_values)
    if mode not in _PAD_MODES:
        raise ValueError(f"pad: mode {mode!r} must be constant, {', '.join(_PAD_MODES)}")
    if builtins.any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad: widths {pad_width} must not be negative in mode {mode!r}")
    for axis, (low, high) in enumerate(widths):
        if low or high:
            if not x.shape[axis]:
                raise ValueError(f"pad: axis {axis} is empty; mode {mode!r} has nothing to repeat")
            x = _PAD_MODES[mode](x, axis, low, high)
    return x


def _pad_constant(x: Array, widths: list[tuple[int, int]], values: Any) -> Array:
    none = [0] * x.ndim
    low, high = [w[0] for w in widths], [w[1] for w in widths]
    if isinstance(values, bool | int | float):
        value = scalar(values, x.dtype)._node.attrs[0]
        return pad_with(x, low, high, none, value)
    if isinstance(values, Array) or getattr(values, "ndim", None) == 0:
        # a value on the device: pad a mask too and choose
        mask = pad_with(expand_to(scalar(True, bool_), x.shape), low, high, none, False)
        return where(mask, pad_with(x, low, high, none, 0), as_array(values, x.dtype))
    pairs = [tuple(v) if hasattr(v, "__iter__") else v for v in values]
    if not hasattr(pairs[0], "__iter__"):
        pairs = [tuple(pairs) if len(pairs) == 2 else (pairs[0],) * 2]
    if len(pairs) == 1:
        pairs = pairs * x.ndim
    for axis, (first, last) in enumerate(pairs):
        for before, after, value in ((low[axis], 0, first), (0, high[axis], last)):
            lows, highs = list(none), list(none)
            lows[axis], highs[axis] = before, after
            x = pad_with(x, lows, highs, none, scalar(value, x.dtype)._node.attrs[0])
    return x


def _pad_edge(x: Array, axis: int, low: int, high: int) -> Array:
    n = x.shape[axis]
    parts = [
        repeat_evenly(window(x, axis, 0, 1), low, axis),
        x,
        repeat_evenly(window(x, axis, n - 1, n), high, axis),
    ]
    return concat(parts, axis)


def _pad_wrap(x: Array, axis: int, low: int, high: int) -> Array:
    n = x.shape[axis]
    before, after = -(-low // n), -(-high // n)
    repeats = [1] * x.ndim
    repeats[axis] = before + 1 + after
    start = before * n - low
    return window(tile(x, repeats), axis, start, start + low + n + high)


def _mirrored(skip: int) -> Callable[[Array, int, int, int], Array]:
    """Pad by reflection; `skip` elements at the mirror are not repeated."""

    def apply_to(x: Array, axis: int, low: int, high: int) -> Array:
        n = x.shape[axis]
        if n == 1 and skip:
            return _pad_edge(x, axis, low, high)
        while low > 0 or high > 0:
            # one reflection reaches n - skip new elements; more takes several
            size = x.shape[axis]
            before, after = builtins.min(low, size - skip), builtins.min(high, size - skip)
            parts = [
                flip_axes(window(x, axis, skip, skip + before), (axis,)),
                x,
                flip_axes(window(x, axis, size - skip - after, size - skip), (axis,)),
            ]
            x = concat(parts, axis)
            low, high = low - before, high - after
        return x

    return apply_to


_PAD_MODES = {
    "edge": _pad_edge,
    "reflect": _mirrored(1),
    "symmetric": _mirrored(0),
    "wrap": _pad_wrap,
}


# -- triangles and diagonals --------------------------------------------------
def tril(x: ArrayLike, k: int = 0) -> Array:
    """`x` with zeros above diagonal `k` of its last two axes."""
    return _triangle(x, k, lower=True)


def triu(x: ArrayLike, k: int = 0) -> Array:
    """`x` with zeros below diagonal `k` of its last two axes."""
    return _triangle(x, k, lower=False)


def _triangle(x: ArrayLike, k: int, lower: bool) -> Array:
    x = as_array(x)
    if x.ndim == 1:
        x = expand_to(x, (x.size, x.size))
    if x.ndim < 2:
        raise ValueError("tril and triu need at least 1 dimension")
    k = builtins.max(-x.shape[-2], builtins.min(k, x.shape[-1]))  # so that positions stay narrow
    rows = iota(x.shape, x.ndim - 2)
    columns = iota(x.shape, x.ndim - 1)
    keep = columns <= rows + k if lower else columns >= rows + k
    return where(keep, x, scalar(0, x.dtype))


def diagonal(x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonal of two axes, as the last axis of the result."""
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError(f"diagonal needs at least 2 dimensions, got shape {x.shape}")
    offset = operator.index(offset)
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    *lead, n, m = x.shape
    start = offset if offset >= 0 else -offset * m
    count = builtins.min(n, m - offset) if offset >= 0 else builtins.min(n + offset, m)
    count = builtins.max(0, count)
    if not count:
        start = 0
    flat = reshape_to(x, (*lead, n * m))
    stop = start + (count - 1) * (m + 1) + 1 if count else 0
    return window(flat, len(lead), start, stop, m + 1)


def diag(x: ArrayLike, k: int = 0) -> Array:
    """A square matrix with a vector on diagonal `k`, or that diagonal of a matrix."""
    x, k = as_array(x), operator.index(k)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag needs 1 or 2 dimensions, got shape {x.shape}")
    size = x.size + builtins.abs(k)
    if not x.size:
        return expand_to(scalar(0, x.dtype), (size, size))
    # elements of a diagonal are size + 1 apart in the flat matrix
    low = k if k >= 0 else -k * size
    high = size * size - low - (x.size + (x.size - 1) * size)
    return reshape_to(pad_with(x, [low], [high], [size], 0), (size, size))


def diagflat(x: ArrayLike, k: int = 0) -> Array:
    """A square matrix with all elements of `x` on diagonal `k`."""
    return diag(ravel(x), k)
