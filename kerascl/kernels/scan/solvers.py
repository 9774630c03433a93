"""Cumulative sums, products, extremes and log-sum-exps; binary search in sorted rows; places of
counts."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, index_type, last_power, next_power, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.contract.vectors import compute_bytes, group_size, limit_macros
from kerascl.kernels.scan.problem import PlacesProblem, ScanProblem, SearchProblem
from kerascl.kernels.tuning import database, machine

_COMBINE = {
    "sum": "((ACC_T)((a) + (b)))",
    "prod": "((ACC_T)((a) * (b)))",
    "max": "(((a) > (b) || (a) != (a)) ? (a) : (b))",
    "min": "(((a) < (b) || (a) != (a)) ? (a) : (b))",
    "logsumexp": "kcl_logaddexp((a), (b))",
}
_IDENTITY = {
    "sum": "((ACC_T)0)",
    "prod": "((ACC_T)1)",
    "max": "ACC_LOWEST",
    "min": "ACC_HIGHEST",
    "logsumexp": "ACC_LOWEST",
}


def _macros(problem: ScanProblem, **values: object) -> str:
    combine, identity = _COMBINE[problem.kind], _IDENTITY[problem.kind]
    if problem.acc.is_complex and problem.kind == "prod":
        combine, identity = "kcl_cmul((a), (b))", "((ACC_T)(1, 0))"
    limits = "" if problem.acc.is_complex else limit_macros(problem.acc)
    return limits + defines(
        **{"COMBINE(a, b)": combine},
        IDENTITY=identity,
        NESTED=int(problem.kind in ("sum", "logsumexp") and not problem.acc.is_integer),
        LOGSUMEXP=int(problem.kind == "logsumexp"),
        COMPLEX=int(problem.acc.is_complex),
        **values,
    )


@dataclass
class _Pass:
    """A launch over blocks of rows.

    Attributes:
        buffers: what its kernel reads, and the totals that it may write.
        lines: how many blocks there are.
        sizes: a row's length, the stride of its elements, a block's length, the blocks of a row.
        index: the type of these.
        extra: the arguments of the epilogue.
    """

    name: str
    source: str
    buffers: tuple[Arg, ...]
    lines: int
    sizes: tuple[int, int, int, int]
    index: str
    extra: tuple[Arg, ...] = ()

    @property
    def args(self) -> tuple[Arg, ...]:
        """All arguments of the kernel."""
        numbers = (Scalar(self.index, size) for size in (self.lines, *self.sizes))
        return (*self.buffers, *numbers, *self.extra)


class _BlockScan(Solver):
    """The three phases: totals of the blocks, their scan, the blocks again with their carry.

    A single block a row needs only the last phase.
    """

    variant: str

    def applies(self, problem: ScanProblem, info) -> bool:
        if problem.kind not in _COMBINE:
            return False
        if problem.dtype.is_complex or problem.acc.is_complex:
            return problem.kind in ("sum", "prod")
        return problem.kind != "logsumexp" or problem.acc.is_float

    def blocks(self, problem: ScanProblem, info) -> tuple[int, int]:
        """(elements of a block, blocks of a row)."""
        raise NotImplementedError

    def launch(self, problem: ScanProblem, info, step: _Pass) -> Launch:
        """One pass as this solver shares it out among work-items."""
        raise NotImplementedError

    def plan(self, problem: ScanProblem, info, epilogue: Epilogue) -> Plan:
        rows = problem.outer * problem.inner
        block, blocks = self.blocks(problem, info)
        index = index_type(rows * problem.length)
        sizes = (problem.length, problem.inner, block, blocks)
        lines = rows * blocks
        launches, workspace = [], []
        buffers: tuple[Arg, ...] = (Ref("a"),)
        types = prelude(index, A=problem.dtype, ACC=problem.acc)
        flags = {"REVERSE": int(problem.reverse), **self.flags(problem, info)}
        text = cl_source("scan/scan.cl")
        if blocks > 1:
            workspace = [lines * compute_bytes(problem.acc)] * 2
            source = types + _macros(problem, SCAN_TOTALS=1, **flags) + text
            totals = _Pass("scan_totals", source, (Ref("a"), Ref("ws0")), lines, sizes, index)
            launches.append(self.launch(problem, info, totals))
            launches.append(self.carry_launch(problem, info, blocks, index))
            buffers += (Ref("ws1"),)
        source = (
            types
            + _macros(problem, EXCLUSIVE=int(problem.exclusive), CARRY=int(blocks > 1), **flags)
            + epilogue.defines
            + text
        )
        last = _Pass("scan_rows", source, buffers, lines, sizes, index, tuple(epilogue.args))
        launches.append(self.launch(problem, info, last))
        return Plan(launches, workspace)

    def passing(self, problem: ScanProblem, info, blocks: int, share: float = 1.0) -> float:
        """Microseconds of the launches and of the memory that they move, at a share of the
        bandwidth."""
        rates = machine.of(info)
        passes, launches = (3, 3) if blocks > 1 else (2, 1)
        elements = problem.outer * problem.length * problem.inner
        nbytes = passes * elements * problem.dtype.itemsize
        return launches * rates.launch + rates.moving(nbytes, share)

    def flags(self, problem: ScanProblem, info) -> dict[str, int]:
        """The macros that choose this solver's form of the kernels."""
        raise NotImplementedError

    def carry_launch(self, problem: ScanProblem, info, blocks: int, index: str) -> Launch:
        """The exclusive scan of the blocks' totals, ws0 -> ws1."""
        acc = problem.acc
        raw = Epilogue(", __global ACC_T* restrict k_out", (Ref("ws1"),), "k_out[i] = acc;")
        source = (
            prelude(index, ACC=acc)
            + "#define A_T ACC_T\n#define A_LOAD(p, i) (p)[i]\n"
            + _macros(problem, EXCLUSIVE=1, CARRY=0, REVERSE=0, **self.flags(problem, info))
            + raw.defines
            + cl_source("scan/scan.cl")
        )
        lines = problem.outer * problem.inner
        sizes = (blocks, problem.inner, blocks, 1)
        step = _Pass("scan_rows", source, (Ref("ws0"),), lines, sizes, index, raw.args)
        return self.launch(problem, info, step)


class SerialScan(_BlockScan):
    """A work-item for each block: CPUs, and many columns (coalesced over `inner`)."""

    name = "scan.serial"
    ON_CPU = 0.02  # share of the rate of multiply-adds

    def cost(self, problem: ScanProblem, info) -> float:
        rates, (block, blocks) = machine.of(info), self.blocks(problem, info)
        items = problem.outer * problem.inner * blocks
        if info.kind == "cpu":
            return self.passing(problem, info, blocks) + rates.multiplying(
                items * block, problem.acc, self.ON_CPU
            )
        # Neighbouring work-items read neighbours only along `inner`; some reads of each are under
        # way together.
        share = min(1.0, max(problem.inner, 4) / 32)
        waits = rates.rounds(items) * block * rates.latency / 16
        return self.passing(problem, info, blocks, share) + waits

    def flags(self, problem: ScanProblem, info) -> dict[str, int]:
        return {"SCAN_SERIAL": 1}

    def blocks(self, problem: ScanProblem, info) -> tuple[int, int]:
        rows = problem.outer * problem.inner
        wanted = info.compute_units * (2 if info.kind == "cpu" else 1024)
        least = 4096 if info.kind == "cpu" else 64
        blocks = min(ceil_div(wanted, rows), problem.length // least, 256)
        if blocks <= 1:
            return problem.length, 1
        block = ceil_div(problem.length, blocks)
        return block, ceil_div(problem.length, block)

    def launch(self, problem: ScanProblem, info, step: _Pass) -> Launch:
        if info.kind == "cpu":
            # Neighbouring rows lie far apart: gathered vectors are slower than scalars.
            global_size, local_size = (step.lines,), (1,) if problem.inner == 1 else None
        else:
            group = group_size(info, 128)
            global_size, local_size = (round_up(step.lines, group),), (group,)
        return Launch(step.source, f"{step.name}_serial", step.args, global_size, local_size)


class GroupScan(_BlockScan):
    """A work-group for each block, through local memory: long rows on GPUs."""

    name = "scan.group"
    _items = 8
    # Shares of the rate of multiply-adds; barriers cost CPUs more.
    ON_GPU, ON_CPU = 0.02, 0.001

    def cost(self, problem: ScanProblem, info) -> float:
        rates, (block, blocks) = machine.of(info), self.blocks(problem, info)
        tile = self.group(problem, info) * self._items
        lines = problem.outer * problem.inner * blocks
        padded = lines * round_up(block, tile)  # a group works on whole tiles
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        # Neighbouring work-items read neighbours only along the row, else a line of memory each.
        share = 1.0 / min(problem.inner, 32)
        work = rates.multiplying(padded, problem.acc, efficiency)
        return self.passing(problem, info, blocks, share) + work

    def group(self, problem: ScanProblem, info) -> int:
        """Work-items of a group: what local memory and a row's length leave use for."""
        room = last_power(info.local_mem_bytes // (8 * 11))
        wanted = max(32, next_power(ceil_div(problem.length, self._items)))
        return min(group_size(info, 256), room, wanted)

    def flags(self, problem: ScanProblem, info) -> dict[str, int]:
        return {"SCAN_GROUP": 1, "GROUP": self.group(problem, info), "ITEMS": self._items}

    def blocks(self, problem: ScanProblem, info) -> tuple[int, int]:
        rows = problem.outer * problem.inner
        tile = self.group(problem, info) * self._items
        # All totals of a row fit one tile, so their scan is a single step.
        # Groups wait for memory and at barriers most of the time: many share a compute unit.
        blocks = min(ceil_div(info.compute_units * 16, rows), problem.length // (2 * tile), tile)
        if blocks <= 1:
            return problem.length, 1
        block = round_up(ceil_div(problem.length, blocks), tile)
        return block, ceil_div(problem.length, block)

    def launch(self, problem: ScanProblem, info, step: _Pass) -> Launch:
        group = self.group(problem, info)
        size = (step.lines * group,)
        return Launch(step.source, f"{step.name}_group", step.args, size, (group,))


class BinarySearch(Solver):
    """A work-item for each value."""

    name = "search.binary"

    def applies(self, problem: SearchProblem, info) -> bool:
        return not problem.dtype.is_complex

    def plan(self, problem: SearchProblem, info, epilogue: Epilogue) -> Plan:
        lines = problem.rows * problem.count
        index = index_type(lines, problem.rows * problem.sorted_length)
        source = (
            prelude(index, A=problem.dtype, ACC=problem.acc)
            + defines(
                SEARCH=1, SIDE_RIGHT=int(problem.side == "right"), ONE_ROW=int(problem.rows == 1)
            )
            + epilogue.defines
            + cl_source("scan/scan.cl")
        )
        length = problem.sorted_length
        sizes = (lines, length, problem.count, last_power(length) if length else 0)
        group = group_size(info, 128)
        launch = Launch(
            source,
            "search_sorted",
            (Ref("a"), Ref("b"), *(Scalar(index, size) for size in sizes), *epilogue.args),
            (round_up(lines, group),) if info.kind != "cpu" else (lines,),
            (group,) if info.kind != "cpu" else None,
        )
        return Plan([launch])


class CountedPlaces(Solver):
    """Each count writes the results from the count before it on: a work-item for each on GPUs, for
    a stretch of them on CPUs."""

    name = "places.counted"
    _SHORTEST = 4096  # counts of a CPU's work-item, where there are more
    _TOGETHER = 64  # of which it looks at so many before it writes

    def applies(self, problem: PlacesProblem, info) -> bool:
        return problem.dtype.is_integer

    def plan(self, problem: PlacesProblem, info, epilogue: Epilogue) -> Plan:
        counts = problem.rows * problem.length
        index = index_type(counts + 4096, problem.elements)
        run = 1
        if info.kind == "cpu":
            run = max(self._SHORTEST, ceil_div(counts, 4 * info.compute_units))
        source = (
            prelude(index, A=problem.dtype, ACC=problem.acc)
            + defines(PLACES=1, TOGETHER=self._TOGETHER if info.kind == "cpu" else 0)
            + epilogue.defines
            + cl_source("scan/scan.cl")
        )
        items = ceil_div(counts, run)
        group = 1 if info.kind == "cpu" else group_size(info, 128)
        sizes = (counts, run, problem.length, problem.size)
        args = (Ref("a"), *(Scalar(index, size) for size in sizes), *epilogue.args)
        return Plan([Launch(source, "places", args, (round_up(items, group),), (group,))])


SCAN_SOLVERS: tuple[Solver, ...] = (SerialScan(), GroupScan())
SEARCH_SOLVERS: tuple[Solver, ...] = (BinarySearch(),)
PLACES_SOLVERS: tuple[Solver, ...] = (CountedPlaces(),)
_SOLVERS: dict[type, tuple[str, tuple[Solver, ...]]] = {
    ScanProblem: ("scan", SCAN_SOLVERS),
    SearchProblem: ("search", SEARCH_SOLVERS),
    PlacesProblem: ("places", PLACES_SOLVERS),
}


def plan(
    problem: ScanProblem | SearchProblem | PlacesProblem, info, epilogue: Epilogue
) -> Plan:
    """The launches for `problem`.

    Raises:
        NotImplementedError: for an unknown kind, or a dtype without that operation.
    """
    if problem.elements == 0:
        return Plan([])
    kind, solvers = _SOLVERS[type(problem)]
    return database.choose(kind, solvers, (), problem, info).plan(problem, info, epilogue)
