"""Arrays with axes or parts put in or left out, and what is asked of whole arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, State
from kerascl.dtypes import bool_, int32
from kerascl.ops import host
from kerascl.ops.batching import vmap
from kerascl.ops.declare import as_array, convert, scalar
from kerascl.ops.gather import take
from kerascl.ops.movement import concatenate, moveaxis, ravel, tile
from kerascl.ops.pointwise import equal, not_equal
from kerascl.ops.reduction import all as every
from kerascl.ops.reduction import any as some
from kerascl.ops.views import expand_to, reshape_to, window

__all__ = [
    "apply_along_axis", "apply_over_axes", "array_equal", "array_equiv", "atleast_1d", "atleast_2d",
    "atleast_3d", "block", "column_stack", "delete", "insert", "ndim", "ravel_multi_index",
    "resize", "rollaxis", "shape", "size", "tril_indices", "trim_zeros", "triu_indices",
]  # fmt: skip


def shape(x: ArrayLike) -> tuple[int, ...]:
    """The shape of an array, or of what would become one."""
    return as_array(x).shape


def ndim(x: ArrayLike) -> int:
    """How many axes an array has."""
    return as_array(x).ndim


def size(x: ArrayLike, axis: int | None = None) -> int:
    """How many elements an array has, or how many along `axis`."""
    x = as_array(x)
    return x.size if axis is None else x.shape[rules.axis_index(axis, x.ndim)]


def _at_least(wide: Callable[[Array], tuple[int, ...]], arrays: tuple[ArrayLike, ...]) -> Any:
    made = [reshape_to(x, wide(x)) for x in map(as_array, arrays)]
    return made[0] if len(made) == 1 else tuple(made)


def atleast_1d(*arrays: ArrayLike) -> Any:
    """Each array, a scalar with shape (1,); a tuple for several arrays."""
    return _at_least(lambda x: x.shape or (1,), arrays)


def atleast_2d(*arrays: ArrayLike) -> Any:
    """Each array with axes of size 1 in front, so that it has two; a tuple for several arrays."""
    return _at_least(lambda x: (1,) * (2 - x.ndim) + x.shape, arrays)


def atleast_3d(*arrays: ArrayLike) -> Any:
    """Each array with three axes at least, a vector (n,) as (1, n, 1) and a matrix (m, n) as
    (m, n, 1); a tuple for several arrays."""

    def wide(x: Array) -> tuple[int, ...]:
        return {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}.get(x.ndim, x.shape)

    return _at_least(wide, arrays)


def column_stack(arrays: Sequence[ArrayLike]) -> Array:
    """Vectors (n,) as the columns of a matrix, matrices (n, k) beside each other.

    Raises:
        ValueError: when lengths differ.
    """
    columns = [as_array(x) for x in arrays]
    return concatenate([reshape_to(x, (x.size, 1)) if x.ndim < 2 else x for x in columns], 1)


def _places(where: Any, count: int, name: str, stop: int) -> np.ndarray:
    """Integers on the host that an argument names along an axis; negative ones count from its
    end."""
    if isinstance(where, slice):
        return np.arange(count)[where]
    if isinstance(where, Array | State):
        host.count("places")
    given = np.asarray(where)
    if given.dtype == bool:
        if given.shape != (count,):
            raise ValueError(f"{name}: a mask of shape {given.shape} does not fit {count} elements")
        return np.flatnonzero(given)
    places = given.astype(np.int64) if not given.size else given
    if places.dtype.kind not in "iu":
        raise TypeError(f"{name}: places must be integers, not {places.dtype}")
    if places.size and (places.min() < -count or places.max() >= stop):
        raise IndexError(f"{name}: places {places.tolist()} are out of range for size {count}")
    found: np.ndarray = np.where(places < 0, places + count, places)
    return found


def delete(x: ArrayLike, obj: Any, axis: int | None = None) -> Array:
    """`x` without the slices at `obj` along `axis` (None: of the flat array).

    Args:
        obj: an integer, a slice, or integers or a mask, which are read where they are an Array.

    Raises:
        IndexError: for places out of range.
    """
    x, axis = _along(x, axis)
    left = np.delete(np.arange(x.shape[axis]), _places(obj, x.shape[axis], "delete", x.shape[axis]))
    return take(x, as_array(left, int32), axis)


def insert(x: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Array:
    """`x` with `values`, in its dtype, put before the places `obj` along `axis` (None: of the flat
    array).

    Args:
        obj: an integer, a slice or integers, which are read where they are an Array.

    Raises:
        IndexError: for places out of range.
        ValueError: when `values` do not broadcast to as many slices as `obj` has places.
    """
    x, axis = _along(x, axis)
    length = x.shape[axis]
    places = _places(obj, length, "insert", length + 1)
    new = as_array(values, x.dtype)
    if places.ndim == 0:  # a block of slices, whose own axis comes first
        if new.ndim < x.ndim:
            new = reshape_to(new, (1,) * (x.ndim - new.ndim) + new.shape)
        new = moveaxis(new, 0, axis)
        places = np.full(new.shape[axis], places)
    wanted = list(x.shape)
    wanted[axis] = count = places.size
    try:
        new = expand_to(new, rules.broadcast(new.shape, tuple(wanted)))
    except ValueError:
        raise ValueError(
            f"insert: values of shape {new.shape} do not broadcast to {tuple(wanted)}"
        ) from None
    order = np.argsort(places, kind="stable")
    target = np.empty(count, np.int64)
    target[order] = places[order] + np.arange(count)
    source = np.empty(length + count, np.int64)
    rest = np.ones(length + count, bool)
    rest[target] = False
    source[target], source[rest] = length + np.arange(count), np.arange(length)
    return take(concatenate([x, new], axis), as_array(source, int32), axis)


def _along(x: ArrayLike, axis: int | None) -> tuple[Array, int]:
    x = as_array(x)
    return (ravel(x), 0) if axis is None else (x, rules.axis_index(axis, x.ndim))


def array_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Whether two arrays have the same shape and elements: a bool of shape ()."""
    (a, b), _ = convert((as_array(x1), as_array(x2)))
    return every(equal(a, b)) if a.shape == b.shape else scalar(False, bool_)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """int32 rows and columns of the elements on and above diagonal `k` of an (n, m) matrix."""
    return _pairs(np.triu_indices(n, k, m))


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """int32 rows and columns of the elements on and below diagonal `k` of an (n, m) matrix."""
    return _pairs(np.tril_indices(n, k, m))


def _pairs(places: tuple[np.ndarray, np.ndarray]) -> tuple[Array, Array]:
    rows, columns = places
    return as_array(rows, int32), as_array(columns, int32)


def ravel_multi_index(multi_index: Sequence[ArrayLike], dims: Sequence[int]) -> Array:
    """Flat positions of coordinates in an array of shape `dims`; they are not looked at.

    Raises:
        ValueError: when there are not as many coordinates as dimensions.
    """
    if len(multi_index) != len(dims):
        raise ValueError(
            f"ravel_multi_index: {len(multi_index)} coordinates for {len(dims)} dimensions"
        )
    flat = as_array(multi_index[0])
    for places, n in zip(multi_index[1:], dims[1:], strict=True):
        flat = flat * n + places
    return flat


def apply_along_axis(function: Callable[[Array], ArrayLike], axis: int, x: ArrayLike) -> Array:
    """`function` of every vector of `x` along `axis`; it runs once, for all of them (see `vmap`).

    Args:
        function: takes an Array (n,), gives an Array or a number.

    Returns:
        An array with the result's axes in place of `axis`.
    """
    x = as_array(x)
    axis = rules.axis_index(axis, x.ndim)
    last = moveaxis(x, axis, -1)
    lead = last.shape[:-1]
    rows: Array = vmap(lambda row: as_array(function(row)))(
        reshape_to(last, (x.size // max(1, last.shape[-1]), last.shape[-1]))
    )
    found = reshape_to(rows, (*lead, *rows.shape[1:]))
    own = range(len(lead), found.ndim)
    return moveaxis(found, tuple(own), tuple(range(axis, axis + len(own))))


def apply_over_axes(
    func: Callable[[Array, int], ArrayLike], a: ArrayLike, axes: int | Sequence[int]
) -> Array:
    """`func(a, axis)` for one axis after the other; axes that it takes away come back with size 1.

    Raises:
        ValueError: when a result has another number of axes.

    Examples:
        >>> kc.apply_over_axes(kc.sum, kc.ones((2, 3)), [0, 1]).tolist()
        [[6.0]]
    """
    x = as_array(a)
    rank = x.ndim
    for axis in (axes,) if isinstance(axes, int) else axes:
        axis = rules.axis_index(axis, rank)
        found = as_array(func(x, axis))
        if found.ndim == rank - 1:
            found = reshape_to(found, (*found.shape[:axis], 1, *found.shape[axis:]))
        if found.ndim != rank:
            raise ValueError(
                f"apply_over_axes: the function gave {found.ndim} axes for an array of {rank}"
            )
        x = found
    return x


def array_equiv(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Whether two arrays have the same elements after broadcasting: a bool of shape ().

    Examples:
        >>> bool(kc.array_equiv([1, 1], 1)), bool(kc.array_equiv([1, 2], [1, 2, 3]))
        (True, False)
    """
    a, b = as_array(x1), as_array(x2)
    try:
        rules.broadcast(a.shape, b.shape)
    except ValueError:
        return scalar(False, bool_)
    return every(equal(a, b))


def block(arrays: Any) -> Array:
    """One array from nested lists of blocks: innermost lists are joined along the last axis, the
    lists around them along the one before, and so on.

    Raises:
        TypeError: for tuples, which are no lists of blocks.
        ValueError: for empty lists, lists of different depths, and blocks that do not fit.

    Examples:
        >>> kc.block([[kc.ones((1, 2)), kc.zeros((1, 1))], [kc.full((1, 3), 5.0)]]).tolist()
        [[1.0, 1.0, 0.0], [5.0, 5.0, 5.0]]
    """
    depth = _depth(arrays)
    if not depth:
        return as_array(arrays)
    blocks: list[Array] = []
    tree = _leaves(arrays, blocks)
    rank = max(depth, *(x.ndim for x in blocks))
    wide = [reshape_to(x, (1,) * (rank - x.ndim) + x.shape) for x in blocks]

    def joined(part: Any, level: int) -> Array:
        if isinstance(part, int):
            return wide[part]
        return concatenate([joined(p, level - 1) for p in part], -level)

    return joined(tree, depth)


def _depth(arrays: Any) -> int:
    if isinstance(arrays, tuple):
        raise TypeError("block takes lists of blocks, not tuples")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError("block: a list of blocks is empty")
    depths = {_depth(part) for part in arrays}
    if len(depths) > 1:
        raise ValueError("block: lists are nested to different depths")
    return depths.pop() + 1


def _leaves(arrays: Any, found: list[Array]) -> Any:
    """The tree with a number in place of each block."""
    if isinstance(arrays, list):
        return [_leaves(part, found) for part in arrays]
    found.append(as_array(arrays))
    return len(found) - 1


def resize(x: ArrayLike, new_shape: int | Sequence[int]) -> Array:
    """An array of another shape with the elements of `x`, repeated where there are too few.

    Raises:
        ValueError: for negative sizes.

    Examples:
        >>> kc.resize([1, 2, 3], (2, 4)).tolist()
        [[1, 2, 3, 1], [2, 3, 1, 2]]
    """
    flat = ravel(x)
    shape = rules.normalize_shape(new_shape)
    count = math.prod(shape)
    if not flat.size or not count:
        return expand_to(scalar(0, flat.dtype), shape)
    if count > flat.size:
        flat = tile(flat, -(-count // flat.size))
    return reshape_to(window(flat, 0, 0, count), shape)


def rollaxis(x: ArrayLike, axis: int, start: int = 0) -> Array:
    """`x` with `axis` moved to before the axis that lies at `start`; `moveaxis` is clearer.

    Raises:
        ValueError: for axes out of range.

    Examples:
        >>> kc.rollaxis(kc.ones((2, 3, 4)), 2).shape
        (4, 2, 3)
    """
    x = as_array(x)
    axis = rules.axis_index(axis, x.ndim)
    start = rules.axis_index(start, x.ndim + 1, "start")
    return moveaxis(x, axis, start - (axis < start))


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Array:
    """`filt` without the zeros around it; where they end is read.

    Args:
        trim: "f" for those in front, "b" for those at the back, or both.
        axis: axes to trim; all by default.

    Raises:
        ValueError: for other letters.

    Examples:
        >>> kc.trim_zeros([0, 0, 1, 0, 2, 0]).tolist()
        [1, 0, 2]
    """
    x = as_array(filt)
    if not trim or set(trim.lower()) - set("fb"):
        raise ValueError(f'trim_zeros: trim is "f", "b" or "fb", not {trim!r}')
    filled = not_equal(x, 0)
    for a in rules.axes_tuple(axis, x.ndim):
        others = tuple(k for k in range(x.ndim) if k != a)
        host.count("places")
        found = np.flatnonzero(some(filled, others).numpy())
        n = x.shape[a]
        front, back = (int(found[0]), int(found[-1]) + 1) if found.size else (n, n)
        if not found.size and "f" not in trim.lower():
            front, back = 0, 0
        low = front if "f" in trim.lower() else 0
        x = window(x, a, low, max(low, back if "b" in trim.lower() else n))
    return x
