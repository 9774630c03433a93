"""Views as maps from output coordinates to input coordinates."""

from __future__ import annotations

from kerascl.compiler.symbolic import LOOP_INDEX, ZERO, Expr, linear, number, unravel
from kerascl.core.node import Node
from kerascl.core.op import Kind

# A guard is (expression, size): the element exists where 0 <= expression < size.
Guard = tuple[Expr, int]


def source(node: Node, coords: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Guard, ...]]:
    """Where a view with one input reads: input coordinates, and guards (only `pad` has any)."""
    x = node.inputs[0]
    name = node.op.name
    if name == "reshape":
        return unravel(linear(coords, node.shape), x.shape), ()
    if name in ("alias", "barrier"):
        return coords, ()
    if name == "expand":
        return tuple(ZERO if n == 1 else c for c, n in zip(coords, x.shape, strict=True)), ()
    if name == "permute":
        (axes,) = node.attrs
        result = [ZERO] * len(axes)
        for position, axis in enumerate(axes):
            result[axis] = coords[position]
        return tuple(result), ()
    if name == "slice":
        starts, steps = node.attrs
        return tuple(c * k + s for c, s, k in zip(coords, starts, steps, strict=True)), ()
    if name == "flip":
        (axes,) = node.attrs
        return tuple(
            number(n - 1) - c if a in axes else c
            for a, (c, n) in enumerate(zip(coords, node.shape, strict=True))
        ), ()
    if name == "pad":
        low, gap, _ = node.attrs
        result, guards = [], []
        for c, n, before, between in zip(coords, x.shape, low, gap, strict=True):
            inner = c - before
            if between:
                rest = inner % (between + 1)
                if rest.terms or rest.const:
                    guards.append((rest, 1))
                guards.append((inner, (n - 1) * (between + 1) + 1 if n else 0))
                inner = inner // (between + 1)
            else:
                guards.append((inner, n))
            result.append(inner)
        return tuple(result), tuple(g for g in guards if g[0].lo < 0 or g[0].hi >= g[1])
    if name == "loop_slice":
        return (Expr(((LOOP_INDEX, 1),), 0), *coords), ()
    raise NotImplementedError(name)


def is_view(node: Node) -> bool:
    """Whether a node is an index map of one input that always reads (not pad, concat)."""
    return node.op.kind is Kind.VIEW and node.op.name not in ("pad", "concat")


def keeps_order(node: Node) -> bool:
    """Whether a view leaves the linear order of elements as it is."""
    return node.op.kind is Kind.VIEW and node.op.name in ("reshape", "alias", "barrier")


def storage(node: Node) -> Node:
    """The node whose memory holds this one: order-keeping views share their input's."""
    while keeps_order(node):
        node = node.inputs[0]
    return node
