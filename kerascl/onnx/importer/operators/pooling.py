"""Pooling: windows over the spatial dimensions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from kerascl.backend.ops.core import scatter_update
from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.layout import ChannelsLast, Images, as_in_graph
from kerascl.onnx.importer.operators.convolution import Pads, pads_of
from kerascl.onnx.importer.rules import operator
from kerascl.ops import gather, pointwise, pooling, reduction
from kerascl.ops.creation import array, full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import moveaxis, pad, strided, transpose
from kerascl.ops.views import reshape_to


class Windows:
    """Where the windows of a pooling lie.

    Attributes:
        counts: windows along each spatial dimension.
        pads: (low, high) padding, the high end so wide that the last window fits.
        declared: the padding that the file asks for.
    """

    def __init__(self, call: Call, x: Images):
        self.sizes = x.shape[2:]
        rank = len(self.sizes)
        self.kernel: list[int] = call.get("kernel_shape")
        if self.kernel is None or len(self.kernel) != rank:
            raise ValueError(f"kernel_shape {self.kernel} does not fit inputs of shape {x.shape}")
        self.strides: list[int] = call.get("strides") or [1] * rank
        self.dilation: list[int] = call.get("dilations") or [1] * rank
        extents = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation)]
        self.declared = pads_of(call, self.sizes, extents, self.strides)
        ceiling = bool(call.get("ceil_mode"))
        self.counts, self.pads = [], []
        for n, e, s, (low, high) in zip(self.sizes, extents, self.strides, self.declared):
            room = n + low + high - e
            count = (-(-room // s) if ceiling else room // s) + 1
            if ceiling and (count - 1) * s >= n + low:  # it would begin in the padding
                count -= 1
            self.counts.append(count)
            self.pads.append((low, max((count - 1) * s + e - n - low, 0)))

    @property
    def plain(self) -> bool:
        """Whether the kernels for pooling take them."""
        return len(self.sizes) <= 3 and all(d == 1 for d in self.dilation)

    def of(self, pool: Callable[..., Array], x: Images) -> Images:
        """What a pooling operation makes of them."""
        if isinstance(x, ChannelsLast):
            return ChannelsLast(pool(x.array, self.kernel, self.strides, self.pads))
        return pool(x, self.kernel, self.strides, self.pads, True)

    def index(self, axis: int) -> np.ndarray:
        """Padded positions (windows, elements of a window) along a spatial dimension."""
        starts = np.arange(self.counts[axis]) * self.strides[axis]
        return starts[:, None] + np.arange(self.kernel[axis]) * self.dilation[axis]

    def inside(self, pads: Pads) -> np.ndarray:
        """How many elements of each window are no padding, for padding that counts as none."""
        total = np.ones((), np.int64)
        for axis, (low, high) in enumerate(pads):
            place = self.index(axis) - self.pads[axis][0]
            count = ((place >= -low) & (place < self.sizes[axis] + high)).sum(1)
            total = total[..., None] * count
        return total

    def elements(self, x: Array, value: float) -> Array:
        """(N, C, *counts, elements of a window), padding being `value`."""
        y = pad(x, [(0, 0), (0, 0), *self.pads], "constant", value)
        rank = len(self.sizes)
        for axis in range(rank):  # each axis becomes (windows, elements)
            place = 2 + 2 * axis
            y = gather.take(y, array(self.index(axis).astype(np.int32)), place)
        order = [0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 2 + 2 * rank, 2)]
        y = transpose(y, order)
        return reshape_to(y, (*y.shape[: 2 + rank], math.prod(self.kernel)))


def _lowest(x: Array) -> float:
    return float(np.iinfo(x.dtype.numpy).min) if x.dtype.is_integer else -math.inf


@operator("MaxPool", layout="own")
def max_pool(call: Call, x: Images) -> Images | tuple[Array, Array]:
    """The largest element of each window, and its flat positions where they are asked for.

    Those count in the whole input, int64, column by column inside an image where
    `storage_order` is 1.
    """
    windows = Windows(call, x)
    if windows.plain and not call.wants(1):
        return windows.of(pooling.max_pool, x)
    x = as_in_graph(x)
    elements = windows.elements(x, _lowest(x))
    best = reduction.argmax(elements, -1)
    y = reduction.max(elements, -1)
    if not call.wants(1):
        return y
    place = _flat_places(windows, call.get("storage_order", 0))
    table = array(place.reshape(-1).astype(np.int64))
    rows = np.arange(math.prod(windows.counts)).reshape(windows.counts) * place.shape[-1]
    inner = gather.take(table, cast_to(best, BY_NAME["int64"]) + array(rows), 0)
    each = math.prod(windows.sizes)
    first = np.arange(math.prod(x.shape[:2]), dtype=np.int64) * each
    first = first.reshape(*x.shape[:2], *[1] * len(windows.sizes))
    return y, inner + array(first)


def _flat_places(windows: Windows, column_major: int) -> np.ndarray:
    """Flat position inside an image of each element of each window (*counts, elements)."""
    rank = len(windows.sizes)
    sizes = windows.sizes
    total = np.zeros((1,) * (2 * rank), np.int64)
    weights = [math.prod(sizes[a + 1 :]) for a in range(rank)]
    if column_major:
        weights = [math.prod(sizes[:a]) for a in range(rank)]
    for axis in range(rank):
        place = windows.index(axis) - windows.pads[axis][0]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = place.shape
        total = total + place.reshape(shape) * weights[axis]
    return np.ascontiguousarray(total).reshape(*windows.counts, -1)


@operator("AveragePool", layout="own")
def average_pool(call: Call, x: Images) -> Images:
    """The mean of each window; padding counts with `count_include_pad` only."""
    windows = Windows(call, x)
    counted = windows.declared if call.get("count_include_pad") else [(0, 0)] * len(windows.sizes)
    size = math.prod(windows.kernel)
    if windows.plain:
        if not any(low or high for low, high in counted):
            return windows.of(pooling.average_pool, x)
        inside = windows.inside(counted)
        mean = windows.of(functools.partial(pooling.average_pool, count_include_pad=True), x)
        if (inside == size).all():
            return mean
        mean = as_in_graph(mean)
        return mean * array((size / inside).astype(mean.dtype.numpy))
    x = as_in_graph(x)
    total = reduction.sum(windows.elements(x, 0), -1)
    return cast_to(total / array(windows.inside(counted).astype(np.float32)), x.dtype)


@operator("LpPool")
def power_pool(call: Call, x: Array) -> Array:
    """(sum |x| ** p) ** (1 / p) of each window."""
    p = call["p"]
    elements = pointwise.power(pointwise.absolute(Windows(call, x).elements(x, 0)), p)
    return cast_to(pointwise.power(reduction.sum(elements, -1), 1.0 / p), x.dtype)


# -- whole images -----------------------------------------------------------------
def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool", layout="own")
def global_average_pool(call: Call, x: Images) -> Images:
    """The mean of each channel, with spatial axes of size 1."""
    return _over_pixels(x, reduction.mean)


@operator("GlobalMaxPool", layout="own")
def global_max_pool(call: Call, x: Images) -> Images:
    """The largest element of each channel, with spatial axes of size 1."""
    return _over_pixels(x, reduction.max)


def _over_pixels(x: Images, fold: Callable[..., Array]) -> Images:
    if isinstance(x, ChannelsLast):
        pixels = tuple(range(1, x.ndim - 1))
        return ChannelsLast(cast_to(fold(x.array, pixels, True), x.array.dtype))
    return cast_to(fold(x, _spatial(x), True), x.dtype)


@operator("GlobalLpPool")
def global_power_pool(call: Call, x: Array) -> Array:
    """(sum |x| ** p) ** (1 / p) of each channel, with spatial axes of size 1."""
    p = call["p"]
    total = reduction.sum(pointwise.power(pointwise.absolute(x), p), _spatial(x), True)
    return cast_to(pointwise.power(total, 1.0 / p), x.dtype)


# -- back to images -------------------------------------------------------------------
@operator("MaxUnpool", host=(2,))
def max_unpool(call: Call, x: Array, indices: Array, sizes: np.ndarray | None = None) -> Array:
    """Elements put back at the positions that `MaxPool` found, zeros elsewhere.

    Args:
        indices: flat positions in a result of the size that kernel, strides and pads make.
        sizes: the result's shape; what it has more is zeros at the high ends.
    """
    rank = x.ndim - 2
    kernel = call["kernel_shape"]
    strides = call.get("strides") or [1] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    natural = [
        (n - 1) * s - (low + high) + k
        for n, s, low, high, k in zip(x.shape[2:], strides, pads[:rank], pads[rank:], kernel)
    ]
    shape = (*x.shape[:2], *natural)
    wide = shape if sizes is None else tuple(int(n) for n in sizes)
    flat = full((math.prod(shape), 1), 0, x.dtype)
    flat = scatter_update(flat, reshape_to(indices, (x.size, 1)), reshape_to(x, (x.size, 1)))
    y = reshape_to(flat, shape)
    return pad(y, [(0, m - n) for n, m in zip(shape, wide)]) if wide != shape else y


@operator("Col2Im", host=(1, 2))
def columns_to_image(call: Call, x: Array, image: np.ndarray, block: np.ndarray) -> Array:
    """Blocks added up where they overlap: (N, C, *image) of (N, C * elements, blocks)."""
    rank = len(image)
    sizes, kernel = [int(n) for n in image], [int(n) for n in block]
    strides = call.get("strides") or [1] * rank
    dilation = call.get("dilations") or [1] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    full_sizes = [n + pads[a] + pads[a + rank] for a, n in enumerate(sizes)]
    counts = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(full_sizes, kernel, dilation, strides)
    ]
    batch = x.shape[0]
    channels = x.shape[1] // math.prod(kernel)
    total = np.zeros((1,) * (2 * rank), np.int64)
    for axis in range(rank):
        place = np.arange(kernel[axis])[:, None] * dilation[axis]
        place = place + np.arange(counts[axis]) * strides[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = place.shape
        total = total + place.reshape(shape) * math.prod(full_sizes[axis + 1 :])
    index = np.ascontiguousarray(total).reshape(-1, 1).astype(np.int32)
    rows = reshape_to(x, (batch * channels, index.shape[0]))
    flat = full((math.prod(full_sizes), batch * channels), 0, x.dtype)
    flat = scatter_update(flat, array(index), moveaxis(rows, 0, 1), "add")
    y = reshape_to(moveaxis(flat, 0, 1), (batch, channels, *full_sizes))
    starts = [0, 0, *pads[:rank]]
    stops = [batch, channels, *(p + n for p, n in zip(pads[:rank], sizes))]
    return strided(y, starts, stops, [1] * y.ndim)
