"""How a heavy kernel reads its inputs: which memory, and with which strides."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.compiler.graph import views
from kerascl.compiler.graph.symbolic import LOOP_INDEX, Expr, Var, linear, strides_of, variable
from kerascl.core.node import Node


@dataclass(frozen=True)
class Operand:
    """Memory of `base` read at offset + sum(stride * coordinate)."""

    base: Node
    strides: tuple[int, ...]
    offset: int = 0


def operand(node: Node, strided: bool) -> Operand:
    """The furthest node back whose memory can stand for `node`."""
    best = Operand(views.storage(node), strides_of(node.shape))
    if not strided or not node.size:
        return best
    coords = tuple(variable(f"d{a}", n) for a, n in enumerate(node.shape))
    current = node
    while views.is_view(current):
        coords, _ = views.source(current, coords)
        current = current.inputs[0]
        strides = _affine(linear(coords, current.shape), node.shape)
        if strides is not None:
            best = Operand(current, *strides)
    return best


def _affine(index: Expr, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    strides = [0] * len(shape)
    for atom, k in index.terms:
        if not isinstance(atom, Var) or atom is LOOP_INDEX:
            return None
        strides[int(atom.name[1:])] = k
    if any(s < 0 for s in strides):
        return None
    return tuple(strides), index.const
