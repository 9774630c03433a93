"""What the reductions of a cluster are of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from kerascl.compiler.generate import space
from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import Writer
from kerascl.compiler.graph.symbolic import ZERO, Expr, linear, strides_of
from kerascl.core.node import Node
from kerascl.core.op import Kind, ReductionSpec
from kerascl.runtime.device import DeviceInfo

_EXTREME = """\
inline float @NAME(float a, float b) {
  float r;
  asm("@OP.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
"""


class Reduced:
    """The rows that a cluster reduces, and what they are computed from.

    Attributes:
        rows: how many there are.
        length: elements of each.
        reductions: identities of the reductions.
        visible: identities of what is read by its index: what lies in memory, and reductions.
    """

    def __init__(self, build: Builder) -> None:
        self.build = build
        self.cluster = build.cluster
        self.shape = self.cluster.shape
        self.rows = self.cluster.rows
        self.length = math.prod(self.shape[a] for a in self.cluster.axes)
        self.reductions = {id(m) for m in self.cluster.members if m.op.kind is Kind.REDUCTION}
        self.visible = build.outside | self.reductions

    def levels(self) -> dict[int, int]:
        """How many reduction stages must be complete before each member can be computed."""
        levels: dict[int, int] = {}
        available: dict[int, int] = {}
        for member in self.cluster.members:
            level = 0
            seen: set[int] = set()
            stack = list(member.inputs)
            while stack:
                node = stack.pop()
                if id(node) in seen or id(node) in self.build.outside:
                    continue
                seen.add(id(node))
                if id(node) in available:
                    level = max(level, available[id(node)])
                else:
                    stack.extend(node.inputs)
            levels[id(member)] = level
            available[id(member)] = level + (member.op.kind is Kind.REDUCTION)
        return levels

    def dims(self) -> tuple[tuple[int, ...], list[bool]]:
        """Refined dimensions, and for each whether it is reduced."""
        dims = space.refine(self.shape, self.build.shapes)
        strides = strides_of(self.shape)
        marks = []
        for stride in strides_of(dims):
            owner = next(
                a
                for a in range(len(self.shape) - 1, -1, -1)
                if self.shape[a] > 1 and strides[a] <= stride < strides[a] * self.shape[a]
            )
            marks.append(owner in self.cluster.axes)
        return dims, marks

    def is_again(self) -> bool:
        """Whether a row of what is read whole is read several times, in few enough registers that
        larger groups have local memory for them."""
        reductions = len(self.reductions)
        return self.cluster.staged and 0 < reductions <= 4 and bool(self.read_whole())

    def read_whole(self) -> list[Node]:
        """The values in memory of which the loop reads every element."""
        size = self.cluster.size
        return [x for x in self.values() if id(x) in self.build.outside and x.size == size]

    def phase(self, axes: tuple[Expr, ...], dims: tuple[int, ...], kept: list[int]) -> Expr:
        """The place at which a row begins in what is read whole; 0 if nothing is."""
        starts = tuple(x if d in kept else ZERO for d, x in enumerate(axes))
        return linear(starts, dims) if self.read_whole() else ZERO

    def bytes_each(self, wide: int = 1) -> int:
        """Bytes that a work-item reads of an element, of `wide` neighbouring columns: of what is
        read whole or in parts, as by concatenations.  What a column's elements each have, and
        columns do not, counts once; what it is the other way round is read before or after."""
        large = max(self.rows, self.length)
        whole = {id(x) for x in self.read_whole()}
        read = [x for x in self.values() if id(x) in self.build.outside]
        nbytes = sum(wide * x.dtype.itemsize for x in read if x.size > large or id(x) in whole)
        if wide > 1:
            nbytes += sum(x.dtype.itemsize for x in read if self.rows < x.size <= large)
        return nbytes

    def values(self) -> list[Node]:
        """The values that members are computed from, to those in memory."""
        found, seen = [], set()
        stack = [x for member in self.cluster.members for x in member.inputs]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            if id(node) not in self.build.outside:
                stack.extend(node.inputs)
        return found


def ctypes(writer: Writer, reduction: Node, kinds: Iterable[str] | None = None) -> list[str]:
    """C types of a reduction's registers of these kinds, by default its states."""
    spec = reduction.op.reduction
    if kinds is None:
        assert spec is not None
        kinds = [kind for kind, _ in spec(reduction.inputs[0].dtype).states]
    acc = writer.ctype(reduction.inputs[0].dtype.accumulator)
    named = {"acc": acc, "index": writer.index_type}
    return [named.get(kind, kind) for kind in kinds]


def native(spec: ReductionSpec, writer: Writer, info: DeviceInfo) -> ReductionSpec:
    """A reduction of floats by an instruction for a whole step, where it has one."""
    if not spec.extreme or "native_extremes" not in info.quirks:
        return spec
    name = f"kcl_{spec.extreme}_nan"
    writer.helper(_EXTREME.replace("@NAME", name).replace("@OP", spec.extreme))
    step, combine = (f"s0 = {name}(s0, {other});" for other in ("x", "t0"))
    return replace(spec, step=step, combine=combine)
