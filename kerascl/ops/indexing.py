"""Reading and updating parts of arrays."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from kerascl import dtypes
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, State, apply
from kerascl.core.types import ShapeLike
from kerascl.dtypes import int32, int64, positions
from kerascl.ops import gather, host, pointwise
from kerascl.ops.declare import (
    as_array,
    cast_to,
    is_scalar,
    scalar,
)
from kerascl.ops.gather import FILLED, GATHER, scatter_rows, take_from_start, wrap_negative
from kerascl.ops.movement import flip, iota, strided
from kerascl.ops.pointwise import not_equal
from kerascl.ops.prepared import first, prepared, room_for
from kerascl.ops.scan import cumsum, places_of
from kerascl.ops.updates import bounded, update
from kerascl.ops.views import SLICE, concat, expand_to, reshape_to, window

__all__ = [
    "argwhere", "getitem", "nonzero", "take", "take_along_axis", "unravel_index", "where",
]  # fmt: skip


# -- elements at places -------------------------------------------------------
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Slices of `x` at integer `indices` along `axis` (None: of the flat array).

    The result's shape has that of `indices` in place of `axis`.  Negative
    indices count from the end.  As in JAX, those out of range give NaN (the least signed or
    the largest unsigned integer, True), and no gradient.

    Raises:
        TypeError: for indices that are not integers.
        IndexError: where `x` has no elements along `axis`; under KERASCL_DEBUG also for indices out
            of range.
    """
    return gather.take(x, indices, axis, FILLED)


def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = -1) -> Array:
    """x[…, indices[…, j, …], …] along `axis`; other axes broadcast.

    Indices out of range give what they give in `take`.
    """
    return gather.take_along_axis(x, indices, axis, FILLED)


# -- where something holds ---------------------------------------------------
def selected(mask: Array, name: str = "nonzero") -> Array:
    """Flat positions of the elements that are not 0, int32 where that is enough; their number is
    read on the host."""
    if _is_narrow(mask):
        return of_nonzero(mask, name, _places)[0]
    flat = reshape_to(mask, (mask.size,))
    if not flat.size:
        return expand_to(scalar(0, int32), (0,))
    # in parts, whose positions are narrow
    half = (dtypes.NARROW_POSITIONS + 1) // 2
    starts = range(0, flat.size, half)
    parts = [window(flat, 0, start, min(start + half, flat.size)) for start in starts]
    found = [cast_to(selected(part, name), int64) for part in parts]
    return concat([x + start for x, start in zip(found, starts, strict=True)], 0)


def of_nonzero(
    x: Array, name: str, give: Callable[..., tuple[Array, ...]], *args: Any
) -> tuple[Array, ...]:
    """What a prepared function has of the elements of `x` that are not 0, whose number is read.

    Args:
        x: of one element at least, and as many as int32 counts.
        name: in `host.HOST_OPERATIONS`.
        give: gives arrays of `room` slices from how many of the first 1, 2, … elements of `x` are
            not 0, the `room` and `args`.
    """
    (counts,) = _counts_up_to(x)
    host.count(name)
    found = int(counts._element(x.size - 1))
    return tuple(first(y, found) for y in give(counts, room_for(found, x.size), *args))


def _is_narrow(x: Array) -> bool:
    return bool(x.size) and positions(x.size) is int32


@prepared
def _counts_up_to(x: Array) -> tuple[Array]:
    flat = reshape_to(x, (x.size,))
    flags = flat if x.dtype.is_bool else not_equal(flat, 0)
    return (cumsum(pointwise.where(flags, 1, 0), 0, int32),)


@prepared
def _places(counts: Array, room: int) -> tuple[Array]:
    return (places_of(counts, room),)


@prepared
def _coordinates_of(counts: Array, room: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
    return _coordinates(places_of(counts, room), shape)


@prepared
def rows_at(counts: Array, room: int, x: Array, axes: int) -> tuple[Array]:
    """Slices of `x` along its first `axes` axes, as `of_nonzero` asks for them."""
    rows = reshape_to(x, (math.prod(x.shape[:axes]), *x.shape[axes:]))
    return (take_from_start(rows, places_of(counts, room)),)


def unravel_index(indices: ArrayLike, shape: ShapeLike) -> tuple[Array, ...]:
    """Coordinates of flat positions in an array of `shape`; negative ones count from the end."""
    indices = as_array(indices)
    shape = rules.normalize_shape(shape)
    rest = wrap_negative(indices, math.prod(shape))
    result = []
    for n in reversed(shape):
        result.append(rest % n)
        rest = rest // n
    return tuple(reversed(result))


def _coordinates(places: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Of flat positions that lie in `shape`."""
    result = []
    for n in reversed(shape[1:]):
        result.append(places % n)
        places = places // n
    return (places, *reversed(result)) if shape else ()


def nonzero(x: ArrayLike) -> tuple[Array, ...]:
    """Coordinates of the elements that are not 0, one array for each axis.

    They are int32, or int64 among more than 2**31 - 1 elements.

    Raises:
        ValueError: for an array of shape (), which has no axes.
    """
    x = as_array(x)
    if not x.ndim:
        raise ValueError("nonzero: an array of shape () has no axes; use x != 0")
    if _is_narrow(x):
        return of_nonzero(x, "nonzero", _coordinates_of, x.shape)
    return _coordinates(selected(x), x.shape)


@overload
def where(condition: ArrayLike) -> tuple[Array, ...]: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array: ...
def where(
    condition: ArrayLike, x: ArrayLike | None = None, y: ArrayLike | None = None
) -> Array | tuple[Array, ...]:
    """`x` where `condition` holds, else `y`; all three broadcast. Without both, as `nonzero`.

    Raises:
        ValueError: for one of `x` and `y` only.
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ValueError("where: give both x and y, or neither")
    return pointwise.where(condition, x, y)


def argwhere(x: ArrayLike) -> Array:
    """int32 coordinates of the elements that are not 0, one row for each."""
    x = as_array(x)
    if not x.ndim:
        return expand_to(scalar(0, int32), (selected(x).size, 0))
    if _is_narrow(x):
        return of_nonzero(x, "nonzero", _coordinate_rows, x.shape)[0]
    return _as_columns(nonzero(x))


def _as_columns(vectors: tuple[Array, ...]) -> Array:
    return concat([reshape_to(c, (c.size, 1)) for c in vectors], 1)


@prepared
def _coordinate_rows(counts: Array, room: int, shape: tuple[int, ...]) -> tuple[Array]:
    return (_as_columns(_coordinates(places_of(counts, room), shape)),)


# -- x[key] -------------------------------------------------------------------
class Key:
    """An index expression, split into basic steps and advanced index arrays."""

    def __init__(self, shape: tuple[int, ...], key: Any) -> None:
        parts = list(key) if isinstance(key, tuple) else [key]
        parts = [_plain(p) for p in parts]
        taken = [_taken(p) for p in parts]
        rest = len(shape) - builtins.sum(taken)
        axis = 0
        expanded: list[Any] = []
        for p, count in zip(parts, taken, strict=True):
            if isinstance(p, Array) and p.dtype.is_bool:
                _check_mask(p, shape, axis)
                expanded.extend(_mask_positions(p))
            else:
                expanded.append(p)
            axis += rest if p is Ellipsis else count
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


def _taken(part: Any) -> int:
    """How many axes a part of a key stands for; an ellipsis takes what is left."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, Array) and part.dtype.is_bool else 1


def _check_mask(mask: Array, shape: tuple[int, ...], axis: int) -> None:
    given = shape[axis : axis + mask.ndim]
    # as in NumPy, a mask of no elements fits any size
    if len(given) != mask.ndim or any(m not in (n, 0) for m, n in zip(mask.shape, given)):
        raise IndexError(
            f"a boolean index of shape {mask.shape} does not fit axes {axis} and on of {shape}"
        )


def _plain(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, Array):
        return part
    if isinstance(part, State):
        return part.value
    if isinstance(part, bool | np.bool_):
        raise IndexError("indexing by a single bool is not supported; use an array of bools")
    if isinstance(part, list | np.ndarray) and np.ndim(part) > 0:
        host = np.asarray(part)
        array = as_array(host if host.size else host.astype(np.int32))
        if array.dtype.is_integer and array.size:
            array.__dict__["_span"] = int(np.min(part)), int(np.max(part))  # without the device
        return array
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
    # the number of selected elements shapes the result, so it is read on the host
    return list(_coordinates(selected(mask, "boolean index"), mask.shape))


@dataclass
class Basic:
    """What the slices and integers of a key say: one start, stop and positive step for each axis,
    the axes to reverse afterwards and those to drop, and index arrays with their axes."""

    starts: list[int]
    stops: list[int]
    steps: list[int]
    reverse: tuple[int, ...]
    drop: tuple[int, ...]
    advanced: list[tuple[int, Array]]

    def of(self, x: Array) -> Array:
        """What they select, with the dropped axes kept at size 1."""
        y = strided(x, self.starts, self.stops, self.steps)
        return flip(y, self.reverse) if self.reverse else y


def basic(shape: tuple[int, ...], parts: Sequence[Any]) -> Basic:
    """What the parts of a `Key` say of an array's axes."""
    starts, stops, steps, reverse, drop = [], [], [], [], []
    advanced = []
    axis = 0
    for part in parts:
        if part is None:
            continue
        n = shape[axis]
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
    return Basic(starts, stops, steps, tuple(reverse), tuple(drop), advanced)


def kept_shape(parts: Sequence[Any], found: Basic) -> tuple[int, ...]:
    """The shape that a key without index arrays gives."""
    shape, axis = [], 0
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        if axis not in found.drop:
            start, stop, step = found.starts[axis], found.stops[axis], found.steps[axis]
            shape.append(max(0, -(-(stop - start) // step)))
        axis += 1
    return tuple(shape)


def is_flag(key: Any) -> bool:
    """Whether a key is one bool."""
    if isinstance(key, Array):
        return key.dtype.is_bool and not key.ndim
    return isinstance(key, bool | np.bool_) or (
        isinstance(key, np.ndarray) and key.dtype == bool and not key.ndim
    )


def _row(x: Array, place: int) -> Array:
    """x[place], the way of loops over rows, without a `Key`."""
    n, *rest = x.shape
    if not -n <= place < n:
        raise IndexError(f"index {place} is out of bounds for axis 0 of size {n}")
    shape = tuple(rest)
    if n > 1:
        start = (place % n, *[0] * len(shape))
        x = apply(SLICE, (x,), (start, (1,) * len(start)), (1, *shape), x.dtype)
    return reshape_to(x, shape)


def getitem(x: Array, key: Any) -> Array:
    """x[key] with NumPy's rules: integers, slices, None, ..., integer and bool arrays.

    Values of index arrays on the device are not looked at: as in JAX, those out of range are
    clamped to the first or last element.

    Raises:
        IndexError: for integers and host arrays out of range, masks that do not fit, too many
            indices.
    """
    if type(key) is int and x.shape:
        return _row(x, key)
    if is_flag(key):
        if isinstance(key, Array):
            host.count("boolean index")
        return window(reshape_to(x, (1, *x.shape)), 0, 0, int(bool(key)))
    if type(key) is Array and key.dtype.is_bool and key.shape == x.shape[: key.ndim]:
        if _is_narrow(key):  # what is chosen is in range: nothing to wrap or to check
            return of_nonzero(key, "boolean index", rows_at, x, key.ndim)[0]
        rows = reshape_to(x, (key.size, *x.shape[key.ndim :]))
        return take_from_start(rows, selected(key, "boolean index"))
    parts = Key(x.shape, key).parts
    found = basic(x.shape, parts)
    y = found.of(x)
    if not found.advanced:
        return reshape_to(y, kept_shape(parts, found))
    return _advanced(y, parts, found.advanced)


def _advanced(y: Array, parts: Sequence[Any], advanced: list[tuple[int, Array]]) -> Array:
    # integers beside index arrays take part in their broadcast, as in NumPy
    index_axes = [a for a, _ in advanced]
    index_shape = rules.broadcast(*(i.shape for _, i in advanced))
    rank = len(index_shape)
    axis = 0
    layout: list[tuple[str, int]] = []
    for part in parts:
        if part is None:
            layout.append(("new", -1))
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
    sizes: list[int] = []
    where_is: dict[int, int] = {}
    inserted = False
    for k, (kind, axis) in enumerate(layout):
        if not inserted and (k == first if together else True):
            start = len(sizes)
            sizes.extend(index_shape)
            inserted = True
        if kind == "new":
            sizes.append(1)
        elif kind == "slice":
            where_is[axis] = len(sizes)
            sizes.append(y.shape[axis])
    shape = tuple(sizes)
    spec: list[tuple[str, int]] = []
    arrays: list[Array] = []
    for axis in range(y.ndim):
        if axis in where_is:
            spec.append(("d", where_is[axis]))
            continue
        if axis in index_axes:
            index = next(i for a, i in advanced if a == axis)
            low, high = getattr(index, "_span", (0, 0))
            if low < -y.shape[axis] or high >= max(y.shape[axis], 1):
                raise IndexError(
                    f"indices from {low} to {high} are out of bounds for an axis of size "
                    f"{y.shape[axis]}"
                )
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


def fitting(value: Array, shape: tuple[int, ...]) -> Array:
    """`value` broadcast to `shape`; leading axes of size 1 may be too many.

    Raises:
        ValueError: where it does not broadcast.
    """
    own = value.shape
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    pairs = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or any(n != m and n != 1 for n, m in pairs):
        raise ValueError(
            f"cannot assign an array of shape {value.shape} to elements of shape {shape}"
        )
    return expand_to(reshape_to(value, own), shape)


class At:
    """`x.at[key]`: functional updates, `x.at[key].set(v)`, `.add`, `.multiply`, `.max`, `.min`."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> _Update:
        return _Update(self._array, key)


class _Update:
    def __init__(self, array: Array, key: Array) -> None:
        self._array = array
        self._key = key

    def get(self) -> Array:
        """x[key]."""
        return self._array[self._key]

    def set(self, value: ArrayLike) -> Array:
        """A copy of x with x[key] = value."""
        x = self._array
        box = box_of(x.shape, self._key)
        if box is None or not any(isinstance(start, Array) for start in box.starts):
            return self._apply(value, "set")  # one program, wherever the elements are
        return box.put(x, scalar(value, x.dtype) if is_scalar(value) else as_array(value, x.dtype))

    def add(self, value: ArrayLike) -> Array:
        """A copy of x with x[key] += value; repeated indices add up."""
        return self._apply(value, "add")

    def multiply(self, value: ArrayLike) -> Array:
        """A copy of x with x[key] *= value."""
        return self._apply(value, "mul")

    def max(self, value: ArrayLike) -> Array:
        """A copy of x with x[key] = maximum(x[key], value)."""
        return self._apply(value, "max")

    def min(self, value: ArrayLike) -> Array:
        """A copy of x with x[key] = minimum(x[key], value)."""
        return self._apply(value, "min")

    def _apply(self, value: ArrayLike, mode: str) -> Array:
        x = self._array
        where_to = iota_like(x)[self._key]  # flat position of every selected element
        value = scalar(value, x.dtype) if is_scalar(value) else as_array(value, x.dtype)
        value = fitting(value, where_to.shape)
        flat = scatter_rows(
            reshape_to(x, (x.size, 1)),
            reshape_to(where_to, (where_to.size,)),
            reshape_to(value, (value.size, 1)),
            mode,
        )
        return reshape_to(flat, x.shape)


@dataclass
class Box:
    """What integers and slices without steps select, where integers may be on the device.

    Attributes:
        starts, sizes: of the box, along each axis of the array.
        kept: the shape that the key gives.
    """

    starts: list[int | Array]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]

    def put(self, x: Array, value: Array) -> Array:
        """`x` with the box replaced by `value`, which broadcasts to the shape that is kept."""
        return update(x, reshape_to(fitting(value, self.kept), self.sizes), self.starts)


def box_of(shape: tuple[int, ...], key: Any) -> Box | None:
    """The box that a key selects; None where it selects nothing or something else."""
    given = key if isinstance(key, tuple) else (key,)
    if not all(map(_is_plain, given)):
        return None
    parts = Key(shape, given).parts
    found = basic(shape, parts)
    sizes = [b - a for a, b in zip(found.starts, found.stops, strict=True)]
    starts: list[int | Array] = [*found.starts]
    drop = set(found.drop)
    for axis, index in found.advanced:  # as when it is read, an index out of range is the nearest
        starts[axis] = bounded(wrap_negative(index, shape[axis]), 0, shape[axis] - 1)
        sizes[axis] = 1
        drop.add(axis)
    if 0 in sizes or 0 in shape or any(s != 1 for s in found.steps) or found.reverse:
        return None
    return Box(starts, tuple(sizes), tuple(n for a, n in enumerate(sizes) if a not in drop))


def _is_plain(part: Any) -> bool:
    """Whether a part of a key is a slice, an ellipsis, an integer, or one on the device."""
    if isinstance(part, Array):
        return not part.shape and part.dtype.is_integer
    whole = isinstance(part, int | np.integer) and not isinstance(part, bool)
    return whole or isinstance(part, slice) or part is Ellipsis


def iota_like(x: Array) -> Array:
    """Flat position of every element of `x`, in its shape."""
    return reshape_to(iota((x.size,), 0), x.shape)
