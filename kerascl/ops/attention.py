"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from kerascl.core.array import Array
from kerascl.dtypes import bool_, float32, promote
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import (
    ArrayLike,
    as_array,
    cast_to,
    convert,
    expand_to,
    floating,
    reshape_to,
)
from kerascl.ops.movement import iota, transpose
from kerascl.ops.nn import softmax
from kerascl.ops.pointwise import not_equal, where

__all__ = ["dot_product_attention"]


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
    wide = promote(dtype, float32)
    shape = (batch, heads, length, source)
    query = _heads(query, heads)
    key = transpose(_heads(key, heads), (0, 1, 3, 2))
    logits = matmul(query, key, dtype=wide) * (1 / math.sqrt(width) if scale is None else scale)
    if bias is not None:
        logits = logits + expand_to(_four(cast_to(as_array(bias), wide)), shape)
    visible = None
    if mask is not None:
        mask = as_array(mask)
        visible = expand_to(_four(mask if mask.dtype is bool_ else not_equal(mask, 0)), shape)
    if is_causal:
        past = iota(shape, 3) <= iota(shape, 2)
        visible = past if visible is None else visible & past
    if visible is not None:
        # finite, so that rows that see nothing become uniform instead of NaN
        logits = where(visible, logits, -0.7 * float(np.finfo(wide.numpy).max))
    weights = cast_to(softmax(logits, -1), dtype)
    return transpose(matmul(weights, _heads(value, heads)), (0, 2, 1, 3))


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
