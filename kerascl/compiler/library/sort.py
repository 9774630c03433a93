"""Rows sorted, with the places where their elements were."""

from __future__ import annotations

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.sort import solvers as sort
from kerascl.kernels.sort.problem import SortProblem
from kerascl.ops.sorting import SORT


def _plan(call: Call) -> Plan:
    descending, k = call.node.attrs
    rows, length = call.node.inputs[0].shape
    problem = SortProblem(
        rows=rows,
        length=length,
        dtype=call.node.dtype,
        descending=descending,
        outputs=tuple(name for k, name in enumerate(("values", "indices")) if k in call.wanted),
        k=k,
    )
    return sort.plan(problem, call.info, call.epilogue)


def _outputs(node: Node) -> tuple[str, ...]:
    return "out", "indices"


OPERATIONS = (LibraryOperation(SORT, _plan, outputs=_outputs),)
