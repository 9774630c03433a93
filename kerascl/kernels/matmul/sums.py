"""Sums of products of equal sizes: gradients of an array that several products read.

A model's queries, keys and values are products of one input, whose gradient is the sum of three.
As one product of three times the depth it is rounded once, and no part of it goes through memory.
"""

from __future__ import annotations

from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan, Workspace, rename_slots
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import SumProblem, problem_index, slots
from kerascl.kernels.matmul.split_k import (
    partial_epilogue,
    reduction_time,
    vector_reduction_launch,
)
from kerascl.kernels.selftests import asked


class SeparateProducts(Solver):
    """Each product by the solver that it has alone, and a launch that adds them."""

    name = "gemm_sum"

    def applies(self, problem: SumProblem, info) -> bool:
        return True

    def cost(self, problem: SumProblem, info) -> float:
        p = problem
        return p.count * matmul.cost(p.term, info) + reduction_time(p.total, p.count, info)

    def plan(self, problem: SumProblem, info, epilogue: Epilogue) -> Plan:
        p, workspace = problem, Workspace()
        index = problem_index(p)
        sums = workspace.room(p.count * p.total * p.acc.itemsize)
        launches = []
        for n, (a, b) in enumerate(slots(p)):
            partial = partial_epilogue(p.acc, f"(INDEX_T){n} * {p.total}", "part")
            one = matmul.plan(p.term, info, partial)
            one = rename_slots(one, {"a": a, "b": b, "part": sums}, len(workspace))
            launches += one.launches
            workspace += one.workspace
        last = vector_reduction_launch(p.total, p.count, p.acc, index, epilogue, info, sums)
        return Plan([*launches, last], workspace)


SOLVERS: tuple[Solver, ...] = (HopperMatmul(), SeparateProducts())


def plan(problem: SumProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem`, whose sizes are not 0.

    Raises:
        NotImplementedError: when the device lacks the dtypes (float64 without fp64).
    """
    return contract.choose(SOLVERS, problem, info).plan(problem, info, epilogue)


def in_one(problem: SumProblem, info) -> bool:
    """Whether one kernel serves, and better than products that are added as they come."""
    with asked.comparing():
        chosen = contract.choose(SOLVERS, problem, info)
        if isinstance(chosen, SeparateProducts):
            return False
        return chosen.cost(problem, info) <= problem.count * matmul.cost(problem.term, info)
