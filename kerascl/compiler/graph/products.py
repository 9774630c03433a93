"""Products that are added become one product, of a depth as large as theirs together.

The gradient of what several layers read, such as a block's input behind its queries, keys and
values, is a sum of products with transposed weights:

    dq @ wq^T + dk @ wk^T + dv @ wv^T

Where a device has a kernel for such sums, `MATMUL_SUM` stands for those that nobody else reads.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from kerascl.compiler import library
from kerascl.compiler.graph import views
from kerascl.compiler.graph.chains import Replacement
from kerascl.compiler.graph.formula import traced
from kerascl.core.array import Array, apply
from kerascl.core.node import Node
from kerascl.ops.contraction import MATMUL, MATMUL_SUM
from kerascl.ops.pointwise import add
from kerascl.ops.views import PERMUTE, RESHAPE, reshape_to
from kerascl.runtime.device import DeviceInfo

MOST = 8  # products of a sum


def summed_products(
    nodes: Sequence[Node], roots: Iterable[Node], info: DeviceInfo
) -> dict[int, Replacement]:
    """What stands for sums of products, by the ids of these.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
    """
    if info.kind != "gpu" or not any(node.op is MATMUL for node in nodes):
        return {}
    readers: dict[int, int] = {id(root): 2 for root in roots}  # as if somebody else read them
    for node in nodes:
        for x in node.inputs:
            readers[id(x)] = readers.get(id(x), 0) + 1
    found: dict[int, Replacement] = {}
    inside: set[int] = set()
    for node in reversed(nodes):
        if node.op is add.op and id(node) not in inside:
            sums = _Sum(node, readers)
            inside |= sums.inside
            made = sums.replacement(info)
            if made is not None:
                found[id(node)] = made
    return found


class _Sum:
    """What a node adds.

    Attributes:
        products: products whose right operand is transposed, by what they must have in common.
        rest: everything else.
        inside: ids of additions that nobody else reads.
    """

    def __init__(self, node: Node, readers: dict[int, int]) -> None:
        self.node = node
        self.products: dict[Hashable, list[Node]] = {}
        self.rest: list[Node] = []
        self.inside: set[int] = set()
        self._readers = readers
        for x in node.inputs:
            self._add(x)

    def _add(self, x: Node) -> None:
        alone = self._readers[id(x)] == 1
        if alone and x.op is add.op and (x.shape, x.dtype) == (self.node.shape, self.node.dtype):
            self.inside.add(id(x))
            for y in x.inputs:
                self._add(y)
            return
        product = x.inputs[0] if alone and x.op is RESHAPE else x
        if (
            x.size == self.node.size
            and product.op is MATMUL
            and len(product.shape) == 2
            and self._readers[id(product)] == 1
            and product.inputs[1].op is PERMUTE
            and all(map(_lies_whole, _operands(product)))
        ):
            a, b = _operands(product)
            key = a.shape, b.shape, a.dtype, b.dtype, product.dtype, product.attrs
            self.products.setdefault(key, []).append(x)
        else:
            self.rest.append(x)

    def replacement(self, info: DeviceInfo) -> Replacement | None:
        """What stands for the sum; None where it stays as it is."""
        most = max(self.products.values(), key=len, default=[])
        if not 2 <= len(most) <= MOST:
            return None
        products = [x.inputs[0] if x.op is RESHAPE else x for x in most]
        rest = [x for group in self.products.values() if group is not most for x in group]
        rest += self.rest
        one, node = products[0], self.node
        pairs = [x for product in products for x in _operands(product)]

        def sum_of(*arrays: Array) -> list[Array]:
            own, others = arrays[: len(pairs)], arrays[len(pairs) :]
            total = apply(MATMUL_SUM, own, one.attrs, one.shape, one.dtype)
            total = reshape_to(total, node.shape)
            for other in others:
                total = total + other
            return [total]

        values = [*pairs, *rest]
        record = library.record(MATMUL_SUM)
        sample = Node(MATMUL_SUM, tuple(pairs), one.attrs, one.shape, one.dtype)
        if record is None or not record.preferred(sample, info):
            return None
        return Replacement(traced(values, sum_of), values, 0)


def _operands(product: Node) -> tuple[Node, Node]:
    """The left operand, and the right one as it is before it is transposed."""
    a, b = product.inputs
    return a, b.inputs[0]


def _lies_whole(x: Node) -> bool:
    """Whether an operand has memory of its own, in its order."""
    return not views.is_view(views.storage(x))
