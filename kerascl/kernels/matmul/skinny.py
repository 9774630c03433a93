"""Products with one short side, a matrix times a few vectors: what generating text consists of."""

from __future__ import annotations

from typing import NamedTuple

from kerascl.dtypes import DType
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.epilogue import WORDS, Epilogue
from kerascl.kernels.contract.plan import Arg, Counters, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, last_power, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import (
    SPACE,
    Source,
    cl_source,
    defines,
    narrowest,
    type_macros,
    unit,
    within,
)
from kerascl.kernels.matmul import computed as operands
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index, usable
from kerascl.kernels.matmul.split_k import most_slices, partial_epilogue, vector_reduction_launch
from kerascl.kernels.matmul.tiles import load4
from kerascl.kernels.tuning import machine

THREADS = 256
SEGMENT = 64  # bytes side by side that a work-group reads at least, where the memory has them
LOADS = 16  # of a work-item, from which on slices pay
OTHERS = 32  # of a work-item's registers, for addresses and the short operand
SPARE_BYTES = 64  # of local memory for what is no array
LOCAL_BYTES = 16 * 1024
STAGE_BYTES = 24 * 1024  # of the short operand, that a work-group copies to local memory
INTS = ("R", "COUNT", "K", "SPLITS", "KSLICE", "B1", "B2")
STEPS = (
    "lOff", "sOff", "lR", "lK", "sJ", "sK", "l0", "l1", "l2", "s0", "s1", "s2", "oR", "oJ",
)  # fmt: skip


class Side(NamedTuple):
    """An operand as rows of `k`: its slot, dtype, start and steps in elements."""

    slot: str
    dtype: DType
    offset: int
    row: int
    depth: int
    batch: tuple[int, ...]

    def in_fours(self, along: int, across: int, count: int) -> bool:
        """Whether four neighbours by step `along`, of `count`, may be read at once."""
        steps = (self.offset, across, count, *self.batch)
        return along == 1 and all(n % 4 == 0 for n in steps) and not self.dtype.is_complex


class SkinnyMatmul(Solver):
    """One side of at most eight (matrix times vector): lanes sum along the depth."""

    name = "skinny"
    joins = True
    MOST = 8
    LEAST = 10_000  # elements that keep a compute unit busy
    ON_GPU, ON_CPU = 0.36, 0.008  # shares of the rates that products reach
    # Loads that a work-item of a GPU has under way before it multiplies, of one or two rows and of
    # more, whose sums take registers too.
    EARLY, EARLY_ROWS = 16, 8
    # Of elements that are computed, each from several reads: sixteen, of int4 in groups, took 150
    # registers of AMD's where eight take 97.
    EARLY_COMPUTED = 8

    def __init__(self, split: int | None = None):
        self.split = split
        if split:
            self.name = f"skinny_s{split}"

    def applies(self, problem: MatmulProblem, info) -> bool:
        p = problem
        small = usable(p, info) and min(p.m, p.n) <= self.MOST
        room = THREADS * self.MOST * p.acc.itemsize <= info.local_mem_bytes
        return small and room and info.max_work_group_size >= THREADS

    def cost(self, problem: MatmulProblem, info) -> float:
        p, rates = problem, machine.of(info)
        long = max(p.m, p.n) * p.k * p.batches
        if info.kind == "cpu":
            return rates.launch + rates.multiplying(long * min(p.m, p.n), p.acc, self.ON_CPU)
        # The long operand is read once, by as many compute units as have enough of it.
        busy = min(1.0, max(1, long // self.LEAST) / info.compute_units)
        products = rates.multiplying(long * min(p.m, p.n), p.acc, self.ON_GPU)
        work = rates.moving(long * p.a.itemsize) + products
        return rates.launch + rates.begin + work / busy

    def computes(self, problem: MatmulProblem, info) -> str | None:
        p = problem
        if p.batches > 1 or p.acc.is_complex:  # batches may share what each would compute
            return None
        return "a" if p.n <= p.m else "b"

    def plan_computing(
        self, problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed
    ) -> Plan:
        return self.plan(problem, info, epilogue, computed)

    def plan(
        self, problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed | None = None
    ) -> Plan:
        p, index = problem, problem_index(problem)
        a = Side("a", p.a, p.a_offset, p.a_strides[-2], p.a_strides[-1], p.a_strides[:3])
        b = Side("b", p.b, p.b_offset, p.b_strides[-1], p.b_strides[-2], p.b_strides[:3])
        if p.n <= p.m:
            long, short, rows, count, steps = a, b, p.m, p.n, (p.n, 1)
        else:
            long, short, rows, count, steps = b, a, p.n, p.m, (1, p.n)
        along_k = long.depth == 1 or (long.row != 1 and abs(long.depth) < abs(long.row))
        if along_k:
            width = 4 if long.in_fours(long.depth, long.row, p.k) else 1
        else:
            width = 4 if long.in_fours(long.row, long.depth, rows) else 1
        reading, nbytes, text = None, float(long.dtype.itemsize), ""
        if computed is not None:
            sides = operands.Side(rows, long.row), operands.Side(p.k, long.depth)
            near = operands.closest(computed, *sides, long.offset, (4,), joined=True)
            along_k, width, reading = near
            nbytes, text = reading.nbytes, _computed(near, index)
        group_rows = self._rows(p, info, nbytes, rows, along_k, width)
        lanes = THREADS // group_rows * (1 if along_k else width)
        groups = ceil_div(rows, group_rows) * p.batches
        step = lanes * (width if along_k else 1)  # of the depth, that a work-group takes at once
        wanted = self.split or min(ceil_div(info.compute_units * 4, groups), p.k // (LOADS * step))
        wanted = max(1, min(wanted, most_slices(p.total, p.acc), p.k))
        slice_ = round_up(ceil_div(p.k, wanted), width if along_k else 1)
        splits = ceil_div(p.k, slice_)
        arrives = splits > 1 and arrival.supported(info)
        separate = splits > 1 and not arrives
        part = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        inner = part if separate else epilogue
        short_rows = next(n for n in (1, 2, 4, 8) if n >= count)
        room = min(LOCAL_BYTES, info.local_mem_bytes) // (lanes * group_rows * p.acc.itemsize)
        together = next(n for n in (8, 4, 2, 1) if n <= max(1, min(short_rows, room)))
        early = self._early(p, info, short_rows, width, ceil_div(slice_, step))
        early = early if reading is None else min(early, self.EARLY_COMPUTED)
        local = together * lanes * group_rows * p.acc.itemsize
        stage = round_up(min(slice_, p.k), 4)
        staged = early and stage * short_rows * short.dtype.itemsize
        if staged > min(STAGE_BYTES, info.local_mem_bytes - local - SPARE_BYTES):
            stage = 0
        names = dict(
            ROWS=group_rows, LANES=lanes, SHORT=short_rows, V=width, L_ALONG_K=int(along_k),
            S_VECTOR=int(short.in_fours(short.depth, short.row, p.k)), ARRIVES=int(arrives),
            TOGETHER=together, EARLY=early, STAGE=stage if early else 0,
            WHOLE=int(p.k - (splits - 1) * slice_ >= early * step),
            L_WORD=WORDS.get(long.dtype.itemsize), S_WORD=WORDS.get(short.dtype.itemsize),
            UNROLL=_unroll(short_rows, width, info), TOTAL=f"((INDEX_T){p.total})",
        )  # fmt: skip
        body = within(
            type_macros(index, L=long.dtype, S=short.dtype, ACC=p.acc)
            + load4("L", long.dtype, p.acc)
            + load4("RAW", long.dtype, p.acc, "__private")
            + load4("S", short.dtype, p.acc, "S_SPACE")
            + SPACE.format("__global")
            + defines(**names)
            + (inner.early if early and short_rows == 1 else inner.macro)
            + text
            + cl_source("matmul/gemm_skinny.cl")
        )
        ints = (rows, count, p.k, splits, slice_, p.batch[1], p.batch[2])
        longs = (
            long.offset, short.offset, long.row, long.depth, short.row, short.depth,
            *long.batch, *short.batch, *steps,
        )  # fmt: skip
        long_args: tuple[Arg, ...] = (Ref(long.slot),)
        # what is known never to change may be read later than it stands there
        alone = "" if early else "restrict "
        long_params: tuple[str, ...] = (f"__global const {long.dtype.storage}* {alone}pL",)
        if reading is not None:
            long_args, long_params = reading.args, reading.params
        slices, slice_params = _slices(p, groups) if arrives else ((), ())
        args = (
            *long_args, Ref(short.slot), *(Scalar("int", v) for v in ints),
            *(Scalar(index, v) for v in longs), *slices, *inner.args,
        )  # fmt: skip
        inner_param = f"__global const {short.dtype.storage}* restrict pS"
        params = (
            *long_params, inner_param,
            *(f"const int {name}" for name in INTS), *(f"const {index} {name}" for name in STEPS),
            *slice_params, *inner.param_list,
        )  # fmt: skip
        kernel = Source(
            "gemm_skinny", params, body,
            ((arrival.helper(info),) if arrives else ()) + inner.helpers
            + (reading.helpers if reading else ()),
            any(t.is_double for t in (p.a, p.b, p.acc)) or inner.uses_double
            or bool(reading and reading.uses_double),
            arrival.options(info) if arrives else (), THREADS, narrowest(info), inner_param, local,
            inner.param_list,
        )  # fmt: skip
        size = (groups * splits * THREADS,)
        launches = [
            Launch(unit([kernel]), kernel.name, args, size, (THREADS,), kernel.options, kernel)
        ]
        if separate:
            launches.append(vector_reduction_launch(p.total, splits, p.acc, index, epilogue))
        return Plan(launches, [splits * p.total * p.acc.itemsize] if splits > 1 else [])

    def _early(self, p: MatmulProblem, info, short_rows: int, width: int, loads: int) -> int:
        """How many of a work-item's loads, of `width` neighbours, come first."""
        if info.kind == "cpu" or max(p.a.itemsize, p.b.itemsize) > max(WORDS):
            return 0
        most = self.EARLY if short_rows <= 2 else self.EARLY_ROWS
        if info.registers:
            word = ceil_div(width * max(p.a.itemsize, p.b.itemsize), 4)
            room = info.registers - OTHERS - short_rows * width * ceil_div(p.acc.itemsize, 4)
            most = min(most, last_power(room // word)) if room >= word else 0
        return min(loads, most)

    def _rows(
        self, p: MatmulProblem, info, nbytes: float, rows: int, along_k: bool, width: int
    ) -> int:
        """Of a work-group: fewer where few groups would leave compute units without work, so many
        at least that what lies side by side is read together."""
        if along_k:
            return 8
        most = 32 if nbytes >= 1 else 64
        least = max(width, SEGMENT / max(nbytes, 1 / 8))
        counts = [n for n in (64, 32, 16, 8) if min(least, most) <= n <= most]
        busy = (n for n in counts if ceil_div(rows, n) * p.batches >= info.compute_units)
        return next(busy, counts[-1])


def _computed(near: operands.Neighbours, index: str) -> str:
    """The macro L_COMPUTED of gemm_skinny.cl."""
    fixed, each = ("given_row_", "given_k_") if near.along_k else ("given_k_", "given_row_")
    values = ", ".join(f"(ACC_T){value}" for value in near.reading.values)
    return (
        f"#define L_COMPUTED(x_, row_, k_) {{ const u{index} given_row_ = (row_), given_k_ = (k_); "
        f"{{ {near.fixed(index, fixed)} {near.each(index, f'{each} / {near.width}')} "
        f"x_ = (ACCV)({values}); }} }}\n"
    )


def _unroll(short_rows: int, width: int, info) -> str:
    """The pragma's text for the loop along the depth: so many reads are under way at once."""
    if info.kind == "cpu":
        return '"nounroll"'  # takes long to compile, and gains nothing
    return '"unroll 4"' if short_rows > 2 or width == 1 else '"unroll 8"'


def _slices(p: MatmulProblem, groups: int) -> tuple[tuple[Arg, ...], tuple[str, ...]]:
    """Arguments and parameters for slices whose last work-group adds them up."""
    slices = f"volatile __global {p.acc.compute}* slices"
    params = (slices, "volatile __global uint* arrivals", "const int arrival")
    return (Ref("ws0"), Counters(groups), Scalar("int", 0)), params
