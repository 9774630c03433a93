"""Sparse arrays: coordinates and values on the device, and what keeps them sparse.

A sparse array lists places of its first axes; its values may have further, dense axes (rows of an
embedding's gradient). Places may be listed more than once: their values add up. Sizes that depend
on data (how many different places there are) are read on the host, so a captured function gets a
CaptureError where such a size is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.types import Axes
from kerascl.dtypes import DType, DTypeLike, as_dtype, int32, int64
from kerascl.ops import host, indexing, movement, pointwise, reduction, sets, sorting
from kerascl.ops.creation import full
from kerascl.ops.declare import SUM, as_array, cast_to
from kerascl.ops.gather import scatter_rows, take
from kerascl.ops.scan import cumsum
from kerascl.ops.views import expand_to, reshape_to


class SparseArray:
    """An array that holds only some of its elements; all others are 0.

    Args:
        values: Array (count, *dense axes).
        indices: integer Array (count, sparse axes): places along the first axes, in range.
        shape: of the whole array: the sparse axes, then the dense ones.
        unique: whether each place is known to be listed once, in ascending order.

    Raises:
        ValueError: when values, indices and shape do not fit each other.
    """

    __slots__ = ("__dict__", "__weakref__", "_keras_mask", "indices", "shape", "unique", "values")
    __array_priority__ = 1001

    def __init__(
        self, values: ArrayLike, indices: ArrayLike, shape: Sequence[int], unique: bool = False
    ) -> None:
        values, indices = as_array(values), cast_to(as_array(indices), int32)
        shape = tuple(int(n) for n in shape)
        k = indices.shape[-1] if indices.ndim == 2 else -1
        if k < 0 or values.shape != (indices.shape[0], *shape[k:]) or k > len(shape):
            raise ValueError(
                f"values {values.shape} and indices {indices.shape} do not fit a sparse array of "
                f"shape {shape}"
            )
        self.values, self.indices, self.shape, self.unique = values, indices, shape, unique

    @property
    def dtype(self) -> DType:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are, sparse and dense."""
        return len(self.shape)

    @property
    def n_dense(self) -> int:
        """How many axes at the end are dense."""
        return self.values.ndim - 1

    @property
    def nse(self) -> int:
        """How many places are listed."""
        return self.indices.shape[0]

    @property
    def size(self) -> int:
        """How many elements the dense array has."""
        return math.prod(self.shape)

    @property
    def lead(self) -> tuple[int, ...]:
        """The sizes of the sparse axes."""
        return self.shape[: self.indices.shape[1]]

    def to_dense(self) -> Array:
        """The Array with all its elements."""
        return to_dense(self)

    def astype(self, dtype: DTypeLike) -> SparseArray:
        """The same places with values in another dtype."""
        return like(self, cast_to(self.values, as_dtype(dtype)))

    def sum_duplicates(self) -> SparseArray:
        """Each place once, in ascending order; their number is read on the host."""
        return coalesce(self)

    def numpy(self) -> np.ndarray:
        """The dense value on the host."""
        return self.to_dense().numpy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.to_dense().__array__(dtype, copy)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a sparse array of shape ()")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.to_dense())

    def __hash__(self) -> int:
        return id(self)

    def __deepcopy__(self, memo: object) -> SparseArray:
        return self  # arrays never change

    def __repr__(self) -> str:
        return (
            f"<kerascl.SparseArray shape={self.shape}, dtype={self.dtype.name}, nse={self.nse}, "
            f"n_dense={self.n_dense}>"
        )

    def __reduce__(self) -> tuple[type[SparseArray], tuple[Any, ...]]:
        return SparseArray, (self.values, self.indices, self.shape, self.unique)


def like(x: SparseArray, values: Array) -> SparseArray:
    """Other values at the places of `x`."""
    return SparseArray(values, x.indices, x.shape, x.unique)


def mapped(
    function: Callable[..., Any], x: SparseArray, *more: Any, linear: bool = False, **named: Any
) -> SparseArray:
    """An elementwise `function`, which must keep 0, of the values.

    Args:
        linear: whether f(a + b) = f(a) + f(b), so that places may be listed twice.
    """
    x = x if linear else coalesce(x)
    return like(x, function(x.values, *more, **named))


# -- places -------------------------------------------------------------------
def positions(indices: Array, lead: tuple[int, ...]) -> Array:
    """The number in row-major order of each place (count, axes): int64 where int32 is too small."""
    kind = int32 if math.prod(lead) < 2**31 else int64
    result = full((indices.shape[0],), 0, kind)
    for axis, size in enumerate(lead):
        result = result * size + cast_to(indices[:, axis], kind)
    return result


def places(position: Array, lead: tuple[int, ...]) -> Array:
    """The int32 place (count, axes) of each number in row-major order."""
    columns = []
    for size in reversed(lead):
        columns.append(cast_to(position % max(size, 1), int32))
        position = position // max(size, 1)
    return columns_of(columns[::-1], position.shape[0])


def columns_of(columns: Sequence[Array], count: int) -> Array:
    """Indices (count, axes) of one int32 Array for each axis."""
    if not columns:
        return full((count, 0), 0, int32)
    return movement.stack(list(columns), 1)


def coalesce(x: SparseArray) -> SparseArray:
    """`x` with each place once, in ascending order; how many there are is read on the host."""
    if x.unique:
        return x
    if not x.nse:
        return SparseArray(x.values, x.indices, x.shape, True)
    found, number = sets.unique(positions(x.indices, x.lead), return_inverse=True)
    values = _summed_rows(x.values, number, found.shape[0])
    return SparseArray(values, places(found, x.lead), x.shape, True)


def _summed_rows(values: Array, number: Array, count: int) -> Array:
    """Sums of the rows of `values` with the same `number`, in their dtype."""
    wide = cast_to(values, int32) if values.dtype.is_bool else values
    return cast_to(sorting.segment_sum(wide, number, count), values.dtype)


def flattened(x: SparseArray) -> SparseArray:
    """`x` with sparse axes only."""
    if not x.n_dense:
        return x
    rest = x.shape[len(x.lead) :]
    width = math.prod(rest)
    count = x.nse * width
    shape = (x.nse, width)
    columns = [
        reshape_to(expand_to(reshape_to(x.indices[:, a], (x.nse, 1)), shape), (count,))
        for a in range(len(x.lead))
    ]
    inner = places(movement.iota((width,), 0), rest)
    columns += [
        reshape_to(expand_to(reshape_to(inner[:, a], (1, width)), shape), (count,))
        for a in range(len(rest))
    ]
    values = reshape_to(x.values, (count,))
    return SparseArray(values, columns_of(columns, count), x.shape, x.unique)


def with_places_of(x: SparseArray, other: SparseArray) -> SparseArray:
    """`x` with zeros listed where `other` lists a place; each place once."""
    nothing = full((other.nse, *x.values.shape[1:]), 0, x.dtype)
    return coalesce(
        SparseArray(
            movement.concatenate([x.values, nothing], 0),
            movement.concatenate([x.indices, other.indices], 0),
            x.shape,
        )
    )


def same_form(a: SparseArray, b: SparseArray) -> tuple[SparseArray, SparseArray]:
    """Both with as many dense axes."""
    return (a, b) if a.n_dense == b.n_dense else (flattened(a), flattened(b))


# -- dense to sparse and back ---------------------------------------------------
def to_dense(x: SparseArray) -> Array:
    """The Array of all elements."""
    rest = x.shape[len(x.lead) :]
    rows, width = math.prod(x.lead), math.prod(rest)
    kind = int32 if x.dtype.is_bool else x.dtype
    if not (x.nse and rows and width):
        return full(x.shape, 0, x.dtype)
    base = full((rows, width), 0, kind)
    updates = reshape_to(cast_to(x.values, kind), (x.nse, width))
    dense = scatter_rows(base, positions(x.indices, x.lead), updates, "add")
    return cast_to(reshape_to(dense, x.shape), x.dtype)


def from_dense(x: ArrayLike, n_dense: int = 0) -> SparseArray:
    """The elements that are not 0, or the rows with one of them; their number is read on the host.

    Args:
        n_dense: how many axes at the end stay dense.
    """
    x = as_array(x)
    k = x.ndim - n_dense
    mask = pointwise.not_equal(x, 0)
    if n_dense:
        mask = reduction.any(mask, tuple(range(k, x.ndim)))
    found = indexing.selected(reshape_to(mask, (mask.size,)), "sparse")
    rows = reshape_to(x, (mask.size, *x.shape[k:]))
    return SparseArray(take(rows, found, 0), places(found, x.shape[:k]), x.shape, True)


# -- elementwise with two arrays ------------------------------------------------
def union(
    function: Callable[..., Array], a: SparseArray, b: SparseArray, linear: bool
) -> SparseArray:
    """f(a, b) at the places that either lists, for f(0, 0) = 0 and arrays of one shape.

    Args:
        linear: whether f(a + c, b) = f(a, b) + f(c, 0), and so for b.
    """
    a, b = same_form(a, b)
    if a.indices is b.indices and (linear or a.unique and b.unique):
        return like(a, function(a.values, b.values))
    if not linear:
        a, b = with_places_of(a, b), with_places_of(b, a)
        return like(a, function(a.values, b.values))
    left = function(a.values, full(a.values.shape, 0, b.dtype))
    right = function(full(b.values.shape, 0, a.dtype), b.values)
    return SparseArray(
        movement.concatenate([left, right], 0),
        movement.concatenate([a.indices, b.indices], 0),
        a.shape,
    )


def at_places(x: SparseArray, dense: Array) -> Array:
    """The elements of `dense`, which broadcasts to the shape of `x`, where `x` has its values."""
    if dense.ndim == 0:
        return dense
    k = len(x.lead)
    shape = (1,) * (x.ndim - dense.ndim) + dense.shape
    rows = reshape_to(dense, (math.prod(shape[:k]), *shape[k:]))
    columns = [x.indices[:, a] for a in range(k) if shape[a] > 1]
    sizes = tuple(n for n in shape[:k] if n > 1)
    return take(rows, positions(columns_of(columns, x.nse), sizes), 0)


def looked_up(x: SparseArray, at: Array) -> Array:
    """The values of `x` at indices (count, axes); 0 where it lists none."""
    x = coalesce(x)
    if not x.nse:
        return full((at.shape[0], *x.values.shape[1:]), 0, x.dtype)
    have, wanted = positions(x.indices, x.lead), positions(at, x.lead)
    place = pointwise.minimum(sorting.searchsorted(have, wanted), x.nse - 1)
    here = pointwise.equal(take(have, place, 0), wanted)
    here = reshape_to(here, (at.shape[0],) + (1,) * x.n_dense)
    return pointwise.where(here, take(x.values, place, 0), 0)


# -- axes -------------------------------------------------------------------------
def total(x: SparseArray, axes: Sequence[int]) -> SparseArray:
    """Sums over `axes`."""
    k = len(x.lead)
    dense = tuple(a - k + 1 for a in axes if a >= k)
    values = SUM(x.values, dense) if dense else x.values
    kept = [a for a in range(k) if a not in axes]
    indices = columns_of([x.indices[:, a] for a in kept], x.nse)
    shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    return SparseArray(values, indices, shape, x.unique and len(kept) == k)


def reshape(x: SparseArray, shape: Sequence[int]) -> SparseArray:
    """The elements in the same order in another shape, without -1."""
    x = flattened(x)
    indices = places(positions(x.indices, x.shape), tuple(shape))
    return SparseArray(x.values, indices, shape, x.unique)


def expand_dims(x: SparseArray, axes: Sequence[int]) -> SparseArray:
    """New axes of size 1 at `axes` of the result."""
    shape = list(x.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    if not x.n_dense:
        old = iter(range(x.ndim))
        zero = full((x.nse,), 0, int32)
        columns = [zero if a in axes else x.indices[:, next(old)] for a in range(len(shape))]
        return SparseArray(x.values, columns_of(columns, x.nse), shape, x.unique)
    return reshape(x, shape)


def squeeze(x: SparseArray, axes: Sequence[int]) -> SparseArray:
    """`x` without `axes`, which have size 1."""
    return total(x, axes) if all(a < len(x.lead) for a in axes) else _dense_squeeze(x, axes)


def _dense_squeeze(x: SparseArray, axes: Sequence[int]) -> SparseArray:
    return reshape(x, [n for a, n in enumerate(x.shape) if a not in axes])


def transpose(x: SparseArray, axes: Sequence[int]) -> SparseArray:
    """`x` with its axes permuted."""
    k = len(x.lead)
    if any(a >= k for a in axes[:k]):
        x, k = flattened(x), x.ndim
    indices = columns_of([x.indices[:, a] for a in axes[:k]], x.nse)
    values = movement.transpose(x.values, (0, *(a - k + 1 for a in axes[k:])))
    return SparseArray(values, indices, [x.shape[a] for a in axes])


def concatenate(xs: Sequence[SparseArray], axis: int) -> SparseArray:
    """Sparse arrays of one dtype joined along `axis`."""
    if len({x.n_dense for x in xs}) > 1 or axis >= len(xs[0].lead):
        xs = [flattened(x) for x in xs]
    shape = list(xs[0].shape)
    for x in xs[1:]:
        others = [a for a in range(x.ndim) if a != axis]
        if x.ndim != len(shape) or any(x.shape[a] != shape[a] for a in others):
            raise ValueError(f"concatenate: shapes {[x.shape for x in xs]} differ beside {axis}")
    parts, start = [], 0
    for x in xs:
        columns = [x.indices[:, a] for a in range(len(x.lead))]
        columns[axis] = columns[axis] + start
        parts.append(columns_of(columns, x.nse))
        start += x.shape[axis]
    shape[axis] = start
    values = movement.concatenate([x.values for x in xs], 0)
    return SparseArray(values, movement.concatenate(parts, 0), shape)


# -- products -----------------------------------------------------------------------
def times_dense(x: SparseArray, dense: Array) -> Array:
    """Matrix product with a dense Array of the same batch axes and dtype."""
    x = flattened(x)
    *batch, rows, inner = x.shape
    width, dtype = dense.shape[-1], x.dtype
    wide = dtype.accumulator if dtype.is_float else dtype
    result = (*batch, rows, width)
    if not (x.nse and math.prod(result)):
        return full(result, 0, dtype)
    left = columns_of([x.indices[:, a] for a in range(x.ndim) if a != x.ndim - 2], x.nse)
    right = take(_rows(dense), positions(left, (*batch, inner)), 0)
    products = reshape_to(cast_to(x.values, wide), (x.nse, 1)) * cast_to(right, wide)
    target = positions(x.indices[:, : x.ndim - 1], (*batch, rows))
    sums = sorting.segment_sum(products, target, math.prod(result[:-1]))
    return cast_to(reshape_to(sums, result), dtype)


def _rows(x: Array) -> Array:
    return reshape_to(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def times_sparse(a: SparseArray, b: SparseArray) -> SparseArray:
    """Matrix product of two sparse arrays of the same batch axes and dtype.

    Each value of `a` meets the values in one row of `b`; how many pairs that makes in all is read
    on the host.
    """
    a, b = flattened(a), coalesce(flattened(b))
    *batch, rows, inner = a.shape
    shape = (*batch, rows, b.shape[-1])
    wanted = columns_of([a.indices[:, k] for k in range(a.ndim) if k != a.ndim - 2], a.nse)
    wanted = positions(wanted, (*batch, inner))
    have = positions(b.indices[:, : b.ndim - 1], (*batch, inner))
    if not (a.nse and b.nse):
        return SparseArray(full((0,), 0, a.dtype), full((0, len(shape)), 0, int32), shape, True)
    first = sorting.searchsorted(have, wanted)
    count = sorting.searchsorted(have, wanted, "right") - first
    ends = cumsum(count, 0, int32)
    host.count("sparse")
    pairs = int(ends[-1].item())
    if not pairs:
        return SparseArray(full((0,), 0, a.dtype), full((0, len(shape)), 0, int32), shape, True)
    number = movement.iota((pairs,), 0)
    left = sorting.searchsorted(ends, number, "right")
    right = take(first - ends + count, left, 0) + number
    values = take(a.values, left, 0) * take(b.values, right, 0)
    column = take(b.indices[:, b.ndim - 1], right, 0)
    lead = take(a.indices[:, : a.ndim - 1], left, 0)
    indices = movement.concatenate([lead, reshape_to(column, (pairs, 1))], 1)
    return SparseArray(values, indices, shape)


def normal_axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    """All axes for None, else `axis` (a number or several) as numbers from 0, ascending."""
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    found = sorted(rules.axis_index(a, ndim) for a in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"repeated axis in {axis}")
    return tuple(found)
