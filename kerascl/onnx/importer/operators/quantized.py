"""Quantised operators: integers with a scale and a zero point.

Products of integers are sums in int32, as the standard has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer import types
from kerascl.onnx.importer.graph import Call, axis_of, device
from kerascl.onnx.importer.layout import ChannelsLast, Images, as_in_graph
from kerascl.onnx.importer.operators.casts import code_of, converted
from kerascl.onnx.importer.operators.convolution import (
    along_channels,
    convolved,
    pads_of,
)
from kerascl.onnx.importer.rules import operator
from kerascl.ops import pointwise, reduction
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import pad, repeat_evenly
from kerascl.ops.views import reshape_to

_INT32, _FLOAT32 = BY_NAME["int32"], BY_NAME["float32"]


def bounds(code: int) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    if code in types.NARROW:
        kind = types.NARROW[code]
        count = 1 << kind.bits
        return (-count // 2, count // 2 - 1) if kind.signed else (0, count - 1)
    info = np.iinfo(types.numpy_type(code))
    return int(info.min), int(info.max)


def _is_float(code: int) -> bool:
    if code in types.NARROW:
        return not types.NARROW[code].bits
    return types.device_type(code).is_float


def _laid_out(call: Call, v: Array, x: Array) -> Array:
    """A scale or zero point for all of `x`, for each slice of an axis, or for blocks of it."""
    if v.size == 1:
        return reshape_to(v, ())
    axis = axis_of(call.get("axis", 1), x.ndim)
    block = call.get("block_size", 0)
    if v.ndim == 1 and not block:
        return reshape_to(v, tuple(v.size if a == axis else 1 for a in range(x.ndim)))
    if not block:
        block = -(-x.shape[axis] // v.shape[axis])
    wide = repeat_evenly(v, block, axis)
    index = tuple(slice(0, n) for n in x.shape)
    return wide[index]


def _in_its_layout(function: Callable[..., Any], call: Call, x: Any, scale: Any, zero: Any) -> Any:
    """What `function` makes of `x` by a scale and a zero point; images stay as they lie where one
    number serves all of them."""
    if isinstance(x, ChannelsLast) and all(v is None or device(v).size == 1 for v in (scale, zero)):
        y = function(call, x.array, device(scale), zero)
        if isinstance(y, Array):
            return ChannelsLast(y)
    return function(call, device(x), device(scale), zero)


@operator("QuantizeLinear", settings=(1, 2), raw=True, layout="own")
def quantize_linear(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    """round(x / scale) + zero, limited to the range of its integers; or x / scale + zero in a small
    float, as `converted` makes it.

    Args:
        scale, zero: one number, one for each slice of `axis`, or one for each block along it.  The
            type of `zero`, or `output_dtype`, is that of the result; uint8 without both.
    """
    return _in_its_layout(_quantized, call, x, scale, zero)


def _quantized(call: Call, x: Array, scale: Array, zero: Any) -> Any:
    code = call.get("output_dtype") or (TensorProto.UINT8 if zero is None else code_of(zero))
    precision = call.get("precision") or 0
    if precision:
        kind = types.device_type(precision)
        x, scale = cast_to(x, kind), cast_to(scale, kind)
    else:
        x = cast_to(x, _FLOAT32) if x.dtype.is_integer else x
    saturate = bool(call.get("saturate", 1))
    steps = x / _laid_out(call, cast_to(scale, x.dtype), x)
    if _is_float(code):
        if zero is not None:
            steps = steps + _laid_out(call, cast_to(device(zero), steps.dtype), x)
        return converted(steps, code, saturate)
    rounded = pointwise.round(steps)
    return _saturated(rounded, None if zero is None else _laid_out(call, device(zero), x), code)


def _saturated(rounded: Array, zero: Array | None, code: int) -> Any:
    low, high = bounds(code)
    # in float first, so that numbers beyond int32 do not wrap
    y = cast_to(pointwise.clip(cast_to(rounded, _FLOAT32), -(2.0**24), 2.0**24), _INT32)
    if zero is not None:
        y = y + cast_to(zero, _INT32)
    return converted(pointwise.clip(y, low, high), code)


@operator("DequantizeLinear", settings=(1, 2), raw=True, layout="own")
def dequantize_linear(call: Call, x: Any, scale: Any, zero: Any = None) -> Images:
    """(x - zero) * scale, with scales and zero points as for `quantize_linear`."""
    return _in_its_layout(_dequantized, call, x, scale, zero)


def _dequantized(call: Call, x: Array, scale: Array, zero: Any) -> Array:
    code = call.get("output_dtype")
    dtype = types.device_type(code) if code else scale.dtype
    if x.dtype.is_integer:
        values = cast_to(x, _INT32)
        if zero is not None:
            values = values - cast_to(_laid_out(call, device(zero), x), _INT32)
    else:
        values = cast_to(x, _FLOAT32)
        if zero is not None:
            values = values - cast_to(_laid_out(call, device(zero), x), _FLOAT32)
    wide = cast_to(values, _FLOAT32) * cast_to(_laid_out(call, scale, x), _FLOAT32)
    return cast_to(wide, dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call, x: Array) -> tuple[Array, Array, Array]:
    """`x` in uint8, and the scale and zero point that cover its range and 0."""
    low = pointwise.minimum(reduction.min(x), 0.0)
    high = pointwise.maximum(reduction.max(x), 0.0)
    scale = (high - low) / 255.0
    scale = pointwise.where(scale == 0, 1.0, scale)
    zero = pointwise.clip(pointwise.round(-low / scale), 0.0, 255.0)
    steps = pointwise.clip(pointwise.round(x / scale) + zero, 0.0, 255.0)
    return cast_to(steps, BY_NAME["uint8"]), scale, cast_to(zero, BY_NAME["uint8"])


# -- products of integers -----------------------------------------------------------
def _centred(x: Array, zero: Array | None, axis: int) -> Array:
    """int32 differences from a zero point, one for all or one for each slice of an axis."""
    x = cast_to(x, _INT32)
    if zero is None:
        return x
    zero = cast_to(zero, _INT32)
    if zero.ndim == 1 and zero.size > 1:
        shape = [1] * x.ndim
        shape[axis] = zero.size
        zero = reshape_to(zero, tuple(shape))
    elif zero.size == 1:
        zero = reshape_to(zero, ())
    return x - zero


@operator("MatMulInteger", settings=(2, 3))
def matmul_integer(
    call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    """The int32 product of a - a_zero and b - b_zero; by row of `a` and column of `b`."""
    return matmul(_centred(a, a_zero, max(a.ndim - 2, 0)), _centred(b, b_zero, b.ndim - 1))


def _conv_integer(
    call: Call, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None
) -> Array:
    rank = x.ndim - 2
    strides = call.get("strides") or [1] * rank
    dilation = call.get("dilations") or [1] * rank
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    pads = pads_of(call, x.shape[2:], extents, strides)
    x, w = _centred(x, x_zero, 1), _centred(w, w_zero, 0)
    x = pad(x, [(0, 0), (0, 0), *pads])
    return as_in_graph(convolved(x, w, strides, [(0, 0)] * rank, dilation))


@operator("ConvInteger", settings=(2, 3))
def conv_integer(
    call: Call, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    """The int32 convolution of x - x_zero with w - w_zero, zeros around."""
    return _conv_integer(call, x, w, x_zero, w_zero)


@operator("QLinearMatMul", settings=(1, 2, 4, 5, 6, 7), raw=True)
def qlinear_matmul(
    call: Call, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any,
    y_scale: Any, y_zero: Any,
) -> Any:  # fmt: skip
    """The product of two quantised matrices, quantised by `y_scale` and `y_zero`.

    Sums are int32; the type of `y_zero` is that of the result.
    """
    a, b = device(a), device(b)
    scales = [cast_to(device(s), _FLOAT32) for s in (a_scale, b_scale, y_scale)]
    product = matmul(
        _centred(a, device(a_zero), max(a.ndim - 2, 0)), _centred(b, device(b_zero), b.ndim - 1)
    )
    left = scales[0]
    if left.ndim == 1 and left.size > 1:
        left = reshape_to(left, (left.size, 1))
    factor = left * scales[1] / scales[2]
    steps = cast_to(product, _FLOAT32) * (reshape_to(factor, ()) if factor.size == 1 else factor)
    return _saturated(pointwise.round(steps), device(y_zero), code_of(y_zero))


@operator("QLinearConv", settings=(1, 2, 4, 5, 6, 7), raw=True)
def qlinear_conv(
    call: Call, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any,
    y_scale: Any, y_zero: Any, bias: Any = None,
) -> Any:  # fmt: skip
    """The convolution of quantised images and kernels, quantised by `y_scale` and `y_zero`.

    Args:
        w_scale: one number, or one for each filter.
        bias: int32 (filters,), in units of x_scale * w_scale.
    """
    x, w = device(x), device(w)
    total = _conv_integer(call, x, w, device(x_zero), device(w_zero))
    if bias is not None:
        total = total + along_channels(cast_to(device(bias), _INT32), total.ndim)
    by_filter = cast_to(device(w_scale), _FLOAT32)
    factor = reshape_to(by_filter, (by_filter.size,) + (1,) * (x.ndim - 2))
    scale = cast_to(device(x_scale), _FLOAT32) * factor / cast_to(device(y_scale), _FLOAT32)
    steps = pointwise.round(cast_to(total, _FLOAT32) * scale)
    return _saturated(steps, device(y_zero), code_of(y_zero))
