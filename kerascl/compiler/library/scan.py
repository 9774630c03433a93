"""Scans along an axis, searches in sorted rows, and places of counts."""

from __future__ import annotations

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.scan import solvers as scan
from kerascl.kernels.scan.problem import PlacesProblem, ScanProblem, SearchProblem
from kerascl.ops.scan import PLACES, SCAN
from kerascl.ops.sorting import SEARCH


def _scan(call: Call) -> Plan:
    node = call.node
    kind, reverse, exclusive = node.attrs
    outer, length, inner = node.shape
    problem = ScanProblem(
        outer=outer,
        length=length,
        inner=inner,
        kind=kind,
        dtype=node.dtype,
        acc=node.dtype.accumulator,
        reverse=reverse,
        exclusive=exclusive,
    )
    return scan.plan(problem, call.info, call.epilogue)


def _search(call: Call) -> Plan:
    node = call.node
    (side,) = node.attrs
    ordered = node.inputs[0]
    problem = SearchProblem(
        sorted_length=ordered.shape[1],
        count=node.shape[1],
        dtype=ordered.dtype,
        side=side,
        rows=node.shape[0],
        acc=node.dtype,
    )
    return scan.plan(problem, call.info, call.epilogue)


def _places(call: Call) -> Plan:
    node = call.node
    (counts,) = node.inputs
    problem = PlacesProblem(
        length=counts.shape[1],
        size=node.shape[1],
        dtype=counts.dtype,
        rows=node.shape[0],
        acc=node.dtype,
    )
    return scan.plan(problem, call.info, call.epilogue)


OPERATIONS = (
    LibraryOperation(SCAN, _scan),
    LibraryOperation(SEARCH, _search),
    LibraryOperation(PLACES, _places),
)
