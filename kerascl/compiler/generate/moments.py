"""Reductions over the rows of a product's output, computed beside it: see `Epilogue.moments`.

A batch normalisation's statistics are of what a convolution has just computed.  The kernel knows
each column's mean and squared distances from it, of its accumulators; what follows until the
reduction only shifts a column, as a bias does, so the mean shifts alike and the distances stay.
Products of 16-bit floats thus give the moments of what they were before rounding.
"""

from __future__ import annotations

from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import Scope, Writer, rounded
from kerascl.compiler.graph.symbolic import linear, unravel, variable
from kerascl.core.op import Kind
from kerascl.ops.nn import VARIANCE
from kerascl.ops.views import SUM_OP

# The reductions that follow from a column's mean, squared distances and number of rows, and how.
RESULTS = {SUM_OP: "{mean} * {rows}", VARIANCE: "squares / {rows}"}


def body(build: Builder, writer: Writer) -> str:
    """The statements of `Epilogue.moments` for the reductions of a product's cluster and for the
    members over the same columns."""
    cluster = build.cluster
    head = cluster.head
    columns = head.shape[-1]
    column = linear((variable("col", columns),), (columns,))
    scope, means = Scope(writer), Scope(writer)
    means.rounds = False
    means.hold(head, "mean")
    rows = f"{float(head.size // columns)!r}f"
    members = [m for m in cluster.members if id(m) in cluster.row]
    reductions = [m for m in members if m.op.kind is Kind.REDUCTION]
    for reduction in reductions:
        x = reduction.inputs[0]
        mean = means.value(x, unravel(column, x.shape), (), build.outside | {id(head)})
        value = rounded(RESULTS[reduction.op].format(mean=mean, rows=rows), reduction.dtype)
        name = scope.define(writer.ctype(reduction.dtype), value)
        scope.hold(reduction, name)
        if id(reduction) in build.writes:
            build.store(scope, reduction, column, name)
    visible = build.outside.union(id(reduction) for reduction in reductions)
    for node in members:
        if node.op.kind is not Kind.REDUCTION and id(node) in build.writes:
            value = scope.compute(node, unravel(column, node.shape), (), visible)
            build.store(scope, node, column, value)
    scope.flush()
    return "\n".join(means.lines + scope.lines)
