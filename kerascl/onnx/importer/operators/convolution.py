"""Convolutions, channels first, as the standard has them."""

from __future__ import annotations

from collections.abc import Sequence

from kerascl.core.array import Array
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.layout import ChannelsLast, Images, channels_last
from kerascl.onnx.importer.rules import operator
from kerascl.ops import convolution
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import concatenate, moveaxis, pad, strided, transpose
from kerascl.ops.views import reshape_to

Pads = list[tuple[int, int]]


def pads_of(
    call: Call, sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> Pads:
    """(low, high) padding for each spatial dimension, from `auto_pad` or `pads`."""
    rank, how = len(sizes), call.get("auto_pad", "NOTSET")
    if how in ("NOTSET", ""):
        pads = call.get("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise ValueError(f"pads {pads} are not two for each of {rank} spatial dimensions")
        return list(zip(pads[:rank], pads[rank:]))
    if how == "VALID":
        return [(0, 0)] * rank
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {how!r} is not one of the standard's")
    pads = []
    for n, k, s in zip(sizes, extents, strides):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        small, large = total // 2, total - total // 2
        pads.append((small, large) if how == "SAME_UPPER" else (large, small))
    return pads


def cut(x: Array, pads: Pads) -> tuple[Array, Pads]:
    """(N, *spatial, C) without what negative padding takes away, and the rest of the pads."""
    if all(low >= 0 and high >= 0 for low, high in pads):
        return x, pads
    starts = [0, *[max(0, -low) for low, _ in pads], 0]
    inner = [n - max(0, -high) for n, (_, high) in zip(x.shape[1:-1], pads)]
    stops = [x.shape[0], *inner, x.shape[-1]]
    x = strided(x, starts, stops, [1] * x.ndim)
    return x, [(max(0, low), max(0, high)) for low, high in pads]


def channels_last_kernel(w: Array) -> Array:
    """(K, C, *kernel) to (*kernel, C, K)."""
    return transpose(w, (*range(2, w.ndim), 1, 0))


def along_channels(bias: Array, rank: int) -> Array:
    """A vector laid along axis 1."""
    return reshape_to(bias, (bias.size,) + (1,) * (rank - 2))


@operator("Conv", kernels=(1,), layout="own")
def conv(call: Call, x: Images, w: Array, bias: Array | None = None) -> ChannelsLast:
    """Convolution (cross-correlation) in groups.

    Args:
        x: (N, C, *spatial).
        w: (K, C // group, *kernel).
        bias: (K,).

    Raises:
        ValueError: when the shapes, groups or pads do not fit.
    """
    rank = x.ndim - 2
    if rank < 1 or w.ndim != x.ndim:
        raise ValueError(f"a kernel of shape {w.shape} does not fit inputs of shape {x.shape}")
    strides = call.get("strides") or [1] * rank
    dilation = call.get("dilations") or [1] * rank
    group = call["group"]
    if w.shape[1] * group != x.shape[1]:
        raise ValueError(
            f"{x.shape[1]} channels in {group} groups do not fit a kernel of shape {w.shape}"
        )
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    pads = pads_of(call, x.shape[2:], extents, strides)
    y = convolved(x, w, strides, pads, dilation).array
    return ChannelsLast(y if bias is None else y + bias)


def convolved(
    x: Images, w: Array, strides: Sequence[int], pads: Pads, dilation: Sequence[int]
) -> ChannelsLast:
    """Convolution of (N, C, *spatial) with (K, C // groups, *kernel), no bias."""
    inner, pads = cut(channels_last(x), pads)
    return ChannelsLast(convolution.conv(inner, channels_last_kernel(w), strides, pads, dilation))


@operator("ConvTranspose", kernels=(1,), layout="own")
def conv_transpose(call: Call, x: Images, w: Array, bias: Array | None = None) -> ChannelsLast:
    """Transposed convolution in groups; `output_shape` goes before pads.

    Args:
        x: (N, C, *spatial).
        w: (C, K // group, *kernel).
        bias: (K,).
    """
    rank = x.ndim - 2
    strides = call.get("strides") or [1] * rank
    dilation = call.get("dilations") or [1] * rank
    extra = call.get("output_padding") or [0] * rank
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    full = [(n - 1) * s + e for n, s, e in zip(x.shape[2:], strides, extents)]
    wanted = call.get("output_shape")
    how = call.get("auto_pad", "NOTSET")
    if wanted:
        wanted = wanted[-rank:]
        totals = [f + o - m for f, o, m in zip(full, extra, wanted)]
        upper = how == "SAME_UPPER"
        pads = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    elif how in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(f + o - n * s, 0) for f, o, n, s in zip(full, extra, x.shape[2:], strides)]
        upper = how == "SAME_UPPER"
        pads = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    else:
        pads = pads_of(call, x.shape[2:], extents, strides)
    # zeros around the stretched input: what the kernel reaches beyond it, less what is cut off
    around = [(e - 1 - low, e - 1 - high + o) for e, (low, high), o in zip(extents, pads, extra)]
    groups = call["group"]
    last = channels_last(x)
    xs = [last] if groups == 1 else _cut_channels(last, groups, last.ndim - 1)
    ws = [w] if groups == 1 else _cut_channels(w, groups, 0)
    ys = [_transposed(a, b, strides, around, dilation) for a, b in zip(xs, ws)]
    y = ys[0] if groups == 1 else concatenate(ys, last.ndim - 1)
    return ChannelsLast(y if bias is None else y + bias)


def _cut_channels(x: Array, groups: int, axis: int) -> list[Array]:
    each = x.shape[axis] // groups
    moved = moveaxis(x, axis, 0)
    return [moveaxis(moved[g * each : (g + 1) * each], 0, axis) for g in range(groups)]


def _transposed(
    x: Array, w: Array, strides: Sequence[int], around: Pads, dilation: Sequence[int]
) -> Array:
    """`x` is (N, *spatial, C), `w` (C, K, *kernel)."""
    kernel = channels_last_kernel(w)
    # more than the kernel reaches is zeros, less at the low end is cut off
    beyond = [
        (max(low - (k - 1) * d, 0), 0) for (low, _), k, d in zip(around, w.shape[2:], dilation)
    ]
    inside = [
        (low - more if low >= 0 else 0, max(high, 0))
        for (low, high), (more, _) in zip(around, beyond)
    ]
    y = convolution.conv_transpose(x, kernel, strides, inside, dilation)
    y = pad(y, [(0, 0), *beyond, (0, 0)]) if any(more for more, _ in beyond) else y
    lost = [(min(low, 0), min(high, 0)) for low, high in around]
    return cast_to(cut(y, lost)[0], x.dtype)
