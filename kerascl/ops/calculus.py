"""Differences, integrals, interpolation, polynomials and correlation over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.types import Axes
from kerascl.ops.contraction import correlate, matmul
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, convert, floating, scalar
from kerascl.ops.gather import take
from kerascl.ops.movement import concatenate, diagonal, ravel, transpose
from kerascl.ops.pointwise import (
    absolute,
    conjugate,
    equal,
    logical_and,
    maximum,
    minimum,
    mod,
    multiply,
    not_equal,
    real,
    sqrt,
    where,
)
from kerascl.ops.reduction import mean
from kerascl.ops.scan import cumsum
from kerascl.ops.sorting import searchsorted
from kerascl.ops.views import expand_to, flip_axes, reshape_to, window

__all__ = [
    "convolve", "corrcoef", "cov", "diff", "ediff1d", "gradient", "interp", "polyval",
    "trapezoid", "unwrap",
]  # fmt: skip


def _neighbours(x: Array, axis: int) -> tuple[Array, Array]:
    n = x.shape[axis]
    return window(x, axis, 1, max(1, n)), window(x, axis, 0, max(0, n - 1))


def diff(
    x: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """Differences of neighbours along `axis`, taken `n` times; of bools, whether they differ."""
    x = as_array(x)
    if n < 0:
        raise ValueError(f"diff: order {n} must not be negative")
    axis = rules.axis_index(axis, x.ndim)
    parts = [_slab(part, x, axis) for part in (prepend, x, append) if part is not None]
    x = concatenate(parts, axis)
    for _ in range(n):
        later, earlier = _neighbours(x, axis)
        x = not_equal(later, earlier) if x.dtype.is_bool else later - earlier
    return x


def _slab(part: ArrayLike, x: Array, axis: int) -> Array:
    part = as_array(part, x.dtype)
    return part if part.ndim else expand_to(part, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None
) -> Array:
    """Differences of neighbours in the flat array, with values before and after them.

    Examples:
        >>> kc.ediff1d([1, 4, 2], to_begin=-9, to_end=[8, 9]).tolist()
        [-9, 3, -2, 8, 9]
    """
    found = diff(ravel(ary))
    parts = [p for p in (to_begin, found, to_end) if p is not None]
    return concatenate([ravel(as_array(p, found.dtype)) for p in parts])


def unwrap(
    p: ArrayLike,
    discont: float | None = None,
    axis: int = -1,
    *,
    period: float = 2 * math.pi,
) -> Array:
    """Angles along `axis` without jumps: neighbours that differ by more than `discont` are brought
    within half a period of each other by whole periods.

    Args:
        discont: half the period at least, which is the default.
        period: an integer keeps integers.

    Raises:
        ValueError: for an axis that does not exist.

    Examples:
        >>> kc.unwrap([0.0, 1.0, 359.0], period=360.0).tolist()
        [0.0, 1.0, -1.0]
    """
    p = as_array(p)
    axis = rules.axis_index(axis, p.ndim)
    if not (p.dtype.is_integer and isinstance(period, int)):
        p = cast_to(p, floating(p.dtype)[0])
    whole = p.dtype.is_integer
    half = period // 2 if whole else period / 2
    even = not whole or period % 2 == 0
    steps = diff(p, axis=axis)
    wrapped = mod(steps + half, period) - half
    if even:  # a step of just half a period keeps its sign
        wrapped = where(logical_and(equal(wrapped, -half), steps > 0), half, wrapped)
    limit = period / 2 if discont is None else discont
    correction = where(absolute(steps) < limit, 0, wrapped - steps)
    first = window(p, axis, 0, min(1, p.shape[axis]))
    rest = window(p, axis, min(1, p.shape[axis]), p.shape[axis])
    return concatenate([first, rest + cumsum(correction, axis, p.dtype)], axis)


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """Integral of samples along `axis` by the trapezoidal rule, at places `x` or `dx` apart."""
    y = as_array(y)
    y = cast_to(y, floating(y.dtype)[0])
    axis = rules.axis_index(axis, y.ndim)
    later, earlier = _neighbours(y, axis)
    if x is None:
        width = dx
    else:
        (x, _), _ = convert((x, y))
        if x.ndim == 1:
            shape = [1] * y.ndim
            shape[axis] = x.size
            x = reshape_to(x, tuple(shape))
            width = diff(x, axis=axis)
        else:
            width = diff(x, axis=axis - y.ndim)
    return total(multiply(later + earlier, width) * 0.5, axis)


def gradient(f: ArrayLike, *spacing: ArrayLike, axis: Axes = None) -> Array | list[Array]:
    """The derivative of samples along each axis: central differences inside, one-sided at the ends.

    Args:
        f: floating samples (integers become float32), two at least along each axis in question.
        spacing: how far samples lie apart: nothing (1), one number for all axes, or for each a
            number or a vector of coordinates.
        axis: an axis or several; None for all.

    Returns:
        An array like `f`, or a list of them for several axes.

    Raises:
        ValueError: for axes that are too short, and when there are not as many spacings as axes.
    """
    f = as_array(f)
    f = cast_to(f, floating(f.dtype)[0])
    axes = rules.axes_tuple(axis, f.ndim)
    steps: Sequence[ArrayLike] = spacing or (1.0,)
    steps = list(steps) * len(axes) if len(steps) == 1 else list(steps)
    if len(steps) != len(axes):
        raise ValueError(f"gradient: {len(steps)} spacings for {len(axes)} axes")
    found = [_slope(f, h, a) for h, a in zip(steps, axes, strict=True)]
    return found[0] if len(found) == 1 else found


def _slope(f: Array, spacing: ArrayLike, axis: int) -> Array:
    n = f.shape[axis]
    if n < 2:
        raise ValueError(f"gradient: axis {axis} of shape {f.shape} has less than two samples")
    step = as_array(spacing, f.dtype)
    if step.ndim:
        if step.shape != (n,):
            raise ValueError(f"gradient: coordinates have shape {step.shape} for {n} samples")
        step = diff(step)
        step = reshape_to(step, (n - 1, *[1] * (f.ndim - axis - 1)))
    else:
        step = expand_to(step, (n - 1, *[1] * (f.ndim - axis - 1)))
    slopes = diff(f, axis=axis) / step
    first, last = window(slopes, axis, 0, 1), window(slopes, axis, n - 2, n - 1)
    if n == 2:
        return concatenate([first, last], axis)
    # weights that are exact for parabolas
    left, right = window(step, 0, 0, n - 2), window(step, 0, 1, n - 1)
    before, after = window(slopes, axis, 0, n - 2), window(slopes, axis, 1, n - 1)
    inside = (before * right + after * left) / (left + right)
    return concatenate([first, inside, last], axis)


def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
) -> Array:
    """The piecewise linear function through the points (xp, fp), at `x`.

    Args:
        x: where; any shape.
        xp, fp: vectors of one length; `xp` must rise, which is not looked at.
        left, right: values below `xp[0]` and above `xp[-1]`; the first and the last of `fp` by
            default.

    Raises:
        ValueError: when `xp` and `fp` are no vectors of one length, or empty.
    """
    (x, xp, fp), _ = convert((x, xp, fp), lambda dtype: floating(dtype)[0])
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        raise ValueError(f"interp: xp and fp have shapes {xp.shape} and {fp.shape}")
    n = xp.size
    low = window(fp, 0, 0, 1) if left is None else as_array(left, fp.dtype)
    high = window(fp, 0, n - 1, n) if right is None else as_array(right, fp.dtype)
    inside = expand_to(window(fp, 0, 0, 1), x.shape) if n == 1 else _between(x, xp, fp)
    y = where(x < window(xp, 0, 0, 1), low, inside)
    y = where(x > window(xp, 0, n - 1, n), high, y)
    return reshape_to(y, x.shape)


def _between(x: Array, xp: Array, fp: Array) -> Array:
    place = searchsorted(xp, reshape_to(x, (x.size,)), "right") - 1
    place = reshape_to(minimum(maximum(place, 0), xp.size - 2), x.shape)
    x0, x1, y0, y1 = (take(p, place + k) for p in (xp, fp) for k in (0, 1))
    return where(equal(x, x1), y1, y0 + (x - x0) * ((y1 - y0) / (x1 - x0)))


def polyval(p: ArrayLike, x: ArrayLike) -> Array:
    """The polynomial with coefficients `p` (a vector, the highest power first) at `x`, by Horner's
    rule.

    Raises:
        ValueError: when `p` is not a vector.
    """
    (p, x), _ = convert((p, x))
    if p.ndim != 1:
        raise ValueError(f"polyval: coefficients have shape {p.shape}, which is no vector")
    y = expand_to(scalar(0, x.dtype), x.shape)
    for k in range(p.size):
        y = y * x + reshape_to(window(p, 0, k, k + 1), ())
    return y


def convolve(a: ArrayLike, v: ArrayLike, mode: str = "full") -> Array:
    """Convolution of two vectors, as NumPy's.

    Args:
        mode: "full" (every overlap), "same" (as long as the longer one) or "valid" (whole
            overlaps).

    Raises:
        ValueError: for another mode, and for what is no filled vector.
    """
    (a, v), _ = convert((a, v))
    if a.ndim == 1 and v.ndim == 1 and v.size > a.size:
        a, v = v, a
    return correlate(a, conjugate(flip_axes(v, (0,)) if v.ndim == 1 else v), mode)


def cov(x: ArrayLike, rowvar: bool = True, ddof: int = 1) -> Array:
    """Covariance of variables (rows, or columns without `rowvar`) over their observations."""
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    if x.ndim > 2:
        raise ValueError(f"cov needs 1 or 2 dimensions, got shape {x.shape}")
    rows = reshape_to(x, (1, x.size)) if x.ndim < 2 else x if rowvar else transpose(x)
    rows = rows - mean(rows, 1, True)
    y = matmul(rows, conjugate(transpose(rows))) / (rows.shape[1] - ddof)
    return y if x.ndim == 2 and rows.shape[0] > 1 else reshape_to(y, ())


def corrcoef(x: ArrayLike, rowvar: bool = True) -> Array:
    """Pearson's correlation coefficients of variables; see `cov`."""
    c = cov(x, rowvar)
    if not c.ndim:
        return c / c
    scale = sqrt(real(diagonal(c)))
    return c / reshape_to(scale, (scale.size, 1)) / scale
