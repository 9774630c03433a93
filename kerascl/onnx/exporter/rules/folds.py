"""Reductions, which keep the reduced axes with size 1."""

from __future__ import annotations

from collections.abc import Callable

from kerascl.dtypes import DType, bool_, float32, int32
from kerascl.onnx.exporter.graph import Graph, Order
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.table import named, rule
from kerascl.onnx.exporter.rules.views import target
from kerascl.onnx.exporter.sizes import product
from kerascl.ops.nn import VARIANCE

_REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


def _read(g: Graph, v: Value) -> tuple[Order, str, list[int]]:
    """The order of axes of the input, its name, and the reduced axes in that order."""
    (x,) = v.inputs
    order = g.order(x) or tuple(range(len(x.shape)))
    return order, g.name(x, order), sorted(order.index(a) for a in v.attrs[0])


def _wide(g: Graph, v: Value, reduce: Callable[[str, DType], str], name: str) -> str:
    """A reduction in float32 of 16-bit floats, in int32 of bools."""
    dtype = v.inputs[0].dtype
    if dtype.is_float and dtype.itemsize < 4:
        return g.cast(reduce(g.cast(name, float32), float32), v.dtype)
    if dtype is bool_:
        return g.cast(reduce(g.cast(name, int32), int32), v.dtype)
    return reduce(name, dtype)


@rule(*named(*_REDUCTIONS))
def _reduce(g: Graph, v: Value) -> None:
    order, name, axes = _read(g, v)
    kind = _REDUCTIONS[v.op.name]
    g.bind(v, _wide(g, v, lambda x, t: g.reduce(kind, x, axes), name), order)


@rule(*named("all", "any"))
def _logical(g: Graph, v: Value) -> None:
    order, name, axes = _read(g, v)
    kind = "ReduceMin" if v.op.name == "all" else "ReduceMax"
    g.bind(v, g.cast(g.reduce(kind, g.cast(name, int32), axes), bool_), order)


@rule(VARIANCE)
def _variance(g: Graph, v: Value) -> None:
    order, name, axes = _read(g, v)

    def reduce(x: str, dtype: DType) -> str:
        away = g.add("Sub", x, g.reduce("ReduceMean", x, axes))
        return g.reduce("ReduceMean", g.add("Mul", away, away), axes)

    g.bind(v, _wide(g, v, reduce, name), order)


@rule(*named("argmax", "argmin"))
def _position(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    axes = sorted(v.attrs[0])
    kind = "ArgMax" if v.op.name == "argmax" else "ArgMin"
    rank = len(x.shape)
    if len(axes) == 1:
        order = g.order(x) or tuple(range(rank))
        name, axis = g.name(x, order), order.index(axes[0])
    else:  # the reduced axes last and flat
        rest = [a for a in range(rank) if a not in axes]
        order = tuple(range(rank))
        flat = (*(x.shape[a] for a in rest), product([x.shape[a] for a in axes]))
        name = g.add("Reshape", g.name(x, (*rest, *axes)), target(g, flat))
        axis = len(rest)
    if x.dtype is bool_:
        name = g.cast(name, int32)
    found = g.add(kind, name, axis=axis, keepdims=1)
    if len(axes) > 1:
        found = g.add("Reshape", found, target(g, v.shape))
    g.bind(v, g.cast(found, v.dtype), order)


