"""From family nodes to the problems that hand-written kernels solve."""

from __future__ import annotations

import math
from collections.abc import Callable

from kerascl.compiler.operands import Operand
from kerascl.core.node import Node
from kerascl.kernels import attention, conv, gemm, pool, scan, scatter, sort
from kerascl.kernels.solver import Epilogue, Plan

Lowering = Callable[[Node, list[Operand], object, Epilogue], Plan]
LOWERINGS: dict[str, Lowering] = {}

# Slots of results beyond the one that goes through the epilogue.
EXTRA_OUTPUTS: dict[str, tuple[str, ...]] = {
    "sort": ("out", "indices"),
    "attention": ("out", "stat"),
    "attention_grad": ("out", "dk", "dv"),
}


def lowering(name: str) -> Callable[[Lowering], Lowering]:
    """Register how the family `name` becomes a Plan."""

    def add(function: Lowering) -> Lowering:
        LOWERINGS[name] = function
        return function

    return add


@lowering("matmul")
def _matmul(node: Node, reads: list[Operand], info, epilogue: Epilogue) -> Plan:
    a, b = reads
    *batch, m, n = node.shape
    problem = gemm.GemmProblem(
        m=m,
        n=n,
        k=node.inputs[0].shape[-1],
        batch=tuple(batch),
        a_strides=a.strides,
        b_strides=b.strides,
        a_offset=a.offset,
        b_offset=b.offset,
        a=node.inputs[0].dtype,
        b=node.inputs[1].dtype,
        acc=node.dtype.accumulator,
        precision=node.attrs[0],
    )
    return gemm.plan(problem, info, epilogue)


def _channels_last(shape: tuple[int, ...], channels_first: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if channels_first else shape


def _conv(kind: str) -> Lowering:
    def lower(node: Node, reads, info, epilogue: Epilogue) -> Plan:
        strides, pads, dilation, groups, first, precision = node.attrs
        a, b = node.inputs
        x, w, y = {
            "forward": (a, b, node),
            "data_grad": (node, b, a),
            "filter_grad": (a, node, b),
        }[kind]
        problem = conv.ConvProblem(
            kind=kind,
            x_shape=_channels_last(x.shape, first),
            w_shape=w.shape,
            y_shape=_channels_last(y.shape, first),
            strides=strides,
            pads=pads,
            dilation=dilation,
            groups=groups,
            channels_first=first,
            a=a.dtype,
            b=b.dtype,
            acc=node.dtype.accumulator,
            precision=precision,
        )
        return conv.plan(problem, info, epilogue)

    return lower


LOWERINGS["conv"] = _conv("forward")
LOWERINGS["conv_data_grad"] = _conv("data_grad")
LOWERINGS["conv_filter_grad"] = _conv("filter_grad")


def _pool(kind: str) -> Lowering:
    def lower(node: Node, reads, info, epilogue: Epilogue) -> Plan:
        window, strides, pads, first, count_pad = node.attrs
        inputs = node.inputs
        x, y = {
            "max": (inputs[0], node),
            "average": (inputs[0], node),
            "max_grad": (inputs[0], inputs[-1]),
            "max_select": (inputs[0], node),
            "average_grad": (node, inputs[0]),
        }[kind]
        problem = pool.PoolProblem(
            kind=kind,
            x_shape=_channels_last(x.shape, first),
            y_shape=_channels_last(y.shape, first),
            window=window,
            strides=strides,
            pads=pads,
            channels_first=first,
            dtype=node.dtype,
            count_include_pad=count_pad,
        )
        return pool.plan(problem, info, epilogue)

    return lower


for _kind in ("max", "average", "max_grad", "max_select", "average_grad"):
    LOWERINGS["pool_" + _kind] = _pool(_kind)


@lowering("scatter")
def _scatter(node: Node, reads, info, epilogue: Epilogue) -> Plan:
    (mode,) = node.attrs
    base, indices, _ = node.inputs
    problem = scatter.ScatterProblem(
        rows=base.shape[0],
        width=base.shape[1],
        count=indices.shape[0],
        index_dtype=indices.dtype,
        dtype=node.dtype,
        mode=mode,
    )
    return scatter.plan(problem, info, epilogue)


@lowering("scan")
def _scan(node: Node, reads, info, epilogue: Epilogue) -> Plan:
    kind, reverse, exclusive = node.attrs
    outer, length, inner = node.shape
    problem = scan.ScanProblem(
        outer=outer,
        length=length,
        inner=inner,
        kind=kind,
        dtype=node.dtype,
        acc=node.dtype.accumulator,
        reverse=reverse,
        exclusive=exclusive,
    )
    return scan.plan(problem, info, epilogue)


@lowering("search")
def _search(node: Node, reads, info, epilogue: Epilogue) -> Plan:
    (side,) = node.attrs
    ordered = node.inputs[0]
    problem = scan.SearchProblem(
        sorted_length=ordered.shape[1],
        count=node.shape[1],
        dtype=ordered.dtype,
        side=side,
        rows=node.shape[0],
        acc=node.dtype,
    )
    return scan.plan(problem, info, epilogue)


@lowering("sort")
def _sort(node: Node, reads, info, epilogue: Epilogue) -> Plan:
    descending, k = node.attrs
    rows, length = node.inputs[0].shape
    problem = sort.SortProblem(
        rows=rows,
        length=length,
        dtype=node.dtype,
        descending=descending,
        outputs=("values", "indices"),
        k=k,
    )
    return sort.plan(problem, info, epilogue)


def flops(node: Node) -> int:
    """Floating point operations of a product, convolution or attention, 0 for the others."""
    if node.op.name == "matmul":
        return 2 * node.size * node.inputs[0].shape[-1]
    if node.op.name in ("conv", "conv_data_grad", "conv_filter_grad"):
        w = node if node.op.name == "conv_filter_grad" else node.inputs[1]
        y = {"conv": node, "conv_data_grad": node.inputs[0]}.get(node.op.name, node.inputs[1])
        return 2 * y.size * math.prod(w.shape[:-1])
    if node.op.name in ("attention", "attention_grad"):
        batch, length, heads, width = node.inputs[0].shape
        _, source, _, depth = node.inputs[2].shape
        logits = batch * heads * length * source // (2 if node.attrs[1] else 1)
        backward = node.op.name == "attention_grad"
        return 2 * logits * (3 * width + 2 * depth if backward else width + depth)
    return 0


def _attention_problem(node: Node, reads: list[Operand]) -> attention.AttentionProblem:
    scale, causal, has_bias, precision = node.attrs
    backward = node.op.name == "attention_grad"

    def tensor(k: int) -> attention.Tensor:
        return attention.Tensor(node.inputs[k].dtype, reads[k].strides, reads[k].offset)

    query, key, value = node.inputs[:3]
    extra = list(range(6 if backward else 3, len(node.inputs)))
    bias = tensor(extra.pop(0)) if has_bias else None
    return attention.AttentionProblem(
        batch=query.shape[0],
        length=query.shape[1],
        source=key.shape[1],
        heads=query.shape[2],
        groups=key.shape[2],
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
        precision=precision,
    )


def _attention(node: Node, reads: list[Operand], info, epilogue: Epilogue) -> Plan:
    return attention.plan(_attention_problem(node, reads), info, epilogue)


LOWERINGS["attention"] = LOWERINGS["attention_grad"] = _attention


def spare_bytes(node: Node) -> int:
    """Bytes for a result, of several, that nobody wants."""
    if node.op.name == "attention_grad":
        return 4 * max(x.size for x in node.inputs[:3])
    return 8 * node.size


def lower(node: Node, reads: list[Operand], info, epilogue: Epilogue) -> Plan:
    """The Plan for a family node.

    Raises:
        NotImplementedError: when no kernel applies on this device.
    """
    return LOWERINGS[node.op.name](node, reads, info, epilogue)
