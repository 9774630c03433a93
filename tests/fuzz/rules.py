"""What each operation of a random program does to NumPy's value and to its error bound.

A rule draws its parameters and gives the value and the text of the call: {0}, {1} … are the
operands, and `xp` is kerascl there and NumPy where the text moves elements only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import kerascl as kc
from tests.fuzz.moves import MOVES, listed
from tests.fuzz.values import (
    EPS,
    FLOATS,
    INTEGERS,
    LARGEST,
    Draw,
    Value,
    common,
    converted,
    require,
    rounded,
)


@dataclass(frozen=True)
class Rule:
    """Of `count` operands; `special`: these may hold infinities and NaN."""

    count: int
    apply: Callable[..., tuple[Value, str]]
    special: bool = False
    weight: int = 1


RULES: dict[str, Rule] = {}


def rule(count: int, name: str = "", special: bool = False, weight: int = 1):
    def add(function):
        RULES[name or function.__name__] = Rule(count, function, special, weight)
        return function

    return add


def _spread(*values: Value) -> list[np.ndarray]:
    return np.broadcast_arrays(*(v.error for v in values))


def _float(x: Value) -> Value:
    return converted(x, x.dtype if x.is_float else "float32")


# -- functions of one element
def _smooth(name, reference, slope, most=LARGEST, low=-math.inf, module="kc"):
    """A transcendental function with |derivative| <= slope where low <= x <= most."""

    def apply(draw, x):
        x = _float(x)
        require(np.all((np.abs(x.array) <= most) & (x.array - x.error >= low)))
        return rounded(x.dtype, reference(x.array), slope * x.error, 8), f"{module}.{name}({{0}})"

    RULES[name] = Rule(1, apply)


_smooth("sin", np.sin, 1)
_smooth("cos", np.cos, 1)
_smooth("tanh", np.tanh, 1)
_smooth("arctan", np.arctan, 1)
_smooth("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 1, 50)
_smooth("exp", np.exp, np.exp(4.5), 4)
_smooth("expm1", np.expm1, np.exp(4.5), 4)
_smooth("exp2", np.exp2, 2**4.5, 4)
_smooth("log", np.log, 4, low=0.25)
_smooth("log1p", np.log1p, 2, low=-0.5)
_smooth("rsqrt", lambda x: 1 / np.sqrt(x), 4, low=0.25)
_smooth("arcsinh", np.arcsinh, 1)
_smooth("softplus", lambda x: np.logaddexp(x, 0), 1, 50, module="kc.nn")
_smooth("silu", lambda x: x / (1 + np.exp(-x)), 1.1, 50, module="kc.nn")
_smooth("erf", np.vectorize(math.erf, otypes=[float]), 1.13)


@rule(1, weight=2)
def relu(draw, x):
    require(x.is_float)
    return Value(x.dtype, np.maximum(x.array, x.array.dtype.type(0)), x.error), "kc.nn.relu({0})"


@rule(1)
def root(draw, x):
    require(x.is_float)
    error = (2 * np.abs(x.array) + x.error) * x.error
    inside = rounded(x.dtype, x.array**2 + 1, error, 3)
    return rounded(x.dtype, np.sqrt(inside.array), inside.error, 6), "kc.sqrt({0} * {0} + 1)"


def _exactly(name, reference, special=False):
    """A function with steps: only of exact floats."""

    def apply(draw, x):
        require(x.is_float and x.exact)
        return rounded(x.dtype, reference(x.array)), f"kc.{name}({{0}})"

    RULES[name] = Rule(1, apply, special)


for _name in ("floor", "ceil", "trunc", "sign"):
    _exactly(_name, getattr(np, _name), True)
_exactly("round", np.round)


@rule(1, special=True, weight=3)
def negative(draw, x):
    require(x.dtype != "bool")
    return Value(x.dtype, -x.array, x.error), "-{0}"


@rule(1, special=True)
def absolute(draw, x):
    require(x.dtype != "bool")
    return Value(x.dtype, np.abs(x.array), x.error), "kc.absolute({0})"


@rule(1)
def square(draw, x):
    require(x.dtype != "bool")
    if not x.is_float:
        return Value(x.dtype, np.square(x.array)), "kc.square({0})"
    error = (2 * np.abs(x.array) + x.error) * x.error
    return rounded(x.dtype, x.array**2, error), "kc.square({0})"


@rule(1, weight=3)
def bitwise_not(draw, x):
    require(not x.is_float)
    return Value(x.dtype, ~x.array), "~{0}"


@rule(1, special=True)
def logical_not(draw, x):
    require(x.exact)
    return Value("bool", x.array == 0), "kc.logical_not({0})"


@rule(1, special=True)
def kind_of_number(draw, x):
    require(x.is_float and x.exact)
    name = draw.choice(["isnan", "isinf", "isfinite", "isposinf", "isneginf"])
    return Value("bool", getattr(np, name)(x.array)), f"kc.{name}({{0}})"


@rule(1, special=True)
def nan_to_num(draw, x):
    require(x.is_float)
    array = np.nan_to_num(x.array, nan=0.5, posinf=8, neginf=-8)
    error = np.where(np.isfinite(x.array), x.error, 0)
    return Value(x.dtype, array, error), "kc.nan_to_num({0}, nan=0.5, posinf=8, neginf=-8)"


@rule(1, weight=2)
def cast(draw, x):
    dtype = draw.choice(["bool", *INTEGERS, *FLOATS])
    return converted(x, dtype), f"kc.cast({{0}}, '{dtype}')"


@rule(1, weight=2)
def with_scalar(draw, x):
    require(x.dtype != "bool")
    if x.is_float:
        by, add = draw.choice([0.5, -2, 3, 0.1, -1]), draw.choice([1, -0.25])
        scaled = rounded(x.dtype, x.array * by, abs(by) * x.error, 1 if by != 0.1 else 3)
        return rounded(x.dtype, scaled.array + add, scaled.error), f"({{0}} * {by} + {add})"
    by = draw.randint(2, 5)
    return Value(x.dtype, x.array * x.array.dtype.type(by)), f"({by} * {{0}})"


@rule(1, special=True)
def clip(draw, x):
    require(x.dtype != "bool")
    low, high = (-1, 2) if not x.dtype.startswith("u") else (1, 5)
    return Value(x.dtype, np.clip(x.array, low, high), x.error), f"kc.clip({{0}}, {low}, {high})"


# -- functions of two and three elements
def _arithmetic(name, reference, error, special=False, weight=2):
    def apply(draw, x, y):
        x, y = common(x, y)
        if not x.is_float:
            require(x.dtype != "bool" or name != "subtract")
            return Value(x.dtype, reference(x.array, y.array)), f"kc.{name}({{0}}, {{1}})"
        value = reference(x.array, y.array)
        return rounded(x.dtype, value, error(x, y)), f"kc.{name}({{0}}, {{1}})"

    RULES[name] = Rule(2, apply, special, weight)


def _larger(x, y):
    return np.maximum(*_spread(x, y))


_arithmetic("add", np.add, lambda x, y: x.error + y.error, True)
_arithmetic("subtract", np.subtract, lambda x, y: x.error + y.error, True)
for _name in ("maximum", "minimum"):
    _arithmetic(_name, getattr(np, _name), _larger, True, 3)
for _name in ("fmax", "fmin"):
    _arithmetic(_name, getattr(np, _name), _larger, True, 1)
_arithmetic(
    "multiply", np.multiply,
    lambda x, y: np.abs(x.array) * y.error + np.abs(y.array) * x.error + x.error * y.error,
)  # fmt: skip


@rule(2)
def divide(draw, x, y):
    x, y = common(x, y)
    require(x.is_float)
    low = np.abs(y.array) - y.error
    require(np.all(low >= 0.25))
    value = x.array / y.array
    return rounded(x.dtype, value, (x.error + np.abs(value) * y.error) / low, 4), "({0} / {1})"


def _integer_pair(name, reference, bools=False):
    def apply(draw, x, y):
        x, y = common(x, y)
        require(not x.is_float and (bools or x.dtype != "bool"))
        return Value(x.dtype, reference(x.array, y.array)), f"kc.{name}({{0}}, {{1}})"

    RULES[name] = Rule(2, apply)


_integer_pair("floor_divide", np.floor_divide)
_integer_pair("mod", np.mod)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _integer_pair(_name, getattr(np, _name), True)


def _shift(name, reference):
    def apply(draw, x, y):
        require(not y.is_float and y.dtype != "bool")
        x, y = common(x, y)
        require(not x.is_float and x.dtype != "bool")
        return Value(x.dtype, reference(x.array, y.array & 7)), f"kc.{name}({{0}}, {{1}} & 7)"

    RULES[name] = Rule(2, apply)


_shift("left_shift", np.left_shift)
_shift("right_shift", np.right_shift)


def _comparison(name):
    def apply(draw, x, y):
        text = f"kc.{name}({{0}}, {{1}})"
        if not name.startswith("logical"):
            x, y = common(x, y)
        require(x.exact and y.exact)
        reference = getattr(np, name)
        if name.startswith("logical"):
            return Value("bool", reference(x.array != 0, y.array != 0)), text
        return Value("bool", reference(x.array, y.array)), text

    RULES[name] = Rule(2, apply, True)


for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
              "logical_and", "logical_or", "logical_xor"):  # fmt: skip
    _comparison(_name)


@rule(3, special=True, weight=4)
def where(draw, c, x, y):
    require(c.exact)
    x, y = common(x, y)
    condition = c.array != 0
    error = np.where(condition, x.error, y.error) if x.is_float else 0.0
    return Value(x.dtype, np.where(condition, x.array, y.array), error), "kc.where({0}, {1}, {2})"


@rule(2, special=True, weight=3)
def choose(draw, x, y):
    """A comparison and a choice of what it compared."""
    x, y = common(x, y)
    require(x.exact and y.exact and x.dtype != "bool")
    sign = draw.choice(["<", "<=", ">", "==", "!="])
    chosen = eval(f"x {sign} y", {"x": x.array, "y": y.array})
    value = np.where(chosen, y.array, x.array)
    return Value(x.dtype, value), f"kc.where({{0}} {sign} {{1}}, {{1}}, {{0}})"


# -- reductions, scans, order and products
RULES |= {name: Rule(count, move, True, weight) for name, (count, move, weight) in MOVES.items()}


def _axes(draw, shape):
    if draw.boolean(0.4):
        return None
    return tuple(a for a in range(len(shape)) if draw.boolean())


def _count(shape, axis) -> int:
    return math.prod(shape) if axis is None else math.prod(shape[a] for a in axis)


def _given(function, dtype: str) -> str:
    """The dtype that kerascl gives the result of `function`: its own tests are about that."""
    return function(kc.zeros((1,), dtype)).dtype.name


SUMS = {d: _given(kc.sum, d) for d in ("bool", *INTEGERS)}
PRODUCTS = {d: _given(kc.prod, d) for d in INTEGERS}
SCANS = {d: _given(kc.cumsum, d) for d in ("bool", *INTEGERS)}
_PLACES = _given(kc.argmax, "float32")
_COUNTS = _given(kc.count_nonzero, "float32")
_ORDERS = _given(kc.argsort, "float32")


def _summed(x: Value, reference, count: int) -> Value:
    """A sum of `count` terms; added up in float32 at least, in any order."""
    unit = min(EPS[x.dtype], EPS["float32"])
    gathered = count * unit * reference(np.abs(x.array) + x.error)
    return rounded(x.dtype, reference(x.array), reference(x.error) + gathered, 2)


@rule(1, "sum", weight=4)
def _sum(draw, x):
    axis, keep = _axes(draw, x.shape), draw.boolean()
    text = f"kc.sum({{0}}, {axis}, keepdims={keep})"
    if not x.is_float:
        dtype = SUMS[x.dtype]
        return Value(dtype, np.sum(x.array, axis, dtype=dtype, keepdims=keep)), text
    total = lambda a: np.sum(a, axis, keepdims=keep)  # noqa: E731
    return _summed(x, total, _count(x.shape, axis)), text


@rule(1, weight=3)
def mean(draw, x):
    x = _float(x)
    axis, keep = _axes(draw, x.shape), draw.boolean()
    require(x.array.size)
    value = _summed(x, lambda a: np.mean(a, axis, keepdims=keep), _count(x.shape, axis))
    return value, f"kc.mean({{0}}, {axis}, keepdims={keep})"


def _moments(x: Value, axis) -> tuple[np.ndarray, np.ndarray, Value]:
    """Distances from the mean, their error, and the variance."""
    count = _count(x.shape, axis)
    unit = min(EPS[x.dtype], EPS["float32"])
    most = np.max(np.abs(x.array) + x.error, axis, keepdims=True)
    error = 2 * np.max(x.error, axis, keepdims=True) + (count * unit + 2 * EPS[x.dtype]) * most
    far = x.array - np.mean(x.array, axis, keepdims=True)
    inner = np.mean((2 * np.abs(far) + error) * error, axis, keepdims=True)
    value = np.mean(far**2, axis, keepdims=True)
    return far, error, rounded(x.dtype, value, inner + 2 * count * unit * value, 4)


@rule(1)
def var(draw, x):
    x = _float(x)
    axis = _axes(draw, x.shape)
    require(x.array.size)
    value = _moments(x, axis)[2]
    return value, f"kc.var({{0}}, {axis}, keepdims=True)"


@rule(1)
def normalised(draw, x):
    """What a layer's normalisation does to rows."""
    require(x.is_float and x.shape and x.array.size)
    far, error, square = _moments(x, (-1,))
    root = 1 / np.sqrt(square.array + 1)
    bound = 2 * error * root + (np.abs(far) + error) * 0.5 * square.error
    text = "({0} - kc.mean({0}, -1, keepdims=True)) * kc.rsqrt(kc.var({0}, -1, keepdims=True) + 1)"
    return rounded(x.dtype, far * root, bound, 8), f"({text})"


def _softmax(x: Value, axis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, their logarithms, and the error of these."""
    require(x.is_float and x.shape and x.array.size)
    shifted = x.array - np.max(x.array, axis, keepdims=True)
    unit = EPS[x.dtype] * (8 + np.max(np.abs(shifted), axis, keepdims=True))
    count = _count(x.shape, axis if isinstance(axis, tuple) else (axis,))
    unit = unit + min(EPS[x.dtype], EPS["float32"]) * count
    error = 2 * np.max(x.error, axis, keepdims=True) + 4 * unit
    require(np.all(error < 0.25))
    logs = shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))
    return np.exp(logs), logs, error


@rule(1, weight=2)
def softmax(draw, x):
    require(x.shape)
    axis = draw.choice([-1, 0])
    p, _, error = _softmax(x, axis)
    return rounded(x.dtype, p, p * np.expm1(error), 8), f"kc.nn.softmax({{0}}, {axis})"


@rule(1)
def log_softmax(draw, x):
    require(x.shape)
    axis = draw.choice([-1, 0])
    _, logs, error = _softmax(x, axis)
    return rounded(x.dtype, logs, error, 8), f"kc.nn.log_softmax({{0}}, {axis})"


@rule(1)
def logsumexp(draw, x):
    require(x.shape)
    axis = draw.randint(0, len(x.shape) - 1)
    _, logs, error = _softmax(x, axis)
    value = np.max(x.array - logs, axis)  # they are all equal
    error = np.max(error, axis)
    return rounded(x.dtype, value, error, 8), f"kc.logsumexp({{0}}, {axis})"


@rule(1)
def prod(draw, x):
    require(not x.is_float and x.dtype != "bool")
    axis, dtype = _axes(draw, x.shape), PRODUCTS[x.dtype]
    return Value(dtype, np.prod(x.array, axis, dtype=dtype)), f"kc.prod({{0}}, {axis})"


def _extreme(name):
    def apply(draw, x):
        require(x.array.size)
        axis, keep = _axes(draw, x.shape), draw.boolean()
        value = getattr(np, name)(x.array, axis, keepdims=keep)
        error = np.max(x.error, axis, keepdims=keep) if x.is_float else 0
        return Value(x.dtype, value, error), f"kc.{name}({{0}}, {axis}, keepdims={keep})"

    RULES[name] = Rule(1, apply, True, 2)


_extreme("max")
_extreme("min")


def _logical(name):
    def apply(draw, x):
        require(x.exact)
        axis = _axes(draw, x.shape)
        return Value("bool", getattr(np, name)(x.array != 0, axis)), f"kc.{name}({{0}}, {axis})"

    RULES[name] = Rule(1, apply, True)


_logical("any")
_logical("all")


@rule(1, special=True)
def count_nonzero(draw, x):
    require(x.exact)
    axis = _axes(draw, x.shape)
    value = np.asarray(np.count_nonzero(x.array, axis), _COUNTS)
    return Value(_COUNTS, value), f"kc.count_nonzero({{0}}, {axis})"


def _place(name):
    def apply(draw, x):
        require(x.exact and x.array.size)
        axis = draw.choice([None, *range(len(x.shape))])
        value = np.asarray(getattr(np, name)(x.array, axis), _PLACES)
        return Value(_PLACES, value), f"kc.{name}({{0}}, {axis})"

    RULES[name] = Rule(1, apply, True)


_place("argmax")
_place("argmin")


@rule(1, weight=2)
def cumsum(draw, x):
    require(x.shape)
    axis = draw.randint(0, len(x.shape) - 1)
    text = f"kc.cumsum({{0}}, {axis})"
    if not x.is_float:
        dtype = SCANS[x.dtype]
        return Value(dtype, np.cumsum(x.array, axis, dtype=dtype)), text
    return _summed(x, lambda a: np.cumsum(a, axis), x.shape[axis]), text


@rule(1, special=True)
def cumulative_extreme(draw, x):
    require(x.shape and x.array.size and x.dtype != "bool")
    axis = draw.randint(0, len(x.shape) - 1)
    name, function = draw.choice([("cummax", np.maximum), ("cummin", np.minimum)])
    error = np.maximum.accumulate(x.error, axis) if x.is_float else 0.0
    return Value(x.dtype, function.accumulate(x.array, axis), error), f"kc.{name}({{0}}, {axis})"


@rule(1)
def cumprod(draw, x):
    require(x.shape and x.dtype in ("int32", "int64", "uint32", "uint64"))
    axis, dtype = draw.randint(0, len(x.shape) - 1), SCANS[x.dtype]
    return Value(dtype, np.cumprod(x.array, axis, dtype=dtype)), f"kc.cumprod({{0}}, {axis})"


@rule(1, special=True, weight=2)
def sort(draw, x):
    require(x.shape and (x.finite or x.exact))
    axis = draw.randint(0, len(x.shape) - 1)
    error = np.max(x.error, initial=0.0) if x.is_float else 0.0
    return Value(x.dtype, np.sort(x.array, axis), error), f"kc.sort({{0}}, {axis})"


@rule(1, special=True)
def argsort(draw, x):
    require(x.shape and x.exact)
    axis = draw.randint(0, len(x.shape) - 1)
    value = np.argsort(x.array, axis, kind="stable").astype(_ORDERS)
    return Value(_ORDERS, value), f"kc.argsort({{0}}, {axis})"


@rule(1)
def top_k(draw, x):
    require(x.shape and x.shape[-1] and x.dtype != "bool")
    k = draw.randint(1, x.shape[-1])
    error = np.max(x.error, initial=0.0) if x.is_float else 0.0
    value = np.sort(x.array, -1)[..., ::-1][..., :k]
    return Value(x.dtype, value, error), f"kc.top_k({{0}}, {k})[0]"


@rule(1)
def segment_sum(draw, x):
    require(x.shape and x.shape[0] and x.dtype in ("int32", "int64", "float32", "float64"))
    ids = [draw.randint(0, 4) for _ in range(x.shape[0])]
    text = f"kc.segment_sum({{0}}, {listed(ids)}, 5)"

    def total(a):
        y = np.zeros((5, *a.shape[1:]), a.dtype)
        np.add.at(y, ids, a)
        return y

    if not x.is_float:
        return Value(x.dtype, total(x.array)), text
    return _summed(x, total, x.shape[0]), text


@rule(2, weight=4)
def matmul(draw, x, y):
    x, y = common(x, y)
    require(len(x.shape) and len(y.shape) >= 2 and x.dtype != "bool")
    swap = y.shape[-1] == x.shape[-1] and draw.boolean()
    require(swap or y.shape[-2] == x.shape[-1])
    right = lambda y: np.swapaxes(y, -1, -2) if swap else y  # noqa: E731
    text = f"kc.matmul({{0}}, {'kc.swapaxes({1}, -1, -2)' if swap else '{1}'})"
    require(x.shape[:-2] == y.shape[:-2] or not x.shape[:-2] or not y.shape[:-2])
    value = np.matmul(x.array, right(y.array))
    if not x.is_float:
        return Value(x.dtype, value), text
    a, b = np.abs(x.array), np.abs(right(y.array))
    p, q = x.error, right(y.error)
    unit = min(EPS[x.dtype], EPS["float32"]) * (x.shape[-1] + 1)
    error = np.matmul(a, q) + np.matmul(p, b + q) + unit * np.matmul(a + p, b + q)
    return rounded(x.dtype, value, error, 2), text


def apply(name: str, draw: Draw, *values: Value) -> tuple[Value, str]:
    """The value of an operation, and its text.

    Raises:
        Unfit: the operation, with these parameters, is not for these operands.
    """
    chosen = RULES[name]
    require(chosen.special or all(v.finite for v in values))
    with np.errstate(all="ignore"):
        value, text = chosen.apply(draw, *values)
    if value.is_float:
        known = np.isfinite(value.array)
        value.error = np.where(known, value.error, 0.0)
        most = np.abs(np.where(known, value.array, 0)) + value.error
        require(np.all(most <= LARGEST))
        # an infinity or NaN that hangs on a value not known exactly
        require(np.all(known) or all(v.exact for v in values))
    return value, text
