"""Sorts of rows: which way for which length."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.contract.sizes import INT_MAX
from kerascl.kernels.contract.solver import Solver, choose
from kerascl.kernels.contract.source import prelude
from kerascl.kernels.sort.problem import SortProblem
from kerascl.kernels.sort.stages import (
    Final,
    Stages,
    index_for,
    is_wide,
    key_macros,
    sort_by_chunks,
    sort_by_tiles,
)


class _ItemSort(Solver):
    def applies(self, problem: SortProblem, info) -> bool:
        return not problem.dtype.is_complex and problem.length <= INT_MAX

    def plan(self, problem: SortProblem, info, epilogue: Epilogue) -> Plan:
        if problem.rows == 0 or problem.keep == 0 or not problem.outputs:
            return Plan([])
        index = index_for(problem.rows, problem.length, info)
        head = prelude(index, A=problem.dtype, ACC=problem.dtype)
        head += key_macros(problem.dtype, problem.descending)
        stages = Stages(
            info,
            problem.rows,
            problem.length,
            problem.dtype,
            head,
            index,
            is_wide(problem.dtype),
            0,
            Ref("a"),
            [],
            Final(epilogue, tuple(problem.outputs)),
            [],
            now=problem.length,
        )
        self.schedule(stages, problem.keep)
        return Plan(stages.launches, stages.workspace)

    def schedule(self, stages: Stages, keep: int) -> None:
        raise NotImplementedError


class TileSort(_ItemSort):
    """Work-groups with local memory."""

    name = "sort.tiles"

    def schedule(self, stages: Stages, keep: int) -> None:
        sort_by_tiles(stages, keep)

    def cost(self, problem: SortProblem, info) -> float:
        return 2.0 if info.kind == "cpu" else 0.5


class ChunkSort(_ItemSort):
    """Work-items alone: CPUs."""

    name = "sort.chunks"

    def schedule(self, stages: Stages, keep: int) -> None:
        sort_by_chunks(stages, keep)


SOLVERS: tuple[Solver, ...] = (TileSort(), ChunkSort())


def plan(problem: SortProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`: values through `epilogue`, indices to the slot "indices".

    Raises:
        NotImplementedError: for complex dtypes, or rows longer than 2**31 - 1.
    """
    return choose(SOLVERS, problem, info).plan(problem, info, epilogue)
