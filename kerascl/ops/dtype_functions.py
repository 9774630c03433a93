"""Questions about dtypes, and conversion between them, by the names of the array API standard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from kerascl import dtypes
from kerascl.core.array import Array, ArrayLike
from kerascl.core.tape import another
from kerascl.core.types import Device
from kerascl.dtypes import DType, DTypeLike, as_dtype
from kerascl.ops.creation import to_device
from kerascl.ops.declare import as_array, cast_to, is_scalar, python_dtype

__all__ = [
    "astype", "can_cast", "finfo", "iinfo", "isdtype", "issubdtype", "promote_types", "result_type",
]  # fmt: skip


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating dtype, as Python floats.

    Attributes:
        bits: how many bits a number takes.
        eps: the difference between 1 and the next larger number.
        max, min: the largest and the least finite number.
        smallest_normal: the smallest positive number of full precision.
        tiny: the same, by NumPy's older name.
        dtype: the floating dtype; of a complex one, that of its parts.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType

    @property
    def tiny(self) -> float:
        """The smallest positive number of full precision."""
        return self.smallest_normal


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype.

    Attributes:
        bits: how many bits a number takes.
        max, min: the largest and the least number.
        dtype: the dtype.
    """

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(value: Any) -> DType:
    """The dtype that is given, or that of an array."""
    return value.dtype if isinstance(value, Array) else as_dtype(value)


def finfo(type: DTypeLike | Array) -> FloatInfo:
    """The limits of a floating or complex dtype, given as such or as an array of it.

    Raises:
        TypeError: for other dtypes.
    """
    dtype = _dtype_of(type).real
    if not dtype.is_float:
        raise TypeError(f"finfo needs a floating or complex dtype, not {dtype.name}; try iinfo")
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]  # it has no types
    return FloatInfo(
        8 * dtype.itemsize,
        float(info.eps),
        float(info.max),
        float(info.min),
        float(info.smallest_normal),
        dtype,
    )


def iinfo(type: DTypeLike | Array) -> IntegerInfo:
    """The limits of an integer dtype, given as such or as an array of it.

    Raises:
        TypeError: for other dtypes.
    """
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise TypeError(f"iinfo needs an integer dtype, not {dtype.name}; try finfo")
    bits = 8 * dtype.itemsize
    if dtype.kind == "u":
        return IntegerInfo(bits, 2**bits - 1, 0, dtype)
    return IntegerInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)


KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda d: d.is_bool,
    "signed integer": lambda d: d.kind == "i",
    "unsigned integer": lambda d: d.kind == "u",
    "integral": lambda d: d.is_integer,
    "real floating": lambda d: d.is_float,
    "complex floating": lambda d: d.is_complex,
    "numeric": lambda d: not d.is_bool,
}


def is_kind(dtype: DType, kind: str) -> bool:
    """Whether a dtype is of a kind that the array API standard names.

    Raises:
        ValueError: for a name that is no kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of dtype; choose one of {', '.join(KINDS)}")
    return KINDS[kind](dtype)


def isdtype(dtype: DTypeLike, kind: DTypeLike | str | tuple[DTypeLike | str, ...]) -> bool:
    """Whether a dtype is of a kind.

    Args:
        dtype: a dtype.
        kind: another dtype, to be equal to; "bool", "signed integer", "unsigned integer",
            "integral", "real floating", "complex floating" or "numeric"; or a tuple of such, of
            which one must hold.

    Raises:
        ValueError: for a name that is no kind.
    """
    own = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(own, k) for k in kind)
    return is_kind(own, kind) if isinstance(kind, str) else own is as_dtype(kind)


# NumPy's names of groups of dtypes, for `issubdtype`, and what each holds.
_GROUPS: dict[type, Callable[[DType], bool]] = {
    np.generic: lambda d: True,
    np.number: lambda d: not d.is_bool,
    np.integer: lambda d: d.is_integer,
    np.signedinteger: lambda d: d.kind == "i",
    np.unsignedinteger: lambda d: d.kind == "u",
    np.inexact: lambda d: d.is_float or d.is_complex,
    np.floating: lambda d: d.is_float,
    np.complexfloating: lambda d: d.is_complex,
}


def issubdtype(arg1: DTypeLike, arg2: Any) -> bool:
    """Whether a dtype is another one, or one of a group that NumPy names.

    Args:
        arg2: a dtype, or `number`, `integer`, `signedinteger`, `unsignedinteger`, `inexact`,
            `floating`, `complexfloating` or `generic`, of NumPy or of kerascl. bfloat16 and float8
            are floating, too.

    Raises:
        TypeError: for what is no dtype.

    Examples:
        >>> kc.issubdtype(kc.bfloat16, kc.floating), kc.issubdtype(kc.int32, kc.inexact)
        (True, False)
    """
    group = _GROUPS.get(arg2) if isinstance(arg2, type) else None
    return as_dtype(arg1) is as_dtype(arg2) if group is None else group(as_dtype(arg1))


def promote_types(type1: DTypeLike, type2: DTypeLike) -> DType:
    """The dtype that operations on arrays of two dtypes give.

    Raises:
        TypeError: for what is no dtype.

    Examples:
        >>> kc.promote_types("int32", "float16").name
        'float16'
    """
    return dtypes.promote(as_dtype(type1), as_dtype(type2))


def result_type(*arrays_and_dtypes: ArrayLike | DTypeLike) -> DType:
    """The dtype that operations on these arrays, dtypes and Python scalars give.

    Python scalars are weak: they take the others' dtype where its kind can hold them.

    Raises:
        ValueError: for no argument.
        TypeError: for dtypes without a common one.
    """
    if not arrays_and_dtypes:
        raise ValueError("result_type needs at least one array or dtype")
    values: list[Any] = list(arrays_and_dtypes)
    weak = [v for v in values if is_scalar(v)]
    strong = [_strong(v) for v in values if not is_scalar(v)]
    if not strong:
        return dtypes.promote(*map(python_dtype, weak))
    dtype = dtypes.promote(*strong)
    for value in weak:
        dtype = dtypes.weak_result(value, dtype)
    return dtype


def _strong(value: Any) -> DType:
    try:
        return _dtype_of(value)
    except TypeError:
        return as_array(value).dtype


def can_cast(from_: DTypeLike | Array, to: DTypeLike) -> bool:
    """Whether the values of a dtype (or an array) can be taken as another one by promotion."""
    target = as_dtype(to)
    try:
        return dtypes.promote(_dtype_of(from_), target) is target
    except TypeError:
        return False


def astype(
    x: ArrayLike, dtype: DTypeLike, copy: bool = True, device: Device | str | None = None
) -> Array:
    """`x` in another dtype; floats are truncated towards zero, NaN becomes 0 in integers.

    Args:
        dtype: the dtype of the result. Of complex numbers, a real one keeps the real part.
        copy: False gives `x` itself back where nothing changes.
        device: where the result lies; by default where `x` lies.
    """
    x = as_array(x)
    y = cast_to(x, as_dtype(dtype))
    if device is not None:
        y = to_device(y, device)
    return another(y) if copy and y is x else y
