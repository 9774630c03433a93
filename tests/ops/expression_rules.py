"""What each operation of a random expression does to NumPy's value and to its error bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import kerascl as kc
from kerascl import dtypes
from kerascl.runtime import device

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32"] + ["float64"] * device.default().info.fp64
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-52}
TINY = {"float16": 2.0**-24, "bfloat16": 1e-37, "float32": 1e-37, "float64": 1e-300}
LARGEST = 1000.0  # floats beyond it are not followed: float16 ends at 65504
SMALL = 256  # integers that every float dtype holds


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass
class Value:
    """What NumPy says: a float64 array with a bound for floats, else the array itself."""

    dtype: str
    array: np.ndarray
    error: np.ndarray | float = 0.0

    @property
    def is_float(self) -> bool:
        return self.dtype in EPS

    @property
    def exact(self) -> bool:
        return not self.is_float or not np.any(self.error)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


class Unfit(Exception):
    """This step does not fit these operands."""


def require(condition) -> None:
    if not condition:
        raise Unfit


def rounded(dtype: str, array, error=0.0, units: float = 1.0) -> Value:
    """A float result: exact if its dtype holds it and the operation rounds correctly (units 1)."""
    array = np.asarray(array, np.float64)
    error = np.asarray(error, np.float64) + np.zeros_like(array)
    with np.errstate(all="ignore"):
        held = array.astype(numpy_dtype(dtype)).astype(np.float64) == array
    own = units * EPS[dtype] * (np.abs(array) + error) + TINY[dtype]
    exact = held & (error == 0) if units <= 1 else np.zeros(array.shape, bool)
    return Value(dtype, array, np.where(exact, 0.0, error + own))


def converted(value: Value, dtype: str) -> Value:
    """`value` cast to `dtype`, where that is well defined."""
    if value.dtype == dtype:
        return value
    if dtype in EPS:
        if value.is_float:
            return rounded(dtype, value.array, value.error)
        require(value.dtype == "bool" or np.all(np.abs(value.array.astype(np.float64)) <= SMALL))
        return rounded(dtype, value.array.astype(np.float64))
    require(value.exact)
    if value.is_float and dtype != "bool":
        info = np.iinfo(dtype)
        require(np.all((value.array >= max(info.min, -1e6)) & (value.array <= min(info.max, 1e6))))
    with np.errstate(all="ignore"):
        return Value(dtype, value.array.astype(dtype))


def common(*values: Value) -> list[Value]:
    dtype = dtypes.promote(*(dtypes.BY_NAME[v.dtype] for v in values)).name
    return [converted(v, dtype) for v in values]


# -- operations: name -> rule(draw, values) -> (reference value, function on kerascl's arrays)
Rule = Callable[..., tuple[Value, Callable]]
RULES: dict[str, tuple[int, Rule]] = {}


def rule(count: int, name: str = ""):
    def add(function):
        RULES[name or function.__name__] = (count, function)
        return function

    return add


def _smooth(name, reference, slope, most=LARGEST):
    """A transcendental function with |derivative| <= slope where |x| <= most."""

    def apply(draw, x):
        x = converted(x, x.dtype if x.is_float else "float32")
        require(np.all(np.abs(x.array) <= most))
        return rounded(x.dtype, reference(x.array), slope * x.error, 8), getattr(kc, name)

    RULES[name] = (1, apply)


_smooth("sin", np.sin, 1)
_smooth("cos", np.cos, 1)
_smooth("tanh", np.tanh, 1)
_smooth("arctan", np.arctan, 1)
_smooth("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 1, 50)
_smooth("exp", np.exp, np.exp(4.5), 4)
_smooth("expm1", np.expm1, np.exp(4.5), 4)


@rule(1)
def root(draw, x):
    require(x.is_float)
    error = (2 * np.abs(x.array) + x.error) * x.error
    inside = rounded(x.dtype, x.array**2 + 1, error, 3)
    value = rounded(x.dtype, np.sqrt(inside.array), inside.error, 6)
    return value, lambda x: kc.sqrt(x * x + 1)


def _exactly(name, reference):
    """A function with steps: only of exact floats, or of integers."""

    def apply(draw, x):
        require(x.is_float and x.exact)
        return rounded(x.dtype, reference(x.array)), getattr(kc, name)

    RULES[name] = (1, apply)


for _name in ("floor", "ceil", "trunc", "sign"):
    _exactly(_name, getattr(np, _name))
_exactly("round", np.round)


@rule(1)
def negative(draw, x):
    require(x.dtype != "bool")
    return Value(x.dtype, -x.array, x.error), lambda x: -x


@rule(1)
def absolute(draw, x):
    require(x.dtype != "bool")
    return Value(x.dtype, np.abs(x.array), x.error), kc.absolute


@rule(1)
def square(draw, x):
    require(x.dtype != "bool")
    if not x.is_float:
        return Value(x.dtype, np.square(x.array)), kc.square
    return rounded(x.dtype, x.array**2, (2 * np.abs(x.array) + x.error) * x.error), kc.square


@rule(1)
def bitwise_not(draw, x):
    require(not x.is_float)
    return Value(x.dtype, ~x.array), lambda x: ~x


@rule(1)
def logical_not(draw, x):
    require(x.exact)
    return Value("bool", x.array == 0), kc.logical_not


@rule(1)
def cast(draw, x):
    dtype = draw(st.sampled_from(["bool", *INTEGERS, *FLOATS]))
    return converted(x, dtype), lambda x: kc.cast(x, dtype)


@rule(1)
def with_scalar(draw, x):
    require(x.dtype != "bool")
    if x.is_float:
        by, add = draw(st.sampled_from([0.5, -2, 3, 0.1])), draw(st.sampled_from([1, -0.25]))
        scaled = rounded(x.dtype, x.array * by, abs(by) * x.error, 1 if by != 0.1 else 3)
        return rounded(x.dtype, scaled.array + add, scaled.error), lambda x: x * by + add
    by = draw(st.integers(2, 5))
    return Value(x.dtype, x.array * x.array.dtype.type(by)), lambda x: by * x


def _arithmetic(name, reference, error):
    def apply(draw, x, y):
        x, y = common(x, y)
        if not x.is_float:
            with np.errstate(all="ignore"):
                if x.dtype == "bool":
                    require(name != "subtract")
                return Value(x.dtype, reference(x.array, y.array)), getattr(kc, name)
        value = reference(x.array, y.array)
        return rounded(x.dtype, value, error(x, y)), getattr(kc, name)

    RULES[name] = (2, apply)


def _sum_error(x, y):
    return x.error + y.error


_arithmetic("add", np.add, _sum_error)
_arithmetic("subtract", np.subtract, _sum_error)
_arithmetic("maximum", np.maximum, lambda x, y: np.maximum(*np.broadcast_arrays(x.error, y.error)))
_arithmetic("minimum", np.minimum, lambda x, y: np.maximum(*np.broadcast_arrays(x.error, y.error)))
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
    with np.errstate(all="ignore"):
        value = x.array / y.array
        error = (x.error + np.abs(value) * y.error) / low
    return rounded(x.dtype, value, error, 4), kc.divide


def _integer_pair(name, reference, bools=False):
    def apply(draw, x, y):
        x, y = common(x, y)
        require(not x.is_float and (bools or x.dtype != "bool"))
        with np.errstate(all="ignore"):
            return Value(x.dtype, reference(x.array, y.array)), getattr(kc, name)

    RULES[name] = (2, apply)


_integer_pair("floor_divide", np.floor_divide)
_integer_pair("mod", np.mod)


@rule(2)
def left_shift(draw, x, y):
    require(not y.is_float and y.dtype != "bool")
    x, y = common(x, y)
    require(not x.is_float and x.dtype != "bool")
    return Value(x.dtype, np.left_shift(x.array, y.array & 7)), lambda x, y: kc.left_shift(x, y & 7)


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _integer_pair(_name, getattr(np, _name), True)


def _comparison(name):
    def apply(draw, x, y):
        if name.startswith("logical"):
            require(x.exact and y.exact)
            return Value("bool", getattr(np, name)(x.array != 0, y.array != 0)), getattr(kc, name)
        x, y = common(x, y)
        require(x.exact and y.exact)
        return Value("bool", getattr(np, name)(x.array, y.array)), getattr(kc, name)

    RULES[name] = (2, apply)


for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
              "logical_and", "logical_or", "logical_xor"):  # fmt: skip
    _comparison(_name)


@rule(3)
def where(draw, c, x, y):
    require(c.exact)
    x, y = common(x, y)
    condition = c.array != 0
    error = np.where(condition, x.error, y.error) if x.is_float else 0.0
    value = np.where(condition, x.array, y.array)
    return Value(x.dtype, value, error), kc.where


@rule(1)
def clip(draw, x):
    require(x.dtype != "bool")
    low, high = (-1, 2) if not x.dtype.startswith("u") else (1, 5)
    return Value(x.dtype, np.clip(x.array, low, high), x.error), lambda x: kc.clip(x, low, high)


# -- views and movement: the same function moves NumPy's values and their bounds
def _move(name, count=1):
    """`function(draw, shape, …) -> g(library, x, …)`, a movement of elements."""

    def add(function):
        def apply(draw, *xs):
            xs = common(*xs)
            move = function(draw, *(x.shape for x in xs))
            dtype = xs[0].dtype
            value = move(np, *(x.array for x in xs))
            error = 0.0
            if xs[0].is_float:
                error = move(np, *(np.broadcast_to(x.error, x.shape) for x in xs))
            return Value(dtype, value, error), lambda *arrays: move(kc, *arrays)

        RULES[name] = (count, apply)
        return function

    return add


@_move("transpose")
def _transpose(draw, shape):
    axes = tuple(draw(st.permutations(range(len(shape)))))
    return lambda np_, x: np_.transpose(x, axes)


@_move("reshape")
def _reshape(draw, shape):
    size = int(np.prod(shape))
    first = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0] or [0]))
    rest = size // max(first, 1)
    new = draw(st.sampled_from([(first, -1), (-1, first), (-1,), (1, size), (rest, 1, first)]))
    if not size:
        new = draw(st.sampled_from([(0,), (3, 0), (0, 1, 2)]))
    return lambda np_, x: np_.reshape(x, new)


@_move("slice")
def _slice(draw, shape):
    key = []
    for n in shape:
        start = draw(st.integers(-n - 1, n + 1) | st.none())
        stop = draw(st.integers(-n - 1, n + 1) | st.none())
        part = slice(start, stop, draw(st.sampled_from([None, 1, 2, 3, -1, -2])))
        key.append(draw(st.integers(-n, n - 1)) if n and draw(st.integers(0, 4)) == 0 else part)
    if draw(st.booleans()):
        key = key[: draw(st.integers(0, len(key)))] + [Ellipsis]
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return lambda np_, x: x[tuple(key)] if np_ is kc else np.asarray(x[tuple(key)])


@_move("flip")
def _flip(draw, shape):
    axes = tuple(a for a in range(len(shape)) if draw(st.booleans()))
    return lambda np_, x: np_.flip(x, axes)


@_move("roll")
def _roll(draw, shape):
    require(shape)
    shift, axis = draw(st.integers(-7, 7)), draw(st.integers(0, len(shape) - 1))
    return lambda np_, x: np_.roll(x, shift, axis)


@_move("tile")
def _tile(draw, shape):
    repeats = tuple(draw(st.integers(0, 2)) for _ in range(draw(st.integers(0, len(shape) + 1))))
    return lambda np_, x: np_.tile(x, repeats)


@_move("repeat")
def _repeat(draw, shape):
    require(shape)
    times, axis = draw(st.integers(0, 3)), draw(st.integers(-len(shape), len(shape) - 1))
    return lambda np_, x: np_.repeat(x, times, axis)


@_move("broadcast_to")
def _broadcast(draw, shape):
    new = (draw(st.integers(0, 2)), *[3 if n == 1 and draw(st.booleans()) else n for n in shape])
    return lambda np_, x: np_.broadcast_to(x, new)


@_move("pad")
def _pad(draw, shape):
    require(shape)
    widths = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape]
    modes = ["constant"] if 0 in shape else ["constant", "edge", "wrap", "reflect", "symmetric"]
    mode = draw(st.sampled_from(modes))
    return lambda np_, x: np_.pad(x, widths, mode)


@_move("tril")
def _tril(draw, shape):
    require(len(shape) >= 2)
    k = draw(st.integers(-2, 2))
    return lambda np_, x: np_.tril(x, k)


@_move("diagonal")
def _diagonal(draw, shape):
    require(len(shape) >= 2)
    k = draw(st.integers(-2, 2))
    return lambda np_, x: np_.diagonal(x, k, 0, -1)


@_move("take")
def _take(draw, shape):
    require(shape and shape[-1])
    places = st.lists(st.integers(-shape[-1], shape[-1] - 1), max_size=4)
    at = np.array(draw(places), draw(st.sampled_from(["int32", "int64", "int8"])))
    return lambda np_, x: np_.take(x, at, -1)


@_move("index")
def _index(draw, shape):
    require(shape and 0 not in shape[:2])
    rows = draw(st.lists(st.integers(-shape[0], shape[0] - 1), min_size=1, max_size=4))
    rows = np.array(rows)
    if len(shape) == 1 or draw(st.booleans()):
        return lambda np_, x: x[rows]
    columns = np.array([draw(st.integers(0, shape[1] - 1)) for _ in rows])
    if draw(st.booleans()):
        return lambda np_, x: x[rows[:, None], columns]
    return lambda np_, x: x[rows, columns]


@_move("take_along_axis")
def _along(draw, shape):
    require(shape and shape[0] and np.prod(shape) < 200)
    at = np.random.default_rng(draw(st.integers(0, 99))).integers(0, shape[0], (2, *shape[1:]))
    return lambda np_, x: np_.take_along_axis(x, at, 0)


@_move("concatenate", 2)
def _concatenate(draw, a, b):
    require(a and len(a) == len(b))
    axis = draw(st.integers(0, len(a) - 1))
    require(a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :])
    return lambda np_, x, y: np_.concatenate([x, y, x], axis)


@_move("stack", 2)
def _stack(draw, a, b):
    require(a == b)
    axis = draw(st.integers(-len(a) - 1, len(a)))
    return lambda np_, x, y: np_.stack([x, y], axis)


# -- reductions, scans, order and products
def _axes(draw, shape):
    if draw(st.booleans()):
        return None
    return tuple(a for a in range(len(shape)) if draw(st.booleans()))


def _summed(x: Value, reference, count: int) -> Value:
    """A sum of `count` terms; added up in float32 at least, in any order."""
    unit = min(EPS[x.dtype], EPS["float32"])
    error = np.broadcast_to(x.error, x.shape)
    gathered = count * unit * reference(np.abs(x.array) + error)
    return rounded(x.dtype, reference(x.array), reference(error) + gathered, 2)


@rule(1)
def sum_(draw, x):
    axis, keep = _axes(draw, x.shape), draw(st.booleans())
    call = lambda x: kc.sum(x, axis, keepdims=keep)  # noqa: E731
    if x.dtype == "bool":
        return Value("int32", np.sum(x.array, axis, dtype="int32", keepdims=keep)), call
    if not x.is_float:
        return Value(x.dtype, np.sum(x.array, axis, dtype=x.dtype, keepdims=keep)), call
    return _summed(x, lambda a: np.sum(a, axis, keepdims=keep), x.array.size), call


@rule(1)
def mean(draw, x):
    x = converted(x, x.dtype if x.is_float else "float32")
    axis, keep = _axes(draw, x.shape), draw(st.booleans())
    require(x.array.size)
    value = _summed(x, lambda a: np.mean(a, axis, keepdims=keep), x.array.size)
    return value, lambda x: kc.mean(x, axis, keepdims=keep)


@rule(1)
def prod(draw, x):
    require(not x.is_float and x.dtype != "bool")
    axis = _axes(draw, x.shape)
    return Value(x.dtype, np.prod(x.array, axis, dtype=x.dtype)), lambda x: kc.prod(x, axis)


def _extreme(name):
    def apply(draw, x):
        require(x.array.size)
        axis, keep = _axes(draw, x.shape), draw(st.booleans())
        value = getattr(np, name)(x.array, axis, keepdims=keep)
        error = np.max(np.broadcast_to(x.error, x.shape), axis, keepdims=keep) if x.is_float else 0
        return Value(x.dtype, value, error), lambda x: getattr(kc, name)(x, axis, keepdims=keep)

    RULES[name] = (1, apply)


_extreme("max")
_extreme("min")


def _logical(name):
    def apply(draw, x):
        require(x.exact)
        axis = _axes(draw, x.shape)
        return Value("bool", getattr(np, name)(x.array != 0, axis)), lambda x: getattr(kc, name)(
            x, axis
        )

    RULES[name] = (1, apply)


_logical("any")
_logical("all")


def _place(name):
    def apply(draw, x):
        require(x.exact and x.array.size)
        axis = draw(st.none() | st.integers(0, len(x.shape) - 1)) if x.shape else None
        value = np.asarray(getattr(np, name)(x.array, axis), "int32")
        return Value("int32", value), lambda x: getattr(kc, name)(x, axis)

    RULES[name] = (1, apply)


_place("argmax")
_place("argmin")


@rule(1)
def cumsum(draw, x):
    require(x.shape)
    axis = draw(st.integers(0, len(x.shape) - 1))
    call = lambda x: kc.cumsum(x, axis)  # noqa: E731
    if x.dtype == "bool":
        return Value("int32", np.cumsum(x.array, axis, dtype="int32")), call
    if not x.is_float:
        return Value(x.dtype, np.cumsum(x.array, axis, dtype=x.dtype)), call
    return _summed(x, lambda a: np.cumsum(a, axis), x.array.size), call


@rule(1)
def sort(draw, x):
    require(x.shape)
    axis = draw(st.integers(0, len(x.shape) - 1))
    error = np.max(x.error, initial=0.0) if x.is_float else 0.0
    return Value(x.dtype, np.sort(x.array, axis), error), lambda x: kc.sort(x, axis)


@rule(1)
def argsort(draw, x):
    require(x.shape and x.exact)
    axis = draw(st.integers(0, len(x.shape) - 1))
    value = np.argsort(x.array, axis, kind="stable").astype("int32")
    return Value("int32", value), lambda x: kc.argsort(x, axis)


@rule(2)
def matmul(draw, x, y):
    x, y = common(x, y)
    require(len(x.shape) and len(y.shape) >= 2 and x.dtype != "bool")
    swap = y.shape[-1] == x.shape[-1] and draw(st.booleans())
    if not swap:
        require(y.shape[-2] == x.shape[-1])
    right = lambda y: np.swapaxes(y, -1, -2) if swap else y  # noqa: E731
    call = lambda x, y: kc.matmul(x, kc.swapaxes(y, -1, -2) if swap else y)  # noqa: E731
    try:
        value = np.matmul(x.array, right(y.array))
    except ValueError:  # batches that do not broadcast
        raise Unfit from None
    if not x.is_float:
        return Value(x.dtype, value), call
    a, b = np.abs(x.array), np.abs(right(y.array))
    p = np.broadcast_to(x.error, x.shape)
    q = right(np.broadcast_to(y.error, y.shape))
    unit = min(EPS[x.dtype], EPS["float32"]) * (x.shape[-1] + 1)
    error = np.matmul(a, q) + np.matmul(p, b + q) + unit * np.matmul(a + p, b + q)
    return rounded(x.dtype, value, error, 2), call
