"""`keras.ops.numpy`: reductions, statistics, sorting, products and cumulative operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from kerascl.backend.ops import sparse as rules
from kerascl.backend.ops.conversion import convert_to_tensor, find_dtype, literals
from kerascl.backend.ops.promotion import (
    as_float,
    at_least_float,
    float_dtype,
    floatx,
    named,
    pair,
    resolve,
    several,
    statistics_dtype,
    summed_dtype,
    tensors,
)
from kerascl.core.array import Array
from kerascl.dtypes import int8, int32
from kerascl.ops import (
    calculus,
    contraction,
    histograms,
    indexing,
    movement,
    pointwise,
    reduction,
    scan,
    sets,
    sorting,
    sparse,
)
from kerascl.ops.declare import cast_to, scalar
from kerascl.ops.sparse import SparseArray

__all__ = [
    "all", "allclose", "amax", "amin", "any", "argmax", "argmin", "argpartition", "argsort",
    "average", "bincount", "corrcoef", "correlate", "count_nonzero", "cross", "cumprod", "cumsum",
    "diff", "digitize", "dot", "einsum", "histogram", "inner", "isin", "kron", "matmul", "max",
    "mean", "median", "min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax",
    "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd",
    "nansum", "nanvar", "nonzero", "outer", "percentile", "prod", "ptp", "quantile",
    "searchsorted", "sort", "std", "sum", "tensordot", "trace", "trapezoid", "unique", "var",
    "vdot",
]  # fmt: skip


def _axis(axis):
    return tuple(axis) if isinstance(axis, list) else axis


# -- reductions ---------------------------------------------------------------
def _reduction(name: str, prepare: Callable = convert_to_tensor) -> Callable:
    run = getattr(reduction, name)

    def function(x, axis=None, keepdims=False) -> Array:
        return run(prepare(x), _axis(axis), keepdims)

    return named(name, function, run.__doc__)


def _summed(x) -> Array:
    x = convert_to_tensor(x)
    return cast_to(x, summed_dtype(x.dtype))


def _sum(name: str, narrow: Callable) -> Callable:
    """A sum or product in Keras' dtype."""
    run = getattr(reduction, name)

    def function(x, axis=None, keepdims=False) -> Array:
        x = convert_to_tensor(x)
        return run(x, _axis(axis), keepdims, narrow(summed_dtype(x.dtype)))

    return named(name, function, run.__doc__)


def _weak_float(x) -> Array:
    x = convert_to_tensor(x)
    return cast_to(x, resolve(x.dtype, float))


all = _reduction("all")
any = _reduction("any")
ptp = _reduction("ptp")
nanmax = _reduction("nanmax")
nanmin = _reduction("nanmin")
nanargmax = _reduction("nanargmax")
nanargmin = _reduction("nanargmin")
nansum = _sum("nansum", lambda dtype: dtype)
nanprod = _sum("nanprod", resolve)
std = _reduction("std", at_least_float)
var = _reduction("var", _weak_float)
nanmean = _reduction("nanmean", _weak_float)
nanstd = _reduction("nanstd", _weak_float)
nanvar = _reduction("nanvar", _weak_float)


def sum(x, axis=None, keepdims=False) -> Array | SparseArray:
    """Sum over `axis`."""
    if type(x) is SparseArray:
        return rules.summed(sparse.like(x, _summed(x.values)), axis, keepdims)
    x = _summed(x)
    return reduction.sum(x, _axis(axis), keepdims, x.dtype)


def mean(x, axis=None, keepdims=False) -> Array | SparseArray:
    """Arithmetic mean over `axis`."""
    if type(x) is SparseArray:
        kind = resolve(x.dtype, "float32") if x.dtype.is_integer or x.dtype.is_bool else x.dtype
        return rules.averaged(x.astype(kind), axis, keepdims)
    x = convert_to_tensor(x)
    if not (x.dtype.is_float or x.dtype.is_complex):
        x = cast_to(x, resolve(x.dtype, "float32"))
    return reduction.mean(x, _axis(axis), keepdims)


def max(x, axis=None, keepdims=False, initial=None) -> Array:
    """The largest element over `axis` (and `initial`)."""
    return reduction.max(convert_to_tensor(x), _axis(axis), keepdims, initial)


def min(x, axis=None, keepdims=False, initial=None) -> Array:
    """The smallest element over `axis` (and `initial`)."""
    return reduction.min(convert_to_tensor(x), _axis(axis), keepdims, initial)


def amax(x, axis=None, keepdims=False) -> Array:
    """The largest element over `axis`."""
    return max(x, axis, keepdims)


def amin(x, axis=None, keepdims=False) -> Array:
    """The smallest element over `axis`."""
    return min(x, axis, keepdims)


def _below_zero(x) -> Array:
    """`x` with -0.0 made smaller than 0.0, as Keras orders them."""
    x = convert_to_tensor(x)
    if not x.dtype.is_float or not x.ndim:
        return x
    x = cast_to(x, x.dtype.accumulator)
    negative_zero = pointwise.logical_and(pointwise.equal(x, 0), pointwise.signbit(x))
    return pointwise.where(negative_zero, -1.1754943508222875e-38, x)


def argmax(x, axis=None, keepdims=False) -> Array:
    """int32 position of the first largest element along `axis`."""
    return reduction.argmax(_below_zero(x), axis, keepdims)


def argmin(x, axis=None, keepdims=False) -> Array:
    """int32 position of the first smallest element along `axis`."""
    return reduction.argmin(_below_zero(x), axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None) -> Array:
    """Product over `axis`.

    Of integers that Python gave, as losses divide by the product of a shape, it is a constant.
    """
    x = convert_to_tensor(x)
    dtype = summed_dtype(resolve(x.dtype)) if dtype is None else find_dtype(dtype)
    known = literals(x)
    if known and axis is None and not keepdims and dtype is int32:
        product = math.prod(known)
        if -(2**31) <= product < 2**31:
            return scalar(product, int32)
    return reduction.prod(x, _axis(axis), keepdims, dtype)


def count_nonzero(x, axis=None) -> Array:
    """int32 number of elements that are not 0."""
    return reduction.count_nonzero(convert_to_tensor(x), _axis(axis))


def allclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False) -> Array:
    """Whether all elements are close."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    return reduction.allclose(x1, x2, rtol, atol, equal_nan)


def average(x, axis=None, weights=None) -> Array:
    """Mean over `axis`, weighted."""
    x = convert_to_tensor(x)
    if weights is None:
        return reduction.average(cast_to(x, resolve(x.dtype, float)), _axis(axis))
    weights = convert_to_tensor(weights)
    dtype = resolve(x.dtype, float, weights.dtype)
    return reduction.average(cast_to(x, dtype), _axis(axis), cast_to(weights, dtype))


# -- quantiles ----------------------------------------------------------------
def _quantile(name: str) -> Callable:
    run = getattr(sorting, name)

    def function(x, q, axis=None, method="linear", keepdims=False) -> Array:
        x = convert_to_tensor(x)
        dtype = floatx() if x.dtype.is_bool else float_dtype(x.dtype)
        return run(cast_to(x, dtype), convert_to_tensor(q), _axis(axis), method, keepdims)

    return named(name, function, run.__doc__)


quantile = _quantile("quantile")
percentile = _quantile("percentile")
nanquantile = _quantile("nanquantile")
nanpercentile = _quantile("nanpercentile")


def median(x, axis=None, keepdims=False) -> Array:
    """The middle value over `axis`."""
    return sorting.median(as_float(x), _axis(axis), keepdims)


def nanmedian(x, axis=None, keepdims=False) -> Array:
    """The middle value of the numbers over `axis`."""
    return sorting.nanmedian(as_float(x), _axis(axis), keepdims)


# -- sorting and searching ----------------------------------------------------
def sort(x, axis=-1) -> Array:
    """`x` sorted along `axis`."""
    return sorting.sort(convert_to_tensor(x), axis)


def argsort(x, axis=-1) -> Array:
    """int32 positions that sort `x` along `axis`."""
    return sorting.argsort(convert_to_tensor(x), axis)


def argpartition(x, kth, axis=-1) -> Array:
    """int32 positions that put element `kth` where sorting would."""
    return sorting.argpartition(convert_to_tensor(x), kth, axis)


def searchsorted(sorted_sequence, values, side="left") -> Array:
    """int32 places at which `values` would keep a sorted vector sorted."""
    sequence = convert_to_tensor(sorted_sequence)
    if sequence.ndim != 1:
        raise ValueError(
            "`searchsorted` only supports 1-D sorted sequences. You can use "
            "`keras.ops.vectorized_map` to extend it to N-D sequences. Received: "
            f"sorted_sequence.shape={sequence.shape}"
        )
    return sorting.searchsorted(sequence, convert_to_tensor(values), side)


def digitize(x, bins) -> Array:
    """int32 number of the bin of each element."""
    if type(x) is SparseArray:
        return rules.digitized(digitize, x, convert_to_tensor(bins))
    return sorting.digitize(convert_to_tensor(x), convert_to_tensor(bins))


def isin(x1, x2, assume_unique=False, invert=False) -> Array:
    """Whether each element of x1 is among those of x2."""
    return sorting.isin(convert_to_tensor(x1), convert_to_tensor(x2), assume_unique, invert)


def nonzero(x) -> tuple[Array, ...]:
    """int32 coordinates of the elements that are not 0; their number is read on the host."""
    x = convert_to_tensor(x)
    return indexing.nonzero(x if x.ndim else movement.reshape(x, 1))


def bincount(x, weights=None, minlength=0, sparse=False) -> Array | SparseArray:
    """How often each of 0, 1, … occurs; the largest is read on the host."""
    if type(x) is SparseArray:
        return _sparse_bincount(x, weights, minlength)
    x = convert_to_tensor(x)
    if sparse:
        return rules.counts(x, None if weights is None else convert_to_tensor(weights), minlength)
    if weights is None:
        return histograms.bincount(x, None, minlength)
    weights = convert_to_tensor(weights)
    return histograms.bincount(x, cast_to(weights, resolve(x.dtype, weights.dtype)), minlength)


def _sparse_bincount(x: SparseArray, weights, minlength: int) -> SparseArray:
    """Counts of the values that are listed, as with JAX: zeros that are not are left out."""
    if weights is not None:
        same = type(weights) is SparseArray and weights.indices.shape == x.indices.shape
        if not same or not bool(pointwise.equal(weights.indices, x.indices).all().item()):
            raise ValueError("bincount: `x` and `weights` must be sparse with the same indices")
        weights = weights.values
    if x.n_dense or x.ndim not in (1, 2):
        raise ValueError(f"bincount of a sparse array needs 1 or 2 sparse axes, not {x.shape}")
    return rules.counts_in_rows(x, weights, minlength)


def histogram(x, bins=10, range=None) -> tuple[Array, Array]:
    """Counts in each bin, in the floating dtype of the edges as with JAX, and the bins' edges."""
    counts, edges = histograms.histogram(convert_to_tensor(x), bins, range)
    return cast_to(counts, edges.dtype), edges


def unique(
    x, sorted=True, return_index=False, return_inverse=False, return_counts=False, axis=None,
    size=None, fill_value=None,
):  # fmt: skip
    """The different elements of `x`, always sorted; their number is read on the host."""
    x = convert_to_tensor(x)
    wanted = (return_index, return_inverse, return_counts)
    fill_value = 0 if fill_value is None else fill_value
    # to Keras each NaN is an element of its own
    return sets.unique(x, *wanted, axis, size, fill_value, equal_nan=False)


# -- cumulative and neighbours ------------------------------------------------
def _cumulative(name: str) -> Callable:
    run = getattr(scan, name)

    def function(x, axis=None, dtype=None) -> Array:
        x = convert_to_tensor(x)
        dtype = resolve(x.dtype if dtype is None else find_dtype(dtype))
        return run(x, axis, int32 if dtype.is_bool else dtype)

    return named(name, function, run.__doc__)


cumsum = _cumulative("cumsum")
cumprod = _cumulative("cumprod")
nancumsum = _cumulative("nancumsum")
nancumprod = _cumulative("nancumprod")


def diff(a, n=1, axis=-1) -> Array:
    """Differences of neighbours along `axis`, taken `n` times."""
    return calculus.diff(convert_to_tensor(a), n, axis)


def trapezoid(y, x=None, dx=1.0, axis=-1) -> Array:
    """Integral of samples along `axis` by the trapezoidal rule."""
    y = convert_to_tensor(y)
    if x is not None:
        y, x = pair(y, x)
        x = _weak_float(x)
    y = _weak_float(y)
    dx = dx if type(dx) in (int, float) else convert_to_tensor(dx, y.dtype)
    return calculus.trapezoid(y, x, dx, axis)


def corrcoef(x) -> Array:
    """Pearson's correlation coefficients of the rows."""
    x = convert_to_tensor(x)
    dtype = statistics_dtype(x.dtype)
    return cast_to(calculus.corrcoef(cast_to(x, dtype.accumulator)), dtype)


def correlate(x1, x2, mode="valid") -> Array:
    """Correlation of two vectors."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    dtype = statistics_dtype(resolve(x1.dtype, x2.dtype))
    return contraction.correlate(cast_to(x1, dtype), cast_to(x2, dtype), mode)


# -- products -----------------------------------------------------------------
def matmul(x1, x2) -> Array | SparseArray:
    """Matrix product; of int8 arrays in int32."""
    if type(x1) is SparseArray or type(x2) is SparseArray:
        return _sparse_matmul(matmul, x1, x2)
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    if x1.dtype is int8 and x2.dtype is int8:
        return contraction.matmul(x1, x2, int32)
    dtype = resolve(x1.dtype, x2.dtype)
    return contraction.matmul(cast_to(x1, dtype), cast_to(x2, dtype), dtype)


def _sparse_matmul(function: Callable, x1, x2) -> Array | SparseArray:
    x1, x2 = (x if type(x) is SparseArray else convert_to_tensor(x) for x in (x1, x2))
    small = x1.dtype is int8 and x2.dtype is int8
    dtype = int32 if small else resolve(x1.dtype, x2.dtype)
    return rules.matrix_product(function, x1, x2, dtype)


def einsum(subscripts, *operands, **kwargs) -> Array:
    """Einstein summation; of int8 arrays in int32."""
    arrays = [convert_to_tensor(x) for x in operands]
    kinds = {x.dtype for x in arrays}
    if kinds == {int8}:
        return contraction.einsum(subscripts, *arrays, dtype=int32)
    return contraction.einsum(subscripts, *several(arrays), dtype=resolve(*kinds))


def dot(x1, x2) -> Array | SparseArray:
    """The last axis of x1 with the last but one of x2."""
    if (type(x1) is SparseArray or type(x2) is SparseArray) and len(x1.shape) == len(x2.shape) == 2:
        return _sparse_matmul(dot, x1, x2)
    return contraction.dot(*pair(x1, x2))


def inner(x1, x2) -> Array:
    """Sum of products over the last axes."""
    return contraction.inner(*pair(x1, x2))


def outer(x1, x2) -> Array:
    """All products of the elements of two flattened arrays."""
    return contraction.outer(*pair(x1, x2))


def vdot(x1, x2) -> Array:
    """Sum of products of two flattened arrays."""
    return contraction.vdot(*tensors(x1, x2))


def kron(x1, x2) -> Array:
    """Kronecker product."""
    return contraction.kron(*pair(x1, x2))


def tensordot(x1, x2, axes=2) -> Array:
    """Sum of products over axes of both arrays."""
    return contraction.tensordot(*tensors(x1, x2), axes)


def cross(x1, x2, axisa=-1, axisb=-1, axisc=-1, axis=None) -> Array:
    """Cross product of vectors of 2 or 3 components."""
    return contraction.cross(*tensors(x1, x2), axisa, axisb, axisc, axis)


def trace(x, offset=0, axis1=0, axis2=1) -> Array:
    """Sum of the diagonal of two axes."""
    x = _summed(x)
    return contraction.trace(x, offset, axis1, axis2, x.dtype)
