"""Resampling: separable filters with and without antialiasing, and reading between pixels.

Filters follow `jax.image`: half-pixel centres, weights normalised over the pixels inside.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from kerascl.core.array import Array, apply
from kerascl.core.tape import pause
from kerascl.dtypes import DType, int32
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, scalar
from kerascl.ops.gather import GATHER, take
from kerascl.ops.movement import iota, moveaxis
from kerascl.ops.nn import recorded
from kerascl.ops.pointwise import absolute, floor, maximum, sin, trunc, where
from kerascl.ops.views import expand_to, reshape_to


# -- filters -----------------------------------------------------------------------------
def _triangle(x: Array) -> Array:
    return maximum(1 - x, 0)


def _keys_cubic(x: Array) -> Array:
    # R. G. Keys, "Cubic convolution interpolation for digital image processing" (1981), A = -0.5
    near = ((1.5 * x - 2.5) * x) * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return where(x >= 2, 0, where(x >= 1, far, near))


def _lanczos(radius: float):
    def filter(x: Array) -> Array:
        y = radius * sin(math.pi * x) * sin(math.pi * x / radius)
        y = where(x > 1e-3, y / (math.pi**2 * where(x > 1e-3, x * x, 1)), 1)
        return where(x > radius, 0, y)

    return filter


FILTERS = {
    "linear": (1, _triangle),
    "cubic": (2, _keys_cubic),
    "lanczos3": (3, _lanczos(3.0)),
    "lanczos5": (5, _lanczos(5.0)),
}
for _name in ("bilinear", "trilinear"):
    FILTERS[_name] = FILTERS["linear"]
for _name in ("bicubic", "tricubic"):
    FILTERS[_name] = FILTERS["cubic"]

# Sums of weights below this count as nothing.
_LEAST = 1000 * float(np.finfo(np.float32).eps)


def _normalised(weights: Array, sums: Array) -> Array:
    known = absolute(sums) > _LEAST
    return where(known, weights / where(known, sums, 1), 0)


# -- resizing by a fixed factor -------------------------------------------------------------
def resize_axis(x: Array, axis: int, size: int, method: str, antialias: bool) -> Array:
    """`x` (floating) with `axis` resampled to `size`."""
    n = x.shape[axis]
    if n == size:
        return x
    work = x.dtype.accumulator
    radius, filter = FILTERS[method]
    ratio = n / size
    stretch = max(ratio, 1.0) if antialias else 1.0
    reach = radius * stretch

    def sample(place: Array) -> Array:
        return (cast_to(place, work) + 0.5) * ratio - 0.5

    def weight(place: Array, source: Array) -> Array:
        inside = (source >= 0) & (source < n) & (place >= 0) & (place < size)
        distance = absolute(sample(place) - cast_to(source, work)) * (1 / stretch)
        return where(inside, filter(distance), 0)

    with pause():
        # every result reads the pixels within reach of its centre …
        taps = int(2 * reach) + 2
        place = iota((size, taps), 0)
        source = cast_to(floor(sample(place) - reach), int32) + iota((size, taps), 1)
        weights = weight(place, source)
        sums = total(weights, 1)
        sums_wide = expand_to(reshape_to(sums, (size, 1)), source.shape)
        forward = (source, _normalised(weights, sums_wide))
        # … and every pixel gets gradients from the results within reach of it
        taps = int(2 * reach / ratio) + 2
        source = iota((n, taps), 0)
        first = floor((cast_to(source, work) + 0.5 - reach) * (1 / ratio) - 0.5)
        place = cast_to(first, int32) + iota((n, taps), 1)
        backward = (place, _normalised(weight(place, source), take(sums, _inside(place, size))))
    return _gather_sum(x, axis, forward, backward)


def _inside(index: Array, size: int) -> Array:
    return where(index < 0, 0, where(index >= size, size - 1, index))


def _gather_sum(x: Array, axis: int, forward: tuple, backward: tuple) -> Array:
    """sum over t of weights[o, t] * x[…, index[o, t], …]; `backward` is the transpose."""
    index, weights = forward
    count, taps = index.shape
    with pause():
        parts = take(x, _inside(index, x.shape[axis]), axis)
        weights = reshape_to(weights, (count, taps, *[1] * (x.ndim - axis - 1)))
        y = cast_to(total(cast_to(parts, weights.dtype) * weights, axis + 1), x.dtype)
    return recorded(_gather_sum_vjp, (x,), (axis, forward, backward), y)


def _gather_sum_vjp(g, y, x, axis, forward, backward):
    return (_gather_sum(g, axis, backward, forward),)


def resize_nearest(x: Array, axis: int, size: int) -> Array:
    """`x` with the nearest elements along `axis`."""
    n = x.shape[axis]
    if n == size:
        return x
    place = np.floor((np.arange(size, dtype=np.float32) + 0.5) * np.float32(n) / np.float32(size))
    return take(x, as_array(place.astype(np.int32)), axis)


# -- scaling and shifting by amounts that are arrays -------------------------------------------
def scale_axis(
    x: Array, axis: int, size: int, scale: Array, translation: Array, method: str, antialias: bool
) -> Array:
    """`x` resampled to `size` so that position p along `axis` goes to p * scale + translation."""
    n = x.shape[axis]
    _, filter = FILTERS[method]
    inverse = 1.0 / scale
    stretch = maximum(inverse, 1.0) if antialias else scalar(1, scale.dtype)
    shape = (n, size)
    sample = (cast_to(iota((1, size), 1), scale.dtype) + 0.5 - translation) * inverse - 0.5
    distance = absolute(expand_to(sample, shape) - cast_to(iota(shape, 0), scale.dtype))
    weights = filter(distance / stretch)
    weights = _normalised(weights, expand_to(total(weights, 0, keepdims=True), shape))
    inside = (sample >= -0.5) & (sample <= n - 0.5)
    weights = where(expand_to(inside, shape), weights, 0)
    return moveaxis(matmul(moveaxis(x, axis, -1), cast_to(weights, x.dtype)), -1, axis)


# -- reading between pixels ----------------------------------------------------------------
def _mirror(index: Array, size: int) -> Array:
    last = size - 1
    if last == 0:
        return index * 0
    return absolute((index + last) % (2 * last) - last)


_FIXERS = {
    "constant": lambda index, size: index,
    "nearest": _inside,
    "wrap": lambda index, size: index % size,
    "mirror": _mirror,
    "reflect": lambda index, size: (_mirror(2 * index + 1, 2 * size + 1) - 1) // 2,
}
FILL_MODES = tuple(_FIXERS)


def _round_away(x: Array) -> Array:
    """Rounded to integers, halves away from 0."""
    whole = trunc(x)
    rest = x - whole
    return whole + where(rest >= 0.5, 1, where(rest <= -0.5, -1, 0))


def _neighbours(position: Array, order: int) -> list[tuple[Array, Array | None]]:
    """Integer places and weights (None: 1) that make up the value at a position."""
    if order == 0:
        return [(cast_to(_round_away(position), int32), None)]
    lower = floor(position)
    upper_weight = position - lower
    index = cast_to(lower, int32)
    return [(index, 1 - upper_weight), (index + 1, upper_weight)]


def sample_at(
    x: Array, positions: list[Array], spec: tuple, shape: tuple[int, ...], order: int,
    fill_mode: str, fill_value,
) -> Array:  # fmt: skip
    """Values of `x` between its elements.

    Args:
        positions: floating places, broadcast to `shape`, one for each "i" of `spec`.
        spec: for each axis of `x`: ("i", k) to read at positions[k], ("d", a) to follow axis a
            of the result.
        order: 0 for the nearest element, 1 for linear interpolation.
        fill_mode: what lies outside: one of FILL_MODES.

    Returns:
        `shape`, in the dtype of `x`; integers are rounded, halves away from 0.
    """
    axes = [a for a, (kind, _) in enumerate(spec) if kind == "i"]
    corners = []
    for axis, position in zip(axes, positions, strict=True):
        n = x.shape[axis]
        choices = []
        for index, weight in _neighbours(position, order):
            valid = (index >= 0) & (index < n) if fill_mode == "constant" else None
            choices.append((_inside(_FIXERS[fill_mode](index, n), n), valid, weight))
        corners.append(choices)
    result: Any = None
    for corner in itertools.product(*corners):
        places = [expand_to(i, shape) for i, _, _ in corner]
        value = apply(GATHER, (x, *places), (spec,), shape, x.dtype)
        valid = None
        weight = None
        for _, v, w in corner:
            valid = v if valid is None or v is None else valid & v
            weight = w if weight is None or w is None else weight * w
        if valid is not None:
            value = where(expand_to(valid, shape), value, fill_value_of(fill_value, x.dtype))
        if weight is not None:
            value = value * expand_to(weight, shape)
        result = value if result is None else result + value
    if not x.dtype.is_float and result.dtype.is_float:
        result = _round_away(result)
    return cast_to(result, x.dtype)


def fill_value_of(value, dtype: DType) -> Array:
    """A fill value as a scalar of `dtype`."""
    return cast_to(as_array(value), dtype)
