"""Operators that work element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.rules import operator
from kerascl.ops import bits, nn, pointwise
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import broadcast_arrays
from kerascl.ops.views import reshape_to

elementwise = functools.partial(operator, layout="elementwise")

_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": pointwise.absolute, "Neg": pointwise.negative, "Sign": pointwise.sign,
    "Ceil": pointwise.ceil, "Floor": pointwise.floor, "Round": pointwise.round,
    "Exp": pointwise.exp, "Log": pointwise.log, "Sqrt": pointwise.sqrt,
    "Reciprocal": pointwise.reciprocal, "Erf": pointwise.erf,
    "Sin": pointwise.sin, "Cos": pointwise.cos, "Tan": pointwise.tan,
    "Asin": pointwise.arcsin, "Acos": pointwise.arccos, "Atan": pointwise.arctan,
    "Sinh": pointwise.sinh, "Cosh": pointwise.cosh, "Tanh": pointwise.tanh,
    "Asinh": pointwise.arcsinh, "Acosh": pointwise.arccosh, "Atanh": pointwise.arctanh,
    "Not": pointwise.logical_not, "IsNaN": pointwise.isnan, "BitwiseNot": bits.bitwise_not,
    "Sigmoid": pointwise.sigmoid, "Relu": nn.relu, "Softplus": nn.softplus,
    "Softsign": nn.softsign, "Mish": lambda x: x * pointwise.tanh(nn.softplus(x)),
    "HardSwish": lambda x: x * pointwise.clip(x * (1 / 6) + 0.5, 0.0, 1.0),
}  # fmt: skip

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": pointwise.equal, "Greater": pointwise.greater, "Less": pointwise.less,
    "GreaterOrEqual": pointwise.greater_equal, "LessOrEqual": pointwise.less_equal,
    "And": pointwise.logical_and, "Or": pointwise.logical_or, "Xor": pointwise.logical_xor,
}  # fmt: skip

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": pointwise.add, "Sub": pointwise.subtract, "Mul": pointwise.multiply,
    "BitwiseAnd": bits.bitwise_and, "BitwiseOr": bits.bitwise_or,
    "BitwiseXor": bits.bitwise_xor,
}  # fmt: skip


def _aligned(call: Call, a: Array, b: Array) -> tuple[Array, Array]:
    """Before opset 7 the second operand could be laid along an axis of the first."""
    if call.get("broadcast") and call.get("axis") is not None:
        b = reshape_to(b, b.shape + (1,) * (a.ndim - call["axis"] - b.ndim))
    return a, b


def _declare() -> None:
    for name, function in _UNARY.items():

        def unary(call: Call, x: Array, function: Callable[..., Any] = function) -> Array:
            return function(x)

        elementwise(name)(unary)
    for name, function in _COMPARISONS.items():

        def compared(
            call: Call, a: Array, b: Array, function: Callable[..., Any] = function
        ) -> Array:
            return function(*_aligned(call, a, b))

        elementwise(name)(compared)
    for name, function in _ARITHMETIC.items():

        def binary(
            call: Call, a: Array, b: Array, function: Callable[..., Any] = function
        ) -> Array:
            return cast_to(function(*_aligned(call, a, b)), a.dtype)

        elementwise(name)(binary)


_declare()


@elementwise("Div")
def div(call: Call, a: Array, b: Array) -> Array:
    """a / b; of integers, rounded towards 0."""
    a, b = _aligned(call, a, b)
    return divided(a, b)


def divided(a: Array, b: Array) -> Array:
    """a / b; of integers, rounded towards 0."""
    if not a.dtype.is_integer:
        return cast_to(pointwise.divide(a, b), a.dtype)
    exact = pointwise.subtract(a, pointwise.fmod(a, b))
    return cast_to(pointwise.floor_divide(exact, b), a.dtype)


@elementwise("Mod")
def mod(call: Call, a: Array, b: Array) -> Array:
    """The remainder, with the sign of `b`, or with that of `a` where `fmod` is set."""
    function = pointwise.fmod if call["fmod"] else pointwise.mod
    return cast_to(function(a, b), a.dtype)


@elementwise("Pow", settings=(1,))
def power(call: Call, a: Array, b: Array) -> Array:
    """a ** b in the dtype of `a`."""
    a, b = _aligned(call, a, b)
    return cast_to(pointwise.power(a, b), a.dtype)


@elementwise("BitShift")
def bit_shift(call: Call, a: Array, b: Array) -> Array:
    """`a` shifted by `b` bits to the left or right, as `direction` says."""
    shift = bits.left_shift if call["direction"] == "LEFT" else bits.right_shift
    return cast_to(shift(a, b), a.dtype)


@elementwise("Sum")
def total(call: Call, *inputs: Array) -> Array:
    """The sum of all inputs."""
    return functools.reduce(pointwise.add, inputs)


@elementwise("Mean")
def mean(call: Call, *inputs: Array) -> Array:
    """The arithmetic mean of all inputs, in their dtype."""
    return cast_to(functools.reduce(pointwise.add, inputs) / len(inputs), inputs[0].dtype)


@elementwise("Max")
def largest(call: Call, *inputs: Array) -> Array:
    """The largest of all inputs, element by element."""
    return cast_to(functools.reduce(pointwise.maximum, inputs), inputs[0].dtype)


@elementwise("Min")
def smallest(call: Call, *inputs: Array) -> Array:
    """The smallest of all inputs, element by element."""
    return cast_to(functools.reduce(pointwise.minimum, inputs), inputs[0].dtype)


@elementwise("Where")
def where(call: Call, condition: Array, a: Array, b: Array) -> Array:
    """Elements of `a` where the condition is true, else of `b`."""
    condition, a, b = broadcast_arrays(condition, a, b)
    return cast_to(pointwise.where(condition, a, b), a.dtype)


@elementwise("Clip", settings=(1, 2))
def clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """`x` limited to [low, high]; where the bounds cross, `high` wins.

    Before opset 11 the bounds are attributes.
    """
    y: Any = x
    if low is None and call.get("min") is not None and call.version < 11:
        low = full((), max(call["min"], _lowest(x)), x.dtype)
    if high is None and call.get("max") is not None and call.version < 11:
        high = full((), min(call["max"], -_lowest(x)), x.dtype)
    if low is not None and high is not None and not low.ndim and not high.ndim:
        # one operation; where the bounds cross, the upper one wins
        return cast_to(pointwise.clip(x, pointwise.minimum(low, high), high), x.dtype)
    if low is not None:
        y = pointwise.maximum(y, low)
    if high is not None:
        y = pointwise.minimum(y, high)
    return cast_to(y, x.dtype)


def _lowest(x: Array) -> float:
    return -65504.0 if x.dtype.name == "float16" else -3.4e38


@elementwise("IsInf")
def is_infinite(call: Call, x: Array) -> Array:
    """Whether elements are infinite, of the signs that the node asks for."""
    if call["detect_positive"] and call["detect_negative"]:
        return pointwise.isinf(x)
    if call["detect_positive"]:
        return pointwise.isposinf(x)
    if call["detect_negative"]:
        return pointwise.isneginf(x)
    return full(x.shape, False, "bool")


# -- activations ----------------------------------------------------------------
@elementwise("LeakyRelu")
def leaky_relu(call: Call, x: Array) -> Array:
    """x for x >= 0, else alpha * x."""
    return nn.leaky_relu(x, call["alpha"])


@elementwise("PRelu")
def parametric_relu(call: Call, x: Array, slope: Array) -> Array:
    """x for x >= 0, else slope * x.

    Before opset 7 a vector of slopes lies along the channels, axis 1.
    """
    if call.version < 7 and slope.ndim == 1 and slope.size > 1:
        slope = reshape_to(slope, (slope.size,) + (1,) * (x.ndim - 2))
    return cast_to(pointwise.where(x < 0, x * slope, x), x.dtype)


@elementwise("Elu")
def elu(call: Call, x: Array) -> Array:
    """x for positive x, else alpha * (exp(x) - 1)."""
    return nn.elu(x, call["alpha"])


@elementwise("Celu")
def celu(call: Call, x: Array) -> Array:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)."""
    return nn.celu(x, call["alpha"])


@elementwise("Selu")
def selu(call: Call, x: Array) -> Array:
    """gamma * x for positive x, else gamma * alpha * (exp(x) - 1)."""
    alpha, gamma = call["alpha"], call["gamma"]
    return pointwise.where(x > 0, x * gamma, nn.elu(x, alpha) * gamma)


@elementwise("ThresholdedRelu")
def thresholded_relu(call: Call, x: Array) -> Array:
    """x where it is more than alpha, else 0."""
    return pointwise.where(x > call["alpha"], x, 0)


@elementwise("HardSigmoid")
def hard_sigmoid(call: Call, x: Array) -> Array:
    """alpha * x + beta, limited to [0, 1]."""
    return pointwise.clip(x * call["alpha"] + call["beta"], 0.0, 1.0)


@elementwise("Shrink")
def shrink(call: Call, x: Array) -> Array:
    """x - bias above `lambd`, x + bias below -`lambd`, 0 between."""
    limit, bias = call["lambd"], call["bias"]
    inner = pointwise.where(x > limit, x - bias, 0)
    return cast_to(pointwise.where(x < -limit, x + bias, inner), x.dtype)


@elementwise("Gelu")
def gelu(call: Call, x: Array) -> Array:
    """x * P(normal <= x), or by the tanh formula where `approximate` is "tanh"."""
    return nn.gelu(x, approximate=call["approximate"] == "tanh")


@elementwise("Swish")
def swish(call: Call, x: Array) -> Array:
    """x * sigmoid(alpha * x)."""
    return nn.silu(x) if call["alpha"] == 1 else x * pointwise.sigmoid(x * call["alpha"])


# -- constants --------------------------------------------------------------------
@operator("Identity", raw=True, layout="own")
def identity(call: Call, x: Any) -> Any:
    """The input as it is: an array, a sequence or nothing."""
    return x


@operator("Constant", raw=True)
def constant(call: Call) -> Any:
    """The value of the attribute that is given, on the host.

    Raises:
        ValueError: for a sparse value.
    """
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints",
                 "value_string", "value_strings"):  # fmt: skip
        found = call.get(name)
        if found is None:
            continue
        if name == "value":
            return found
        kind = {"f": np.float32, "i": np.int64, "s": object}[name.split("_")[1][0]]
        return np.asarray(found, kind)
    raise ValueError("a sparse constant")
