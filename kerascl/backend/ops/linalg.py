"""Linear algebra with Keras' names and dtypes; `kerascl.ops` computes it.

Systems, inverses, determinants and Cholesky factors are computed on the device.  Orthogonal
factors, eigenvalues and singular values come from LAPACK on the host, with gradients in array
code; inside captured steps they raise CaptureError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from keras.src import tree
from keras.src.backend import config
from keras.src.backend.common import dtypes as keras_dtypes

from kerascl.backend import tracing
from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core.array import Array
from kerascl.core.tape import GradientTape
from kerascl.dtypes import BY_NAME, complex64, float32
from kerascl.ops import decompositions, norms
from kerascl.ops import linalg as device_linalg
from kerascl.ops.creation import full, ones_like, zeros_like
from kerascl.ops.declare import cast_to
from kerascl.ops.decompositions import eye_like, product, transposed
from kerascl.ops.movement import expand_dims, squeeze
from kerascl.ops.pointwise import isnan
from kerascl.ops.reduction import any as any_along
from kerascl.ops.reduction import sum as sum_along
from kerascl.ops.views import expand_to


def _floating(x) -> Array:
    x = convert_to_tensor(x)
    return x if x.dtype.is_float or x.dtype.is_complex else cast_to(x, BY_NAME[config.floatx()])


# -- factors --------------------------------------------------------------------------------------
def cholesky(a, upper: bool = False) -> Array:
    """The lower (or upper) triangular factor of positive definite matrices (…, n, n).

    Raises:
        ValueError: when a matrix is not positive definite; inside a captured step its factor is
            NaN instead.
    """
    y = device_linalg.cholesky(_floating(a))
    if tracing.is_known(y) and bool(any_along(isnan(y))):
        raise ValueError(
            "Cholesky decomposition failed. The input might not be a valid positive definite "
            "matrix."
        )
    return transposed(y) if upper else y


def cholesky_inverse(a, upper: bool = False) -> Array:
    """The inverse of the matrix whose Cholesky factor is `a`."""
    a = _floating(a)
    identity = expand_to(eye_like(a), a.shape)
    inverse = solve_triangular(a, identity, lower=not upper)
    return product(inverse, transposed(inverse)) if upper else product(transposed(inverse), inverse)


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
    q, r = device_linalg.qr(_floating(x), mode)
    return q, r


def lu_factor(x) -> tuple[Array, Array]:
    """LU factors of square matrices in one array, and int32 rows swapped at each step."""
    return device_linalg.lu_factor(_floating(x))


def eig(x) -> tuple[Array, Array]:
    """Eigenvalues (…, n) and eigenvectors (…, n, n) of square matrices, complex64."""
    values, vectors = device_linalg.eig(_floating(x))
    return cast_to(values, complex64), cast_to(vectors, complex64)


def eigh(x) -> tuple[Array, Array]:
    """Eigenvalues (…, n), ascending, and eigenvectors (…, n, n) of symmetric matrices."""
    values, vectors = device_linalg.eigh(_floating(x))
    return values, vectors


def svd(x, full_matrices: bool = True, compute_uv: bool = True):
    """Singular values, or (u, s, v^T), of matrices (…, m, n)."""
    x = _floating(x)
    return tuple(decompositions.svd(x, full_matrices)) if compute_uv else device_linalg.svdvals(x)


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
    a, b = _alike(a, b)
    if b.ndim == a.ndim - 1:  # a vector for each matrix
        return squeeze(device_linalg.solve(a, expand_dims(b, -1)), -1)
    return device_linalg.solve(a, b)


def solve_triangular(a, b, lower: bool = False) -> Array:
    """x with a @ x = b, reading only the lower or upper triangle of `a`; see `solve`."""
    return device_linalg.solve_triangular(*_alike(a, b), lower)


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
    return device_linalg.pinv(_floating(_matrix(x)), rcond)


def lstsq(a, b, rcond=None) -> Array:
    """x of least |a @ x - b|, for a (m, n) and b (m, k) or (m,)."""
    return device_linalg.least_squares(_floating(a), _floating(b), rcond)


def matrix_rank(x, tol=None) -> Array:
    """int32 number of singular values above `tol` (relative to the largest, by default).

    Raises:
        ValueError: for less than two dimensions.
    """
    x = _floating(_matrix(x))
    return device_linalg.matrix_rank(x, None if tol is None else convert_to_tensor(tol, x.dtype))


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
    return norms.norm_of(cast_to(x, BY_NAME[dtype]), ord, axis, keepdims)


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
