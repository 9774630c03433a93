"""Sorting, searching and cumulative operations, along rows."""

from __future__ import annotations

import numpy as np

from kerascl.dtypes import DType, bool_, float32, int32, int64
from kerascl.onnx.exporter.graph import Graph
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.loops import Tensor, scan
from kerascl.onnx.exporter.rules.pointwise import logaddexp
from kerascl.onnx.exporter.rules.table import rule
from kerascl.ops.scan import PLACES, SCAN
from kerascl.ops.sorting import SEARCH, SORT


@rule(SORT)
def _sort(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    descending, k = v.attrs
    name = g.name(x)
    if x.dtype is bool_:
        name = g.cast(name, int32)
    # of equal elements the first comes first, as here
    values, places = g.add_several(
        2, "TopK", name, g.size(k), axis=1, largest=int(descending), sorted=1
    )
    if x.dtype is bool_:
        values = g.cast(values, bool_)
    g.several[v] = [values, g.cast(places, int32)]


@rule(SEARCH)
def _search(g: Graph, v: Value) -> None:
    rows, values = v.inputs
    (side,) = v.attrs
    a = g.add("Unsqueeze", g.name(rows), g.constant([1], int64))  # (rows, 1, length)
    x = g.add("Unsqueeze", g.name(values), g.constant([2], int64))  # (rows, count, 1)
    before = g.add("Less" if side == "left" else "LessOrEqual", a, x)
    g.bind(v, g.reduce("ReduceSum", g.cast(before, v.dtype), [2], keepdims=False))


@rule(PLACES)
def _places(g: Graph, v: Value) -> None:
    (counts,) = v.inputs
    (size,) = v.attrs
    a = g.add("Unsqueeze", g.cast(g.name(counts), int64), g.constant([2], int64))
    count = g.add("Squeeze", g.size(size), g.constant([0], int64))
    ks = g.add("Range", g.constant(0, int64), count, g.constant(1, int64))
    over = g.add("LessOrEqual", a, ks)  # (rows, length, size)
    g.bind(v, g.reduce("ReduceSum", g.cast(over, v.dtype), [1], keepdims=False))


@rule(SCAN)
def _cumulative(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    kind, reverse, exclusive = v.attrs
    dtype, name = v.dtype, g.name(x)
    if dtype.is_float and dtype.itemsize < 4:
        dtype, name = float32, g.cast(name, float32)
    if kind == "sum":
        axis = g.constant(1, int64)
        y = g.add("CumSum", name, axis, exclusive=int(exclusive), reverse=int(reverse))
    else:
        y = _accumulated(g, name, dtype, v, kind, reverse, exclusive)
    g.bind(v, y if dtype is v.dtype else g.cast(y, v.dtype))


def _accumulated(
    g: Graph, name: str, dtype: DType, v: Value, kind: str, reverse: bool, exclusive: bool
) -> str:
    neutral = g.constant(_neutral(kind, dtype), dtype)
    start = g.add("Expand", neutral, g.sizes((v.shape[0], v.shape[2])))

    def step(
        inner: Graph, carry: list[str], now: list[str]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (so_far,), (element,) = carry, now
        new = _joined(inner, kind, dtype, so_far, element)
        return [(new, dtype)], [(so_far if exclusive else new, dtype)]

    steps = g.add("Transpose", name, perm=[1, 0, 2])
    found = scan(g, [(start, dtype)], [(steps, dtype)], step, reverse)[1]
    return g.add("Transpose", found, perm=[1, 0, 2])


def _joined(g: Graph, kind: str, dtype: DType, a: str, b: str) -> str:
    if kind != "logsumexp":
        return g.add({"prod": "Mul", "max": "Max", "min": "Min"}[kind], a, b)
    return logaddexp(g, dtype, a, b)


def _neutral(kind: str, dtype: DType) -> float:
    if kind == "prod":
        return 1
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        return int(bounds.min if kind == "max" else bounds.max)
    return float("inf") if kind == "min" else -float("inf")
