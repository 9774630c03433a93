"""Matrix products, and everything that becomes one."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from kerascl.core import context, rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Op
from kerascl.core.types import Attrs, Gradients, Results
from kerascl.dtypes import DType, DTypeLike, int32
from kerascl.ops import reduction
from kerascl.ops.batched import as_batches, element_by_element, merge
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, convert, library_operation, numeric, scalar
from kerascl.ops.gather import take
from kerascl.ops.movement import concatenate, diagonal, iota, moveaxis, ravel
from kerascl.ops.pointwise import conjugate, imag, make_complex, multiply, not_equal, real
from kerascl.ops.views import expand_to, flip_axes, pad_with, permute, reshape_to, window

__all__ = [
    "correlate", "cross", "dot", "einsum", "inner", "kron", "matmul", "matvec", "outer",
    "tensordot", "trace", "vdot", "vecdot", "vecmat",
]  # fmt: skip


_BATCH_AXES = 3  # that the matrix product takes


def _swap(x: Array) -> Array:
    return permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


# Attribute: (precision,), see core.context.precision.
def _matmul_vjp(g: Array, y: Array, a: Array, b: Array, precision: str) -> Gradients:
    left = _batched(g, _swap(b), a.dtype, precision)
    return left, _batched(_swap(a), g, b.dtype, precision)


def _matmul_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    ((shape, dtype),) = results
    a, b = inputs
    if not batched[1] and b.ndim == 2:
        flat = apply(op, (merge(a), b), attrs, (size * shape[0], shape[1]), dtype)
        return [reshape_to(flat, (size, *shape))]
    a, b = as_batches(size, inputs, batched)
    lead = (size, *shape[:-2])
    if len(lead) > _BATCH_AXES:
        count = math.prod(lead)
        a, b = (reshape_to(x, (count, *x.shape[-2:])) for x in (a, b))
        lead = (count,)
    flat = apply(op, (a, b), attrs, (*lead, *shape[-2:]), dtype)
    return [reshape_to(flat, (size, *shape))]


MATMUL = library_operation("matmul", _matmul_vjp, batch=_matmul_batch)
# The sum of a @ b^T over pairs of inputs a (m, k) and b (n, k): what the compiler makes of products
# that are added.  Attribute: that of MATMUL.
MATMUL_SUM = library_operation("matmul_sum", batch=element_by_element)
# The product of a (m, k) and b (k, n), and the sums of b's columns (n,): gradients of a dense
# layer's weights and bias, made by the compiler.  Attribute: that of MATMUL.
DENSE_GRAD = library_operation("dense_grad", outputs=2, batch=element_by_element)


def _batched(a: Array, b: Array, dtype: DType, precision: str | None = None) -> Array:
    """a[.., m, k] @ b[.., k, n] with equal batch dimensions."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    if dtype.is_complex:
        return _complex_product(a, b)
    if dtype.is_bool:
        return not_equal(_batched(cast_to(a, int32), cast_to(b, int32), int32), 0)
    if not k:
        return expand_to(scalar(0, dtype), (*batch, m, n))
    if len(batch) > 3:
        size = math.prod(batch)
        flat = _batched(reshape_to(a, (size, m, k)), reshape_to(b, (size, k, n)), dtype, precision)
        return reshape_to(flat, (*batch, m, n))
    precision = precision or context.product_precision(dtype)
    return apply(MATMUL, (a, b), (precision,), (*batch, m, n), dtype)


def _complex_product(a: Array, b: Array) -> Array:
    ar, ai, br, bi = real(a), imag(a), real(b), imag(b)
    dtype = ar.dtype
    re = _batched(ar, br, dtype) - _batched(ai, bi, dtype)
    return make_complex(re, _batched(ar, bi, dtype) + _batched(ai, br, dtype))


def _convert(args: Sequence[Any], dtype: DType | None) -> tuple[list[Array], DType]:
    arrays, common = convert(args)
    return arrays, dtype or common


def matmul(a: ArrayLike, b: ArrayLike, dtype: DType | None = None) -> Array:
    """Matrix product with NumPy's rules for vectors and broadcast batch dimensions.

    Args:
        a: (…, m, k) or (k,).
        b: (…, k, n) or (k,).
        dtype: of the result; by default that of the promoted inputs.

    Raises:
        ValueError: when the shapes do not fit.
    """
    (a, b), dtype = _convert((a, b), dtype)
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


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    dtype: DType | None = None,
) -> Array:
    """Sum of products over axes of both arrays.

    Args:
        axes: how many of the last axes of `a` and the first of `b`; or two sequences of axes.

    Raises:
        ValueError: when the axes do not fit.
    """
    (a, b), dtype = _convert((a, b), dtype)
    if rules.is_integer(axes):
        (count,) = rules.integers(axes)
        first, second = list(range(a.ndim - count, a.ndim)), list(range(count))
    else:
        first, second = (list(rules.integers(x)) for x in axes)  # type: ignore[union-attr]
    first = [rules.axis_index(x, a.ndim) for x in first]
    second = [rules.axis_index(x, b.ndim) for x in second]
    if [a.shape[x] for x in first] != [b.shape[x] for x in second]:
        raise ValueError(f"tensordot: axes {axes} of shapes {a.shape} and {b.shape} do not fit")
    rows = [x for x in range(a.ndim) if x not in first]
    columns = [x for x in range(b.ndim) if x not in second]
    m, k = math.prod(a.shape[x] for x in rows), math.prod(a.shape[x] for x in first)
    n = math.prod(b.shape[x] for x in columns)
    left = reshape_to(permute(a, (*rows, *first)), (m, k))
    right = reshape_to(permute(b, (*second, *columns)), (k, n))
    shape = (*(a.shape[x] for x in rows), *(b.shape[x] for x in columns))
    return reshape_to(_batched(left, right, dtype), shape)


def dot(a: ArrayLike, b: ArrayLike, dtype: DType | None = None) -> Array:
    """NumPy's dot: the last axis of `a` with the last but one of `b`; scalars multiply."""
    (a, b), dtype = _convert((a, b), dtype)
    if a.ndim == 0 or b.ndim == 0:
        return multiply(cast_to(a, dtype), cast_to(b, dtype))
    return tensordot(a, b, ([a.ndim - 1], [builtins.max(0, b.ndim - 2)]), dtype)


def inner(a: ArrayLike, b: ArrayLike, dtype: DType | None = None) -> Array:
    """Sum of products over the last axes."""
    (a, b), dtype = _convert((a, b), dtype)
    if a.ndim == 0 or b.ndim == 0:
        return multiply(cast_to(a, dtype), cast_to(b, dtype))
    return tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]), dtype)


def outer(a: ArrayLike, b: ArrayLike) -> Array:
    """All products of the elements of two flattened arrays."""
    (a, b), _ = convert((a, b))
    return multiply(reshape_to(a, (a.size, 1)), reshape_to(b, (1, b.size)))


def vdot(a: ArrayLike, b: ArrayLike, dtype: DType | None = None) -> Array:
    """Sum of products of two flattened arrays, the first one conjugated."""
    (a, b), dtype = _convert((a, b), dtype)
    return tensordot(conjugate(ravel(a)), ravel(b), 1, dtype)


def vecdot(x1: ArrayLike, x2: ArrayLike, axis: int = -1) -> Array:
    """Sum of products along one axis of both arrays, the first one conjugated; the others
    broadcast.

    Raises:
        ValueError: when the sizes along the axis differ.
    """
    (a, b), dtype = _convert((x1, x2), None)
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    n = a.shape[-1]
    if n != b.shape[-1]:
        raise ValueError(f"vecdot: sizes {n} and {b.shape[-1]} along axis {axis} differ")
    work = int32 if dtype.is_bool else dtype.accumulator
    y = total(multiply(conjugate(cast_to(a, work)), cast_to(b, work)), -1)
    return not_equal(y, 0) if dtype.is_bool else cast_to(y, dtype)


def matvec(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Products (…, m) of matrices (…, m, n) and vectors (…, n); leading axes broadcast.

    Raises:
        ValueError: for shapes that do not fit.

    Examples:
        >>> kc.matvec([[1, 2], [3, 4]], [[1, 0], [0, 1]]).tolist()
        [[1, 3], [2, 4]]
    """
    a, b = as_array(x1), as_array(x2)
    if a.ndim < 2 or b.ndim < 1:
        raise ValueError(f"matvec needs matrices and vectors, got shapes {a.shape} and {b.shape}")
    y = matmul(a, reshape_to(b, (*b.shape, 1)))
    return reshape_to(y, y.shape[:-1])


def vecmat(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Products (…, n) of vectors (…, m), complex ones conjugated, and matrices (…, m, n).

    Raises:
        ValueError: for shapes that do not fit.

    Examples:
        >>> kc.vecmat([1, 1], [[1, 2], [3, 4]]).tolist()
        [4, 6]
    """
    a, b = as_array(x1), as_array(x2)
    if a.ndim < 1 or b.ndim < 2:
        raise ValueError(f"vecmat needs vectors and matrices, got shapes {a.shape} and {b.shape}")
    a = conjugate(a) if a.dtype.is_complex else a
    y = matmul(reshape_to(a, (*a.shape[:-1], 1, a.shape[-1])), b)
    return reshape_to(y, (*y.shape[:-2], y.shape[-1]))


def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """Kronecker product."""
    (a, b), _ = convert((a, b))
    rank = builtins.max(a.ndim, b.ndim)
    first = (1,) * (rank - a.ndim) + a.shape
    second = (1,) * (rank - b.ndim) + b.shape
    left = reshape_to(a, tuple(n for m in first for n in (m, 1)))
    right = reshape_to(b, tuple(n for m in second for n in (1, m)))
    shape = tuple(m * n for m, n in zip(first, second, strict=True))
    return reshape_to(multiply(left, right), shape)


def trace(
    x: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None
) -> Array:
    """Sum of the diagonal of two axes; `dtype` as for `sum`."""
    return reduction.sum(diagonal(x, offset, axis1, axis2), -1, dtype=dtype)


def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """Cross product of vectors of 2 or 3 components along an axis; of two planar ones, its z."""
    if axis is not None:
        axisa = axisb = axisc = axis
    (a, b), _ = convert((a, b))
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    if a.shape[-1] not in (2, 3) or b.shape[-1] not in (2, 3):
        raise ValueError(f"cross: vectors of {a.shape[-1]} and {b.shape[-1]} components")

    def components(x: Array) -> list[Array]:
        lead = x.shape[:-1]
        return [reshape_to(window(x, x.ndim - 1, k, k + 1), lead) for k in range(x.shape[-1])]

    (a0, a1, *a2), (b0, b1, *b2) = components(a), components(b)
    z = a0 * b1 - a1 * b0
    if a2 and b2:
        x, y = a1 * b2[0] - a2[0] * b1, a2[0] * b0 - a0 * b2[0]
    elif a2:
        x, y = -(a2[0] * b1), a2[0] * b0
    elif b2:
        x, y = a1 * b2[0], -(a0 * b2[0])
    else:
        return z
    from_parts = [reshape_to(v, (*v.shape, 1)) for v in (x, y, z)]
    return moveaxis(concatenate(from_parts, -1), -1, axisc)


def correlate(a: ArrayLike, b: ArrayLike, mode: str = "valid") -> Array:
    """Correlation of two vectors, as NumPy's; `mode` is "valid", "same" or "full"."""
    if mode not in ("valid", "same", "full"):
        raise ValueError(f"correlate: mode {mode!r} must be 'valid', 'same' or 'full'")
    (a, b), common = convert((a, b))
    common = numeric(common)[0]
    a, b = cast_to(a, common), cast_to(b, common)
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise ValueError(f"correlate needs two filled vectors, got shapes {a.shape} and {b.shape}")
    b = conjugate(b)
    swapped = a.size < b.size and mode != "full"
    if swapped:
        a, b = conjugate(b), conjugate(a)
    n, m = a.size, b.size
    if mode == "full":
        low = high = m - 1
    elif mode == "same":
        low, high = m // 2, m - 1 - m // 2
    else:
        low = high = 0
    rows = n + low + high - m + 1
    padded = pad_with(a, [low], [high], [0], 0)
    # window r of the padded vector is row r: element r + k
    place = iota((rows, m), 0) + iota((rows, m), 1)
    y = reshape_to(_batched(take(padded, place), reshape_to(b, (m, 1)), common), (rows,))
    return flip_axes(conjugate(y), (0,)) if swapped else y


# -- einsum -------------------------------------------------------------------
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _parse(subscripts: str, operands: Sequence[Array]) -> tuple[list[str], str]:
    """Labels of each operand and of the result, with "..." replaced by letters."""
    text = subscripts.replace(" ", "")
    source, arrow, result = text.partition("->")
    terms = source.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, got {len(operands)}")
    free = [c for c in _LETTERS if c not in text]
    widest = 0
    for term, x in zip(terms, operands, strict=True):
        plain = term.replace("...", "")
        if "." in plain or not all(c in _LETTERS for c in plain):
            raise ValueError(f"einsum: cannot read {term!r} in {subscripts!r}")
        extra = x.ndim - len(plain)
        if extra < 0 or (extra and "..." not in term):
            raise ValueError(f"einsum: {term!r} does not fit an operand of shape {x.shape}")
        widest = builtins.max(widest, extra if "..." in term else 0)
    dots = "".join(free[:widest])
    labels = []
    for term, x in zip(terms, operands, strict=True):
        extra = x.ndim - len(term.replace("...", ""))
        labels.append(term.replace("...", dots[len(dots) - extra :] if extra else ""))
    joined = "".join(labels)
    if arrow:
        result = result.replace("...", dots)
    else:
        result = dots + "".join(
            sorted(c for c in set(joined) if joined.count(c) == 1 and c not in dots)
        )
    for c in result:
        if c not in joined or result.count(c) > 1:
            raise ValueError(f"einsum: output label {c!r} of {subscripts!r} is unknown or repeated")
    return labels, result


def _sizes(labels: list[str], operands: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(labels, operands, strict=True):
        for c, n in zip(term, x.shape, strict=True):
            known = sizes.setdefault(c, n)
            if known != n and 1 not in (known, n):
                raise ValueError(f"einsum: label {c!r} has sizes {known} and {n}")
            sizes[c] = builtins.max(known, n) if n else 0
    return sizes


def _simplify(x: Array, term: str, needed: set[str], sizes: dict[str, int]) -> tuple[Array, str]:
    """Take diagonals of repeated labels and sum those that nobody else needs."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            first = term.index(c)
            second = term.index(c, first + 1)
            x = diagonal(x, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + c
    # labels of size 1 that are wider elsewhere broadcast: drop the axis
    drop = [k for k, c in enumerate(term) if x.shape[k] == 1 and sizes[c] != 1]
    if drop:
        x = reshape_to(x, tuple(n for k, n in enumerate(x.shape) if k not in drop))
        term = "".join(c for k, c in enumerate(term) if k not in drop)
    gone = tuple(k for k, c in enumerate(term) if c not in needed)
    if gone:
        x = total(x, gone)
        term = "".join(c for c in term if c in needed)
    return x, term


def _contract(
    x: Array, a: str, y: Array, b: str, needed: set[str], dtype: DType
) -> tuple[Array, str]:
    """Two operands as one batched matrix product."""
    batch = [c for c in a if c in b and c in needed]
    middle = [c for c in a if c in b and c not in needed]
    rows = [c for c in a if c not in b]
    columns = [c for c in b if c not in a]
    size = dict(zip(a, x.shape, strict=True)) | dict(zip(b, y.shape, strict=True))
    if not middle:
        # no sum: an elementwise product
        names = batch + rows + columns
        left = _aligned(x, a, names, size)
        right = _aligned(y, b, names, size)
        return multiply(cast_to(left, dtype), cast_to(right, dtype)), "".join(names)

    def group(names: list[str]) -> int:
        return math.prod(size[c] for c in names)

    m, k, n = group(rows), group(middle), group(columns)
    left = permute(x, tuple(a.index(c) for c in (*batch, *rows, *middle)))
    right = permute(y, tuple(b.index(c) for c in (*batch, *middle, *columns)))
    lead = tuple(size[c] for c in batch)
    product = _batched(reshape_to(left, (*lead, m, k)), reshape_to(right, (*lead, k, n)), dtype)
    names = batch + rows + columns
    return reshape_to(product, tuple(size[c] for c in names)), "".join(names)


def _aligned(x: Array, labels: str, names: list[str], size: dict[str, int]) -> Array:
    x = permute(x, tuple(labels.index(c) for c in names if c in labels))
    return reshape_to(x, tuple(size[c] if c in labels else 1 for c in names))


def einsum(subscripts: str, *operands: ArrayLike, dtype: DType | None = None) -> Array:
    """Einstein summation: any number of operands, repeated labels and "...".

    Pairs of operands become batched matrix products, the smallest result first.

    Raises:
        ValueError: when `subscripts` cannot be read or does not fit.
    """
    arrays, dtype = _convert(operands, dtype)
    labels, result = _parse(subscripts, arrays)
    sizes = _sizes(labels, arrays)
    terms = list(zip(arrays, labels, strict=True))

    def needed_beside(skip: tuple[int, ...]) -> set[str]:
        needed = set(result)
        for k, (_, term) in enumerate(terms):
            if k not in skip:
                needed |= set(term)
        return needed

    if len(terms) == 1:
        terms[0] = (cast_to(terms[0][0], dtype), terms[0][1])
    terms = [(*_simplify(x, t, needed_beside((k,)), sizes),) for k, (x, t) in enumerate(terms)]
    while len(terms) > 1:
        best: tuple[int, int, int, set[str]] | None = None
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                needed = needed_beside((i, j))
                joint = set(terms[i][1]) | set(terms[j][1])
                grown = math.prod(sizes[c] for c in joint & needed)
                grown -= terms[i][0].size + terms[j][0].size
                if best is None or grown < best[0]:
                    best = (grown, i, j, needed)
        assert best is not None
        _, i, j, needed = best
        (x, a), (y, b) = terms[i], terms[j]
        x, a = _simplify(x, a, needed | set(b), sizes)
        y, b = _simplify(y, b, needed | set(a), sizes)
        joined = _contract(x, a, y, b, needed, dtype)
        terms = [t for k, t in enumerate(terms) if k not in (i, j)] + [joined]
    x, term = terms[0]
    x = cast_to(x, dtype)
    missing = [c for c in result if c not in term]  # labels of size 1 that were dropped
    x = reshape_to(x, x.shape + (1,) * len(missing))
    term += "".join(missing)
    x = permute(x, tuple(term.index(c) for c in result))
    return expand_to(x, tuple(sizes[c] for c in result))
