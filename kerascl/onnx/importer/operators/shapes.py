"""Operators that move elements, or make them from shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.onnx.importer import types
from kerascl.onnx.importer.graph import Call, axis_of, device
from kerascl.onnx.importer.layout import (
    ChannelsLast,
    Grouped,
    Images,
    as_in_graph,
    channels_last,
    place_of,
)
from kerascl.onnx.importer.rules import operator
from kerascl.ops import movement, pointwise
from kerascl.ops.creation import arange, array, full
from kerascl.ops.declare import cast_to
from kerascl.ops.gather import take_along_axis
from kerascl.ops.movement import concatenate, flip, iota, pad, strided, tile, transpose, tril, triu
from kerascl.ops.views import expand_to, reshape_to


# -- what shapes are --------------------------------------------------------------
@operator("Shape", raw=True)
def shape(call: Call, x: Any) -> np.ndarray:
    """The sizes of the axes from `start` to `end`, int64, on the host."""
    sizes = shape_of(x)
    return np.asarray(sizes[slice(call.get("start", 0), call.get("end"))], np.int64)


@operator("Size", raw=True)
def size(call: Call, x: Any) -> np.ndarray:
    """The number of elements, an int64 scalar on the host."""
    return np.asarray(math.prod(shape_of(x)), np.int64)


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of a value on host or device."""
    return tuple(x.shape if isinstance(x, np.ndarray | Array) else device(x).shape)


@operator("Reshape", host=(1,), layout="groups")
def reshape(call: Call, x: Images | Grouped, sizes: np.ndarray | None = None) -> Images | Grouped:
    """`x` with another shape; one size may be -1, and 0 keeps that of `x` without `allowzero`.

    Images stay as they lie where only pixels change their shape or join groups of channels.

    Raises:
        ValueError: without a shape, or for one of another number of elements.
    """
    wanted = call.ints("shape", sizes)
    if wanted is None:
        raise ValueError("the shape is missing")
    if not call.get("allowzero"):
        wanted = [x.shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    size = math.prod(x.shape)
    if -1 in wanted and (not size or not isinstance(x, Array)):
        rest = math.prod(n for n in wanted if n != -1)  # nothing is left over of nothing
        wanted = [(0 if not rest else size // rest) if n == -1 else n for n in wanted]
    if not isinstance(x, Array) and size == math.prod(wanted) and len(wanted) > 2:
        images = x.images if isinstance(x, Grouped) else x
        (first, channels, *pixels), (n, c) = wanted, images.shape[:2]
        if (first, channels) == (n, c):
            return ChannelsLast(movement.reshape(images.array, (n, *pixels, c)))
        if first == n and len(pixels) == 1 and channels and c % channels == 0:
            return Grouped(images, channels)
    return movement.reshape(as_in_graph(x), tuple(wanted))


@operator("Flatten")
def flatten(call: Call, x: Array) -> Array:
    """A matrix: the axes before one are rows, all others columns."""
    axis = call["axis"] if call["axis"] >= 0 else call["axis"] + x.ndim
    return reshape_to(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Squeeze", host=(1,))
def squeeze(call: Call, x: Array, given: np.ndarray | None = None) -> Array:
    """`x` without the given axes of size 1; by default without all of them.

    Raises:
        ValueError: for an axis of another size.
    """
    axes = call.ints("axes", given)
    if axes is None:
        return reshape_to(x, tuple(n for n in x.shape if n != 1))
    chosen = {axis_of(a, x.ndim) for a in axes}
    if any(x.shape[a] != 1 for a in chosen):
        raise ValueError(f"axes {sorted(chosen)} of an array of shape {x.shape} are not all 1")
    return reshape_to(x, tuple(n for a, n in enumerate(x.shape) if a not in chosen))


@operator("Unsqueeze", host=(1,))
def unsqueeze(call: Call, x: Array, given: np.ndarray | None = None) -> Array:
    """`x` with new axes of size 1, where they lie in the result."""
    axes = call.ints("axes", given) or []
    rank = x.ndim + len(axes)
    chosen = {axis_of(a, rank) for a in axes}
    sizes = iter(x.shape)
    return reshape_to(x, tuple(1 if a in chosen else next(sizes) for a in range(rank)))


@operator("Expand", host=(1,))
def expand(call: Call, x: Array, sizes: np.ndarray) -> Array:
    """`x` broadcast with a shape; a size of 1 there keeps that of `x`."""
    wanted = np.broadcast_shapes(x.shape, tuple(int(n) for n in sizes))
    return expand_to(x, wanted)


@operator("Transpose", layout="own")
def transposed(call: Call, x: Images) -> Images:
    """`x` with its axes in the order `perm`, by default reversed."""
    order = call.get("perm") or list(reversed(range(x.ndim)))
    if isinstance(x, ChannelsLast):
        places = [place_of(a % x.ndim, x.ndim) for a in order]
        return x.array if places == sorted(places) else transpose(x.array, places)
    # of images only: matrices and heads of attention are transposed for what follows
    if x.ndim > 3 and order == [0, x.ndim - 1, *range(1, x.ndim - 1)]:
        return ChannelsLast(x)
    return transpose(x, order)


# -- parts and wholes ----------------------------------------------------------
@operator("Concat", layout="own")
def concat(call: Call, *inputs: Images) -> Images:
    """The inputs joined along an axis."""
    rank = inputs[0].ndim
    axis = axis_of(call.get("axis", 1), rank)
    if any(isinstance(x, ChannelsLast) for x in inputs) and all(x.ndim == rank for x in inputs):
        return ChannelsLast(concatenate([channels_last(x) for x in inputs], place_of(axis, rank)))
    return concatenate([as_in_graph(x) for x in inputs], axis)


@operator("Split", host=(1,), layout="own")
def split(call: Call, x: Images, given: np.ndarray | None = None) -> tuple[Images, ...]:
    """`x` cut along an axis: into given sizes, or equally, where the last part may be smaller.

    Raises:
        ValueError: when the sizes are not that of the axis together.
    """
    axis = call.axis(x.ndim)
    sizes = call.ints("split", given)
    if sizes is None:
        count = call.get("num_outputs", call.results)
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    if isinstance(x, ChannelsLast):
        return tuple([ChannelsLast(y) for y in parts(x.array, sizes, place_of(axis, x.ndim))])
    return tuple(parts(x, sizes, axis))


def parts(x: Array, sizes: list[int], axis: int) -> list[Array]:
    """`x` cut into parts of given sizes.

    Raises:
        ValueError: when they are not its size together.
    """
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise ValueError(f"parts of {sizes} of an axis of {x.shape[axis]}")
    ends = np.cumsum([0, *sizes]).tolist()
    return [movement.split(x, ends[1:-1], axis)[k] for k in range(len(sizes))]


@operator("Slice", host=(1, 2, 3, 4), layout="own")
def part(
    call: Call, given: Images, start: np.ndarray | None = None, stop: np.ndarray | None = None,
    axes: np.ndarray | None = None, step: np.ndarray | None = None,
) -> Images:  # fmt: skip
    """x[start:stop:step] along the given axes, with steps of either sign.

    Raises:
        ValueError: without starts and ends.
    """
    last = isinstance(given, ChannelsLast)
    x = given.array if isinstance(given, ChannelsLast) else given
    starts, stops = call.ints("starts", start), call.ints("ends", stop)
    if starts is None or stops is None:
        raise ValueError("starts and ends are missing")
    chosen = call.ints("axes", axes) or list(range(len(starts)))
    steps = call.ints("steps", step) or [1] * len(starts)
    for low, high, axis, by in zip(starts, stops, chosen, steps, strict=True):
        axis = axis_of(axis, x.ndim)
        axis = place_of(axis, x.ndim) if last else axis
        low, high, by = slice(low, high, by).indices(x.shape[axis])
        count = len(range(low, high, by))
        if by < 0:  # the same elements from the other end
            x, low, by = flip(x, axis), x.shape[axis] - 1 - low, -by
        low = low if count else 0
        edges = [[0] * x.ndim, list(x.shape), [1] * x.ndim]
        edges[0][axis], edges[2][axis] = low, by
        edges[1][axis] = low + (count - 1) * by + 1 if count else low
        x = strided(x, *edges)
    return ChannelsLast(x) if last else x


@operator("Tile", host=(1, 2))
def repeated(call: Call, x: Array, repeats: np.ndarray, axis: np.ndarray | None = None) -> Array:
    """`x` laid side by side, so many times along each axis."""
    if axis is not None:  # opset 1
        times = [1] * x.ndim
        times[int(axis)] = int(repeats)
        return tile(x, times)
    return tile(x, [int(n) for n in repeats])


@operator("Pad", host=(1, 3), settings=(2,), layout="own")
def padded(
    call: Call, given: Images, pads: np.ndarray | None = None, value: Array | None = None,
    axes: np.ndarray | None = None,
) -> Images:  # fmt: skip
    """`x` with elements around it; negative pads cut off.

    Args:
        pads: those at the starts of the axes, then those at the ends.
        value: of what is added in mode "constant"; None: 0.

    Raises:
        ValueError: when there are not two pads for each axis, or not one value.
    """
    last = isinstance(given, ChannelsLast)
    x = given.array if isinstance(given, ChannelsLast) else given
    widths = call.ints("pads", pads) or call.ints("paddings") or []
    chosen = [axis_of(a, x.ndim) for a in call.ints("axes", axes) or range(x.ndim)]
    half = len(chosen)
    if len(widths) != 2 * half:
        raise ValueError(f"pads {widths} are not two for each of {half} axes")
    both = [(0, 0)] * x.ndim
    for place, axis in enumerate(chosen):
        both[place_of(axis, x.ndim) if last else axis] = (widths[place], widths[place + half])
    starts = [max(0, -low) for low, _ in both]  # negative ones cut off
    stops = [max(s, n - max(0, -high)) for s, n, (_, high) in zip(starts, x.shape, both)]
    x = strided(x, starts, stops, [1] * x.ndim)
    both = [(max(0, low), max(0, high)) for low, high in both]
    y = _surrounded(call, x, both, value)
    return ChannelsLast(y) if last else y


def _surrounded(call: Call, x: Array, both: list[tuple[int, int]], value: Array | None) -> Array:
    """`x` with (low, high) elements around each axis."""
    mode = call["mode"]
    if mode != "constant":
        return pad(x, both, mode)
    if value is None:
        return pad(x, both, "constant", call.get("value", 0) or 0)
    if value.size != 1:
        raise ValueError(f"the value to pad with has shape {value.shape}")
    number = call.number(2)
    if number is not None:  # zeros that convolutions add themselves
        return pad(x, both, "constant", number)
    return pad(x, both, "constant", cast_to(reshape_to(value, ()), x.dtype))


@operator("DepthToSpace")
def depth_to_space(call: Call, x: Array) -> Array:
    """(N, C, H, W) to (N, C / b**2, H b, W b): channels become the pixels of b x b blocks."""
    n, c, h, w = x.shape
    b = call["blocksize"]
    if call.get("mode", "DCR") == "DCR":
        y = transpose(reshape_to(x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = transpose(reshape_to(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape_to(y, (n, c // b**2, h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(call: Call, x: Array) -> Array:
    """(N, C, H, W) to (N, C b**2, H / b, W / b): pixels of b x b blocks become channels."""
    n, c, h, w = x.shape
    b = call["blocksize"]
    if call.get("mode", "DCR") == "DCR":
        y = transpose(reshape_to(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    else:
        y = transpose(reshape_to(x, (n, c, h // b, b, w // b, b)), (0, 1, 3, 5, 2, 4))
    return reshape_to(y, (n, c * b * b, h // b, w // b))


@operator("Trilu", host=(1,))
def triangle(call: Call, x: Array, k: np.ndarray | None = None) -> Array:
    """The upper or lower triangle of matrices from diagonal `k` on, zeros elsewhere."""
    function = triu if call["upper"] else tril
    return function(x, 0 if k is None else int(np.clip(int(k.reshape(())), -(2**30), 2**30)))


@operator("ReverseSequence")
def reverse_sequence(call: Call, x: Array, lengths: Array) -> Array:
    """The first `lengths` elements of each sequence in reverse order, then the others."""
    time, batch = call["time_axis"], call["batch_axis"]
    x = transpose(x, (time, batch, *range(2, x.ndim)))
    place = iota(x.shape, 0)
    ends = reshape_to(cast_to(lengths, place.dtype), (1, x.shape[1]) + (1,) * (x.ndim - 2))
    index = pointwise.where(place < ends, ends - 1 - place, place)
    y = take_along_axis(x, index, 0)
    return transpose(y, (time, batch, *range(2, x.ndim)))


# -- new arrays ------------------------------------------------------------------
@operator("ConstantOfShape", host=(0,))
def constant_of_shape(call: Call, sizes: np.ndarray) -> Array:
    """An array full of `value`, by default the float32 0."""
    value = call.get("value", np.zeros(1, np.float32))
    value = types.to_carrier(np.asarray(value))
    return full(tuple(int(n) for n in sizes), value.reshape(()).item(), value.dtype)


@operator("Range", host=(0, 1, 2))
def counting(call: Call, start: np.ndarray, stop: np.ndarray, step: np.ndarray) -> Array:
    """start, start + step, … before `stop`, in their dtype."""
    low, high, by = (v.reshape(()).item() for v in (start, stop, step))
    count = max(0, math.ceil((high - low) / by))
    dtype = types.BY_NAME[start.dtype.name]
    numbers = arange(count, dtype="int32" if count < 2**31 else "int64")
    return cast_to(cast_to(numbers, dtype) * cast_to(array(by), dtype) + low, dtype)


@operator("EyeLike")
def eye_like(call: Call, x: Array) -> Array:
    """Ones on diagonal `k` of zeros, with the shape of `x`; in `dtype` or that of `x`."""
    code = call.get("dtype")
    dtype = x.dtype if code is None else types.device_type(code)
    rows, columns = x.shape
    return diagonal_ones(rows, columns, call["k"], dtype)


def diagonal_ones(rows: int, columns: int, k: int, dtype: Any) -> Array:
    """A matrix with ones on a diagonal."""
    same = iota((rows, columns), 0) + k == iota((rows, columns), 1)
    return cast_to(same, dtype)
