"""Sums, products and other folds over axes, and running ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerascl.core.array import Array
from kerascl.onnx.importer.graph import Call, axis_of
from kerascl.onnx.importer.layout import ChannelsLast, Images, as_in_graph, place_of
from kerascl.onnx.importer.rules import operator
from kerascl.ops import nn, pointwise, reduction, scan
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to, floating
from kerascl.ops.views import reshape_to

_Fold = Callable[[Array, Any, bool], Array]

_FOLDS: dict[str, _Fold] = {
    "ReduceSum": reduction.sum,
    "ReduceMean": reduction.mean,
    "ReduceMax": reduction.max,
    "ReduceMin": reduction.min,
    "ReduceProd": reduction.prod,
    "ReduceL1": lambda x, a, k: reduction.sum(pointwise.absolute(x), a, k),
    "ReduceL2": lambda x, a, k: pointwise.sqrt(
        reduction.sum(pointwise.square(cast_to(x, floating(x.dtype)[0])), a, k)
    ),
    "ReduceSumSquare": lambda x, a, k: reduction.sum(pointwise.square(x), a, k),
    "ReduceLogSum": lambda x, a, k: pointwise.log(reduction.sum(x, a, k)),
    "ReduceLogSumExp": lambda x, a, k: reduction.logsumexp(x, a, k),
}


def _declare() -> None:
    for name, fold in _FOLDS.items():

        def reduced(
            call: Call, images: Images, given: np.ndarray | None = None, fold: _Fold = fold
        ) -> Images:
            axes = call.ints("axes", given)
            keep = bool(call["keepdims"])
            rank = images.ndim
            if isinstance(images, ChannelsLast) and axes:
                places = tuple(place_of(axis_of(a, rank), rank) for a in axes)
                if keep:
                    return ChannelsLast(_folded(call, images.array, places, True, fold))
                if set(places) == set(range(1, rank - 1)):  # batch and channels are left, in order
                    return _folded(call, images.array, places, False, fold)
            x = as_in_graph(images)
            if not axes:
                if call.get("noop_with_empty_axes"):
                    return cast_to(fold(x, (), True), x.dtype)
                axes = list(range(rank))
            chosen = tuple(axis_of(a, rank) for a in axes) if rank else ()
            return _folded(call, x, chosen, keep, fold)

        operator(name, host=(1,), layout="own")(reduced)


def _folded(call: Call, x: Array, axes: tuple[int, ...], keep: bool, fold: _Fold) -> Array:
    """`x` without these axes, or with 1 in their place."""
    if name_of(call) in ("ReduceMax", "ReduceMin") and x.dtype.is_bool:
        function = reduction.any if name_of(call) == "ReduceMax" else reduction.all
        return function(x, axes, keep)
    if not all(x.shape[a] for a in axes) and name_of(call) in ("ReduceMax", "ReduceMin"):
        return _of_nothing(call, x, axes, keep)
    return cast_to(fold(x, axes, keep), x.dtype)


def name_of(call: Call) -> str:
    """The operator's name."""
    return call.node.op


def _of_nothing(call: Call, x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    """The maximum of nothing is the least value, the minimum the largest."""
    sign = -1 if call.node.op == "ReduceMax" else 1
    if x.dtype.is_integer:
        bounds = np.iinfo(x.dtype.numpy)
        value: float = bounds.min if sign < 0 else bounds.max
    else:
        value = sign * float("inf")
    sizes = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
    return full(tuple(sizes), value, x.dtype)


_declare()


@operator("CumSum", host=(1,))
def cumulative_sum(call: Call, x: Array, axis: np.ndarray) -> Array:
    """Running sums along an axis; `reverse` and `exclusive` as for `kerascl.cumsum`."""
    return _cumulative(call, x, int(axis.reshape(())), "sum")


@operator("CumProd", host=(1,))
def cumulative_product(call: Call, x: Array, axis: np.ndarray) -> Array:
    """Running products along an axis, with the attributes of running sums."""
    return _cumulative(call, x, int(axis.reshape(())), "prod")


def _cumulative(call: Call, x: Array, axis: int, kind: str) -> Array:
    reverse, exclusive = bool(call["reverse"]), bool(call["exclusive"])
    y = scan.cumulative(x, kind, axis_of(axis, x.ndim), reverse, exclusive)
    return cast_to(y, x.dtype)


# -- softmax ------------------------------------------------------------------------
def _flattened(call: Call, x: Array, function: Callable[[Array, int], Array]) -> Array:
    """Before opset 13 everything from an axis on was one axis."""
    if call.version >= 13:
        return function(x, call.axis(x.ndim))
    axis = axis_of(call["axis"], x.ndim)
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    flat = reshape_to(x, (rows, x.size // rows if rows else 0))
    return reshape_to(function(flat, 1), x.shape)


@operator("Softmax")
def softmax(call: Call, x: Array) -> Array:
    """exp(x) over its sum along an axis; before opset 13 over all axes from that one on."""
    return _flattened(call, x, nn.softmax)


@operator("LogSoftmax")
def log_softmax(call: Call, x: Array) -> Array:
    """The logarithm of the softmax, over the same axes."""
    return _flattened(call, x, nn.log_softmax)


@operator("Hardmax")
def hardmax(call: Call, x: Array) -> Array:
    """1 at the first largest element, else 0, over the axes of a softmax."""
    def first(x: Array, axis: int) -> Array:
        return nn.one_hot(reduction.argmax(x, axis), x.shape[axis], axis, x.dtype)

    return _flattened(call, x, first)
