"""Making arrays."""

from __future__ import annotations

import math

import numpy as np

from kerascl.core import rules, scope
from kerascl.core.array import Array, from_host
from kerascl.dtypes import DType, as_dtype, float32
from kerascl.ops.declare import as_array, cast_to, expand_to, python_dtype, scalar
from kerascl.ops.movement import iota
from kerascl.ops.pointwise import where


def array(data, dtype=None, device=None) -> Array:
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
    with scope.device_scope(device):
        return as_array(data, dtype)


def full(shape, value, dtype=None) -> Array:
    """An array of one value."""
    shape = rules.normalize_shape(shape)
    if isinstance(value, bool | int | float):
        x = scalar(value, python_dtype(value) if dtype is None else as_dtype(dtype))
    else:
        x = as_array(value, None if dtype is None else as_dtype(dtype))
    return expand_to(x, shape)


def zeros(shape, dtype=float32) -> Array:
    """An array of zeros."""
    return full(shape, 0, dtype)


def ones(shape, dtype=float32) -> Array:
    """An array of ones."""
    return full(shape, 1, dtype)


def full_like(x, value, dtype=None) -> Array:
    """An array of one value with the shape (and dtype) of `x`."""
    x = as_array(x)
    return full(x.shape, value, dtype or x.dtype)


def zeros_like(x, dtype=None) -> Array:
    """Zeros with the shape (and dtype) of `x`."""
    return full_like(x, 0, dtype)


def ones_like(x, dtype=None) -> Array:
    """Ones with the shape (and dtype) of `x`."""
    return full_like(x, 1, dtype)


def arange(start, stop=None, step=1, dtype=None) -> Array:
    """Values start, start + step, … below stop."""
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = python_dtype(start + stop + step)
    dtype = as_dtype(dtype)
    count = max(0, math.ceil((stop - start) / step))
    work = iota((count,), 0)
    if isinstance(start + step, float) and not dtype.is_integer:
        return cast_to(work, dtype) * step + start
    work = cast_to(work, dtype)
    if step != 1:
        work = work * scalar(step, dtype)
    return work if start == 0 else work + scalar(start, dtype)


def eye(rows: int, columns: int | None = None, k: int = 0, dtype=float32) -> Array:
    """Ones on diagonal `k`, zeros elsewhere."""
    columns = rows if columns is None else columns
    hit = iota((rows, columns), 1) == iota((rows, columns), 0) + k
    dtype = as_dtype(dtype)
    return where(hit, scalar(1, dtype), scalar(0, dtype))


def to_device(x: Array, device) -> Array:
    """A copy of `x` on another device; through the host."""
    target = scope.engine().find_device(device) if isinstance(device, str) else device
    return x if x.device is target else from_host(np.asarray(x.numpy()), target)
