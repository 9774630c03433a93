"""Rearranging images into blocks and back."""

from __future__ import annotations

from typing import Any

from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core.array import Array, apply
from kerascl.core.tape import pause
from kerascl.ops.declare import SUM as total
from kerascl.ops.gather import GATHER
from kerascl.ops.movement import iota, transpose
from kerascl.ops.nn import recorded
from kerascl.ops.pointwise import where
from kerascl.ops.views import reshape_to


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _windows(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _blocks(x: Array, kernel, dilation, padding, stride) -> Array:
    """(N, C, H, W) as (N, C, kH, kW, oH, oW), with zeros outside."""
    counts = tuple(
        _windows(*args) for args in zip(x.shape[2:], kernel, dilation, padding, stride, strict=True)
    )
    shape = (*x.shape[:2], *kernel, *counts)
    places: list[Array] = []
    inside: Any = None
    for a, n in enumerate(x.shape[2:]):
        place = iota(shape, 4 + a) * stride[a] + iota(shape, 2 + a) * dilation[a] - padding[a]
        fits = (place >= 0) & (place < n)
        inside = fits if inside is None else inside & fits
        places.append(place)
    spec = (("d", 0), ("d", 1), ("i", 0), ("i", 1))
    with pause():
        y = where(inside, apply(GATHER, (x, *places), (spec,), shape, x.dtype), 0)
    return recorded(_blocks_vjp, (x,), (kernel, dilation, padding, stride), y)


def _blocks_vjp(g, y, x, *attrs):
    return (_merge(g, x.shape[2:], *attrs),)


def _merge(x: Array, size, kernel, dilation, padding, stride) -> Array:
    """The sum of (N, C, kH, kW, oH, oW) blocks as (N, C, *size): the transpose of `_blocks`."""
    shape = (*x.shape[:2], *size, *kernel)
    places: list[Array] = []
    hit: Any = None
    for a, count in enumerate(x.shape[4:]):
        place = iota(shape, 2 + a) + padding[a] - iota(shape, 4 + a) * dilation[a]
        fits = (place >= 0) & (place < count * stride[a])
        if stride[a] > 1:
            fits = fits & (place % stride[a] == 0)
            place = place // stride[a]
        hit = fits if hit is None else hit & fits
        places.append(place)
    spec = (("d", 0), ("d", 1), ("d", 4), ("d", 5), ("i", 0), ("i", 1))
    with pause():
        y = total(where(hit, apply(GATHER, (x, *places), (spec,), shape, x.dtype), 0), (4, 5))
    return recorded(_merge_vjp, (x,), (size, kernel, dilation, padding, stride), y)


def _merge_vjp(g, y, x, size, *attrs):
    return (_blocks(g, *attrs),)


def unfold(input, kernel_size, dilation=1, padding=0, stride=1) -> Array:
    """Sliding blocks of (N, C, H, W) as columns: (N, C * kH * kW, windows)."""
    x = convert_to_tensor(input)
    attrs = tuple(_pair(v) for v in (kernel_size, dilation, padding, stride))
    blocks = _blocks(x, *attrs)
    n, c, kh, kw, oh, ow = blocks.shape
    return reshape_to(blocks, (n, c * kh * kw, oh * ow))


def fold(x, output_size, kernel_size, dilation=1, padding=0, stride=1) -> Array:
    """The sum of columns (N, C * kH * kW, windows) as an image (N, C, *output_size)."""
    x = convert_to_tensor(x)
    size = _pair(output_size)
    attrs = tuple(_pair(v) for v in (kernel_size, dilation, padding, stride))
    counts = tuple(_windows(*args) for args in zip(size, *attrs, strict=True))
    kh, kw = attrs[0]
    n, columns, windows = x.shape
    if columns % (kh * kw) or windows != counts[0] * counts[1]:
        raise ValueError(
            f"fold: columns of shape {x.shape} do not fit windows {(kh, kw)} of an image of "
            f"size {size}: expected (N, C * {kh * kw}, {counts[0] * counts[1]})"
        )
    blocks = reshape_to(x, (n, columns // (kh * kw), kh, kw, *counts))
    return _merge(blocks, size, *attrs)


def depth_to_space(x, block_size, data_format="channels_last") -> Array:
    """Blocks of channels spread over space: each becomes `block_size` by `block_size` elements."""
    x, b = convert_to_tensor(x), block_size
    if data_format == "channels_last":
        n, h, w, c = x.shape
        x = transpose(reshape_to(x, (n, h, w, b, b, c // b**2)), (0, 1, 3, 2, 4, 5))
        return reshape_to(x, (n, h * b, w * b, c // b**2))
    n, c, h, w = x.shape
    x = transpose(reshape_to(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape_to(x, (n, c // b**2, h * b, w * b))


def space_to_depth(x, block_size, data_format="channels_last") -> Array:
    """The inverse of `depth_to_space`."""
    x, b = convert_to_tensor(x), block_size
    if data_format == "channels_last":
        n, h, w, c = x.shape
        x = transpose(reshape_to(x, (n, h // b, b, w // b, b, c)), (0, 1, 3, 2, 4, 5))
        return reshape_to(x, (n, h // b, w // b, c * b**2))
    n, c, h, w = x.shape
    x = transpose(reshape_to(x, (n, c, h // b, b, w // b, b)), (0, 1, 3, 5, 2, 4))
    return reshape_to(x, (n, c * b**2, h // b, w // b))
