"""Linear algebra; use as `kerascl.linalg`.

Systems, inverses, determinants and Cholesky factors are computed on the device, the other
decompositions by LAPACK on the host (`kerascl.ops.decompositions`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.tape import pause
from kerascl.dtypes import DTypeLike, int32
from kerascl.ops import contraction, movement
from kerascl.ops.contraction import matmul as matmul
from kerascl.ops.contraction import tensordot as tensordot
from kerascl.ops.contraction import vecdot as vecdot
from kerascl.ops.creation import eye
from kerascl.ops.declare import as_array, cast_to, convert
from kerascl.ops.decompositions import (
    as_column,
    as_row,
    floats,
    matrices,
    product,
    transposed,
)
from kerascl.ops.decompositions import cholesky as cholesky
from kerascl.ops.decompositions import eig as eig
from kerascl.ops.decompositions import eigh as eigh
from kerascl.ops.decompositions import eigvalsh as eigvalsh
from kerascl.ops.decompositions import lu_factor as lu_factor
from kerascl.ops.decompositions import qr as qr
from kerascl.ops.decompositions import solve_triangular as solve_triangular
from kerascl.ops.decompositions import svd as svd
from kerascl.ops.decompositions import svdvals as svdvals
from kerascl.ops.dtype_functions import finfo
from kerascl.ops.elimination import det as det
from kerascl.ops.elimination import inv as inv
from kerascl.ops.elimination import slogdet as slogdet
from kerascl.ops.elimination import solve as solve
from kerascl.ops.movement import matrix_transpose as matrix_transpose
from kerascl.ops.norms import matrix_norm as matrix_norm
from kerascl.ops.norms import norm as norm
from kerascl.ops.norms import vector_norm as vector_norm
from kerascl.ops.pieces import atleast_1d
from kerascl.ops.pointwise import conjugate, isnan, logical_and, logical_not, real, where
from kerascl.ops.reduction import any as some
from kerascl.ops.reduction import max as max_along
from kerascl.ops.reduction import sum as sum_along
from kerascl.ops.views import expand_to, reshape_to, window

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv",
    "lstsq", "lu_factor", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace",
    "vecdot", "vector_norm",
]  # fmt: skip


def _cutoff(s: Array, x: Array, relative: ArrayLike | None) -> Array:
    """The least singular value that counts, (…, 1)."""
    if relative is None:
        relative = max(x.shape[-2:]) * finfo(x.dtype.accumulator).eps
    relative = as_array(relative, s.dtype)
    return max_along(s, -1, True, initial=0) * (as_column(relative) if relative.ndim else relative)


def pinv(x: ArrayLike, rcond: ArrayLike | None = None, rtol: ArrayLike | None = None) -> Array:
    """Pseudo-inverses (…, n, m) of matrices (…, m, n).

    Args:
        rcond, rtol: two names of one argument: singular values below this part of the largest
            count as 0; by default max(m, n) times the dtype's eps.

    Raises:
        ValueError: for less than two dimensions.
    """
    x = matrices(x, "pinv")
    u, s, vh = svd(x, full_matrices=False)
    large = s > _cutoff(s, x, rcond if rtol is None else rtol)
    inverse = where(large, 1.0 / where(large, s, 1.0), 0.0)
    return product(conjugate(transposed(vh)) * as_row(inverse), conjugate(transposed(u)))


def matrix_rank(x: ArrayLike, tol: ArrayLike | None = None, rtol: ArrayLike | None = None) -> Array:
    """int32 number of singular values of matrices (…, m, n) that are not as good as 0.

    Args:
        tol: the largest value that counts as 0.
        rtol: the same as a part of the largest singular value; by default max(m, n) times the
            dtype's eps.

    Raises:
        ValueError: for less than two dimensions, and where both are given.
    """
    if tol is not None and rtol is not None:
        raise ValueError("matrix_rank: tol and rtol exclude each other; give one")
    x = matrices(x, "matrix_rank")
    with pause():
        s = svdvals(x)
    if tol is None:
        least = _cutoff(s, x, rtol)
    else:
        least = as_array(tol, s.dtype)
        least = as_column(least) if least.ndim else least
    return sum_along(cast_to(s > least, int32), -1, dtype=int32)


def matrix_power(x: ArrayLike, n: int) -> Array:
    """Square matrices (…, m, m) to the power of an integer; negative ones of the inverse.

    Raises:
        ValueError: for matrices that are not square.
    """
    x, n = as_array(x), operator.index(n)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"matrix_power needs square matrices, got shape {x.shape}")
    if n < 0:
        x, n = inv(x), -n
    result = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        if n:
            x = matmul(x, x)
    return expand_to(eye(x.shape[-1], dtype=x.dtype), x.shape) if result is None else result


class LeastSquares(NamedTuple):
    """What `lstsq` gives."""

    x: Array
    residuals: Array
    rank: Array
    singular_values: Array


def lstsq(a: ArrayLike, b: ArrayLike, rcond: ArrayLike | None = None) -> LeastSquares:
    """x of least |a @ x - b|, as NumPy gives it: with residuals, rank and singular values.

    Args:
        a: (m, n).
        b: (m, k) or (m,).
        rcond: see `pinv`.

    Returns:
        x (n, k) or (n,); the sums of squares (k,) of a @ x - b, where NumPy leaves them out if the
        rank is below n or m is not above it; the int32 rank; the singular values (min(m, n),).

    Raises:
        CaptureError: inside a captured function: LAPACK decomposes on the host.
    """
    a, b = floats(a), floats(b)
    x = least_squares(a, b, rcond)
    rest = matmul(a, x) - b
    squares = sum_along(real(rest * conjugate(rest)), 0)
    return LeastSquares(x, atleast_1d(squares), matrix_rank(a, rtol=rcond), svdvals(a))


def eigvals(x: ArrayLike) -> Array:
    """Eigenvalues (…, n), complex, of matrices (…, n, n), in no order."""
    return eig(x).eigenvalues


def least_squares(a: ArrayLike, b: ArrayLike, rcond: ArrayLike | None = None) -> Array:
    """x of least |a @ x - b|, for a (m, n) and b (m, k) or (m,); `rcond` as for `pinv`."""
    a, b = floats(a), floats(b)
    vector = b.ndim == 1
    if vector:
        b = as_column(b)
    x = matmul(pinv(a, rcond), b)
    return reshape_to(x, x.shape[:-1]) if vector else x


def cond(x: ArrayLike, p: float | str | None = None) -> Array:
    """Condition numbers of matrices (…, m, n): |x| |x^-1| in a norm.

    Args:
        p: None or 2 for the ratio of the largest to the smallest singular value, -2 for its
            inverse, or a norm that `norm` takes.

    Raises:
        ValueError: for less than two dimensions, and with other norms for matrices that are not
            square.

    Examples:
        >>> float(kc.linalg.cond(kc.array([[4.0, 0.0], [0.0, 2.0]]), 1))
        2.0
    """
    x = matrices(x, "cond", square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        s = svdvals(x)
        count = s.shape[-1]
        largest = reshape_to(window(s, s.ndim - 1, 0, 1), s.shape[:-1])
        smallest = reshape_to(window(s, s.ndim - 1, count - 1, count), s.shape[:-1])
        found = smallest / largest if p == -2 else largest / smallest
    else:
        found = norm(x, p, (-2, -1)) * norm(inv(x), p, (-2, -1))
    # singular matrices give infinity, those with NaN give NaN
    broken = some(isnan(x), (-2, -1))
    return where(logical_and(isnan(found), logical_not(broken)), math.inf, found)


def multi_dot(arrays: Sequence[ArrayLike]) -> Array:
    """The product of two or more matrices, in the order that takes the fewest multiplications.

    The first and the last may be vectors, a row and a column.

    Raises:
        ValueError: for less than two arrays, and for shapes that do not fit.

    Examples:
        >>> kc.linalg.multi_dot([kc.ones((2, 3)), kc.ones((3, 4)), kc.ones(4)]).tolist()
        [12.0, 12.0]
    """
    parts = [as_array(x) for x in arrays]
    if len(parts) < 2:
        raise ValueError(f"multi_dot needs two arrays or more, got {len(parts)}")
    row, column = parts[0].ndim == 1, parts[-1].ndim == 1
    if row:
        parts[0] = as_row(parts[0])
    if column:
        parts[-1] = as_column(parts[-1])
    for k, x in enumerate(parts):
        if x.ndim != 2 or (k and parts[k - 1].shape[1] != x.shape[0]):
            raise ValueError(f"multi_dot: shapes {[as_array(a).shape for a in arrays]} do not fit")
    y = _in_order(parts, _split([parts[0].shape[0], *(x.shape[1] for x in parts)]), 0, len(parts))
    shape = y.shape[1:] if row else y.shape
    return reshape_to(y, shape[:-1] if column else shape)


def _split(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where each run of factors is best divided in two: the matrix chain order (Cormen et al.)."""
    count = len(sizes) - 1
    cost = {(k, k + 1): 0 for k in range(count)}
    best = {}
    for length in range(2, count + 1):
        for a in range(count - length + 1):
            b = a + length

            def price(m: int, a: int = a, b: int = b) -> int:
                return cost[a, m] + cost[m, b] + sizes[a] * sizes[m] * sizes[b]

            best[a, b] = min(range(a + 1, b), key=price)
            cost[a, b] = price(best[a, b])
    return best


def _in_order(parts: list[Array], best: dict[tuple[int, int], int], a: int, b: int) -> Array:
    if b - a == 1:
        return parts[a]
    m = best[a, b]
    return matmul(_in_order(parts, best, a, m), _in_order(parts, best, m, b))


def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """x with tensordot(a, x, x.ndim) = b.

    Args:
        a: of shape b.shape + Q, where Q and `b` have as many elements.
        axes: of `a` to put behind the others first.

    Raises:
        ValueError: when the sizes do not fit.

    Examples:
        >>> a = kc.reshape(kc.eye(4) * 2.0, (2, 2, 4))
        >>> kc.linalg.tensorsolve(a, kc.ones((2, 2))).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    a, b = as_array(a), as_array(b)
    if axes is not None:
        moved = [rules.axis_index(axis, a.ndim) for axis in axes]
        rest = [k for k in range(a.ndim) if k not in moved]
        a = movement.transpose(a, rest + moved)
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape or math.prod(shape) != b.size:
        raise ValueError(f"tensorsolve: a of shape {a.shape} does not fit b of shape {b.shape}")
    x = solve(reshape_to(a, (b.size, b.size)), reshape_to(b, (b.size,)))
    return reshape_to(x, shape)


def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """The inverse of `a` as a map of the axes from `ind` on to those before it.

    Raises:
        ValueError: when `ind` is not positive, or both halves differ in size.

    Examples:
        >>> kc.linalg.tensorinv(kc.reshape(kc.eye(4) * 2.0, (4, 2, 2)), 1).shape
        (2, 2, 4)
    """
    a, ind = as_array(a), operator.index(ind)
    if ind <= 0:
        raise ValueError(f"tensorinv: ind must be positive, not {ind}")
    first, second = a.shape[:ind], a.shape[ind:]
    n = math.prod(first)
    if math.prod(second) != n:
        raise ValueError(f"tensorinv: {first} and {second} differ in size; choose another ind")
    return reshape_to(inv(reshape_to(a, (n, n))), (*second, *first))


# -- as the array API standard has them, over the last axes ---------------------------------------
def cross(x1: ArrayLike, x2: ArrayLike, axis: int = -1) -> Array:
    """Cross products of vectors of 3 components along `axis`; the other axes broadcast.

    Raises:
        ValueError: for other sizes.
    """
    (a, b), _ = convert((x1, x2))
    rank = max(a.ndim, b.ndim)
    for x in (a, b):
        place = rules.axis_index(axis, rank) - rank + x.ndim
        if place < 0 or x.shape[place] != 3:
            raise ValueError(
                f"linalg.cross needs 3 components along axis {axis}, got shapes "
                f"{a.shape} and {b.shape}"
            )
    a, b = (reshape_to(x, (1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    shape = rules.broadcast(a.shape, b.shape)
    return contraction.cross(expand_to(a, shape), expand_to(b, shape), axis=axis)


def diagonal(x: ArrayLike, offset: int = 0) -> Array:
    """The diagonals of matrices (…, m, n), as the last axis of the result."""
    return movement.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """The sums of the diagonals of matrices (…, m, n); `dtype` as for `kerascl.sum`."""
    return contraction.trace(x, offset, -2, -1, dtype)


def outer(x1: ArrayLike, x2: ArrayLike) -> Array:
    """All products of the elements of two vectors.

    Raises:
        ValueError: for other than one dimension.
    """
    a, b = as_array(x1), as_array(x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"linalg.outer needs two vectors, got shapes {a.shape} and {b.shape}")
    return contraction.outer(a, b)
