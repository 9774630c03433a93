"""Gradients of a dense layer: of its weights, a product, and of its bias, sums of what that reads.

One kernel that reads the layer's gradient once serves where it lies as such kernels want it.
"""

from __future__ import annotations

from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import Epilogue, store_epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Role, Workspace
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import Source, unit
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.transposed import TransposedMatmul
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import DenseGradProblem, problem_index
from kerascl.kernels.matmul.split_k import GROUP, reduction_launch
from kerascl.kernels.selftests import asked
from kerascl.kernels.tuning import machine

ROWS = 64  # that a work-item adds where the sums have a launch of their own
WORTH = 0.15  # of a launch's time: what it takes at least to read b again


class SeparateSums(Solver):
    """The product by the solver that it has alone, and launches that add b's rows."""

    name = "dense_grad"

    def applies(self, problem: DenseGradProblem, info) -> bool:
        return True

    def cost(self, problem: DenseGradProblem, info) -> float:
        return matmul.cost(problem.product, info) + sums_time(problem, info)

    def plan(self, problem: DenseGradProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, problem_index(problem)
        made = matmul.plan(p.product, info, epilogue)
        workspace = Workspace(made.workspace)
        slices = ceil_div(p.k, ROWS)
        part = workspace.room(p.acc.itemsize * slices * p.n)
        store = store_epilogue(p.b, "sums")
        last = reduction_launch(p.n, slices, p.acc, index, store, part)
        return Plan([*made.launches, _rows_launch(p, slices, index, part), last], workspace)


def _rows_launch(p: DenseGradProblem, slices: int, index: str, slot: str) -> Launch:
    """Sums of each ROWS rows of b, a column to a work-item."""
    row, column = p.b_strides[-2:]
    at = f"{p.b_offset} + k * ({row}) + n * ({column})"
    lines = (
        f"const {index} i = get_global_id(0), n = i % {p.n}, first = i / {p.n} * {ROWS};",
        f"if (i < ({index}){slices * p.n}) {{",
        f"  {p.acc.compute} sum = 0;",
        f"  for ({index} k = first; k < first + {ROWS} && k < {p.k}; ++k)",
        f"    sum += {p.b.load.format(p='b', i=at)};",
        "  part[i] = sum;",
        "}",
    )
    params = f"__global const {p.b.storage}* restrict b", f"__global {p.acc.compute}* restrict part"
    body = "".join(f"  {line}\n" for line in lines)
    text = Source("reduce_rows", params, body, (), p.acc.is_double)
    size = round_up(slices * p.n, GROUP)
    return Launch(
        unit([text]), text.name, (Ref("b"), Ref(slot)), (size,), (GROUP,), text=text,
        role=Role.REDUCE,
    )  # fmt: skip


def sums_time(p: DenseGradProblem, info) -> float:
    """Microseconds of sums that are not made beside the product."""
    return machine.of(info).launch + _reading(p, info)


def _reading(p: DenseGradProblem, info) -> float:
    return machine.of(info).moving(p.k * p.n * p.b.itemsize)


SOLVERS: tuple[Solver, ...] = (HopperMatmul(), TransposedMatmul(), SeparateSums())


def plan(problem: DenseGradProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem`, whose sizes are not 0: the product through the epilogue, and
    the sums.

    Raises:
        NotImplementedError: when the device lacks the dtypes (float64 without fp64).
    """
    return contract.choose(SOLVERS, problem, info).plan(problem, info, epilogue)


def in_one(problem: DenseGradProblem, info) -> bool:
    """Whether one kernel serves, where it takes a while to read b again."""
    if _reading(problem, info) < WORTH * machine.of(info).launch:
        return False
    with asked.comparing():
        return not isinstance(contract.choose(SOLVERS, problem, info), SeparateSums)
