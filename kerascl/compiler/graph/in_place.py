"""Carries of loops that stay where they lie: of what is itself with boxes replaced, only these are
written.

A `store` writes a box into the carry's memory, and an `updated` is that memory from then on: the
carry, seen by whoever reads the new value. Fusion sees to it that who reads the old value has done
so before the store (fuse/group.py), or says that it cannot (`ReadLater`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kerascl.compiler.graph.symbolic import strides_of
from kerascl.core.node import Node, topological
from kerascl.core.op import Kind, Op, register
from kerascl.core.tape import ALIAS
from kerascl.core.traced import BARRIER
from kerascl.ops.control import KEEP
from kerascl.ops.updates import UPDATE
from kerascl.ops.views import CONCAT, EXPAND, PERMUTE, RESHAPE, SLICE

# Inputs: the box, and its starts along the axes that move, in the box's shape. One attribute: its
# `Region`.
STORE = register(Op("store", Kind.POINTWISE, "{0}", exact=True))
# Inputs: the store, and the memory before it: an `updated`, or the carry.
UPDATED = register(Op("updated", Kind.PICK))

WORTH = 1 << 16  # bytes of a carry from which stores, which may take launches more, pay


@dataclass(frozen=True)
class Region:
    """Where a store puts its box, in elements of the carry's memory.

    Attributes:
        offset, strides: of the array that the box is put into.
        shape: of that array: what lies outside is dropped.
        starts: of the box in it, None for the axes whose starts are inputs.
        size: of the memory.
        number: of the store in its loop: those of one box into several memories are not the same.
    """

    offset: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    starts: tuple[int | None, ...]
    size: int
    number: int


class ReadLater(Exception):
    """Somebody reads what a carry was after a store may have replaced it.

    Attributes:
        carry: its argument node.
    """

    def __init__(self, carry: Node) -> None:
        super().__init__("a carry is read after it was updated in place")
        self.carry = carry


@dataclass
class Bodies:
    """A loop's graph in which carries are updated in place.

    Attributes:
        nodes: in topological order.
        roots: what stands for each root that was given; of a carry in place, the memory.
        more: further roots: memory as the other stores leave it.
        serials: of new nodes, the serial numbers of those that they stand for.
    """

    nodes: list[Node]
    roots: list[Node]
    more: list[Node] = field(default_factory=list)
    serials: dict[int, int] = field(default_factory=dict)


def carry_of(updated: Node) -> Node:
    """The argument whose memory an `updated` is."""
    while updated.op is UPDATED:
        updated = updated.inputs[1]
    return updated


def updated_in_place(
    carry: Sequence[Node], roots: Sequence[Node], nodes: list[Node], without: set[int]
) -> Bodies:
    """The graph of a loop's body, with its carries in place where they can be.

    Args:
        carry: argument nodes.
        roots: the new carry, then other roots.
        nodes: of all, in topological order.
        without: ids of arguments that may not be.
    """
    rebuilt = _Rebuilt()
    for argument, root in zip(carry, roots, strict=False):
        if argument.nbytes >= WORTH and id(argument) not in without:
            rebuilt.add(argument, root, nodes)
    if not rebuilt.stores:
        return Bodies(nodes, list(roots))
    for node in nodes:
        rebuilt.visit(node)
    return rebuilt.bodies(carry, roots)


@dataclass(frozen=True)
class _Seen:
    """An array that lies in a carry's memory, with boxes replaced.

    Attributes:
        offset, strides: where.
        views: how it is seen: nodes, from the carry on.
    """

    offset: int
    strides: tuple[int, ...]
    views: tuple[Node, ...] = ()

    def through(self, view: Node, offset: int, strides: tuple[int, ...]) -> _Seen:
        """What a view of it shows."""
        return _Seen(offset, strides, (*self.views, view))


@dataclass(frozen=True)
class _Store:
    """An update that is carried out in place: of which carry, how its input is seen there, and the
    update before it."""

    carry: Node
    seen: _Seen
    before: Node | None


class _Rebuilt:
    def __init__(self) -> None:
        self.stores: dict[int, _Store] = {}
        self.memory: dict[int, Node] = {}  # after each update
        self.last: dict[int, list[Node]] = {}  # of each carry: updates that no other follows
        self.new: dict[int, Node] = {}
        self.serials: dict[int, int] = {}

    def add(self, carry: Node, root: Node, nodes: list[Node]) -> None:
        """Note the updates that make the next value of a carry of it, if nothing else does."""
        while root.op is KEEP:
            root = root.inputs[0]
        seen = _seen_in(carry, nodes)
        if id(root) not in seen:
            return
        top = seen[id(root)]
        if not _alike(top.strides, strides_of(carry.shape), root.shape):
            return
        found: dict[int, _Store] = {}
        last: list[Node] = []
        # an array, whether it is a part of what a node below gives, and the update around it
        stack: list[tuple[Node, bool, Node | None]] = [(root, False, None)]
        above: dict[int, Node] = {}
        while stack:
            node, cut, update = stack.pop()
            if node is carry:
                continue
            if node.op is CONCAT:
                if update is not None:
                    return  # its box may lie in several parts
                stack += [(x, cut, None) for x in node.inputs]
                continue
            if node.op is UPDATE:
                if cut or id(node) in found or id(node) in self.stores:
                    return
                found[id(node)] = _Store(carry, seen[id(node.inputs[0])], None)
                if update is None:
                    last.append(node)
                else:
                    above[id(update)] = node
                stack.append((node.inputs[0], False, node))
                continue
            stack.append((node.inputs[0], cut or node.op is SLICE, update))
        for key, store in found.items():
            self.stores[key] = _Store(carry, store.seen, above.get(key))
        if last:
            self.last[id(carry)] = last

    def visit(self, node: Node) -> None:
        """Make the new node of an old one whose inputs have theirs; the same where nothing
        differs."""
        inputs = tuple([self.new[id(x)] for x in node.inputs])
        store = self.stores.get(id(node))
        if store is not None:
            self.new[id(node)] = self._stored(node, store, inputs)
        elif all(x is y for x, y in zip(inputs, node.inputs, strict=True)):
            self.new[id(node)] = node
        else:
            self.new[id(node)] = _copy(node, inputs)
        self.serials[self.new[id(node)].serial] = node.serial

    def _stored(self, node: Node, store: _Store, inputs: tuple[Node, ...]) -> Node:
        """The store of an update's box; gives the array after it."""
        _, part, *moving = inputs
        carry, seen = store.carry, store.seen
        region = Region(
            seen.offset, seen.strides, node.shape, node.attrs[0], carry.size, len(self.memory)
        )
        columns = [_everywhere(start, part.shape) for start in moving]
        put = Node(STORE, (part, *columns), (region,), part.shape, part.dtype)
        self.serials[put.serial] = node.serial
        before = carry if store.before is None else self.memory[id(store.before)]
        result = Node(UPDATED, (put, before), (), carry.shape, carry.dtype)
        self.memory[id(node)] = result
        for view in seen.views:
            result = _copy(view, (result,))
        return result

    def bodies(self, carry: Sequence[Node], roots: Sequence[Node]) -> Bodies:
        """See `updated_in_place`."""
        found, more = [self.new[id(root)] for root in roots], []
        for k, argument in enumerate(carry):
            last = self.last.get(id(argument))
            if last is not None:
                found[k], *rest = [self.memory[id(node)] for node in last]
                more += rest
        return Bodies(topological([*found, *more]), found, more, self.serials)


def _copy(node: Node, inputs: tuple[Node, ...]) -> Node:
    new = Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.device)
    if node.op.outputs > 1:
        new.results = node.results
    return new


def _everywhere(start: Node, shape: tuple[int, ...]) -> Node:
    ones = (1,) * len(shape)
    column = Node(RESHAPE, (start,), (ones,), ones, start.dtype)
    return Node(EXPAND, (column,), (shape,), shape, start.dtype)


def _alike(a: Sequence[int], b: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether strides are the same along all axes that have more than one element."""
    return all(x == y or n == 1 for x, y, n in zip(a, b, shape, strict=True))


def _seen_in(carry: Node, nodes: list[Node]) -> dict[int, _Seen]:
    """By id, the arrays that lie in the memory of a carry, if all updates write there."""
    found = {id(carry): _Seen(0, strides_of(carry.shape))}
    for node in nodes:
        if not node.inputs or id(node.inputs[0]) not in found:
            continue
        x = node.inputs[0]
        now = found[id(x)]
        seen: _Seen | None = None
        if node.op is UPDATE:
            seen = now
        elif node.op is CONCAT:
            parts = [found.get(id(y)) for y in node.inputs]
            seen = _joined(node, parts)
        elif node.op in _VIEWS:
            seen = _VIEWS[node.op](node, now)
        if seen is not None:
            found[id(node)] = seen
    return found


def _joined(node: Node, parts: Sequence[_Seen | None]) -> _Seen | None:
    """A concatenation whose parts lie in memory as it would."""
    (axis,) = node.attrs
    first = parts[0]
    # the step from a part to the next, which parts of one element do not tell
    step, at = None, 0
    for x, part in zip(node.inputs, parts, strict=True):
        if part is None or first is None:
            return None
        if x.shape[axis] > 1:
            step = part.strides[axis]
        if at and step is None:
            step, rest = divmod(part.offset - first.offset, at)
            if rest:
                return None
        at += x.shape[axis]
    if first is None or step is None:
        return first if len(node.inputs) == 1 else None
    strides = tuple(step if a == axis else s for a, s in enumerate(first.strides))
    at = 0
    for x, part in zip(node.inputs, parts, strict=True):
        assert part is not None
        if part.offset != first.offset + at * step or not _alike(part.strides, strides, x.shape):
            return None
        at += x.shape[axis]
    return _Seen(first.offset, strides)


def _same(node: Node, x: _Seen) -> _Seen:
    return x.through(node, x.offset, x.strides)


def _slice(node: Node, x: _Seen) -> _Seen:
    starts, steps = node.attrs
    offset = x.offset + sum(a * s for a, s in zip(starts, x.strides, strict=True))
    return x.through(node, offset, tuple(k * s for k, s in zip(steps, x.strides, strict=True)))


def _permute(node: Node, x: _Seen) -> _Seen:
    (axes,) = node.attrs
    return x.through(node, x.offset, tuple(x.strides[a] for a in axes))


def _reshape(node: Node, x: _Seen) -> _Seen | None:
    """Each run of axes that become others must lie as one axis would."""
    old = [(n, s) for n, s in zip(node.inputs[0].shape, x.strides, strict=True) if n != 1]
    new = [(a, n) for a, n in enumerate(node.shape) if n != 1]
    strides = [0] * len(node.shape)
    while old and new:
        (whole, step), (axis, wanted) = old.pop(), new.pop()
        axes = [(axis, wanted)]
        run = wanted
        while whole != run:
            if whole < run:
                n, s = old.pop()
                if s != step * whole:
                    return None
                whole *= n
            else:
                axes.append(new.pop())
                run *= axes[-1][1]
        for axis, n in axes:
            strides[axis] = step
            step *= n
    return x.through(node, x.offset, tuple(strides))


# From a view and how its input lies in memory to how it does; None where it is in no such order.
_VIEWS: dict[Op, Callable[[Node, _Seen], _Seen | None]] = {
    RESHAPE: _reshape, SLICE: _slice, PERMUTE: _permute, ALIAS: _same, BARRIER: _same,
}  # fmt: skip
