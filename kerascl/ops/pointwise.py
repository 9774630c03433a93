"""Elementwise operations."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from kerascl import dtypes
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Kind, Op, register
from kerascl.core.types import Gradients, Vjp
from kerascl.dtypes import DType, DTypeLike, as_dtype, bool_, int32, uint64
from kerascl.ops import clibrary
from kerascl.ops.declare import (
    Elementwise,
    as_array,
    broadcast,
    cast_to,
    comparison,
    convert,
    elementwise,
    floating,
    holds,
    is_scalar,
    logical,
    numeric,
    pointwise,
    python_dtype,
    same,
    scalar,
)
from kerascl.ops.views import expand_to

__all__ = [
    "absolute", "add", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "cast", "cbrt", "ceil", "clip", "conjugate", "cos", "cosh", "deg2rad", "digamma",
    "divide", "divide_no_nan", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor",
    "floor_divide", "fmax", "fmin", "fmod", "gcd", "greater", "greater_equal", "heaviside", "hypot",
    "i0", "i1", "imag", "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal",
    "lcm", "less", "less_equal", "lgamma", "log", "log1p", "log2", "log10", "logaddexp",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "make_complex",
    "maximum", "minimum", "mod", "multiply", "nan_to_num", "negative", "not_equal", "power",
    "rad2deg", "real", "reciprocal", "round", "rsqrt", "select", "sigmoid", "sign",
    "signbit", "sin", "sinc", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip


# -- arithmetic ---------------------------------------------------------------
def _plain(name: str, code: str, vjp: Vjp | None, **more: Any) -> Elementwise:
    """An operation whose code serves complex numbers too."""
    return pointwise(name, code, numeric, vjp, complex=code, **more)


def _wraps(operator: str, left: str = "{0}", right: str = "{1}") -> str:
    """Arithmetic of integers that wraps around, also to the compiler."""
    return f"(({{T}})(({{U}}){left} {operator} ({{U}}){right}))"


add = _plain(
    "add", "({0} + {1})", lambda g, y, a, b: (g, g), integer=_wraps("+"), boolean="({0} | {1})",
    neutral=(-0.0, -0.0),  # -0.0 + 0.0 is 0.0
)  # fmt: skip
subtract = _plain(
    "subtract", "({0} - {1})", lambda g, y, a, b: (g, -g), integer=_wraps("-"),
    neutral=(None, 0.0),
)  # fmt: skip
negative = _plain(
    "negative", "(-{0})", lambda g, y, x: (-g,), integer=_wraps("-", "0", "{0}"), exact=True
)
multiply = pointwise(
    "multiply", "({0} * {1})", numeric, lambda g, y, a, b: (g * b, g * a),
    integer=_wraps("*"), boolean="({0} & {1})", complex="kcl_cmul_{T}({0}, {1})", neutral=(1, 1),
)  # fmt: skip
divide = pointwise(
    "divide", "({0} / {1})", floating, lambda g, y, a, b: (g / b, -(g * y) / b), cost=4,
    complex="kcl_cdiv_{T}({0}, {1})", neutral=(None, 1),
)  # fmt: skip
square = pointwise(
    "square", "({0} * {0})", numeric, lambda g, y, x: (g * (x + x),),
    integer=_wraps("*", "{0}", "{0}"), complex="kcl_cmul_{T}({0}, {0})",
)  # fmt: skip
reciprocal = pointwise(
    "reciprocal", "(1 / {0})", floating, lambda g, y, x: (-g * y * y,), cost=4,
    complex="kcl_crec_{T}({0})",
)  # fmt: skip


def divide_no_nan(x1: ArrayLike, x2: ArrayLike) -> Array:
    """x1 / x2, and 0 where x2 is 0."""
    (a, b), common = convert((x1, x2))
    work = floating(common)[0]
    a, b = cast_to(a, work), cast_to(b, work)
    zero = equal(b, 0)
    return where(zero, 0, divide(a, where(zero, 1, b)))


def _share(g: Array, y: Array, a: Array, b: Array) -> Gradients:
    """Gradient of maximum and minimum: ties share it equally, as in JAX."""
    one, two = equal(a, y), equal(b, y)
    each = where(logical_and(one, two), g * 0.5, g)
    return where(one, each, 0), where(two, each, 0)


def _in_order(sign: str) -> str:
    """Complex numbers are ordered by their real parts, then by the imaginary ones."""
    first = f"{{0}}.x {sign[0]} {{1}}.x && {{0}}.y == {{0}}.y && {{1}}.y == {{1}}.y"
    return f"({first} || {{0}}.x == {{1}}.x && {{0}}.y {sign} {{1}}.y)"


def _extreme(name: str, sign: str, doc: str) -> Elementwise:
    """The larger or smaller of two: NaN wins over numbers, or, in fmax and fmin, loses to them."""
    number_wins = name.startswith("f")
    code, nan = f"(({{0}} {sign} {{1}} || {{0}} != {{0}}) ? {{0}} : {{1}})", "{0}"
    if number_wins:
        code, nan = f"{name}({{0}}, {{1}})", "{1}"
    nan = f"{nan}.x != {nan}.x || {nan}.y != {nan}.y"
    return pointwise(
        name, code, same, _share, integer=f"{'max' if sign == '>' else 'min'}({{0}}, {{1}})",
        complex=f"(({_in_order(sign + '=')} || {nan}) ? {{0}} : {{1}})", exact=True, doc=doc,
    )  # fmt: skip


maximum = _extreme("maximum", ">", "The larger of two elements; NaN where either is.")
minimum = _extreme("minimum", "<", "The smaller of two elements; NaN where either is.")
fmax = _extreme("fmax", ">", "The larger of two elements; a number wins over NaN.")
fmin = _extreme("fmin", "<", "The smaller of two elements; a number wins over NaN.")


def _power_vjp(g: Array, y: Array, a: Array, b: Array) -> Gradients:
    da = where(equal(b, 0), 0, g * b * _power(a, where(equal(b, 0), 1, b - 1)))
    db = g * y * log(where(equal(a, 0), 1, a))
    return da, db


_power = pointwise(
    "power", "pow({0}, {1})", numeric, _power_vjp, cost=20, integer="kcl_ipow_{T}({0}, {1})"
)
_cube = pointwise(
    "cube", "({0} * {0} * {0})", numeric, lambda g, y, x: (g * (square(x) * 3),), cost=2
)


def power(x1: ArrayLike, x2: ArrayLike) -> Array:
    """x1 to the power of x2; integers stay integers and wrap around.

    Where an array of integers holds negative exponents, 1 / x1**-x2 is cut to an integer: 1 and -1
    of 1 and -1, else 0.

    Raises:
        ValueError: for a negative integer as the exponent of integers.
    """
    if is_scalar(x2):
        x = as_array(x1)
        if isinstance(x2, int) and x2 < 0 and not (x.dtype.is_float or x.dtype.is_complex):
            raise ValueError(
                f"power: integers have no powers of the negative integer {x2}; make x1 floats"
            )
    if is_scalar(x2) and not is_scalar(x1):
        if x2 == 2 and (x.dtype.is_float or isinstance(x2, int)):
            return square(x)
        if x.dtype.is_float and x2 in _POWERS:
            return _POWERS[x2](x)
    (a, b), common = convert((x1, x2))
    if common.is_complex:
        zero = equal(a, 0)
        y = exp(multiply(b, log(where(zero, 1, a))))
        of_zero = where(greater(real(b), 0), scalar(0, common), complex(math.nan, math.nan))
        return where(equal(b, 0), 1, where(zero, of_zero, where(equal(b, 1), a, y)))
    return _power(a, b)


sqrt = pointwise(
    "sqrt", "sqrt({0})", floating, lambda g, y, x: (g * 0.5 / y,), cost=4,
    complex="kcl_csqrt_{T}({0})",
)  # fmt: skip
rsqrt = pointwise(
    "rsqrt", "rsqrt({0})", floating, lambda g, y, x: (g * (-0.5) * y / x,), cost=4,
    complex="kcl_cdiv_{T}(({T})(1, 0), kcl_csqrt_{T}({0}))", doc="Elementwise 1 / sqrt(x).",
)  # fmt: skip
cbrt = pointwise("cbrt", "cbrt({0})", floating, lambda g, y, x: (g / (square(y) * 3),), cost=15)


def _root_reciprocal(x: Array) -> Array:
    """x ** -0.5, which for -0.0 and -inf is not what rsqrt is: inf and 0."""
    return rsqrt(where(equal(x, -math.inf), math.inf, x + 0))


_POWERS: dict[float, Callable[[Array], Array]]
_POWERS = {3: _cube, 0.5: sqrt, -0.5: _root_reciprocal, -1: reciprocal}


def _hypot_vjp(g: Array, y: Array, a: Array, b: Array) -> Gradients:
    share = where(equal(y, 0), 0, g / where(equal(y, 0), 1, y))
    return share * a, share * b


hypot = pointwise(
    "hypot", "hypot({0}, {1})", floating, _hypot_vjp, cost=8, doc="Elementwise sqrt(a² + b²)."
)

# -- exponentials and logarithms ----------------------------------------------
exp = pointwise(
    "exp", "exp({0})", floating, lambda g, y, x: (g * y,), cost=10, complex="kcl_cexp_{T}({0})"
)
exp2 = pointwise(
    "exp2", "exp2({0})", floating, lambda g, y, x: (g * y * math.log(2),), cost=10,
    complex="kcl_cexp2_{T}({0})",
)  # fmt: skip
expm1 = pointwise(
    "expm1", "expm1({0})", floating, lambda g, y, x: (g * (y + 1),), cost=12,
    complex="kcl_cexpm1_{T}({0})",
)  # fmt: skip
log = pointwise(
    "log", "log({0})", floating, lambda g, y, x: (g / x,), cost=10, complex="kcl_clog_{T}({0})"
)
log2 = pointwise(
    "log2", "log2({0})", floating, lambda g, y, x: (g / (x * math.log(2)),), cost=10,
    complex="kcl_clog2_{T}({0})",
)  # fmt: skip
log10 = pointwise(
    "log10", "log10({0})", floating, lambda g, y, x: (g / (x * math.log(10)),), cost=10,
    complex="kcl_clog10_{T}({0})",
)  # fmt: skip
log1p = pointwise(
    "log1p", "log1p({0})", floating, lambda g, y, x: (g / (x + 1),), cost=12,
    complex="kcl_clog1p_{T}({0})",
)  # fmt: skip
logaddexp = pointwise(
    "logaddexp", "kcl_logaddexp_{T}({0}, {1})", floating,
    lambda g, y, a, b: (g * sigmoid(a - b), g * sigmoid(b - a)), cost=25,
    doc="log(exp(a) + exp(b)) without overflow.",
)  # fmt: skip
logaddexp2 = pointwise(
    "logaddexp2", "kcl_logaddexp2_{T}({0}, {1})", floating,
    lambda g, y, a, b: (g * sigmoid((a - b) * math.log(2)), g * sigmoid((b - a) * math.log(2))),
    cost=25, doc="log2(2**a + 2**b) without overflow.",
)  # fmt: skip
sigmoid: Elementwise = pointwise(
    "sigmoid", "(1 / (1 + exp(-{0})))", floating, lambda g, y, x: (g * y * (1 - y),), cost=14
)
tanh = pointwise(
    "tanh", "tanh({0})", floating, lambda g, y, x: (g * (1 - y * y),), cost=12,
    complex="kcl_ctanh_{T}({0})",
)  # fmt: skip

# -- trigonometry -------------------------------------------------------------
sin = pointwise(
    "sin", "sin({0})", floating, lambda g, y, x: (g * cos(x),), cost=12,
    complex="kcl_csin_{T}({0})",
)  # fmt: skip
cos: Elementwise = pointwise(
    "cos", "cos({0})", floating, lambda g, y, x: (-(g * sin(x)),), cost=12,
    complex="kcl_ccos_{T}({0})",
)  # fmt: skip
tan = pointwise(
    "tan", "tan({0})", floating, lambda g, y, x: (g * (square(y) + 1),), cost=15,
    complex="kcl_ctan_{T}({0})",
)  # fmt: skip
sinh = pointwise(
    "sinh", "sinh({0})", floating, lambda g, y, x: (g * cosh(x),), cost=14,
    complex="kcl_csinh_{T}({0})",
)  # fmt: skip
cosh: Elementwise = pointwise(
    "cosh", "cosh({0})", floating, lambda g, y, x: (g * sinh(x),), cost=14,
    complex="kcl_ccosh_{T}({0})",
)  # fmt: skip
arcsin = pointwise(
    "arcsin", "asin({0})", floating, lambda g, y, x: (g * rsqrt(1 - square(x)),), cost=15,
    complex="kcl_casin_{T}({0})",
)  # fmt: skip
arccos = pointwise(
    "arccos", "acos({0})", floating, lambda g, y, x: (-(g * rsqrt(1 - square(x))),), cost=15,
    complex="kcl_cacos_{T}({0})",
)  # fmt: skip
arctan = pointwise(
    "arctan", "atan({0})", floating, lambda g, y, x: (g / (square(x) + 1),), cost=15,
    complex="kcl_catan_{T}({0})",
)  # fmt: skip
arcsinh = pointwise(
    "arcsinh", "asinh({0})", floating, lambda g, y, x: (g * rsqrt(square(x) + 1),), cost=15,
    complex="kcl_casinh_{T}({0})",
)  # fmt: skip
arccosh = pointwise(
    "arccosh", "acosh({0})", floating, lambda g, y, x: (g * rsqrt(x - 1) * rsqrt(x + 1),), cost=15,
    complex="kcl_cacosh_{T}({0})",
)  # fmt: skip
arctanh = pointwise(
    "arctanh", "atanh({0})", floating, lambda g, y, x: (g / (1 - square(x)),), cost=15,
    complex="kcl_catanh_{T}({0})",
)  # fmt: skip


def _arctan2_vjp(g: Array, y: Array, a: Array, b: Array) -> Gradients:
    share = g / (square(a) + square(b))
    return share * b, -(share * a)


arctan2 = pointwise(
    "arctan2", "atan2({0}, {1})", floating, _arctan2_vjp, cost=20,
    doc="The angle of the point (x2, x1), in radians.",
)  # fmt: skip


def _sinc_vjp(g: Array, y: Array, x: Array) -> Gradients:
    flat = equal(x, 0)
    safe = where(flat, 1, x)
    return (where(flat, 0, g * (cos(x * math.pi) - y) / safe),)


sinc = pointwise(
    "sinc", "kcl_sinc_{T}({0})", floating, _sinc_vjp, cost=15, doc="sin(πx) / (πx), 1 at 0."
)
deg2rad = pointwise(
    "deg2rad", "({0} * ({T})0.017453292519943295)", floating,
    lambda g, y, x: (g * (math.pi / 180),), doc="Degrees to radians.",
)  # fmt: skip
rad2deg = pointwise(
    "rad2deg", "({0} * ({T})57.29577951308232)", floating,
    lambda g, y, x: (g * (180 / math.pi),), doc="Radians to degrees.",
)  # fmt: skip

# -- special functions --------------------------------------------------------
_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)
erf = pointwise(
    "erf", "erf({0})", floating, lambda g, y, x: (g * _TWO_OVER_ROOT_PI * exp(-square(x)),),
    cost=15, doc="The error function.",
)  # fmt: skip
erfc = pointwise(
    "erfc", "erfc({0})", floating, lambda g, y, x: (-(g * _TWO_OVER_ROOT_PI * exp(-square(x))),),
    cost=15, doc="1 - erf(x), accurate where that is small.",
)  # fmt: skip
erfinv = pointwise(
    "erfinv", "kcl_erfinv_{T}({0})", floating,
    lambda g, y, x: (g * exp(square(y)) / _TWO_OVER_ROOT_PI,), cost=30,
    doc="The inverse of the error function.",
)  # fmt: skip
i0 = pointwise(
    "i0", "kcl_bessel_{T}({0}, 0)", floating, lambda g, y, x: (g * i1(x),), cost=60,
    doc="Modified Bessel function of order 0.",
)  # fmt: skip


def _i1_vjp(g: Array, y: Array, x: Array) -> Gradients:
    flat = equal(x, 0)
    return (g * where(flat, 0.5, i0(x) - y / where(flat, 1, x)),)


i1: Elementwise = pointwise(
    "i1", "kcl_bessel_{T}({0}, 1)", floating, _i1_vjp, cost=60,
    doc="Modified Bessel function of order 1.",
)  # fmt: skip
lgamma = pointwise(
    "lgamma", "lgamma({0})", floating, lambda g, y, x: (g * digamma(x),), cost=40,
    doc="Logarithm of the absolute value of the gamma function.",
)  # fmt: skip
digamma: Elementwise = pointwise(
    "digamma", "kcl_digamma_{T}({0})", floating, cost=60,
    doc="Derivative of lgamma; it has no derivative of its own here.",
)  # fmt: skip

# -- signs, rounding, remainders ----------------------------------------------
sign = pointwise(
    "sign", "({0} != {0} ? {0} : ({T})(({0} > 0) - ({0} < 0)))", numeric,
    lambda g, y, x: (None,), integer="((KCL_SIGN_OF({T}, {0}) > 0) - (KCL_SIGN_OF({T}, {0}) < 0))",
    complex="kcl_csign_{T}({0})", exact=True,
    doc="-1, 0 or 1 by the sign of each element; NaN stays NaN; x / |x| for complex x.",
)  # fmt: skip
signbit = pointwise(
    "signbit", "(signbit({0}) != 0)", comparison, integer="({0} < 0)",
    doc="Whether the sign bit is set (also that of -0.0).",
)  # fmt: skip
_absolute = pointwise(
    "absolute", "fabs({0})", same, lambda g, y, x: (g * sign(x),),
    integer="(({0} < 0) ? " + _wraps("-", "0", "{0}") + " : {0})", unsigned="{0}", exact=True,
)  # fmt: skip


def _absolute_complex_vjp(g: Array, y: Array, x: Array) -> Gradients:
    return (multiply(g, conjugate(x)) / where(equal(y, 0), 1, y),)


_ABSOLUTE_COMPLEX = register(
    Op("absolute_complex", Kind.POINTWISE, "hypot({0}.x, {0}.y)", vjp=_absolute_complex_vjp, cost=8)
)


def absolute(x: ArrayLike) -> Array:
    """Elementwise absolute value; real for complex arrays."""
    x = as_array(x)
    if x.dtype.is_complex:
        return apply(_ABSOLUTE_COMPLEX, (x,), (), x.shape, x.dtype.real)
    return _absolute(x)


def _no_slope(g: Array, y: Array, *inputs: Array) -> Gradients:
    return (None,) * len(inputs)


floor = pointwise("floor", "floor({0})", same, _no_slope, integer="{0}", exact=True)
ceil = pointwise("ceil", "ceil({0})", same, _no_slope, integer="{0}", exact=True)
trunc = pointwise("trunc", "trunc({0})", same, _no_slope, integer="{0}", exact=True)
_rint = pointwise("rint", "rint({0})", floating, _no_slope, exact=True)


def round(x: ArrayLike, decimals: int = 0) -> Array:
    """`x` rounded to `decimals` places, halves to even."""
    x = as_array(x)
    if not x.dtype.is_float:
        return _round_integer(x, 10**-decimals) if decimals < 0 else x
    if decimals == 0:
        return _rint(x)
    scale = 10.0 ** builtins.abs(decimals)
    return _rint(x * scale) / scale if decimals > 0 else _rint(x / scale) * scale


def _round_integer(x: Array, unit: int) -> Array:
    whole, rest = floor_divide(x, unit), mod(x, unit)
    odd_tie = logical_and(equal(rest, unit // 2), equal(mod(whole, 2), 1))
    up = logical_or(greater(rest, unit // 2), odd_tie)
    return (whole + cast_to(up, x.dtype)) * unit


# Python's sign rules: the remainder has the sign of the divisor; integers by 0 give 0.
floor_divide = pointwise(
    "floor_divide", "kcl_fdiv_{T}({0}, {1})", numeric, _no_slope, cost=12,
    integer="kcl_idiv_{T}({0}, {1})",
    doc="The quotient rounded down; integers divided by 0 give 0.",
)  # fmt: skip
mod = pointwise(
    "mod", "kcl_fmod_{T}({0}, {1})", numeric,
    lambda g, y, a, b: (g, -(g * floor_divide(a, b))), cost=12,
    integer="kcl_imod_{T}({0}, {1})",
    doc="The remainder with the sign of the divisor; integers by 0 give 0.",
)  # fmt: skip
fmod = pointwise(
    "fmod", "fmod({0}, {1})", numeric,
    lambda g, y, a, b: (g, -(g * trunc(a / b))), cost=12,
    integer="kcl_irem_{T}({0}, {1})", exact=True,
    doc="The remainder with the sign of the dividend; integers by 0 give 0.",
)  # fmt: skip


def _integers(dtype: DType) -> tuple[DType, DType]:
    dtype = int32 if dtype.is_bool else dtype
    if not dtype.is_integer:
        raise TypeError(f"this operation needs integers, not {dtype.name}")
    return dtype, dtype


gcd = pointwise("gcd", "kcl_gcd_{T}({0}, {1})", _integers, cost=40, doc="Greatest common divisor.")
lcm = pointwise("lcm", "kcl_lcm_{T}({0}, {1})", _integers, cost=45, doc="Least common multiple.")
_heaviside = pointwise(
    "heaviside", "({0} != {0} ? {0} : {0} == 0 ? {1} : ({T})({0} > 0))", floating, _no_slope,
    exact=True,
)  # fmt: skip


def heaviside(x1: ArrayLike, x2: ArrayLike) -> Array:
    """0 where x1 < 0, x2 where it is 0, 1 where it is larger."""
    return _heaviside(x1, x2)


# -- clipping and cleaning ----------------------------------------------------
def _clip_vjp(g: Array, y: Array, x: Array, low: Array, high: Array) -> Gradients:
    # a half at each bound, as the minimum of a maximum has
    inside = logical_and(greater(x, low), less(x, high))
    edge = logical_or(equal(x, low), equal(x, high))
    return where(inside, g, where(edge, g * 0.5, 0)), None, None


_clip = pointwise(
    "clip", "({0} < {1} ? {1} : {0} > {2} ? {2} : {0})", same, _clip_vjp, cost=2, arity=3,
    exact=True,
)  # fmt: skip


def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """`x` limited to [min, max], in the dtype of `x`; None leaves a side open.  NaN stays NaN."""
    dtype = as_array(x).dtype
    if is_scalar(min) and _beyond(min, dtype) < 0:
        min = None
    if is_scalar(max) and _beyond(max, dtype) > 0:
        max = None
    if is_scalar(min) and is_scalar(max) and min < max:
        return _clip(x, min, max)
    if min is not None:
        x = maximum(min, x)
    return as_array(x) if max is None else minimum(max, x)


# the largest finite number of each dtype
LARGEST = {
    "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0,
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308,
}  # fmt: skip


def nan_to_num(
    x: ArrayLike,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:
    """`x` with NaN and infinities replaced (by the largest and smallest numbers by default)."""
    x = as_array(x)
    if not x.dtype.is_float:
        return x
    most = LARGEST[x.dtype.name]
    x = where(isnan(x), nan, x)
    x = where(isposinf(x), most if posinf is None else posinf, x)
    return where(isneginf(x), -most if neginf is None else neginf, x)


# -- comparison and logic -----------------------------------------------------
def _comparison(name: str, code: str, complex: str, compare: Callable[..., Any]) -> Elementwise:
    """A comparison that is exact also where no integer dtype holds both sides, as in NumPy."""
    plain = pointwise(name, code, comparison, complex=complex)

    def function(x1: ArrayLike, x2: ArrayLike) -> Array:
        if type(x1) is Array and type(x2) is Array and x1._node.dtype is x2._node.dtype:
            return plain(x1, x2)
        if is_scalar(x1) and not is_scalar(x2):
            x2 = as_array(x2)
            if side := _beyond(x1, x2.dtype):
                return expand_to(scalar(compare(side, 0), bool_), x2.shape)
        elif is_scalar(x2) and not is_scalar(x1):
            x1 = as_array(x1)
            if side := _beyond(x2, x1.dtype):
                return expand_to(scalar(compare(0, side), bool_), x1.shape)
        elif not is_scalar(x1):
            x1, x2 = as_array(x1), as_array(x2)
            kinds = x1.dtype.kind + x2.dtype.kind
            if kinds == "iu" and x2.dtype is uint64:
                return where(x1 < 0, compare(-1, 0), plain(cast_to(x1, uint64), x2))
            if kinds == "ui" and x1.dtype is uint64:
                return where(x2 < 0, compare(0, -1), plain(x1, cast_to(x2, uint64)))
        return plain(x1, x2)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = plain.__doc__
    return elementwise(function, plain.op, plain.count)


def _beyond(value: int, dtype: DType) -> int:
    """1 or -1 for a Python integer above or below all values of an integer dtype, else 0."""
    dtype = int32 if dtype.is_bool else dtype
    if not (isinstance(value, int) and dtype.is_integer) or holds(dtype, value):
        return 0
    return 1 if value > 0 else -1


equal = _comparison("equal", "({0} == {1})", "({0}.x == {1}.x && {0}.y == {1}.y)", operator.eq)
not_equal = _comparison(
    "not_equal", "({0} != {1})", "({0}.x != {1}.x || {0}.y != {1}.y)", operator.ne
)


def _order(name: str, sign: str, compare: Callable[..., Any]) -> Elementwise:
    return _comparison(name, f"({{0}} {sign} {{1}})", _in_order(sign), compare)


greater = _order("greater", ">", operator.gt)
greater_equal = _order("greater_equal", ">=", operator.ge)
less = _order("less", "<", operator.lt)
less_equal = _order("less_equal", "<=", operator.le)
logical_and = pointwise("logical_and", "({0} && {1})", logical)
logical_or = pointwise("logical_or", "({0} || {1})", logical)
logical_not = pointwise("logical_not", "(!{0})", logical)
logical_xor = pointwise("logical_xor", "({0} != {1})", logical)
isnan = pointwise(
    "isnan", "({0} != {0})", comparison, integer="0", arity=1,
    complex="({0}.x != {0}.x || {0}.y != {0}.y)",
)  # fmt: skip
isinf = pointwise(
    "isinf", "(isinf({0}) != 0)", comparison, integer="0", arity=1,
    complex="(isinf({0}.x) || isinf({0}.y))",
)  # fmt: skip
isfinite = pointwise(
    "isfinite", "(isfinite({0}) != 0)", comparison, integer="1", arity=1,
    complex="(isfinite({0}.x) && isfinite({0}.y))",
)  # fmt: skip
isposinf = pointwise("isposinf", "({0} == INFINITY)", comparison, integer="0", arity=1)
isneginf = pointwise("isneginf", "({0} == -INFINITY)", comparison, integer="0", arity=1)
isreal = pointwise("isreal", "1", comparison, arity=1, complex="({0}.y == 0)")


def isclose(
    x1: ArrayLike, x2: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether |x1 - x2| <= atol + rtol * |x2|; equal infinities are close."""
    (a, b), common = convert((x1, x2))
    work = floating(common)[0]
    a, b = cast_to(a, work), cast_to(b, work)
    near = less_equal(absolute(a - b), absolute(b) * rtol + atol)
    both = logical_and(isfinite(a), isfinite(b))
    result = logical_or(logical_and(both, near), equal(a, b))
    if equal_nan:
        result = logical_or(result, logical_and(isnan(a), isnan(b)))
    return result


# -- complex numbers ----------------------------------------------------------
def _complex_op(name: str, code: str, vjp: Vjp) -> Op:
    return register(Op(name, Kind.POINTWISE, code, clibrary.needed(code), vjp=vjp))


# Gradients are linear transposes, without conjugation, as in JAX.
_MAKE = _complex_op("make_complex", "({T})({0}, {1})", lambda g, y, a, b: (real(g), -imag(g)))
_REAL = _complex_op("real", "{0}.x", lambda g, y, x: (make_complex(g, 0),))
_IMAG = _complex_op("imag", "{0}.y", lambda g, y, x: (make_complex(0, -g),))
_CONJUGATE = _complex_op("conjugate", "({T})({0}.x, -{0}.y)", lambda g, y, x: (conjugate(g),))


def make_complex(re: ArrayLike, im: ArrayLike) -> Array:
    """re + i im: complex128 when one of them is float64, else complex64."""
    (a, b), common = convert((re, im))
    dtype = common.complex
    a, b = cast_to(a, dtype.real), cast_to(b, dtype.real)
    arrays, shape = broadcast((a, b))
    return apply(_MAKE, tuple(arrays), (), shape, dtype)


def real(x: ArrayLike) -> Array:
    """The real part."""
    x = as_array(x)
    return apply(_REAL, (x,), (), x.shape, x.dtype.real) if x.dtype.is_complex else x


def imag(x: ArrayLike) -> Array:
    """The imaginary part; zeros for real arrays."""
    x = as_array(x)
    if x.dtype.is_complex:
        return apply(_IMAG, (x,), (), x.shape, x.dtype.real)
    return expand_to(scalar(0, x.dtype), x.shape)


def conjugate(x: ArrayLike) -> Array:
    """The complex conjugate."""
    x = as_array(x)
    return apply(_CONJUGATE, (x,), (), x.shape, x.dtype) if x.dtype.is_complex else x


def angle(x: ArrayLike) -> Array:
    """The angle of complex numbers; 0 or π for real ones."""
    x = as_array(x)
    if x.dtype.is_complex:
        return arctan2(imag(x), real(x))
    x = cast_to(x, floating(x.dtype)[0])
    return where(isnan(x), x, where(less(x, 0), scalar(math.pi, x.dtype), 0.0))


# -- choice -------------------------------------------------------------------
WHERE = pointwise(
    "where",
    "({0} ? {1} : {2})",
    same,
    lambda g, y, c, a, b: (None, where(c, g, 0), where(c, 0, g)),
    arity=3,
    exact=True,
).op


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """`x` where `condition` holds, else `y`; all three broadcast."""
    condition = as_array(condition)
    if not condition.dtype.is_bool:
        condition = cast_to(condition, bool_)
    if is_scalar(x) and is_scalar(y):
        dtype = dtypes.promote(python_dtype(x), python_dtype(y))
        x, y = scalar(x, dtype), scalar(y, dtype)
    else:
        (x, y), dtype = convert((x, y))
    arrays, shape = broadcast((condition, x, y))
    return apply(WHERE, tuple(arrays), (), shape, dtype)


def select(
    conditions: Sequence[ArrayLike], choices: Sequence[ArrayLike], default: ArrayLike = 0
) -> Array:
    """The choice of the first condition that holds, else `default`.

    Raises:
        ValueError: when there are not as many conditions as choices.
    """
    if len(conditions) != len(choices) or not conditions:
        raise ValueError(f"select: {len(conditions)} conditions for {len(choices)} choices")
    (*choices, result), _ = convert((*choices, default))
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return result


def cast(x: ArrayLike, dtype: DTypeLike) -> Array:
    """`x` in another dtype; floats are truncated towards zero, NaN becomes 0 in integers."""
    return cast_to(as_array(x), as_dtype(dtype))
