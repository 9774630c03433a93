"""From family nodes to the problems that hand-written kernels solve."""

from __future__ import annotations

from collections.abc import Callable

from kerascl.compiler.operands import Operand
from kerascl.core.node import Node
from kerascl.kernels import conv, gemm, pool, scan, scatter, sort
from kerascl.kernels.solver import Epilogue, Plan

Lowering = Callable[[Node, list[Operand], object, Epilogue], Plan]
LOWERINGS: dict[str, Lowering] = {}

# Slots of results beyond the one that goes through the epilogue.
EXTRA_OUTPUTS: dict[str, tuple[str, ...]] = {"sort": ("out", "indices")}


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
    )
    return gemm.plan(problem, info, epilogue)


def _channels_last(shape: tuple[int, ...], channels_first: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if channels_first else shape


def _conv(kind: str) -> Lowering:
    def lower(node: Node, reads, info, epilogue: Epilogue) -> Plan:
        strides, pads, dilation, groups, first = node.attrs
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


def lower(node: Node, reads: list[Operand], info, epilogue: Epilogue) -> Plan:
    """The Plan for a family node.

    Raises:
        NotImplementedError: when no kernel applies on this device.
    """
    return LOWERINGS[node.op.name](node, reads, info, epilogue)
