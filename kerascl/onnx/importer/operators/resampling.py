"""Images at other sizes and places: Resize and GridSample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer.graph import Call, axis_of
from kerascl.onnx.importer.rules import operator
from kerascl.ops import gather, pointwise
from kerascl.ops.contraction import matmul
from kerascl.ops.creation import array
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import moveaxis
from kerascl.ops.views import reshape_to

_FLOAT32 = BY_NAME["float32"]


@operator("Resize", host=(1, 2, 3))
def resize(
    call: Call, x: Array, roi: np.ndarray | None = None, scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> Array:  # fmt: skip
    """`x` sampled anew along `axes`, by `scales` or to `sizes`.

    Args:
        roi: starts, then ends, of the window for "tf_crop_and_resize", as shares of each axis.

    Raises:
        ValueError: without scales and sizes, and for a mode that the standard does not have.
    """
    if call.version < 11:  # opset 10: (x, scales)
        scales, roi = roi, None
    axes = [axis_of(a, x.ndim) for a in call.get("axes") or range(x.ndim)]
    scales = None if scales is None or not scales.size else scales
    sizes = None if sizes is None or not sizes.size else sizes
    factors, targets = _targets(call, x, axes, scales, sizes)
    mode = call.get("mode", "nearest")
    how = call.get("coordinate_transformation_mode", "half_pixel" if call.version > 10
                   else "asymmetric")  # fmt: skip
    outside: list[np.ndarray | None] = []
    y = x if mode == "nearest" else _wide(x)
    for place, axis in enumerate(axes):
        n, m, factor = x.shape[axis], targets[place], factors[place]
        window = (0.0, 1.0)
        if how == "tf_crop_and_resize" and roi is not None:
            window = (float(roi[place]), float(roi[place + len(axes)]))
        if n == m and factor == 1 and how != "tf_crop_and_resize":
            outside.append(None)
            continue
        where = positions(how, n, m, factor, window)
        y = _along(call, y, axis, where, mode, factor)
        outside.append((where < 0) | (where > n - 1) if how == "tf_crop_and_resize" else None)
    y = cast_to(y, x.dtype)
    for place, axis in enumerate(axes):
        missing = outside[place]
        if missing is not None and missing.any():
            shape = [1] * x.ndim
            shape[axis] = missing.size
            mask = array(missing.reshape(shape))
            y = pointwise.where(mask, call.get("extrapolation_value", 0.0), y)
    return y


@operator("Upsample", host=(1,))
def upsample(call: Call, x: Array, scales: np.ndarray | None = None) -> Array:
    """`x` at floor(n * scale) places along each axis of n; place i lies at i / scale."""
    found = scales if scales is not None else call.get("scales")
    if found is None:  # opset 1
        found = [1.0, 1.0, call["height_scale"], call["width_scale"]]
    y = x
    for axis, factor in enumerate(float(f) for f in found):
        n = x.shape[axis]
        m = math.floor(n * factor)
        if n != m:
            where = positions("asymmetric", n, m, factor, (0.0, 1.0))
            y = _along(call, y, axis, where, call.get("mode", "nearest"), factor)
    return cast_to(y, x.dtype)


def _wide(x: Array) -> Array:
    return x if x.dtype.is_float and x.dtype.itemsize >= 4 else cast_to(x, _FLOAT32)


def _targets(
    call: Call, x: Array, axes: Sequence[int], scales: np.ndarray | None, sizes: np.ndarray | None
) -> tuple[list[float], list[int]]:
    """(scales, sizes) along the axes."""
    if scales is not None:
        factors = [float(s) for s in scales]
        return factors, [math.floor(x.shape[a] * f) for a, f in zip(axes, factors)]
    if sizes is None:
        raise ValueError("neither scales nor sizes are given")
    wanted = [int(n) for n in sizes]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    factors = [m / x.shape[a] for a, m in zip(axes, wanted)]
    if policy != "stretch":
        factor = min(factors) if policy == "not_larger" else max(factors)
        wanted = [math.floor(factor * x.shape[a] + 0.5) for a in axes]
        factors = [factor] * len(axes)
    return factors, wanted


def positions(how: str, n: int, m: int, factor: float, window: tuple[float, float]) -> np.ndarray:
    """Where each of `m` results lies among `n` elements."""
    i = np.arange(m, dtype=np.float64)
    if how == "asymmetric":
        return i / factor
    exact = factor * n
    if how == "align_corners":
        return i * (n - 1) / (exact - 1) if exact != 1 else np.zeros(m)
    if how == "pytorch_half_pixel":
        return (i + 0.5) / factor - 0.5 if exact != 1 else np.full(m, -0.5)
    if how == "half_pixel_symmetric":
        adjustment = m / (factor * n)
        return n / 2 * (1 - adjustment) + (i + 0.5) / factor - 0.5
    if how == "tf_half_pixel_for_nn":
        return (i + 0.5) / factor
    if how == "tf_crop_and_resize":
        low, high = window
        if exact != 1:
            return low * (n - 1) + i * (high - low) * (n - 1) / (exact - 1)
        return np.full(m, 0.5 * (low + high) * (n - 1))
    if how == "half_pixel":
        return (i + 0.5) / factor - 0.5
    raise ValueError(f"coordinate_transformation_mode {how!r} is not one of the standard's")


def _along(
    call: Call, x: Array, axis: int, where: np.ndarray, mode: str, factor: float
) -> Array:
    n = x.shape[axis]
    if mode == "nearest":
        return gather.take(x, array(_nearest(call, where, n)), axis)
    if mode not in ("linear", "bilinear", "trilinear", "cubic"):
        raise ValueError(f"mode {mode!r} is not one of the standard's")
    weights = _weights(call, where, n, mode, factor)
    taps = int((weights != 0).sum(1).max(initial=0))
    if taps <= 4:  # a few reads for each result
        order = np.argsort(weights == 0, axis=1, kind="stable")[:, :taps]
        chosen = np.take_along_axis(weights, order, 1)
        shape = [1] * x.ndim
        shape[axis] = len(where)
        total: Any = None
        for k in range(taps):
            read = gather.take(x, array(order[:, k].astype(np.int32)), axis)
            part = read * array(chosen[:, k].astype(x.dtype.numpy).reshape(shape))
            total = part if total is None else total + part
        return total
    matrix = array(weights.T.astype(x.dtype.numpy))
    return moveaxis(matmul(moveaxis(x, axis, -1), matrix), -1, axis)


def _nearest(call: Call, where: np.ndarray, n: int) -> np.ndarray:
    rule = call.get("nearest_mode", "round_prefer_floor" if call.version > 10 else "floor")
    if rule == "floor":
        index = np.floor(where)
    elif rule == "ceil":
        index = np.ceil(where)
    elif rule == "round_prefer_ceil":
        index = np.floor(where + 0.5)
    else:
        index = np.ceil(where - 0.5)
    return np.clip(index, 0, n - 1).astype(np.int32)


def _weights(
    call: Call, where: np.ndarray, n: int, mode: str, factor: float
) -> np.ndarray:
    """(results, n) shares of each element in each result."""
    antialias = bool(call.get("antialias", 0)) and factor < 1
    only_inside = bool(call.get("exclude_outside", 0))
    stretch = min(factor, 1.0) if antialias else 1.0
    reach = (2.0 if mode == "cubic" else 1.0) / stretch
    first = np.floor(where - reach).astype(np.int64)
    steps = np.arange(math.ceil(2 * reach) + 3)
    index = first[:, None] + steps
    share = _kernel(call, (index - where[:, None]) * stretch, mode)
    inside = (index >= 0) & (index < n)
    if only_inside:
        share = np.where(inside, share, 0)
    if only_inside or antialias:
        share = share / share.sum(1, keepdims=True)
    weights = np.zeros((len(where), n))
    rows = np.broadcast_to(np.arange(len(where))[:, None], index.shape)
    np.add.at(weights, (rows, np.clip(index, 0, n - 1)), share)
    return weights


def _kernel(call: Call, distance: np.ndarray, mode: str) -> np.ndarray:
    t = np.abs(distance)
    if mode != "cubic":
        return np.maximum(1 - t, 0)
    a = call.get("cubic_coeff_a", -0.75)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


# -- at places that are computed ---------------------------------------------------
@operator("GridSample")
def grid_sample(call: Call, x: Array, grid: Array) -> Array:
    """Images at computed places: (N, C, *grid).

    Args:
        x: (N, C, *sizes).
        grid: (N, *grid, rank); -1 and 1 are the edges of images, or the centres of the outermost
            pixels with `align_corners`.  The first number is along the last axis of `x`.
    """
    mode, padding = call.get("mode", "linear"), call.get("padding_mode", "zeros")
    align = bool(call.get("align_corners", 0))
    rank = x.ndim - 2
    sizes = x.shape[2:]
    wide = cast_to(grid, _FLOAT32) if grid.dtype.itemsize < 4 else grid
    where = []
    for axis in range(rank):
        g = wide[..., rank - 1 - axis]
        n = sizes[axis]
        p = (g + 1) * (0.5 * (n - 1)) if align else ((g + 1) * n - 1) * 0.5
        where.append(p)
    if mode == "nearest":
        where = [pointwise.round(p) for p in where]
    limits = [(0.0, n - 1.0) if align else (-0.5, n - 0.5) for n in sizes]
    if padding == "border" and mode not in ("cubic", "bicubic"):
        where = [pointwise.clip(p, 0.0, n - 1.0) for p, n in zip(where, sizes)]
    elif padding == "reflection" and mode not in ("cubic", "bicubic"):
        where = [_reflected(p, *b) for p, b in zip(where, limits)]
        if mode == "nearest":
            where = [pointwise.round(p) for p in where]
        where = [pointwise.clip(p, 0.0, n - 1.0) for p, n in zip(where, sizes)]
    taps: list[list[Any]] = []
    for p in where:
        low = pointwise.floor(p)
        t = p - low
        if mode == "nearest":
            taps.append([(p, None)])
        elif mode in ("cubic", "bicubic"):
            taps.append(_cubic(low, t))
        else:
            taps.append([(low, 1 - t), (low + 1, t)])
    total: Any = None
    for chosen in combinations(taps):
        value = read(x, [place for place, _ in chosen], padding, limits)
        for _, share in chosen:
            if share is not None:
                value = value * reshape_to(share, (share.shape[0], 1, *share.shape[1:]))
        total = value if total is None else total + value
    return cast_to(total, x.dtype)


def combinations(taps: list[list[Any]]) -> list[list[Any]]:
    """One tap of each axis, in every way."""
    found: list[list[Any]] = [[]]
    for options in taps:
        found = [[*before, option] for before in found for option in options]
    return found


def _cubic(low: Array, t: Array) -> list[Any]:
    a = -0.75

    def near(s: Array) -> Array:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: Array) -> Array:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [(low - 1, far(t + 1)), (low, near(t)), (low + 1, near(1 - t)), (low + 2, far(2 - t))]


def _reflected(p: Array, low: float, high: float) -> Array:
    span = high - low
    if span <= 0:
        return p * 0
    offset = pointwise.mod(p - low, 2 * span)
    return low + pointwise.where(offset > span, 2 * span - offset, offset)


def read(x: Array, places: list[Array], padding: str, limits: list[tuple[float, float]]) -> Array:
    """x (N, C, *sizes) at whole positions (N, *grid): (N, C, *grid)."""
    n, channels = x.shape[:2]
    sizes = x.shape[2:]
    if padding == "reflection":
        places = [pointwise.round(_reflected(p, *b)) for p, b in zip(places, limits)]
    flat: Any = None
    inside: Any = None
    for p, size in zip(places, sizes):
        here = pointwise.logical_and(p >= 0, p <= size - 1)
        inside = here if inside is None else pointwise.logical_and(inside, here)
        index = cast_to(pointwise.clip(p, 0.0, size - 1.0), BY_NAME["int32"])
        flat = index if flat is None else flat * size + index
    rows = reshape_to(x, (n, channels, math.prod(sizes)))
    index = reshape_to(flat, (n, 1, flat.size // n))
    found = gather.take_along_axis(rows, index, 2)
    found = reshape_to(found, (n, channels, *flat.shape[1:]))
    if padding == "zeros":
        found = pointwise.where(reshape_to(inside, (n, 1, *flat.shape[1:])), found, 0)
    return found
