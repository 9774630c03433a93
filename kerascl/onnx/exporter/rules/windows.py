"""Pooling."""

from __future__ import annotations

from kerascl.dtypes import float32
from kerascl.onnx.exporter.graph import Graph
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.products import channels_first, spatial, window_attributes
from kerascl.onnx.exporter.rules.table import rule
from kerascl.ops.pooling import AVERAGE, MAX


@rule(MAX, AVERAGE)
def _pool(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    window, strides, pads, is_first, counts_padding = v.attrs
    order = channels_first(len(x.shape), is_first)
    attributes = window_attributes(v, spatial(x.shape, is_first), window, strides, pads)
    name = g.name(x, order)
    narrow = v.dtype.is_float and v.dtype.itemsize < 4
    if narrow or v.dtype.is_integer and v.dtype.itemsize > 1:
        name = g.cast(name, float32)  # integers beyond a byte have no pooling there
    if v.op is MAX:
        y = g.add("MaxPool", name, kernel_shape=list(window), **attributes)
    else:
        y = g.add(
            "AveragePool", name, kernel_shape=list(window),
            count_include_pad=int(counts_padding), **attributes,
        )  # fmt: skip
    if narrow or v.dtype.is_integer and v.dtype.itemsize > 1:
        y = g.cast(y, v.dtype)
    g.bind(v, y, order)
