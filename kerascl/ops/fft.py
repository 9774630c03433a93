"""Fourier transforms of any length, on the device; use as `kerascl.fft`.

The work is done on pairs of real arrays, so that every float dtype serves.
Lengths are split into factors of at most 64, each one a small sum (Cooley and
Tukey); a larger prime becomes a convolution of twice its length (Bluestein).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, from_host
from kerascl.core.tape import custom_gradient
from kerascl.core.types import Axes, Device, Gradients
from kerascl.dtypes import BY_NAME, DTypeLike, as_dtype, float32
from kerascl.ops.creation import placed
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, floating, scalar
from kerascl.ops.movement import iota, moveaxis, roll
from kerascl.ops.pointwise import conjugate, imag, make_complex, real, where
from kerascl.ops.views import concat, expand_to, flip_axes, pad_with, permute, reshape_to, window

__all__ = [
    "dft", "fft", "fft2", "fftfreq", "fftn", "fftshift", "hermitian_inverse", "hfft", "ifft",
    "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]  # fmt: skip

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


def _extra(n: int, norm: str | None, inverse: bool) -> float:
    """What `norm` multiplies a transform of length n by, whose inverse is divided by n."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"norm {norm!r} must be 'backward', 'ortho' or 'forward'")
    power = {"ortho": 0.5, "forward": 1.0}.get(norm or "backward", 0.0)
    return float(n ** (power if inverse else -power))


def _scaled(y: Array, n: int, norm: str | None, inverse: bool) -> Array:
    factor = _extra(n, norm, inverse)
    return y if factor == 1 else y * factor


def _along(x: Array, n: int | None, axis: int, norm: str | None, inverse: bool) -> Array:
    pair = _pair(x, axis, n)
    y = make_complex(*dft(*pair, inverse))
    return moveaxis(_scaled(y, y.shape[-1], norm, inverse), -1, axis)


def fft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Fourier transform along `axis`, cut or padded to `n`; complex64 (128 for float64).

    Args:
        norm: "backward" (None) divides inverse transforms by n, "forward" the others, "ortho" each
            by the root of n.

    Raises:
        ValueError: for another `norm`, and for no elements.
    """
    return _along(as_array(x), n, axis, norm, False)


def ifft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Inverse Fourier transform along `axis`, cut or padded to `n`; arguments as for `fft`."""
    return _along(as_array(x), n, axis, norm, True)


def rfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first n // 2 + 1 values of the transform of a real array; arguments as for `fft`."""
    re, im = dft(*_pair(x, axis, n))
    n = re.shape[-1]
    y = make_complex(*(window(v, v.ndim - 1, 0, n // 2 + 1) for v in (re, im)))
    return moveaxis(_scaled(y, n, norm, False), -1, axis)


def irfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The real array of `n` elements (by default 2 (m - 1)) with the spectrum of `rfft`."""
    re, im = _pair(x, axis, None)
    n = 2 * (re.shape[-1] - 1) if n is None else n
    if n < 1:
        raise ValueError(f"irfft: a signal of {n} samples is not possible")
    y = _scaled(hermitian_inverse(re, im, n), n, norm, True)
    return moveaxis(y, -1, axis)


_OPPOSITE = {None: "forward", "backward": "forward", "forward": "backward"}


def hfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The real spectrum of `n` values (by default 2 (m - 1)) of a signal that is its own mirrored
    conjugate, of which the first n // 2 + 1 samples are given; arguments as for `fft`."""
    return irfft(conjugate(x), n, axis, _OPPOSITE.get(norm, norm))


def ihfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first n // 2 + 1 samples of the signal with a real spectrum: the inverse of `hfft`."""
    return conjugate(rfft(x, n, axis, _OPPOSITE.get(norm, norm)))


# -- several axes ---------------------------------------------------------------------------------
def _sizes(
    x: Array, s: Sequence[int] | None, axes: Sequence[int] | None
) -> list[tuple[int, int | None]]:
    """(axis, length or None) of each transform."""
    if axes is None:
        axes = range(-(x.ndim if s is None else len(s)), 0)
    if s is not None and len(s) != len(axes):
        raise ValueError(f"{len(s)} lengths for {len(axes)} axes")
    lengths = [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    return list(zip((rules.axis_index(a, x.ndim, "axes") for a in axes), lengths, strict=True))


def _one_by_one(
    transform: Callable[..., Array],
    x: Array,
    sizes: Sequence[tuple[int, int | None]],
    norm: str | None,
) -> Array:
    """`transform` along one axis after another, as `_sizes` gives them."""
    for axis, n in sizes:
        x = transform(x, n, axis, norm)
    return x


def fftn(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Fourier transform over several axes; complex64 (128 for float64).

    Args:
        s: the length along each axis, to which it is cut or padded; -1 keeps it.
        axes: by default all, or the last ones where `s` is given.
        norm: as for `fft`.

    Raises:
        ValueError: where the lengths do not fit the axes, and for another `norm`.
    """
    x = as_array(x)
    return _one_by_one(fft, x, _sizes(x, s, axes)[::-1], norm)


def ifftn(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Inverse Fourier transform over several axes; arguments as for `fftn`."""
    x = as_array(x)
    return _one_by_one(ifft, x, _sizes(x, s, axes)[::-1], norm)


def rfftn(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """`fftn` of a real array, of which the last of the axes keeps n // 2 + 1 values."""
    x = as_array(x)
    *others, (last, n) = _sizes(x, s, axes)
    return _one_by_one(fft, rfft(x, n, last, norm), others[::-1], norm)


def irfftn(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The real array with the spectrum of `rfftn`; the last length is 2 (m - 1) by default."""
    x = as_array(x)
    *others, (last, length) = _sizes(x, s, axes)
    return irfft(_one_by_one(ifft, x, others, norm), length, last, norm)


def fft2(
    x: ArrayLike,
    axes: tuple[int, int] = (-2, -1),
    s: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Fourier transform over two axes; see `fftn`."""
    return fftn(x, s, axes, norm)


def ifft2(
    x: ArrayLike,
    axes: tuple[int, int] = (-2, -1),
    s: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Inverse Fourier transform over two axes; see `fftn`."""
    return ifftn(x, s, axes, norm)


def rfft2(
    x: ArrayLike,
    axes: tuple[int, int] = (-2, -1),
    s: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Fourier transform of a real array over two axes; see `rfftn`.

    Examples:
        >>> kc.fft.rfft2(kc.ones((2, 3))).shape
        (2, 2)
    """
    return rfftn(x, s, axes, norm)


def irfft2(
    x: ArrayLike,
    axes: tuple[int, int] = (-2, -1),
    s: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The real array with the spectrum of `rfft2`; see `irfftn`.

    Examples:
        >>> kc.fft.irfft2(kc.fft.rfft2(kc.ones((2, 2)))).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    return irfftn(x, s, axes, norm)


# -- what belongs to the values of a spectrum -----------------------------------------------------
def _samples(n: int) -> int:
    n = operator.index(n)
    if n < 1:
        raise ValueError(f"the frequencies of {n} samples are not possible")
    return n


@placed
def fftfreq(
    n: int, d: float = 1.0, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """The frequencies of the values of `fft`: 0, 1, …, -2, -1 cycles over n samples.

    Args:
        n: how many samples there are.
        d: the time between two samples.
        dtype: floating; float32 by default.
        device: by default the current one.
    """
    n, dtype = _samples(n), as_dtype(dtype or float32)
    place = iota((n,), 0)
    place = where(place > (n - 1) // 2, place - n, place)
    return cast_to(cast_to(place, dtype.accumulator) / (n * d), dtype)


@placed
def rfftfreq(
    n: int, d: float = 1.0, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """The frequencies of the n // 2 + 1 values of `rfft`; arguments as for `fftfreq`."""
    n, dtype = _samples(n), as_dtype(dtype or float32)
    return cast_to(cast_to(iota((n // 2 + 1,), 0), dtype.accumulator) / (n * d), dtype)


def _rolled(x: ArrayLike, axes: Axes, sign: int) -> Array:
    x = as_array(x)
    places = rules.axes_tuple(axes, x.ndim)
    return roll(x, [sign * (x.shape[a] // 2) for a in places], places) if places else x


def fftshift(x: ArrayLike, axes: Axes = None) -> Array:
    """`x` with frequency 0 moved to the middle of `axes` (None: all)."""
    return _rolled(x, axes, 1)


def ifftshift(x: ArrayLike, axes: Axes = None) -> Array:
    """The inverse of `fftshift`."""
    return _rolled(x, axes, -1)
