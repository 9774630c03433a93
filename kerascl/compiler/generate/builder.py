"""What the generated kernels share: maps, reductions and epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kerascl import dtypes
from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.compiler.graph.cluster import Cluster
from kerascl.compiler.graph.in_place import STORE
from kerascl.compiler.graph.symbolic import LOOP_INDEX, Expr, Var, unravel
from kerascl.core.node import Node
from kerascl.core.op import Kind
from kerascl.kernels.contract.source import Source
from kerascl.ops.views import RESHAPE
from kerascl.runtime.device import DeviceInfo


@dataclass
class Generated:
    """A kernel launch whose buffers are still nodes.  `among`, if there is one, gives what is best
    where so many equal ones become one launch, with the same arguments."""

    source: Source
    args: list[Any]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    among: Callable[[int], Generated] | None = None


@dataclass
class Kernels:
    """All launches of one cluster, and the bytes of workspace they share."""

    launches: list[Generated] = field(default_factory=list)
    workspace: list[int] = field(default_factory=list)


def _is_wide(cluster: Cluster, outside: set[int]) -> bool:
    """Whether an index, of a member or of whatever it is computed from, may not be an int."""
    seen: set[int] = set()
    stack = list(cluster.members)
    while stack:
        node = stack.pop()
        if node.size > dtypes.NARROW_POSITIONS:
            return True
        if node.op is STORE and node.attrs[0].size > dtypes.NARROW_POSITIONS:
            return True
        if id(node) not in seen and id(node) not in outside:
            seen.add(id(node))
            if node.op.kind is not Kind.LIBRARY:
                stack.extend(node.inputs)
    return cluster.size > dtypes.NARROW_POSITIONS


def _shapes(cluster: Cluster, stored: set[int]) -> list[tuple[int, ...]]:
    """Shapes met inside the cluster, for choosing dimensions that avoid divisions."""
    found: dict[tuple[int, ...], None] = {}
    seen: set[int] = set()
    stack = list(cluster.members)
    members = {id(m) for m in cluster.members}
    while stack:
        node = stack.pop()
        if id(node) in seen or (id(node) in stored and id(node) not in members):
            continue
        seen.add(id(node))
        if node.op.kind is Kind.LIBRARY:
            found.setdefault(node.shape)
            continue
        found.setdefault(node.shape)
        if node.op is RESHAPE:
            found.setdefault(node.inputs[0].shape)
        stack.extend(node.inputs)
    return list(found)


ANY_KERNEL = 256  # work-items of a group that GPUs have registers for, whatever a kernel takes


def promised(size: int, info: DeviceInfo) -> int:
    """The size of work-groups where the compiler must know it, else 0: a kernel might take more
    registers than there are for so many work-items, and could not be launched."""
    return size if info.kind == "gpu" and size > ANY_KERNEL else 0


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, math.ceil(n) - 1).bit_length()


class Builder:
    """State shared by the three schedules."""

    def __init__(self, cluster: Cluster, stored: set[int], info: DeviceInfo, generic: bool) -> None:
        self.cluster = cluster
        self.info = info
        self.generic = generic
        self.members = {id(m) for m in cluster.members}
        self.outside = stored - self.members
        self.wide = _is_wide(cluster, self.outside)
        self.writes = {id(m) for m in cluster.stores}
        self.shapes = _shapes(cluster, stored)
        self.name = cluster.kind + "_" + "_".join(m.op.name for m in cluster.members[:4])

    def writer(self, wide: bool = False) -> Writer:
        """A writer for one kernel of the cluster, whose indices are long where they must or
        `wide`."""
        return Writer(self.generic, self.wide or wide)

    def computed(self) -> Iterator[Node]:
        """The members, and all that they compute on the way."""
        seen: set[int] = set()
        stack = list(self.cluster.members)
        while stack:
            node = stack.pop()
            if id(node) in seen or id(node) in self.outside:
                continue
            seen.add(id(node))
            yield node
            if node.op.kind is not Kind.LIBRARY:
                stack.extend(node.inputs)

    def store(
        self,
        scope: Scope,
        node: Node,
        index: Expr,
        value: str,
        condition: str = "",
        exact: bool = True,
    ) -> None:
        """Store an element; it happens at `scope.flush()`, after everything has been read.

        Args:
            exact: whether `node.dtype` has the value.
        """
        writer = scope.writer
        pointer = writer.buffer(node)
        if node.op is STORE:
            index, inside = self._in_place(scope, node, index)
            condition = " && ".join(test for test in (condition, inside) if test)
        elif id(node) in self.cluster.streamed:
            index = index + Expr(((LOOP_INDEX, node.size),), 0)
        template = (exact and node.dtype.keep) or node.dtype.store
        near = scope.neighbours
        if near and near.store(scope, node, index, value, condition, template):
            return
        text = template.format(p=pointer, i=writer.index(index), v=value)
        scope.stores.append(f"if ({condition}) {{ {text}; }}" if condition else f"{text};")

    def _in_place(self, scope: Scope, node: Node, index: Expr) -> tuple[Expr, str]:
        """Where a store puts an element of its box, and the condition that it lies inside."""
        (region,) = node.attrs
        coords = unravel(index, node.shape)
        moving = iter(node.inputs[1:])
        offset = Var(scope.writer.offset(node, region.offset), region.offset, region.offset)
        at, guards = Expr(((offset, 1),), 0), []
        for c, n, m, start, step in zip(
            coords, region.shape, node.shape, region.starts, region.strides, strict=True
        ):
            if start is None:
                value = scope.value(next(moving), coords, (), self.outside)
                ctype = scope.writer.index_type
                name = scope.define(ctype, f"({ctype}){value}")
                c = c + Expr(((Var(name, -m, n), 1),), 0)
                guards.append((c, n))
            else:
                c = c + start
            at = at + c * step
        return at, scope.writer.condition(tuple(guards)) if guards else ""
