"""Pooling of images and its gradients."""

from __future__ import annotations

from kerascl.compiler.library.conv import channels_last
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.pool import solvers as pool
from kerascl.kernels.pool.problem import PoolProblem
from kerascl.ops.pooling import AVERAGE, AVERAGE_GRAD, MAX, MAX_GRAD, MAX_SELECT

# Of each operation: the kind of problem, and which inputs are its x and y; None is the result.
_KINDS = {
    MAX: ("max", 0, None),
    AVERAGE: ("average", 0, None),
    MAX_GRAD: ("max_grad", 0, -1),
    MAX_SELECT: ("max_select", 0, None),
    AVERAGE_GRAD: ("average_grad", None, 0),
}


def _plan(call: Call) -> Plan:
    node = call.node
    window, strides, pads, first, count_pad = node.attrs
    kind, *places = _KINDS[node.op]
    x, y = (node if k is None else node.inputs[k] for k in places)
    problem = PoolProblem(
        kind=kind,
        x_shape=channels_last(x.shape, first),
        y_shape=channels_last(y.shape, first),
        window=window,
        strides=strides,
        pads=pads,
        channels_first=first,
        dtype=node.dtype,
        count_include_pad=count_pad,
    )
    return pool.plan(problem, call.info, call.epilogue)


OPERATIONS = tuple(LibraryOperation(op, _plan) for op in _KINDS)
