"""Linear systems by LU factors with exchanges of rows: one work-item's for CPUs, work-groups' for
GPUs."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, Scalar, Workspace
from kerascl.kernels.contract.sizes import ceil_div, index_type
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.solve.blocked import Blocked
from kerascl.kernels.solve.local import Local
from kerascl.kernels.solve.problem import SolveProblem, real
from kerascl.kernels.tuning import database

_LANES = 16  # right sides that a work-item finds together


class SerialSolve(Solver):
    """A work-item factors a matrix, then work-items share out the right sides: CPUs."""

    name = "solve.serial"

    def applies(self, problem: SolveProblem, info) -> bool:
        return info.kind == "cpu" and real(problem, info)

    def plan(self, problem: SolveProblem, info, epilogue: Epilogue) -> Plan:
        count, n, columns = problem.count, problem.n, problem.columns
        if count * n * columns == 0:
            return Plan([])
        lanes = _LANES if columns >= _LANES // 2 else 1
        blocks = ceil_div(columns, lanes)
        padded = count * blocks * n * lanes
        index = index_type(count * n * n, padded)
        workspace, size = Workspace(), problem.dtype.itemsize
        factors = Ref(workspace.room(count * n * n * size))
        order = Ref(workspace.room(count * n * 4))
        found = Ref(workspace.room(padded * size))
        head = prelude(index, A=problem.dtype, ACC=problem.dtype) + defines(LANES=lanes)
        text = cl_source("solve/solve.cl")
        numbers: tuple[Arg, ...] = tuple(Scalar(index, x) for x in (n, columns, blocks))
        factor = Launch(
            head + defines(LU_FACTOR=1) + text,
            "lu_factor",
            (Ref("a"), factors, order, Scalar(index, n)),
            (count,),
            (1,),
            role=Role.PACK,
        )
        substitute = Launch(
            head + defines(LU_SOLVE=1) + epilogue.defines + text,
            "lu_solve",
            (factors, order, Ref("b"), found, *numbers, *epilogue.args),
            (count * blocks,),
            (1,),
        )
        return Plan([factor, substitute], workspace)


SOLVERS: tuple[Solver, ...] = (SerialSolve(), Local(), Blocked())


def plan(problem: SolveProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; every result goes through `epilogue` once.

    Raises:
        NotImplementedError: no kernel applies on the device.
    """
    return database.choose("solve", SOLVERS, (), problem, info).plan(problem, info, epilogue)
