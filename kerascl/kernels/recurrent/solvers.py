"""Recurrences whose every step is a small product and an elementwise cell: one launch for all."""

from __future__ import annotations

from typing import Any

from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div, index_type, last_power, round_up
from kerascl.kernels.contract.solver import Solver, choose
from kerascl.kernels.contract.source import cl_source, defines, narrow, prelude
from kerascl.kernels.contract.vectors import group_size
from kerascl.kernels.recurrent.problem import RecurrentProblem


class Persistent(Solver):
    """A work-group walks through all steps for its rows of the batch."""

    name = "recurrent.persistent"

    def applies(self, problem: RecurrentProblem, info) -> bool:
        return problem.row_bytes <= info.local_mem_bytes - 1024

    def plan(self, problem: RecurrentProblem, info, epilogue=None) -> Plan:
        p = problem
        if not p.steps * p.batch * p.units:
            return Plan([])
        shape = self._gpu(p, info) if info.kind == "gpu" else self._cpu(p, info)
        source = narrow(info) + _source(p, shape)
        groups = ceil_div(p.batch, shape["ROWS"])
        args = tuple(Ref(slot) for slot in ("a", *_slots(p)))
        items = shape["ITEMS"]
        return Plan([Launch(source, "recurrent", args, (groups * items,), (items,))])

    def _rows(self, problem: RecurrentProblem, info, wanted: int) -> int:
        room = (info.local_mem_bytes - 1024) // problem.row_bytes
        return max(1, min(last_power(wanted), last_power(room), last_power(problem.batch)))

    def _gpu(self, p: RecurrentProblem, info) -> dict[str, int]:
        # all compute units first; then fewer reads of the weights
        rows = self._rows(p, info, min(8, ceil_div(p.batch, info.compute_units)))
        parts = p.fan_in
        columns = parts * p.fan_out * p.units
        items = min(round_up(columns, 32), group_size(info, 1024))
        vec = 4 if p.units % 4 == 0 and p.acc.itemsize == 4 else 1
        registers = 65536 // items - 56 - 12 * rows
        keep = 0
        if columns <= items and registers > 0:
            keep = min(p.units, registers, 128) // vec
        cells = ceil_div(rows * p.units, items)
        ahead = cells * len(p.fetches) <= 24
        return {
            "ROWS": rows, "ITEMS": items, "PARTS": parts, "VEC": vec, "KEEP": keep, "FLAT": 1,
            "AHEAD": int(ahead),
        }  # fmt: skip

    def _cpu(self, p: RecurrentProblem, info) -> dict[str, int]:
        rows = self._rows(p, info, min(8, ceil_div(p.batch, info.compute_units)))
        items = min(16, group_size(info, 16))
        return {
            "ROWS": rows, "ITEMS": items, "PARTS": 1, "VEC": 1, "KEEP": 0, "FLAT": 0, "AHEAD": 0,
        }  # fmt: skip


def _slots(p: RecurrentProblem) -> list[str]:
    """Every buffer but the weights, once each."""
    names = [f.slot for f in p.fetches] + list(p.initial) + [s.slot for s in p.stored]
    return list(dict.fromkeys(names + [f for f in p.final if f is not None]))


def _source(p: RecurrentProblem, shape: dict[str, int]) -> str:
    types = {f.slot: f.dtype for f in p.fetches} | {s.slot: s.dtype for s in p.stored}
    types |= {slot: p.state for slot in (*p.initial, *p.final) if slot is not None}
    written = {s.slot for s in p.stored} | set(p.final)
    params = "".join(
        f", {'' if slot in written else 'const '}__global {types[slot].storage}* restrict p_{slot}"
        for slot in _slots(p)
    )
    index = index_type(p.steps * p.batch * p.units * max(
        [1, *(f.blocks for f in p.fetches), *(s.blocks for s in p.stored)]
    ))  # fmt: skip

    def place(kind: str, block: int, blocks: int, t: str) -> str:
        if kind == "row":
            return f"(INDEX_T)({t}) * BATCH + row"
        if kind == "unit":
            return f"{block * p.units} + u"
        return f"((INDEX_T)({t}) * BATCH + row) * {blocks * p.units} + {block * p.units} + u"

    fetch = " ".join(
        f"(to_)[{k}] = "
        + f.dtype.load.format(p=f"p_{f.slot}", i=f"({place(f.kind, f.block, f.blocks, 't_')})")
        + ";"
        for k, f in enumerate(p.fetches)
    )
    store = " ".join(
        s.dtype.store.format(
            p=f"p_{s.slot}", i=f"({place('step', s.block, s.blocks, 't_')})", v=s.value
        )
        + ";"
        for s in p.stored
    )
    local = "carry[{k} * ROWS * UNITS + cell]"
    at = "((INDEX_T)row * UNITS + u)"
    start = " ".join(
        f"{local.format(k=k)} = {p.state.load.format(p=f'p_{slot}', i=at)};"
        for k, slot in enumerate(p.initial)
    )
    if p.operand is None:
        start += " operand[cell] = carry[cell];"
        feed = [f"operand[cell] = {p.carried[0]};"]
    else:
        blocks = range(len(p.operand))
        start += "".join(f" operand[r * DEEP + {k} * UNITS + u] = 0;" for k in blocks)
        feed = [f"operand[r * DEEP + {k} * UNITS + u] = {v};" for k, v in enumerate(p.operand)]
    feed += [f"{local.format(k=k)} = {v};" for k, v in enumerate(p.carried)]
    finals = []
    for k, slot in enumerate(p.final):
        if slot is not None:
            more = " + P(0)" if p.operand is not None and k == 0 else ""
            value = f"({local.format(k=k)}{more})"
            finals.append(p.state.store.format(p=f"p_{slot}", i=at, v=value) + ";")
    before = "".join(f"const ACC_T c{k} = {local.format(k=k)}; " for k in range(len(p.initial)))
    cell = " ".join(line.strip() for line in p.cell.splitlines())
    return (
        prelude(index, W=p.weights, ACC=p.acc)
        + p.helpers
        + defines(
            STEPS=p.steps, BATCH=p.batch, UNITS=p.units, STATES=len(p.initial),
            DEPTH=p.fan_in * p.units // shape["PARTS"], WIDTH=p.fan_out * p.units,
            REVERSE=int(p.reverse), FETCHES=max(1, len(p.fetches)), FMA=int(p.acc.is_float),
            LAST_PRODUCT=int(p.operand is not None and p.final[0] is not None), PARAMS=params,
            START=start, FINISH=" ".join(finals), CELL=before + cell + " ".join(feed), **shape,
            **{"FETCH(to_, t_)": fetch, "STORE(t_)": f"if (IS_OWN) {{ {store} }}"},
        )
        + cl_source("recurrent/recurrent.cl")
    )  # fmt: skip


SOLVERS: tuple[Solver, ...] = (Persistent(),)


def plan(problem: RecurrentProblem, info) -> Plan:
    """Launches for a recurrence.

    Raises:
        NotImplementedError: when a row of the batch does not fit the local memory.
    """
    solver: Any = choose(SOLVERS, problem, info)  # recurrences take no epilogue
    return solver.plan(problem, info, None)
