"""What all solvers with warpgroup matrix instructions share."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper.tiles import LIGHT, MOMENTS, READ, WORK, moments_time
from kerascl.kernels.selftests import part
from kerascl.kernels.tuning import machine


class HopperSolver(Solver):
    """What these solvers share: they apply where the self-test passed, and cost what they estimate.

    Args:
        tile, splits: fixed choices of a tile and of the slices of the depth, for tests and tuning;
            by default the fastest by estimate.
        more: what the epilogue does with a result besides storing it, in times of that.
        reads: whether the epilogue reads as many values as there are results.
        turns: whether teams may take tiles in turn, of which none has an output's columns alone.
        brought: bytes of each of these `reads`, where tiles of teams have them brought.
    """

    prefix = "wgmma"  # what its solvers' names begin with
    self_test = hopper_probe.BASE  # the self-test of which a part must have passed

    def __init__(
        self, tile=None, splits: int | None = None, more: float = 0.0, reads: bool = False,
        turns: bool = True, brought: tuple[int, ...] = (),
    ):  # fmt: skip
        self.tile = tile
        self.splits = splits
        self.more = more
        self.reads = reads
        self.turns = turns
        self.brought = brought
        self.name = self.prefix + (tile.name if tile else "") + (f"s{splits}" if splits else "")

    def takes(self, problem) -> bool:
        """Whether the kernel can compute this problem, whatever the device."""
        raise NotImplementedError

    def best(self, problem, info) -> tuple:
        """(microseconds without the launch, tile, splits) of the fastest choice."""
        raise NotImplementedError

    def part(self, problem) -> str:
        """The part of the self-test that proves this problem's kernel."""
        return part.named(problem.a, problem.precision)

    def applies(self, problem, info) -> bool:
        return self.takes(problem) and hopper_probe.available(
            info, self.self_test, self.part(problem)
        )

    def cost(self, problem, info) -> float:
        rates = machine.of(info)
        return rates.launch + rates.begin + self.best(problem, info)[0]


class MomentsSolver(HopperSolver):
    """One whose output's rows and columns may have moments: see wgmma_moments.cl."""

    def moments(self, problem) -> bool:
        """Whether all rows of this problem's product are those of one output."""
        raise NotImplementedError

    def brings(self, problem, epilogue: Epilogue) -> tuple[int, ...]:
        """Bytes of a value of each of the loads that tiles of teams have brought: all or none."""
        return ()

    def choice(self, problem, info, epilogue: Epilogue) -> tuple:
        """`best` for the epilogue."""
        more = READ * len(epilogue.reads) + (MOMENTS if epilogue.moments else 0.0)
        short = problem.a.itemsize == 2  # for others the rest is not measured
        more += WORK * max(epilogue.work - LIGHT, 0) if short else 0.0
        reads = short and bool(epilogue.reads)
        # Moments are those of whole sums.
        splits = 1 if epilogue.moments else self.splits
        turns = self.turns and not epilogue.moments
        brought = self.brings(problem, epilogue)
        return type(self)(self.tile, splits, more, reads, turns, brought).best(problem, info)

    def takes_moments(self, problem, info) -> bool:
        if not self.moments(problem):
            return False
        whole = type(self)(self.tile, 1, turns=False).best(problem, info)[0]
        worth = whole <= self.best(problem, info)[0] + moments_time(problem.total, info)
        of = part.named(problem.a, problem.precision)
        return worth and hopper_probe.available(info, hopper_probe.MOMENTS, of)
