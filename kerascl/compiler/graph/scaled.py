"""Attention multiplies its logits by a number itself, instead of its queries before.

Layers scale queries, and so their gradients:

    result = attention(q * c, k, v)        dq = gradient(q * c, k, v, ..)[0] * c

Both kernels have such a factor, c is one more: then q is an ordinary result of a product, equal to
that of keys and values, and neither q * c nor its gradient goes through memory once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kerascl.compiler.graph.chains import Replacement
from kerascl.compiler.graph.formula import Formula, traced
from kerascl.core.array import Array, apply_multi
from kerascl.core.node import Node
from kerascl.core.op import CONST
from kerascl.core.types import Attrs, Results
from kerascl.dtypes import float32
from kerascl.ops.attention import ATTENTION, ATTENTION_GRAD
from kerascl.ops.pointwise import multiply
from kerascl.runtime.device import DeviceInfo


def scaled_queries(
    nodes: Sequence[Node], roots: Iterable[Node], info: DeviceInfo
) -> dict[int, Replacement]:
    """What stands for the results of a forward pass and of its gradient, by the ids of these.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
    """
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for x in node.inputs:
            readers.setdefault(id(x), []).append(node)
    wanted = {id(root) for root in roots}
    found: dict[int, Replacement] = {}
    for backward in nodes:
        if backward.op is not ATTENTION_GRAD:
            continue
        query = backward.inputs[0]
        scaled = _scaled(query)
        others = [x for x in readers[id(query)] if x is not backward]
        if scaled is None or len(others) != 1 or others[0].op is not ATTENTION:
            continue
        forward, (plain, factor) = others[0], scaled
        picks = {x.attrs[0]: x for x in readers[id(backward)]}
        slopes = readers.get(id(picks[0]), []) if 0 in picks else []
        first = len(slopes) == 1 and _scaled(slopes[0])
        if not first or first != (picks[0], factor) or id(picks[0]) in wanted:
            continue
        if id(query) in wanted or any(x is query for x in forward.inputs[1:]):
            continue
        for node, results in ((forward, _forward(forward)), (backward, _backward(backward))):
            values = [plain, *node.inputs[1:]]
            formula = _formula(node, values, factor, results)
            for pick in readers[id(node)]:
                stands_for = slopes[0] if pick is picks[0] else pick
                found[id(stands_for)] = Replacement(formula, values, pick.attrs[0])
    return found


def _scaled(x: Node) -> tuple[Node, float] | None:
    """What is multiplied by a number, and this."""
    if x.op is not multiply.op or not x.dtype.is_float:
        return None
    a, b = x.inputs
    number, rest = (a, b) if a.op is CONST else (b, a)
    whole = number.op is CONST and (rest.shape, rest.dtype) == (x.shape, x.dtype)
    return (rest, float(number.attrs[0])) if whole else None


def _forward(node: Node) -> Results:
    batch, length, heads, _ = node.inputs[0].shape
    return [
        ((batch, length, heads, node.inputs[2].shape[3]), node.dtype),
        ((batch, heads, length), float32),
    ]


def _backward(node: Node) -> Results:
    return [(x.shape, x.dtype) for x in node.inputs[:3]]


def _formula(node: Node, values: Sequence[Node], factor: float, results: Results) -> Formula:
    scale, *rest = node.attrs
    attrs: Attrs = (scale * factor, *rest)

    def passed(*inputs: Array) -> list[Array]:
        return list(apply_multi(node.op, inputs, attrs, results))

    return traced(values, passed)
