"""Library operations by their formulas, where a device's kernels do not serve better."""

from __future__ import annotations

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
    """A graph that gives the results of one node.

    Attributes:
        arguments: what stands for the node's inputs.
        results: a node for each of its results.
    """

    arguments: list[Node]
    results: list[Node]


def formula_of(node: Node, info: DeviceInfo) -> Formula | None:
    """The formula of a node that the kernels of a device should not compute, else None."""
    record = library.record(node.op)
    if record is None or record.formula is None or record.preferred(node, info):
        return None
    arguments = [
        Array(Node(ARGUMENT, (), ("formula", k), x.shape, x.dtype, node.device))
        for k, x in enumerate(node.inputs)
    ]
    # whoever compiles may be tracing, recording or mapping something else
    with current.replaced(trace=Overlay(), labels=None, tapes=(), tracers=()):
        results = record.formula(*arguments, *node.attrs)
    return Formula([x._node for x in arguments], [y._node for y in results])
