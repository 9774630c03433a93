"""Leaves and views.

Permutations and broadcasts add no nodes: they change how a tensor is looked at, and whoever reads
it in another order of axes, or needs every element, adds what that takes.
"""

from __future__ import annotations

import numpy as np

from kerascl.core.op import CONST, COPY, DATA, PICK
from kerascl.core.tape import ALIAS
from kerascl.core.traced import BARRIER
from kerascl.dtypes import bool_, int64
from kerascl.onnx.exporter.graph import Graph, Order
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.rules.table import rule
from kerascl.onnx.exporter.sizes import Dim, Shape, pointwise
from kerascl.ops.control import KEEP
from kerascl.ops.movement import IOTA
from kerascl.ops.views import (
    CONCAT,
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SLICE,
    inverse,
)

_FAR = 2**63 - 1


@rule(CONST)
def _const(g: Graph, v: Value) -> None:
    g.bind(v, g.number(v.attrs[0], v.dtype), shape=())


@rule(DATA)
def _data(g: Graph, v: Value) -> None:
    g.bind_later(v, lambda: g.weight(v, tuple(range(len(v.shape)))))


@rule(PICK)
def _pick(g: Graph, v: Value) -> None:
    g.bind(v, g.several[v.inputs[0]][v.attrs[0]])


def _same(g: Graph, v: Value, shape: Shape, moved: Order | None = None) -> None:
    """A view of the same tensors: of a broadcast shape, its axes moved."""
    form = g.form(v.inputs[0])
    g.narrow(v.inputs[0])
    for order, name in list(form.names.items()):
        back = order if moved is None else tuple(moved[a] for a in order)
        g.bind(v, name, back, shape)


@rule(ALIAS, BARRIER, COPY, KEEP)
def _identity(g: Graph, v: Value) -> None:
    _same(g, v, g.form(v.inputs[0]).shape)


@rule(EXPAND)
def _expand(g: Graph, v: Value) -> None:
    _same(g, v, g.form(v.inputs[0]).shape)


@rule(PERMUTE)
def _permute(g: Graph, v: Value) -> None:
    axes = v.attrs[0]
    if g.is_constant(v):
        g.bind_later(v, lambda: _same(g, v, v.shape, inverse(axes)))
        return
    shape = g.form(v.inputs[0]).shape
    if not shape:
        _same(g, v, ())
        return
    _same(g, v, tuple(shape[a] for a in axes), inverse(axes))


def target(g: Graph, shape: Shape) -> str:
    """The second input of Reshape: the only size that is not constant is -1."""
    free = [n for n in shape if isinstance(n, Dim)]
    if len(free) == 1 and 0 not in shape:
        return g.constant([-1 if isinstance(n, Dim) else n for n in shape], int64)
    return g.sizes(shape)


@rule(RESHAPE)
def _reshape(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    if g.is_constant(v):
        g.bind_later(v, lambda: _reshaped(g, x, v))
    elif x.shape == v.shape or (not g.form(x).shape and x.shape):
        _same(g, v, g.form(x).shape)
    else:
        _reshaped(g, x, v)


def _reshaped(g: Graph, x: Value, v: Value) -> None:
    order = g.order(x)
    if order is not None:
        wide = [a for a in order if x.shape[a] != 1]
        order = order if wide == sorted(wide) else None  # no element moves
    g.bind(v, g.add("Reshape", g.name(x, order), target(g, v.shape)))


def _along(g: Graph, x: Value, v: Value) -> tuple[Order, str]:
    """The order of axes that a view is taken in, and its input in that."""
    order = g.order(x) or tuple(range(len(v.shape)))
    return order, g.name(x, order)


@rule(FLIP)
def _flip(g: Graph, v: Value) -> None:
    order, name = _along(g, v.inputs[0], v)
    places = [order.index(a) for a in v.attrs[0]]
    count = len(places)
    starts, ends = g.constant([_FAR] * count, int64), g.constant([-_FAR] * count, int64)
    steps = g.constant([-1] * count, int64)
    g.bind(v, g.add("Slice", name, starts, ends, g.constant(places, int64), steps), order)


@rule(SLICE)
def _slice(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    if not g.form(x).shape:
        _same(g, v, ())
        return
    order, name = _along(g, x, v)
    starts, steps = v.attrs
    places, ends = [], []
    for a, (n, m) in enumerate(zip(x.shape, v.shape, strict=True)):
        if starts[a] != 0 or steps[a] != 1 or n != m:
            end = pointwise(_end, starts[a], m, steps[a])
            whole = pointwise(lambda n, e, k: n - e < k, n, end, steps[a]) is True
            places.append(a)
            ends.append(_FAR if whole else end)  # the axis's own end needs no size
    cut = g.add(
        "Slice", name, g.sizes(tuple(starts[a] for a in places)), g.sizes(tuple(ends)),
        g.constant([order.index(a) for a in places], int64),
        g.sizes(tuple(steps[a] for a in places)),
    )  # fmt: skip
    g.bind(v, cut, order)


def _end(start: int, count: int, step: int) -> int:
    return start + (count - 1) * step + 1 if count else start


@rule(PAD)
def _pad(g: Graph, v: Value) -> None:
    (x,) = v.inputs
    low, gap, value = v.attrs
    if x.dtype is bool_:  # Pad takes bools since opset 13, but not every runtime
        value = bool(value)
    order, name = _along(g, x, v)
    fill = g.number(value, v.dtype)
    shape = x.shape
    if any(s != 0 for s in gap):
        order = tuple(range(len(shape)))
        name, shape = _with_gaps(g, g.name(x), shape, gap, fill)
    high = tuple(
        n - (m + at) for n, m, at in zip(v.shape, shape, low, strict=True)
    )
    if any(n != 0 for n in (*low, *high)):
        name = g.pad(name, tuple(low[a] for a in order), tuple(high[a] for a in order), fill)
    g.bind(v, name, order)


def _with_gaps(
    g: Graph, name: str, shape: Shape, gap: Shape, fill: str
) -> tuple[str, Shape]:
    """Elements put between neighbours: each becomes the first of a block, the last block is cut."""
    for a, s in enumerate(gap):
        if s == 0:
            continue
        name = g.add("Unsqueeze", name, g.constant([a + 1], int64))
        none = (0,) * (a + 1)
        rest = (0,) * (len(shape) - a - 1)
        name = g.pad(name, (*none, 0, *rest), (*none, s, *rest), fill)
        joint = (*shape[:a], shape[a] * (s + 1), *shape[a + 1 :])
        name = g.add("Reshape", name, target(g, joint))
        shape = (*shape[:a], joint[a] - s, *shape[a + 1 :])
        ends = g.sizes((0 - s,))
        name = g.add("Slice", name, g.constant([0], int64), ends, g.constant([a], int64))
    return name, shape


@rule(CONCAT)
def _concat(g: Graph, v: Value) -> None:
    order = next((o for x in v.inputs if (o := g.order(x)) is not None), None)
    order = order or tuple(range(len(v.shape)))
    names = [g.name(x, order) for x in v.inputs]
    g.bind(v, g.add("Concat", *names, axis=order.index(v.attrs[0])), order)


@rule(IOTA)
def _iota(g: Graph, v: Value) -> None:
    axis = v.attrs[0]
    n = v.shape[axis]
    shape = tuple(m if a == axis else 1 for a, m in enumerate(v.shape))
    wide = [-1 if a == axis else 1 for a in range(len(shape))]
    if not isinstance(n, Dim):
        name = g.constant(np.arange(n).reshape(wide), v.dtype)
    else:
        ends = [g.constant(0, int64), g.add("Squeeze", g.size(n)), g.constant(1, int64)]
        name = g.cast(g.add("Range", *ends), v.dtype)
        name = g.add("Reshape", name, g.constant(wide, int64))
    g.bind(v, name, shape=shape)
