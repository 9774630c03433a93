"""Reads at computed places, and updates there."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerascl.core.op import CONST, REGISTRY
from kerascl.dtypes import bool_, int32, int64
from kerascl.onnx.exporter.errors import ExportError
from kerascl.onnx.exporter.graph import Graph
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.table import rule
from kerascl.onnx.exporter.sizes import Dim, Size, product
from kerascl.ops.gather import FILLED, GATHER, SCATTER, filling
from kerascl.ops.views import EXPAND, RESHAPE

_ADD, _LESS, _WHERE = (REGISTRY[name] for name in ("add_int", "less", "where"))


@rule(GATHER, FILLED)
def _gather(g: Graph, v: Value) -> None:
    x, *indices = v.inputs
    (spec,) = v.attrs
    computed = [a for a, (kind, _) in enumerate(spec) if kind == "i"]
    if len(computed) == 1:
        index = indices[spec[computed[0]][1]]
        name = _by_axis(g, x, index, v, computed[0])
        if name is not None:
            g.bind(v, name)
            return
    inside, places = "", {}
    for a in computed:
        places[a], ok = _limited(g, indices[spec[a][1]], x.shape[a], v.op is FILLED)
        inside = g.add("And", inside, ok) if inside and ok else inside or ok
    name = _by_position(g, x, v, spec, places)
    if inside:
        fill = filling(v.dtype)
        other = g.constant(fill.real if isinstance(fill, complex) else fill, v.dtype)
        name = g.add("Where", inside, name, other)
    g.bind(v, name)


def _by_axis(g: Graph, x: Value, index: Value, v: Value, axis: int) -> str | None:
    """A gather along one axis, by Gather or GatherElements; None where neither is it.

    Both count negative indices from the end and refuse those out of range, which `FILLED` shows by
    NaN: there is no exception where it runs.
    """
    (spec,) = v.attrs
    rank = len(v.shape)
    along = [k for k in range(rank) if ("d", k) not in spec]
    before = all(spec[k] == ("d", k) for k in range(axis))
    after = all(spec[k] == ("d", k + len(along) - 1) for k in range(axis + 1, len(x.shape)))
    raw = _uncounted(index)
    if before and after and along == list(range(axis, axis + len(along))):
        shape = tuple(v.shape[k] for k in along)
        if raw.shape == shape:
            return g.add("Gather", g.name(x), _one_by_one(g, raw, x.shape[axis], v), axis=axis)
    if all(spec[k] == ("d", k) for k in range(rank) if k != axis) and len(x.shape) == rank:
        whole = raw if raw.shape == v.shape else index
        if all(n == m for a, (n, m) in enumerate(zip(x.shape, v.shape, strict=True)) if a != axis):
            places = _one_by_one(g, whole, x.shape[axis], v)
            return g.add("GatherElements", g.name(x), places, axis=axis)
    return None


def _one_by_one(g: Graph, index: Value, size: Size, v: Value) -> str:
    """Every index, within range where that is asked."""
    if v.op is FILLED or _is_known(g, index, size):
        name = g.name(index)
        return name if index.dtype in (int32, int64) else g.cast(name, int64)
    name = g.cast(g.name(index), int64)
    zero, top = g.constant([0], int64), g.add("Sub", g.size(size), g.constant([1], int64))
    if not index.shape:
        zero, top = g.constant(0, int64), g.add("Squeeze", top)
    return g.add("Min", g.add("Max", name, zero), top)


def _uncounted(index: Value) -> Value:
    """Indices before those below 0 were counted from the end, and before broadcasting."""
    while index.op in (EXPAND, RESHAPE):
        (index,) = index.inputs
    if index.op is _WHERE:
        below, moved, plain = index.inputs
        zero = below.inputs[1] if below.op is _LESS and below.inputs[0] is plain else None
        while zero is not None and zero.op in (EXPAND, RESHAPE):
            (zero,) = zero.inputs
        counted = moved.op is _ADD and moved.inputs[0] is plain
        if counted and zero is not None and zero.op is CONST and zero.attrs[0] == 0:
            return plain
    return index


def _is_known(g: Graph, index: Value, size: Size) -> bool:
    """Whether indices are constants within range."""
    if isinstance(size, Dim) or not g.is_constant(index):
        return False
    found = g.host(index)
    return found is not None and (not found[0].size or 0 <= found[0].min() <= found[0].max() < size)


def _limited(g: Graph, index: Value, size: Size, filled: bool) -> tuple[str, str]:
    """Indices as int64 within range, and where they were; "" where nobody asks or all are."""
    source = index
    while source.op is EXPAND:
        (source,) = source.inputs
    name = g.cast(g.narrow(index), int64)
    if _is_known(g, source, size):
        return name, ""
    top, zero = g.add("Sub", g.size(size), g.constant([1], int64)), g.constant([0], int64)
    if not g.form(index).shape:
        top, zero = g.add("Squeeze", top), g.constant(0, int64)
    within = g.add("Min", g.add("Max", name, zero), top)
    return within, g.add("Equal", within, name) if filled else ""


def _by_position(g: Graph, x: Value, v: Value, spec: Any, places: dict[int, str]) -> str:
    """Any gather: by the position of each element in the flat input."""
    rank = len(v.shape)
    total = ""
    for a, (kind, k) in enumerate(spec):
        if kind == "i":
            place = places[a]
        else:
            wide = [1] * rank
            wide[k] = -1
            n = v.shape[k]
            if isinstance(n, Dim):
                ends = g.constant(0, int64), g.add("Squeeze", g.size(n)), g.constant(1, int64)
                place = g.add("Reshape", g.add("Range", *ends), g.constant(wide, int64))
            else:
                place = g.constant(np.arange(n).reshape(wide), int64)
        step = product(x.shape[a + 1 :])
        if step != 1:
            place = g.add("Mul", place, g.size(step))
        total = g.add("Add", total, place) if total else place
    flat = g.add("Reshape", g.name(x), g.constant([-1], int64))
    found = g.add("Gather", flat, total or g.constant(0, int64), axis=0)
    return g.add("Expand", found, g.sizes(v.shape))


@rule(SCATTER)
def _scatter(g: Graph, v: Value) -> None:
    indices, updates, base = v.inputs
    (mode,) = v.attrs
    rows = v.shape[0]
    if g.opset < 18 and mode in ("set", "max", "min"):
        where = v.label or "the function"
        raise ExportError(f"{where}: largest and smallest updates need opset 18")
    places = g.cast(g.name(indices), int64)
    last = g.size(rows)
    below = g.add("Less", places, g.constant([0], int64))
    outside = g.add("Or", below, g.add("GreaterOrEqual", places, last))
    # what is out of range goes to one more row, which is cut off again
    places = g.add("Where", outside, last, places)
    places = g.add("Unsqueeze", places, g.constant([1], int64))
    if mode == "set":
        g.bind(v, _last_wins(g, v, places))
        return
    kind = {"add": "add", "mul": "mul", "max": "max", "min": "min"}[mode]
    data, more, dtype = g.name(base), g.name(updates), v.dtype
    if dtype is bool_:
        data, more = g.cast(data, int32), g.cast(more, int32)
        dtype = int32
    wide = _one_more(g, data, g.constant(0, dtype))
    y = g.add("ScatterND", wide, places, more, reduction=kind)
    y = _rows(g, y, rows)
    g.bind(v, g.cast(y, v.dtype) if dtype is not v.dtype else y)


def _one_more(g: Graph, name: str, fill: str) -> str:
    return g.pad(name, (0, 0), (1, 0), fill)


def _rows(g: Graph, name: str, rows: Size) -> str:
    return g.add("Slice", name, g.constant([0], int64), g.size(rows), g.constant([0], int64))


def _last_wins(g: Graph, v: Value, places: str) -> str:
    """Each row is the last update that goes to it, which ONNX leaves open where there are several:
    the largest number of an update is found first."""
    base, indices, updates = v.inputs
    rows = v.shape[0]
    count = g.add("Squeeze", g.size(indices.shape[0]))
    numbers = g.add("Range", g.constant(0, int64), count, g.constant(1, int64))
    none = g.constant([-1], int64)
    winner = g.add("Expand", none, g.size(rows + 1))
    winner = _rows(g, g.add("ScatterND", winner, places, numbers, reduction="max"), rows)
    hit = g.add("Unsqueeze", g.add("GreaterOrEqual", winner, g.constant([0], int64)),
                g.constant([1], int64))  # fmt: skip
    safe = g.add("Max", winner, g.constant([0], int64))
    return g.add("Where", hit, g.add("Gather", g.name(updates), safe, axis=0), g.name(base))
