"""Elementwise operations.

Operands are read before broadcasting, which ONNX' operators do themselves, in the order of axes
that the largest one lies in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from kerascl.core.op import CONST
from kerascl.dtypes import DType, bool_, float32, int32, int64
from kerascl.onnx.exporter.graph import Graph, Order
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.table import RULES, named, rule
from kerascl.onnx.exporter.sizes import Shape
from kerascl.ops.declare import CAST
from kerascl.ops.views import EXPAND, RESHAPE

# (graph, dtype of the result, operands) -> result
Formula: TypeAlias = Callable[..., str]


def declare(names: str, formula: Formula, *, wide: bool = False) -> None:
    """The rule of elementwise operations.

    Args:
        names: of the operations.
        formula: adds the nodes; `formula(g, dtype, *operands)`, where dtype is the first operand's.
        wide: whether it is several operators, between which 16-bit floats are not rounded.
    """

    def apply(g: Graph, v: Value) -> None:
        order, shape, operands = read(g, v)
        dtype = v.inputs[0].dtype if v.inputs else v.dtype
        narrow = dtype.is_float and dtype.itemsize < 4 and wide
        if narrow:
            operands = [g.cast(x, float32) for x in operands]
        name = formula(g, float32 if narrow else dtype, *operands)
        if narrow and v.dtype.is_float:
            name = g.cast(name, v.dtype)
        g.bind(v, name, order, shape)

    for op in named(*names.split()):
        RULES[op] = apply


def read(g: Graph, v: Value) -> tuple[Order, Shape, list[str]]:
    """The operands of an elementwise Value, their order of axes, and the shape they broadcast to
    in the Value's own order."""
    order = next((o for x in v.inputs if (o := g.order(x)) is not None), None)
    rank = len(v.shape)
    order = tuple(range(rank)) if order is None else order
    shapes = [s for x in v.inputs if (s := g.form(x).shape)]
    if not shapes:
        return (), (), [g.narrow(x) for x in v.inputs]
    shape = tuple(n if any(s[a] != 1 for s in shapes) else 1 for a, n in enumerate(v.shape))
    sources = [_without_leading_ones(g, x) for x in v.inputs]
    whole = [y for x, y in zip(sources, v.inputs, strict=True) if x is y and g.form(y).shape]
    if order != tuple(range(rank)) or not whole:  # the result has every axis
        sources = list(v.inputs)
    return order, shape, [
        g.narrow(x, order if x is y else None) for x, y in zip(sources, v.inputs, strict=True)
    ]


def _without_leading_ones(g: Graph, x: Value) -> Value:
    """A weight as it is, where only axes of size 1 were put before its own."""
    inner = x
    while inner.op is EXPAND:
        (inner,) = inner.inputs
    if inner.op is RESHAPE and g.is_constant(inner):
        (source,) = inner.inputs
        more = len(inner.shape) - len(source.shape)
        if more > 0 and inner.shape == (1,) * more + source.shape:
            return source
    return x


def operator(kind: str, **attributes: Any) -> Formula:
    """One operator of ONNX."""
    return lambda g, dtype, *x: g.add(kind, *x, **attributes)


def first(g: Graph, dtype: DType, *x: str) -> str:
    """The operand itself."""
    return x[0]


for _names, _kind in {
    "absolute absolute_int": "Abs", "add add_int": "Add", "add_bool": "Or", "arccos": "Acos",
    "arccosh": "Acosh", "arcsin": "Asin", "arcsinh": "Asinh", "arctan": "Atan",
    "arctanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "divide": "Div",
    "equal": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "isnan": "IsNaN",
    "log": "Log", "logical_and multiply_bool": "And", "logical_not": "Not", "logical_or": "Or",
    "logical_xor": "Xor", "multiply multiply_int": "Mul", "negative": "Neg",
    "power power_int": "Pow",
    "reciprocal": "Reciprocal", "relu": "Relu", "rint": "Round", "sigmoid": "Sigmoid",
    "sign sign_int": "Sign", "sin": "Sin", "sinh": "Sinh", "softplus": "Softplus", "sqrt": "Sqrt",
    "subtract subtract_int": "Sub", "tan": "Tan", "tanh": "Tanh", "where": "Where",
}.items():  # fmt: skip
    declare(_names, operator(_kind))

declare("absolute_uint ceil_int floor_int trunc_int", first)
declare("isinf", operator("IsInf"))
declare("isposinf", operator("IsInf", detect_negative=0))
declare("isneginf", operator("IsInf", detect_positive=0))


@rule(CAST)
def _cast(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    form = g.form(x)
    order = g.order(x)
    g.bind(v, g.cast(g.narrow(x, order), v.dtype), order, form.shape)


def _ordered(kind: str) -> Formula:
    """A comparison, which ONNX does not define of bools."""

    def formula(g: Graph, dtype: DType, a: str, b: str) -> str:
        if dtype is bool_:
            a, b = g.cast(a, int32), g.cast(b, int32)
        return g.add(kind, a, b)

    return formula


declare("greater", _ordered("Greater"))
declare("greater_equal", _ordered("GreaterOrEqual"))
declare("less", _ordered("Less"))
declare("less_equal", _ordered("LessOrEqual"))
declare("not_equal", lambda g, t, a, b: g.add("Not", g.add("Equal", a, b)))


def _larger(kind: str, of_bools: str) -> Formula:
    return lambda g, t, a, b: g.add(of_bools if t is bool_ else kind, a, b)


declare("maximum maximum_int fmax_int", _larger("Max", "Or"))
declare("minimum minimum_int fmin_int", _larger("Min", "And"))


def _number_wins(kind: str) -> Formula:
    def formula(g: Graph, dtype: DType, a: str, b: str) -> str:
        some = g.add("Where", g.add("IsNaN", b), a, g.add(kind, a, b))
        return g.add("Where", g.add("IsNaN", a), b, some)

    return formula


declare("fmax", _number_wins("Max"))
declare("fmin", _number_wins("Min"))


# -- arithmetic ---------------------------------------------------------------
def _bitwise(kind: str, of_bools: str) -> Formula:
    return lambda g, t, *x: g.add(of_bools if t is bool_ else kind, *x)


declare("bitwise_and", _bitwise("BitwiseAnd", "And"))
declare("bitwise_or", _bitwise("BitwiseOr", "Or"))
declare("bitwise_xor", _bitwise("BitwiseXor", "Xor"))
declare("bitwise_not", _bitwise("BitwiseNot", "Not"))
declare("negative_int", lambda g, t, x: g.add("Sub", g.constant(0, t), x))
declare("square square_int", lambda g, t, x: g.add("Mul", x, x))
declare("cube", lambda g, t, x: g.add("Mul", g.add("Mul", x, x), x), wide=True)
declare("rsqrt", lambda g, t, x: g.add("Reciprocal", g.add("Sqrt", x)), wide=True)


def _left_shift(g: Graph, t: DType, x: str, bits: str) -> str:
    if t.kind == "u":
        return g.add("BitShift", x, bits, direction="LEFT")
    wide = g.add("Mul", g.cast(x, int64), _power_of_two(g, bits, 8 * t.itemsize))
    if t.itemsize < 8:  # wraps around
        half = g.constant(2 ** (8 * t.itemsize - 1), int64)
        whole = g.constant(2 ** (8 * t.itemsize), int64)
        wide = g.add("Sub", g.add("Mod", g.add("Add", wide, half), whole), half)
    return g.cast(wide, t)


def _right_shift(g: Graph, t: DType, x: str, bits: str) -> str:
    if t.kind == "u":
        return g.add("BitShift", x, bits, direction="RIGHT")
    wide, by = g.cast(x, int64), _power_of_two(g, bits, min(8 * t.itemsize, 62))
    return g.cast(g.add("Div", g.add("Sub", wide, g.add("Mod", wide, by)), by), t)


def _power_of_two(g: Graph, exponent: str, most: int) -> str:
    exponent = g.add("Min", g.cast(exponent, int64), g.constant(most, int64))
    return g.add("Pow", g.constant(2, int64), exponent)


declare("left_shift", _left_shift)
declare("right_shift", _right_shift)


def _ldexp(g: Graph, t: DType, x: str, exponent: str) -> str:
    return g.add("Mul", x, g.add("Pow", g.constant(2, t), g.cast(exponent, t)))


def _cbrt(g: Graph, t: DType, x: str) -> str:
    root = g.add("Pow", g.add("Abs", x), g.constant(1 / 3, t))
    return g.add("Mul", g.add("Sign", x), root)


declare("ldexp", _ldexp)
declare("cbrt", _cbrt, wide=True)


def _scaled(factor: float) -> Formula:
    return lambda g, t, x: g.add("Mul", x, g.constant(factor, t))


declare("deg2rad", _scaled(math.pi / 180))
declare("rad2deg", _scaled(180 / math.pi))
declare("exp2", lambda g, t, x: g.add("Pow", g.constant(2, t), x))
declare("log2", lambda g, t, x: _scaled(1 / math.log(2))(g, t, g.add("Log", x)), wide=True)
declare("log10", lambda g, t, x: _scaled(1 / math.log(10))(g, t, g.add("Log", x)), wide=True)


def _hypot(g: Graph, t: DType, a: str, b: str) -> str:
    a, b = g.add("Abs", a), g.add("Abs", b)
    top = g.add("Max", a, b)
    none = g.add("Equal", top, g.constant(0, t))
    safe = g.add("Where", none, g.constant(1, t), top)
    squares = []
    for x in (a, b):
        share = g.add("Div", x, safe)
        squares.append(g.add("Mul", share, share))
    length = g.add("Mul", top, g.add("Sqrt", g.add("Add", *squares)))
    return g.add("Where", g.add("IsInf", top), top, length)


declare("hypot", _hypot, wide=True)


def expm1(g: Graph, t: DType, x: str) -> str:
    """exp(x) - 1; near zero by tanh, which keeps its digits."""
    half = g.add("Tanh", g.add("Mul", x, g.constant(0.5, t)))
    one = g.constant(1, t)
    near = g.add("Div", g.add("Add", half, half), g.add("Sub", one, half))
    far = g.add("Sub", g.add("Exp", x), one)
    return g.add("Where", g.add("Less", g.add("Abs", x), one), near, far)


def log1p(g: Graph, t: DType, x: str) -> str:
    """log(1 + x), made right by what the sum 1 + x lost."""
    one = g.constant(1, t)
    total = g.add("Add", one, x)
    gained = g.add("Sub", total, one)
    exact = g.add("Or", g.add("Equal", gained, g.constant(0, t)), g.add("Equal", gained, x))
    safe = g.add("Where", exact, one, gained)
    right = g.add("Mul", g.add("Log", total), g.add("Div", x, safe))
    plain = g.add("Where", g.add("Equal", total, one), x, g.add("Log", total))
    return g.add("Where", exact, plain, right)


declare("expm1", expm1, wide=True)
declare("log1p", log1p, wide=True)


def logaddexp(g: Graph, t: DType, a: str, b: str, unit: float = 1) -> str:
    """log(exp(a) + exp(b)), of exponents and logarithms in some unit."""
    alike = g.add("Equal", a, b)  # infinities must not be subtracted
    gap = g.add("Where", alike, g.constant(0, t), g.add("Abs", g.add("Sub", a, b)))
    if unit != 1:
        gap = g.add("Mul", gap, g.constant(unit, t))
    more = g.add("Softplus", g.add("Neg", gap))
    if unit != 1:
        more = g.add("Mul", more, g.constant(1 / unit, t))
    return g.add("Add", g.add("Max", a, b), more)


declare("logaddexp", logaddexp, wide=True)
declare("logaddexp2", lambda g, t, a, b: logaddexp(g, t, a, b, math.log(2)), wide=True)


# -- quotients and remainders -------------------------------------------------
def _remainder(g: Graph, t: DType, a: str, b: str) -> str:
    """The remainder with the sign of the divisor."""
    rest = g.add("Mod", a, b, fmod=1)
    zero = g.constant(0, t)
    apart = g.add("Xor", g.add("Less", rest, zero), g.add("Less", b, zero))
    moved = g.add("And", apart, g.add("Not", g.add("Equal", rest, zero)))
    return g.add("Where", moved, g.add("Add", rest, b), rest)


def _quotient(g: Graph, t: DType, a: str, b: str) -> str:
    rest = _remainder(g, t, a, b)
    whole = g.add("Round", g.add("Div", g.add("Sub", a, rest), b))
    by_zero = g.add("Equal", b, g.constant(0, t))
    return g.add("Where", by_zero, g.add("Div", a, b), whole)


declare("mod", _remainder, wide=True)
declare("floor_divide", _quotient, wide=True)
declare("fmod", operator("Mod", fmod=1))


def _by_nonzero(formula: Formula) -> Formula:
    """Integers divided by 0 give 0."""

    def safe(g: Graph, t: DType, a: str, b: str) -> str:
        zero = g.constant(0, t)
        none = g.add("Equal", b, zero)
        found = formula(g, t, a, g.add("Where", none, g.constant(1, t), b))
        return g.add("Where", none, zero, found)

    return safe


def _whole_quotient(g: Graph, t: DType, a: str, b: str) -> str:
    return g.add("Div", g.add("Sub", a, g.add("Mod", a, b)), b)


declare("mod_int", _by_nonzero(operator("Mod")))
declare("fmod_int", _by_nonzero(operator("Mod", fmod=1)))
declare("floor_divide_int", _by_nonzero(_whole_quotient))


# -- signs and limits ---------------------------------------------------------
def _trunc(g: Graph, t: DType, x: str) -> str:
    return g.add("Mul", g.add("Sign", x), g.add("Floor", g.add("Abs", x)))


def _signbit(g: Graph, t: DType, x: str) -> str:
    below = g.add("Less", x, g.constant(0, t))
    return g.add("Or", below, g.add("Less", g.add("Reciprocal", x), g.constant(0, t)))


def _heaviside(g: Graph, t: DType, x: str, at: str) -> str:
    zero = g.constant(0, t)
    step = g.cast(g.add("Greater", x, zero), t)
    step = g.add("Where", g.add("Equal", x, zero), at, step)
    return g.add("Where", g.add("IsNaN", x), x, step)


def _arctan2(g: Graph, t: DType, y: str, x: str) -> str:
    zero, half, turn = g.constant(0, t), g.constant(math.pi / 2, t), g.constant(math.pi, t)
    up = g.add("Where", _signbit(g, t, y), g.add("Neg", turn), turn)
    flat = g.add("Equal", x, zero)
    plain = g.add("Atan", g.add("Div", y, g.add("Where", flat, g.constant(1, t), x)))
    left = g.add("Where", _signbit(g, t, x), g.add("Add", plain, up), plain)
    upright = g.add("Mul", g.add("Sign", y), half)
    on_axis = g.add("And", flat, g.add("Not", g.add("Equal", y, zero)))
    return g.add("Where", on_axis, upright, left)


def _sinc(g: Graph, t: DType, x: str) -> str:
    none = g.add("Equal", x, g.constant(0, t))
    angle = g.add("Mul", x, g.constant(math.pi, t))
    safe = g.add("Where", none, g.constant(1, t), angle)
    return g.add("Where", none, g.constant(1, t), g.add("Div", g.add("Sin", safe), safe))


def _copysign(g: Graph, t: DType, x: str, like: str) -> str:
    size = g.add("Abs", x)
    return g.add("Where", _signbit(g, t, like), g.add("Neg", size), size)


declare("copysign", _copysign)
declare("trunc", _trunc)
declare("signbit", _signbit)
declare("signbit_int", lambda g, t, x: g.add("Less", x, g.constant(0, t)))
declare("clip", lambda g, t, x, low, high: g.add("Min", g.add("Max", x, low), high))
declare("heaviside", _heaviside)
declare("arctan2", _arctan2, wide=True)
declare("sinc", _sinc, wide=True)
declare(
    "isfinite", lambda g, t, x: g.add("Not", g.add("Or", g.add("IsInf", x), g.add("IsNaN", x)))
)
declare("isfinite_int", lambda g, t, x: g.add("Equal", x, x))
declare("isreal", lambda g, t, x: g.add("Or", (y := g.add("Equal", x, x)), g.add("Not", y)))
declare(
    "isinf_int isnan_int isposinf_int isneginf_int",
    lambda g, t, x: g.add("Not", g.add("Equal", x, x)),
)


# -- activations --------------------------------------------------------------
def normal_cdf(g: Graph, t: DType, x: str) -> str:
    """P(normal <= x)."""
    scaled = g.add("Mul", x, g.constant(math.sqrt(0.5), t))
    return g.add("Mul", g.add("Add", g.add("Erf", scaled), g.constant(1, t)), g.constant(0.5, t))


def _gelu(g: Graph, t: DType, x: str) -> str:
    if g.opset >= 20:
        return g.add("Gelu", x)
    return g.add("Mul", x, normal_cdf(g, t, x))


def _gelu_gradient(g: Graph, t: DType, y: str, x: str) -> str:
    power = g.add("Mul", g.add("Mul", x, x), g.constant(-0.5, t))
    density = g.add("Mul", g.add("Exp", power), g.constant(1 / math.sqrt(2 * math.pi), t))
    return g.add("Mul", y, g.add("Add", normal_cdf(g, t, x), g.add("Mul", x, density)))


def _gelu_sigmoid(g: Graph, t: DType, x: str) -> str:
    cube = g.add("Mul", g.add("Mul", x, x), x)
    inner = g.add("Add", x, g.add("Mul", cube, g.constant(0.044715, t)))
    return g.add("Sigmoid", g.add("Mul", inner, g.constant(2 * math.sqrt(2 / math.pi), t)))


def _gelu_tanh(g: Graph, t: DType, x: str) -> str:
    if g.opset >= 20:
        return g.add("Gelu", x, approximate="tanh")
    return g.add("Mul", x, _gelu_sigmoid(g, t, x))


def _gelu_tanh_gradient(g: Graph, t: DType, y: str, x: str) -> str:
    s, lean = _gelu_sigmoid(g, t, x), 2 * math.sqrt(2 / math.pi)
    bend = g.add("Mul", g.add("Mul", x, x), g.constant(3 * 0.044715 * lean, t))
    slope = g.add("Mul", x, g.add("Add", bend, g.constant(lean, t)))
    more = g.add("Mul", g.add("Sub", g.constant(1, t), s), slope)
    return g.add("Mul", y, g.add("Mul", s, g.add("Add", more, g.constant(1, t))))


def _elu(g: Graph, t: DType, x: str, alpha: str) -> str:
    zero = g.constant(0, t)
    low = g.add("Mul", alpha, expm1(g, t, g.add("Min", x, zero)))
    return g.add("Where", g.add("Greater", x, zero), x, low)


def _leaky(g: Graph, t: DType, x: str, alpha: str) -> str:
    return g.add("Where", g.add("Less", x, g.constant(0, t)), g.add("Mul", x, alpha), x)


def _binary_crossentropy(g: Graph, t: DType, target: str, x: str) -> str:
    return g.add("Sub", g.add("Softplus", x), g.add("Mul", x, target))


declare("relu6", lambda g, t, x: g.add("Clip", x, g.constant(0, t), g.constant(6, t)))
declare("silu", lambda g, t, x: g.add("Mul", x, g.add("Sigmoid", x)), wide=True)
declare("normal_cdf", normal_cdf, wide=True)
declare("gelu", _gelu, wide=True)
declare("gelu_tanh", _gelu_tanh, wide=True)
declare("gelu_gradient", _gelu_gradient, wide=True)
declare("gelu_tanh_gradient", _gelu_tanh_gradient, wide=True)
declare("elu", _elu, wide=True)
declare("leaky_relu", _leaky, wide=True)


def _with_attribute(name: str, kind: str) -> None:
    """ONNX' operator, whose slope is an attribute, where it is a constant."""
    (op,) = named(name)
    general = RULES[op]

    def apply(g: Graph, v: Value) -> None:
        x, alpha = v.inputs
        if alpha.op is not CONST or v.dtype.itemsize < 4:
            general(g, v)
            return
        form, order = g.form(x), g.order(x)
        made = g.add(kind, g.narrow(x, order), alpha=float(alpha.attrs[0]))
        g.bind(v, made, order, form.shape)

    RULES[op] = apply


_with_attribute("elu", "Elu")
_with_attribute("leaky_relu", "LeakyRelu")
declare("binary_crossentropy_logits", _binary_crossentropy, wide=True)
