"""Linear systems by blocks of columns, with a launch for each."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, Scalar, Workspace
from kerascl.kernels.contract.sizes import ceil_div, index_type, last_power, next_power
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.solve.problem import SolveProblem, real
from kerascl.kernels.tuning import machine
from kerascl.runtime.device import DeviceInfo


class Blocked(Solver):
    """Right-looking LU of a matrix with its right sides behind it: a launch brings all columns up
    to date with the last panel, while its first work-group factors the next one; a last launch
    substitutes back."""

    name = "solve.blocked"
    GROUP = 256  # work-items
    LEAST = 64
    NB = 16  # columns of a panel
    WIDE = 64  # columns of a tile
    HELD = 64  # most rows of a panel that a work-item holds
    KEPT = 512  # bytes of them that registers hold
    STEP = 900  # clocks of a column: barriers and the search of its pivot
    BACK = 150  # clocks of a row of the last launch
    SHARE = 0.2  # of the rate of multiply-adds

    def _group(self, info: DeviceInfo) -> int:
        return last_power(min(self.GROUP, info.max_work_group_size))

    def _tall(self, info: DeviceInfo) -> int:
        """Rows of a tile."""
        return self._group(info) // 16 * 4

    def _local_bytes(self, problem: SolveProblem, info: DeviceInfo) -> int:
        nb, group = self.NB, self._group(info)
        elements = nb * self.WIDE + self._tall(info) * (nb + 1) + nb * nb + group + 16 + nb
        return elements * problem.dtype.itemsize + (group + 16) * 8

    def applies(self, problem: SolveProblem, info: DeviceInfo) -> bool:
        return (
            real(problem, info)
            and info.max_work_group_size >= self.LEAST
            and self._local_bytes(problem, info) <= info.local_mem_bytes
            and problem.n <= self.HELD * self._group(info)
        )

    def _across(self, problem: SolveProblem, info: DeviceInfo) -> int:
        """Right sides that a work-group substitutes back."""
        return last_power(min(16, problem.count * problem.columns // info.compute_units))

    def plan(self, problem: SolveProblem, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        count, n, columns = problem.count, problem.n, problem.columns
        if count * n * columns == 0:
            return Plan([])
        nb, group, width = self.NB, self._group(info), n + columns
        size, workspace = problem.dtype.itemsize, Workspace()
        rest = Ref(workspace.room(count * n * width * size))
        upper = Ref(workspace.room(count * n * width * size))
        lower = Ref(workspace.room(2 * count * n * nb * size))
        order = Ref(workspace.room(2 * count * n * 4))
        index = index_type(2 * count * n * max(width, nb), 2 * count * group * width)
        head = prelude(index, A=problem.dtype, ACC=problem.dtype) + defines(GROUP=group)
        text = cl_source("solve/blocked.cl")
        held = next_power(ceil_div(n, group))
        kept = int(held * nb * size <= self.KEPT)
        step = head + defines(LU_STEP=1, NB=nb, HELD=held, IN_REGISTERS=kept) + text
        launches = []
        for start in range(0, n + nb, nb):
            across = ceil_div(width - min(start + nb, n), self.WIDE)
            down = max(1, ceil_div(n - start, self._tall(info)))
            parts = (across * down if start else 0) + (start < n)
            numbers = (Scalar(index, x) for x in (n, columns, start, parts, across))
            args: tuple[Arg, ...] = (Ref("a"), Ref("b"), rest, upper, lower, order, *numbers)
            launches.append(Launch(step, "lu_step", args, (count * parts * group,), (group,)))
        each = self._across(problem, info)
        strips = ceil_div(columns, each)
        numbers = (Scalar(index, x) for x in (n, columns, strips))
        back = Launch(
            head + defines(LU_BACK=1, ACROSS=each) + epilogue.defines + text,
            "lu_back",
            (upper, *numbers, *epilogue.args),
            (count * strips * group,),
            (group,),
            role=Role.STORE,
        )
        return Plan([*launches, back], workspace)

    def cost(self, problem: SolveProblem, info: DeviceInfo) -> float:
        if info.kind == "cpu":  # barriers cost more there than all the rest
            return float("inf")
        rates, count, n = machine.of(info), problem.count, problem.n
        panels = rates.clocks(n * self.STEP) * ceil_div(count, rates.units)
        strips = ceil_div(problem.columns, self._across(problem, info))
        back = rates.clocks(n * self.BACK) * ceil_div(count * strips, rates.units)
        products = count * (n**3 / 3 + n * n * problem.columns)
        launches = (ceil_div(n, self.NB) + 2) * rates.launch
        return launches + panels + back + rates.multiplying(products, problem.dtype, self.SHARE)
