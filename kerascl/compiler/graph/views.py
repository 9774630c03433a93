"""Views as maps from output coordinates to input coordinates: a record for each operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kerascl.compiler.graph.symbolic import LOOP_INDEX, ZERO, Expr, linear, number, unravel
from kerascl.core.node import Node
from kerascl.core.op import Op
from kerascl.core.tape import ALIAS
from kerascl.core.traced import BARRIER
from kerascl.ops.control import LOOP_SLICE
from kerascl.ops.views import EXPAND, FLIP, PAD, PERMUTE, RESHAPE, SLICE

Coordinates = tuple[Expr, ...]
# A guard is (expression, size): the element exists where 0 <= expression < size.
Guard = tuple[Expr, int]


@dataclass(frozen=True)
class View:
    """The machine side of a view with one input.

    Attributes:
        source: from a node and the coordinates of an element to those of its input's.
        keeps_order: whether the linear order of elements stays as it is.
        guards: from the same to what must hold for the element to be the input's; None where it
            always is.
    """

    source: Callable[[Node, Coordinates], Coordinates]
    keeps_order: bool = False
    guards: Callable[[Node, Coordinates], tuple[Guard, ...]] | None = None


def _reshape(node: Node, coords: Coordinates) -> Coordinates:
    return unravel(linear(coords, node.shape), node.inputs[0].shape)


def _same(node: Node, coords: Coordinates) -> Coordinates:
    return coords


def _expand(node: Node, coords: Coordinates) -> Coordinates:
    shape = node.inputs[0].shape
    return tuple(ZERO if n == 1 else c for c, n in zip(coords, shape, strict=True))


def _permute(node: Node, coords: Coordinates) -> Coordinates:
    (axes,) = node.attrs
    result = [ZERO] * len(axes)
    for position, axis in enumerate(axes):
        result[axis] = coords[position]
    return tuple(result)


def _slice(node: Node, coords: Coordinates) -> Coordinates:
    starts, steps = node.attrs
    return tuple(c * k + s for c, s, k in zip(coords, starts, steps, strict=True))


def _flip(node: Node, coords: Coordinates) -> Coordinates:
    (axes,) = node.attrs
    return tuple(
        number(n - 1) - c if a in axes else c
        for a, (c, n) in enumerate(zip(coords, node.shape, strict=True))
    )


def _pad(node: Node, coords: Coordinates) -> Coordinates:
    low, gap, _ = node.attrs
    return tuple(
        (c - before) // (between + 1) for c, before, between in zip(coords, low, gap, strict=True)
    )


def _inside(node: Node, coords: Coordinates) -> tuple[Guard, ...]:
    """Where an element of a padded array is the input's."""
    low, gap, _ = node.attrs
    guards = []
    for c, n, before, between in zip(coords, node.inputs[0].shape, low, gap, strict=True):
        inner = c - before
        if between:
            rest = inner % (between + 1)
            if rest.terms or rest.const:
                guards.append((rest, 1))
        guards.append((inner, (n - 1) * (between + 1) + 1 if n else 0))
    return tuple(g for g in guards if g[0].lo < 0 or g[0].hi >= g[1])


def _loop_slice(node: Node, coords: Coordinates) -> Coordinates:
    return (Expr(((LOOP_INDEX, 1),), 0), *coords)


VIEWS: dict[Op, View] = {
    RESHAPE: View(_reshape, keeps_order=True),
    ALIAS: View(_same, keeps_order=True),
    BARRIER: View(_same, keeps_order=True),
    EXPAND: View(_expand),
    PERMUTE: View(_permute),
    SLICE: View(_slice),
    FLIP: View(_flip),
    PAD: View(_pad, guards=_inside),
    LOOP_SLICE: View(_loop_slice),
}


def source(node: Node, coords: Coordinates) -> tuple[Coordinates, tuple[Guard, ...]]:
    """Where a view with one input reads: input coordinates, and guards (only padding has any)."""
    view = VIEWS[node.op]
    return view.source(node, coords), view.guards(node, coords) if view.guards else ()


def is_view(node: Node) -> bool:
    """Whether a node is an index map of one input that always reads it (not padding, not a
    concatenation)."""
    view = VIEWS.get(node.op)
    return view is not None and view.guards is None


def keeps_order(node: Node) -> bool:
    """Whether a node is a view that leaves the linear order of elements as it is."""
    view = VIEWS.get(node.op)
    return view is not None and view.keeps_order


def storage(node: Node) -> Node:
    """The node whose memory holds this one: order-keeping views share their input's."""
    while keeps_order(node):
        node = node.inputs[0]
    return node
