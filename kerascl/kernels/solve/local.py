"""Linear systems whose matrix fits into local memory, in one launch."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.plan import Local as LocalRoom
from kerascl.kernels.contract.sizes import ceil_div, index_type, last_power, next_power
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.solve.problem import SolveProblem, real
from kerascl.kernels.tuning import machine
from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class _Shares:
    """How work-groups share out right sides.

    Attributes:
        chunk: right sides of a work-group.
        chunks: work-groups of a matrix.
        pitch: elements from a row to the next one, an odd number: columns are read, too.
        group: work-items of a work-group.
    """

    chunk: int
    chunks: int
    pitch: int
    group: int


class Local(Solver):
    """A work-group has a matrix and a chunk of its right sides in local memory; each chunk factors
    the matrix anew, which takes no longer where compute units are idle else."""

    name = "solve.local"
    GROUP = 512  # work-items
    SIDE = 32  # work-items along a row
    LEAST = 16  # right sides that are worth a work-group
    ASIDE = 1024  # bytes of local memory for all but matrix and order
    STEP = 700  # clocks of a column: barriers and the search of its pivot
    SHARE = 0.5  # of the rate of local memory

    def _room(self, problem: SolveProblem, info: DeviceInfo) -> int:
        """Elements of a row and its right sides that local memory has place for."""
        numbers = 3 * 4 * problem.n
        row = max(1, problem.n * problem.dtype.itemsize)
        return (info.local_mem_bytes - self.ASIDE - numbers) // row

    def _fit(self, problem: SolveProblem, info: DeviceInfo) -> int:
        """Right sides that a work-group has place for, which may be none."""
        room = self._room(problem, info)
        return (room if room % 2 else room - 1) - problem.n

    def applies(self, problem: SolveProblem, info: DeviceInfo) -> bool:
        groups = info.max_work_group_size >= self.SIDE
        return real(problem, info) and groups and self._fit(problem, info) > 0

    def _shares(self, problem: SolveProblem, info: DeviceInfo) -> _Shares:
        count, n, columns = problem.count, problem.n, problem.columns
        even = max(self.LEAST, ceil_div(count * columns, info.compute_units))
        chunk = min(self._fit(problem, info), columns, even)
        chunks = ceil_div(columns, chunk)
        chunk = ceil_div(columns, chunks)
        most = last_power(min(self.GROUP, info.max_work_group_size))
        group = min(most, max(self.SIDE, next_power(n * (n + chunk) // 8)))
        return _Shares(chunk, chunks, (n + chunk) | 1, group)

    def plan(self, problem: SolveProblem, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        count, n, columns = problem.count, problem.n, problem.columns
        if count * n * columns == 0:
            return Plan([])
        shares = self._shares(problem, info)
        groups = count * shares.chunks
        index = index_type(count * n * max(n, columns), groups * shares.group)
        bits = min(next_power(shares.chunk), self.SIDE).bit_length() - 1
        text = prelude(index, A=problem.dtype, ACC=problem.dtype)
        text += defines(GROUP=shares.group, SIDE=self.SIDE) + epilogue.defines
        sizes = (Scalar(index, x) for x in (n, columns, shares.chunk, shares.chunks))
        launch = Launch(
            text + cl_source("solve/local.cl"),
            "lu_local",
            (
                Ref("a"), Ref("b"), *sizes, Scalar("int", shares.pitch), Scalar("int", bits),
                LocalRoom(n * shares.pitch * problem.dtype.itemsize), LocalRoom(3 * 4 * n),
                *epilogue.args,
            ),
            (groups * shares.group,),
            (shares.group,),
        )  # fmt: skip
        return Plan([launch])

    def cost(self, problem: SolveProblem, info: DeviceInfo) -> float:
        if info.kind == "cpu":  # barriers cost more there than all the rest
            return float("inf")
        rates, n = machine.of(info), problem.n
        if problem.count * n * problem.columns == 0:
            return 0.0
        shares = self._shares(problem, info)
        products = n**3 / 3 + n * n * shares.chunk
        words = 3 * products * problem.dtype.itemsize * rates.units
        alone = rates.clocks(n * self.STEP) + words / (rates.local_bandwidth * self.SHARE)
        return rates.launch + alone * ceil_div(problem.count * shares.chunks, rates.units)
