"""Linear algebra.

Systems, inverses, determinants and Cholesky factors are computed on the device.  Orthogonal
factors, eigenvalues and singular values come from LAPACK on the host, with gradients in array
code; inside captured steps they raise CaptureError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from keras.src import tree
from keras.src.backend import config
from keras.src.backend.common import dtypes as keras_dtypes

from kerascl.backend import tracing
from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core import rules
from kerascl.core.array import Array, from_host
from kerascl.core.context import current
from kerascl.core.tape import GradientTape, custom_gradient, pause
from kerascl.dtypes import BY_NAME, float32, int32
from kerascl.ops import host
from kerascl.ops import linalg as device_linalg
from kerascl.ops.contraction import matmul
from kerascl.ops.control import loop
from kerascl.ops.creation import eye, full, ones_like, zeros_like
from kerascl.ops.declare import cast_to, in_float32
from kerascl.ops.gather import take, take_along_axis
from kerascl.ops.movement import iota, strided, transpose, tril, triu
from kerascl.ops.pointwise import absolute, isnan, power, sqrt, square, where
from kerascl.ops.reduction import any as any_along
from kerascl.ops.reduction import max as max_along
from kerascl.ops.reduction import min as min_along
from kerascl.ops.reduction import sum as sum_along
from kerascl.ops.views import expand_to, reshape_to

_ON_HOST = {
    name: f"LAPACK: {what}"
    for name, what in {
        "eig": "eigenvalues",
        "eigh": "eigenvalues",
        "lu": "LU factors",
        "qr": "QR factors",
        "svd": "singular values",
    }.items()
}
host.HOST_OPERATIONS.update(_ON_HOST)


def _on_host(name: str, function: Callable, vjp: Callable | None, *inputs: Array):
    """`function` of the inputs' values in NumPy; its results as Arrays, recorded on the tapes.

    `vjp(gradients, results, *inputs)` gives the inputs' gradients; both gradients and results are
    tuples. float16 and bfloat16 are computed in float32.
    """
    host.count(name)
    values = [x.numpy() for x in inputs]
    values = [v.astype(np.float32) if v.dtype.itemsize < 4 else v for v in values]
    results = function(*values)
    results = results if isinstance(results, tuple) else (results,)
    arrays = tuple(from_host(np.asarray(r, _narrow(np.asarray(r).dtype, values))) for r in results)
    arrays = tuple(
        cast_to(a, inputs[0].dtype) if a.dtype.is_float and inputs[0].dtype.is_float else a
        for a in arrays
    )
    if vjp is not None:
        for tape in current.tapes:
            tape.record(lambda g, y, *x: vjp(g, y, *x), inputs, (), arrays)
    return arrays


def _narrow(dtype: np.dtype, inputs: list[np.ndarray]) -> np.dtype:
    wide = any(v.dtype in (np.float64, np.complex128) for v in inputs)
    return np.dtype(np.complex64) if dtype == np.complex128 and not wide else dtype


def _floating(x) -> Array:
    x = convert_to_tensor(x)
    return x if x.dtype.is_float or x.dtype.is_complex else cast_to(x, BY_NAME[config.floatx()])


def _t(x: Array) -> Array:
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _mm(*factors: Array) -> Array:
    result = factors[0]
    for factor in factors[1:]:
        result = matmul(result, factor)
    return result


def _column(x: Array) -> Array:
    return reshape_to(x, (*x.shape, 1))


def _row(x: Array) -> Array:
    return reshape_to(x, (*x.shape[:-1], 1, x.shape[-1]))


def _eye_like(x: Array) -> Array:
    return eye(x.shape[-1], dtype=x.dtype)


# -- factors --------------------------------------------------------------------------------------
def cholesky(a, upper: bool = False) -> Array:
    """The lower (or upper) triangular factor of positive definite matrices (…, n, n).

    Raises:
        ValueError: when a matrix is not positive definite; inside a captured step its factor is
            NaN instead.
    """
    y = _cholesky(_floating(a))
    if tracing.is_known(y) and bool(any_along(isnan(y))):
        raise ValueError(
            "Cholesky decomposition failed. The input might not be a valid positive definite "
            "matrix."
        )
    return _t(y) if upper else y


@custom_gradient
def _cholesky(a: Array):
    n = a.shape[-1]
    flat = reshape_to(a, (math.prod(a.shape[:-2]), n, n))
    flat = cast_to(flat, a.dtype.accumulator)

    def step(carry, slices):
        (rest,), (k,) = carry, slices
        here = expand_to(reshape_to(k, (1, 1, 1)), (len(rest), n, 1))
        column = take_along_axis(rest, here, 2)
        pivot = sqrt(take_along_axis(column, here[:, :1], 1))
        column = where(iota(column.shape, 1) >= here, column / pivot, 0.0)
        return [rest - column * _t(column)], [reshape_to(column, column.shape[:2])]

    _, (columns,) = loop(step, [flat], [iota((n,), 0)])
    y = cast_to(reshape_to(transpose(columns, (1, 2, 0)), a.shape), a.dtype)

    def grad(g):
        middle = tril(_mm(_t(y), tril(g)))
        middle = where(_eye_like(y) > 0, middle * 0.5, middle)
        # y^-T middle y^-1, made symmetric
        left = solve_triangular(_t(y), middle, lower=False)
        s = _t(solve_triangular(_t(y), _t(left), lower=False))
        return ((s + _t(s)) * 0.5,)

    return y, grad


def cholesky_inverse(a, upper: bool = False) -> Array:
    """The inverse of the matrix whose Cholesky factor is `a`."""
    a = _floating(a)
    identity = expand_to(_eye_like(a), a.shape)
    inverse = solve_triangular(a, identity, lower=not upper)
    return _mm(inverse, _t(inverse)) if upper else _mm(_t(inverse), inverse)


def qr(x, mode: Literal["reduced", "complete"] = "reduced") -> tuple[Array, Array]:
    """QR factors of matrices (…, m, n); `mode` is "reduced" or "complete".

    Raises:
        ValueError: for another mode.
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(
            "`mode` argument value not supported. Expected one of {'reduced', 'complete'}. "
            f"Received: mode={mode}"
        )
    return _on_host("qr", lambda a: tuple(np.linalg.qr(a, mode)), _qr_vjp, _floating(x))


def _qr_vjp(gs, ys, a):
    (gq, gr), (q, r) = gs, ys
    m, n = a.shape[-2:]
    if m < n or q.shape[-1] != r.shape[-1]:
        raise NotImplementedError(
            "qr has a gradient in reduced mode, for matrices with at least as many rows as columns"
        )
    middle = _mm(r, _t(gr)) - _mm(_t(gq), q)
    middle = tril(middle) + _t(tril(middle, -1))
    return (_t(solve_triangular(r, _t(gq + _mm(q, middle)), lower=False)),)


def lu_factor(x) -> tuple[Array, Array]:
    """LU factors of square matrices in one array, and int32 rows swapped at each step."""
    return _on_host("lu", _lu, _lu_vjp, _floating(x))


def _lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    *batch, m, n = a.shape
    lu = a.reshape(-1, m, n).copy()
    steps = min(m, n)
    pivots = np.empty((len(lu), steps), np.int32)
    each = np.arange(len(lu))
    for k in range(steps):
        p = k + np.abs(lu[:, k:, k]).argmax(1)
        pivots[:, k] = p
        rows = lu[each, p].copy()
        lu[each, p] = lu[:, k]
        lu[:, k] = rows
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(lu[:, k, k, None] != 0, lu[:, k + 1 :, k] / lu[:, k, k, None], 0)
        lu[:, k + 1 :, k] = factor
        lu[:, k + 1 :, k + 1 :] -= factor[:, :, None] * lu[:, k, None, k + 1 :]
    return lu.reshape(a.shape), pivots.reshape(*batch, steps)


def _lu_vjp(gs, ys, a):
    g, (lu, pivots) = gs[0], ys
    n = a.shape[-1]
    if a.shape[-2] != n:
        raise NotImplementedError("lu_factor has a gradient for square matrices only")
    lower = tril(lu, -1) + _eye_like(lu)
    middle = tril(_mm(_t(lower), tril(g, -1)), -1) + triu(_mm(triu(g), _t(triu(lu))))
    s = solve_triangular(_t(lower), middle, lower=False)
    s = _t(solve_triangular(triu(lu), _t(s), lower=False))
    # undo the row swaps, last one first
    order = pivots.numpy().reshape(-1, n)
    inverse = np.empty_like(order)
    for rows, swaps in zip(inverse, order, strict=True):
        where_from = np.arange(n)
        for k, p in enumerate(swaps):
            where_from[[k, p]] = where_from[[p, k]]
        rows[where_from] = np.arange(n)
    flat = reshape_to(s, (len(order) * n, n))
    rows = convert_to_tensor((inverse + np.arange(len(order))[:, None] * n).reshape(-1))
    return (reshape_to(take(flat, rows, 0), a.shape),)


def eig(x) -> tuple[Array, Array]:
    """Eigenvalues (…, n) and eigenvectors (…, n, n) of square matrices, complex64."""

    def values(a):
        w, v = np.linalg.eig(a)
        return w.astype(np.complex64), v.astype(np.complex64)

    return _on_host("eig", values, None, _floating(x))


def eigh(x) -> tuple[Array, Array]:
    """Eigenvalues (…, n), ascending, and eigenvectors (…, n, n) of symmetric matrices."""
    return _on_host("eigh", lambda a: tuple(np.linalg.eigh(a)), _eigh_vjp, _floating(x))


def _eigh_vjp(gs, ys, a):
    (gw, gv), (w, v) = gs, ys
    gap = _row(w) - _column(w)
    ratio = where(gap == 0, 0.0, 1.0 / where(gap == 0, 1.0, gap))
    middle = ratio * _mm(_t(v), gv) + _eye_like(v) * _row(gw)
    s = _mm(v, middle, _t(v))
    return ((s + _t(s)) * 0.5,)


def svd(x, full_matrices: bool = True, compute_uv: bool = True):
    """Singular values, or (u, s, v^T), of matrices (…, m, n)."""
    x = _floating(x)
    if compute_uv:
        return _on_host("svd", lambda a: tuple(np.linalg.svd(a, full_matrices)), _svd_vjp, x)
    if current.tapes:
        return svd(x, False)[1]
    return _on_host("svd", lambda a: np.linalg.svd(a, compute_uv=False), None, x)[0]


def _svd_vjp(gs, ys, a):
    (gu, gs_, gvt), (u, s, vt) = gs, ys
    k = s.shape[-1]
    u, gu = _first(u, k, -1), _first(gu, k, -1)
    v, gv = _t(_first(vt, k, -2)), _t(_first(gvt, k, -2))
    square_gap = square(_row(s)) - square(_column(s))
    f = where(square_gap == 0, 0.0, 1.0 / where(square_gap == 0, 1.0, square_gap))
    inverse = where(s == 0, 0.0, 1.0 / where(s == 0, 1.0, s))
    uu, vv = _mm(_t(u), gu), _mm(_t(v), gv)
    middle = (f * (uu - _t(uu))) * _row(s) + _column(s) * (f * (vv - _t(vv)))
    middle = middle + _eye_like(middle) * _row(gs_)
    result = _mm(u, middle, _t(v))
    if a.shape[-2] > k:
        result = result + _mm((gu - _mm(u, uu)) * _row(inverse), _t(v))
    if a.shape[-1] > k:
        result = result + _mm(u * _row(inverse), _t(gv - _mm(v, vv)))
    return (result,)


def _first(x: Array, count: int, axis: int) -> Array:
    stops = list(x.shape)
    stops[axis] = count
    return strided(x, [0] * x.ndim, stops, [1] * x.ndim)


# -- systems --------------------------------------------------------------------------------------
def det(a) -> Array:
    """Determinants (…,) of square matrices."""
    return device_linalg.det(_floating(a))


def inv(a) -> Array:
    """Inverses of square matrices; those of singular ones are infinite or NaN."""
    return device_linalg.inv(_floating(a))


def solve(a, b) -> Array:
    """x with a @ x = b, for matrices (…, n, n) and right sides (…, n, k) or (…, n).

    A singular matrix gives infinities or NaN.
    """
    return device_linalg.solve(*_alike(a, b))


def solve_triangular(a, b, lower: bool = False) -> Array:
    """x with a @ x = b, reading only the lower or upper triangle of `a`; see `solve`."""
    a, b = _alike(a, b)
    if b.ndim == a.ndim - 1:
        x = solve_triangular(a, _column(b), lower)
        return reshape_to(x, x.shape[:-1])
    half = tril if lower else triu

    @custom_gradient
    def substituted(a, b):
        x = _substitute(half(a), b, lower)

        def grad(g):
            gb = solve_triangular(_t(a), g, not lower)
            return half(-_mm(gb, _t(x))), gb

        return x, grad

    lead = rules.broadcast(a.shape[:-2], b.shape[:-2])
    return substituted(expand_to(a, (*lead, *a.shape[-2:])), expand_to(b, (*lead, *b.shape[-2:])))


def _substitute(a: Array, b: Array, lower: bool) -> Array:
    n, count = a.shape[-1], math.prod(a.shape[:-2])
    columns = transpose(reshape_to(a, (count, n, n)), (2, 0, 1))
    flat = reshape_to(b, (count, n, b.shape[-1]))
    dtype = a.dtype.accumulator

    def step(carry, slices):
        (x,), (column, k) = carry, slices
        here = expand_to(reshape_to(k, (1, 1, 1)), (count, n, 1))
        column = _column(column)
        row = take_along_axis(x, expand_to(here[:, :1], (count, 1, x.shape[2])), 1)
        row = row / take_along_axis(column, here[:, :1], 1)
        return [where(iota(x.shape, 1) == here, row, x - column * row)], []

    (x,), _ = loop(
        step, [cast_to(flat, dtype)], [cast_to(columns, dtype), iota((n,), 0)], reverse=not lower
    )
    return cast_to(reshape_to(x, b.shape), b.dtype)


def _alike(a, b) -> tuple[Array, Array]:
    a, b = _floating(a), _floating(b)
    if a.dtype is not b.dtype:
        dtype = BY_NAME[keras_dtypes.result_type(a.dtype.name, b.dtype.name)]
        a, b = cast_to(a, dtype), cast_to(b, dtype)
    return a, b


def pinv(x, rcond=None) -> Array:
    """Pseudo-inverses (…, n, m) of matrices (…, m, n).

    Raises:
        ValueError: for less than two dimensions.
    """
    x = _floating(_matrix(x))
    u, s, vt = svd(x, full_matrices=False)
    inverse = _inverse_values(s, x, rcond)
    return _mm(_t(vt) * _row(inverse), _t(u))


def _inverse_values(s: Array, x: Array, rcond) -> Array:
    if rcond is None:
        rcond = max(x.shape[-2:]) * float(np.finfo(x.dtype.accumulator.numpy).eps)
    large = s > max_along(s, -1, True) * rcond
    return where(large, 1.0 / where(large, s, 1.0), 0.0)


def lstsq(a, b, rcond=None) -> Array:
    """x of least |a @ x - b|, for a (m, n) and b (m, k) or (m,)."""
    a, b = _floating(a), _floating(b)
    vector = b.ndim == 1
    if vector:
        b = _column(b)
    x = matmul(pinv(a, rcond), b)
    return reshape_to(x, x.shape[:-1]) if vector else x


def matrix_rank(x, tol=None) -> Array:
    """int32 number of singular values above `tol` (relative to the largest, by default).

    Raises:
        ValueError: for less than two dimensions.
    """
    x = _floating(_matrix(x))
    with pause():
        s = svd(x, compute_uv=False)
    if tol is None:
        eps = float(np.finfo(x.dtype.accumulator.numpy).eps)
        tol = max_along(s, -1, True) * (max(x.shape[-2:]) * eps)
    else:
        tol = convert_to_tensor(tol, x.dtype)
        tol = _column(tol) if tol.ndim else tol
    return sum_along(cast_to(s > tol, int32), -1)


def _matrix(x) -> Array:
    x = convert_to_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"Expected input to have rank >= 2. Received input with shape {x.shape}.")
    return x


# -- norms ----------------------------------------------------------------------------------------
def norm(x, ord=None, axis=None, keepdims: bool = False) -> Array:
    """Vector or matrix norms, with NumPy's meaning of `ord` and `axis`.

    Raises:
        ValueError: for an `ord` that does not fit the number of axes.
    """
    x = convert_to_tensor(x)
    if x.dtype.name == "int64":
        dtype = config.floatx()
    else:
        dtype = keras_dtypes.result_type(x.dtype.name, float)
    return _norm(cast_to(x, BY_NAME[dtype]), ord, axis, keepdims)


@in_float32
def _norm(x: Array, ord, axis, keepdims: bool) -> Array:
    if axis is None:
        if ord is None or (ord == 2 and x.ndim == 1) or (ord == "fro" and x.ndim == 2):
            return _root(sum_along(square(absolute(x)), None, keepdims))
        axes = tuple(range(x.ndim))
    else:
        axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
        axes = tuple(rules.axis_index(a, x.ndim) for a in axes)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims)
    raise ValueError(f"Improper number of dimensions to norm: axis={axis}, shape={x.shape}")


def _root(total: Array) -> Array:
    # the gradient of sqrt at 0 is infinite; that of the norm is taken as 0
    zero = total == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, total)))


def _vector_norm(x: Array, ord, axis: int, keepdims: bool) -> Array:
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


def _matrix_norm(x: Array, ord, axes: tuple[int, int], keepdims: bool) -> Array:
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
        s = svd(transpose(x, (*others, row, column)), compute_uv=False)
        along: dict[Any, Callable] = {2: max_along, -2: min_along, "nuc": sum_along}
        result = along[ord](s, -1)
        result = reshape_to(result, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))
    else:
        raise ValueError(f"Invalid `ord` argument for matrix norm. Received: ord={ord}")
    if keepdims:
        return result
    return reshape_to(result, tuple(n for a, n in enumerate(x.shape) if a not in axes))


# -- derivatives ----------------------------------------------------------------------------------
def jvp(fun: Callable, primals, tangents, has_aux: bool = False):
    """`fun(*primals)` and its derivative along `tangents`, by differentiating its gradient.

    Returns:
        (outputs, derivatives), and with `has_aux` what else `fun` returns.
    """
    primals = [tree.map_structure(convert_to_tensor, p) for p in primals]
    tangents = [convert_to_tensor(t) for t in tree.flatten(tangents)]
    sources = tree.flatten(primals)
    with GradientTape() as outer:
        with GradientTape() as inner:
            result = fun(*primals)
        outputs, aux = result if has_aux else (result, None)
        flat = [convert_to_tensor(y) for y in tree.flatten(outputs)]
        # linear in the seeds: its derivative by them does not depend on their value
        seeds = [ones_like(y) for y in flat]
        gradients = inner.gradient(flat, sources, seeds)
        total = full((), 0, float32)
        for g, t in zip(gradients, tangents, strict=True):
            if g is not None:
                total = total + sum_along(g * cast_to(t, g.dtype))
    found = outer.gradient(total, seeds)
    derived = [zeros_like(y) if d is None else d for d, y in zip(found, flat, strict=True)]
    derived = tree.pack_sequence_as(outputs, derived)
    return (outputs, derived, aux) if has_aux else (outputs, derived)
