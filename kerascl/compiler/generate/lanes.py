"""Epilogues in explicit vectors, for CPUs.

CPUs' compilers make no vectors of a loop over neighbours that calls functions, such as the square
root in an optimizer's update.  So a kernel whose loop is long asks for vectors itself.
"""

from __future__ import annotations

import re
from typing import Any

from kerascl.compiler.generate import vectors
from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.compiler.generate.vectors import Unfit
from kerascl.compiler.graph.in_place import STORE
from kerascl.compiler.graph.symbolic import Expr, unravel
from kerascl.core.node import Node
from kerascl.ops.pointwise import maximum, minimum

# Functions of floats that OpenCL C has for vectors, and choices between these.
_FUNCTION = re.compile(r"(sqrt|rsqrt|fabs|exp|log)\(\{0\}\)")
_CHOICES = frozenset((maximum.op.code, minimum.op.code, "(-{0})", "(1 / {0})"))


class _Results(vectors.Lanes):
    """Statements of a vector of results, whose first has index `i`."""

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        return self.find((id(node),)) or super().element(node, index, guards)

    def _computes(self, code: str) -> bool:
        return super()._computes(code) or code in _CHOICES or bool(_FUNCTION.fullmatch(code))


def body(build: Builder, writer: Writer, axes: tuple[Expr, ...], names: list[str]) -> list[str]:
    """The epilogue of a cluster for `width(build)` results at once: statements over `acc`, a vector
    of the head's compute type, and `i`; none where it cannot be written so.

    Args:
        writer: of the epilogue for one result, whose parameters these statements use.
        axes, names: coordinates of a result, and their variables.
    """
    cluster = build.cluster
    head, members = cluster.head, cluster.members
    plain = not (cluster.streamed or cluster.row) and len(axes) == 1
    if build.info.kind != "cpu" or build.generic or not plain:
        return []
    if any(x.op is STORE or x.dtype.storage != x.dtype.compute for x in members):
        return []
    if any(x.dtype.is_complex or x.dtype.round for x in members):
        return []
    (index,), (name,) = axes, names
    around = Scope(writer)
    scope = _Results(around, [name], index, width(build))
    scope.hold(head, scope.define(writer.ctype(head.dtype), "acc"))
    stores = []
    try:
        for node in members:
            value = scope.find((id(node),)) or scope.compute(
                node, unravel(index, node.shape), (), build.outside | {id(head)}
            )
            if id(node) in build.writes:
                vector = f"({scope.vector(node.dtype.compute)})({value})"
                place = f"{writer.buffer(node)} + i"
                stores.append(f"vstore{scope.width}({vector}, 0, {place});")
    except Unfit:
        return []
    first = f"const {writer.index_type} {name} = i;"
    return [first, *around.lines, *scope.lines, *stores]


def width(build: Builder) -> int:
    """How many results."""
    return vectors.width(build.computed())
