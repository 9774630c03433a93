"""Bits: logic, shifts, exponents, and reading numbers as their bits."""

from __future__ import annotations

import math

from kerascl import dtypes
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Kind, Op, register
from kerascl.dtypes import DType, DTypeLike, as_dtype, int32, uint8, uint16, uint32, uint64
from kerascl.ops import clibrary
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, bitwise, broadcast, cast_to, convert, floating, pointwise
from kerascl.ops.movement import iota
from kerascl.ops.pointwise import (
    equal,
    greater,
    isnan,
    logical_not,
    logical_or,
    not_equal,
    signbit,
    where,
)
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "bitcast", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "copysign", "ldexp",
    "left_shift", "nextafter", "right_shift", "view",
]  # fmt: skip


def _shifts(dtype: DType) -> tuple[DType, DType]:
    return bitwise(int32 if dtype.is_bool else dtype)


_IN_WORD = "((ulong)({1}) < sizeof({T}) * 8)"
bitwise_and = pointwise("bitwise_and", "({0} & {1})", bitwise)
bitwise_or = pointwise("bitwise_or", "({0} | {1})", bitwise)
bitwise_xor = pointwise("bitwise_xor", "({0} ^ {1})", bitwise)
_bitwise_not = pointwise("bitwise_not", "(~{0})", bitwise)
left_shift = pointwise(
    "left_shift", f"({_IN_WORD} ? ({{T}})(({{U}}){{0}} << {{1}}) : ({{T}})0)", _shifts,
    doc="Bits moved left; 0 when all are moved out.",
)  # fmt: skip
_SIGNED = "KCL_SIGN_OF({T}, {0})"
right_shift = pointwise(
    "right_shift", f"({_IN_WORD} ? ({{T}})({_SIGNED} >> {{1}}) : ({{T}})({_SIGNED} < 0 ? -1 : 0))",
    _shifts,
    doc="Bits moved right, filled with the sign.",
)  # fmt: skip


def bitwise_not(x: ArrayLike) -> Array:
    """All bits inverted; the logical opposite of a bool."""
    x = as_array(x)
    return logical_not(x) if x.dtype.is_bool else _bitwise_not(x)


_BITS = {1: uint8, 2: uint16, 4: uint32, 8: uint64}
_TO_BITS = {
    "float16": "kcl_half_bits({0})", "bfloat16": "kcl_to_bf16({0})",
    "float8_e4m3fn": "kcl_to_e4m3({0})", "float8_e5m2": "kcl_to_e5m2({0})",
}  # fmt: skip
_FROM_BITS = {
    "float16": "kcl_half_value({0})", "bfloat16": "kcl_from_bf16({0})",
    "float8_e4m3fn": "kcl_from_e4m3({0})", "float8_e5m2": "kcl_from_e5m2({0})",
}  # fmt: skip


def _bit_op(name: str, code: str) -> Op:
    return register(Op(name, Kind.POINTWISE, code, clibrary.needed(code)))


_OUT_OF = {
    d: _bit_op(f"bits_of_{d.name}", _TO_BITS.get(d.name, f"as_{_BITS[d.itemsize].compute}({{0}})"))
    for d in dtypes.ALL
    if d.kind in "if"
}
_INTO = {
    d: _bit_op(f"{d.name}_of_bits", _FROM_BITS.get(d.name, f"as_{d.compute}({{0}})"))
    for d in dtypes.ALL
    if d.kind in "if"
}


def bitcast(x: ArrayLike, dtype: DTypeLike) -> Array:
    """The bits of `x` read as another dtype of the same size; bools count as uint8.

    Raises:
        TypeError: when the sizes differ.
    """
    x, dtype = as_array(x), as_dtype(dtype)
    if x.dtype is dtype:
        return x
    if x.dtype.itemsize != dtype.itemsize or x.dtype.is_complex or dtype.is_complex:
        raise TypeError(f"bitcast: {x.dtype.name} and {dtype.name} differ in size or are complex")
    bits = _BITS[dtype.itemsize]
    if x.dtype in _OUT_OF:
        x = apply(_OUT_OF[x.dtype], (x,), (), x.shape, bits)
    x = cast_to(x, bits)
    return apply(_INTO[dtype], (x,), (), x.shape, dtype) if dtype in _INTO else cast_to(x, dtype)


def view(x: ArrayLike, dtype: DTypeLike) -> Array:
    """The bytes of `x` read as another dtype; the last axis grows or shrinks with its size.

    Raises:
        ValueError: when the last axis is not a multiple of the larger size.
        TypeError: for complex dtypes.
    """
    x, dtype = as_array(x), as_dtype(dtype)
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return bitcast(x, dtype)
    if not x.ndim:
        raise ValueError("view: the dtype of an array of shape () keeps its size")
    *lead, n = x.shape
    if x.dtype.is_complex or dtype.is_complex:
        raise TypeError("view: complex arrays cannot be viewed")
    small, large = _BITS[min(old, new)], _BITS[max(old, new)]
    count = large.itemsize // small.itemsize
    if old > new:
        word = reshape_to(bitcast(x, large), (*lead, n, 1))
        place = cast_to(iota((count,), 0) * (8 * new), large)
        parts = cast_to(right_shift(word, place), small)
        return bitcast(reshape_to(parts, (*lead, n * count)), dtype)
    if n % count:
        raise ValueError(f"view: the last axis of {x.shape} is not a multiple of {count}")
    parts = cast_to(reshape_to(bitcast(x, small), (*lead, n // count, count)), large)
    place = cast_to(iota((count,), 0) * (8 * old), large)
    return bitcast(total(left_shift(parts, place), -1), dtype)


copysign = pointwise(
    "copysign", "copysign({0}, {1})", floating,
    lambda g, y, a, b: (where(equal(signbit(a), signbit(b)), g, -g), None), exact=True,
    doc="The size of x1 with the sign of x2, also that of -0.0.",
)  # fmt: skip
_nextafter = pointwise("nextafter", "nextafter({0}, {1})", floating)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """The next representable number after x1 towards x2."""
    (a, b), common = convert((x1, x2))
    if common.itemsize > 2 or not common.is_float:
        return _nextafter(a, b)
    (a, b), shape = broadcast((a, b))
    a, b = expand_to(a, shape), expand_to(b, shape)
    # these floats are computed in float32: their neighbours are found by counting bits
    word = dtypes.int8 if common.itemsize == 1 else dtypes.int16
    bits = cast_to(bitcast(a, word), int32)
    away = where(logical_or(equal(a, 0), not_equal(greater(b, a), greater(a, 0))), -1, 1)
    small = where(greater(b, 0), 1, -(2 ** (8 * word.itemsize - 1)) + 1)
    following = where(equal(a, 0), small, bits + away)
    y = bitcast(cast_to(following, word), common)
    return where(logical_or(isnan(a), isnan(b)), math.nan, where(equal(a, b), b, y))


_LDEXP = register(
    Op(
        "ldexp", Kind.POINTWISE, "ldexp({0}, (int){1})",
        vjp=lambda g, y, x, n: (ldexp(g, n), None), cost=4,
    )
)  # fmt: skip


def ldexp(x1: ArrayLike, x2: ArrayLike) -> Array:
    """x1 * 2**x2, for integer x2."""
    x, n = as_array(x1), as_array(x2)
    if not n.dtype.is_integer:
        raise TypeError(f"ldexp: exponents must be integers, not {n.dtype.name}")
    x = cast_to(x, floating(x.dtype)[0])
    arrays, shape = broadcast((x, n))
    return apply(_LDEXP, tuple(arrays), (), shape, x.dtype)
