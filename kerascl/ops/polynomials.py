"""Polynomials as vectors of coefficients, the highest power first, as NumPy's older functions."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from kerascl.core.array import Array, ArrayLike
from kerascl.ops import host
from kerascl.ops.calculus import convolve
from kerascl.ops.contraction import matmul
from kerascl.ops.creation import arange, eye, vander, zeros
from kerascl.ops.declare import as_array, cast_to, convert
from kerascl.ops.decompositions import as_column, floats, transposed
from kerascl.ops.dtype_functions import finfo
from kerascl.ops.linalg import eigvals, inv, lstsq
from kerascl.ops.movement import concatenate
from kerascl.ops.pieces import atleast_1d
from kerascl.ops.pointwise import add, multiply, real, sqrt, subtract
from kerascl.ops.reduction import sum as total
from kerascl.ops.views import reshape_to, window

__all__ = [
    "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "roots",
]  # fmt: skip


def _coefficients(p: ArrayLike, name: str) -> Array:
    found: Array = atleast_1d(p)
    if found.ndim != 1:
        raise ValueError(f"{name}: coefficients have shape {found.shape}, which is no vector")
    return found


def _aligned(a: ArrayLike, b: ArrayLike, name: str) -> tuple[Array, Array]:
    """Two vectors of coefficients with zeros before the shorter one."""
    (a, b), _ = convert((_coefficients(a, name), _coefficients(b, name)))
    n = max(a.size, b.size)
    a, b = (concatenate([zeros((n - p.size,), p.dtype), p]) for p in (a, b))
    return a, b


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The sum of two polynomials.

    Raises:
        ValueError: for coefficients that are no vector.

    Examples:
        >>> kc.polyadd([1, 2], [3, 0, 1]).tolist()
        [3, 1, 3]
    """
    return add(*_aligned(a1, a2, "polyadd"))


def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The difference of two polynomials.

    Raises:
        ValueError: for coefficients that are no vector.

    Examples:
        >>> kc.polysub([1, 2], [3, 0, 1]).tolist()
        [-3, 1, 1]
    """
    return subtract(*_aligned(a1, a2, "polysub"))


def polymul(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The product of two polynomials.

    Raises:
        ValueError: for coefficients that are no vector.

    Examples:
        >>> kc.polymul([1.0, 2.0], [1.0, -2.0]).tolist()
        [1.0, 0.0, -4.0]
    """
    return convolve(_coefficients(a1, "polymul"), _coefficients(a2, "polymul"))


def polydiv(u: ArrayLike, v: ArrayLike) -> tuple[Array, Array]:
    """Quotient and remainder of two polynomials, as floats.

    The remainder has the length that its degree allows, max(1, len(v) - 1): NumPy also leaves out
    leading coefficients that happen to be 0, for which values would have to be read.

    Raises:
        ValueError: for coefficients that are no vector.

    Examples:
        >>> q, r = kc.polydiv([1.0, 0.0, -4.0], [1.0, 2.0])
        >>> q.tolist(), r.tolist()
        ([1.0, -2.0], [0.0])
    """
    (u, v), _ = convert((floats(_coefficients(u, "polydiv")), floats(_coefficients(v, "polydiv"))))
    m, n = u.size - 1, v.size - 1
    if m < n:
        return zeros((1,), u.dtype), u
    rest, quotient = u, []
    for _ in range(m - n + 1):
        q = window(rest, 0, 0, 1) / window(v, 0, 0, 1)
        quotient.append(q)
        head = window(rest, 0, 0, n + 1) - q * v
        rest = concatenate([window(head, 0, 1, n + 1), window(rest, 0, n + 1, rest.size)])
    return concatenate(quotient), rest if n else zeros((1,), u.dtype)


def polyder(p: ArrayLike, m: int = 1) -> Array:
    """The derivative of a polynomial, taken `m` times.

    Raises:
        ValueError: for a negative `m`, and for coefficients that are no vector.

    Examples:
        >>> kc.polyder([1, 0, -4, 2]).tolist()
        [3, 0, -4]
    """
    p, m = _coefficients(p, "polyder"), operator.index(m)
    if m < 0:
        raise ValueError(f"polyder: the order {m} must not be negative")
    for _ in range(min(m, p.size)):
        n = p.size - 1
        p = window(p, 0, 0, n) * cast_to(arange(n, 0, -1), p.dtype.real)
    return p


def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Array:
    """The integral of a polynomial, taken `m` times, as floats.

    Args:
        k: the constants of integration, one for each time or one for all; 0 by default.

    Raises:
        ValueError: for a negative `m`, and where `k` has another length.

    Examples:
        >>> kc.polyint([3.0, 0.0, -4.0], k=2.0).tolist()
        [1.0, 0.0, -4.0, 2.0]
    """
    p, m = floats(_coefficients(p, "polyint")), operator.index(m)
    if m < 0:
        raise ValueError(f"polyint: the order {m} must not be negative")
    constants = atleast_1d(as_array(0 if k is None else k, p.dtype))
    if constants.shape not in ((1,), (m,)):
        raise ValueError(f"polyint: {constants.size} constants for {m} integrations")
    for i in range(m):
        at = i if constants.size > 1 else 0
        slopes = p / cast_to(arange(p.size, 0, -1), p.dtype)
        p = concatenate([slopes, window(constants, 0, at, at + 1)])
    return p


def poly(seq_of_zeros: ArrayLike) -> Array:
    """The polynomial with given roots and first coefficient 1; of a square matrix, its
    characteristic polynomial.

    Complex roots give complex coefficients, of which NumPy drops imaginary parts that cancel.

    Args:
        seq_of_zeros: (n,), or (n, n), whose eigenvalues LAPACK computes on the host.

    Raises:
        ValueError: for other shapes.

    Examples:
        >>> kc.poly([1.0, -2.0]).tolist()
        [1.0, 1.0, -2.0]
    """
    x = floats(atleast_1d(seq_of_zeros))
    matrix = x.ndim == 2
    if x.ndim > 2 or (matrix and x.shape[0] != x.shape[1]):
        raise ValueError(f"poly needs a vector or a square matrix, got shape {x.shape}")
    found = eigvals(x) if matrix else x
    p = cast_to(as_array([1.0]), found.dtype)
    for k in range(found.size):
        shifted = p * window(found, 0, k, k + 1)
        nothing = zeros((1,), p.dtype)
        p = concatenate([p, nothing]) - concatenate([nothing, shifted])
    return real(p) if matrix and not x.dtype.is_complex else p


def roots(p: ArrayLike) -> Array:
    """The complex roots of a polynomial, the eigenvalues of its companion matrix.

    Zeros at either end of `p` are read on the host, where LAPACK computes eigenvalues, too.

    Raises:
        ValueError: for coefficients that are no vector.
        CaptureError: inside a captured function.

    Examples:
        >>> sorted(kc.roots([1.0, -3.0, 2.0]).numpy().real.round(5).tolist())
        [1.0, 2.0]
    """
    p = floats(_coefficients(p, "roots"))
    host.count("roots")
    places = np.flatnonzero(p.numpy())
    if not places.size:
        return zeros((0,), p.dtype.complex)
    first, last = int(places[0]), int(places[-1])
    zero = zeros((p.size - 1 - last,), p.dtype.complex)
    p = window(p, 0, first, last + 1)
    n = p.size - 1
    if not n:
        return zero
    top = reshape_to(-window(p, 0, 1, n + 1) / window(p, 0, 0, 1), (1, n))
    companion = concatenate([top, eye(n - 1, n, dtype=p.dtype)])
    return concatenate([cast_to(eigvals(companion), zero.dtype), zero])


def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any:
    """The polynomial of degree `deg` that fits samples best, by least squares.

    Args:
        x: (m,), where the samples were taken.
        y: (m,) or (m, k): k polynomials are fitted at once.
        rcond: see `linalg.lstsq`; by default m times the dtype's eps.
        full: also what `linalg.lstsq` gives.
        w: (m,), a weight for each sample's residual.
        cov: also the covariance of the coefficients, scaled by the residuals unless "unscaled".

    Returns:
        Coefficients (deg + 1,) or (deg + 1, k); with `full` (coefficients, residuals, rank,
        singular values, rcond); with `cov` (coefficients, covariance).

    Raises:
        ValueError: for a negative degree, and where too few samples are left for a covariance.
        TypeError: for other shapes.
        CaptureError: inside a captured function: LAPACK decomposes on the host.

    Examples:
        >>> kc.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).numpy().round(4).tolist()
        [2.0, 1.0]
    """
    (x, y), _ = convert((floats(x), floats(y)))
    order = operator.index(deg) + 1
    if order < 1:
        raise ValueError(f"polyfit: the degree {deg} must not be negative")
    if x.ndim != 1 or not x.size or y.ndim not in (1, 2) or y.shape[0] != x.size:
        raise TypeError(f"polyfit needs x (m,) and y (m,) or (m, k), got {x.shape} and {y.shape}")
    if rcond is None:
        rcond = x.size * finfo(x.dtype).eps
    left, right = vander(x, order), y
    if w is not None:
        weights = as_array(w, x.dtype)
        if weights.shape != x.shape:
            raise TypeError(f"polyfit: weights of shape {weights.shape} for {x.size} samples")
        left = left * as_column(weights)
        right = right * (as_column(weights) if y.ndim == 2 else weights)
    scale = sqrt(total(left * left, 0))
    found = lstsq(left / scale, right, rcond)
    c = found.x / (as_column(scale) if y.ndim == 2 else scale)
    if full:
        return c, found.residuals, found.rank, found.singular_values, rcond
    if not cov:
        return c
    base = inv(matmul(transposed(left), left) / (as_column(scale) * scale))
    base = base / (as_column(scale) * scale)
    if cov == "unscaled":
        return c, base if y.ndim == 1 else reshape_to(base, (*base.shape, 1))
    if x.size <= order:
        raise ValueError(
            f"polyfit: {x.size} samples are too few for the covariance of {order} coefficients; "
            'give more, or cov="unscaled"'
        )
    factor = found.residuals / (x.size - order)
    if y.ndim == 1:
        return c, multiply(base, factor)
    return c, reshape_to(base, (*base.shape, 1)) * factor
