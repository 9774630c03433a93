"""Matrix products."""

from __future__ import annotations

import math

from kerascl.core import rules
from kerascl.core.array import Array, apply
from kerascl.dtypes import DType
from kerascl.ops.declare import convert, expand_to, family, numeric, reshape_to
from kerascl.ops.movement import transpose


def _swap(x: Array) -> Array:
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _matmul_vjp(g, y, a, b):
    return _batched(g, _swap(b), a.dtype), _batched(_swap(a), g, b.dtype)


MATMUL = family("matmul", _matmul_vjp)


def _batched(a: Array, b: Array, dtype: DType) -> Array:
    """a[.., m, k] @ b[.., k, n] with equal batch dimensions."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    if len(batch) > 3:
        size = math.prod(batch)
        flat = _batched(reshape_to(a, (size, m, k)), reshape_to(b, (size, k, n)), dtype)
        return reshape_to(flat, (*batch, m, n))
    return apply(MATMUL, (a, b), (), (*batch, m, n), dtype)


def matmul(a, b, dtype: DType | None = None) -> Array:
    """Matrix product with NumPy's rules for vectors and broadcast batch dimensions.

    Args:
        a: (…, m, k) or (k,).
        b: (…, k, n) or (k,).
        dtype: of the result; by default that of the promoted inputs.

    Raises:
        ValueError: when the shapes do not fit.
    """
    (a, b), common = convert((a, b))
    common = numeric(common)[0]
    dtype = dtype or common
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError("matmul: arrays of shape () have no matrix product")
    a_vector, b_vector = a.ndim == 1, b.ndim == 1
    if a_vector:
        a = reshape_to(a, (1, *a.shape))
    if b_vector:
        b = reshape_to(b, (*b.shape, 1))
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.ndim == 2 and a.ndim > 2:
        batch = a.shape[:-2]
        flat = _batched(reshape_to(a, (math.prod(batch) * m, k)), b, dtype)
        y = reshape_to(flat, (*batch, m, n))
    else:
        batch = rules.broadcast(a.shape[:-2], b.shape[:-2])
        y = _batched(expand_to(a, (*batch, m, k)), expand_to(b, (*batch, k, n)), dtype)
    if a_vector:
        y = reshape_to(y, (*y.shape[:-2], y.shape[-1]))
    if b_vector:
        y = reshape_to(y, y.shape[:-1])
    return y
