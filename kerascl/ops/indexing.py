"""Reading and updating parts of arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, State, apply
from kerascl.core.op import Kind, Op, register
from kerascl.dtypes import int32
from kerascl.ops.declare import as_array, cast_to, expand_to, family, is_scalar, reshape_to, scalar
from kerascl.ops.movement import flip, iota, strided
from kerascl.ops.pointwise import equal, where

__all__ = ["getitem", "take", "take_along_axis"]


def _gather_vjp(g, y, x, *rest):
    *indices, spec = rest
    return (_scatter_back(g, x, indices, spec), *[None] * len(indices))


# Reads x at computed places: axis a of x is at output coordinate k for ("d", k), and at the
# value of index array k for ("i", k).  Index arrays have the output's shape.
GATHER = register(Op("gather", Kind.GATHER, vjp=_gather_vjp))


def _scatter_back(g: Array, x: Array, indices: Sequence[Array], spec) -> Array:
    """Sum the gradient of a gather into the elements that were read."""
    rank = x.ndim
    # trailing axes that are copied whole, in order, form contiguous rows
    tail = 0
    while (
        tail < rank
        and spec[rank - 1 - tail] == ("d", g.ndim - 1 - tail)
        and x.shape[rank - 1 - tail] == g.shape[g.ndim - 1 - tail]
    ):
        tail += 1
    lead = rank - tail
    outer = g.shape[: g.ndim - tail]
    position = scalar(0, int32)
    for axis in range(lead):
        kind, k = spec[axis]
        if kind == "i":
            index = cast_to(indices[k], int32)
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


def _scatter_vjp(g, y, base, indices, updates, mode):
    if mode == "add":
        return g, None, take_rows(g, indices)
    if mode == "set":
        hit = scatter_rows(
            expand_to(scalar(0, int32), (base.shape[0], 1)),
            indices,
            reshape_to(_positions(indices) + 1, (indices.shape[0], 1)),
            "set",
        )
        kept = where(hit == 0, g, 0)
        last = take_rows(hit, indices) == reshape_to(_positions(indices) + 1, (indices.shape[0], 1))
        return kept, None, where(last, take_rows(g, indices), 0)
    if mode in ("max", "min"):
        won = cast_to(equal(y, base), g.dtype)
        hit = cast_to(equal(take_rows(y, indices), updates), g.dtype)
        count = won + scatter_rows(expand_to(scalar(0, g.dtype), g.shape), indices, hit, "add")
        share = g / where(count == 0, 1, count)
        return share * won, None, take_rows(share, indices) * hit
    return (g * y / base, None, take_rows(g * y, indices) / updates)


def _positions(indices: Array) -> Array:
    return iota(indices.shape, 0)


SCATTER = family("scatter", _scatter_vjp)


def scatter_rows(base: Array, indices: Array, updates: Array, mode: str) -> Array:
    """Rows of `base` (rows, width) updated at `indices` (count,) by `updates` (count, width).

    `mode` is "add", "set" (the last one wins), "max", "min" or "mul".  Indices
    out of range are dropped.
    """
    updates = cast_to(updates, base.dtype)
    return apply(SCATTER, (base, indices, updates), (mode,), base.shape, base.dtype)


def take_rows(x: Array, indices: Array) -> Array:
    """Rows of `x` (rows, …) at 1-D `indices`."""
    return take(x, indices, 0)


def wrap_negative(index: Array, size: int) -> Array:
    """Indices counted from the end when negative."""
    if not index.dtype.is_integer or index.dtype.kind == "u":
        return index
    return where(index < 0, index + size, index)


def take(x, indices, axis: int | None = None) -> Array:
    """Slices of `x` at integer `indices` along `axis` (None: of the flat array).

    The result's shape has that of `indices` in place of `axis`.  Negative
    indices count from the end; those out of range are clamped.
    """
    x, indices = as_array(x), as_array(indices)
    if not indices.dtype.is_integer:
        raise TypeError(f"take: indices must be integers, not {indices.dtype.name}")
    if axis is None:
        x, axis = reshape_to(x, (x.size,)), 0
    axis = rules.axis_index(axis, x.ndim)
    indices = wrap_negative(indices, x.shape[axis])
    rank = indices.ndim
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    wide = reshape_to(indices, (*indices.shape, *[1] * (x.ndim - axis - 1)))
    spec = tuple(
        ("i", 0) if a == axis else ("d", a if a < axis else a + rank - 1) for a in range(x.ndim)
    )
    return apply(GATHER, (x, expand_to(wide, shape)), (spec,), shape, x.dtype)


def take_along_axis(x, indices, axis: int | None = -1) -> Array:
    """x[…, indices[…, j, …], …] along `axis`; other axes broadcast."""
    x, indices = as_array(x), as_array(indices)
    if axis is None:
        x, axis = reshape_to(x, (x.size,)), 0
        indices = reshape_to(indices, (indices.size,))
    axis = rules.axis_index(axis, x.ndim)
    indices = wrap_negative(indices, x.shape[axis])
    others = rules.broadcast(
        (*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        (*indices.shape[:axis], 1, *indices.shape[axis + 1 :]),
    )
    shape = (*others[:axis], indices.shape[axis], *others[axis + 1 :])
    x = expand_to(x, (*others[:axis], x.shape[axis], *others[axis + 1 :]))
    spec = tuple(("i", 0) if a == axis else ("d", a) for a in range(x.ndim))
    return apply(GATHER, (x, expand_to(indices, shape)), (spec,), shape, x.dtype)


class _Key:
    """An index expression, split into basic steps and advanced index arrays."""

    def __init__(self, shape: tuple[int, ...], key):
        parts = list(key) if isinstance(key, tuple) else [key]
        parts = [_plain(p) for p in parts]
        expanded = []
        for p in parts:
            if isinstance(p, Array) and p.dtype.is_bool:
                expanded.extend(_mask_positions(p))
            else:
                expanded.append(p)
        parts = expanded
        used = sum(1 for p in parts if p is not None and p is not Ellipsis)
        if used > len(shape):
            raise IndexError(f"too many indices ({used}) for an array of {len(shape)} dimensions")
        if Ellipsis not in [p for p in parts if not isinstance(p, Array)]:
            parts.append(Ellipsis)
        place = next(k for k, p in enumerate(parts) if p is Ellipsis)
        fill = [slice(None)] * (len(shape) - used)
        self.parts = parts[:place] + fill + parts[place + 1 :]
        self.shape = shape


def _plain(part):
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, Array):
        return part
    if isinstance(part, State):
        return part.value
    if isinstance(part, bool | np.bool_):
        raise IndexError("indexing by a single bool is not supported; use an array of bools")
    if isinstance(part, list | np.ndarray) and np.ndim(part) > 0:
        return as_array(np.asarray(part))
    try:
        return operator.index(part)
    except TypeError:
        pass
    if isinstance(getattr(part, "value", None), Array):
        return part.value
    raise IndexError(
        f"{part!r} cannot index an array; use integers, slices, None, ... or integer or bool arrays"
    )


def _mask_positions(mask: Array) -> list[Array]:
    # The number of selected elements shapes the result, so the mask is read on the host.
    return [as_array(p.astype(np.int32)) for p in np.nonzero(mask.numpy())]


def _basic(x: Array, parts) -> tuple[Array, list]:
    """Apply slices and integers; gives the view and the advanced parts by remaining axis."""
    starts, stops, steps, reverse, drop = [], [], [], [], []
    advanced = []
    axis = 0
    for part in parts:
        if part is None:
            continue
        n = x.shape[axis]
        if isinstance(part, slice):
            start, stop, step = part.indices(n)
            if step < 0:
                count = max(0, -(-(start - stop) // -step))
                last = start + (count - 1) * step if count else 0
                start, stop, step = last, start + 1 if count else last, -step
                reverse.append(axis)
            starts.append(start)
            stops.append(max(start, stop))
            steps.append(step)
        elif isinstance(part, Array):
            advanced.append((axis, part))
            starts.append(0)
            stops.append(n)
            steps.append(1)
        else:
            if not -n <= part < n:
                raise IndexError(f"index {part} is out of bounds for axis {axis} of size {n}")
            starts.append(part % n)
            stops.append(part % n + 1)
            steps.append(1)
            drop.append(axis)
        axis += 1
    y = strided(x, starts, stops, steps)
    if reverse:
        y = flip(y, tuple(reverse))
    return y, [drop, advanced]


def getitem(x: Array, key) -> Array:
    """x[key] with NumPy's rules: integers, slices, None, ..., integer and bool arrays."""
    parsed = _Key(x.shape, key)
    y, (drop, advanced) = _basic(x, parsed.parts)
    if not advanced:
        shape, axis = [], 0
        for part in parsed.parts:
            if part is None:
                shape.append(1)
                continue
            if axis not in drop:
                shape.append(y.shape[axis])
            axis += 1
        return reshape_to(y, tuple(shape))
    return _advanced(y, parsed.parts, advanced)


def _advanced(y: Array, parts, advanced) -> Array:
    # integers beside index arrays take part in their broadcast, as in NumPy
    index_axes = [a for a, _ in advanced]
    index_shape = rules.broadcast(*(i.shape for _, i in advanced))
    rank = len(index_shape)
    axis = 0
    layout = []
    for part in parts:
        if part is None:
            layout.append(("new", None))
            continue
        if isinstance(part, slice):
            layout.append(("slice", axis))
        elif isinstance(part, Array):
            layout.append(("index", axis))
        else:
            layout.append(("int", axis))
        axis += 1
    places = [k for k, (kind, _) in enumerate(layout) if kind in ("index", "int")]
    together = places == list(range(places[0], places[0] + len(places)))
    first = places[0] if together else 0
    shape, where_is = [], {}
    inserted = False
    for k, (kind, axis) in enumerate(layout):
        if not inserted and (k == first if together else True):
            start = len(shape)
            shape.extend(index_shape)
            inserted = True
        if kind == "new":
            shape.append(1)
        elif kind == "slice":
            where_is[axis] = len(shape)
            shape.append(y.shape[axis])
    shape = tuple(shape)
    spec, arrays = [], []
    for axis in range(y.ndim):
        if axis in where_is:
            spec.append(("d", where_is[axis]))
            continue
        if axis in index_axes:
            index = next(i for a, i in advanced if a == axis)
            if not index.dtype.is_integer:
                raise IndexError(f"index arrays must be integers or bools, not {index.dtype.name}")
            index = wrap_negative(index, y.shape[axis])
        else:
            index = scalar(0, int32)  # an integer: the view has size 1 there
        index = expand_to(index, index_shape)
        tail = len(shape) - start - rank
        index = reshape_to(index, (*index_shape, *[1] * tail))
        spec.append(("i", len(arrays)))
        arrays.append(expand_to(index, shape))
    return apply(GATHER, (y, *arrays), (tuple(spec),), shape, y.dtype)


class At:
    """`x.at[key]`: functional updates, `x.at[key].set(v)`, `.add`, `.multiply`, `.max`, `.min`."""

    def __init__(self, array: Array):
        self._array = array

    def __getitem__(self, key) -> _Update:
        return _Update(self._array, key)


class _Update:
    def __init__(self, array: Array, key):
        self._array = array
        self._key = key

    def get(self) -> Array:
        """x[key]."""
        return self._array[self._key]

    def set(self, value) -> Array:
        """A copy of x with x[key] = value."""
        return self._apply(value, "set")

    def add(self, value) -> Array:
        """A copy of x with x[key] += value; repeated indices add up."""
        return self._apply(value, "add")

    def multiply(self, value) -> Array:
        """A copy of x with x[key] *= value."""
        return self._apply(value, "mul")

    def max(self, value) -> Array:
        """A copy of x with x[key] = maximum(x[key], value)."""
        return self._apply(value, "max")

    def min(self, value) -> Array:
        """A copy of x with x[key] = minimum(x[key], value)."""
        return self._apply(value, "min")

    def _apply(self, value, mode: str) -> Array:
        x = self._array
        where_to = iota_like(x)[self._key]  # flat position of every selected element
        value = scalar(value, x.dtype) if is_scalar(value) else as_array(value, x.dtype)
        value = expand_to(value, where_to.shape)
        flat = scatter_rows(
            reshape_to(x, (x.size, 1)),
            reshape_to(where_to, (where_to.size,)),
            reshape_to(value, (value.size, 1)),
            mode,
        )
        return reshape_to(flat, x.shape)


def iota_like(x: Array) -> Array:
    """Flat position of every element of `x`, in its shape."""
    return reshape_to(iota((x.size,), 0), x.shape)
