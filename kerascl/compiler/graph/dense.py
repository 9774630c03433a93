"""The gradients of a dense layer's weights and bias, made together.

Both read the gradient of the layer's result, dy (rows, units):

    dw = x^T @ dy        db = sum of dy's rows

Where a device has a kernel that adds the rows as it multiplies, `DENSE_GRAD` stands for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kerascl.compiler import library
from kerascl.compiler.graph import views
from kerascl.compiler.graph.chains import Replacement
from kerascl.compiler.graph.formula import traced
from kerascl.core.array import Array, apply_multi
from kerascl.core.node import Node
from kerascl.core.types import Results
from kerascl.ops.contraction import DENSE_GRAD, MATMUL
from kerascl.ops.views import PERMUTE, SUM_OP, reshape_to
from kerascl.runtime.device import DeviceInfo


def dense_gradients(
    nodes: Sequence[Node], roots: Iterable[Node], info: DeviceInfo
) -> dict[int, Replacement]:
    """What stands for such products and sums, by the ids of these.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
    """
    if info.kind != "gpu":
        return {}
    sums: dict[int, Node] = {}
    places: dict[int, int] = {}
    for place, node in enumerate(nodes):
        places[id(node)] = place
        if node.op is SUM_OP and _adds_rows(node):
            sums.setdefault(id(views.storage(node.inputs[0])), node)
    found: dict[int, Replacement] = {}
    taken: set[int] = set()
    for node in nodes:
        if node.op is not MATMUL or len(node.shape) != 2 or node.inputs[0].op is not PERMUTE:
            continue
        slope = node.inputs[1]
        total = sums.get(id(views.storage(slope)))
        if total is None or id(total) in taken or not _same_columns(total, slope):
            continue
        # What is made together waits for x: no sum that x needs may be among them.
        if places[id(node.inputs[0].inputs[0])] > places[id(total)] or not _preferred(node, info):
            continue
        taken.add(id(total))
        found |= _replacements(node, total)
    return found


def _adds_rows(node: Node) -> bool:
    """Whether a sum is over the first axes, and not all."""
    (axes,) = node.attrs
    count = len(axes)
    return 0 < count < len(node.inputs[0].shape) and sorted(axes) == list(range(count))


def _same_columns(total: Node, slope: Node) -> bool:
    """Whether what a sum adds, in the same memory, are the rows of a matrix."""
    return (total.size, total.dtype) == (slope.shape[1], slope.dtype)


def _results(product: Node) -> Results:
    return [(product.shape, product.dtype), (product.shape[1:], product.inputs[1].dtype)]


def _preferred(product: Node, info: DeviceInfo) -> bool:
    record = library.record(DENSE_GRAD)
    sample = Node(DENSE_GRAD, product.inputs, product.attrs, product.shape, product.dtype)
    return record is not None and record.preferred(sample, info)


def _replacements(product: Node, total: Node) -> dict[int, Replacement]:
    """By the ids of both."""
    values = list(product.inputs)

    def both(*inputs: Array) -> list[Array]:
        made, sums = apply_multi(DENSE_GRAD, inputs, product.attrs, _results(product))
        return [made, reshape_to(sums, total.shape)]

    formula = traced(values, both)
    return {
        id(node): Replacement(formula, values, k) for k, node in enumerate((product, total))
    }
