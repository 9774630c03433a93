"""Numbers taken apart, and what is asked of their kind."""

from __future__ import annotations

from typing import Any

from kerascl.core.array import Array, ArrayLike
from kerascl.core.tape import pause
from kerascl.dtypes import DType, as_dtype, bool_, float32, int32, uint8
from kerascl.ops.bits import bitcast, copysign, ldexp, nextafter, right_shift
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    is_scalar,
    pointwise,
    scalar,
)
from kerascl.ops.pointwise import (
    absolute,
    imag,
    isfinite,
    isinf,
    less,
    logical_and,
    not_equal,
    power,
    round,
    trunc,
    where,
)
from kerascl.ops.views import expand_to

__all__ = [
    "bitwise_count", "fabs", "float_power", "frexp", "iscomplex", "iscomplexobj", "isrealobj",
    "isscalar", "modf", "rint", "spacing",
]  # fmt: skip


def _real_floats(x: ArrayLike, name: str) -> Array:
    """An array as floats.

    Raises:
        TypeError: for complex numbers.
    """
    x = as_array(x)
    if x.dtype.is_complex:
        raise TypeError(f"{name} takes no complex numbers, such as {x.dtype.name}")
    return cast_to(x, floating(x.dtype)[0])


def fabs(x: ArrayLike) -> Array:
    """Absolute values as floats.

    Raises:
        TypeError: for complex numbers.

    Examples:
        >>> kc.fabs([-1, 2]).tolist()
        [1.0, 2.0]
    """
    return absolute(_real_floats(x, "fabs"))


def rint(x: ArrayLike) -> Array:
    """The nearest whole numbers as floats, halves to even.

    Raises:
        TypeError: for complex numbers.

    Examples:
        >>> kc.rint([0.5, 1.5, -0.7]).tolist()
        [0.0, 2.0, -1.0]
    """
    return round(_real_floats(x, "rint"))


def float_power(x1: ArrayLike, x2: ArrayLike) -> Array:
    """x1 to the power of x2, both as floats: integers may have negative exponents.

    Examples:
        >>> kc.float_power([2, 4], -1).tolist()
        [0.5, 0.25]
    """
    (a, b), _ = convert((x1, x2), lambda dtype: floating(dtype)[0])
    return power(a, b)


def modf(x: ArrayLike) -> tuple[Array, Array]:
    """The fractional and the whole part of each number, both with its sign.

    Raises:
        TypeError: for complex numbers.

    Examples:
        >>> [part.tolist() for part in kc.modf([1.5, -2.25])]
        [[0.5, -0.25], [1.0, -2.0]]
    """
    x = _real_floats(x, "modf")
    whole = trunc(x)
    return copysign(where(isinf(x), 0, x - whole), x), whole


def frexp(x: ArrayLike) -> tuple[Array, Array]:
    """Mantissas, of sizes in [0.5, 1), and int32 exponents of 2 with x = mantissa * 2**exponent.

    0, infinities and NaN are their own mantissas, with exponent 0.

    Raises:
        TypeError: for complex numbers.

    Examples:
        >>> [part.tolist() for part in kc.frexp([3.0, 0.0])]
        [[0.75, 0.0], [2, 0]]
    """
    x = _real_floats(x, "frexp")
    with pause():
        exponent = _exponent(cast_to(x, x.dtype.accumulator))
    return ldexp(x, -exponent), exponent


def _exponent(x: Array) -> Array:
    """int32 exponents of 2, from the bits."""
    stored, bias, word = (23, 126, int32) if x.dtype is float32 else (52, 1022, as_dtype("int64"))
    small = less(absolute(x), 2.0 ** (2 - bias))
    bits = bitcast(where(small, x * 2.0**stored, x), word)
    exponent = cast_to(right_shift(bits, stored) & (2 * bias + 3), int32) - bias
    exponent = exponent - where(small, stored, 0)
    return where(logical_and(isfinite(x), not_equal(x, 0)), exponent, 0)


def spacing(x: ArrayLike) -> Array:
    """The distance to the next number of the dtype that is larger in size, with the sign of `x`.

    Raises:
        TypeError: for complex numbers.

    Examples:
        >>> float(kc.spacing(1.0)) == kc.finfo(kc.float32).eps
        True
    """
    x = _real_floats(x, "spacing")
    size = absolute(x)
    return copysign(nextafter(size, float("inf")) - size, x)


def _counts(dtype: DType) -> tuple[DType, DType]:
    if not (dtype.is_integer or dtype.is_bool):
        raise TypeError(f"bitwise_count needs integers, not {dtype.name}")
    return (uint8 if dtype.is_bool else dtype), uint8


_popcount = pointwise("bitwise_count", "popcount({0})", _counts, exact=True)


def bitwise_count(x: ArrayLike) -> Array:
    """uint8 numbers of bits that are 1 in the absolute values of integers.

    Raises:
        TypeError: for other numbers.

    Examples:
        >>> kc.bitwise_count([7, -8, 0]).tolist()
        [3, 1, 0]
    """
    x = as_array(x)
    signed = x.dtype.is_integer and x.dtype.kind == "i"
    return _popcount(absolute(x) if signed else x)


# -- kinds ----------------------------------------------------------------------------------------
def iscomplex(x: ArrayLike) -> Array:
    """Whether each number has an imaginary part that is not 0.

    Examples:
        >>> kc.iscomplex([1 + 1j, 2 + 0j]).tolist()
        [True, False]
    """
    x = as_array(x)
    return not_equal(imag(x), 0) if x.dtype.is_complex else expand_to(scalar(False, bool_), x.shape)


def iscomplexobj(x: Any) -> bool:
    """Whether an array, or what would become one, has a complex dtype.

    Examples:
        >>> kc.iscomplexobj(kc.array([1j])), kc.iscomplexobj(2.0)
        (True, False)
    """
    return as_array(x).dtype.is_complex


def isrealobj(x: Any) -> bool:
    """Whether an array, or what would become one, has a dtype that is not complex.

    Examples:
        >>> kc.isrealobj([1.0, 2.0])
        True
    """
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether something is a number (or text) and no array; arrays of shape () are none.

    Examples:
        >>> kc.isscalar(3.1), kc.isscalar(kc.array(3.1))
        (True, False)
    """
    return is_scalar(element) or isinstance(element, str | bytes)
