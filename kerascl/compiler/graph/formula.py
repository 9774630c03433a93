"""Operations by array code: a library operation by its formula, where a device's kernels do not
serve better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kerascl.compiler import library
from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.core.node import Node
from kerascl.core.op import ARGUMENT
from kerascl.core.overlay import Overlay
from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class Formula:
    """A graph that gives other nodes' values.

    Attributes:
        arguments: what stands for the nodes that it reads.
        results: a node for each value.
    """

    arguments: list[Node]
    results: list[Node]


def traced(values: Sequence[Node], function: Callable[..., Sequence[Array]]) -> Formula:
    """The graph of array code that is given arrays like `values`."""
    arguments = [
        Array(Node(ARGUMENT, (), ("formula", k), x.shape, x.dtype, x.device))
        for k, x in enumerate(values)
    ]
    # whoever compiles may be tracing, recording or mapping something else
    with current.replaced(trace=Overlay(), labels=None, tapes=(), tracers=()):
        results = function(*arguments)
    return Formula([x._node for x in arguments], [y._node for y in results])


def formula_of(node: Node, info: DeviceInfo) -> Formula | None:
    """The formula of a node that the kernels of a device should not compute, else None."""
    record = library.record(node.op)
    if record is None or record.formula is None or record.preferred(node, info):
        return None
    formula = record.formula
    return traced(node.inputs, lambda *arrays: formula(*arrays, *node.attrs))
