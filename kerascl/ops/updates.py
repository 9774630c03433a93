"""An array with a box of it replaced, at a place that the device knows.

An operation of its own, so that loops can tell it: a carry whose next value is itself with boxes
replaced stays where it lies (compiler/graph/in_place.py). Everywhere else it is its formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kerascl.core.array import Array, apply
from kerascl.core.batch import BatchTracer
from kerascl.core.op import Op
from kerascl.core.types import Attrs, Gradients, Results
from kerascl.dtypes import int32, int64
from kerascl.ops import gather
from kerascl.ops.batched import as_batches
from kerascl.ops.declare import cast_to, library_operation, scalar
from kerascl.ops.movement import iota, strided
from kerascl.ops.pointwise import logical_and, maximum, minimum, where
from kerascl.ops.views import expand_to, pad_with, reshape_to

Starts = Sequence[int | Array]


def update(x: Array, part: Array, starts: Starts) -> Array:
    """`x` with the box that begins at `starts` replaced by `part`; what lies outside is dropped.

    Args:
        x: any array.
        part: as many axes, none longer; it takes the dtype of `x`.
        starts: of each axis an integer that leaves the box inside, or an integer Array of shape ().
    """
    part = cast_to(part, x.dtype)
    if part.shape == x.shape and not any(isinstance(s, Array) for s in starts):
        return part
    fixed = tuple([None if isinstance(s, Array) else s for s in starts])
    moving = [
        bounded(s, -m, n)  # a box further away is outside as well
        for s, m, n in zip(starts, part.shape, x.shape, strict=True)
        if isinstance(s, Array)
    ]
    return apply(UPDATE, (x, part, *moving), (fixed,), x.shape, x.dtype)


def bounded(x: Array, low: int, high: int) -> Array:
    """Integers of any dtype, those out of bounds as the nearest bound, of int32."""
    if x.dtype is not int32:
        x = cast_to(minimum(x, high) if x.dtype.name == "uint64" else x, int64)
    return cast_to(minimum(maximum(x, low), high), int32)


def formula(x: Array, part: Array, *rest: Any) -> Array:
    """`update` by other operations; takes what its nodes have: the moving starts, then all starts,
    None for those that move."""
    *moving, fixed = rest
    found = iter(moving)
    inside = None
    for axis, (start, m, n) in enumerate(zip(fixed, part.shape, x.shape, strict=True)):
        if start is None:
            start = next(found)
            line = minimum(maximum(iota((n,), 0) - start, 0), m - 1)
            part = gather.take(part, line, axis)
        elif m == n:
            continue
        place = iota(x.shape, axis) - start
        here = logical_and(place >= 0, place < m)
        inside = here if inside is None else logical_and(inside, here)
    if inside is None:
        return part
    low = [s or 0 for s in fixed]
    high = [n - s - m for n, s, m in zip(x.shape, low, part.shape, strict=True)]
    part = pad_with(part, low, high, [0] * x.ndim, 0)
    return where(inside, part, x)


def _box(x: Array, shape: tuple[int, ...], moving: Sequence[Array], fixed: Attrs) -> Array:
    """The box that `update` replaces, with zeros outside."""
    low = [s or 0 for s in fixed]
    high = [n if s is None else s + m for s, m, n in zip(fixed, shape, x.shape, strict=True)]
    y = strided(x, low, high, [1] * x.ndim)
    found = iter(moving)
    for axis, (start, m, n) in enumerate(zip(fixed, shape, x.shape, strict=True)):
        if start is None:
            line = next(found) + iota((m,), 0)
            y = gather.take(y, minimum(maximum(line, 0), n - 1), axis)
            column = tuple([m if a == axis else 1 for a in range(x.ndim)])
            y = where(reshape_to(logical_and(line >= 0, line < n), column), y, 0)
    return y


def _update_vjp(g: Array, y: Array, x: Array, part: Array, *rest: Any) -> Gradients:
    *moving, fixed = rest
    nothing = expand_to(scalar(0, g.dtype), part.shape)
    kept = apply(UPDATE, (g, nothing, *moving), (fixed,), g.shape, g.dtype)
    return (kept, _box(g, part.shape, moving, fixed), *[None] * len(moving))


def _update_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    (fixed,) = attrs
    if not any(batched[2:]):
        ((shape, dtype),) = results
        both = as_batches(size, inputs[:2], batched[:2])
        return [apply(op, (*both, *inputs[2:]), ((0, *fixed),), (size, *shape), dtype)]
    tracer = BatchTracer(size)  # each element has a place of its own
    with tracer.active():
        given = [tracer.wrap(x) if b else x for x, b in zip(inputs, batched, strict=True)]
        return [tracer.broadcast(formula(*given, fixed))]


UPDATE = library_operation("update", _update_vjp, batch=_update_batch)
