"""Which results of `keras.ops` on sparse arrays stay sparse.

Functions with a rule look for `SparseArray` themselves and call it; all others turn sparse
arguments into dense ones where they make Arrays of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from keras.src.backend.common.backend_utils import canonicalize_axis

from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core import rules
from kerascl.core.array import Array
from kerascl.dtypes import DType, int32
from kerascl.ops import host, movement, pointwise, sparse
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to
from kerascl.ops.sparse import SparseArray
from kerascl.ops.views import expand_to, reshape_to

# Elementwise functions with f(0) = 0 keep the places; those that are linear need not add up
# places that are listed twice.
ZERO_PRESERVING = frozenset(
    (
        "abs", "absolute", "arcsin", "arcsinh", "arctan", "arctanh", "ceil", "expm1", "fabs",
        "floor", "log1p", "sign", "signbit", "sin", "sinh", "sqrt", "square",
        "tan", "tanh",
    )
)  # fmt: skip
LINEAR = frozenset(("conj", "conjugate", "imag", "negative", "real"))


def is_sparse(x) -> bool:
    """Whether `x` is a SparseArray."""
    return type(x) is SparseArray


def united(function: Callable, x1, x2, linear: bool):
    """A function with f(0, 0) = 0: sparse for two sparse arrays of one shape, else dense."""
    if is_sparse(x1) and is_sparse(x2) and x1.shape == x2.shape:
        return sparse.union(function, x1, x2, linear)
    return function(_dense(x1), _dense(x2))


def _dense(x):
    return sparse.to_dense(x) if is_sparse(x) else x


def multiplied(function: Callable, x1, x2):
    """Products at the places of x1, or of x2 where only that is sparse.

    Elements that are not listed give 0, beside infinities and NaN as well.
    """
    if is_sparse(x1) and is_sparse(x2):
        if x1.shape != x2.shape:
            return function(sparse.to_dense(x1), sparse.to_dense(x2))
        x1, x2 = sparse.same_form(x1, x2)
        x2 = sparse.coalesce(x2)
        return sparse.like(x1, function(x1.values, sparse.looked_up(x2, x1.indices)))
    x, other = (x1, x2) if is_sparse(x1) else (x2, x1)
    if type(other) not in (int, float, bool):
        other = convert_to_tensor(other)
        if rules.broadcast(x.shape, other.shape) != x.shape:
            return function(_dense(x1), _dense(x2))
        other = sparse.at_places(x, other)
    return sparse.like(x, function(x.values, other) if x is x1 else function(other, x.values))


def divided(function: Callable, x1, x2):
    """Quotients: sparse for a dense divisor; where that is 0 or NaN, places are listed, too."""
    if is_sparse(x2):
        return function(_dense(x1), sparse.to_dense(x2))
    if type(x2) in (int, float, bool):
        if x2 == 0 or x2 != x2:
            return function(sparse.to_dense(x1), x2)
        return sparse.like(x1, function(x1.values, x2))
    x2 = convert_to_tensor(x2)
    if rules.broadcast(x1.shape, x2.shape) != x1.shape:
        return function(sparse.to_dense(x1), x2)
    empty = pointwise.logical_or(pointwise.equal(x2, 0), pointwise.not_equal(x2, x2))
    more = sparse.from_dense(expand_to(empty, x1.shape), x1.n_dense)
    if more.nse:
        x1 = sparse.with_places_of(x1, more)
    return sparse.like(x1, function(x1.values, sparse.at_places(x1, x2)))


BINARY = {
    "add": functools.partial(united, linear=True),
    "subtract": functools.partial(united, linear=True),
    "maximum": functools.partial(united, linear=False),
    "minimum": functools.partial(united, linear=False),
    "fmax": functools.partial(united, linear=False),
    "fmin": functools.partial(united, linear=False),
    "multiply": multiplied,
    "divide": divided,
    "true_divide": divided,
    "divide_no_nan": divided,
}


def digitized(function: Callable, x: SparseArray, bins: Array):
    """Bins of the values; dense where 0 itself is not in the first bin, read on the host."""
    host.count("sparse")
    if bins.size and not bool(pointwise.greater(bins[0], 0).item()):
        return function(sparse.to_dense(x), bins)
    return sparse.mapped(function, x, bins)


def matrix_product(function: Callable, x1, x2, dtype: DType):
    """Products of matrices or batches of them; sparse for two sparse operands."""
    same = len(x1.shape) == len(x2.shape) >= 2 and x1.shape[:-2] == x2.shape[:-2]
    if not same or x1.shape[-1] != x2.shape[-2] or dtype.is_bool:
        return function(_dense(x1), _dense(x2))
    x1, x2 = _as(x1, dtype), _as(x2, dtype)
    if is_sparse(x1):
        return sparse.times_sparse(x1, x2) if is_sparse(x2) else sparse.times_dense(x1, x2)
    return movement.swapaxes(sparse.times_dense(_turned(x2), movement.swapaxes(x1, -1, -2)), -1, -2)


def _as(x, dtype: DType):
    return sparse.like(x, cast_to(x.values, dtype)) if is_sparse(x) else cast_to(x, dtype)


def _turned(x: SparseArray) -> SparseArray:
    n = x.ndim
    return sparse.transpose(x, (*range(n - 2), n - 1, n - 2))


# -- reductions and axes ----------------------------------------------------------
def summed(x: SparseArray, axis, keepdims: bool) -> SparseArray:
    """Sums over `axis`."""
    axes = sparse.normal_axes(axis, x.ndim)
    result = sparse.total(x, axes)
    return sparse.expand_dims(result, axes) if keepdims and axes else result


def averaged(x: SparseArray, axis, keepdims: bool) -> SparseArray:
    """Means over `axis`."""
    count = math.prod(x.shape[a] for a in sparse.normal_axes(axis, x.ndim))
    dtype = x.dtype
    wide = sparse.like(x, cast_to(x.values, dtype.accumulator if dtype.is_float else dtype))
    result = summed(wide, axis, keepdims)
    return sparse.like(result, cast_to(result.values / count, dtype))


def reshaped(x: SparseArray, newshape) -> SparseArray:
    """The elements in another shape."""
    newshape = (newshape,) if isinstance(newshape, int) else tuple(newshape)
    known = math.prod(n for n in newshape if n != -1)
    rest = x.size // known if known else 0
    shape = tuple(rest if n == -1 else int(n) for n in newshape)
    if newshape.count(-1) > 1 or math.prod(shape) != x.size:
        raise ValueError(f"cannot reshape a sparse array of shape {x.shape} to {newshape}")
    return sparse.reshape(x, shape)


def expanded(x: SparseArray, axis) -> SparseArray:
    """New axes of size 1."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return sparse.expand_dims(x, sparse.normal_axes(axes, x.ndim + len(axes)))


def squeezed(x: SparseArray, axis) -> SparseArray:
    """Without axes of size 1."""
    if axis is None:
        axes = tuple(a for a, n in enumerate(x.shape) if n == 1)
    else:
        axes = sparse.normal_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axis {axis} of shape {x.shape} has another size than 1")
    return sparse.squeeze(x, axes)


def transposed(x: SparseArray, axes) -> SparseArray:
    """With its axes permuted."""
    order = range(x.ndim)[::-1] if axes is None else [canonicalize_axis(a, x.ndim) for a in axes]
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(f"transpose: axes {axes} are no permutation for shape {x.shape}")
    return sparse.transpose(x, tuple(order))


def joined(xs, axis: int, dtype: DType) -> SparseArray:
    """Sparse arrays joined along `axis`."""
    axis = canonicalize_axis(axis, xs[0].ndim)
    return sparse.concatenate([_as(x, dtype) for x in xs], axis)


# -- codes -------------------------------------------------------------------------
def one_hot(x: Array, num_classes: int, axis: int, dtype: DType) -> SparseArray:
    """1 at each index along a new `axis`; those out of range get a listed 0, so sizes are known."""
    axis = axis + x.ndim + 1 if axis < 0 else axis
    flat = cast_to(reshape_to(x, (x.size,)), int32)
    inside = pointwise.logical_and(flat >= 0, flat < num_classes)
    coordinates = sparse.places(movement.iota((x.size,), 0), x.shape)
    columns = [coordinates[:, a] for a in range(x.ndim)]
    columns.insert(axis, pointwise.where(inside, flat, 0))
    shape = (*x.shape[:axis], num_classes, *x.shape[axis:])
    last = axis == x.ndim  # else they are not in order
    return SparseArray(
        cast_to(inside, dtype), sparse.columns_of(columns, x.size), shape, unique=last
    )


def multi_hot(x: Array, num_classes: int, axis: int, dtype: DType) -> SparseArray:
    """The union of the one-hot codes of each row."""
    codes = one_hot(x, num_classes, axis, int32)
    codes = sparse.coalesce(sparse.total(codes, (1 if x.ndim > 1 else 0,)))
    return sparse.like(codes, cast_to(pointwise.greater(codes.values, 0), dtype))


def counts(x: Array, weights: Array | None, minlength: int) -> SparseArray:
    """How often each number occurs along the last axis; the largest is read on the host."""
    return sparse.coalesce(sparse.total(counts_of_each(x, weights, minlength), (x.ndim - 1,)))


def counts_of_each(x: Array, weights: Array | None, minlength: int) -> SparseArray:
    """The one-hot code of each number, times its weight."""
    host.count("bincount")
    top = int(x.numpy().max()) + 1 if x.size else 0
    codes = one_hot(x, max(top, minlength), -1, int32 if weights is None else weights.dtype)
    if weights is not None:
        codes = sparse.like(codes, codes.values * reshape_to(weights, (weights.size,)))
    return codes


def counts_in_rows(x: SparseArray, weights: Array | None, minlength: int) -> SparseArray:
    """How often each number is listed, in each row of a matrix; the largest is read on the host."""
    codes = counts_of_each(x.values, weights, minlength)
    if x.ndim == 2:
        indices = movement.concatenate([x.indices[:, :1], codes.indices[:, 1:]], 1)
        codes = SparseArray(codes.values, indices, (x.shape[0], codes.shape[1]))
        return sparse.coalesce(codes)
    return sparse.coalesce(sparse.total(codes, (0,)))


def stand_in(shape: tuple[int, ...], dtype: DType) -> SparseArray:
    """A sparse array of some shape, with one place listed, to try a function on."""
    ones, zeros = full((1,), 1, dtype), full((1, len(shape)), 0, int32)
    return SparseArray(ones, zeros, shape, True)
