"""Fourier transforms of any length, on the device; use as `kerascl.fft`.

Kernels transform lengths whose prime factors are at most 64 (Cooley and Tukey), along any axis; a
length with a larger one becomes a convolution of at least twice its length (Bluestein).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply, apply_multi, from_host
from kerascl.core.op import Op
from kerascl.core.tape import custom_gradient
from kerascl.core.types import Attrs, Axes, Device, Gradients, Results
from kerascl.dtypes import BY_NAME, DType, DTypeLike, as_dtype, float32
from kerascl.ops.batched import as_batches
from kerascl.ops.creation import placed
from kerascl.ops.declare import as_array, cast_to, floating, library_operation, scalar
from kerascl.ops.movement import iota, moveaxis, roll
from kerascl.ops.pointwise import conjugate, imag, make_complex, real, where
from kerascl.ops.views import concat, expand_to, flip_axes, pad_with, reshape_to, window

__all__ = [
    "dft", "fft", "fft2", "fftfreq", "fftn", "fftshift", "hermitian_inverse", "hfft", "ifft",
    "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]  # fmt: skip

_LARGEST = 64  # prime factor of a length that kernels transform
_ONE_LEVEL = 4096  # values of a table that has them all

Pair = tuple[Array, Array]


# -- tables -------------------------------------------------------------------
@functools.lru_cache(maxsize=128)
def _roots(n: int, dtype: str, device: Any) -> Array:
    """exp(-2 pi i j / n), computed in float64, as (levels, fine, 2): on one level for all j, or for
    j < fine and for the multiples of fine, whose products are the others."""
    fine = n if n <= _ONE_LEVEL else 1 << ((n - 1).bit_length() + 1) // 2
    steps = np.arange(fine, dtype=np.int64)
    places = np.stack([steps] if fine == n else [steps, steps * fine]) % n
    turns = np.exp(-2j * np.pi * (places / n))
    values = np.stack([turns.real, turns.imag], -1)
    return from_host(values.astype(BY_NAME[dtype].numpy), device)


@functools.lru_cache(maxsize=128)
def _chirp(n: int, sign: int, spectrum: bool, dtype: str, device: Any) -> Pair:
    """exp(sign i pi j² / n), or the spectrum of its conjugate, as a convolution takes it."""
    phase = np.arange(n, dtype=np.int64) ** 2 % (2 * n) / (2 * n)
    values = np.exp(sign * 2j * np.pi * phase)
    if spectrum:
        size = _padded(n)
        wide = np.zeros(size, complex)
        wide[:n] = values.conj()
        wide[size - n + 1 :] = values[1:][::-1].conj()
        values = np.fft.fft(wide)
    to = BY_NAME[dtype].numpy
    return from_host(values.real.astype(to), device), from_host(values.imag.astype(to), device)


def _padded(n: int) -> int:
    return 1 << (2 * n - 2).bit_length()


def _smooth(n: int) -> bool:
    for r in range(2, _LARGEST + 1):
        while n % r == 0:
            n //= r
    return n == 1


# -- the operations -----------------------------------------------------------
def _pair_vjp(g: Pair, y: Pair, roots: Array, *rest: Any) -> Gradients:
    *x, sign, axis, scale = rest
    # the transpose of the real pair's map is the conjugate transform
    found = _kernel(roots, *g, sign=-sign, axis=axis, scale=scale)
    return (None, *found[: len(x)])


def _joined_vjp(
    g: Array, y: Array, roots: Array, x: Array, sign: int, axis: int, scale: float
) -> Gradients:
    # linear transposes, without conjugation, as all of complex numbers
    found = _joined_kernel(roots, g, sign, axis, scale)
    return None, found if x.dtype.is_complex else real(found)


def _along_batches(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    roots, *x = inputs
    sign, axis, scale = attrs
    wide = (roots, *as_batches(size, x, batched[1:]))
    more = [((size, *shape), dtype) for shape, dtype in results]
    if op is FFT:
        return list(apply_multi(op, wide, (sign, axis + 1, scale), more))
    return [apply(op, wide, (sign, axis + 1, scale), *more[0])]


# scale * (the sum over j of x_j exp(sign 2 pi i j k / n)) along an axis, from the table of roots,
# real parts and imaginary parts; without these they are 0.
FFT = library_operation("fft", _pair_vjp, outputs=2, batch=_along_batches)
# The same of a complex or real array to a complex one.
FFT_COMPLEX = library_operation("fft_complex", _joined_vjp, batch=_along_batches)


def _kernel(roots: Array, *x: Array, sign: int, axis: int, scale: float) -> Pair:
    result = x[0].shape, x[0].dtype
    re, im = apply_multi(FFT, (roots, *x), (sign, axis, scale), [result, result])
    return re, im


def _joined_kernel(roots: Array, x: Array, sign: int, axis: int, scale: float) -> Array:
    return apply(FFT_COMPLEX, (roots, x), (sign, axis, scale), x.shape, x.dtype.complex)


def _table(x: Array, n: int, dtype: DType) -> Array:
    return _roots(n, dtype.accumulator.name, x.device)


# -- any length ---------------------------------------------------------------
def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _each(function: Callable[[Array], Array], x: Pair) -> Pair:
    return function(x[0]), function(x[1])


@custom_gradient
def _bluestein(
    re: Array, im: Array, sign: int, axis: int, scale: float
) -> tuple[Pair, Callable[..., Gradients]]:
    """j k = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp."""
    n, work = re.shape[axis], re.dtype.accumulator
    size = _padded(n)
    shape = (n, *(1,) * (re.ndim - axis - 1))
    low = [0] * re.ndim
    high = [size - n if a == axis else 0 for a in range(re.ndim)]

    def constants(spectrum: bool) -> Pair:
        found = _chirp(n, sign, spectrum, work.name, re.device)
        return _each(lambda v: reshape_to(v, (v.size, *shape[1:])), found)

    roots = _table(re, size, work)
    chirp = constants(False)
    y = _times(_each(lambda v: cast_to(v, work), (re, im)), chirp)
    y = _each(lambda v: pad_with(v, low, high, low, 0), y)
    y = _times(_kernel(roots, *y, sign=-1, axis=axis, scale=1.0), constants(True))
    y = _kernel(roots, *y, sign=1, axis=axis, scale=scale / size)
    y = _times(_each(lambda v: window(v, axis, 0, n), y), chirp)

    def grad(g_re: Array, g_im: Array) -> Gradients:
        return (*_bluestein(g_re, g_im, -sign, axis, scale), None, None, None)

    return _each(lambda v: cast_to(v, re.dtype), y), grad


def _checked(x: Array, axis: int) -> tuple[int, int]:
    """The axis from the front, and its length."""
    axis = rules.axis_index(axis, x.ndim)
    n = x.shape[axis]
    if not n:
        raise ValueError("a transform needs at least one element")
    return axis, n


def dft(re: Array, im: Array | None = None, inverse: bool = False, axis: int = -1) -> Pair:
    """The transform of re + i im (None: 0) along an axis; the inverse divides by the length."""
    axis, n = _checked(re, axis)
    dtype = floating(re.dtype)[0]
    re, im = cast_to(re, dtype), None if im is None else cast_to(im, dtype)
    sign, scale = (1, 1.0 / n) if inverse else (-1, 1.0)
    if _smooth(n):
        x = (re,) if im is None else (re, im)
        return _kernel(_table(re, n, re.dtype), *x, sign=sign, axis=axis, scale=scale)
    im = expand_to(scalar(0, re.dtype), re.shape) if im is None else im
    y: Pair = _bluestein(re, im, sign, axis, scale)
    return y


def _joined(x: Array, inverse: bool, axis: int, extra: float) -> Array:
    """The transform of a complex or real array, times `extra`."""
    axis, n = _checked(x, axis)
    sign, scale = (1, extra / n) if inverse else (-1, extra)
    if _smooth(n):
        return _joined_kernel(_table(x, n, x.dtype.real), x, sign, axis, scale)
    return make_complex(*_bluestein(real(x), imag(x), sign, axis, scale))


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
def _fitted(x: ArrayLike, axis: int, n: int | None) -> Array:
    """A floating or complex array, its axis cut or padded with zeros to n elements."""
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    axis = rules.axis_index(axis, x.ndim)
    n = None if n is None else operator.index(n)
    if n is None or n == x.shape[axis]:
        return x
    zero = [0] * x.ndim
    high = [n - x.shape[axis] if a == axis else 0 for a in range(x.ndim)]
    return pad_with(x, zero, high, zero, 0)


def _extra(n: int, norm: str | None, inverse: bool) -> float:
    """What `norm` multiplies a transform of length n by, whose inverse is divided by n."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"norm {norm!r} must be 'backward', 'ortho' or 'forward'")
    power = {"ortho": 0.5, "forward": 1.0}.get(norm or "backward", 0.0)
    return float(n ** (power if inverse else -power))


def _scaled(y: Array, n: int, norm: str | None, inverse: bool) -> Array:
    factor = _extra(n, norm, inverse)
    return y if factor == 1 else y * factor


def _along(x: ArrayLike, n: int | None, axis: int, norm: str | None, inverse: bool) -> Array:
    x = _fitted(x, axis, n)
    return _joined(x, inverse, axis, _extra(x.shape[axis], norm, inverse))


def fft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Fourier transform along `axis`, cut or padded to `n`; complex64 (128 for float64).

    Args:
        norm: "backward" (None) divides inverse transforms by n, "forward" the others, "ortho" each
            by the root of n.

    Raises:
        ValueError: for another `norm`, and for no elements.
    """
    return _along(x, n, axis, norm, False)


def ifft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Inverse Fourier transform along `axis`, cut or padded to `n`; arguments as for `fft`."""
    return _along(x, n, axis, norm, True)


def rfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first n // 2 + 1 values of the transform of a real array; arguments as for `fft`."""
    y = _along(x, n, axis, norm, False)
    axis = rules.axis_index(axis, y.ndim)
    return window(y, axis, 0, y.shape[axis] // 2 + 1)


def irfft(x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The real array of `n` elements (by default 2 (m - 1)) with the spectrum of `rfft`."""
    x = moveaxis(_fitted(x, axis, None), axis, -1)
    re, im = real(x), imag(x)
    n = 2 * (re.shape[-1] - 1) if n is None else operator.index(n)
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
