"""The lazy graph: nodes, and walks over them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from kerascl.core.errors import DeviceMismatchError
from kerascl.core.lease import Lease
from kerascl.core.op import ARGUMENT, BATCHED, CONST, DATA, Op
from kerascl.core.structure import exact
from kerascl.core.types import Attrs, Results
from kerascl.dtypes import DType

if TYPE_CHECKING:
    import weakref

    from kerascl.core.array import Array

_serial = itertools.count()
BY_SERIAL = operator.attrgetter("serial")  # the order of a sort: inputs first


class Node:
    """One typed value of the graph.

    Inputs always have a smaller `serial`, so sorting by it is a topological
    order.  `lease` is set once the value lies in device memory, and shared by
    all nodes of that value; inputs are then dropped, so that memory follows
    Python's references.  `handle` is a
    weak reference to the Array a user holds, if any.  `device` is None for
    values that can live anywhere (constants).  `results` is set for operations
    with several outputs only: (shape, dtype) of each.
    """

    __slots__ = (
        "op", "inputs", "attrs", "shape", "dtype", "device", "lease", "handle", "depth", "serial",
        "results", "__weakref__",
    )  # fmt: skip

    op: Op
    inputs: tuple[Node, ...]
    attrs: Attrs
    device: Any
    depth: int
    results: Results

    def __init__(
        self,
        op: Op,
        inputs: tuple[Node, ...],
        attrs: Attrs,
        shape: tuple[int, ...],
        dtype: DType,
        device: Any = None,
    ):
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.lease: Lease | None = None
        self.handle: weakref.ref[Array] | None = None
        self.serial = next(_serial)
        depth = 0
        for node in inputs:
            if node.depth > depth:
                depth = node.depth
            if node.device is not device and node.device is not None:
                if device is not None:
                    raise DeviceMismatchError(
                        f"{op.name}: arrays lie on different devices ({device} and {node.device}); "
                        "move one with kerascl.to_device(x, device)"
                    )
                device = node.device
        self.device = device
        self.depth = depth + 1

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.dtype.name}{list(self.shape)}>"

    @property
    def size(self) -> int:
        """How many elements the value has."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        return self.size * self.dtype.itemsize

    @property
    def buffer(self) -> Any:
        """Where the value lies in device memory (contiguous), or None."""
        return None if self.lease is None else self.lease.buffer

    def realize(self, lease: Lease) -> None:
        """The value now lies in memory; the history is dropped."""
        self.lease = lease
        self.op = DATA
        self.inputs = ()
        self.attrs = ()
        self.depth = 0


def identity(
    op: Op, inputs: tuple[Hashable, ...], attrs: Attrs, shape: tuple[int, ...], dtype: DType
) -> Hashable:
    """A key that two nodes share if they have the same value.

    It is the same in every process, if `inputs` are.

    Args:
        inputs: what stands for each input: equal where these have the same value.
    """
    return op.name, inputs, exact(attrs) if attrs else (), shape, dtype.name


def const(value: complex, dtype: DType) -> Node:
    """A scalar of shape ()."""
    return Node(CONST, (), (value,), (), dtype)


def data(lease: Lease, shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    """A value that already lies in device memory."""
    node = Node(DATA, (), (), shape, dtype, device)
    node.lease = lease
    node.depth = 0
    return node


def new_serial() -> int:
    """A number larger than the serial of every node so far."""
    return next(_serial)


def topological(roots: Iterable[Node]) -> list[Node]:
    """Every node that `roots` need, inputs first; without recursion."""
    stack = list(roots)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.inputs
    return sorted(seen, key=BY_SERIAL)


def is_closed(node: Node) -> bool:
    """Whether a value depends on no argument of a trace and on no element of a batch."""
    return all(n.op is not ARGUMENT and n.op is not BATCHED for n in topological([node]))
