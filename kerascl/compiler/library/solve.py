"""Linear systems."""

from __future__ import annotations

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.solve import solvers
from kerascl.kernels.solve.problem import SolveProblem
from kerascl.ops.elimination import SOLVE, gauss_jordan
from kerascl.runtime.device import DeviceInfo


def _problem(node: Node) -> SolveProblem:
    count, n, columns = node.shape
    return SolveProblem(count, n, columns, node.dtype)


def _plan(call: Call) -> Plan:
    return solvers.plan(_problem(call.node), call.info, call.epilogue)


def _preferred(node: Node, info: DeviceInfo) -> bool:
    return any(solver.applies(_problem(node), info) for solver in solvers.SOLVERS)


def _flops(node: Node) -> int:
    count, n, columns = node.shape
    return count * (2 * n**3 // 3 + 2 * n * n * columns)


OPERATIONS = (
    LibraryOperation(
        SOLVE,
        _plan,
        flops=_flops,
        formula=lambda a, b: (gauss_jordan(a, b),),
        preferred=_preferred,
    ),
)
