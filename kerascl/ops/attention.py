"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerascl.core.array import Array, ArrayLike, apply_multi
from kerascl.core.context import current, precision, precision_scope
from kerascl.core.op import Op
from kerascl.core.tape import GradientTape
from kerascl.core.types import Attrs, Gradients, Results
from kerascl.dtypes import bool_, float32, promote
from kerascl.ops.batched import element_by_element, more_rows
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    library_operation,
)
from kerascl.ops.movement import iota, transpose
from kerascl.ops.nn import softmax
from kerascl.ops.pointwise import exp, log, maximum, not_equal, where
from kerascl.ops.random import checked_key, keep_limit, kept
from kerascl.ops.reduction import max, sum
from kerascl.ops.views import expand_to, reshape_to

__all__ = ["dot_product_attention"]

HIDDEN = -2.3819763e38  # the statistic of queries that see no key


def dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, bias: ArrayLike | None = None,
    mask: ArrayLike | None = None, scale: float | None = None, is_causal: bool = False,
    dropout_rate: float = 0.0, dropout_key: ArrayLike | None = None,
) -> Array:  # fmt: skip
    """dropout(softmax(query @ key^T * scale + bias)) @ value, for each head.

    Args:
        query: (batch, T, heads, width).
        key: (batch, S, groups, width), where `groups` divides `heads`: neighbouring heads share.
        value: (batch, S, groups, depth).
        bias: broadcast to (batch, heads, T, S).
        mask: bool, broadcast to (batch, heads, T, S); False hides a key.
        scale: 1 / sqrt(width) by default.
        is_causal: key s is hidden from query t < s.
        dropout_rate: the chance, below 1, that the weight of a key is 0 for a query of a head; the
            others are divided by 1 - dropout_rate.
        dropout_key: a key of `kerascl.random`, needed with `dropout_rate`.  The weights that are
            kept are those that `kerascl.random.dropout` keeps of an array (batch, heads, T, S).

    Returns:
        (batch, T, heads, depth); logits and softmax are computed in at least float32.

    Raises:
        ValueError: when the shapes do not fit; for another `dropout_rate`, or one without a key.
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
    dropout, drawn = None, None
    if not 0 <= dropout_rate < 1:
        raise ValueError(
            "dot_product_attention: dropout_rate must be at least 0 and less than 1, not "
            f"{dropout_rate}"
        )
    if dropout_rate > 0:
        if dropout_key is None:
            raise ValueError(
                "dot_product_attention: dropout_rate needs dropout_key, for example "
                "kerascl.random.key(0)"
            )
        drawn = checked_key(dropout_key)
        dropout = (keep_limit(1.0 - dropout_rate), 1.0 / (1.0 - dropout_rate))
    rest = tuple(x for x in (bias, mask, drawn) if x is not None)
    attrs = (scale, bool(is_causal), bias is not None, precision(), dropout)
    results = [((batch, length, heads, value.shape[-1]), dtype), (shape[:3], float32)]
    return apply_multi(ATTENTION, (query, key, value, *rest), attrs, results)[0]


def formula(query: Array, key: Array, value: Array, *rest: Any) -> tuple[Array, Array]:
    """The results of `ATTENTION` by products and a softmax, with the logits in memory."""
    bias, mask, drawn, (scale, causal, _, precision, dropout) = _options(rest)
    with precision_scope(precision):
        logits = _logits(query, key, bias, mask, scale, causal)
        weights = cast_to(softmax(logits, -1), query.dtype)
        if dropout is not None:
            limit, factor = dropout
            weights = where(kept(drawn, weights.shape, limit), weights * factor, 0)
        heads = matmul(weights, _heads(value, query.shape[2]))
    top = max(logits, -1, keepdims=True)
    statistic = (top + log(sum(exp(logits - top), -1, keepdims=True))) * math.log2(math.e)
    statistic = maximum(cast_to(reshape_to(statistic, logits.shape[:3]), float32), HIDDEN)
    return transpose(heads, (0, 2, 1, 3)), statistic


def gradient_formula(
    query: Array,
    key: Array,
    value: Array,
    upstream: Array,
    statistic: Array,
    weighted: Array,
    *rest: Any,
) -> list[Array]:
    """The results of `ATTENTION_GRAD`: the derivative of the formula, which keeps its logits."""
    return _slopes((query, key, value), upstream, query, key, value, *rest)


def _slopes(sources: Sequence[Array], upstream: Array, *inputs: Any) -> list[Array]:
    """The formula's gradients, as array code that has derivatives of its own."""
    with GradientTape() as tape:
        plain = formula(*inputs)[0]
    found: list[Array] = tape.gradient(plain, list(sources), upstream)
    return found


def _options(rest: Sequence[Any]) -> tuple[Any, Any, Any, Sequence[Any]]:
    """Bias, mask and dropout's key, None where there is none, and attributes, from what follows the
    values."""
    *extra, scale, causal, has_bias, precision, dropout = rest
    bias = extra.pop(0) if has_bias else None
    drawn = extra.pop() if dropout is not None else None
    mask = extra[0] if extra else None
    return bias, mask, drawn, (scale, causal, has_bias, precision, dropout)


def _logits(
    query: Array, key: Array, bias: Array | None, mask: Array | None, scale: float, causal: bool
) -> Array:
    wide = promote(query.dtype, float32)
    heads = query.shape[2]
    keys = transpose(_heads(key, heads), (0, 1, 3, 2))
    logits = matmul(_heads(query, heads), keys, dtype=wide) * scale
    if bias is not None:
        logits = logits + cast_to(bias, wide)
    if causal:
        past = iota(logits.shape, 3) <= iota(logits.shape, 2)
        mask = past if mask is None else mask & past
    if mask is None:
        return logits
    # finite, so that rows that see nothing become uniform instead of NaN
    return where(mask, logits, -0.7 * float(np.finfo(wide.numpy).max))


def _vjp(g: Array, y: Array, query: Array, key: Array, value: Array, *rest: Any) -> Gradients:
    bias, mask, drawn, attrs = _options(rest)
    inputs = (query, key, value, *rest)
    upstream = cast_to(g[0], query.dtype)
    none = (None,) * ((mask is not None) + (drawn is not None))
    sources = (query, key, value) if bias is None else (query, key, value, bias)
    if current.tapes:  # somebody wants higher derivatives
        return (*_slopes(sources, upstream, *inputs), *none)
    out, statistic = y
    weighted = sum(cast_to(upstream, float32) * cast_to(out, float32), -1)
    reads = (query, key, value, upstream, statistic, weighted, *rest[: len(rest) - len(attrs)])
    results = [(x.shape, x.dtype) for x in (query, key, value)]
    grads = apply_multi(ATTENTION_GRAD, reads, tuple(attrs), results)
    # as large as the logits, which no kernel keeps; computed only if somebody wants it
    more = () if bias is None else _slopes((bias,), upstream, *inputs)
    return (*grads, *more, *none)


def _batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    """Batches as more rows; with dropout, whose numbers are those of one element's places, one
    after the other."""
    rule = more_rows if attrs[-1] is None else element_by_element
    return rule(size, op, inputs, batched, attrs, results)


# Inputs: query, key, value, then bias and mask of the logits' shape and dropout's key where there
# are any.  Attributes: (scale, causal, has_bias, precision, dropout), where dropout is None or
# (limit of `random.kept`, factor of what is kept).  Results: the heads' outputs, and a statistic of
# each row (batch, heads, length): log2 of the sum of 2^logit, with logits times log2(e).
# Which device computes it by a kernel and which by `formula` is for the compiler to choose.
ATTENTION = library_operation("attention", _vjp, outputs=2, batch=_batch)
# Inputs: query, key, value, gradient of the output, statistic, sum of gradient times output for
# each row (batch, length, heads), then bias, mask and dropout's key.  Results: gradients of query,
# key, value.
ATTENTION_GRAD = library_operation("attention_grad", outputs=3, batch=_batch)
# The same where there is dropout, made by the compiler: a third result says which weights are kept,
# uint32 (batch, heads, length, words), as `kernels.attention.problem.KeptProblem` has it; it is the
# last input of the gradients.
ATTENTION_KEPT = library_operation("attention_kept", outputs=3, batch=_batch)
ATTENTION_KEPT_GRAD = library_operation("attention_kept_grad", outputs=3, batch=_batch)


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
