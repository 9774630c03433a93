"""Normalisation and dropout: what behaves differently in training."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from kerascl.backend import random
from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer import types
from kerascl.onnx.importer.graph import Call, axis_of
from kerascl.onnx.importer.layout import ChannelsLast, Grouped, Images, as_in_graph
from kerascl.onnx.importer.rules import operator
from kerascl.ops import nn, pointwise, reduction
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import pad, strided
from kerascl.ops.views import expand_to, reshape_to

_FLOAT32 = BY_NAME["float32"]


@operator("BatchNormalization", statistics=(3, 4), layout="own")
def batch_normalization(
    call: Call, given: Images, scale: Array, bias: Array, mean: Array, variance: Array
) -> Images | tuple[Images, ...]:
    """(N, C, …) normalised by channel, with running statistics or, in training, the batch's own.

    Training assigns the running ones anew, and gives them as results where they are asked for,
    before opset 14 followed by those of the batch.
    """
    training = call.run.training
    if training is None:
        training = _asks_to_train(call)
    training = training and not call.run.frozen
    last = isinstance(given, ChannelsLast)
    x = given.array if isinstance(given, ChannelsLast) else given
    epsilon, axis = call["epsilon"], x.ndim - 1 if last else min(1, x.ndim - 1)
    if not training:
        y = _normalized(x, mean, variance, axis, bias, scale, epsilon)
        return ChannelsLast(y) if last else y
    axes = tuple(a for a in range(x.ndim) if a != axis)
    found_mean, found_variance = nn.moments(x, axes)
    inner = _normalized(x, found_mean, found_variance, axis, bias, scale, epsilon)
    result: Images = ChannelsLast(inner) if last else inner
    momentum = call["momentum"]
    new_mean = _moved(mean, found_mean, momentum)
    new_variance = _moved(variance, found_variance, momentum)
    call.assign(3, new_mean)
    call.assign(4, new_variance)
    if call.results == 1:
        return result
    return (result, new_mean, new_variance, found_mean, found_variance)[: call.results]


def _asks_to_train(call: Call) -> bool:
    if call.version >= 14:
        return bool(call["training_mode"])
    return call.version < 7 and not call.get("is_test", 0) or call.results > 1


def _normalized(
    x: Array, mean: Array, variance: Array, axis: int, bias: Array, scale: Array, epsilon: float
) -> Array:
    y = nn.batch_normalization(x, mean, variance, axis, bias, scale, epsilon)
    return cast_to(y, x.dtype)


def _moved(old: Array, new: Array, momentum: float) -> Array:
    return cast_to(old * momentum + cast_to(new, old.dtype) * (1 - momentum), old.dtype)


@operator("InstanceNormalization", layout="groups")
def instance_normalization(
    call: Call, x: Images | Grouped, scale: Array, bias: Array
) -> Images | Grouped:
    """Each channel of each image, normalised by its own statistics, times `scale` plus `bias`."""
    if isinstance(x, Array):
        axes = tuple(range(2, x.ndim))
        return _scaled(x, axes, call["epsilon"], _along(scale, x.ndim), _along(bias, x.ndim))
    images = x.images if isinstance(x, Grouped) else x
    made = _in_groups(images.array, x.shape[1], call["epsilon"], scale, bias)
    return Grouped(ChannelsLast(made), x.shape[1]) if isinstance(x, Grouped) else ChannelsLast(made)


def _in_groups(x: Array, groups: int, epsilon: float, scale: Array, bias: Array) -> Array:
    """(N, *spatial, C), each group of channels normalised; scale and bias: (groups,) or (C,).

    Moments of channels, which are read as they lie, are then put together.
    """
    n, *pixels, channels = x.shape
    wide = cast_to(x, _FLOAT32) if x.dtype.itemsize < 4 else x
    mean, variance = nn.moments(reshape_to(wide, (n, math.prod(pixels), channels)), 1)
    each = (n, groups, channels // groups)
    own, variance = reshape_to(mean, each), reshape_to(variance, each)
    mean = reduction.mean(own, 2, True)
    variance = reduction.mean(variance + pointwise.square(own - mean), 2, True)

    inverse = pointwise.rsqrt(variance + epsilon)

    def along(v: Array) -> Array:  # (n or 1, groups, 1 or more)
        shape = (v.shape[0], *[1] * len(pixels), channels)
        return reshape_to(expand_to(v, (v.shape[0], *each[1:])), shape)

    scale, bias = (
        reshape_to(cast_to(v, wide.dtype), (1, groups, v.size // groups)) for v in (scale, bias)
    )
    return cast_to((wide - along(mean)) * along(inverse * scale) + along(bias), x.dtype)


def _along(v: Array, rank: int) -> Array:
    return reshape_to(v, (v.size,) + (1,) * (rank - 2))


def _scaled(x: Array, axes: tuple[int, ...], epsilon: float, scale: Array, bias: Array) -> Array:
    wide = cast_to(x, _FLOAT32) if x.dtype.itemsize < 4 else x
    mean, variance = nn.moments(wide, axes, True)
    y = (wide - mean) * pointwise.rsqrt(variance + epsilon)
    return cast_to(y * cast_to(scale, y.dtype) + cast_to(bias, y.dtype), x.dtype)


@operator("LayerNormalization")
def layer_normalization(
    call: Call, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """`x` normalised over all axes from one on, and the mean and inverse deviation it took.

    Statistics are computed in `stash_type` and keep their axes with size 1.
    """
    axes = tuple(range(call.axis(x.ndim), x.ndim))
    stash = types.device_type(call["stash_type"])
    wide = cast_to(x, stash)
    mean, variance = nn.moments(wide, axes, True)
    inverse = pointwise.rsqrt(variance + call["epsilon"])
    y = cast_to((wide - mean) * inverse, x.dtype) * scale
    y = y if bias is None else y + bias
    return cast_to(y, x.dtype), mean, inverse


@operator("RMSNormalization")
def rms_normalization(call: Call, x: Array, scale: Array) -> Array:
    """`x` over its root mean square along all axes from one on, times `scale`.

    The mean is computed in `stash_type`; the result has the dtype of `scale`.
    """
    axes = tuple(range(call.axis(x.ndim), x.ndim))
    wide = cast_to(x, types.device_type(call["stash_type"]))
    square = reduction.mean(pointwise.square(wide), axes, True)
    y = wide * pointwise.rsqrt(square + call["epsilon"])
    return cast_to(cast_to(y, x.dtype) * scale, scale.dtype)


@operator("GroupNormalization", since=21, layout="own")
def group_normalization(call: Call, x: Images, scale: Array, bias: Array) -> Images:
    """(N, C, …) normalised in `num_groups` groups of channels; scale and bias: (C,)."""
    groups = call["num_groups"]
    if isinstance(x, ChannelsLast) and call.get("stash_type", 1) == TensorProto.FLOAT:
        return ChannelsLast(_in_groups(x.array, groups, call["epsilon"], scale, bias))
    x = as_in_graph(x)
    wide = cast_to(x, types.device_type(call.get("stash_type", 1)))
    grouped = reshape_to(wide, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    mean, variance = nn.moments(grouped, (2,), True)
    y = (grouped - mean) * pointwise.rsqrt(variance + call["epsilon"])
    y = cast_to(reshape_to(y, x.shape), x.dtype)
    return cast_to(y * _along(scale, x.ndim) + _along(bias, x.ndim), x.dtype)


@operator("LRN")
def local_response(call: Call, x: Array) -> Array:
    """x / (bias + alpha / size * s) ** beta.

    Here s is the sum of the squares of `size` neighbouring channels; beyond the first and the last
    channel there are zeros.
    """
    size = call["size"]
    low = (size - 1) // 2
    edges = [(0, 0), (low, size - 1 - low), *[(0, 0)] * (x.ndim - 2)]
    squares = pad(pointwise.square(x), edges)
    total = None
    for k in range(size):
        starts, stops = [0] * x.ndim, list(squares.shape)
        starts[1], stops[1] = k, k + x.shape[1]
        part = strided(squares, starts, stops, [1] * x.ndim)
        total = part if total is None else total + part
    assert total is not None
    scale = total * (call["alpha"] / size) + call["bias"]
    return cast_to(x / pointwise.power(scale, call["beta"]), x.dtype)


@operator("LpNormalization")
def power_normalization(call: Call, x: Array) -> Array:
    """`x` over its 1- or 2-norm along an axis; 0 where that is 0."""
    axis, p = call.axis(x.ndim), call["p"]
    if p == 1:
        norm = reduction.sum(pointwise.absolute(x), axis, True)
    else:
        norm = pointwise.sqrt(reduction.sum(pointwise.square(x), axis, True))
    return cast_to(pointwise.where(norm == 0, 0.0, x / norm), x.dtype)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Array) -> Array:
    """`x` less its mean over `axes`, over its standard deviation."""
    axes = tuple(axis_of(a, x.ndim) for a in call.get("axes") or (0, 2, 3))
    mean, variance = nn.moments(x, axes, True)
    return cast_to((x - mean) / (pointwise.sqrt(variance) + 1e-9), x.dtype)


# -- chance ----------------------------------------------------------------------
@operator("Dropout", host=(1, 2), layout="elementwise")
def dropout(
    call: Call, x: Array, ratio: np.ndarray | None = None, mode: np.ndarray | None = None
) -> tuple[Array, Array]:
    """`x` with elements zeroed at random and the others scaled up; and which ones stay.

    Only in training; else all stay.  `training` of the model's call decides, or where that is
    left out the third input.

    Raises:
        ValueError: for a ratio outside of [0, 1).
    """
    rate = float(ratio.reshape(())) if ratio is not None else float(call.get("ratio", 0.5))
    training = call.run.training
    if training is None:
        training = bool(mode.reshape(())) if mode is not None else False
    if not training or not rate:
        return x, full(x.shape, True, "bool")
    if not 0 <= rate < 1:
        raise ValueError(f"ratio {rate} is not in [0, 1)")
    if not call.wants(1):
        return random.dropout(x, rate, seed=call.run.seed), x
    keep = random.uniform(x.shape, dtype="float32", seed=call.run.seed) >= rate
    y = pointwise.where(keep, x * (1.0 / (1.0 - rate)), 0)
    return cast_to(y, x.dtype), keep


def _dtype(call: Call, like: Array | None = None) -> str:
    code = call.get("dtype")
    if code is None:
        return "float32" if like is None else like.dtype.name
    return types.device_type(code).name


def _seed(call: Call) -> object:
    given = call.get("seed")
    return call.run.seed if given is None else abs(hash(float(given))) % 2**31


@operator("RandomNormal", "RandomNormalLike")
def random_normal(call: Call, x: Array | None = None) -> Array:
    """Normal numbers, in the attribute `shape` or that of `x`; in `dtype` or that of `x`."""
    shape = tuple(call["shape"]) if x is None else x.shape
    return random.normal(shape, call["mean"], call["scale"], _dtype(call, x), _seed(call))


@operator("RandomUniform", "RandomUniformLike")
def random_uniform(call: Call, x: Array | None = None) -> Array:
    """Numbers drawn evenly from [low, high); shape and dtype as for `random_normal`."""
    shape = tuple(call["shape"]) if x is None else x.shape
    return random.uniform(shape, call["low"], call["high"], _dtype(call, x), _seed(call))


@operator("Bernoulli")
def bernoulli(call: Call, x: Array) -> Array:
    """1 with probability `x`, else 0, in `dtype` or that of `x`."""
    drawn = random.uniform(x.shape, dtype="float32", seed=_seed(call))
    code = call.get("dtype")
    return cast_to(drawn < x, x.dtype if code is None else types.device_type(code))


@operator("Multinomial")
def multinomial(call: Call, x: Array) -> Array:
    """Classes (N, `sample_size`) drawn by the softmax of logits (N, classes)."""
    dtype = types.device_type(call["dtype"]).name
    return random.categorical(x, call["sample_size"], dtype, _seed(call))
