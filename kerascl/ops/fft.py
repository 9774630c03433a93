"""Fourier transforms of any length, on the device; use as `kerascl.fft`.

The work is done on pairs of real arrays, so that every float dtype serves.
Lengths are split into factors of at most 64, each one a small sum (Cooley and
Tukey); a larger prime becomes a convolution of twice its length (Bluestein).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, from_host
from kerascl.core.tape import custom_gradient
from kerascl.core.types import Gradients
from kerascl.dtypes import BY_NAME
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, floating, scalar
from kerascl.ops.movement import moveaxis
from kerascl.ops.pointwise import imag, make_complex, real
from kerascl.ops.views import concat, expand_to, flip_axes, pad_with, permute, reshape_to, window

__all__ = ["dft", "fft", "fft2", "hermitian_inverse", "ifft", "ifft2", "irfft", "rfft"]

_DIRECT = 64  # longest sum of a single step
_RADICES = (8, 16, 4, 6, 5, 7, 3, 2)

Pair = tuple[Array, Array]


# -- tables -------------------------------------------------------------------
@functools.lru_cache(maxsize=128)
def _table(kind: str, n: int, r: int, sign: int, dtype: str, device: Any) -> Pair:
    """Complex constants as two arrays on a device, computed in float64."""
    if kind == "roots":  # W_r^(j k)
        phase = np.outer(np.arange(r), np.arange(r)) % r / r
    elif kind == "twiddle":  # W_n^(k1 j2)
        phase = np.outer(np.arange(r), np.arange(n // r)) % n / n
    else:  # the chirp exp(i pi j² / n)
        phase = np.arange(n, dtype=np.int64) ** 2 % (2 * n) / (2 * n)
    values = np.exp(sign * 2j * np.pi * phase)
    if kind == "spectrum":
        size = _padded(n)
        wide = np.zeros(size, complex)
        wide[:n] = values.conj()
        wide[size - n + 1 :] = values[1:][::-1].conj()
        values = np.fft.fft(wide) / size
    to = BY_NAME[dtype].numpy
    return from_host(values.real.astype(to), device), from_host(values.imag.astype(to), device)


def _constants(x: Array, kind: str, n: int, r: int, sign: int) -> Pair:
    return _table(kind, n, r, sign, x.dtype.name, x.device)


def _padded(n: int) -> int:
    return 1 << (2 * n - 2).bit_length()


# -- the transform ------------------------------------------------------------
def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _each(function: Callable[[Array], Array], x: Pair) -> Pair:
    return function(x[0]), function(x[1])


def _radix(n: int) -> int:
    """The next factor of n, or 0 when its smallest is too large."""
    for r in _RADICES:
        if n % r == 0:
            return r
    for r in range(11, min(_DIRECT, n) + 1, 2):
        if n % r == 0:
            return r
    return 0


def _transform(x: Pair, sign: int) -> Pair:
    """Sum over j of x_j exp(sign 2 pi i j k / n), of the rows of (count, n)."""
    count, n = x[0].shape
    if n == 1:
        return x
    r = _radix(n)
    if not r:
        return _bluestein(x, sign)
    m = n // r
    roots = _each(lambda w: reshape_to(w, (1, r, r, 1)), _constants(x[0], "roots", r, r, sign))
    shape = (count, r, r, m)
    parts = _each(lambda v: expand_to(reshape_to(v, (count, 1, r, m)), shape), x)
    y = _each(lambda v: total(v, 2), _times(parts, roots))
    if m > 1:
        y = _times(y, _constants(x[0], "twiddle", n, r, sign))
        rest = _transform(_each(lambda v: reshape_to(v, (count * r, m)), y), sign)
        y = _each(lambda v: permute(reshape_to(v, (count, r, m)), (0, 2, 1)), rest)
    return _each(lambda v: reshape_to(v, (count, n)), y)


def _bluestein(x: Pair, sign: int) -> Pair:
    """j k = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp."""
    _, n = x[0].shape
    size = _padded(n)
    chirp = _constants(x[0], "chirp", n, n, sign)
    y = _each(lambda v: pad_with(v, [0, 0], [0, size - n], [0, 0], 0), _times(x, chirp))
    y = _times(_transform(y, -1), _constants(x[0], "spectrum", n, n, sign))
    y = _each(lambda v: window(v, 1, 0, n), _transform(y, 1))
    return _times(y, chirp)


def dft(re: Array, im: Array, inverse: bool = False) -> Pair:
    """The transform of re + i im along the last axis; the inverse divides by the length."""
    if not re.shape[-1]:
        raise ValueError("a transform needs at least one element")
    n = re.shape[-1]
    y = _dft(re, im, 1 if inverse else -1)
    return (y[0] * (1.0 / n), y[1] * (1.0 / n)) if inverse else y


@custom_gradient
def _dft(re: Array, im: Array, sign: int) -> tuple[Pair, Callable[..., Gradients]]:
    work = re.dtype.accumulator
    n = re.shape[-1]
    rows = _each(lambda v: reshape_to(cast_to(v, work), (re.size // n, n)), (re, im))
    y = _each(lambda v: cast_to(reshape_to(v, re.shape), re.dtype), _transform(rows, sign))

    def grad(g_re: Array, g_im: Array) -> Gradients:
        # the transpose of the real pair's map is the conjugate transform
        return (*_dft(g_re, g_im, -sign), None)

    return y, grad


def hermitian_inverse(re: Array, im: Array, n: int) -> Array:
    """The real signal of `n` samples whose spectrum's first n // 2 + 1 values are given."""
    half = n // 2 + 1
    re, im = (_fit(v, half) for v in (re, im))
    axis = re.ndim - 1
    last = half - 1 if n % 2 == 0 else half
    # the first value, and for even n the last, count as real
    tail = [flip_axes(window(v, axis, 1, last), (axis,)) for v in (re, im)]
    edge = expand_to(scalar(0, im.dtype), (*im.shape[:-1], 1))
    middle = window(im, axis, 1, last)
    inner = [edge, middle] if n % 2 else [edge, middle, edge][: 3 if n > 1 else 1]
    y, _ = dft(concat([re, tail[0]], axis), concat([*inner, -tail[1]], axis), inverse=True)
    return y


def _fit(x: Array, n: int) -> Array:
    """The last axis cut or padded with zeros to n elements."""
    zero = [0] * x.ndim
    return pad_with(x, zero, [*zero[:-1], n - x.shape[-1]], zero, 0)


# -- complex arrays -----------------------------------------------------------
def _pair(x: ArrayLike, axis: int, n: int | None) -> Pair:
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    x = moveaxis(x, rules.axis_index(axis, x.ndim), -1)
    x = x if n is None else _fit(x, n)
    return real(x), imag(x)


def _along(x: Array, n: int | None, axis: int, inverse: bool) -> Array:
    return moveaxis(make_complex(*dft(*_pair(x, axis, n), inverse)), -1, axis)


def fft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Fourier transform along `axis`, cut or padded to `n`; complex64 (128 for float64)."""
    return _along(as_array(x), n, axis, False)


def ifft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """Inverse Fourier transform along `axis`, cut or padded to `n`; complex64 (128 for float64)."""
    return _along(as_array(x), n, axis, True)


def fft2(x: ArrayLike, axes: tuple[int, int] = (-2, -1)) -> Array:
    """Fourier transform over two axes; complex64 (128 for float64)."""
    return fft(fft(x, axis=axes[1]), axis=axes[0])


def ifft2(x: ArrayLike, axes: tuple[int, int] = (-2, -1)) -> Array:
    """Inverse Fourier transform over two axes; complex64 (128 for float64)."""
    return ifft(ifft(x, axis=axes[1]), axis=axes[0])


def rfft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """The first n // 2 + 1 values of the transform of a real array; complex64 (128 for float64)."""
    re, im = dft(*_pair(x, axis, n))
    half = re.shape[-1] // 2 + 1
    y = make_complex(*(window(v, v.ndim - 1, 0, half) for v in (re, im)))
    return moveaxis(y, -1, axis)


def irfft(x: ArrayLike, n: int | None = None, axis: int = -1) -> Array:
    """The real array of `n` elements (by default 2 (m - 1)) with the spectrum of `rfft`."""
    re, im = _pair(x, axis, None)
    n = 2 * (re.shape[-1] - 1) if n is None else n
    return moveaxis(hermitian_inverse(re, im, n), -1, axis)
