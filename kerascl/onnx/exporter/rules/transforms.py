"""Fourier transforms."""

from __future__ import annotations

from kerascl.dtypes import DType, float32, int64
from kerascl.onnx.exporter.graph import Graph
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.table import rule
from kerascl.ops.fft import FFT


@rule(FFT)
def _fft(g: Graph, v: Value) -> None:
    _, *parts = v.inputs  # the table of roots is the operator's own
    sign, axis, scale = v.attrs
    dtype = parts[0].dtype
    work = dtype if dtype.itemsize >= 4 else float32
    last = g.constant([-1], int64)
    named = [g.add("Unsqueeze", _in(g, g.name(x), dtype, work), last) for x in parts]
    x = g.add("Concat", *named, axis=-1) if len(named) > 1 else named[0]
    if g.opset >= 20:
        y = g.add("DFT", x, "", g.constant(axis, int64), inverse=int(sign > 0))
    else:
        y = g.add("DFT", x, axis=axis, inverse=int(sign > 0))
    # its inverse divides by the length
    factor = scale * (parts[0].shape[axis] if sign > 0 else 1)
    if factor != 1:
        y = g.add("Mul", y, g.constant(factor, work))
    # both parts are there whichever are read
    found = [g.add("Gather", y, g.constant(k, int64), axis=-1) for k in (0, 1)]
    g.several[v] = [_in(g, name, work, dtype) for name in found]


def _in(g: Graph, name: str, dtype: DType, wanted: DType) -> str:
    return name if dtype is wanted else g.cast(name, wanted)
