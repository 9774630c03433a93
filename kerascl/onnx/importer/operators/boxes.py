"""Boxes in images: RoiAlign, DeformConv and NonMaxSuppression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.operators.convolution import along_channels
from kerascl.onnx.importer.operators.resampling import combinations, read
from kerascl.onnx.importer.rules import operator
from kerascl.ops import gather, indexing, pointwise, reduction
from kerascl.ops.contraction import matmul
from kerascl.ops.creation import array, full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import iota, stack
from kerascl.ops.views import expand_to, reshape_to

_INT32 = BY_NAME["int32"]


@operator("RoiAlign")
def roi_align(call: Call, x: Array, rois: Array, batches: Array) -> Array:
    """Bilinear samples inside bins; their number must be given.

    As the standard's reference has it, "max" takes the largest share of a corner, not the largest
    sample.
    """
    count, channels = rois.shape[0], x.shape[1]
    height, width = call["output_height"], call["output_width"]
    how = call.get("coordinate_transformation_mode", "output_half_pixel")
    shift = 0.5 if how == "half_pixel" else 0.0
    scaled = rois * call["spatial_scale"] - shift
    begin = [scaled[:, 1], scaled[:, 0]]
    extent = [scaled[:, 3] - begin[0], scaled[:, 2] - begin[1]]
    if not shift:
        extent = [pointwise.maximum(e, 1.0) for e in extent]
    ratio = call["sampling_ratio"]
    if ratio <= 0:
        raise ValueError("a sampling_ratio of 0 is not supported: export with samples per bin")
    image = gather.take(x, batches, 0)
    taps = []
    for axis, (start, length, m) in enumerate(zip(begin, extent, (height, width)), 2):
        step = array(((np.arange(m * ratio) + 0.5) / ratio).astype(np.float32))
        where = reshape_to(start, (count, 1)) + reshape_to(length / m, (count, 1)) * step
        taps.append(_corners(where, x.shape[axis]))
    parts = []
    for (top, height_share), (left, width_share) in combinations(taps):
        value = _rows(_rows(image, top, 2), left, 3)
        share = height_share[:, None, :, None] * width_share[:, None, None, :]
        parts.append(value * share)
    bins = (count, channels, height, ratio, width, ratio)
    if call["mode"] == "max":
        largest = parts[0]
        for part in parts[1:]:
            largest = pointwise.maximum(largest, part)
        return reduction.max(reshape_to(largest, bins), (3, 5))
    total = parts[0] + parts[1] + parts[2] + parts[3]
    return reduction.mean(reshape_to(total, bins), (3, 5))


def _corners(where: Array, size: int) -> list[tuple[Array, Array]]:
    """(element, share) of the two neighbours of places along an axis; outside there is none."""
    inside = pointwise.logical_and(where >= -1.0, where <= size)
    p = pointwise.clip(where, 0.0, size - 1.0)
    low = pointwise.floor(p)
    t = p - low
    high = pointwise.minimum(low + 1, size - 1.0)
    return [
        (cast_to(place, _INT32), pointwise.where(inside, share, 0.0))
        for place, share in ((low, 1 - t), (high, t))
    ]


def _rows(x: Array, index: Array, axis: int) -> Array:
    """x (K, C, H, W) at elements (K, m) of an axis, one row of them for each of K."""
    shape = [1] * x.ndim
    shape[0], shape[axis] = index.shape
    return gather.take_along_axis(x, reshape_to(index, tuple(shape)), axis)


@operator("DeformConv")
def deformable_conv(
    call: Call, x: Array, w: Array, offset: Array, bias: Array | None = None,
    mask: Array | None = None,
) -> Array:  # fmt: skip
    """Convolution whose taps are moved by offsets, read between pixels (2 dimensions)."""
    if x.ndim != 4:
        raise ValueError(f"inputs of shape {x.shape} do not have 2 spatial dimensions")
    n, channels, _, _ = x.shape
    filters, _, *kernel = w.shape
    strides, dilation = call.get("strides") or [1, 1], call.get("dilations") or [1, 1]
    pads, groups = call.get("pads") or [0] * 4, call["group"]
    sets = call["offset_group"]
    taps = math.prod(kernel)
    counts = tuple(offset.shape[2:])
    places = []
    moved = reshape_to(offset, (n * sets, taps, 2, *counts))
    for axis in range(2):
        starts = np.arange(counts[axis]) * strides[axis] - pads[axis]
        shape = [1, 1, 1]
        shape[1 + axis] = counts[axis]
        tap = np.indices(kernel)[axis].reshape(taps, 1, 1) * dilation[axis]
        place = (tap + starts.reshape(shape)).astype(np.float32)
        places.append(moved[:, :, axis] + array(place))
    images = reshape_to(x, (n * sets, channels // sets, *x.shape[2:]))
    pairs = []
    for p in places:
        low = pointwise.floor(p)
        pairs.append([(low, 1 - (p - low)), (low + 1, p - low)])
    total: Any = None
    for (top, a), (left, b) in combinations(pairs):
        found = read(images, [top, left], "zeros", [])
        share = a * b
        part = found * reshape_to(share, (share.shape[0], 1, *share.shape[1:]))
        total = part if total is None else total + part
    if mask is not None:
        total = total * reshape_to(mask, (n * sets, 1, taps, *counts))
    columns = reshape_to(total, (n, groups, channels // groups * taps, math.prod(counts)))
    kernels = reshape_to(w, (groups, filters // groups, channels // groups * taps))
    y = reshape_to(matmul(kernels, columns), (n, filters, *counts))
    return y if bias is None else y + along_channels(bias, y.ndim)


@operator("NonMaxSuppression", host=(2, 3, 4))
def non_max_suppression(
    call: Call, boxes: Array, scores: Array, most: np.ndarray | None = None,
    overlap: np.ndarray | None = None, least: np.ndarray | None = None,
) -> Array:  # fmt: skip
    """All classes of all images at once, one box of each at a step; how many there are is read."""
    batch, classes, count = scores.shape
    steps = min(int(most.reshape(())) if most is not None else 0, count)
    limit = float(overlap.reshape(())) if overlap is not None else 0.0
    if steps <= 0:
        return full((0, 3), 0, "int64")
    low, high = _edges(boxes, bool(call["center_point_box"]))
    area = (high[0] - low[0]) * (high[1] - low[1])
    left = scores
    if least is not None:
        left = pointwise.where(scores > float(least.reshape(())), scores, -math.inf)
    chosen, valid = [], []
    rows = iota((batch, classes, count), 2)
    for _ in range(steps):
        best = reduction.argmax(left, -1, True)
        valid.append(reduction.max(left, -1) > -math.inf)
        chosen.append(reshape_to(best, (batch, classes)))
        inter: Any = 1.0
        for a, b in zip(low, high):
            a, b = (expand_to(reshape_to(e, (batch, 1, count)), left.shape) for e in (a, b))
            start = pointwise.maximum(a, gather.take_along_axis(a, best, 2))
            stop = pointwise.minimum(b, gather.take_along_axis(b, best, 2))
            inter = inter * pointwise.maximum(stop - start, 0.0)
        size = expand_to(reshape_to(area, (batch, 1, count)), left.shape)
        union = size + gather.take_along_axis(size, best, 2) - inter
        gone = pointwise.logical_or(inter > limit * union, rows == best)
        left = pointwise.where(gone, -math.inf, left)
    index = stack(chosen, 2)
    shape = index.shape
    triples = stack([iota(shape, 0), iota(shape, 1), cast_to(index, _INT32)], -1)
    kept = indexing.nonzero(reshape_to(stack(valid, 2), (index.size,)))[0]
    found = gather.take(reshape_to(triples, (index.size, 3)), kept, 0)
    return cast_to(found, BY_NAME["int64"])


def _edges(boxes: Array, centred: bool) -> tuple[list[Array], list[Array]]:
    """(low, high) edges of boxes, each along two axes."""
    a, b, c, d = (boxes[..., k] for k in range(4))
    if centred:
        return [a - c / 2, b - d / 2], [a + c / 2, b + d / 2]
    lows = [pointwise.minimum(a, c), pointwise.minimum(b, d)]
    return lows, [pointwise.maximum(a, c), pointwise.maximum(b, d)]

