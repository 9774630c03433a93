"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.types import Axes
from kerascl.ops.declare import as_array, cast_to, floating, in_float32
from kerascl.ops.decompositions import svdvals
from kerascl.ops.movement import transpose
from kerascl.ops.pointwise import absolute, power, sqrt, square, where
from kerascl.ops.reduction import max as max_along
from kerascl.ops.reduction import min as min_along
from kerascl.ops.reduction import sum as sum_along
from kerascl.ops.views import reshape_to

Order: TypeAlias = float | str | None


def norm(
    x: ArrayLike, ord: float | str | None = None, axis: Axes = None, keepdims: bool = False
) -> Array:
    """Norms of vectors along one axis, or of matrices in two, as NumPy's `linalg.norm`.

    Args:
        ord: of vectors a number; of matrices 1, -1, 2, -2, infinities, "fro" or "nuc"; None for 2
            or "fro", of all elements where `axis` is None too.
        axis: an int, or two of them.

    Raises:
        ValueError: for an `ord` that does not fit the number of axes.
    """
    x = as_array(x)
    return norm_of(cast_to(x, floating(x.dtype)[0]), ord, axis, keepdims)


def vector_norm(x: ArrayLike, axis: Axes = None, keepdims: bool = False, ord: float = 2) -> Array:
    """The norm of all elements along `axis` (None: all axes, an int or a tuple), as one vector.

    Args:
        ord: any number: the ord-th root of the sum of sizes to that power; 0 counts what is not 0;
            infinities give the largest or smallest size.
    """
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    axes = rules.axes_tuple(axis, x.ndim)
    kept = [a for a in range(x.ndim) if a not in axes]
    lead = tuple(x.shape[a] for a in kept)
    flat = math.prod(x.shape[a] for a in axes)
    rows = reshape_to(transpose(x, (*kept, *axes)), (*lead, flat))
    y = norm_of(rows, ord, rows.ndim - 1, False)
    return reshape_to(
        y, tuple(1 if a in axes else n for a, n in enumerate(x.shape)) if keepdims else lead
    )


def matrix_norm(x: ArrayLike, keepdims: bool = False, ord: float | str | None = "fro") -> Array:
    """Norms of matrices (…, m, n); `ord` as for `norm`.

    Raises:
        ValueError: for another `ord`, and less than two dimensions.
    """
    x = as_array(x)
    if x.ndim < 2:
        raise ValueError(f"matrix_norm needs at least 2 dimensions, got shape {x.shape}")
    return norm(x, ord, (-2, -1), keepdims)


@in_float32
def norm_of(x: Array, ord: Order, axis: Axes, keepdims: bool) -> Array:
    """`norm` of an Array of floats; those of up to 16 bits are computed in float32.

    Raises:
        ValueError: for more than two axes, and for an `ord` that does not fit their number.
    """
    if axis is None:
        if ord is None or (ord == 2 and x.ndim == 1) or (ord == "fro" and x.ndim == 2):
            return _root(sum_along(square(absolute(x)), None, keepdims))
        axes = tuple(range(x.ndim))
    else:
        given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
        axes = tuple(rules.axis_index(a, x.ndim) for a in given)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims)
    raise ValueError(f"Improper number of dimensions to norm: axis={axis}, shape={x.shape}")


def _root(total: Array) -> Array:
    # the gradient of sqrt at 0 is infinite; that of the norm is taken as 0
    zero = total == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, total)))


def _vector_norm(x: Array, ord: Order, axis: int, keepdims: bool) -> Array:
    if isinstance(ord, str):
        raise ValueError(
            f"Invalid `ord` argument for vector norm. Expected a number, received: ord={ord}"
        )
    size = absolute(x)
    if ord is None or ord == 2:
        return _root(sum_along(square(size), axis, keepdims))
    if ord == math.inf:
        return max_along(size, axis, keepdims)
    if ord == -math.inf:
        return min_along(size, axis, keepdims)
    if ord == 0:
        return sum_along(cast_to(x != 0, size.dtype), axis, keepdims)
    if ord == 1:
        return sum_along(size, axis, keepdims)
    return power(sum_along(power(size, float(ord)), axis, keepdims), 1.0 / ord)


def _matrix_norm(x: Array, ord: Order, axes: tuple[int, int], keepdims: bool) -> Array:
    row, column = axes
    if row == column:
        raise ValueError(f"norm: axis {axes} names an axis twice")
    if ord in (None, "fro"):
        return _root(sum_along(square(absolute(x)), axes, keepdims))
    if ord in (1, -1, math.inf, -math.inf):
        first, second = (row, column) if abs(ord) == 1 else (column, row)
        sums = sum_along(absolute(x), first, True)
        result = (max_along if ord > 0 else min_along)(sums, second, True)
    elif ord in (2, -2, "nuc"):
        others = [a for a in range(x.ndim) if a not in axes]
        s = svdvals(transpose(x, (*others, row, column)))
        along: dict[Any, Callable[..., Array]] = {2: max_along, -2: min_along, "nuc": sum_along}
        result = along[ord](s, -1)
        result = reshape_to(result, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))
    else:
        raise ValueError(f"Invalid `ord` argument for matrix norm. Received: ord={ord}")
    if keepdims:
        return result
    return reshape_to(result, tuple(n for a, n in enumerate(x.shape) if a not in axes))
