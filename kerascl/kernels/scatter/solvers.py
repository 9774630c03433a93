"""Deterministic scatter of row updates: add, set, max, min, mul."""

from __future__ import annotations

import dataclasses

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import INT_MAX, ceil_div, index_type, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.contract.vectors import (
    compute_bytes,
    group_size,
    limit_macros,
    vector_macros,
    vector_width,
)
from kerascl.kernels.scatter.problem import ScatterProblem
from kerascl.kernels.sort.items import item_sort
from kerascl.kernels.sort.problem import SortProblem
from kerascl.kernels.sort.solvers import GroupRadixSort, RadixSort, TileSort
from kerascl.kernels.tuning import database, machine

_COMBINE = {
    "add": "((u) + (v))",
    "mul": "((u) * (v))",
    "max": "((((v) > (u)) | ((v) != (v))) ? (v) : (u))",
    "min": "((((v) < (u)) | ((v) != (v))) ? (v) : (u))",
    "set": "(v)",
}
# Partial results are over blocks of so many updates, then of so many blocks (SPAN in scatter.cl) …
_SPAN = 32
# … from so many updates on: before, a row's stretch is short enough.
_LEVELS_FROM = (512, 16384)
_VECTOR = 4  # columns of a work-item of a GPU
_RUNS = 4  # of rows for each core of a CPU, where most rows have no update


class _Gather(Solver):
    def applies(self, problem: ScatterProblem, info) -> bool:
        if problem.mode not in _COMBINE or problem.count > INT_MAX or problem.rows > 2**32 - 2:
            return False
        return not (problem.dtype.is_complex and problem.mode in ("max", "min"))

    def lanes(self, problem: ScatterProblem, info, epilogue: Epilogue) -> int:
        """Columns of a work-item: vectors on CPUs, and on GPUs where the epilogue stores them."""
        narrow = compute_bytes(problem.dtype) <= 4 and not problem.dtype.is_complex
        if info.kind != "cpu" and narrow and epilogue.has_vectors and problem.width % _VECTOR == 0:
            return _VECTOR
        return vector_width(info, problem.width, problem.dtype)

    def head(self, problem: ScatterProblem, info, lanes: int, index: str) -> str:
        dtype, acc = problem.dtype, problem.dtype.accumulator
        aligned = info.kind != "cpu" and lanes > 1
        times = dtype.is_complex and problem.mode == "mul"
        return (
            prelude(index, A=dtype, P=acc, I=problem.index_dtype, ACC=acc)
            + vector_macros(lanes, aligned, A=dtype, P=acc)
            + defines(
                **{"COMBINE(u, v)": "kcl_cmul((u), (v))" if times else _COMBINE[problem.mode]},
                SET=int(problem.mode == "set"),
                COMPLEX=int(dtype.is_complex),
                BASED=int(problem.base),
                STORES_VECTORS=int(aligned),
            )
        )

    def base(self, problem: ScatterProblem) -> tuple[Ref, ...]:
        """The argument for the rows before, where there are any."""
        return (Ref("c"),) if problem.base else ()

    def launch(self, info, name: str, source: str, args: tuple[Arg, ...], lines: int) -> Launch:
        if info.kind == "cpu":
            return Launch(source, name, args, (lines,), None)
        group = group_size(info, 256)
        return Launch(source, name, args, (round_up(lines, group),), (group,))


def nbytes(problem: ScatterProblem) -> int:
    """Of the rows before and after, and of the updates."""
    rows = (1 + problem.base) * problem.rows
    return problem.dtype.itemsize * (rows + problem.count) * problem.width


def _index(problem: ScatterProblem) -> str:
    return index_type(
        (problem.rows + 1) * problem.width + 4096,
        problem.count * problem.width,
        problem.rows + 4096,
    )


class DirectScatter(_Gather):
    """Every result looks at all indices: few updates."""

    ON_GPU, ON_CPU = 0.25, 0.02  # shares of the rate of multiply-adds, for looks

    MOST = 256  # updates, which are added one after the other: of more, sums lose digits

    name = "scatter.direct"

    def applies(self, problem: ScatterProblem, info) -> bool:
        return super().applies(problem, info) and problem.count <= self.MOST

    def cost(self, problem: ScatterProblem, info) -> float:
        lanes = vector_width(info, problem.width, problem.dtype)
        looks = problem.rows * problem.width // lanes * problem.count
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        return machine.of(info).roofline(looks, nbytes(problem), dtypes.float32, efficiency)

    def plan(self, problem: ScatterProblem, info, epilogue: Epilogue) -> Plan:
        if problem.rows * problem.width == 0:
            return Plan([])
        lanes = self.lanes(problem, info, epilogue)
        index = _index(problem)
        source = (
            self.head(problem, info, lanes, index)
            + defines(SCATTER_DIRECT=1)
            + epilogue.defines
            + cl_source("scatter/scatter.cl")
        )
        lines = problem.rows * (problem.width // lanes)
        args = (
            *self.base(problem),
            Ref("a"),
            Ref("b"),
            Scalar(index, lines),
            Scalar(index, problem.width),
            Scalar("int", problem.count),
            *epilogue.args,
        )
        return Plan([self.launch(info, "scatter_direct", source, args, lines)])


class SortedScatter(_Gather):
    """Sorts (row, position), then each row walks its own stretch."""

    name = "scatter.sorted"

    def cost(self, problem: ScatterProblem, info) -> float:
        launches = 2 + sum(problem.count >= least for least in _LEVELS_FROM)
        rates = machine.of(info)
        moved = rates.moving(nbytes(problem) + problem.count * problem.width * 4)
        return self._sorting(problem, info)[0] + moved + launches * rates.launch

    def _sorting(self, problem: ScatterProblem, info) -> tuple[float, bool]:
        """The cost of sorting, and whether GPUs sort by digits."""
        items = SortProblem(1, max(problem.count, 1), dtypes.int32)
        if info.kind == "cpu":
            return RadixSort().cost(items, info), True
        items = dataclasses.replace(items, outputs=("values", "indices"))
        tiles, groups = TileSort().cost(items, info), GroupRadixSort()
        if not groups.applies(items, info):
            return tiles, False
        digits = groups.moving(items, info, problem.rows.bit_length())
        return min(tiles, digits), digits < tiles

    def plan(self, problem: ScatterProblem, info, epilogue: Epilogue) -> Plan:
        if problem.rows * problem.width == 0:
            return Plan([])
        if problem.count == 0:
            return DirectScatter().plan(problem, info, epilogue)
        rows, width, count = problem.rows, problem.width, problem.count
        workspace: list[int] = []
        _, by_digits = self._sorting(problem, info)
        launches, items = item_sort(
            info, count, problem.index_dtype, rows, Ref("a"), workspace, by_digits
        )
        lanes = self.lanes(problem, info, epilogue)
        index = _index(problem)
        head, text = self.head(problem, info, lanes, index), cl_source("scatter/scatter.cl")
        levels = 0
        if problem.mode != "set":
            levels = sum(count >= least for least in _LEVELS_FROM)
        partials: list[Ref] = []
        for level in range(levels):
            extent = _SPAN ** (level + 1)
            blocks = count // extent
            workspace.append(blocks * width * problem.dtype.accumulator.itemsize)
            partials.append(Ref(f"ws{len(workspace) - 1}"))
            finer = partials[level - 1] if level else Ref("b")
            lines = blocks * (width // lanes)
            sizes = (Scalar(index, lines), Scalar(index, width), Scalar("int", extent))
            flags = defines(**{"SCATTER_COARSE" if level else "SCATTER_PARTIALS": 1}, SPAN=_SPAN)
            launches.append(
                self.launch(
                    info,
                    "scatter_partials",
                    head + flags + text,
                    (items, finer, partials[level], *sizes),
                    lines,
                )
            )
        # Where most rows of a CPU have no update, a work-item has many of them one after the other.
        runs = info.kind == "cpu" and 2 * count <= rows and not problem.dtype.is_complex
        form = {"SCATTER_RUNS" if runs else "SCATTER_SORTED": 1}
        source = head + defines(**form, LEVELS=levels, SPAN=_SPAN) + epilogue.defines + text
        if runs:
            run = ceil_div(rows, info.compute_units * _RUNS)
            sizes = (Scalar(index, rows), Scalar(index, width), Scalar("int", count))
            args: tuple[Arg, ...] = (*self.base(problem), items, Ref("b"), *partials, *sizes)
            args = (*args, Scalar(index, run), *epilogue.args)
            launches.append(Launch(source, "scatter_runs", args, (ceil_div(rows, run),), (1,)))
            return Plan(launches, workspace)
        workspace.append(4 * (rows + 1))
        starts = Ref(f"ws{len(workspace) - 1}")
        launches.append(
            self.launch(
                info,
                "scatter_starts",
                head + defines(SCATTER_STARTS=1) + text,
                (items, starts, Scalar(index, rows + 1), Scalar("int", count)),
                rows + 1,
            )
        )
        lines = rows * (width // lanes)
        args = (*self.base(problem), items, starts, Ref("b"), *partials)
        args = (*args, Scalar(index, lines), Scalar(index, width), *epilogue.args)
        launches.append(self.launch(info, "scatter_sorted", source, args, lines))
        return Plan(launches, workspace)


class PrivateScatter(_Gather):
    """Each work-item of a CPU has a table of its own, and those are joined: integers, whose sums
    and products are the same in any order, in few rows."""

    ON_CPU = 0.03  # share of the rate of multiply-adds, for updates

    name = "scatter.private"

    def applies(self, problem: ScatterProblem, info) -> bool:
        exact = problem.dtype.is_integer and problem.mode != "set" and problem.count > 0
        return super().applies(problem, info) and info.kind == "cpu" and exact

    def _parts(self, problem: ScatterProblem, info) -> int:
        """Work-items: few, where the tables are as large as what is joined in them."""
        worth = problem.count // max(4096, 4 * problem.rows)
        return max(1, min(2 * info.compute_units, worth))

    def cost(self, problem: ScatterProblem, info) -> float:
        tables = self._parts(problem, info) * problem.rows * problem.width
        moved = nbytes(problem) + 3 * tables * problem.dtype.accumulator.itemsize
        updates = problem.count * problem.width
        return machine.of(info).roofline(updates, moved, dtypes.float32, self.ON_CPU, 2)

    def plan(self, problem: ScatterProblem, info, epilogue: Epilogue) -> Plan:
        size, count = problem.rows * problem.width, problem.count
        if size == 0:
            return Plan([])
        parts = self._parts(problem, info)
        part = ceil_div(count, parts)
        index = index_type(parts * size, count * problem.width)
        acc = problem.dtype.accumulator
        neutral = {"add": "0", "mul": "1", "max": "ACC_LOWEST", "min": "ACC_HIGHEST"}[problem.mode]
        head = self.head(problem, info, 1, index) + limit_macros(acc) + defines(NEUTRAL=neutral)
        text = cl_source("scatter/scatter.cl")
        tables = Ref("ws0")
        numbers = (Scalar(index, problem.rows), Scalar(index, problem.width))
        fill = Launch(
            head + defines(SCATTER_PRIVATE=1) + text,
            "scatter_private",
            (Ref("a"), Ref("b"), tables, *numbers, Scalar("int", count), Scalar("int", part)),
            (ceil_div(count, part),),
            (1,),
        )
        join = Launch(
            head + defines(SCATTER_TABLES=1) + epilogue.defines + text,
            "scatter_tables",
            (
                *self.base(problem),
                tables,
                Scalar(index, size),
                Scalar("int", ceil_div(count, part)),
                *epilogue.args,
            ),
            (size,),
            None,
        )
        return Plan([fill, join], [parts * size * acc.itemsize])


SOLVERS: tuple[Solver, ...] = (DirectScatter(), SortedScatter(), PrivateScatter())


def plan(problem: ScatterProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; every result of (rows, width) goes through `epilogue` once.

    Raises:
        NotImplementedError: for an unknown mode, or complex "max" and "min".
    """
    solver = database.choose("scatter", SOLVERS, (), problem, info)
    return solver.plan(problem, info, epilogue)
