"""Making arrays."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, cast, overload

import numpy as np

from kerascl.core import context, rules
from kerascl.core.array import Array, ArrayLike, on_device
from kerascl.core.tape import another
from kerascl.core.types import Device, ShapeLike
from kerascl.dtypes import DType, DTypeLike, as_dtype, float32, float64, promote
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    is_scalar,
    python_dtype,
    scalar,
    wrapped,
)
from kerascl.ops.movement import expand_dims, iota, moveaxis
from kerascl.ops.pointwise import (
    absolute,
    cos,
    exp,
    floor,
    i0,
    less_equal,
    log,
    make_complex,
    power,
    sign,
    sqrt,
    square,
    where,
)  # fmt: skip
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "arange", "array", "asarray", "bartlett", "blackman", "empty", "empty_like", "eye", "full",
    "full_like", "geomspace", "hamming", "hanning", "identity", "kaiser", "linspace", "logspace",
    "ones", "ones_like", "to_device", "tri", "vander", "zeros", "zeros_like",
]  # fmt: skip


_P = ParamSpec("_P")


def placed(make: Callable[_P, Array]) -> Callable[_P, Array]:
    """A function that makes an array, on the device that its argument `device` names."""

    @functools.wraps(make)
    def wrapped(*args: Any, device: Device | str | None = None, **options: Any) -> Array:
        made = cast(Callable[..., Array], make)
        if device is None:
            return made(*args, **options)
        usual = context.device()
        with context.device_scope(device) as chosen:
            x = made(*args, **options)
        # what is not computed yet has no device of its own
        return x if chosen is usual else to_device(x, chosen)

    return cast(Callable[_P, Array], wrapped)


def array(
    data: ArrayLike, dtype: DTypeLike | None = None, device: Device | str | None = None
) -> Array:
    """An Array with a copy of `data`.

    Args:
        data: a NumPy array, nested lists, a Python scalar, an Array or a State.
        dtype: of the result; by default that of a NumPy array, float32 for
            Python floats and int32 for Python ints.
        device: a name such as "gpu:0"; the current device by default.

    Raises:
        TypeError: for a dtype that kerascl does not have.
    """
    dtype = None if dtype is None else as_dtype(dtype)
    if device is None:
        return as_array(data, dtype)
    with context.device_scope(device):
        return as_array(data, dtype)


@placed
def asarray(
    obj: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
    copy: bool | None = None,
) -> Array:
    """`obj` as an Array; an Array of that dtype and device is given back as it is.

    Args:
        obj: an Array, a State, a NumPy array or what has a buffer, a Python scalar, nested lists.
        dtype: of the result; by default that of `obj`, see `array`.
        device: a device, or a name such as "gpu:0"; by default that of `obj` or the current one.
        copy: True for an array that item assignment cannot change together with `obj`, False for
            one that is `obj` itself.

    Raises:
        ValueError: for `copy=False`, where a copy is needed.
        TypeError: for a dtype that kerascl does not have.
    """
    x = as_array(obj, None if dtype is None else as_dtype(dtype))
    if copy is False and x is not obj:
        raise ValueError(
            "asarray: copy=False needs an Array of that dtype and device; other objects are copied"
        )
    return another(x) if copy else x


def to_device(x: ArrayLike, device: Device | str) -> Array:
    """`x` on another device, through the host; `x` itself where it lies on that device.

    Args:
        x: an array.
        device: a device, or a name such as "gpu:0".
    """
    x = as_array(x)
    target = context.current.engine.find_device(device) if isinstance(device, str) else device
    return x if x.device is target else on_device(np.asarray(x.numpy()), target)


# -- constants ----------------------------------------------------------------
@placed
def full(
    shape: ShapeLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """An array of one value: `dtype` or that of the value, on `device` or the current one."""
    dtype = None if dtype is None else as_dtype(dtype)
    if is_scalar(fill_value):
        x = scalar(fill_value, dtype or python_dtype(fill_value))
    else:
        x = as_array(fill_value, dtype)
    return expand_to(x, rules.normalize_shape(shape))


def zeros(
    shape: ShapeLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """An array of zeros; float32 by default, on `device` or the current one."""
    return full(shape, 0, dtype or float32, device=device)


def ones(
    shape: ShapeLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """An array of ones; float32 by default, on `device` or the current one."""
    return full(shape, 1, dtype or float32, device=device)


def empty(
    shape: ShapeLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """An array whose values nobody relies on: zeros; see `zeros`."""
    return full(shape, 0, dtype or float32, device=device)


def full_like(
    x: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """An array of one value with the shape of `x`, and its dtype and device unless others are
    given."""
    x = as_array(x)
    device = x._node.device if device is None else device
    return full(x.shape, fill_value, dtype or x.dtype, device=device)


def zeros_like(
    x: ArrayLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """Zeros with the shape, dtype and device of `x`, unless others are given."""
    return full_like(x, 0, dtype, device=device)


def ones_like(
    x: ArrayLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """Ones with the shape, dtype and device of `x`, unless others are given."""
    return full_like(x, 1, dtype, device=device)


def empty_like(
    x: ArrayLike, dtype: DTypeLike | None = None, *, device: Device | str | None = None
) -> Array:
    """Zeros with the shape, dtype and device of `x`, unless others are given."""
    return full_like(x, 0, dtype, device=device)


# -- sequences ----------------------------------------------------------------
@placed
def arange(
    start: Any,
    stop: Any = None,
    step: Any = 1,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """Values start, start + step, … below stop, on `device` or the current one.

    Raises:
        ValueError: when `step` is 0.
        OverflowError: for integers that `dtype` cannot hold.
    """
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = python_dtype(start + stop + step)
    dtype = as_dtype(dtype)
    if step == 0:
        raise ValueError("arange: step must not be 0")
    count = max(0, math.ceil((stop - start) / step))
    work = iota((count,), 0)
    if any(isinstance(v, float) for v in (start, step)):
        if dtype.is_integer or dtype.is_bool:
            # as NumPy: the first two values decide, in the result's dtype
            start, step = int(start), int(start + step) - int(start)
        else:
            wide = dtype.accumulator
            return cast_to(cast_to(work, wide) * step + start, dtype)
    work = cast_to(work, dtype if not dtype.is_float else dtype.accumulator)
    constant = scalar
    if dtype.is_integer:
        for end in (start, start + (count - 1) * step) if count else ():
            scalar(end, dtype)  # raises where it does not fit
        constant = wrapped  # the step itself need not fit, as -1 among unsigned integers
    if step != 1:
        work = work * constant(step, work.dtype)
    if start != 0:
        work = work + constant(start, work.dtype)
    return cast_to(work, dtype)


def _ends(start: ArrayLike, stop: ArrayLike, dtype: DType | None) -> tuple[Array, Array]:
    """Both ends in the dtype to compute in: no narrower than the result's."""
    work = floating(convert((start, stop))[1])[0].accumulator
    if dtype is not None and dtype.is_integer and context.device().info.fp64:
        dtype = float64
    if dtype is not None and (dtype.is_float or dtype.is_complex):
        work = promote(work, dtype.accumulator)
    # Python's numbers without a detour over float32
    first, last = (scalar(x, work) if is_scalar(x) else as_array(x, work) for x in (start, stop))
    return first, last


def _line(
    start: ArrayLike, stop: ArrayLike, num: int, endpoint: bool, dtype: DType | None = None
) -> tuple[Array, Array]:
    """start … stop along a new first axis, and the step."""
    num = operator.index(num)
    if num < 0:
        raise ValueError(f"the number of samples must not be negative, got {num}")
    start, stop = _ends(start, stop, dtype)
    work = start.dtype
    shape = rules.broadcast(start.shape, stop.shape)
    gaps = num - 1 if endpoint else num
    step = (stop - start) / (gaps or math.nan)
    place = reshape_to(iota((num,), 0), (num, *[1] * len(shape)))
    y = start + cast_to(place, work) * (step if gaps else 0)
    if endpoint and num > 1:
        y = where(place == num - 1, stop, y)
    return expand_to(y, (num, *shape)), step


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | str | None = None,
) -> Array: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: DTypeLike | None = None,
    axis: int = 0,
    device: Device | str | None = None,
) -> tuple[Array, Array]: ...
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | str | None = None,
) -> Array | tuple[Array, Array]:
    """`num` evenly spaced values from start to stop (left out without `endpoint`) along `axis`.

    With `retstep`, the spacing is returned too. Computed in `dtype`, or what is wider of the
    floating dtype of start and stop; integers are rounded down.
    """
    if device is not None:
        with context.device_scope(device) as chosen:
            y, step = linspace(start, stop, num, endpoint, retstep=True, dtype=dtype, axis=axis)
        y, step = to_device(y, chosen), to_device(step, chosen)
        return (y, step) if retstep else y
    dtype = None if dtype is None else as_dtype(dtype)
    y, step = _line(start, stop, num, endpoint, dtype)
    if dtype is not None:
        y = cast_to(floor(y) if dtype.is_integer else y, dtype)
    y = moveaxis(y, 0, axis)
    return (y, step) if retstep else y


def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """base to the power of `linspace`."""
    dtype = None if dtype is None else as_dtype(dtype)
    y, _ = _line(start, stop, num, endpoint, dtype)
    y = moveaxis(power(base, y), 0, axis)
    return y if dtype is None else cast_to(y, dtype)


def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """`num` values from start to stop with a constant ratio; both of one sign, none 0."""
    dtype = None if dtype is None else as_dtype(dtype)
    start, stop, num = *_ends(start, stop, dtype), operator.index(num)
    if start.dtype.is_complex:
        y, _ = _line_complex(log(start), log(stop), num, endpoint)
        y = exp(y)
    else:
        y, _ = _line(log(absolute(start)), log(absolute(stop)), num, endpoint)
        y = exp(y) * sign(start)
        place = reshape_to(iota((num,), 0), (num, *[1] * (y.ndim - 1)))
        y = where(place == 0, start, y)
        if endpoint and num > 1:
            y = where(place == num - 1, stop, y)
    y = moveaxis(y, 0, axis)
    return y if dtype is None else cast_to(y, dtype)


def _line_complex(start: Array, stop: Array, num: int, endpoint: bool) -> tuple[Array, Array]:
    gaps = num - 1 if endpoint else num
    step = (stop - start) / (gaps or math.nan)
    place = reshape_to(iota((num,), 0), (num, *[1] * start.ndim))
    return start + make_complex(cast_to(place, start.dtype.real), 0) * step, step


@placed
def eye(
    rows: int,
    columns: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    *,
    device: Device | str | None = None,
) -> Array:
    """Ones on diagonal `k`, zeros elsewhere; float32 by default, on `device` or the current one."""
    rows, columns, k = map(operator.index, (rows, rows if columns is None else columns, k))
    dtype = as_dtype(dtype or float32)
    k = max(-rows, min(k, columns))  # so that positions stay narrow
    hit = iota((rows, columns), 1) == iota((rows, columns), 0) + k
    return where(hit, scalar(1, dtype), scalar(0, dtype))


def identity(n: int, dtype: DTypeLike = float32) -> Array:
    """The identity matrix."""
    return eye(n, dtype=dtype)


def tri(rows: int, columns: int | None = None, k: int = 0, dtype: DTypeLike = float32) -> Array:
    """Ones on and below diagonal `k`, zeros above."""
    rows, columns, k = map(operator.index, (rows, rows if columns is None else columns, k))
    dtype = as_dtype(dtype)
    k = max(-rows, min(k, columns))
    hit = less_equal(iota((rows, columns), 1), iota((rows, columns), 0) + k)
    return where(hit, scalar(1, dtype), scalar(0, dtype))


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Powers of a vector as columns, the highest first unless `increasing`."""
    x = as_array(x)
    if x.ndim != 1:
        raise ValueError(f"vander needs a vector, got shape {x.shape}")
    count = x.size if N is None else operator.index(N)
    places = iota((1, count), 1)
    exponents = places if increasing else count - 1 - places
    return power(expand_dims(x, 1), cast_to(exponents, x.dtype))


# -- windows ------------------------------------------------------------------
def _window(size: int, code: Callable[[Array, int], Array], dtype: DType) -> Array:
    size = int(size)
    if size < 1:
        return zeros((0,), dtype)
    if size == 1:
        return ones((1,), dtype)
    return cast_to(code(cast_to(iota((size,), 0), dtype.accumulator), size - 1), dtype)


def bartlett(size: int, dtype: DTypeLike = float32) -> Array:
    """The triangular window."""
    dtype = as_dtype(dtype)
    return _window(size, lambda n, last: 1 - absolute(n * (2 / last) - 1), dtype)


def hanning(size: int, dtype: DTypeLike = float32) -> Array:
    """The Hann window."""
    dtype = as_dtype(dtype)
    return _window(size, lambda n, last: 0.5 - cos(n * (2 * math.pi / last)) * 0.5, dtype)


def hamming(size: int, dtype: DTypeLike = float32) -> Array:
    """The Hamming window."""
    dtype = as_dtype(dtype)
    return _window(size, lambda n, last: 0.54 - cos(n * (2 * math.pi / last)) * 0.46, dtype)


def blackman(size: int, dtype: DTypeLike = float32) -> Array:
    """The Blackman window."""

    def code(n: Array, last: int) -> Array:
        angle = n * (2 * math.pi / last)
        return 0.42 - cos(angle) * 0.5 + cos(angle * 2) * 0.08

    return _window(size, code, as_dtype(dtype))


def kaiser(size: int, beta: ArrayLike, dtype: DTypeLike = float32) -> Array:
    """The Kaiser window of shape `beta`."""
    dtype = as_dtype(dtype)
    shape = as_array(beta, dtype.accumulator)

    def code(n: Array, last: int) -> Array:
        inside = 1 - square(n * (2 / last) - 1)
        return i0(shape * sqrt(where(inside > 0, inside, 0))) / i0(shape)

    return _window(size, code, dtype)
