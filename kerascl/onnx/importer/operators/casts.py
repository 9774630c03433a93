"""Conversions between element types, those that no array has included."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer import types
from kerascl.onnx.importer.graph import Call, device
from kerascl.onnx.importer.layout import ChannelsLast, as_in_graph
from kerascl.onnx.importer.rules import operator
from kerascl.onnx.importer.types import NARROW, Narrow, NarrowArray
from kerascl.ops import bits, pointwise
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to

_FLOAT8: dict[int, float] = {TensorProto.FLOAT8E4M3FN: 448.0, TensorProto.FLOAT8E5M2: 57344.0}


@operator("Cast", raw=True, layout="own")
def cast(call: Call, x: Any) -> Any:
    """`x` in the element type `to`, as `converted` makes it; images stay as they lie."""
    code = call["to"]
    if isinstance(code, str):  # opset 1
        code = TensorProto.DataType.Value(code)
    last = isinstance(x, ChannelsLast)
    saturate, mode = bool(call.get("saturate", 1)), call.get("round_mode", "up")
    y = converted(x.array if last else device(x), code, saturate, mode)
    if not last:
        return y
    if isinstance(y, NarrowArray):
        return NarrowArray(as_in_graph(ChannelsLast(y.array)), y.kind)
    return ChannelsLast(y)


@operator("CastLike", raw=True)
def cast_like(call: Call, x: Any, like: Any) -> Any:
    """`x` in the element type of `like`, as `converted` makes it."""
    return converted(device(x), code_of(like), bool(call.get("saturate", 1)))


def code_of(value: Any) -> int:
    """The element type of a value on host or device."""
    if isinstance(value, NarrowArray):
        return value.kind.code
    if isinstance(value, np.ndarray):
        return types.code_of(value.dtype)
    return types.code_of(device(value).dtype)


def converted(x: Array, code: int, saturate: bool = True, mode: str = "up") -> Array | NarrowArray:
    """`x` in another element type; floats beyond the range of an 8-bit one become its largest
    with `saturate`, else infinity or NaN."""
    if code in NARROW:
        return NarrowArray(narrow(x, NARROW[code], saturate, mode), NARROW[code])
    dtype = types.device_type(code)
    if code in _FLOAT8:
        return _float8(x, code, saturate)
    return cast_to(x, dtype)


def _float8(x: Array, code: int, saturate: bool) -> Array:
    wide, largest = cast_to(x, BY_NAME["float32"]), _FLOAT8[code]
    dtype = types.device_type(code)
    if saturate:
        inside = pointwise.clip(wide, -largest, largest)
        return cast_to(pointwise.where(pointwise.isnan(wide), wide, inside), dtype)
    return cast_to(wide, dtype)


def narrow(x: Array, kind: Narrow, saturate: bool = True, mode: str = "up") -> Array:
    """The values of a narrow type that are next to `x`, in its carrier."""
    carrier = BY_NAME[kind.carrier]
    if kind.bits:
        if not x.dtype.is_integer:
            x = cast_to(pointwise.trunc(cast_to(x, BY_NAME["float32"])), BY_NAME["int32"])
        x = cast_to(x, BY_NAME["int32"])
        count = 1 << kind.bits
        x = bits.bitwise_and(x, count - 1)  # the lowest bits, as NumPy keeps them
        if kind.signed:
            x = pointwise.where(x >= count // 2, x - count, x)
        return cast_to(x, carrier)
    x = cast_to(x, BY_NAME["float32"])
    if kind.code == TensorProto.FLOAT8E8M0:
        return _power_of_two(x, saturate, mode)
    return cast_to(rounded(x, kind, saturate), carrier)


def exponent(x: Array) -> Array:
    """floor(log2(|x|)) of normal float32 numbers, int32; -127 of smaller ones."""
    word = bits.bitcast(pointwise.absolute(x), "int32")
    return bits.right_shift(word, 23) - 127


def power_of_two(e: Array) -> Array:
    """2 ** e as float32 for int32 -126 <= e <= 127."""
    return bits.bitcast(bits.left_shift(e + 127, 23), "float32")


def rounded(x: Array, kind: Narrow, saturate: bool) -> Array:
    """float32 rounded to the nearest value of a narrow float, ties to even."""
    e = pointwise.maximum(exponent(x), kind.lowest)
    unit = power_of_two(e - kind.mantissa)
    y = pointwise.round(x / unit) * unit
    most = kind.largest
    beyond = pointwise.absolute(y) > most
    if saturate or not kind.nan:
        y = pointwise.clip(y, -most, most)
        if not kind.nan:
            return pointwise.where(pointwise.isnan(x), -0.0, y)  # as ml_dtypes has it
        return pointwise.where(pointwise.isnan(x), x, y) + 0.0
    nothing = full((), float("nan"), "float32")
    return pointwise.where(beyond, nothing, pointwise.where(pointwise.isnan(x), x, y)) + 0.0


def _power_of_two(x: Array, saturate: bool, mode: str) -> Array:
    size = pointwise.absolute(x)
    low = pointwise.clip(exponent(size), -127, 127)
    lower = pointwise.where(low < -126, 2.0**-127, power_of_two(pointwise.maximum(low, -126)))
    upper = lower * 2
    if mode == "down":
        y = lower
    elif mode == "nearest":
        y = pointwise.where(size >= lower * 1.5, upper, lower)
    else:
        y = pointwise.where(size > lower, upper, lower)
    y = pointwise.maximum(y, 2.0**-127)
    nothing = full((), float("nan"), "float32")
    most = 2.0**127
    y = pointwise.where(y > most, most if saturate else nothing, y)
    return pointwise.where(pointwise.isnan(x), nothing, y)


@operator("BitCast", raw=True)
def bit_cast(call: Call, x: Any) -> Array:
    """The bits of `x` read as another element type."""
    return bits.view(device(x), types.device_type(call["to"]))
