"""Attention's forward pass leaves what dropout keeps to its gradient, where both are in one graph.

`ATTENTION_KEPT` and `ATTENTION_KEPT_GRAD` stand for a pair of `ATTENTION` and `ATTENTION_GRAD` that
share a key, where a device's kernels draw once what both want.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kerascl.compiler import library
from kerascl.compiler.graph.chains import Replacement
from kerascl.compiler.graph.formula import Formula, traced
from kerascl.core.array import Array, apply_multi
from kerascl.core.node import Node
from kerascl.core.op import PICK
from kerascl.core.types import Results
from kerascl.dtypes import float32, uint32
from kerascl.kernels.attention.problem import kept_words
from kerascl.ops.attention import (
    ATTENTION,
    ATTENTION_GRAD,
    ATTENTION_KEPT,
    ATTENTION_KEPT_GRAD,
)
from kerascl.runtime.device import DeviceInfo


def kept_dropout(
    nodes: Sequence[Node], roots: Iterable[Node], info: DeviceInfo
) -> dict[int, Replacement]:
    """What stands for the results of such pairs, by the ids of these.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
    """
    pairs = [pair for node in nodes if (pair := _pair(node, info))]
    if not pairs:
        return {}
    picks: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op is PICK:
            picks.setdefault(id(node.inputs[0]), []).append(node)
    found: dict[int, Replacement] = {}
    for forward, backward in pairs:
        values, more = list(forward.inputs), list(backward.inputs)
        made = _forward(forward), _backward(forward, backward)
        for node, formula, own in zip((forward, backward), made, (values, values + more)):
            for pick in picks[id(node)]:
                found[id(pick)] = Replacement(formula, own, pick.attrs[0])
    return found


def _pair(backward: Node, info: DeviceInfo) -> tuple[Node, Node] | None:
    """The forward pass of a gradient, and this, where both draw the same and kernels serve."""
    if backward.op is not ATTENTION_GRAD or backward.attrs[-1] is None:
        return None
    statistic = backward.inputs[4]
    if statistic.op is not PICK or statistic.inputs[0].op is not ATTENTION:
        return None
    forward: Node = statistic.inputs[0]
    (batch, length, heads, _), source = backward.inputs[0].shape, backward.inputs[1].shape[1]
    same = (
        forward.inputs[-1] is backward.inputs[-1]
        and forward.attrs[-1] == backward.attrs[-1]
        and forward.inputs[0].shape[:3] == (batch, length, heads)
        and forward.inputs[1].shape[1] == source
    )
    record = library.record(ATTENTION_KEPT)
    return (forward, backward) if same and record and record.preferred(forward, info) else None


def _results(forward: Node) -> Results:
    batch, length, heads, _ = forward.inputs[0].shape
    depth, words = forward.inputs[2].shape[3], kept_words(forward.inputs[1].shape[1])
    return [
        ((batch, length, heads, depth), forward.dtype), ((batch, heads, length), float32),
        ((batch, heads, length, words), uint32),
    ]  # fmt: skip


def _forward(forward: Node) -> Formula:
    def passed(*inputs: Array) -> list[Array]:
        return list(apply_multi(ATTENTION_KEPT, inputs, forward.attrs, _results(forward)))

    return traced(forward.inputs, passed)


def _backward(forward: Node, backward: Node) -> Formula:
    """The gradients from the inputs of both; the forward pass is one node with that of `_forward`,
    as equal values are computed once."""
    count = len(forward.inputs)
    results: Results = [(x.shape, x.dtype) for x in backward.inputs[:3]]

    def passed(*inputs: Array) -> list[Array]:
        own, more = inputs[:count], inputs[count:]
        kept = apply_multi(ATTENTION_KEPT, own, forward.attrs, _results(forward))[2]
        return list(apply_multi(ATTENTION_KEPT_GRAD, (*more, kept), backward.attrs, results))

    return traced([*forward.inputs, *backward.inputs], passed)
