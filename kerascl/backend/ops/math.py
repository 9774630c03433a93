"""`keras.ops.math` for the kerascl backend."""

from __future__ import annotations

import math

import numpy as np

from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.backend.ops.promotion import at_least_float, resolve
from kerascl.core.array import Array
from kerascl.dtypes import float32, float64
from kerascl.ops import fft as transforms
from kerascl.ops import linalg, movement, pointwise, reduction, sorting, views
from kerascl.ops.creation import ones
from kerascl.ops.declare import cast_to, in_float32, scalar
from kerascl.ops.gather import scatter_rows, take
from kerascl.ops.movement import iota
from kerascl.ops.views import expand_to, reshape_to
from kerascl.ops.views import window as cut

__all__ = [
    "cdist", "erf", "erfc", "erfinv", "extract_sequences", "fft", "fft2", "ifft2", "in_top_k",
    "irfft", "istft", "logdet", "logsumexp", "rfft", "rsqrt", "segment_max", "segment_min",
    "segment_prod", "segment_sum", "stft", "top_k",
]  # fmt: skip


# -- segments and selection ---------------------------------------------------
def segment_sum(data, segment_ids, num_segments=None, sorted=False) -> Array:
    """Sums of the rows of `data` with the same id."""
    return sorting.segment_sum(
        convert_to_tensor(data), convert_to_tensor(segment_ids), num_segments
    )


def segment_max(data, segment_ids, num_segments=None, sorted=False) -> Array:
    """Largest elements of the rows of `data` with the same id."""
    return sorting.segment_max(
        convert_to_tensor(data), convert_to_tensor(segment_ids), num_segments
    )


def segment_min(data, segment_ids, num_segments=None, sorted=False) -> Array:
    """Smallest elements of the rows of `data` with the same id."""
    return sorting.segment_min(
        convert_to_tensor(data), convert_to_tensor(segment_ids), num_segments
    )


def segment_prod(data, segment_ids, num_segments=None, sorted=False) -> Array:
    """Products of the rows of `data` with the same id."""
    return sorting.segment_prod(
        convert_to_tensor(data), convert_to_tensor(segment_ids), num_segments
    )


def top_k(x, k, sorted=True) -> tuple[Array, Array]:
    """The `k` largest elements of the last axis, the largest first, and their int32 positions."""
    return sorting.top_k(convert_to_tensor(x), k)


def in_top_k(targets, predictions, k) -> Array:
    """Whether the prediction for each target is among the `k` largest of its row."""
    return sorting.in_top_k(convert_to_tensor(targets), convert_to_tensor(predictions), k)


# -- special functions --------------------------------------------------------
def logsumexp(x, axis=None, keepdims=False) -> Array:
    """log(sum(exp(x))) over `axis`, without overflow."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    return reduction.logsumexp(at_least_float(x), axis, keepdims)


def rsqrt(x) -> Array:
    """1 / sqrt(x)."""
    return pointwise.rsqrt(at_least_float(x))


def erf(x) -> Array:
    """The error function."""
    return pointwise.erf(at_least_float(x))


def erfc(x) -> Array:
    """1 - erf(x)."""
    return pointwise.erfc(at_least_float(x))


def erfinv(x) -> Array:
    """The inverse of the error function."""
    return pointwise.erfinv(at_least_float(x))


def logdet(x) -> Array:
    """Logarithm of the absolute value of determinants."""
    return linalg.slogdet(convert_to_tensor(x))[1]


@in_float32
def cdist(x, y) -> Array:
    """Euclidean distances between the rows of x (…, m, d) and those of y (…, n, d)."""
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError("`cdist` inputs must have rank >= 2")
    if x.shape[-1] != y.shape[-1]:
        raise ValueError("Last dimension of inputs to `cdist` must match")
    dtype = resolve(x.dtype, y.dtype, float)
    x, y = cast_to(x, dtype), cast_to(y, dtype)
    away = movement.expand_dims(x, -2) - movement.expand_dims(y, -3)
    return pointwise.sqrt(reduction.sum(pointwise.square(away), -1))


# -- Fourier transforms -------------------------------------------------------
def _pair(x) -> tuple[Array, Array]:
    """The real and imaginary tensors that a Keras spectrum consists of."""
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise ValueError(
            f"Input `x` should be a tuple of two tensors - real and imaginary.Received: x={x}"
        )
    re, im = (convert_to_tensor(v) for v in x)
    if re.shape != im.shape:
        raise ValueError(
            "Input `x` should be a tuple of two tensors - real and imaginary."
            "Both the real and imaginary parts should have the same shape. "
            f"Received: x[0].shape = {re.shape}, x[1].shape = {im.shape}"
        )
    if not (re.dtype.is_float and im.dtype.is_float):
        raise ValueError(f"At least one tensor in input `x` is not of type float.Received: x={x}.")
    return re, im


def _get_complex_tensor_from_tuple(x) -> Array:
    return pointwise.make_complex(*_pair(x))


def fft(x) -> tuple[Array, Array]:
    """Fourier transform along the last axis, of (real, imaginary)."""
    return transforms.dft(*_pair(x))


def _two_axes(x, inverse: bool) -> tuple[Array, Array]:
    re, im = transforms.dft(*_pair(x), inverse)
    return transforms.dft(re, im, inverse, axis=-2)


def fft2(x) -> tuple[Array, Array]:
    """Fourier transform over the last two axes, of (real, imaginary)."""
    return _two_axes(x, False)


def ifft2(x) -> tuple[Array, Array]:
    """Inverse Fourier transform over the last two axes, of (real, imaginary)."""
    return _two_axes(x, True)


def _fitted(x: Array, n: int) -> Array:
    zero = [0] * x.ndim
    return views.pad_with(x, zero, [*zero[:-1], n - x.shape[-1]], zero, 0)


def rfft(x, fft_length=None) -> tuple[Array, Array]:
    """The first half of the transform of a real tensor, as (real, imaginary)."""
    x = at_least_float(x)
    if fft_length is not None:
        x = _fitted(x, int(fft_length))
    re, im = transforms.dft(x)
    half = x.shape[-1] // 2 + 1
    return cut(re, re.ndim - 1, 0, half), cut(im, im.ndim - 1, 0, half)


def irfft(x, fft_length=None) -> Array:
    """The real tensor whose `rfft` is given."""
    re, im = _pair(x)
    n = 2 * (re.shape[-1] - 1) if fft_length is None else int(fft_length)
    return transforms.hermitian_inverse(re, im, n)


# -- short-time transforms ----------------------------------------------------
def extract_sequences(x, sequence_length, sequence_stride) -> Array:
    """Windows of the last axis: (…, n) to (…, count, sequence_length)."""
    x = convert_to_tensor(x)
    *lead, n = x.shape
    count = max(0, 1 + (n - sequence_length) // sequence_stride)
    shape = (count, sequence_length)
    place = iota(shape, 0) * sequence_stride + iota(shape, 1)
    return reshape_to(take(x, place, -1), (*lead, *shape))


def _window(window, sequence_length: int, fft_length: int, dtype) -> Array:
    """The window as a tensor, padded to the transform's length."""
    low = (fft_length - sequence_length) // 2
    high = fft_length - sequence_length - low
    if window is None:
        return ones((fft_length,), dtype)
    if isinstance(window, str):
        if window not in {"hann", "hamming"}:
            raise ValueError(
                "If a string is passed to `window`, it must be one of "
                f'`"hann"`, `"hamming"`. Received: window={window}'
            )
        # the periodic windows, as scipy.signal.get_window makes them
        level = 0.5 if window == "hann" else 0.54
        phase = 2 * math.pi * np.arange(sequence_length) / sequence_length
        window = level - (1 - level) * np.cos(phase)
    window = convert_to_tensor(window, dtype)
    if window.shape != (sequence_length,):
        raise ValueError(
            "The shape of `window` must be equal to [sequence_length]."
            f"Received: window shape={window.shape}"
        )
    return movement.pad(window, [(low, high)])


def stft(
    x, sequence_length, sequence_stride, fft_length, window="hann", center=True
) -> tuple[Array, Array]:
    """Transforms of the windows of a signal, (…, count, fft_length // 2 + 1) each."""
    x = convert_to_tensor(x)
    if x.dtype not in (float32, float64):
        raise TypeError(
            "Invalid input type. Expected `float32` or `float64`. "
            f"Received: input type={x.dtype.name}"
        )
    if fft_length < sequence_length:
        raise ValueError(
            "`fft_length` must equal or larger than `sequence_length`. "
            f"Received: sequence_length={sequence_length}, fft_length={fft_length}"
        )
    if center:
        half = fft_length // 2
        x = movement.pad(x, [*[(0, 0)] * (x.ndim - 1), (half, half)], "reflect")
    windows = extract_sequences(x, fft_length, sequence_stride)
    return rfft(windows * _window(window, sequence_length, fft_length, x.dtype))


def istft(
    x, sequence_length, sequence_stride, fft_length, length=None, window="hann", center=True
) -> Array:
    """The signal whose `stft` is given: windows added up, divided by the squares' periodic sum."""
    re, im = _pair(x)
    if re.ndim < 2:
        raise ValueError(f"Input `x` must have at least 2 dimensions. Received shape: {re.shape}")
    total = fft_length + sequence_stride * (re.shape[-2] - 1)
    frames = transforms.hermitian_inverse(re, im, fft_length)
    if window is not None:
        weights = _window(window, sequence_length, fft_length, re.dtype)
        overlaps = -(-fft_length // sequence_stride)
        squares = pointwise.square(weights)
        squares = movement.pad(squares, [(0, overlaps * sequence_stride - fft_length)])
        squares = reduction.sum(reshape_to(squares, (overlaps, sequence_stride)), 0)
        norm = cut(movement.tile(squares, overlaps), 0, 0, fft_length)
        frames = frames * pointwise.divide_no_nan(weights, norm)
    y = _overlap(frames, sequence_stride, total)
    start = fft_length // 2 if center else 0
    if length is not None:
        stop = start + length
    else:
        stop = total - fft_length // 2 if center else total
    return cut(y, y.ndim - 1, min(start, total), min(stop, total))


def _overlap(frames: Array, stride: int, total: int) -> Array:
    """Frames (…, count, n) added up at steps of `stride`: (…, total)."""
    *lead, count, n = frames.shape
    rows = math.prod(lead)
    place = iota((count, n), 0) * stride + iota((count, n), 1)
    flat = reshape_to(frames, (rows, count * n))
    columns = movement.transpose(flat)
    base = expand_to(scalar(0, frames.dtype), (total, rows))
    y = scatter_rows(base, reshape_to(place, (count * n,)), columns, "add")
    return reshape_to(movement.transpose(y), (*lead, total))
