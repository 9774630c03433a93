"""Rows of an array updated at given places."""

from __future__ import annotations

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.scatter import solvers as scatter
from kerascl.kernels.scatter.problem import ScatterProblem
from kerascl.ops.gather import SCATTER


def _plan(call: Call) -> Plan:
    (mode,) = call.node.attrs
    base, indices, _ = call.node.inputs
    problem = ScatterProblem(
        rows=base.shape[0],
        width=base.shape[1],
        count=indices.shape[0],
        index_dtype=indices.dtype,
        dtype=call.node.dtype,
        mode=mode,
    )
    return scatter.plan(problem, call.info, call.epilogue)


OPERATIONS = (LibraryOperation(SCATTER, _plan),)
