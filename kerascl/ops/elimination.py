"""Linear systems by elimination, on the device; `kerascl.linalg` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kerascl.core import context, rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.tape import custom_gradient
from kerascl.core.types import Gradients
from kerascl.ops.batched import more_rows
from kerascl.ops.contraction import matmul
from kerascl.ops.control import loop
from kerascl.ops.creation import eye, ones, zeros
from kerascl.ops.declare import as_array, cast_to, convert, floating, library_operation
from kerascl.ops.gather import take_along_axis
from kerascl.ops.movement import iota, swapaxes
from kerascl.ops.pointwise import absolute, equal, exp, greater_equal, log, logical_and, sign, where
from kerascl.ops.reduction import argmax
from kerascl.ops.views import expand_to, reshape_to

__all__ = ["det", "inv", "slogdet", "solve"]


def _squares(a: ArrayLike) -> tuple[Array, tuple[int, ...]]:
    """Matrices as (count, n, n) in a dtype wide enough, and the leading shape."""
    a = as_array(a)
    a = cast_to(a, floating(a.dtype)[0])
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"square matrices are needed, got shape {a.shape}")
    lead, n = a.shape[:-2], a.shape[-1]
    count = 1
    for m in lead:
        count *= m
    return cast_to(reshape_to(a, (count, n, n)), a.dtype.accumulator), lead


def _row_of(m: Array, place: Array) -> Array:
    """Row `place` (count, 1, 1) of each matrix, as (count, 1, width)."""
    return take_along_axis(m, expand_to(place, (m.shape[0], 1, m.shape[2])), 1)


def _pivot(m: Array, k: Array) -> tuple[Array, Array, Array, Array]:
    """Exchange row k with the one that has the largest element in column k.

    Returns the matrices, row k, column k, and whether rows were exchanged.
    """
    count, n, _ = m.shape
    step = expand_to(reshape_to(k, (1, 1, 1)), (count, 1, 1))
    column = take_along_axis(m, expand_to(step, (count, n, 1)), 2)
    rows = iota((count, n, 1), 1)
    size = where(greater_equal(rows, step), absolute(column), -1.0)
    place = reshape_to(argmax(size, 1), (count, 1, 1))
    top, best = _row_of(m, step), _row_of(m, place)
    m = where(equal(rows, step), best, where(equal(rows, place), top, m))
    column = take_along_axis(m, expand_to(step, (count, n, 1)), 2)
    return m, best, column, place > step


def _slogdet(a: Array) -> tuple[Array, Array]:
    count, n, _ = a.shape
    if not a.size:  # the determinant of no elements is 1
        return ones((count,), a.dtype), zeros((count,), a.dtype.real)

    def step(carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        m, signs, logs = carry
        (k,) = slices
        m, row, column, moved = _pivot(m, k)
        spot = expand_to(reshape_to(k, (1, 1, 1)), (count, 1, 1))
        pivot = take_along_axis(row, spot, 2)
        safe = where(equal(pivot, 0), 1, pivot)
        below = iota((count, n, 1), 1) > spot
        m = m - where(below, column / safe, 0) * row
        turn = reshape_to(where(moved, -1, 1), (count,))
        pivot = reshape_to(pivot, (count,))
        signs = signs * sign(pivot) * cast_to(turn, signs.dtype)
        return [m, signs, logs + log(absolute(pivot))], []

    start = [a, ones((count,), a.dtype), zeros((count,), a.dtype.real)]
    (_, signs, logs), _ = loop(step, start, [iota((n,), 0)])
    return signs, logs


# a (count, n, n), b (count, n, columns) -> x with a @ x = b.
SOLVE = library_operation("solve", batch=more_rows)


def gauss_jordan(a: Array, b: Array) -> Array:
    """`SOLVE` by a loop over the columns of `a`, each step of which all of a device shares."""
    count, n, _ = a.shape

    def step(carry: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        m, x = carry
        (k,) = slices
        spot = expand_to(reshape_to(k, (1, 1, 1)), (count, 1, 1))
        rows = iota((count, n, 1), 1)
        column = take_along_axis(m, expand_to(spot, (count, n, 1)), 2)
        size = where(greater_equal(rows, spot), absolute(column), -1.0)
        place = reshape_to(argmax(size, 1), (count, 1, 1))
        here, there = equal(rows, spot), logical_and(equal(rows, place), place > spot)
        m_row, x_row = _row_of(m, place), _row_of(x, place)
        m = where(here, m_row, where(there, _row_of(m, spot), m))
        x = where(here, x_row, where(there, _row_of(x, spot), x))
        pivot = take_along_axis(m_row, spot, 2)
        column = take_along_axis(m, expand_to(spot, (count, n, 1)), 2)
        factor = where(here, (pivot - 1) / pivot, column / pivot)
        return [m - factor * m_row, x - factor * x_row], []

    (_, x), _ = loop(step, [a, b], [iota((n,), 0)])
    return x


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """x with a @ x = b, for matrices (…, n, n) and right sides (…, n, k) or one vector (n,).

    The leading dimensions broadcast. Where elimination meets a pivot of 0 (a matrix of zeros, equal
    rows), the result has infinities or NaN: NumPy's error would have to wait for the device. Where
    rounding hides that a matrix is singular, numbers are huge, as in NumPy; see `linalg.cond`.

    Raises:
        ValueError: for shapes that do not fit.
    """
    (a, b), _ = convert((a, b), lambda common: floating(common)[0])
    vector = b.ndim == 1
    if vector:
        b = reshape_to(b, (*b.shape, 1))
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"solve: square matrices {a.shape} and right sides {b.shape} do not fit")
    lead = rules.broadcast(a.shape[:-2], b.shape[:-2])
    a, b = (expand_to(y, (*lead, *y.shape[-2:])) for y in (a, b))
    x: Array = _solve(a, b) if b.size else b
    return reshape_to(x, x.shape[:-1]) if vector else x


@custom_gradient
def _solve(a: Array, b: Array) -> tuple[Array, Callable[[Array], Gradients]]:
    m, _ = _squares(a)
    flat = cast_to(reshape_to(b, (m.shape[0], *b.shape[-2:])), m.dtype)
    x = cast_to(reshape_to(apply(SOLVE, (m, flat), (), flat.shape, m.dtype), b.shape), a.dtype)

    def grad(g: Array) -> Gradients:
        to_b = solve(swapaxes(a, -1, -2), g)
        with context.precision_scope("highest"):
            return -matmul(to_b, swapaxes(solve(a, b), -1, -2)), to_b

    return x, grad


def inv(a: ArrayLike) -> Array:
    """Inverses of square matrices (…, n, n); singular ones give infinities or NaN, see `solve`."""
    a = as_array(a)
    a = cast_to(a, floating(a.dtype)[0])
    return solve(a, expand_to(eye(a.shape[-1], dtype=a.dtype), a.shape))


class SignAndLog(NamedTuple):
    """Determinants as `sign * exp(logabsdet)`."""

    sign: Array
    logabsdet: Array


def slogdet(a: ArrayLike) -> SignAndLog:
    """Sign and logarithm of the absolute value of determinants of matrices (…, n, n)."""
    a = as_array(a)
    return SignAndLog(*_sign_and_log(cast_to(a, floating(a.dtype)[0])))


@custom_gradient
def _sign_and_log(a: Array) -> tuple[tuple[Array, Array], Callable[..., Gradients]]:
    m, lead = _squares(a)
    signs, logs = (reshape_to(y, lead) for y in _slogdet(m))
    signs, logs = cast_to(signs, a.dtype), cast_to(logs, a.dtype.real)

    def grad(_: Array, g: Array) -> Gradients:
        wide = reshape_to(g, (*g.shape, 1, 1))
        return (wide * swapaxes(inv(a), -1, -2),)

    return (signs, logs), grad


def det(a: ArrayLike) -> Array:
    """Determinants of matrices (…, n, n)."""
    signs, logs = slogdet(a)
    return signs * exp(logs)
