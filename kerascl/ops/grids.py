"""Grids of coordinates, and NumPy's short forms for writing arrays with square brackets."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.types import ShapeLike
from kerascl.dtypes import DTypeLike, as_dtype, float32, int32
from kerascl.ops.creation import arange, linspace, ones
from kerascl.ops.declare import as_array, cast_to, convert, is_scalar
from kerascl.ops.dtype_functions import result_type
from kerascl.ops.indexing import nonzero
from kerascl.ops.movement import concatenate, iota, stack, swapaxes, transpose
from kerascl.ops.pieces import tril_indices, triu_indices
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "broadcast_shapes", "diag_indices", "diag_indices_from", "fromfunction", "indices", "ix_",
    "mask_indices", "tril_indices_from", "triu_indices_from",
]  # fmt: skip

index_exp, s_ = np.index_exp, np.s_


def _steps(part: slice) -> Array:
    """`start:stop:step` as `arange`; an imaginary step says how many, with both ends."""
    start = 0 if part.start is None else part.start
    step = 1 if part.step is None else part.step
    if part.stop is None:
        raise ValueError("a slice of a grid needs an end, such as 0:5")
    if isinstance(step, complex):
        return linspace(start, part.stop, int(abs(step)))
    return arange(start, part.stop, step)


class _Grid:
    """Coordinates of a grid, from slices in square brackets."""

    def __init__(self, sparse: bool):
        self._sparse = sparse

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Any:
        if isinstance(key, slice):
            return _steps(key)
        lines, _ = convert([_steps(part) for part in key])
        rank = len(lines)
        axes = [reshape_to(x, (*[1] * k, x.size, *[1] * (rank - k - 1)))
                for k, x in enumerate(lines)]  # fmt: skip
        if self._sparse:
            return tuple(axes)
        shape = tuple(x.size for x in lines)
        return stack([expand_to(x, shape) for x in axes])

    def __repr__(self) -> str:
        return f"kerascl.{'ogrid' if self._sparse else 'mgrid'}"


mgrid, ogrid = _Grid(False), _Grid(True)


class _Joiner:
    """Arrays, numbers and slices in square brackets, joined along an axis."""

    def __init__(self, name: str, axis: int, rank: int, place: int):
        self._name, self._settings = name, (axis, rank, place)

    def __getitem__(self, key: Any) -> Array:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, rank, place = self._settings
        if parts and isinstance(parts[0], str):
            axis, rank, place = self._directive(parts.pop(0))
        made: list[Any] = []
        for part in parts:
            if isinstance(part, slice):
                x = _steps(part)
                wide = reshape_to(x, (*[1] * (rank - 1), x.size))
                made.append(swapaxes(wide, -1, place) if rank > 1 and place != -1 else wide)
            elif is_scalar(part):
                made.append(part)
            else:
                made.append(_widened(as_array(part), rank, place))
        if not made:
            raise ValueError(f"{self._name}[...] needs something to join")
        dtype = result_type(*made)
        one = (1,) * max(1, rank)
        arrays = [reshape_to(as_array(x), one) if is_scalar(x) else x for x in made]
        return concatenate([cast_to(x, dtype) for x in arrays], axis)

    def _directive(self, text: str) -> tuple[int, int, int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3:
            raise ValueError(
                f"{self._name}: {text!r} is no directive; write one to three integers, such as "
                '"-1" or "0,2,1" (there are no matrices)'
            )
        axis, rank, place = self._settings
        return tuple(numbers + [axis, rank, place][len(numbers) :])  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"kerascl.{self._name}"


def _widened(x: Array, rank: int, place: int) -> Array:
    """`x` with axes of size 1, so that it has `rank`; its own come first at `place`."""
    added = rank - x.ndim
    if added <= 0:
        return x
    wide = reshape_to(x, (*[1] * added, *x.shape))
    if place == -1:
        return wide
    front = place + added + 1 if place < 0 else place
    order = list(range(rank))
    return transpose(wide, order[:front] + order[added:] + order[front:added])


r_, c_ = _Joiner("r_", 0, 1, -1), _Joiner("c_", -1, 2, 0)


def ix_(*args: ArrayLike) -> tuple[Array, ...]:
    """Indices that select the rows, columns, … given, each with each: `x[kc.ix_([0, 2], [1, 3])]`.

    Args:
        args: vectors of integers, or masks, of which the number of elements is read.

    Raises:
        ValueError: for what is no vector.

    Examples:
        >>> [x.shape for x in kc.ix_([0, 2], [1, 3, 4])]
        [(2, 1), (1, 3)]
    """
    made = []
    for k, part in enumerate(args):
        x = as_array(part)
        x = x if x.size else cast_to(x, int32)
        if x.ndim != 1:
            raise ValueError(f"ix_: argument {k} has shape {x.shape}; give vectors")
        if x.dtype.is_bool:
            (x,) = nonzero(x)
        made.append(reshape_to(x, (*[1] * k, x.size, *[1] * (len(args) - k - 1))))
    return tuple(made)


def indices(dimensions: Sequence[int], dtype: DTypeLike = int32, sparse: bool = False) -> Any:
    """The coordinates of every element of an array of shape `dimensions`.

    Returns:
        An array (len(dimensions), *dimensions); with `sparse` a tuple of arrays that broadcast to
        those.

    Examples:
        >>> kc.indices((2, 2)).tolist()
        [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    shape = rules.normalize_shape(tuple(dimensions))
    rank = len(shape)
    kind = as_dtype(dtype)
    thin = [tuple(n if a == k else 1 for a in range(rank)) for k, n in enumerate(shape)]
    axes = [cast_to(iota(one, k), kind) for k, one in enumerate(thin)]
    if sparse:
        return tuple(axes)
    if not axes:
        return as_array(np.zeros((0,), kind.numpy))
    return stack([expand_to(x, shape) for x in axes])


def fromfunction(
    function: Callable[..., Any], shape: ShapeLike, dtype: DTypeLike = float32, **kwargs: Any
) -> Any:
    """What `function` gives for the coordinates of an array of `shape`, one array for each axis.

    Examples:
        >>> kc.fromfunction(lambda i, j: i + j, (2, 2), dtype=int).tolist()
        [[0, 1], [1, 2]]
    """
    return function(*indices(rules.normalize_shape(shape), dtype), **kwargs)


def broadcast_shapes(*shapes: ShapeLike) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    Raises:
        ValueError: for shapes that do not fit.

    Examples:
        >>> kc.broadcast_shapes((3, 1), (4,))
        (3, 4)
    """
    return rules.broadcast(*(rules.normalize_shape(shape) for shape in shapes))


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """int32 indices of the main diagonal of an array with `ndim` axes of size `n`.

    Examples:
        >>> [x.tolist() for x in kc.diag_indices(2)]
        [[0, 1], [0, 1]]
    """
    return (iota((operator.index(n),), 0),) * ndim


def diag_indices_from(x: ArrayLike) -> tuple[Array, ...]:
    """`diag_indices` for an array.

    Raises:
        ValueError: for less than two axes, and for axes of different sizes.

    Examples:
        >>> kc.diag_indices_from(kc.eye(3))[0].tolist()
        [0, 1, 2]
    """
    shape = as_array(x).shape
    if len(shape) < 2 or len(set(shape)) > 1:
        raise ValueError(f"diag_indices_from needs axes of one size, two at least, got {shape}")
    return diag_indices(shape[0], len(shape))


def _matrix(x: ArrayLike, name: str) -> tuple[int, int]:
    shape = as_array(x).shape
    if len(shape) != 2:
        raise ValueError(f"{name} needs a matrix, got shape {shape}")
    return shape[0], shape[1]


def tril_indices_from(x: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """`tril_indices` for a matrix.

    Raises:
        ValueError: for other than two dimensions.

    Examples:
        >>> [i.tolist() for i in kc.tril_indices_from(kc.eye(2))]
        [[0, 1, 1], [0, 0, 1]]
    """
    rows, columns = _matrix(x, "tril_indices_from")
    return tril_indices(rows, k, columns)


def triu_indices_from(x: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """`triu_indices` for a matrix.

    Raises:
        ValueError: for other than two dimensions.

    Examples:
        >>> [i.tolist() for i in kc.triu_indices_from(kc.eye(2))]
        [[0, 0, 1], [0, 1, 1]]
    """
    rows, columns = _matrix(x, "triu_indices_from")
    return triu_indices(rows, k, columns)


def mask_indices(n: int, mask_func: Callable[..., ArrayLike], k: Any = 0) -> tuple[Array, ...]:
    """Indices of the elements of an (n, n) matrix that `mask_func(matrix, k)` leaves.

    Examples:
        >>> [i.tolist() for i in kc.mask_indices(2, kc.triu)]
        [[0, 0, 1], [0, 1, 1]]
    """
    return nonzero(as_array(mask_func(ones((n, n), int32), k)))
