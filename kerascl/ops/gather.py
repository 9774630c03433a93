"""Loads at computed places, and their transpose: the primitives that indexing stands on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerascl import config
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.context import current
from kerascl.core.op import Kind, Op, register
from kerascl.core.types import Attrs, Gradients, Results
from kerascl.dtypes import DType, int32, int64, positions, promote
from kerascl.ops import reduction
from kerascl.ops.batched import as_batches, element_by_element, merge
from kerascl.ops.declare import as_array, cast_to, library_operation, scalar
from kerascl.ops.movement import iota, strided
from kerascl.ops.pointwise import equal, greater_equal, less, logical_and, where
from kerascl.ops.views import EXPAND, expand_to, reshape_to


def _gather_vjp(g: Array, y: Array, x: Array, *rest: Any) -> Gradients:
    *indices, spec = rest
    return (_scatter_back(g, x, indices, spec), *[None] * len(indices))


def _filled_vjp(g: Array, y: Array, x: Array, *rest: Any) -> Gradients:
    *indices, spec = rest
    return (_scatter_back(g, x, indices, spec, filled=True), *[None] * len(indices))


def filling(dtype: DType) -> complex:
    """What JAX fills in: NaN, the least signed, the largest unsigned integer, True."""
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        return bounds.min if dtype.kind == "i" else bounds.max
    return True if dtype.is_bool else complex(math.nan, 0) if dtype.is_complex else math.nan


# Reads x at computed places: axis a of x is at output coordinate k for ("d", k), and at the
# value of index array k for ("i", k).  Index arrays have the output's shape.
# Indices out of range are clamped.
def _gather_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    ((shape, dtype),) = results
    (spec,) = attrs
    wide = (size, *shape)
    spec = tuple((kind, k + 1 if kind == "d" else k) for kind, k in spec)
    if batched[0]:
        spec = (("d", 0), *spec)
    indices = [expand_to(x, wide) for x in inputs[1:]]
    return [apply(op, (inputs[0], *indices), (spec,), wide, dtype)]


GATHER = register(Op("gather", Kind.GATHER, vjp=_gather_vjp, batch=_gather_batch))
# The same, but indices out of range give `filling`, and their gradients are dropped.
FILLED = register(
    Op("gather_filled", Kind.GATHER, vjp=_filled_vjp, batch=_gather_batch, extra={"fill": filling})
)


def _scatter_back(
    g: Array,
    x: Array,
    indices: Sequence[Array],
    spec: Sequence[tuple[str, int]],
    filled: bool = False,
) -> Array:
    """Sum the gradient of a gather into the elements that were read."""
    rank = x.ndim
    # trailing axes that are copied whole, in order, form contiguous rows
    tail = 0
    while (
        tail < rank
        and spec[rank - 1 - tail] == ("d", g.ndim - 1 - tail)
        and x.shape[rank - 1 - tail] == g.shape[g.ndim - 1 - tail]
        and all(_alike(i, g.ndim - 1 - tail) for i in indices)
    ):
        tail += 1
    lead = rank - tail
    outer = g.shape[: g.ndim - tail]
    position = scalar(0, positions(math.prod(x.shape[:lead])))
    for axis in range(lead):
        kind, k = spec[axis]
        if kind == "i":
            # not narrowed: what is out of range must not come back into it
            index = cast_to(indices[k], int64 if indices[k].dtype.itemsize == 8 else int32)
            if filled and lead > 1:
                # so far below that no other axis makes up for it: the scatter drops it
                inside = logical_and(greater_equal(index, 0), less(index, x.shape[axis]))
                index = where(inside, cast_to(index, promote(index.dtype, position.dtype)),
                              -math.prod(x.shape[: axis + 1]))  # fmt: skip
            for _ in range(tail):
                index = strided(index, [0] * index.ndim, (*index.shape[:-1], 1), [1] * index.ndim)
                index = reshape_to(index, index.shape[:-1])
        else:
            index = iota(outer, k)
        position = position + index * math.prod(x.shape[axis + 1 : lead])
    position = expand_to(position, outer)
    width = math.prod(x.shape[lead:])
    rows = math.prod(x.shape[:lead])
    base = expand_to(scalar(0, g.dtype), (rows, width))
    flat = scatter_rows(base, reshape_to(position, (math.prod(outer),)),
                        reshape_to(g, (math.prod(outer), width)), "add")  # fmt: skip
    return reshape_to(flat, x.shape)


def _alike(index: Array, axis: int) -> bool:
    """Whether an index array is known to be the same all along an axis."""
    node = index._node
    if node.shape[axis] == 1:
        return True
    return node.op is EXPAND and node.inputs[0].shape[axis] == 1


def _scatter_vjp(
    g: Array, y: Array, indices: Array, updates: Array, base: Array, mode: str
) -> Gradients:
    inside = logical_and(greater_equal(indices, 0), less(indices, base.shape[0]))
    inside = reshape_to(inside, (indices.shape[0], 1))  # updates outside have been dropped
    if mode == "add":
        return None, where(inside, take_rows(g, indices), 0), g
    if mode == "set":
        hit = scatter_rows(
            expand_to(scalar(0, positions(indices.shape[0] + 1)), (base.shape[0], 1)),
            indices,
            reshape_to(_positions(indices) + 1, (indices.shape[0], 1)),
            "set",
        )
        kept = where(hit == 0, g, 0)
        last = take_rows(hit, indices) == reshape_to(_positions(indices) + 1, (indices.shape[0], 1))
        return None, where(last, take_rows(g, indices), 0), kept
    if mode in ("max", "min"):
        won = cast_to(equal(y, base), g.dtype)
        hit = logical_and(inside, equal(take_rows(y, indices), updates))
        hit = cast_to(hit, g.dtype)
        count = won + scatter_rows(expand_to(scalar(0, g.dtype), g.shape), indices, hit, "add")
        share = g / where(count == 0, 1, count)
        return None, take_rows(share, indices) * hit, share * won
    # The product of the others, which a division by zero does not give.
    zero = equal(updates, 0)
    safe = where(zero, 1, updates)
    product = scatter_rows(expand_to(scalar(1, y.dtype), y.shape), indices, safe, "mul")
    zeros = expand_to(scalar(0, y.dtype), y.shape)
    zeros = scatter_rows(zeros, indices, cast_to(zero, y.dtype), "add")
    others = take_rows(g * base * product, indices) / safe
    alone = equal(take_rows(zeros, indices), cast_to(zero, y.dtype))
    return (
        None,
        where(logical_and(inside, alone), others, 0),
        g * where(equal(zeros, 0), product, 0),
    )


def _positions(indices: Array) -> Array:
    return iota(indices.shape, 0)


def _scatter_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    ((shape, dtype),) = results
    rows = shape[0]
    if size * rows >= 2**31:
        return element_by_element(size, op, inputs, batched, attrs, results)
    indices, updates, base = as_batches(size, inputs, batched)
    inside = logical_and(indices >= 0, indices < rows)  # those outside are dropped
    indices = where(inside, indices + iota(indices.shape, 0) * rows, -1)
    merged = (merge(indices), merge(updates), merge(base))
    return [reshape_to(apply(op, merged, attrs, (size * rows, *shape[1:]), dtype), (size, *shape))]


SCATTER = library_operation("scatter", _scatter_vjp, batch=_scatter_batch)


def scatter_rows(base: Array, indices: Array, updates: Array, mode: str) -> Array:
    """Rows of `base` (rows, width) updated at `indices` (count,) by `updates` (count, width).

    `mode` is "add", "set" (the last one wins), "max", "min" or "mul".  Indices
    out of range are dropped.
    """
    updates = cast_to(updates, base.dtype)
    return apply(SCATTER, (indices, updates, base), (mode,), base.shape, base.dtype)


def take_rows(x: Array, indices: Array) -> Array:
    """Rows of `x` (rows, …) at 1-D `indices`."""
    return take(x, indices, 0)


def take_from_start(x: Array, places: Array) -> Array:
    """Elements or slices of `x` (n, …) at integers (m,) that are known not to be negative."""
    shape = (*places.shape, *x.shape[1:])
    if x.ndim > 1:
        places = expand_to(reshape_to(places, (places.size, *[1] * (x.ndim - 1))), shape)
    spec = (("i", 0), *(("d", a) for a in range(1, x.ndim)))
    return apply(GATHER, (x, places), (spec,), shape, x.dtype)


def wrap_negative(index: Array, size: int) -> Array:
    """Indices counted from the end when negative."""
    if not index.dtype.is_integer or index.dtype.kind == "u":
        return index
    if index.dtype.itemsize < 8:  # a narrow one could not hold the sum
        index = cast_to(index, positions(size))
    return where(index < 0, index + size, index)


@dataclass(frozen=True)
class IndexCheck:
    """What is said of indices out of range.

    Attributes:
        name: of the function that takes them.
        size: of the axis that they count along.
        layer: of the model that they are taken in, or "".
    """

    name: str
    size: int
    layer: str

    def check(self, low: Any, high: Any) -> None:
        """Raise IndexError unless the least and the greatest index are in range."""
        if low < -self.size or high >= self.size:
            place = f" in layer {self.layer}" if self.layer else ""
            raise IndexError(
                f"{self.name}: indices from {low} to {high} are out of range for an axis of size "
                f"{self.size}{place}"
            )


def _check_filled(x: Array, axis: int, indices: Array) -> None:
    if not x.shape[axis] and indices.size:
        raise IndexError(f"axis {axis} of shape {x.shape} has no elements to take")


def _report(indices: Array, size: int, name: str) -> None:
    """Raise IndexError for indices out of range, where a user asked for such checks.

    Those of a captured function are looked at after each of its runs.
    """
    if not (current.checks_indices or config.debug()) or not indices.size or current.tracers:
        return
    layer = current.labels.last if current.labels is not None else ""
    if current.trace is None:
        host = indices.numpy()
        IndexCheck(name, size, layer).check(host.min(), host.max())
    elif current.trace.index_checks is not None:
        check = IndexCheck(name, size, layer)
        current.trace.index_checks.append((check, reduction.min(indices), reduction.max(indices)))


def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None, op: Op = GATHER) -> Array:
    """Slices of `x` along `axis`, like `kerascl.take`; indices out of range are clamped."""
    x, indices = as_array(x), as_array(indices)
    if not indices.dtype.is_integer:
        raise TypeError(f"take: indices must be integers, not {indices.dtype.name}")
    if axis is None:
        x, axis = reshape_to(x, (x.size,)), 0
    axis = rules.axis_index(axis, x.ndim)
    _check_filled(x, axis, indices)
    if op is FILLED:
        _report(indices, x.shape[axis], "take")
    indices = wrap_negative(indices, x.shape[axis])
    rank = indices.ndim
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    wide = reshape_to(indices, (*indices.shape, *[1] * (x.ndim - axis - 1)))
    spec = tuple(
        ("i", 0) if a == axis else ("d", a if a < axis else a + rank - 1) for a in range(x.ndim)
    )
    return apply(op, (x, expand_to(wide, shape)), (spec,), shape, x.dtype)


def take_along_axis(
    x: ArrayLike, indices: ArrayLike, axis: int | None = -1, op: Op = GATHER
) -> Array:
    """Like `kerascl.take_along_axis`; indices out of range are clamped."""
    x, indices = as_array(x), as_array(indices)
    if not indices.dtype.is_integer:
        raise TypeError(f"take_along_axis: indices must be integers, not {indices.dtype.name}")
    if axis is None:
        x, axis = reshape_to(x, (x.size,)), 0
        indices = reshape_to(indices, (indices.size,))
    axis = rules.axis_index(axis, x.ndim)
    _check_filled(x, axis, indices)
    if op is FILLED:
        _report(indices, x.shape[axis], "take")
    indices = wrap_negative(indices, x.shape[axis])
    others = rules.broadcast(
        (*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        (*indices.shape[:axis], 1, *indices.shape[axis + 1 :]),
    )
    shape = (*others[:axis], indices.shape[axis], *others[axis + 1 :])
    x = expand_to(x, (*others[:axis], x.shape[axis], *others[axis + 1 :]))
    spec = tuple(("i", 0) if a == axis else ("d", a) for a in range(x.ndim))
    return apply(op, (x, expand_to(indices, shape)), (spec,), shape, x.dtype)
