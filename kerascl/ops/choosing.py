"""Elements chosen by conditions and places, and NumPy's functions that change their argument.

Those put a new value into the Array that they are given, as `x[key] = value` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.holders import rebind
from kerascl.core.tape import distinct
from kerascl.dtypes import bool_, int32, positions
from kerascl.ops import indexing, pointwise
from kerascl.ops.assignment import setitem
from kerascl.ops.declare import as_array, cast_to, convert
from kerascl.ops.indexing import nonzero, take
from kerascl.ops.movement import broadcast_arrays, iota, ravel, stack
from kerascl.ops.pointwise import clip, equal, less, logical_and, where
from kerascl.ops.scan import cumsum
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "choose", "compress", "copyto", "extract", "fill_diagonal", "flatnonzero", "piecewise", "place",
    "put", "put_along_axis", "putmask",
]  # fmt: skip


# -- chosen ---------------------------------------------------------------------------------------
def flatnonzero(x: ArrayLike) -> Array:
    """int32 positions in the flat array of the elements that are not 0; their number is read.

    Examples:
        >>> kc.flatnonzero([[0, 3], [5, 0]]).tolist()
        [1, 2]
    """
    return nonzero(ravel(x))[0]


def compress(condition: ArrayLike, x: ArrayLike, axis: int | None = None) -> Array:
    """The slices of `x` along `axis` (None: of the flat array) where `condition` holds.

    Args:
        condition: a vector, which may be shorter than the axis; how many hold is read.

    Raises:
        ValueError: for a condition that is no vector.
        IndexError: for one that is longer than the axis.

    Examples:
        >>> kc.compress([False, True], [[1, 2], [3, 4]], axis=0).tolist()
        [[3, 4]]
    """
    condition, x = as_array(condition), as_array(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = rules.axis_index(axis, x.ndim)
    if condition.ndim != 1:
        raise ValueError(f"compress: the condition has shape {condition.shape}, give a vector")
    if condition.size > x.shape[axis]:
        raise IndexError(
            f"compress: {condition.size} conditions for axis {axis} of size {x.shape[axis]}"
        )
    if axis == 0 and condition.size and positions(condition.size) is int32:
        return indexing.of_nonzero(condition, "nonzero", indexing.rows_at, x, 1)[0]
    return take(x, nonzero(condition)[0], axis)


def extract(condition: ArrayLike, x: ArrayLike) -> Array:
    """The elements of `x` where `condition`, of the same size, holds; how many is read.

    Examples:
        >>> kc.extract([True, False, True], [1, 2, 3]).tolist()
        [1, 3]
    """
    return compress(ravel(condition), ravel(x))


def choose(a: ArrayLike, choices: Sequence[ArrayLike], mode: str = "raise") -> Array:
    """For each element, the one of `choices` that the integer in `a` names; all broadcast.

    Args:
        mode: for integers out of range: "clip", "wrap", or "raise", with which they give what they
            give in `take` (an error under KERASCL_DEBUG).

    Raises:
        TypeError: when `a` holds no integers.
        ValueError: for no choices, and for another mode.

    Examples:
        >>> kc.choose([0, 1, 0], [[1, 2, 3], [10, 20, 30]]).tolist()
        [1, 20, 3]
    """
    a = as_array(a)
    if not a.dtype.is_integer:
        raise TypeError(f"choose needs integers, not {a.dtype.name}")
    options, _ = convert(list(choices))
    if not options:
        raise ValueError("choose needs at least one choice")
    place, *options = broadcast_arrays(_within(a, len(options), mode, "choose"), *options)
    return indexing.take_along_axis(stack(options), reshape_to(place, (1, *place.shape)), 0)[0]


def _within(places: Array, count: int, mode: str, name: str) -> Array:
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f'{name}: mode is "raise", "wrap" or "clip", not {mode!r}')
    if mode == "wrap":
        return places % count
    return clip(places, 0, count - 1) if mode == "clip" else places


def piecewise(
    x: ArrayLike,
    condlist: ArrayLike | Sequence[ArrayLike],
    funclist: Sequence[Any],
    *args: Any,
    **kw: Any,
) -> Array:
    """`x` with a function, or a number, in place of it where a condition holds, in its dtype.

    Every function is given all of `x`; what it gives where its condition does not hold is left out.

    Args:
        condlist: conditions of the shape of `x`; where several hold, the last counts.
        funclist: a function or a number for each, and one more for where none holds (0 by default).
        args, kw: further arguments of the functions.

    Raises:
        ValueError: when there are not as many functions as conditions, or one more.

    Examples:
        >>> x = kc.array([-2.0, 0.0, 3.0])
        >>> kc.piecewise(x, [x < 0, x >= 0], [lambda t: -t, lambda t: t * 10]).tolist()
        [2.0, 0.0, 30.0]
    """
    x = as_array(x)
    single = isinstance(condlist, Array) and condlist.ndim <= x.ndim
    listed: Any = [condlist] if single or _one_condition(condlist) else condlist
    conditions = [cast_to(as_array(c), bool_) for c in listed]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"piecewise: {len(funclist)} functions for {len(conditions)} conditions; give as many, "
            "or one more for the rest"
        )
    functions: list[Any] = list(funclist)
    rest = functions.pop() if len(functions) > len(conditions) else 0

    def value(function: Callable[..., ArrayLike] | ArrayLike) -> Array:
        found = function(x, *args, **kw) if callable(function) else function
        return cast_to(as_array(found), x.dtype)

    y = expand_to(value(rest), x.shape)
    for condition, function in zip(conditions, functions, strict=True):
        y = where(condition, value(function), y)
    return y


def _one_condition(given: Any) -> bool:
    """Whether a list holds the flags of one condition, not conditions."""
    return not hasattr(given, "__len__") or (len(given) > 0 and isinstance(given[0], bool))


# -- put ------------------------------------------------------------------------------------------
def _target(x: Any, name: str) -> Array:
    if not isinstance(x, Array):
        raise TypeError(
            f"{name} changes its first argument, which must be an Array of kerascl, "
            f"not {type(x).__name__}"
        )
    return x


def _assign(x: Array, value: Array) -> None:
    rebind(x, distinct(cast_to)(value, x.dtype))


def copyto(dst: Array, src: ArrayLike, where: ArrayLike = True) -> None:
    """Put `src`, broadcast and in the dtype of `dst`, into `dst` where a condition holds.

    Raises:
        TypeError: when `dst` is no Array.
        ValueError: for shapes that do not fit.

    Examples:
        >>> x = kc.zeros(3)
        >>> kc.copyto(x, 7.0, where=kc.array([True, False, True]))
        >>> x.tolist()
        [7.0, 0.0, 7.0]
    """
    _target(dst, "copyto")
    new = expand_to(cast_to(as_array(src), dst.dtype), dst.shape)
    mask = expand_to(cast_to(as_array(where), bool_), dst.shape)
    _assign(dst, pointwise.where(mask, new, dst))


def putmask(x: Array, mask: ArrayLike, values: ArrayLike) -> None:
    """Put values into `x` where `mask`, of its shape, holds: each the one at its own position in
    the repeated `values`.

    Raises:
        TypeError: when `x` is no Array.
        ValueError: for a mask of another shape.

    Examples:
        >>> x = kc.arange(4)
        >>> kc.putmask(x, x > 1, [10, 20, 30, 40])
        >>> x.tolist()
        [0, 1, 30, 40]
    """
    mask, new = _mask_and_values(x, mask, values, "putmask")
    if new.size:
        here = iota((x.size,), 0) % new.size
        _assign(x, where(mask, reshape_to(take(new, here), x.shape), x))


def place(arr: Array, mask: ArrayLike, vals: ArrayLike) -> None:
    """Put values one after the other, and again from the first, into the elements of `arr` where
    `mask`, of its shape, holds.

    Raises:
        TypeError: when `arr` is no Array.
        ValueError: for a mask of another shape, and for no values.

    Examples:
        >>> x = kc.arange(5)
        >>> kc.place(x, x > 1, [10, 20])
        >>> x.tolist()
        [0, 1, 10, 20, 10]
    """
    mask, new = _mask_and_values(arr, mask, vals, "place")
    if not new.size:
        raise ValueError("place needs at least one value")
    if arr.size:
        order = cumsum(ravel(mask), 0, positions(arr.size)) - 1
        chosen = take(new, where(order < 0, 0, order) % new.size)
        _assign(arr, where(mask, reshape_to(chosen, arr.shape), arr))


def _mask_and_values(
    x: Array, mask: ArrayLike, values: ArrayLike, name: str
) -> tuple[Array, Array]:
    x, mask = _target(x, name), cast_to(as_array(mask), bool_)
    if mask.shape != x.shape:
        raise ValueError(f"{name}: the mask has shape {mask.shape}, the array {x.shape}")
    return mask, cast_to(ravel(values), x.dtype)


def put(a: Array, ind: ArrayLike, v: ArrayLike, mode: str = "raise") -> None:
    """Put `v`, repeated as often as needed, into the flat positions `ind` of `a`.

    Args:
        mode: for positions out of range: "raise", "wrap" or "clip"; those of an Array are not
            looked at with "raise", and go nowhere.

    Raises:
        TypeError: when `a` is no Array.
        IndexError: for positions out of range.
        ValueError: for another mode, and for no values.

    Examples:
        >>> x = kc.zeros((2, 2))
        >>> kc.put(x, [0, 3], [1.0, 2.0])
        >>> x.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    _target(a, "put")
    new, flat = ravel(v), distinct(ravel)(a)
    key: Any = ind if mode == "raise" else _within(as_array(ind), a.size, mode, "put")
    count = math.prod(as_array(ind).shape)
    if not count:
        return
    if not new.size:
        raise ValueError("put needs at least one value")
    where_from = iota((count,), 0) % new.size
    setitem(flat, key, reshape_to(take(new, where_from), as_array(ind).shape))
    _assign(a, reshape_to(flat, a.shape))


def put_along_axis(arr: Array, indices: ArrayLike, values: ArrayLike, axis: int | None) -> None:
    """Put values at arr[…, indices[…, j, …], …] along `axis`; the opposite of `take_along_axis`.

    Args:
        indices: integers with as many axes as `arr`, of its sizes or 1 but along `axis`.
        axis: None for the flat array.

    Raises:
        TypeError: when `arr` is no Array.
        ValueError: for indices with other axes.

    Examples:
        >>> x = kc.zeros((2, 3))
        >>> kc.put_along_axis(x, kc.array([[1], [2]]), 9.0, 1)
        >>> x.tolist()
        [[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]
    """
    _target(arr, "put_along_axis")
    indices = as_array(indices)
    if axis is None:
        put(arr, ravel(indices), values)
        return
    axis = rules.axis_index(axis, arr.ndim)
    if indices.ndim != arr.ndim:
        raise ValueError(f"put_along_axis: indices of shape {indices.shape} for {arr.shape}")
    key = [
        indices if k == axis else iota(tuple(n if a == k else 1 for a in range(arr.ndim)), k)
        for k, n in enumerate(arr.shape)
    ]
    setitem(arr, tuple(key), values)


def fill_diagonal(a: Array, val: ArrayLike, wrap: bool = False) -> None:
    """Put values, repeated as often as needed, into the main diagonal of `a`.

    Args:
        a: a matrix, or an array with more axes of one size.
        wrap: of a tall matrix, go on after the last row as if it began anew.

    Raises:
        TypeError: when `a` is no Array.
        ValueError: for less than two axes, and for more of different sizes.

    Examples:
        >>> x = kc.zeros((2, 2))
        >>> kc.fill_diagonal(x, [1.0, 2.0])
        >>> x.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    _target(a, "fill_diagonal")
    if a.ndim < 2 or (a.ndim > 2 and len(set(a.shape)) > 1):
        raise ValueError(
            f"fill_diagonal needs a matrix, or more axes of one size, got shape {a.shape}"
        )
    new = cast_to(ravel(val), a.dtype)
    if not a.size or not new.size:
        return
    step = a.shape[1] + 1 if a.ndim == 2 else sum(a.shape[0] ** k for k in range(a.ndim))
    end = a.shape[1] ** 2 if a.ndim == 2 and not wrap else a.size
    here = iota((a.size,), 0)
    hit = logical_and(equal(here % step, 0), less(here, end))
    filled = where(hit, take(new, (here // step) % new.size), ravel(a))
    _assign(a, reshape_to(filled, a.shape))
