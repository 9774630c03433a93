"""`keras.ops.numpy`: elementwise operations.

Each function has Keras' signature and dtype promotion; the work is `kerascl.ops`'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerascl.backend.ops import sparse as rules
from kerascl.backend.ops.conversion import convert_to_tensor, find_dtype
from kerascl.backend.ops.promotion import (
    as_float,
    at_least_float,
    named,
    operands,
    pair,
    resolve,
    statistics_dtype,
    tensors,
)
from kerascl.core.array import Array
from kerascl.dtypes import bool_, int32
from kerascl.ops import bits, indexing, pointwise, sparse
from kerascl.ops.declare import cast_to
from kerascl.ops.sparse import SparseArray

__all__ = [
    "abs",
    "absolute",
    "add",
    "angle",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clip",
    "conj",
    "conjugate",
    "cos",
    "cosh",
    "deg2rad",
    "divide",
    "divide_no_nan",
    "equal",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "greater",
    "greater_equal",
    "heaviside",
    "hypot",
    "i0",
    "imag",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "nan_to_num",
    "negative",
    "nextafter",
    "not_equal",
    "power",
    "rad2deg",
    "real",
    "reciprocal",
    "right_shift",
    "round",
    "select",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
    "view",
    "where",
]  # fmt: skip


# -- one argument -------------------------------------------------------------
def _unary(name: str, prepare: Callable, source: Callable | None = None) -> Callable:
    run = source or getattr(pointwise, name)
    linear = name in rules.LINEAR

    def function(x) -> Array:
        return run(prepare(x))

    def keeping(x) -> Array | SparseArray:
        if type(x) is SparseArray:
            return sparse.mapped(function, x, linear=linear)
        return run(prepare(x))

    keeps = linear or name in rules.ZERO_PRESERVING
    return named(name, keeping if keeps else function, run.__doc__)


def _wide_float(x) -> Array:
    x = convert_to_tensor(x)
    return cast_to(x, statistics_dtype(x.dtype))


def _no_bool(x) -> Array:
    x = convert_to_tensor(x)
    return cast_to(x, int32) if x.dtype.is_bool else x


angle = _unary("angle", as_float)
arccos = _unary("arccos", as_float)
arccosh = _unary("arccosh", as_float)
arcsin = _unary("arcsin", as_float)
arcsinh = _unary("arcsinh", as_float)
arctan = _unary("arctan", as_float)
arctanh = _unary("arctanh", as_float)
ceil = _unary("ceil", as_float)
cos = _unary("cos", as_float)
cosh = _unary("cosh", as_float)
floor = _unary("floor", as_float)
log = _unary("log", as_float)
log10 = _unary("log10", as_float)
log1p = _unary("log1p", as_float)
log2 = _unary("log2", as_float)
sin = _unary("sin", as_float)
sinc = _unary("sinc", as_float)
sinh = _unary("sinh", as_float)
sqrt = _unary("sqrt", as_float)
tan = _unary("tan", as_float)
tanh = _unary("tanh", as_float)
exp = _unary("exp", at_least_float)
exp2 = _unary("exp2", at_least_float)
expm1 = _unary("expm1", at_least_float)
fabs = _unary("fabs", at_least_float, pointwise.absolute)
reciprocal = _unary("reciprocal", at_least_float)
cbrt = _unary("cbrt", _wide_float)
deg2rad = _unary("deg2rad", _wide_float)
rad2deg = _unary("rad2deg", _wide_float)
i0 = _unary("i0", _wide_float)
square = _unary("square", _no_bool)
absolute = _unary("absolute", convert_to_tensor)
abs = _unary("abs", convert_to_tensor, pointwise.absolute)
bitwise_not = _unary("bitwise_not", convert_to_tensor, bits.bitwise_not)
bitwise_invert = _unary("bitwise_invert", convert_to_tensor, bits.bitwise_not)
conj = _unary("conj", convert_to_tensor, pointwise.conjugate)
conjugate = _unary("conjugate", convert_to_tensor)
imag = _unary("imag", convert_to_tensor)
isfinite = _unary("isfinite", convert_to_tensor)
isinf = _unary("isinf", convert_to_tensor)
isnan = _unary("isnan", convert_to_tensor)
isneginf = _unary("isneginf", convert_to_tensor)
isposinf = _unary("isposinf", convert_to_tensor)
isreal = _unary("isreal", convert_to_tensor)
logical_not = _unary("logical_not", convert_to_tensor)
negative = _unary("negative", convert_to_tensor)
real = _unary("real", convert_to_tensor)
sign = _unary("sign", convert_to_tensor)
signbit = _unary("signbit", convert_to_tensor)
trunc = _unary("trunc", convert_to_tensor)


# -- two arguments ------------------------------------------------------------
def _binary(name: str, *more, prepare: Callable = operands, source: Callable | None = None):
    run = source or getattr(pointwise, name)

    rule: Any = rules.BINARY.get(name)

    def function(x1, x2) -> Array:
        return run(*prepare(x1, x2, *more))

    def keeping(x1, x2) -> Array | SparseArray:
        if type(x1) is SparseArray or type(x2) is SparseArray:
            return rule(function, x1, x2)
        return run(*prepare(x1, x2, *more))

    return named(name, function if rule is None else keeping, run.__doc__)


def _numbers(x1, x2) -> tuple[Array, Array]:
    """Two tensors in their common dtype; bools count as int32."""
    a, b = pair(x1, x2)
    return (cast_to(a, int32), cast_to(b, int32)) if a.dtype.is_bool else (a, b)


def _floats(x1, x2) -> tuple[Array, Array]:
    """Two tensors in their common floating dtype."""
    a, b = pair(x1, x2)
    dtype = resolve(a.dtype, float)
    return cast_to(a, dtype), cast_to(b, dtype)


def _shift_operands(x, y) -> tuple:
    if isinstance(y, int):
        return convert_to_tensor(x), y
    return tensors(x, y)


def _geometric(x1, x2) -> tuple[Array, Array]:
    """Integers as floatx, 64-bit ones as float64."""
    a, b = pair(x1, x2)
    dtype = a.dtype if a.dtype.is_float else statistics_dtype(a.dtype)
    return cast_to(a, dtype), cast_to(b, dtype)


def _plain(x1, x2) -> tuple:
    """Tensors as they are: the operation promotes, and its result is a bool."""
    x1 = x1 if type(x1) in (int, float, bool) else convert_to_tensor(x1)
    x2 = x2 if type(x2) in (int, float, bool) else convert_to_tensor(x2)
    if not (isinstance(x1, Array) or isinstance(x2, Array)):
        x1 = convert_to_tensor(x1)
    return x1, x2


add = _binary("add")
subtract = _binary("subtract")
multiply = _binary("multiply")
divide = _binary("divide", float)
true_divide = _binary("true_divide", float, source=pointwise.divide)
divide_no_nan = _binary("divide_no_nan", float)
maximum = _binary("maximum")
minimum = _binary("minimum")
fmax = _binary("fmax")
fmin = _binary("fmin")
power = _binary("power")
floor_divide = _binary("floor_divide")
mod = _binary("mod", prepare=_numbers)
fmod = _binary("fmod", prepare=_numbers)
gcd = _binary("gcd", prepare=pair)
lcm = _binary("lcm", prepare=pair)
arctan2 = _binary("arctan2", float, prepare=tensors)
logaddexp = _binary("logaddexp", float, prepare=tensors)
logaddexp2 = _binary("logaddexp2", float, prepare=tensors)
nextafter = _binary("nextafter", prepare=_floats, source=bits.nextafter)
heaviside = _binary("heaviside", prepare=_geometric)
hypot = _binary("hypot", prepare=_geometric)
equal = _binary("equal", prepare=_plain)
not_equal = _binary("not_equal", prepare=_plain)
greater = _binary("greater", prepare=_plain)
greater_equal = _binary("greater_equal", prepare=_plain)
less = _binary("less", prepare=_plain)
less_equal = _binary("less_equal", prepare=_plain)
logical_and = _binary("logical_and", prepare=_plain)
logical_or = _binary("logical_or", prepare=_plain)
logical_xor = _binary("logical_xor", prepare=_plain)


def _bitwise(name: str, run: Callable, prepare: Callable = pair) -> Callable:
    def function(x, y) -> Array:
        return run(*prepare(x, y))

    return named(name, function, run.__doc__)


bitwise_and = _bitwise("bitwise_and", bits.bitwise_and)
bitwise_or = _bitwise("bitwise_or", bits.bitwise_or)
bitwise_xor = _bitwise("bitwise_xor", bits.bitwise_xor)
bitwise_left_shift = _bitwise("bitwise_left_shift", bits.left_shift, _shift_operands)
bitwise_right_shift = _bitwise("bitwise_right_shift", bits.right_shift, _shift_operands)
left_shift = _bitwise("left_shift", bits.left_shift, _shift_operands)
right_shift = _bitwise("right_shift", bits.right_shift, _shift_operands)


def ldexp(x1, x2) -> Array:
    """x1 * 2**x2, for integer x2."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    if not x2.dtype.is_integer:
        raise TypeError(
            f"ldexp exponent must be an integer type. Received: x2 dtype={x2.dtype.name}"
        )
    return bits.ldexp(cast_to(x1, resolve(x1.dtype, x2.dtype, float)), x2)


# -- others -------------------------------------------------------------------
def isclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False) -> Array:
    """Whether |x1 - x2| <= atol + rtol * |x2|."""
    return pointwise.isclose(convert_to_tensor(x1), convert_to_tensor(x2), rtol, atol, equal_nan)


def _bound(b):
    return b if b is None or type(b) in (int, float) else convert_to_tensor(b)


def clip(x, x_min, x_max) -> Array:
    """`x` limited to [x_min, x_max], in its dtype."""
    x = _no_bool(x)
    return cast_to(pointwise.clip(x, _bound(x_min), _bound(x_max)), x.dtype)


def nan_to_num(x, nan=0.0, posinf=None, neginf=None) -> Array:
    """`x` with NaN and infinities replaced."""
    return pointwise.nan_to_num(convert_to_tensor(x), nan, posinf, neginf)


def round(x, decimals=0) -> Array | SparseArray:
    """`x` rounded to `decimals` places, halves to even."""
    if type(x) is SparseArray:
        return sparse.mapped(round, x, decimals)
    x = convert_to_tensor(x)
    return cast_to(x, int32) if x.dtype.is_bool else pointwise.round(x, decimals)


def view(x, dtype=None) -> Array:
    """The bytes of `x` read as another dtype; the last axis grows or shrinks with its size."""
    x = convert_to_tensor(x)
    return x if dtype is None else bits.view(x, find_dtype(dtype))


def where(condition, x1=None, x2=None):
    """`x1` where `condition` holds, else `x2`; without them, the coordinates where it holds."""
    condition = convert_to_tensor(condition)
    if x1 is None or x2 is None:
        return indexing.nonzero(condition)
    if not condition.dtype.is_bool:
        condition = cast_to(condition, bool_)
    return pointwise.where(condition, *operands(x1, x2))


def select(condlist, choicelist, default=0) -> Array:
    """The choice of the first condition that holds, else `default`."""
    conditions = [cast_to(convert_to_tensor(c), bool_) for c in condlist]
    choices = [convert_to_tensor(c) for c in choicelist]
    if type(default) not in (int, float, bool):
        default = convert_to_tensor(default)
    kinds: list[Any] = [x.dtype for x in choices]
    kinds.append(default.dtype if isinstance(default, Array) else type(default))
    dtype = resolve(*kinds)
    choices = [cast_to(x, dtype) for x in choices]
    return pointwise.select(conditions, choices, convert_to_tensor(default, dtype))
