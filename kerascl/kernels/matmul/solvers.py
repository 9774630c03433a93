"""Matrix products: batched, arbitrarily strided, any dtype.

`plan` normalises a `MatmulProblem` (drops and merges batch dimensions) and lets the cheapest
applicable solver plan it.
"""

from __future__ import annotations

from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.hopper import left, pingpong, transposed
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.matmul.computed import bytes_each
from kerascl.kernels.matmul.panels import PanelMatmul
from kerascl.kernels.matmul.portable import DirectMatmul, TiledMatmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.matmul.skinny import SkinnyMatmul
from kerascl.kernels.matmul.skinny_dots import SkinnyDots
from kerascl.kernels.matmul.split_k import zero_plan
from kerascl.kernels.matmul.streamed import StreamedMatmul
from kerascl.kernels.matmul.tiles import SHALLOW, TILES
from kerascl.kernels.selftests import asked
from kerascl.kernels.tuning import database, machine
from kerascl.kernels.units import tile as unit_tile
from kerascl.kernels.units.matmul import GEMM_SOLVERS, FragmentMatmul
from kerascl.kernels.units.skinny import SkinnyMma

SOLVERS: tuple[Solver, ...] = (
    DirectMatmul(),
    SkinnyMatmul(),
    SkinnyDots(),
    SkinnyMma(),
    PanelMatmul(),
    StreamedMatmul(),
    hopper_matmul.HopperMatmul(),
    transposed.TransposedMatmul(),
    left.LeftMatmul(),
    *(TiledMatmul(tile) for tile in (*TILES, *SHALLOW)),
    *GEMM_SOLVERS,
)


# Plain solvers that the tuner checks all others against.
REFERENCES: tuple[Solver, ...] = (TiledMatmul(TILES[-1]), PanelMatmul(), DirectMatmul())
# What only the tuner tries: the same tiles with another number of slices, other panels.
SLICES = (1, 2, 4, 8, 16, 32)
VARIANTS: tuple[Solver, ...] = (
    *(TiledMatmul(tile, split) for tile in TILES for split in SLICES),
    *unit_tile.solvers(FragmentMatmul, *SLICES),
    *(
        kind(shape, split)
        for kind in (hopper_matmul.HopperMatmul, transposed.TransposedMatmul, left.LeftMatmul)
        for shape in kind.shapes
        for split in SLICES
    ),
    *(hopper_matmul.HopperMatmul(shape, 1) for shape in pingpong.SHAPES),
    *(kind(split) for kind in (SkinnyMatmul, SkinnyDots, SkinnyMma) for split in SLICES),
    *(PanelMatmul(pack=pack) for pack in (True, False)),
)

# How many times fewer bytes an operand must be made of before its sake decides who multiplies.
PACKED = 2


def candidates(problem: MatmulProblem, info) -> tuple[tuple[Solver, ...], tuple[Solver, ...]]:
    """Whose costs are compared, and who is taken only where a record names it."""
    return SOLVERS, VARIANTS


def plan(problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem` on the device that `info` describes.

    Raises:
        NotImplementedError: when the device lacks the dtypes (float64 without fp64).
    """
    problem = normalise_matmul(problem)
    if problem.total == 0 or problem.k == 0:
        return zero_plan(problem.total, problem.acc, epilogue)
    solver = database.choose_for("gemm", *candidates(problem, info), problem, info, epilogue)
    return solver.plan(problem, info, epilogue)


def computes(problem: MatmulProblem, info) -> str | None:
    """The slot of an operand that `plan_computing` need not find in memory, if there is one.

    Raises:
        NotImplementedError: as `plan`.
    """
    problem = normalise_matmul(problem)
    if problem.total == 0 or problem.k == 0:
        return None
    with asked.comparing():
        return _computing(problem, info).computes(problem, info)


def computes_well(problem: MatmulProblem, info, computed: Computed) -> bool:
    """Whether it pays to compute the operand that `computes` names in the product's kernel."""
    problem = normalise_matmul(problem)
    with asked.comparing():
        solver = _computing(problem, info)
        if solver is not database.choose("gemm", *candidates(problem, info), problem, info):
            operand = problem.a if solver.computes(problem, info) == "a" else problem.b
            if bytes_each(computed) * PACKED > operand.itemsize:
                return False
        return solver.computes_well(problem, info, computed)


def plan_computing(problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed) -> Plan:
    """Launches for a problem of which `computes` named an operand, which is not in memory; the
    epilogue has no moments."""
    problem = normalise_matmul(problem)
    with asked.comparing():
        solver = _computing(problem, info)
    # No kernel with a self-test computes operands.
    return solver.plan_computing(problem, info, epilogue, computed)


def _computing(problem: MatmulProblem, info) -> Solver:
    """The solver that `plan` takes or, where that one computes no operand, the cheapest that does,
    if it costs no more than that one and a launch that lays the operand out in memory."""
    chosen = database.choose("gemm", *candidates(problem, info), problem, info)
    if chosen.computes(problem, info) or contract.forced((*SOLVERS, *VARIANTS), problem, info):
        return chosen
    others = [
        (solver.cost(problem, info), slot, solver) for solver in SOLVERS
        if solver.applies(problem, info) and not contract.avoided(solver)
        and (slot := solver.computes(problem, info))
    ]  # fmt: skip
    if not others:
        return chosen
    own, slot, best = min(others, key=lambda found: found[0])
    rates, p = machine.of(info), problem
    nbytes = p.m * p.k * p.a.itemsize if slot == "a" else p.k * p.n * p.b.itemsize
    before = rates.launch + rates.moving(nbytes)
    return best if own <= cost(problem, info) + before else chosen


def takes_moments(problem: MatmulProblem, info) -> bool:
    """Whether `plan` takes an epilogue with moments.

    Raises:
        NotImplementedError: as `plan`.
    """
    problem = normalise_matmul(problem)
    if problem.total == 0 or problem.k == 0:
        return False
    found = candidates(problem, info)
    return database.choose_with_moments("gemm", *found, problem, info) is not None


def cost(problem: MatmulProblem, info) -> float:
    """The cost of the solver that `plan` takes: one that a record names costs no more than the
    cheapest, which it beat."""
    problem = normalise_matmul(problem)
    with asked.comparing():
        chosen = database.choose("gemm", *candidates(problem, info), problem, info)
        cheapest = contract.choose(SOLVERS, problem, info)
        return min(solver.cost(problem, info) for solver in (chosen, cheapest))
