"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerascl.core.array import Array, ArrayLike, apply_multi
from kerascl.core.context import current, product_precision
from kerascl.core.tape import GradientTape
from kerascl.core.types import Gradients
from kerascl.dtypes import bfloat16, bool_, float16, float32, promote
from kerascl.ops.batched import more_rows
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    family,
    floating,
)
from kerascl.ops.movement import iota, transpose
from kerascl.ops.nn import softmax
from kerascl.ops.pointwise import not_equal, where
from kerascl.ops.reduction import sum
from kerascl.ops.views import expand_to, reshape_to

__all__ = ["dot_product_attention"]

MOST_FEATURES = 256  # of one head in the kernels that keep no logits
LEAST_QUERIES = 8
MOST_LOGITS = 1 / 256  # of the memory; a training step keeps those of all layers
MATRIX_FEATURES = 64  # of one head, up to which kernels on matrix units beat the formula


def dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, bias: ArrayLike | None = None,
    mask: ArrayLike | None = None, scale: float | None = None, is_causal: bool = False,
) -> Array:  # fmt: skip
    """softmax(query @ key^T * scale + bias) @ value, for each head.

    Args:
        query: (batch, T, heads, width).
        key: (batch, S, groups, width), where `groups` divides `heads`: neighbouring heads share.
        value: (batch, S, groups, depth).
        bias: broadcast to (batch, heads, T, S).
        mask: bool, broadcast to (batch, heads, T, S); False hides a key.
        scale: 1 / sqrt(width) by default.
        is_causal: key s is hidden from query t < s.

    Returns:
        (batch, T, heads, depth); logits and softmax are computed in at least float32.

    Raises:
        ValueError: when the shapes do not fit.
    """
    (query, key, value), dtype = convert((query, key, value))
    dtype = floating(dtype)[0]
    query, key, value = (cast_to(x, dtype) for x in (query, key, value))
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(
            "dot_product_attention: query, key and value must have 4 dimensions, not shapes "
            f"{query.shape}, {key.shape} and {value.shape}"
        )
    batch, length, heads, width = query.shape
    _, source, groups, _ = key.shape
    if (
        key.shape != (batch, source, groups, width)
        or value.shape[:3] != key.shape[:3]
        or heads % groups
    ):
        raise ValueError(
            f"dot_product_attention: query {query.shape}, key {key.shape} and value {value.shape} "
            "do not fit"
        )
    shape = (batch, heads, length, source)
    scale = 1 / math.sqrt(width) if scale is None else float(scale)
    if bias is not None:
        bias = as_array(bias)
        bias = bias if bias.dtype.is_float else cast_to(bias, promote(dtype, float32))
        bias = expand_to(_four(bias), shape)
    if mask is not None:
        mask = as_array(mask)
        mask = expand_to(_four(mask if mask.dtype is bool_ else not_equal(mask, 0)), shape)
    if _fused(query, value, bias, shape):
        rest = tuple(x for x in (bias, mask) if x is not None)
        precision = product_precision(query.dtype)
        attrs = (scale, bool(is_causal), bias is not None, precision)
        results = [((batch, length, heads, value.shape[-1]), dtype), (shape[:3], float32)]
        return apply_multi(ATTENTION, (query, key, value, *rest), attrs, results)[0]
    return _composite(query, key, value, bias, mask, scale, is_causal)


def _fused(query: Array, value: Array, bias: Array | None, shape: tuple[int, ...]) -> bool:
    """Whether the kernels without logits take it.

    Few queries have small logits anyway.  Where products run on matrix units the plain formula was
    up to three times as fast as the portable kernels: these serve for large logits.  Kernels on
    matrix units take 0.6 to 0.75 times as long as the formula, with gradients (H200, 128 to 1024
    queries and keys of 32 and 64 features); at 2048 as long, but without its memory.
    """
    dtypes = {query.dtype} if bias is None else {query.dtype, bias.dtype}
    features = (query.shape[-1], value.shape[-1])
    usable = (
        dtypes <= {float16, bfloat16, float32}
        and min(features) > 0
        and max(features) <= MOST_FEATURES
        and 0 not in shape
        and shape[2] >= LEAST_QUERIES
    )
    if not usable or not current.engine.matrix_units(query.device):
        return usable
    nbytes = math.prod(shape) * float32.itemsize
    if nbytes > current.engine.memory_bytes(query.device) * MOST_LOGITS:
        return True
    exact = query.dtype is float32 and product_precision(float32) == "highest"
    few = max(features) <= MATRIX_FEATURES
    return few and not exact and current.engine.matrix_attention(query.device)


def _composite(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    scale: float,
    causal: bool,
) -> Array:
    """The plain formula; bias and mask have the logits' shape."""
    heads, dtype = query.shape[2], query.dtype
    wide = promote(dtype, float32)
    logits = _logits(query, key, bias, scale)
    visible = _visible(mask, causal, logits.shape)
    if visible is not None:
        # finite, so that rows that see nothing become uniform instead of NaN
        logits = where(visible, logits, -0.7 * float(np.finfo(wide.numpy).max))
    weights = cast_to(softmax(logits, -1), dtype)
    return transpose(matmul(weights, _heads(value, heads)), (0, 2, 1, 3))


def _logits(query: Array, key: Array, bias: Array | None, scale: float) -> Array:
    wide = promote(query.dtype, float32)
    heads = query.shape[2]
    keys = transpose(_heads(key, heads), (0, 1, 3, 2))
    logits = matmul(_heads(query, heads), keys, dtype=wide) * scale
    return logits if bias is None else logits + cast_to(bias, wide)


def _visible(mask: Array | None, causal: bool, shape: tuple[int, ...]) -> Array | None:
    if not causal:
        return mask
    past = iota(shape, 3) <= iota(shape, 2)
    return past if mask is None else mask & past


def _vjp(g: Array, y: Array, query: Array, key: Array, value: Array, *rest: Any) -> Gradients:
    *extra, scale, causal, has_bias, precision = rest
    bias = extra[0] if has_bias else None
    mask = extra[-1] if len(extra) > has_bias else None
    upstream = cast_to(g[0], query.dtype)
    if current.tapes:
        # somebody wants higher derivatives: those come from the plain formula
        with GradientTape() as tape:
            plain = _composite(query, key, value, bias, mask, scale, causal)
        sources = [query, key, value] + ([bias] if has_bias else [])
        grads = tape.gradient(plain, sources, upstream)
        return (*grads, None) if mask is not None else tuple(grads)
    out, stat = y
    weighted = sum(cast_to(upstream, float32) * cast_to(out, float32), -1)
    inputs = (query, key, value, upstream, stat, weighted, *extra)
    results = [(x.shape, x.dtype) for x in (query, key, value)]
    grads = apply_multi(ATTENTION_GRAD, inputs, (scale, causal, has_bias, precision), results)
    if bias is not None:
        grads += (_bias_gradient(query, key, value, bias, mask, upstream, weighted, scale, causal),)
    return (*grads, None) if mask is not None else grads


def _bias_gradient(
    query: Array,
    key: Array,
    value: Array,
    bias: Array,
    mask: Array | None,
    upstream: Array,
    weighted: Array,
    scale: float,
    causal: bool,
) -> Array:
    """The gradient of the bias, as large as the logits; computed only if somebody wants it."""
    heads, wide = query.shape[2], float32
    logits = _logits(query, key, bias, scale)
    visible = _visible(mask, causal, logits.shape)
    if visible is not None:
        logits = where(visible, logits, -0.7 * float(np.finfo(wide.numpy).max))
    values = transpose(_heads(value, heads), (0, 1, 3, 2))
    back = matmul(_heads(upstream, heads), values, dtype=wide)
    shift = reshape_to(transpose(weighted, (0, 2, 1)), (*logits.shape[:3], 1))
    grad = softmax(logits, -1) * (back - shift)
    return cast_to(grad if visible is None else where(visible, grad, 0), bias.dtype)


# Inputs: query, key, value, then bias and mask of the logits' shape where there are any.
# Attributes: (scale, causal, has_bias, precision).  Results: the heads' outputs, and a statistic of
# each row.
ATTENTION = family("attention", _vjp, outputs=2, batch=more_rows)
# Inputs: query, key, value, gradient of the output, statistic, sum of gradient times output for
# each row (batch, length, heads), then bias and mask.  Results: gradients of query, key, value.
ATTENTION_GRAD = family("attention_grad", outputs=3, batch=more_rows)


def _heads(x: Array, heads: int) -> Array:
    """(batch, length, groups, width) as (batch, heads, length, width)."""
    batch, length, groups, width = x.shape
    x = transpose(x, (0, 2, 1, 3))
    if groups == heads:
        return x
    x = reshape_to(x, (batch, groups, 1, length, width))
    x = expand_to(x, (batch, groups, heads // groups, length, width))
    return reshape_to(x, (batch, heads, length, width))


def _four(x: Array) -> Array:
    return reshape_to(x, (1,) * (4 - x.ndim) + x.shape)
