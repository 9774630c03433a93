"""Fourier transforms and what goes with them."""

from __future__ import annotations

import math

import numpy as np

from kerascl.core.array import Array
from kerascl.onnx.importer import types
from kerascl.onnx.importer.graph import Call, axis_of
from kerascl.onnx.importer.rules import operator
from kerascl.ops import fft, gather
from kerascl.ops.creation import array
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import moveaxis, pad, stack
from kerascl.ops.views import reshape_to


@operator("DFT", host=(1, 2))
def dft(
    call: Call, x: Array, length: np.ndarray | None = None, axis: np.ndarray | None = None
) -> Array:
    """The discrete Fourier transform along an axis of (…, 1 or 2), real or with imaginary parts.

    Args:
        length: of the transform; inputs are cut off or followed by zeros.

    Returns:
        (…, 2), where `onesided` is set only bins 0 to length // 2; the inverse of those is real,
        (…, 1).
    """
    place = axis_of(int(axis.reshape(())) if axis is not None else call.get("axis", -2), x.ndim)
    inverse, onesided = bool(call["inverse"]), bool(call["onesided"])
    moved = moveaxis(x, place, -2)  # (…, length, 1 or 2)
    if inverse and onesided:
        return _inverse_onesided(moved, length, place)
    moved = _fitted(moved, length)
    im = moved[..., 1] if x.shape[-1] == 2 else None
    re, im = fft.dft(moved[..., 0], im, inverse)
    if onesided:
        kept = re.shape[-1] // 2 + 1
        re, im = re[..., :kept], im[..., :kept]
    return moveaxis(stack([re, im], -1), -2, place)


def _inverse_onesided(moved: Array, length: np.ndarray | None, place: int) -> Array:
    n = int(length.reshape(())) if length is not None else 2 * (moved.shape[-2] - 1)
    y = fft.hermitian_inverse(moved[..., 0], moved[..., 1], n)
    return moveaxis(reshape_to(y, (*y.shape, 1)), -2, place)


def _fitted(x: Array, length: np.ndarray | None) -> Array:
    if length is None:
        return x
    n, m = x.shape[-2], int(length.reshape(()))
    if m <= n:
        return x[..., :m, :]
    return pad(x, [(0, 0)] * (x.ndim - 2) + [(0, m - n), (0, 0)])


@operator("STFT", host=(1, 3))
def stft(
    call: Call, x: Array, step: np.ndarray, window: Array | None = None,
    length: np.ndarray | None = None,
) -> Array:  # fmt: skip
    """Fourier transforms of windows that overlap: (batch, frames, bins, 2).

    Args:
        x: (batch, samples), with a last axis of 1 or 2 for real and imaginary parts or without.
        step: samples from one frame to the next.
        window: (length,), which each frame is multiplied by.
        length: of a frame; by default the window's.
    """
    size = int(length.reshape(())) if length is not None else window.shape[0]  # type: ignore[union-attr]
    hop = int(step.reshape(()))
    x = reshape_to(x, (*x.shape, 1)) if x.ndim == 2 else x
    count = (x.shape[1] - size) // hop + 1
    index = np.arange(count)[:, None] * hop + np.arange(size)
    frames = gather.take(x, array(index.astype(np.int32)), 1)  # (batch, frames, size, 1 or 2)
    re = frames[..., 0]
    im = frames[..., 1] if x.shape[-1] == 2 else None
    if window is not None:
        re, im = re * window, None if im is None else im * window
    re, im = fft.dft(re, im)
    if call["onesided"]:
        kept = size // 2 + 1
        re, im = re[..., :kept], im[..., :kept]
    return stack([re, im], -1)


@operator("MelWeightMatrix", host=(0, 1, 2, 3, 4))
def mel_weights(
    call: Call, bins: np.ndarray, length: np.ndarray, rate: np.ndarray, low: np.ndarray,
    high: np.ndarray,
) -> Array:  # fmt: skip
    """Triangular filters (bins of a spectrum, mel bins) on the mel scale 2595 log10(1 + f / 700).

    Args:
        bins: the number of filters.
        length: of the transform, which has length // 2 + 1 bins.
        rate: samples a second.
        low, high: in hertz.  As the standard has it, the bins + 2 edges of filters begin at `low`
            and end one step before `high`.
    """
    count, size = int(bins.reshape(())), int(length.reshape(()))
    least, most = (2595 * math.log10(1 + float(f.reshape(())) / 700) for f in (low, high))
    edges = np.arange(count + 2) * ((most - least) / (count + 2)) + least
    places = 700 * (10 ** (edges / 2595) - 1)
    places = ((size + 1) * places // int(rate.reshape(()))).astype(np.int64)
    weights = np.zeros((size // 2 + 1, count), np.float32)
    for k in range(count):
        start, centre, stop = places[k : k + 3]
        if centre == start:
            weights[centre, k] = 1
        else:
            rising = np.arange(start, centre + 1)
            weights[rising, k] = (rising - start) / (centre - start)
        if stop != centre:
            falling = np.arange(centre, stop)
            weights[falling, k] = (stop - falling) / (stop - centre)
    return cast_to(array(weights), types.device_type(call["output_datatype"]))


# -- classical features ---------------------------------------------------------------
@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def features(call: Call, x: Array, index: Array) -> Array:
    """The chosen elements of the last axis."""
    return gather.take(x, reshape_to(index, (index.size,)), x.ndim - 1)


@operator("Binarizer", domain="ai.onnx.ml")
def binarizer(call: Call, x: Array) -> Array:
    """1 where `x` is more than `threshold`, else 0."""
    return cast_to(x > call["threshold"], x.dtype)

