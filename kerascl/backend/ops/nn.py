"""`keras.ops.nn`: activations, convolutions, pooling, normalisation, losses, attention."""

from __future__ import annotations

import inspect

from keras.src.backend.common.backend_utils import compute_conv_transpose_padding_args_for_jax
from keras.src.backend.config import epsilon as keras_epsilon
from keras.src.backend.config import floatx, standardize_data_format

from kerascl.backend.ops import sparse as rules
from kerascl.backend.ops.conversion import convert_to_tensor, find_dtype
from kerascl.backend.ops.nn_blocks import depth_to_space, fold, space_to_depth, unfold
from kerascl.backend.ops.nn_ctc import ctc_decode, ctc_loss
from kerascl.core.array import Array
from kerascl.ops import attention, convolution, nn, pointwise, pooling
from kerascl.ops.creation import arange
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import cast_to, in_float32
from kerascl.ops.movement import flip
from kerascl.ops.pointwise import log10, square, where
from kerascl.ops.reduction import mean
from kerascl.ops.scan import cumsum
from kerascl.ops.sorting import sort
from kerascl.ops.sparse import SparseArray
from kerascl.ops.views import reshape_to

__all__ = [
    "adaptive_average_pool", "adaptive_max_pool", "average_pool", "batch_normalization",
    "binary_crossentropy", "categorical_crossentropy", "celu", "conv", "conv_transpose",
    "ctc_decode", "ctc_loss", "depth_to_space", "depthwise_conv", "dot_product_attention", "elu",
    "fold", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu",
    "log_sigmoid", "log_softmax", "max_pool", "moments", "multi_hot", "one_hot", "psnr", "relu",
    "relu6", "selu", "separable_conv", "sigmoid", "silu", "soft_shrink", "softmax", "softplus",
    "softsign", "space_to_depth", "sparse_categorical_crossentropy", "sparse_plus",
    "sparse_sigmoid", "sparsemax", "squareplus", "tanh", "tanh_shrink", "threshold", "unfold",
]  # fmt: skip


def _activation(function):
    """A Keras activation from an array function with the same parameters."""

    def activation(x, *args, **kwargs) -> Array:
        return function(convert_to_tensor(x), *args, **kwargs)

    activation.__name__ = activation.__qualname__ = function.__name__
    activation.__doc__ = function.__doc__
    signature = inspect.signature(function)
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD  # in Keras, not in the array API
    parameters = [
        p.replace(kind=named) if p.kind is inspect.Parameter.POSITIONAL_ONLY else p
        for p in signature.parameters.values()
    ]
    activation.__signature__ = signature.replace(parameters=parameters)
    return activation


relu = _activation(nn.relu)
relu6 = _activation(nn.relu6)
sigmoid = _activation(pointwise.sigmoid)
sparse_sigmoid = _activation(nn.sparse_sigmoid)
tanh = _activation(pointwise.tanh)
tanh_shrink = _activation(nn.tanh_shrink)
softplus = _activation(nn.softplus)
softsign = _activation(nn.softsign)
soft_shrink = _activation(nn.soft_shrink)
sparse_plus = _activation(nn.sparse_plus)
silu = _activation(nn.silu)
squareplus = _activation(nn.squareplus)
log_sigmoid = _activation(nn.log_sigmoid)
leaky_relu = _activation(nn.leaky_relu)
hard_sigmoid = _activation(nn.hard_sigmoid)
hard_silu = _activation(nn.hard_silu)
elu = _activation(nn.elu)
selu = _activation(nn.selu)
gelu = _activation(nn.gelu)
celu = _activation(nn.celu)
glu = _activation(nn.glu)
hard_tanh = _activation(nn.hard_tanh)
hard_shrink = _activation(nn.hard_shrink)
threshold = _activation(nn.threshold)
softmax = _activation(nn.softmax)
log_softmax = _activation(nn.log_softmax)


def sparsemax(x, axis: int = -1) -> Array:
    """The closest point of the probability simplex, along `axis`."""
    x = convert_to_tensor(x)
    if x.dtype.is_complex:
        raise TypeError(f"sparsemax: x has dtype {x.dtype.name}; it must be real")
    x = x if x.dtype.is_float else cast_to(x, find_dtype(floatx()))
    size = x.shape[axis]
    descending = flip(sort(x, axis=axis), axis)
    sums = cumsum(descending, axis=axis)
    shape = [1] * x.ndim
    shape[axis] = size
    rank = reshape_to(arange(1, size + 1, dtype=x.dtype), tuple(shape))
    support = descending - (sums - 1) / rank > 0
    count = total(cast_to(support, x.dtype), axis, keepdims=True)
    # the sum of the supported logits
    top = total(where(support, descending, 0), axis, keepdims=True)
    return nn.relu(x - (top - 1) / count)


# -- pooling and convolution ----------------------------------------------------------
def _channels_first(data_format) -> bool:
    return standardize_data_format(data_format) == "channels_first"


def max_pool(inputs, pool_size, strides=None, padding="valid", data_format=None) -> Array:
    """The largest element of each window."""
    inputs = convert_to_tensor(inputs)
    return pooling.max_pool(inputs, pool_size, strides, padding, _channels_first(data_format))


def average_pool(inputs, pool_size, strides=None, padding="valid", data_format=None) -> Array:
    """The mean of each window's elements inside the input."""
    inputs = convert_to_tensor(inputs)
    return pooling.average_pool(inputs, pool_size, strides, padding, _channels_first(data_format))


def adaptive_max_pool(inputs, output_size, data_format=None) -> Array:
    """The largest elements of `output_size` even windows along each spatial dimension."""
    inputs = convert_to_tensor(inputs)
    return pooling.adaptive_max_pool(inputs, output_size, _channels_first(data_format))


def adaptive_average_pool(inputs, output_size, data_format=None) -> Array:
    """The means of `output_size` even windows along each spatial dimension."""
    inputs = convert_to_tensor(inputs)
    return pooling.adaptive_average_pool(inputs, output_size, _channels_first(data_format))


def conv(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1) -> Array:
    """Convolution over one to three spatial dimensions, with groups by the kernel's shape."""
    kernel = convert_to_tensor(kernel)
    inputs = convert_to_tensor(inputs, dtype=kernel.dtype)
    first = _channels_first(data_format)
    channels, depth = inputs.shape[1 if first else -1], kernel.shape[-2]
    if channels % depth > 0:
        raise ValueError(
            "The number of input channels must be evenly divisible by "
            f"kernel's in_channels. Received input channels {channels} and "
            f"kernel in_channels {depth}. "
        )
    result = convolution.conv(inputs, kernel, strides, padding, dilation_rate, first)
    if result.size == 0 and inputs.size != 0:
        raise ValueError(
            "The convolution operation resulted in an empty output. "
            "This can happen if the input is too small for the given "
            "kernel size, strides, dilation rate, and padding mode. "
            "Please check the input shape and convolution parameters."
        )
    return result


def _check_channels(inputs: Array, channels: int, data_format: str) -> None:
    found = inputs.shape[1 if data_format == "channels_first" else -1]
    if found != channels:
        raise ValueError(
            "The number of input channels must match the kernel's input "
            f"channels. Received: input channels={found}, kernel "
            f"input channels={channels}, data_format='{data_format}'."
        )


def depthwise_conv(
    inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1
) -> Array:
    """Convolution of each channel with filters of its own; kernel (*window, channels, multiple)."""
    inputs, kernel = convert_to_tensor(inputs), convert_to_tensor(kernel)
    data_format = standardize_data_format(data_format)
    _check_channels(inputs, kernel.shape[-2], data_format)
    first = data_format == "channels_first"
    return convolution.depthwise_conv(inputs, kernel, strides, padding, dilation_rate, first)


def separable_conv(
    inputs, depthwise_kernel, pointwise_kernel, strides=1, padding="valid", data_format=None,
    dilation_rate=1,
) -> Array:  # fmt: skip
    """A depthwise convolution, then one with windows of a single element."""
    inputs = depthwise_conv(inputs, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv(inputs, pointwise_kernel, 1, "valid", data_format)


def conv_transpose(
    inputs, kernel, strides=1, padding="valid", output_padding=None, data_format=None,
    dilation_rate=1,
) -> Array:  # fmt: skip
    """The gradient of a convolution for its input; kernel (*window, out channels, in channels)."""
    inputs, kernel = convert_to_tensor(inputs), convert_to_tensor(kernel)
    data_format = standardize_data_format(data_format)
    _check_channels(inputs, kernel.shape[-1], data_format)
    pads = compute_conv_transpose_padding_args_for_jax(
        input_shape=inputs.shape,
        kernel_shape=kernel.shape,
        strides=strides,
        padding=padding,
        output_padding=output_padding,
        dilation_rate=dilation_rate,
    )
    first = data_format == "channels_first"
    return convolution.conv_transpose(inputs, kernel, strides, pads, dilation_rate, first)


# -- encodings and losses --------------------------------------------------------------
def one_hot(x, num_classes, axis=-1, dtype=None, sparse=False) -> Array | SparseArray:
    """1 at each index along a new `axis`; all 0 for indices out of range."""
    run = rules.one_hot if sparse else nn.one_hot
    return run(convert_to_tensor(x), num_classes, axis, find_dtype(dtype or floatx()))


def multi_hot(x, num_classes, axis=-1, dtype=None, sparse=False) -> Array | SparseArray:
    """The union of the one-hot codes of each row."""
    run = rules.multi_hot if sparse else nn.multi_hot
    return run(convert_to_tensor(x), num_classes, axis, find_dtype(dtype or floatx()))


def categorical_crossentropy(target, output, from_logits=False, axis=-1) -> Array:
    """-sum(target * log(output)) along `axis`."""
    target, output = convert_to_tensor(target), convert_to_tensor(output)
    if target.shape != output.shape:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape. "
            f"Received: target.shape={target.shape}, output.shape={output.shape}"
        )
    if target.ndim < 1:
        raise ValueError(
            "Arguments `target` and `output` must be at least rank 1. "
            f"Received: target.shape={target.shape}, output.shape={output.shape}"
        )
    return nn.categorical_crossentropy(target, output, from_logits, axis, keras_epsilon())


def sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1) -> Array:
    """-log(output[target]) along `axis`, for integer targets."""
    target, output = convert_to_tensor(target, dtype="int32"), convert_to_tensor(output)
    if target.ndim == output.ndim and target.shape[-1:] == (1,):
        target = reshape_to(target, target.shape[:-1])
    if output.ndim < 1:
        raise ValueError(
            f"Argument `output` must be at least rank 1. Received: output.shape={output.shape}"
        )
    if target.shape != output.shape[:-1]:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape "
            "up until the last dimension: "
            f"target.shape={target.shape}, output.shape={output.shape}"
        )
    return nn.sparse_categorical_crossentropy(target, output, from_logits, axis, keras_epsilon())


def binary_crossentropy(target, output, from_logits=False) -> Array:
    """-(target * log(output) + (1 - target) * log(1 - output)), elementwise."""
    target, output = convert_to_tensor(target), convert_to_tensor(output)
    if target.shape != output.shape:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape. "
            f"Received: target.shape={target.shape}, output.shape={output.shape}"
        )
    return nn.binary_crossentropy(target, output, from_logits, keras_epsilon())


# -- normalisation, attention -------------------------------------------------------------
def moments(x, axes, keepdims=False, synchronized=False) -> tuple[Array, Array]:
    """Mean and variance over `axes`."""
    if synchronized:
        raise NotImplementedError(
            "Argument synchronized=True is not supported with the kerascl backend."
        )
    return nn.moments(convert_to_tensor(x), axes, keepdims)


def batch_normalization(x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, with vectors along `axis`."""
    return nn.batch_normalization(
        convert_to_tensor(x),
        convert_to_tensor(mean),
        convert_to_tensor(variance),
        axis,
        None if offset is None else convert_to_tensor(offset),
        None if scale is None else convert_to_tensor(scale),
        epsilon,
    )


@in_float32
def psnr(x1, x2, max_val) -> Array:
    """Peak signal-to-noise ratio in decibels, over all elements."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    if x1.shape != x2.shape:
        raise ValueError(
            f"Input shapes {x1.shape} and {x2.shape} must match for PSNR calculation. "
        )
    top = convert_to_tensor(max_val, dtype=x2.dtype)
    return 20 * log10(top) - 10 * log10(mean(square(x1 - x2)))


def dot_product_attention(
    query, key, value, bias=None, mask=None, scale=None, is_causal=False, flash_attention=None,
    attn_logits_soft_cap=None,
) -> Array:  # fmt: skip
    """softmax(query @ key^T * scale + bias) @ value, for each head; see `keras.ops`.

    `flash_attention` changes nothing: kernels that keep no logits serve whatever they can.  A soft
    cap is refused as in every Keras backend but JAX on TPUs.
    """
    if attn_logits_soft_cap is not None:
        raise ValueError("`attn_logits_soft_cap` is not supported in the kerascl backend.")
    query, key, value = (convert_to_tensor(x) for x in (query, key, value))
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(
            "`dot_product_attention` only supports 4D inputs. "
            f"Received: query.shape={query.shape}, key.shape={key.shape}, "
            f"value.shape={value.shape}."
        )
    bias = None if bias is None else convert_to_tensor(bias)
    mask = None if mask is None else convert_to_tensor(mask)
    return attention.dot_product_attention(query, key, value, bias, mask, scale, is_causal)
