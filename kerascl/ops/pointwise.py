"""Elementwise operations."""

from __future__ import annotations

import math

from kerascl.core.array import Array, apply
from kerascl.dtypes import as_dtype
from kerascl.ops.declare import (
    as_array,
    bitwise,
    cast_to,
    comparison,
    convert,
    floating,
    logical,
    numeric,
    pointwise,
    predicate,
    same,
    spread,
)

# -- arithmetic ---------------------------------------------------------------
add = pointwise("add", "({0} + {1})", numeric, lambda g, y, a, b: (g, g))
subtract = pointwise("subtract", "({0} - {1})", numeric, lambda g, y, a, b: (g, -g))
multiply = pointwise("multiply", "({0} * {1})", numeric, lambda g, y, a, b: (g * b, g * a))
divide = pointwise(
    "divide", "({0} / {1})", floating, lambda g, y, a, b: (g / b, -(g * y) / b), cost=4
)
negative = pointwise("negative", "(-{0})", numeric, lambda g, y, x: (-g,))


def _integer_code(name: str, float_code: str, int_code: str, dtype, vjp=None, cost: int = 1):
    """An operation whose C code differs between floats and integers."""
    on_float = pointwise(name, float_code, dtype, vjp, cost=cost)
    on_int = pointwise(name + "_int", int_code, dtype, cost=cost)

    def function(*args) -> Array:
        arrays, common = convert(args)
        return (on_float if common.is_float else on_int)(*arrays)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = on_float.__doc__
    return function


def _share(g, y, a, b):
    """Gradient of maximum and minimum: ties share it equally, as in JAX."""
    one = where(equal(a, y), 1.0, 0.0)
    two = where(equal(b, y), 1.0, 0.0)
    both = g / (one + two)
    return both * one, both * two


maximum = _integer_code(
    "maximum",
    "(({0} > {1} || {0} != {0}) ? {0} : {1})",
    "max({0}, {1})",
    same,
    _share,
)
minimum = _integer_code(
    "minimum",
    "(({0} < {1} || {0} != {0}) ? {0} : {1})",
    "min({0}, {1})",
    same,
    _share,
)


def _power_vjp(g, y, a, b):
    safe = where(equal(a, 0), 1, a)
    da = g * b * power(a, where(equal(b, 0), 1, b - 1))
    db = where(greater(a, 0), g * y * log(safe), 0)
    return da, db


power = pointwise("power", "pow({0}, {1})", floating, _power_vjp, cost=20)
square = pointwise("square", "({0} * {0})", numeric, lambda g, y, x: (g * (x + x),))
reciprocal = pointwise("reciprocal", "(1 / {0})", floating, lambda g, y, x: (-g * y * y,), cost=4)
sqrt = pointwise("sqrt", "sqrt({0})", floating, lambda g, y, x: (g * 0.5 / y,), cost=4)
rsqrt = pointwise(
    "rsqrt", "rsqrt({0})", floating, lambda g, y, x: (g * (-0.5) * y / x,), cost=4
)
exp = pointwise("exp", "exp({0})", floating, lambda g, y, x: (g * y,), cost=10)
log = pointwise("log", "log({0})", floating, lambda g, y, x: (g / x,), cost=10)
log1p = pointwise("log1p", "log1p({0})", floating, lambda g, y, x: (g / (x + 1),), cost=12)
expm1 = pointwise("expm1", "expm1({0})", floating, lambda g, y, x: (g * (y + 1),), cost=12)
tanh = pointwise("tanh", "tanh({0})", floating, lambda g, y, x: (g * (1 - y * y),), cost=12)
erf = pointwise(
    "erf", "erf({0})", floating,
    lambda g, y, x: (g * (2 / math.sqrt(math.pi)) * exp(-(x * x)),), cost=15,
)  # fmt: skip
sin = pointwise("sin", "sin({0})", floating, lambda g, y, x: (g * cos(x),), cost=12)
cos = pointwise("cos", "cos({0})", floating, lambda g, y, x: (-(g * sin(x)),), cost=12)
sigmoid = pointwise(
    "sigmoid",
    "(({0}) >= 0 ? 1 / (1 + exp(-({0}))) : exp({0}) / (1 + exp({0})))",
    floating,
    lambda g, y, x: (g * y * (1 - y),),
    cost=14,
)
sign = pointwise("sign", "(({0} > 0) - ({0} < 0))", numeric, lambda g, y, x: (None,))
absolute = _integer_code(
    "absolute", "fabs({0})", "(({0} < 0) ? -{0} : {0})", same, lambda g, y, x: (g * sign(x),)
)

floor = pointwise("floor", "floor({0})", floating, lambda g, y, x: (None,))
ceil = pointwise("ceil", "ceil({0})", floating, lambda g, y, x: (None,))
rint = pointwise("rint", "rint({0})", floating, lambda g, y, x: (None,))
trunc = pointwise("trunc", "trunc({0})", floating, lambda g, y, x: (None,))

# Python's sign rules: the remainder has the sign of the divisor; integers divided by 0 give 0.
_INT_FLOOR = "(({1}) == 0 ? 0 : ({0}) / ({1}) - ((({0}) % ({1}) != 0) && ((({0}) < 0) != (({1}) < 0))))"
_INT_MOD = (
    "(({1}) == 0 ? 0 : ((({0}) % ({1}) != 0) && ((({0}) < 0) != (({1}) < 0)))"
    " ? ({0}) % ({1}) + ({1}) : ({0}) % ({1}))"
)
_FLOAT_MOD = "(({0}) - ({1}) * floor(({0}) / ({1})))"
floor_divide = _integer_code(
    "floor_divide", "floor({0} / {1})", _INT_FLOOR, numeric, lambda g, y, a, b: (None, None), 6
)
mod = _integer_code(
    "mod", _FLOAT_MOD, _INT_MOD, numeric,
    lambda g, y, a, b: (g, -(g * floor(a / b))), 8,
)  # fmt: skip


def round(x, decimals: int = 0) -> Array:
    """`x` rounded to `decimals` places, halves to even."""
    x = as_array(x)
    if not x.dtype.is_float:
        return x
    if decimals == 0:
        return rint(x)
    scale = 10.0**decimals
    return rint(x * scale) / scale


# -- comparison and logic -----------------------------------------------------
equal = pointwise("equal", "({0} == {1})", comparison)
not_equal = pointwise("not_equal", "({0} != {1})", comparison)
greater = pointwise("greater", "({0} > {1})", comparison)
greater_equal = pointwise("greater_equal", "({0} >= {1})", comparison)
less = pointwise("less", "({0} < {1})", comparison)
less_equal = pointwise("less_equal", "({0} <= {1})", comparison)
logical_and = pointwise("logical_and", "({0} && {1})", logical)
logical_or = pointwise("logical_or", "({0} || {1})", logical)
logical_not = pointwise("logical_not", "(!{0})", logical)
logical_xor = pointwise("logical_xor", "({0} != {1})", logical)
isnan = pointwise("isnan", "({0} != {0})", predicate)
bitwise_and = pointwise("bitwise_and", "({0} & {1})", bitwise)
bitwise_or = pointwise("bitwise_or", "({0} | {1})", bitwise)
bitwise_xor = pointwise("bitwise_xor", "({0} ^ {1})", bitwise)
bitwise_not = pointwise("bitwise_not", "(~{0})", bitwise)
left_shift = pointwise("left_shift", "({0} << {1})", bitwise)
right_shift = pointwise("right_shift", "({0} >> {1})", bitwise)

_where_op = pointwise(
    "where",
    "({0} ? {1} : {2})",
    same,
    lambda g, y, c, a, b: (None, where(c, g, 0), where(c, 0, g)),
    arity=3,
).op


def where(condition, x, y) -> Array:
    """`x` where `condition` holds, else `y`; all three broadcast."""
    condition = as_array(condition)
    if not condition.dtype.is_bool:
        condition = not_equal(condition, 0)
    (x, y), dtype = convert((x, y))
    arrays, shape = spread((condition, x, y))
    return apply(_where_op, tuple(arrays), (), shape, dtype)


def cast(x, dtype) -> Array:
    """`x` in another dtype; floats are truncated towards zero, NaN becomes 0 in integers."""
    return cast_to(as_array(x), as_dtype(dtype))
