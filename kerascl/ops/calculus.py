"""Differences, integrals and correlation over samples."""

from __future__ import annotations

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, convert, floating
from kerascl.ops.movement import concatenate, diagonal, transpose
from kerascl.ops.pointwise import conjugate, multiply, not_equal, real, sqrt
from kerascl.ops.reduction import mean
from kerascl.ops.views import expand_to, reshape_to, window

__all__ = ["corrcoef", "cov", "diff", "trapezoid"]


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
