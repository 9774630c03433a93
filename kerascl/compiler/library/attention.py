"""Scaled dot-product attention and its gradients."""

from __future__ import annotations

from kerascl.compiler.graph.operands import Operand
from kerascl.compiler.graph.symbolic import strides_of
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.dtypes import float32
from kerascl.kernels.attention import kept
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import (
    AttentionProblem,
    Dropout,
    KeptProblem,
    Tensor,
    kept_words,
)
from kerascl.kernels.contract.plan import Plan
from kerascl.ops.attention import (
    ATTENTION,
    ATTENTION_GRAD,
    ATTENTION_KEPT,
    ATTENTION_KEPT_GRAD,
    formula,
    gradient_formula,
)
from kerascl.runtime.device import DeviceInfo

_STATISTICS = frozenset((4, 5))  # inputs of the gradient that its kernels read contiguous
_BACKWARD = ATTENTION_GRAD, ATTENTION_KEPT_GRAD
_KEPT = ATTENTION_KEPT, ATTENTION_KEPT_GRAD


def _problem(node: Node, reads: list[Operand]) -> AttentionProblem:
    scale, causal, has_bias, precision, dropping = node.attrs
    backward = node.op in _BACKWARD

    def tensor(k: int) -> Tensor:
        a, b, c, d = reads[k].strides
        return Tensor(node.inputs[k].dtype, (a, b, c, d), reads[k].offset)

    query, keys, value = node.inputs[:3]
    keeps = node.op in _KEPT
    extra = list(range(6 if backward else 3, len(node.inputs) - (keeps and backward)))
    bias = tensor(extra.pop(0)) if has_bias else None
    dropout = None
    if dropping is not None:
        key = reads[extra.pop()]
        limit, factor = dropping
        dropout = Dropout(limit, factor, key.strides[0], key.offset)
    return (KeptProblem if keeps else AttentionProblem)(
        batch=query.shape[0],
        length=query.shape[1],
        source=keys.shape[1],
        heads=query.shape[2],
        groups=keys.shape[2],
        width=query.shape[3],
        depth=value.shape[3],
        scale=scale,
        causal=causal,
        dtype=node.dtype,
        q=tensor(0),
        k=tensor(1),
        v=tensor(2),
        bias=bias,
        mask=tensor(extra[0]) if extra else None,
        grad=tensor(3) if backward else None,
        precision=precision if query.dtype is float32 else "high",  # the others know one only
        dropout=dropout,
    )


def _plan(call: Call) -> Plan:
    return attention.plan(_problem(call.node, call.reads), call.info, call.epilogue)


def _plan_kept(call: Call) -> Plan:
    problem = _problem(call.node, call.reads)
    assert isinstance(problem, KeptProblem)
    return kept.plan(problem, call.info, call.epilogue)


def _keeps(node: Node, info: DeviceInfo) -> bool:
    contiguous = [Operand(x, strides_of(x.shape)) for x in node.inputs]
    return kept.serves(_problem(node, contiguous), info)


def _preferred(node: Node, info: DeviceInfo) -> bool:
    contiguous = [Operand(x, strides_of(x.shape)) for x in node.inputs]
    return attention.preferred(_problem(node, contiguous), info)


def _flops(node: Node) -> int:
    batch, length, heads, width = node.inputs[0].shape
    _, source, _, depth = node.inputs[2].shape
    logits = batch * heads * length * source // (2 if node.attrs[1] else 1)
    backward = node.op in _BACKWARD
    return 2 * logits * (3 * width + 2 * depth if backward else width + depth)


def _spare_kept(node: Node) -> int:
    batch, length, heads, _ = node.inputs[0].shape
    words = kept_words(node.inputs[1].shape[1])
    return max(8 * node.size, 4 * batch * heads * length * words)


OPERATIONS = (
    LibraryOperation(
        ATTENTION, _plan, strided=frozenset(range(6)), flops=_flops,
        outputs=lambda node: ("out", "stat"), spare_bytes=lambda node: 8 * node.size,
        preferred=_preferred, formula=formula,
        scaled=lambda attrs, factor: (attrs[0] * factor, *attrs[1:]), shared=frozenset((1, 2)),
    ),
    LibraryOperation(
        ATTENTION_GRAD, _plan, strided=frozenset(range(9)) - _STATISTICS, flops=_flops,
        outputs=lambda node: ("out", "dk", "dv"),
        spare_bytes=lambda node: 4 * max(x.size for x in node.inputs[:3]),
        preferred=_preferred, formula=gradient_formula,
    ),
    LibraryOperation(
        ATTENTION_KEPT, _plan_kept, strided=frozenset(range(6)), flops=_flops,
        outputs=lambda node: ("out", "stat", "kept"), spare_bytes=_spare_kept, preferred=_keeps,
    ),
    LibraryOperation(
        ATTENTION_KEPT_GRAD, _plan_kept, strided=frozenset(range(8)) - _STATISTICS, flops=_flops,
        outputs=lambda node: ("out", "dk", "dv"),
        spare_bytes=lambda node: 4 * max(x.size for x in node.inputs[:3]), preferred=_keeps,
    ),
)  # fmt: skip
