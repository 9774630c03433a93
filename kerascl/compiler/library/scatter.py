"""Rows of an array updated at given places, and counts of places and of values in bins."""

from __future__ import annotations

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.scatter import counts
from kerascl.kernels.scatter import solvers as scatter
from kerascl.kernels.scatter.problem import CountsProblem, ScatterProblem
from kerascl.ops.gather import SCATTER
from kerascl.ops.histograms import BINNED, COUNTS, binned, counted
from kerascl.runtime.device import DeviceInfo


def _plan(call: Call) -> Plan:
    (mode,) = call.node.attrs
    indices, _, *base = call.node.inputs
    problem = ScatterProblem(
        rows=call.node.shape[0],
        width=call.node.shape[1],
        count=indices.shape[0],
        index_dtype=indices.dtype,
        dtype=call.node.dtype,
        mode=mode,
        base=bool(base),
    )
    return scatter.plan(problem, call.info, call.epilogue)


def _counts_problem(node: Node) -> CountsProblem:
    values, edges = node.inputs[0], ""
    if node.op is BINNED:
        edges = "even" if node.attrs[0] else "any"
    return CountsProblem(node.shape[0], values.shape[0], values.dtype, edges)


def _counts(call: Call) -> Plan:
    return counts.plan(_counts_problem(call.node), call.info, call.epilogue)


def _counts_preferred(node: Node, info: DeviceInfo) -> bool:
    return counts.preferred(_counts_problem(node), info)


OPERATIONS = (
    LibraryOperation(SCATTER, _plan, streams=True, zeros=frozenset({2})),
    LibraryOperation(
        COUNTS, _counts,
        formula=lambda *values: (counted(*values),), preferred=_counts_preferred,
    ),
    LibraryOperation(
        BINNED, _counts,
        formula=lambda *values: (binned(*values),), preferred=_counts_preferred,
    ),
)  # fmt: skip
