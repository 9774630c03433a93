"""Scaled dot-product attention and its gradients."""

from __future__ import annotations

from kerascl.compiler.graph.operands import Operand
from kerascl.compiler.graph.symbolic import strides_of
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.dtypes import float32
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem, Dropout, Tensor
from kerascl.kernels.contract.plan import Plan
from kerascl.ops.attention import ATTENTION, ATTENTION_GRAD, formula, gradient_formula
from kerascl.runtime.device import DeviceInfo

_STATISTICS = frozenset((4, 5))  # inputs of the gradient that its kernels read contiguous


def _problem(node: Node, reads: list[Operand]) -> AttentionProblem:
    scale, causal, has_bias, precision, dropping = node.attrs
    backward = node.op is ATTENTION_GRAD

    def tensor(k: int) -> Tensor:
        a, b, c, d = reads[k].strides
        return Tensor(node.inputs[k].dtype, (a, b, c, d), reads[k].offset)

    query, keys, value = node.inputs[:3]
    extra = list(range(6 if backward else 3, len(node.inputs)))
    bias = tensor(extra.pop(0)) if has_bias else None
    dropout = None
    if dropping is not None:
        key = reads[extra.pop()]
        limit, factor = dropping
        dropout = Dropout(limit, factor, key.strides[0], key.offset)
    return AttentionProblem(
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


def _preferred(node: Node, info: DeviceInfo) -> bool:
    contiguous = [Operand(x, strides_of(x.shape)) for x in node.inputs]
    return attention.preferred(_problem(node, contiguous), info)


def _flops(node: Node) -> int:
    batch, length, heads, width = node.inputs[0].shape
    _, source, _, depth = node.inputs[2].shape
    logits = batch * heads * length * source // (2 if node.attrs[1] else 1)
    backward = node.op is ATTENTION_GRAD
    return 2 * logits * (3 * width + 2 * depth if backward else width + depth)


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
)  # fmt: skip
