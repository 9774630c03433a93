"""Operators that read, write and search at computed places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerascl.backend.ops.core import scatter_update
from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer.graph import Call, axis_of
from kerascl.onnx.importer.rules import operator
from kerascl.ops import gather, indexing, nn, pointwise, reduction, sorting
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import concatenate, flip, iota, moveaxis, stack, strided
from kerascl.ops.scan import cumsum
from kerascl.ops.views import reshape_to

_INT64 = BY_NAME["int64"]


@operator("Gather")
def gathered(call: Call, x: Array, indices: Array) -> Array:
    """Slices of `x` along an axis, in whose place the result has the shape of `indices`."""
    return gather.take(x, indices, call.axis(x.ndim))


@operator("GatherElements")
def gather_elements(call: Call, x: Array, indices: Array) -> Array:
    """One element of `x` for each index, which replaces its own position along an axis.

    The result has the shape of `indices`; negative ones count from the end.
    """
    axis = call.axis(x.ndim)
    stops = [n if a == axis else indices.shape[a] for a, n in enumerate(x.shape)]
    x = strided(x, [0] * x.ndim, stops, [1] * x.ndim)
    return gather.take_along_axis(x, gather.wrap_negative(indices, x.shape[axis]), axis)


@operator("GatherND")
def gather_nd(call: Call, x: Array, indices: Array) -> Array:
    """Slices of `x` at coordinates.

    Args:
        indices: (*batch, …, k), each k coordinates along the axes of `x` after `batch_dims`
            leading ones, which both share.
    """
    lead = call.get("batch_dims", 0)
    depth = indices.shape[-1]
    batch = x.shape[:lead]
    rows, inner = math.prod(batch), x.shape[lead : lead + depth]
    tail = x.shape[lead + depth :]
    flat = reshape_to(x, (rows * math.prod(inner), math.prod(tail)))
    per_row = math.prod(indices.shape[lead:-1])
    index = cast_to(reshape_to(indices, (rows, per_row, depth)), BY_NAME["int32"])
    place = iota((rows, per_row), 0)
    for k, n in enumerate(inner):
        place = place * n + gather.wrap_negative(index[:, :, k], n)
    found = gather.take(flat, reshape_to(place, (rows * per_row,)), 0)
    return reshape_to(found, (*indices.shape[:-1], *tail))


_MODES = {"none": None, "add": "add", "mul": "mul", "max": "max", "min": "min"}


@operator("ScatterElements", "Scatter")
def scatter_elements(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    """`x` with updates at their own positions, but along one axis at `indices`.

    Where several meet, `reduction` says how they are combined.
    """
    axis = call.axis(x.ndim)
    index = gather.wrap_negative(cast_to(indices, BY_NAME["int32"]), x.shape[axis])
    places = [
        index if a == axis else cast_to(iota(indices.shape, a), BY_NAME["int32"])
        for a in range(x.ndim)
    ]
    return scatter_update(x, stack(places, -1), updates, _MODES[call.get("reduction", "none")])


@operator("ScatterND")
def scatter_nd(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    """`x` with slices put at coordinates.

    Args:
        indices: (…, k), k coordinates of leading axes each.
        updates: (…, *rest), combined as `reduction` says.
    """
    return scatter_update(x, indices, updates, _MODES[call.get("reduction", "none")])


@operator("TensorScatter")
def tensor_scatter(
    call: Call, past: Array, update: Array, starts: Array | None = None
) -> Array:
    """A cache of keys or values with new ones written along an axis.

    Args:
        past: (batch, …).
        update: of the same shape but for the axis.
        starts: (batch,), where the new elements begin; None: at 0.  In mode "circular" they go on
            at the beginning where the axis ends.
    """
    axis = call.axis(past.ndim)
    x, new = moveaxis(past, axis, 1), moveaxis(update, axis, 1)
    batch, length, size = x.shape[0], new.shape[1], x.shape[1]
    first = full((batch,), 0, "int32") if starts is None else cast_to(starts, BY_NAME["int32"])
    place = reshape_to(first, (batch, 1)) + iota((batch, length), 1)
    if call["mode"] == "circular":
        place = pointwise.mod(place, size)
    rows = iota((batch, length), 0)
    y = scatter_update(x, stack([cast_to(rows, place.dtype), place], -1), new)
    return moveaxis(y, 1, axis)


@operator("OneHot", host=(1,), settings=(2,))
def one_hot(call: Call, indices: Array, depth: np.ndarray, values: Array) -> Array:
    """`values[1]` at the positions that `indices` name along a new axis, `values[0]` elsewhere.

    Negative indices count from the end; those beyond `depth` name none.
    """
    count = int(depth.reshape(()))
    axis = axis_of(call["axis"], indices.ndim + 1)
    index = indices if indices.dtype.is_integer else cast_to(indices, _INT64)
    hot = nn.one_hot(gather.wrap_negative(index, count), count, axis, "bool")
    return pointwise.where(hot, values[1], values[0])


@operator("NonZero")
def nonzero(call: Call, x: Array) -> Array:
    """Coordinates of the elements that are not 0: int64 (axes, count)."""
    found = indexing.nonzero(x)
    return stack([cast_to(f, _INT64) for f in found], 0)


@operator("Compress")
def compress(call: Call, x: Array, condition: Array) -> Array:
    """The slices along an axis (left out: of the flat array) whose condition is true."""
    if call.get("axis") is None:
        x, axis = reshape_to(x, (x.size,)), 0
    else:
        axis = call.axis(x.ndim)
    chosen = indexing.nonzero(condition)[0]
    return gather.take(x, chosen, axis)


# -- the largest and the smallest -----------------------------------------------------
def _declare() -> None:
    for name, function in {"ArgMax": reduction.argmax, "ArgMin": reduction.argmin}.items():

        def position(call: Call, x: Array, function: Any = function) -> Array:
            axis = call.axis(x.ndim)
            keep = bool(call["keepdims"])
            if call.get("select_last_index"):
                y = x.shape[axis] - 1 - function(flip(x, axis), axis, keep)
            else:
                y = function(x, axis, keep)
            return cast_to(y, _INT64)

        operator(name)(position)


_declare()


@operator("TopK", host=(1,))
def top_k(call: Call, x: Array, count: np.ndarray | None = None) -> tuple[Array, Array]:
    """The `k` largest or smallest elements along an axis, in order, and their int64 positions.

    Raises:
        ValueError: where the axis has fewer.
    """
    axis = call.axis(x.ndim)
    k = int(count.reshape(())) if count is not None else call["k"]
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"{k} elements of an axis of {x.shape[axis]}")
    order = sorting.argsort(x, axis, descending=bool(call.get("largest", 1)))
    stops = [k if a == axis else n for a, n in enumerate(x.shape)]
    index = strided(order, [0] * x.ndim, stops, [1] * x.ndim)
    return gather.take_along_axis(x, index, axis), cast_to(index, _INT64)


@operator("Unique")
def unique(call: Call, x: Array) -> tuple[Array, ...]:
    """Sorted by value; without `sorted`, by first appearance."""
    axis = call.get("axis")
    if axis is None:
        rows = reshape_to(x, (x.size, 1))
    else:
        axis = axis_of(axis, x.ndim)
        rows = moveaxis(x, axis, 0)
        rest = rows.shape[1:]
        rows = reshape_to(rows, (rows.shape[0], math.prod(rest)))
    count = rows.shape[0]
    order = iota((count,), 0)
    for column in range(rows.shape[1] - 1, -1, -1):  # stable, the last column first
        keys = gather.take(rows[:, column], order, 0)
        order = gather.take(order, sorting.argsort(keys), 0)
    ordered = gather.take(rows, order, 0)
    same = reduction.all(ordered[1:] == ordered[:-1], 1)
    starts = pointwise.logical_not(same)
    starts = concatenate([full((1,), True, "bool"), starts], 0)
    group = cumsum(cast_to(starts, BY_NAME["int32"]), 0) - 1  # of each in order
    firsts = indexing.nonzero(starts)[0]
    found = firsts.size
    inverse = scatter_update(full((count,), 0, "int32"), reshape_to(order, (count, 1)), group)
    first = gather.take(order, firsts, 0)  # argsort is stable: the first of equal ones
    counts = scatter_update(
        full((found,), 0, "int32"), reshape_to(group, (count, 1)), full((count,), 1, "int32"), "add"
    )
    if not call["sorted"]:
        by_place = sorting.argsort(first)
        rank = sorting.argsort(by_place)
        first, counts = gather.take(first, by_place, 0), gather.take(counts, by_place, 0)
        inverse = gather.take(rank, inverse, 0)
    values = gather.take(rows, first, 0)
    if axis is None:
        values = reshape_to(values, (found,))
    else:
        values = moveaxis(reshape_to(values, (found, *rest)), 0, axis)
    return values, *(cast_to(v, _INT64) for v in (first, inverse, counts))


