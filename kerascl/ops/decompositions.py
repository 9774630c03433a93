"""Decompositions of matrices: Cholesky's on the device, the others by LAPACK on the host.

Those on the host are counted in `kerascl.ops.host.calls`, have gradients in array code, and raise
CaptureError inside captured functions. Gradients are of real matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, from_host
from kerascl.core.context import current
from kerascl.core.tape import custom_gradient
from kerascl.core.types import Gradients
from kerascl.ops import host
from kerascl.ops.contraction import matmul
from kerascl.ops.control import loop
from kerascl.ops.creation import eye
from kerascl.ops.declare import as_array, cast_to, convert, floating
from kerascl.ops.gather import take, take_along_axis
from kerascl.ops.movement import iota, strided, transpose, tril, triu
from kerascl.ops.pointwise import conjugate, real, sqrt, square, where
from kerascl.ops.views import expand_to, reshape_to

Pair: TypeAlias = tuple[Array, Array]


class QR(NamedTuple):
    """Orthogonal and upper triangular factors."""

    Q: Array
    R: Array


class Eigen(NamedTuple):
    """Eigenvalues, and eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class SVD(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors as rows."""

    U: Array
    S: Array
    Vh: Array


# -- tools ----------------------------------------------------------------------------------------
def floats(x: ArrayLike) -> Array:
    """An array whose integers and bools are float32."""
    x = as_array(x)
    return cast_to(x, floating(x.dtype)[0])


def matrices(x: ArrayLike, name: str, square: bool = False) -> Array:
    """Floating matrices (…, m, n).

    Raises:
        ValueError: for less than two dimensions, and with `square` where m is not n.
    """
    x = floats(x)
    if x.ndim < 2:
        raise ValueError(f"{name} needs matrices, of at least 2 dimensions, got shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{name} needs square matrices, got shape {x.shape}")
    return x


def only_real(x: Array, name: str) -> None:
    """Raise where a derivative of complex matrices is asked for."""
    if x.dtype.is_complex:
        raise NotImplementedError(f"{name} has a gradient for real matrices only")


def transposed(x: Array) -> Array:
    """Matrices (…, m, n) as (…, n, m)."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def product(*factors: Array) -> Array:
    """The product of several matrices."""
    result = factors[0]
    for factor in factors[1:]:
        result = matmul(result, factor)
    return result


def as_column(x: Array) -> Array:
    """Vectors (…, n) as (…, n, 1)."""
    return reshape_to(x, (*x.shape, 1))


def as_row(x: Array) -> Array:
    """Vectors (…, n) as (…, 1, n)."""
    return reshape_to(x, (*x.shape[:-1], 1, x.shape[-1]))


def eye_like(x: Array) -> Array:
    """The identity of the last dimension's size."""
    return eye(x.shape[-1], dtype=x.dtype)


def _on_host(
    name: str,
    function: Callable[..., Any],
    vjp: Callable[..., Gradients] | None,
    *inputs: Array,
) -> tuple[Array, ...]:
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


def _narrow(dtype: np.dtype[Any], inputs: list[np.ndarray]) -> np.dtype[Any]:
    wide = any(v.dtype in (np.float64, np.complex128) for v in inputs)
    return np.dtype(np.complex64) if dtype == np.complex128 and not wide else dtype


# -- factors --------------------------------------------------------------------------------------
def cholesky(x: ArrayLike, upper: bool = False) -> Array:
    """The lower triangular factor L of positive definite matrices (…, n, n), which are L L^H.

    A matrix that is not positive definite has NaN in its factor.

    Args:
        upper: for the upper triangular factor L^H.

    Raises:
        ValueError: for matrices that are not square.
    """
    a = matrices(x, "cholesky", square=True)
    y: Array = _cholesky(a) if a.size else a
    return conjugate(transposed(y)) if upper else y


@custom_gradient
def _cholesky(a: Array) -> tuple[Array, Callable[[Array], Gradients]]:
    n = a.shape[-1]
    flat = reshape_to(a, (math.prod(a.shape[:-2]), n, n))
    flat = cast_to(flat, a.dtype.accumulator)

    def step(carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        (rest,), (k,) = carry, slices
        here = expand_to(reshape_to(k, (1, 1, 1)), (len(rest), n, 1))
        column = take_along_axis(rest, here, 2)
        pivot = sqrt(real(take_along_axis(column, here[:, :1], 1)))
        column = where(iota(column.shape, 1) >= here, column / pivot, 0.0)
        return [rest - column * conjugate(transposed(column))], [
            reshape_to(column, column.shape[:2])
        ]

    _, (columns,) = loop(step, [flat], [iota((n,), 0)])
    y = cast_to(reshape_to(transpose(columns, (1, 2, 0)), a.shape), a.dtype)

    def grad(g: Array) -> Gradients:
        only_real(a, "cholesky")
        middle = tril(product(transposed(y), tril(g)))
        middle = where(eye_like(y) > 0, middle * 0.5, middle)
        # y^-T middle y^-1, made symmetric
        left = solve_triangular(transposed(y), middle, lower=False)
        s = transposed(solve_triangular(transposed(y), transposed(left), lower=False))
        return ((s + transposed(s)) * 0.5,)

    return y, grad


def qr(x: ArrayLike, mode: str = "reduced") -> QR:
    """QR factors of matrices (…, m, n).

    Args:
        mode: "reduced" for Q (…, m, k) and R (…, k, n), where k = min(m, n), "complete" for
            Q (…, m, m) and R (…, m, n).

    Raises:
        ValueError: for another mode, and less than two dimensions.
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode {mode!r} must be 'reduced' or 'complete'")
    x = matrices(x, "qr")
    return QR(*_on_host("qr", lambda a: tuple(np.linalg.qr(a, mode)), _qr_vjp, x))  # type: ignore[call-overload]  # checked


def _qr_vjp(gs: Pair, ys: Pair, a: Array) -> Gradients:
    only_real(a, "qr")
    (gq, gr), (q, r) = gs, ys
    m, n = a.shape[-2:]
    if m < n or q.shape[-1] != r.shape[-1]:
        raise NotImplementedError(
            "qr has a gradient in reduced mode, for matrices with at least as many rows as columns"
        )
    middle = product(r, transposed(gr)) - product(transposed(gq), q)
    middle = tril(middle) + transposed(tril(middle, -1))
    return (transposed(solve_triangular(r, transposed(gq + product(q, middle)), lower=False)),)


def lu_factor(x: ArrayLike) -> tuple[Array, Array]:
    """LU factors of matrices in one array, and int32 rows swapped at each step."""
    lu, pivots = _on_host("lu", _lu, _lu_vjp, floats(x))
    return lu, pivots


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


def _lu_vjp(gs: Pair, ys: Pair, a: Array) -> Gradients:
    only_real(a, "lu_factor")
    g, (lu, pivots) = gs[0], ys
    n = a.shape[-1]
    if a.shape[-2] != n:
        raise NotImplementedError("lu_factor has a gradient for square matrices only")
    lower = tril(lu, -1) + eye_like(lu)
    middle = tril(product(transposed(lower), tril(g, -1)), -1) + triu(
        product(triu(g), transposed(triu(lu)))
    )
    s = solve_triangular(transposed(lower), middle, lower=False)
    s = transposed(solve_triangular(triu(lu), transposed(s), lower=False))
    # undo the row swaps, last one first
    order = pivots.numpy().reshape(-1, n)
    inverse = np.empty_like(order)
    for row, swaps in zip(inverse, order, strict=True):
        where_from = np.arange(n)
        for k, p in enumerate(swaps):
            where_from[[k, p]] = where_from[[p, k]]
        row[where_from] = np.arange(n)
    flat = reshape_to(s, (len(order) * n, n))
    rows = as_array((inverse + np.arange(len(order))[:, None] * n).reshape(-1))
    return (reshape_to(take(flat, rows, 0), a.shape),)


def eig(x: ArrayLike) -> Eigen:
    """Eigenvalues (…, n) and eigenvectors (…, n, n) of square matrices, complex; no gradient."""
    x = matrices(x, "eig", square=True)
    to = x.dtype.complex.numpy
    return Eigen(*_on_host("eig", lambda a: tuple(y.astype(to) for y in np.linalg.eig(a)), None, x))


def eigh(x: ArrayLike) -> Eigen:
    """Eigenvalues (…, n), ascending, and eigenvectors (…, n, n) of Hermitian matrices."""
    x = matrices(x, "eigh", square=True)
    return Eigen(*_on_host("eigh", lambda a: tuple(np.linalg.eigh(a)), _eigh_vjp, x))


def eigvalsh(x: ArrayLike) -> Array:
    """Eigenvalues (…, n), ascending, of Hermitian matrices (…, n, n)."""
    if current.tapes:
        return eigh(x).eigenvalues
    return _on_host("eigh", np.linalg.eigvalsh, None, matrices(x, "eigvalsh", square=True))[0]


def _eigh_vjp(gs: Pair, ys: Pair, a: Array) -> Gradients:
    only_real(a, "eigh")
    (gw, gv), (w, v) = gs, ys
    gap = as_row(w) - as_column(w)
    ratio = where(gap == 0, 0.0, 1.0 / where(gap == 0, 1.0, gap))
    middle = ratio * product(transposed(v), gv) + eye_like(v) * as_row(gw)
    s = product(v, middle, transposed(v))
    return ((s + transposed(s)) * 0.5,)


def svd(x: ArrayLike, full_matrices: bool = True) -> SVD:
    """Singular values (…, k), descending, and vectors of matrices (…, m, n), where k = min(m, n).

    Args:
        full_matrices: whether U is (…, m, m) and Vh is (…, n, n), not (…, m, k) and (…, k, n).
    """
    x = matrices(x, "svd")
    return SVD(*_on_host("svd", lambda a: tuple(np.linalg.svd(a, full_matrices)), _svd_vjp, x))


def svdvals(x: ArrayLike) -> Array:
    """Singular values (…, k), descending, of matrices (…, m, n), where k = min(m, n)."""
    if current.tapes:
        return svd(x, False).S
    x = matrices(x, "svdvals")
    return _on_host("svd", lambda a: np.linalg.svd(a, compute_uv=False), None, x)[0]


def _svd_vjp(gs: tuple[Array, Array, Array], ys: tuple[Array, Array, Array], a: Array) -> Gradients:
    only_real(a, "svd")
    (gu, gs_, gvt), (u, s, vt) = gs, ys
    k = s.shape[-1]
    u, gu = _first(u, k, -1), _first(gu, k, -1)
    v, gv = transposed(_first(vt, k, -2)), transposed(_first(gvt, k, -2))
    square_gap = square(as_row(s)) - square(as_column(s))
    f = where(square_gap == 0, 0.0, 1.0 / where(square_gap == 0, 1.0, square_gap))
    inverse = where(s == 0, 0.0, 1.0 / where(s == 0, 1.0, s))
    uu, vv = product(transposed(u), gu), product(transposed(v), gv)
    middle = (f * (uu - transposed(uu))) * as_row(s) + as_column(s) * (f * (vv - transposed(vv)))
    middle = middle + eye_like(middle) * as_row(gs_)
    result = product(u, middle, transposed(v))
    if a.shape[-2] > k:
        result = result + product((gu - product(u, uu)) * as_row(inverse), transposed(v))
    if a.shape[-1] > k:
        result = result + product(u * as_row(inverse), transposed(gv - product(v, vv)))
    return (result,)


def _first(x: Array, count: int, axis: int) -> Array:
    stops = list(x.shape)
    stops[axis] = count
    return strided(x, [0] * x.ndim, stops, [1] * x.ndim)


# -- triangles ------------------------------------------------------------------------------------
def solve_triangular(a: ArrayLike, b: ArrayLike, lower: bool = False) -> Array:
    """x with a @ x = b, reading only the lower or upper triangle of `a`; see `linalg.solve`."""
    (a, b), _ = convert((a, b), lambda common: floating(common)[0])
    if b.ndim == a.ndim - 1:
        x = solve_triangular(a, as_column(b), lower)
        return reshape_to(x, x.shape[:-1])
    half = tril if lower else triu

    @custom_gradient
    def substituted(a: Array, b: Array) -> tuple[Array, Callable[[Array], Gradients]]:
        x = _substitute(half(a), b, lower)

        def grad(g: Array) -> Gradients:
            gb = solve_triangular(transposed(a), g, not lower)
            return half(-product(gb, transposed(x))), gb

        return x, grad

    lead = rules.broadcast(a.shape[:-2], b.shape[:-2])
    wide = (expand_to(y, (*lead, *y.shape[-2:])) for y in (a, b))
    result: Array = substituted(*wide)
    return result


def _substitute(a: Array, b: Array, lower: bool) -> Array:
    n, count = a.shape[-1], math.prod(a.shape[:-2])
    columns = transpose(reshape_to(a, (count, n, n)), (2, 0, 1))
    flat = reshape_to(b, (count, n, b.shape[-1]))
    dtype = a.dtype.accumulator

    def step(carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        (x,), (column, k) = carry, slices
        here = expand_to(reshape_to(k, (1, 1, 1)), (count, n, 1))
        column = as_column(column)
        row = take_along_axis(x, expand_to(here[:, :1], (count, 1, x.shape[2])), 1)
        row = row / take_along_axis(column, here[:, :1], 1)
        return [where(iota(x.shape, 1) == here, row, x - column * row)], []

    (x,), _ = loop(
        step, [cast_to(flat, dtype)], [cast_to(columns, dtype), iota((n,), 0)], reverse=not lower
    )
    return cast_to(reshape_to(x, b.shape), b.dtype)
