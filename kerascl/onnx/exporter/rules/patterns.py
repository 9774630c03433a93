"""Several nodes that are one operator of ONNX: its patterns, tried before the rule of the last one.

The others keep their rules, and what they add is left out again where nobody else reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerascl.core.op import CONST, REGISTRY
from kerascl.core.tape import ALIAS
from kerascl.onnx.exporter.graph import Graph
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.products import convolution
from kerascl.onnx.exporter.rules.table import pattern
from kerascl.onnx.exporter.sizes import Dim, is_static, product
from kerascl.ops.convolution import CONV
from kerascl.ops.views import EXPAND, RESHAPE

_BROADCASTS = (EXPAND, ALIAS)


def _op(name: str, value: Value) -> tuple[Value, ...] | None:
    """The inputs of a Value of some operation, before broadcasting."""
    if value.op is not REGISTRY[name]:
        return None
    return tuple(_before(x) for x in value.inputs)


def _before(value: Value) -> Value:
    while value.op in _BROADCASTS:
        (value,) = value.inputs
    return value


def _number(value: Value) -> float | None:
    """The value of a constant, which may be broadcast."""
    while value.op in (EXPAND, RESHAPE):
        (value,) = value.inputs
    known = value.op is CONST and not isinstance(value.attrs[0], Dim)
    return float(value.attrs[0]) if known else None


def _apart(name: str, value: Value, wanted: Callable[[Value], Any]) -> tuple[Value, Any] | None:
    """Of a commutative operation: the input that is not `wanted`, and what `wanted` gives."""
    inputs = _op(name, value)
    if inputs is None:
        return None
    for first, second in (inputs, inputs[::-1]):
        found = wanted(second)
        if found is not None:
            return first, found
    return None


# -- softmax ------------------------------------------------------------------
def _shifted(value: Value, axis: int) -> Value | None:
    """x of x - max(x)."""
    inputs = _op("subtract", value)
    if inputs is None:
        return None
    x, top = inputs
    source = _op("max", top)
    is_one = source is not None and source[0] is x and top.attrs[0] == (axis,)
    return x if is_one else None


def _total(value: Value) -> tuple[Value, int] | None:
    """(x, axis) of a sum over one axis."""
    source = _op("sum", value)
    if source is None or len(value.attrs[0]) != 1:
        return None
    return source[0], value.attrs[0][0]


@pattern("divide")
def _softmax(g: Graph, v: Value) -> bool:
    parts = _op("divide", v)
    found = parts and _total(parts[1])
    if not parts or not found or found[0] is not parts[0]:
        return False
    inner = _op("exp", parts[0])
    x = inner and _shifted(inner[0], found[1])
    if not x or x.shape != v.shape:
        return False
    _along(g, v, "Softmax", x, found[1])
    return True


@pattern("subtract")
def _log_softmax(g: Graph, v: Value) -> bool:
    parts = _op("subtract", v)
    inside = parts and _op("log", parts[1])
    found = inside and _total(inside[0])
    exponents = found and _op("exp", found[0])
    if not parts or not found or not exponents or exponents[0] is not parts[0]:
        return False
    x = _shifted(parts[0], found[1])
    if x is None or x.shape != v.shape:
        return False
    _along(g, v, "LogSoftmax", x, found[1])
    return True


def _along(g: Graph, v: Value, kind: str, x: Value, axis: int) -> None:
    order = g.order(x) or tuple(range(len(x.shape)))
    g.bind(v, g.add(kind, g.name(x, order), axis=order.index(axis)), order)


# -- vectors along the channels -----------------------------------------------
def _vector(value: Value, axis: int | None = None) -> tuple[Value, int] | None:
    """(the vector, the axis) of a vector that lies along one axis."""
    shape, source = value.shape, value
    if source.op is RESHAPE:
        (source,) = source.inputs
    wide = [a for a, n in enumerate(shape) if n != 1]
    if len(source.shape) != 1 or not is_static(shape):
        return None
    if len(wide) != 1:  # one channel
        wide = [axis] if axis is not None and not wide else []
    if len(wide) != 1 or axis not in (None, wide[0]):
        return None
    return source, wide[0]


@pattern("add")
def _biased_convolution(g: Graph, v: Value) -> bool:
    found = _apart("add", v, lambda x: x if x.op is CONV else None)
    if found is None or found[1].shape != v.shape or found[1].dtype is not v.dtype:
        return False
    bias = _vector(found[0], 1 if found[1].attrs[4] else len(v.shape) - 1)
    if bias is None or bias[0].dtype is not v.dtype:
        return False
    name, order = convolution(g, found[1], g.name(bias[0]))
    g.bind(v, name, order)
    return True


def _root_reciprocal(value: Value) -> tuple[Value, float] | None:
    """(x, epsilon) of 1 / sqrt(x + epsilon)."""
    inner = _op("rsqrt", value)
    return None if inner is None else _apart("add", inner[0], _number)


@pattern("add", "multiply")
def _batch_normalization(g: Graph, v: Value) -> bool:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, all but x vectors along an axis."""
    if v.dtype.name != "float32":
        return False
    product, offset = v, None
    shifted = _op("add", v)
    if shifted is not None:
        product, offset = shifted
    factors = _op("multiply", product)
    away = factors and _op("subtract", factors[0])
    if not factors or not away:
        return False
    factor, scale = factors[1], None
    found = _root_reciprocal(factor)
    if found is None:
        scaled = _op("multiply", factor)
        if scaled is None:
            return False
        found, scale = _root_reciprocal(scaled[0]), scaled[1]
    x, mean = away
    if found is None or x.shape != v.shape or len(x.shape) < 2:
        return False
    whole = _vector(found[0])
    if whole is None or whole[1] == 0:
        return False
    variance, axis = whole
    places = [None if p is None else _vector(p, axis) for p in (scale, offset, mean)]
    lost = (p is not None and q is None for p, q in zip((scale, offset), places[:2], strict=True))
    if places[2] is None or any(lost):
        return False
    channels = x.shape[axis]
    if isinstance(channels, Dim):
        return False
    order = (0, axis, *(a for a in range(1, len(x.shape)) if a != axis))
    gamma, beta = (
        g.constant(np.full(channels, default), v.dtype) if p is None else g.name(p[0])
        for p, default in zip(places[:2], (1, 0), strict=True)
    )
    y = g.add(
        "BatchNormalization", g.name(x, order), gamma, beta, g.name(places[2][0]),
        g.name(variance), epsilon=found[1],
    )  # fmt: skip
    g.bind(v, y, order)
    return True


@pattern("add")
def _layer_normalization(g: Graph, v: Value) -> bool:
    """x * inverse + (offset - mean * inverse), where inverse = scale / sqrt(variance + epsilon)."""
    if v.dtype.name != "float32":
        return False
    parts = _op("add", v)
    product = parts and _op("multiply", parts[0])
    if not parts or not product:
        return False
    x, inverse = product
    rest, offset = parts[1], None
    if rest.op is REGISTRY["add"]:
        rest, offset = (_before(p) for p in rest.inputs)
    found, scale = _root_reciprocal(inverse), None
    if found is None:
        scaled = _op("multiply", inverse)
        if scaled is None:
            return False
        found, scale = _root_reciprocal(scaled[0]), scaled[1]
    moved = _op("multiply", rest)
    if found is None or moved is None or moved[1] is not inverse or x.shape != v.shape:
        return False
    variance, epsilon = found
    axes = _axes_of_variance(variance, x)
    if axes is None or not _is_minus_mean(moved[0], x, axes):
        return False
    first = len(x.shape) - len(axes)
    shape = x.shape[first:]
    if axes != tuple(range(first, len(x.shape))) or not is_static(shape):
        return False
    given = [_shaped(p, shape) for p in (scale, offset)]
    if any(p is not None and q is None for p, q in zip((scale, offset), given, strict=True)):
        return False
    gamma = g.constant(np.ones(shape), v.dtype) if given[0] is None else g.name(given[0])
    inputs = [g.name(x), gamma] + ([] if given[1] is None else [g.name(given[1])])
    g.bind(v, g.add("LayerNormalization", *inputs, axis=first, epsilon=epsilon))
    return True


def _axes_of_variance(value: Value, x: Value) -> tuple[int, ...] | None:
    source = _op("variance", value)
    return tuple(sorted(value.attrs[0])) if source is not None and source[0] is x else None


def _is_minus_mean(value: Value, x: Value, axes: tuple[int, ...]) -> bool:
    inner = _op("negative", value)
    mean = None if inner is None else _apart("multiply", inner[0], _number)
    source = None if mean is None else _op("sum", mean[0])
    count = product([x.shape[a] for a in axes])
    if mean is None or source is None or source[0] is not x or isinstance(count, Dim):
        return False
    total, share = mean
    return tuple(sorted(total.attrs[0])) == axes and abs(share * count - 1) < 1e-6


def _shaped(value: Value | None, shape: tuple[Any, ...]) -> Value | None:
    """The Value of a shape that another one is, but for axes of size 1 before it."""
    while value is not None and value.shape != shape and value.op is RESHAPE:
        (value,) = value.inputs
    return value if value is not None and value.shape == shape else None
