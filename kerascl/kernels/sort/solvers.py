"""Sorts of rows: which way for which length."""

from __future__ import annotations

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.contract.sizes import INT_MAX, ceil_div
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import prelude
from kerascl.kernels.sort.problem import SortProblem
from kerascl.kernels.sort.radix import (
    digits,
    group_digits,
    group_tile,
    sort_by_digits,
    sort_by_groups,
)
from kerascl.kernels.sort.stages import (
    Final,
    Stages,
    index_for,
    is_wide,
    key_bits,
    key_macros,
    selects,
    sort_by_chunks,
    sort_by_tiles,
)
from kerascl.kernels.tuning import database, machine

ITEM = 8  # bytes that move for each element: its key and its place
TILE = 11  # doublings of sorted stretches that one launch makes


def depth(problem: SortProblem) -> int:
    """Doublings until a row is sorted."""
    return max(1, (problem.length - 1).bit_length())


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
        """Append to `stages` the launches that leave the first `keep` items of each sorted row."""
        raise NotImplementedError


class TileSort(_ItemSort):
    """Work-groups with local memory."""

    ON_GPU, ON_CPU = 0.05, 0.0005  # shares of the rate of multiply-adds, for exchanges

    name = "sort.tiles"

    def schedule(self, stages: Stages, keep: int) -> None:
        sort_by_tiles(stages, keep)

    def cost(self, problem: SortProblem, info) -> float:
        # A bitonic network exchanges each pair of every stage, with barriers between.
        deep, rates = depth(problem), machine.of(info)
        exchanges = problem.rows * problem.length * deep * (deep + 1) / 4
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        nbytes = 2 * problem.rows * problem.length * ITEM * max(1, deep - TILE)
        launches = max(1, deep - TILE)
        return rates.roofline(exchanges, nbytes, dtypes.float32, efficiency, launches)


class ChunkSort(_ItemSort):
    """Work-items alone: CPUs."""

    ON_CPU = 0.012  # share of the rate of multiply-adds, for moves

    name = "sort.chunks"

    def schedule(self, stages: Stages, keep: int) -> None:
        sort_by_chunks(stages, keep)

    def cost(self, problem: SortProblem, info) -> float:
        # Each item moves once in each doubling, in the last ones of a row by few work-items, which
        # on GPUs wait for each of their reads: twice the row's length in all.
        deep, rates = depth(problem), machine.of(info)
        moves = problem.rows * problem.length * deep
        waits = 0.0 if info.kind == "cpu" else 2 * problem.length * rates.latency
        return waits + rates.roofline(moves, 2 * ITEM * moves, dtypes.float32, self.ON_CPU)


class RadixSort(_ItemSort):
    """Digit by digit: long rows on CPUs."""

    ON_CPU = 0.025  # share of the rate of multiply-adds, for moves
    DIGITS = 1024  # moves that the counts of a row's digit are worth

    name = "sort.radix"

    def applies(self, problem: SortProblem, info) -> bool:
        few = selects(problem.length, problem.keep)
        return super().applies(problem, info) and info.kind == "cpu" and not few

    def schedule(self, stages: Stages, keep: int) -> None:
        sort_by_digits(stages, keep, key_bits(stages.dtype))

    def cost(self, problem: SortProblem, info) -> float:
        rates = machine.of(info)
        passes, _ = digits(key_bits(problem.dtype))
        moves = passes * problem.rows * (problem.length + self.DIGITS)
        item = ITEM if "indices" in problem.outputs else problem.dtype.itemsize
        return rates.roofline(moves, 2 * item * moves, dtypes.float32, self.ON_CPU, 2 * passes)


class GroupRadixSort(_ItemSort):
    """Digit by digit, each tile of a row in a work-group's local memory: long rows on GPUs."""

    ON_GPU = 0.006  # share of the rate of multiply-adds, for moves
    PASSES = 3  # over the elements for each digit: two reads and a write

    name = "sort.radix_groups"

    def applies(self, problem: SortProblem, info) -> bool:
        few = selects(problem.length, problem.keep)
        fits = super().applies(problem, info) and info.kind != "cpu" and not few
        return fits and group_tile(info, self._unit(problem))[0] > 0

    def schedule(self, stages: Stages, keep: int) -> None:
        sort_by_groups(stages, keep, key_bits(stages.dtype))

    def cost(self, problem: SortProblem, info) -> float:
        return self.moving(problem, info, key_bits(problem.dtype))

    def moving(self, problem: SortProblem, info, bits: int) -> float:
        """The cost where keys differ in so many bits only."""
        rates = machine.of(info)
        passes, _ = group_digits(bits)
        group, items = group_tile(info, self._unit(problem))
        tile = group * items
        moves = passes * problem.rows * ceil_div(problem.length, tile) * tile
        nbytes = self.PASSES * self._unit(problem) * moves
        return rates.roofline(moves, nbytes, dtypes.float32, self.ON_GPU, 3 * passes)

    def _unit(self, problem: SortProblem) -> int:
        if problem.outputs == ("values",):
            return problem.dtype.itemsize
        return 2 * ITEM if is_wide(problem.dtype) else ITEM


SOLVERS: tuple[Solver, ...] = (TileSort(), ChunkSort(), RadixSort(), GroupRadixSort())


def plan(problem: SortProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`: values through `epilogue`, indices to the slot "indices".

    Raises:
        NotImplementedError: for complex dtypes, or rows longer than 2**31 - 1.
    """
    solver = database.choose("sort", SOLVERS, (), problem, info)
    return solver.plan(problem, info, epilogue)
