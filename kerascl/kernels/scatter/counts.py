"""Counts of places, and of values in bins: by integer atomics on GPUs, in tables of work-items on
CPUs."""

from __future__ import annotations

import math

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import (
    ceil_div,
    index_type,
    last_power,
    next_power,
    round_up,
)
from kerascl.kernels.contract.solver import Solver, forced
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.contract.vectors import compute_bytes, group_size
from kerascl.kernels.scatter.problem import CountsProblem
from kerascl.kernels.tuning import database, machine

_ITEMS = 8  # values of a work-item that are read together
_LINES = 16  # results of a work-group that joins tables: neighbours fill a line of memory
_MOST = 1 << 30  # counts: bins are guessed in floats, and are ints
_SECTOR = 32  # bytes that one addition to global memory moves


class _Counts(Solver):
    def applies(self, problem: CountsProblem, info) -> bool:
        kind = problem.dtype.is_float if problem.edges else problem.dtype.is_integer
        return kind and 0 < problem.size <= _MOST and problem.count > 0

    def group(self, info) -> int:
        """Work-items of a group: many, since they share a table."""
        return group_size(info, 512)

    def source(self, problem: CountsProblem, info, index: str, **flags: int) -> str:
        """The kernel that `flags` choose, without an epilogue."""
        edges = problem.edges
        head = prelude(index, A=problem.dtype, ACC=dtypes.int32)
        place = "int" if edges else "A_C"
        flags = {"EDGES": int(bool(edges)), "EVEN": int(edges == "even"), "ITEMS": _ITEMS, **flags}
        return head + defines(GROUP=self.group(info), PLACE_T=place, **flags)

    def join(self, info, tables: Ref, count: int, size: int, epilogue: Epilogue) -> Launch:
        """The launch that adds up `count` tables of `size` counts each."""
        group = group_size(info, 256)
        index = index_type(count * size, size + group)
        name, lines = "count_join", min(_LINES, group)
        if info.kind == "cpu" or count == 1:
            name, lines = "count_store", group
        macros = {name.upper(): 1, "GROUP": group, "LINES": lines}
        source = prelude(index, ACC=dtypes.int32) + defines(**macros) + epilogue.defines
        args = (tables, Scalar("int", count), Scalar(index, size), *epilogue.args)
        text = cl_source("scatter/counts.cl")
        if info.kind == "cpu":
            return Launch(source + text, name, args, (size,), None, role=Role.REDUCE)
        items = ceil_div(size, lines) * group
        return Launch(source + text, name, args, (items,), (group,), role=Role.REDUCE)


def _inputs(problem: CountsProblem) -> tuple[Arg, ...]:
    return (Ref("a"), Ref("b")) if problem.edges else (Ref("a"),)


class LocalCounts(_Counts):
    """A table in local memory for each work-group: as few groups as fill the device."""

    name = "counts.local"
    _GROUPS = 4  # of a compute unit
    _COPIES, _SMALL = 8, 2048  # tables of a group, at most, and counts of all, where there are more
    _WORTH = 4  # values for each count that a group leaves in memory

    def applies(self, problem: CountsProblem, info) -> bool:
        return super().applies(problem, info) and self._tables(problem, info) > 0

    def _room(self, problem: CountsProblem) -> int:
        """Counts that a table has room for: few different numbers, each of which is a kernel."""
        return max(256, min(next_power(problem.size), round_up(problem.size, 1024)))

    def _tables(self, problem: CountsProblem, info) -> int:
        """How many local memory holds beside the edges."""
        room = self._room(problem)
        edges = (room + 1) * compute_bytes(problem.dtype) if problem.edges else 0
        return max(0, info.local_mem_bytes - edges) // (4 * room)

    def _copies(self, problem: CountsProblem, info) -> int:
        worth = min(self._COPIES, self._SMALL // self._room(problem))
        return last_power(min(worth, self._tables(problem, info)))

    def _parts(self, problem: CountsProblem, info) -> int:
        """Groups."""
        least = max(self.group(info) * _ITEMS, self._WORTH * problem.size)
        return max(1, min(self._GROUPS * info.compute_units, problem.count // least))

    def cost(self, problem: CountsProblem, info) -> float:
        if info.kind == "cpu":
            return math.inf
        parts = self._parts(problem, info)
        tables = 2 * 4 * parts * problem.size if parts > 1 else 0
        rates = machine.of(info)
        busy = min(1.0, parts / info.compute_units)  # one group reads no faster than its unit
        moved = rates.moving(problem.count * problem.dtype.itemsize) / busy
        return moved + rates.moving(tables) + (1 + (parts > 1)) * rates.launch

    def plan(self, problem: CountsProblem, info, epilogue: Epilogue) -> Plan:
        group, size, count = self.group(info), problem.size, problem.count
        part = round_up(ceil_div(count, self._parts(problem, info)), group)
        parts = ceil_div(count, part)
        index = index_type(parts * part + group * _ITEMS, parts * size)
        source = self.source(
            problem, info, index,
            COUNT_GROUP=1, IN_LOCAL=1, DIRECT=int(parts == 1),
            ROOM=self._room(problem), COPIES=self._copies(problem, info),
        )  # fmt: skip
        text = cl_source("scatter/counts.cl")
        sizes = (Scalar(index, count), Scalar(index, part), Scalar("int", size))
        args = (*_inputs(problem), *sizes)
        shape = (parts * group,), (group,)
        if parts == 1:
            source += epilogue.defines + text
            return Plan([Launch(source, "count_group", (*args, *epilogue.args), *shape)])
        fill = Launch(source + text, "count_group", (*args, Ref("ws0")), *shape)
        return Plan([fill, self.join(info, Ref("ws0"), parts, size, epilogue)], [4 * parts * size])


class GlobalCounts(_Counts):
    """One table in global memory: many different places."""

    name = "counts.global"

    def cost(self, problem: CountsProblem, info) -> float:
        if info.kind == "cpu":
            return math.inf
        rates = machine.of(info)
        nbytes = problem.count * (problem.dtype.itemsize + _SECTOR) + 4 * 3 * problem.size
        return rates.moving(nbytes) + 3 * rates.launch

    def plan(self, problem: CountsProblem, info, epilogue: Epilogue) -> Plan:
        group, size, count = self.group(info), problem.size, problem.count
        text, table = cl_source("scatter/counts.cl"), Ref("ws0")
        index = index_type(round_up(count, group * _ITEMS), round_up(size, group))
        flags = {"IN_LOCAL": 0}
        clear = Launch(
            self.source(problem, info, index, COUNT_CLEAR=1, **flags) + text,
            "count_clear",
            (table, Scalar(index, size)),
            (round_up(size, group),),
            (group,),
            role=Role.PACK,
        )
        fill = Launch(
            self.source(problem, info, index, COUNT_GLOBAL=1, **flags) + text,
            "count_global",
            (*_inputs(problem), Scalar(index, count), Scalar("int", size), table),
            (ceil_div(count, group * _ITEMS) * group,),
            (group,),
        )
        return Plan([clear, fill, self.join(info, table, 1, size, epilogue)], [4 * size])


class PrivateCounts(_Counts):
    """A table for each work-item of a CPU."""

    ON_CPU = 0.03  # share of the rate of multiply-adds, for values

    name = "counts.private"

    def applies(self, problem: CountsProblem, info) -> bool:
        # Of any edges the search runs in vectors of work-items.
        fits = super().applies(problem, info) and info.kind == "cpu"
        return fits and problem.edges != "any"

    def _parts(self, problem: CountsProblem, info) -> int:
        """Work-items: few, where the tables are as large as what is counted in them."""
        worth = problem.count // max(4096, 4 * problem.size)
        return max(1, min(2 * info.compute_units, worth))

    def cost(self, problem: CountsProblem, info) -> float:
        moved = problem.count * problem.dtype.itemsize
        moved += 3 * 4 * self._parts(problem, info) * problem.size
        return machine.of(info).roofline(problem.count, moved, dtypes.float32, self.ON_CPU, 2)

    def plan(self, problem: CountsProblem, info, epilogue: Epilogue) -> Plan:
        size, count = problem.size, problem.count
        part = ceil_div(count, self._parts(problem, info))
        parts = ceil_div(count, part)
        index = index_type(parts * part + _ITEMS, parts * size)
        source = self.source(problem, info, index, COUNT_PRIVATE=1, IN_LOCAL=0)
        sizes = (Scalar(index, count), Scalar(index, part), Scalar("int", size))
        args = (*_inputs(problem), *sizes, Ref("ws0"))
        text = cl_source("scatter/counts.cl")
        fill = Launch(source + text, "count_private", args, (parts,), (1,))
        return Plan([fill, self.join(info, Ref("ws0"), parts, size, epilogue)], [4 * parts * size])


SOLVERS: tuple[Solver, ...] = (LocalCounts(), GlobalCounts(), PrivateCounts())


def preferred(problem: CountsProblem, info) -> bool:
    """Whether these serve better than a search and a scatter: on CPUs where solvers for them
    apply, or KERASCL_SOLVERS asks for others."""
    found = [solver for solver in SOLVERS if solver.applies(problem, info)]
    cheap = any(solver.cost(problem, info) < math.inf for solver in found)
    return cheap or forced(found, problem, info) is not None


def plan(problem: CountsProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; every count goes through `epilogue` once.

    Raises:
        NotImplementedError: for a dtype without order, or more than 2**30 counts.
    """
    if problem.size == 0:
        return Plan([])
    return database.choose("counts", SOLVERS, (), problem, info).plan(problem, info, epilogue)
