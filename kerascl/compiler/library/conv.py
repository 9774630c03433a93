"""Convolutions and their gradients."""

from __future__ import annotations

import functools
import math
from typing import Any

from kerascl.compiler.graph.operands import Operand
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import ConvProblem
from kerascl.ops.convolution import CONV, DATA_GRAD, FILTER_GRAD
from kerascl.runtime.device import DeviceInfo


def channels_last(shape: tuple[int, ...], channels_first: bool) -> tuple[int, ...]:
    """The shape of images, with their channels as the last axis."""
    return (shape[0], *shape[2:], shape[1]) if channels_first else shape


def _tensors(node: Node) -> tuple[str, Node, Node, Node]:
    """The kind of problem, and which nodes are its x, w and y."""
    a, b = node.inputs
    if node.op is CONV:
        return "forward", a, b, node
    if node.op is DATA_GRAD:
        return "data_grad", node, b, a
    return "filter_grad", a, node, b


def _problem(node: Node) -> ConvProblem:
    strides, pads, dilation, groups, first, precision = node.attrs
    kind, x, w, y = _tensors(node)
    return ConvProblem(
        kind=kind,
        x_shape=channels_last(x.shape, first),
        w_shape=w.shape,
        y_shape=channels_last(y.shape, first),
        strides=strides,
        pads=pads,
        dilation=dilation,
        groups=groups,
        channels_first=first,
        a=node.inputs[0].dtype,
        b=node.inputs[1].dtype,
        acc=node.dtype.accumulator,
        precision=precision,
    )


def _plan(call: Call) -> Plan:
    return conv.plan(_problem(call.node), call.info, call.epilogue)


def _takes_moments(node: Node, reads: list[Operand], info: DeviceInfo) -> bool:
    return conv.takes_moments(_problem(node), info)


def _flops(node: Node) -> int:
    _, _, w, y = _tensors(node)
    return 2 * y.size * math.prod(w.shape[:-1])


def _images(rank: int, channels_first: bool) -> range:
    """The axes of pixels."""
    return range(2, rank) if channels_first else range(1, rank - 1)


def _padded(attrs: tuple[Any, ...], x: Node) -> tuple[Any, ...] | None:
    """Zeros around the pixels of an input become the convolution's own."""
    strides, pads, dilation, groups, first, precision = attrs
    low, gap, value = x.attrs
    high = [n - p - m for n, p, m in zip(x.shape, low, x.inputs[0].shape, strict=True)]
    pixels = _images(len(low), first)
    others = [a for a in range(len(low)) if a not in pixels]
    if value != 0 or any(gap) or any(low[a] or high[a] for a in others):
        return None
    pads = tuple((p + low[a], q + high[a]) for (p, q), a in zip(pads, pixels, strict=True))
    return strides, pads, dilation, groups, first, precision


def _cropped(
    node: Node, starts: tuple[Any, ...], steps: tuple[Any, ...], shape: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """A part of the pixels of an input's gradient: pixels beyond are padding, which has none."""
    strides, pads, dilation, groups, first, precision = node.attrs
    if any(s != 1 for s in steps):
        return None
    pixels = _images(len(shape), first)
    if any(node.shape[a] != shape[a] for a in range(len(shape)) if a not in pixels):
        return None
    pads = tuple(
        (p + starts[a], q + node.shape[a] - starts[a] - shape[a])
        for (p, q), a in zip(pads, pixels, strict=True)
    )
    return strides, pads, dilation, groups, first, precision


_operation = functools.partial(LibraryOperation, plan=_plan, flops=_flops)
OPERATIONS = (
    _operation(CONV, takes_moments=_takes_moments, padded=_padded),
    _operation(DATA_GRAD, cropped=_cropped),
    _operation(FILTER_GRAD, padded=_padded),
)
