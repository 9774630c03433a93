"""Attention and rotary embeddings."""

from __future__ import annotations

import math
from typing import Any

from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME
from kerascl.onnx.importer import types
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.rules import operator
from kerascl.ops import nn, pointwise, reduction
from kerascl.ops.attention import dot_product_attention
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import concatenate, iota, pad, repeat_evenly, transpose
from kerascl.ops.views import expand_to, reshape_to

_INT32 = BY_NAME["int32"]


def _heads(x: Array, heads: int) -> Array:
    """(batch, length, heads * width) to (batch, heads, length, width)."""
    if not heads or x.shape[2] % heads:
        raise ValueError(f"{heads} heads do not divide inputs of shape {x.shape}")
    batch, length, width = x.shape
    return transpose(reshape_to(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


@operator("Attention", since=23)
def attention(
    call: Call, q: Array, k: Array, v: Array, mask: Array | None = None,
    past_key: Array | None = None, past_value: Array | None = None, valid: Array | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Scaled dot-product attention of grouped heads: y, present keys and values, logits.

    Inputs are (batch, heads, length, width), or (batch, length, heads * width) with their numbers
    of heads as attributes; y has the queries' form, keys and values are given back by head.
    Where nobody asks for the logits they may be None.  A query that sees no key gives 0.

    Raises:
        ValueError: when the number of heads does not divide three-dimensional inputs.
    """
    joined = q.ndim == 3
    if joined:
        q = _heads(q, call.get("q_num_heads", 0))
        k, v = (_heads(x, call.get("kv_num_heads", 0)) for x in (k, v))
    start: Any = 0
    if past_key is not None and past_value is not None:
        start = past_key.shape[2]
        k, v = concatenate([past_key, k], 2), concatenate([past_value, v], 2)
    present = (k, v)
    length, total = q.shape[2], k.shape[2]
    if valid is not None:
        valid = reshape_to(cast_to(valid, _INT32), (valid.size, 1, 1, 1))
        if past_key is None:
            start = valid - length
    allowed, bias = _hidden(call, q, mask, start, valid, (length, total))
    scale = call.get("scale") or 1 / math.sqrt(q.shape[3])
    if call.wants(3) or call.get("softcap") or call.get("softmax_precision"):
        y, logits = _explicit(call, q, k, v, allowed, bias, scale)
    else:
        queries, keys, values = (transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        y = dot_product_attention(queries, keys, values, bias, allowed, scale)
        y, logits = transpose(y, (0, 2, 1, 3)), None
    some = _some(allowed, bias)
    if some is not None:  # a query that sees no key gives 0
        y = pointwise.where(some, y, 0)
    y = cast_to(y, q.dtype)
    if joined:
        y = reshape_to(transpose(y, (0, 2, 1, 3)), (y.shape[0], length, y.shape[1] * y.shape[3]))
    return y, *present, logits


def _hidden(
    call: Call, q: Array, mask: Array | None, start: Any, valid: Array | None,
    sizes: tuple[int, int],
) -> tuple[Array | None, Array | None]:  # fmt: skip
    """Which keys a query may see (bool), and what is added to its logits, each if there is any."""
    length, total = sizes
    allowed: Any = None
    bias: Any = None
    if mask is not None:
        missing = total - mask.shape[-1]
        edges = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        if mask.dtype.is_bool:
            allowed = pad(mask, edges, "constant", False) if missing else mask
        else:
            bias = pad(mask, edges, "constant", -math.inf) if missing else mask

    def also(condition: Array) -> None:
        nonlocal allowed
        allowed = condition if allowed is None else pointwise.logical_and(allowed, condition)

    key = iota((length, total), 1)
    distance = iota((length, total), 0) + start - key
    if call.get("is_causal"):
        also(distance >= 0)
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    if left >= 0:
        also(distance <= left)
    if right >= 0:
        also(distance >= -right)
    if valid is not None:
        also(reshape_to(iota((total,), 0), (1, 1, 1, total)) < valid)
    return allowed, bias


def _some(allowed: Array | None, bias: Array | None) -> Array | None:
    """Which queries see a key at all."""
    seen = allowed
    if bias is not None:
        finite = bias > -math.inf
        seen = finite if seen is None else pointwise.logical_and(seen, finite)
    return None if seen is None else reduction.any(seen, -1, True)


def _explicit(
    call: Call, q: Array, k: Array, v: Array, allowed: Array | None, bias: Array | None,
    scale: float,
) -> tuple[Array, Array]:  # fmt: skip
    """Attention whose logits are asked for, step by step."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = repeat_evenly(k, groups, 1), repeat_evenly(v, groups, 1)
    root = math.sqrt(scale)
    logits = matmul(q * root, transpose(k, (0, 1, 3, 2)) * root)
    mode, shown = call.get("qk_matmul_output_mode", 0), logits
    cap = call.get("softcap", 0.0)
    if cap > 0:
        logits = pointwise.tanh(logits / cap) * cap
    if mode == 1:
        shown = logits
    if bias is not None:
        logits = logits + bias
    if allowed is not None:
        logits = pointwise.where(expand_to(_four(allowed), logits.shape), logits, -math.inf)
    if mode == 2:
        shown = logits
    code = call.get("softmax_precision")
    wide = cast_to(logits, types.device_type(code)) if code else logits
    shares = nn.softmax(wide, -1)
    some = _some(allowed, bias)
    if some is not None:
        shares = pointwise.where(_four(some), shares, 0)
    if mode == 3:
        shown = shares
    return matmul(cast_to(shares, q.dtype), v), cast_to(shown, q.dtype)


def _four(x: Array) -> Array:
    return reshape_to(x, (1,) * (4 - x.ndim) + x.shape)


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    call: Call, x: Array, cos: Array, sin: Array, positions: Array | None = None
) -> Array:
    """`x` with pairs of features turned by the angles of their positions.

    Pairs are neighbours with `interleaved`, else one feature of either half; features beyond
    `rotary_embedding_dim` stay.

    Args:
        x: (batch, heads, length, width), or (batch, length, heads * width) with `num_heads`.
        cos, sin: (positions, width / 2), or (batch, length, width / 2) without `positions`.
        positions: (batch, length), rows of `cos` and `sin`.
    """
    joined = x.ndim == 3
    y = _heads(x, call.get("num_heads", 0)) if joined else x
    batch, heads, length, width = y.shape
    turned = call.get("rotary_embedding_dim") or width
    half = turned // 2
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (reshape_to(t[..., :half], (t.shape[0], 1, length, half)) for t in (cos, sin))
    part, rest = y[..., :turned], y[..., turned:]
    if call.get("interleaved"):
        pairs = reshape_to(part, (batch, heads, length, half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
    else:
        a, b = part[..., :half], part[..., half:]
    first, second = cos * a - sin * b, sin * a + cos * b
    if call.get("interleaved"):
        both = [reshape_to(t, (*t.shape, 1)) for t in (first, second)]
        made = reshape_to(concatenate(both, -1), (batch, heads, length, turned))
    else:
        made = concatenate([first, second], -1)
    y = cast_to(concatenate([made, rest], -1) if turned < width else made, x.dtype)
    return reshape_to(transpose(y, (0, 2, 1, 3)), x.shape) if joined else y
