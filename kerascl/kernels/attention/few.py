"""Attention of few queries over many keys, as where text is generated, in portable OpenCL C."""

from __future__ import annotations

from typing import NamedTuple

from kerascl.dtypes import float32
from kerascl.kernels.attention.problem import LOG2_E, AttentionProblem, extra_refs, extra_scalars
from kerascl.kernels.attention.tiled import head, in_vectors, strides
from kerascl.kernels.contract import ahead, arrival
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.lanes import lanes_of
from kerascl.kernels.contract.plan import Arg, Counters, Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div, next_power
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.matmul.tiles import load4
from kerascl.kernels.tuning import machine

MOST_QUERIES = 8
THREADS = 128
CHUNK = 512  # keys whose logits lie in local memory at once
LEAST_KEYS = 256  # of a slice
# Of 32 bits, of values and of keys, that a work-item of a GPU asks for before it needs them; half
# as many where keys go round in a loop, whose addresses take registers.
EARLY_WORDS = 32
SHARING = 16  # most work-items that share keys through local memory, which grows with them


class Slices(NamedTuple):
    """The keys are cut into `number` slices of `size`; `arrives`: one launch joins them, too."""

    number: int
    size: int
    arrives: bool


class Text(NamedTuple):
    """A kernel's name, file, work-items of a group, macros and what else its text begins with."""

    kernel: str
    file: str
    threads: int
    names: dict[str, int]
    helper: str = ""


class FewQueries(Solver):
    """A work-group owns a query and a slice of its keys; the slices' results are then joined
    (Flash-Decoding: Dao, Haziza, Massa and Sizov, 2023)."""

    name = "few"
    on_gpu, on_cpu = 0.35, 0.005  # shares of the rate of multiply-adds
    least_keys = LEAST_KEYS

    def applies(self, problem: AttentionProblem, info) -> bool:
        p = problem
        shared = THREADS * (SHARING + 1)
        room = 4 * (p.width + 5 * THREADS + CHUNK + shared) + 512 <= info.local_mem_bytes
        few = p.length <= MOST_QUERIES and p.grad is None
        return p.usable and few and room and info.max_work_group_size >= THREADS

    def cost(self, problem: AttentionProblem, info) -> float:
        p, efficiency = problem, self.on_cpu if info.kind == "cpu" else self.on_gpu
        return machine.of(info).roofline(p.products, p.nbytes, float32, efficiency)

    def plan(self, problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        slices = self._slices(p, info)
        rows = p.batch * p.heads * p.length
        text = self._text(p, info, slices)
        names = text.names | dict(
            FORWARD=1, THREADS=text.threads, SPLITS=slices.number, SLICE=slices.size,
            ARRIVES=int(slices.arrives),
        )  # fmt: skip
        first: tuple[Arg, ...] = ()
        params, helper = "", text.helper
        if slices.number > 1:
            params, first = "__global float* slices, ", (Ref("ws0"),)
        if slices.arrives:
            params += "volatile __global uint* arrivals, const int arrival, "
            first += (Counters(rows), Scalar("int", 0))
            helper += arrival.helper(info)
        helper += f"#define SLICES_PARAMS {params}\n"
        args = (
            *first, Ref("a"), Ref("b"), Ref("c"), *extra_refs(p, "d"), Ref("stat"),
            Scalar("int", p.length), Scalar("int", p.source), Scalar("int", p.heads // p.groups),
            Scalar("float", p.scale * LOG2_E), *strides(p, p.q, p.k, p.v), *extra_scalars(p),
            *epilogue.args,
        )  # fmt: skip
        raw = "ushort4" if p.q.dtype.storage == "half" else f"{p.q.dtype.storage}4"
        helper += f"#define X_RAW4 {raw}\n" + load4("RAW", p.q.dtype, float32, "__private")
        own = cl_source("attention/attention_slices.cl") + cl_source(f"attention/{text.file}")
        threads = text.threads
        size = (p.length * slices.number * threads, p.heads, p.batch)
        options = arrival.options(info) if slices.arrives else ()
        source = head(p, epilogue, helper, **names) + own
        launches = [Launch(source, text.kernel, args, size, (threads, 1, 1), options)]
        if slices.number > 1 and not slices.arrives:
            factor = 1.0 if p.dropout is None else p.dropout.factor
            args = (
                Ref("ws0"), Ref("stat"), Scalar("int", p.length), Scalar("float", factor),
                *epilogue.args,
            )  # fmt: skip
            size = (p.length * threads, p.heads, p.batch)
            source = head(p, epilogue, "", JOIN=1, **names) + own
            join = Launch(
                source, "attention_join", args, size, (threads, 1, 1), role=Role.REDUCE
            )
            launches.append(join)
        place = 4 * (names["DP"] + 2)
        return Plan(launches, [rows * slices.number * place] if slices.number > 1 else [])

    def _text(self, p: AttentionProblem, info, slices: Slices) -> Text:
        lanes = next(n for n in (8, 16, 32, 64) if 4 * n >= p.depth)
        early = self._early(p, info, slices, ceil_div(min(slices.size, CHUNK), THREADS // lanes))
        held = self._early(p, info, slices, lanes)
        share = held and p.width <= 4 * lanes and lanes <= SHARING
        names = dict(
            CHUNK=CHUNK, LANES=lanes, DP=4 * lanes, EARLY=early, SHARE_KEYS=int(bool(share)),
            HELD=held,
        )  # fmt: skip
        return Text("attention_few", "attention_few.cl", THREADS, names)

    def _early(self, p: AttentionProblem, info, slices: Slices, loads: int) -> int:
        """How many of a work-item's loads of four values come first."""
        if info.kind == "cpu" or not in_vectors(p):
            return 0
        room = EARLY_WORDS if slices.size <= THREADS else EARLY_WORDS // 2
        room = min(room, info.registers // 4) if info.registers else room
        return min(loads, room // p.q.dtype.itemsize)

    def _slices(self, p: AttentionProblem, info) -> Slices:
        """As many as keep the compute units busy, of no fewer than `least_keys` keys."""
        wanted = ceil_div(2 * info.compute_units, p.batch * p.heads * p.length)
        size = ceil_div(p.source, max(1, min(wanted, p.source // self.least_keys)))
        count = ceil_div(p.source, size)
        return Slices(count, size, count > 1 and arrival.supported(info))


class FewQueriesByLanes(FewQueries):
    """Lanes of a sub-group give each other values, so that all that a slice reads is under way
    before work-items wait for the first time, and they meet but once."""

    name = "few_lanes"
    on_gpu = 0.4
    # More keys take another turn, which is less than joining slices takes.
    least_keys = 512
    MOST_THREADS, LEAST_THREADS = 512, 128
    MOST_KEYS = 8  # of a work-item at once
    WORDS = 64  # of 32 bits, of keys and values, that it asks for at once

    def applies(self, problem: AttentionProblem, info) -> bool:
        lanes = lanes_of(info)
        return (
            lanes is not None
            and in_vectors(problem)
            and info.max_work_group_size % lanes.width == 0
            and super().applies(problem, info)
        )

    def _text(self, p: AttentionProblem, info, slices: Slices) -> Text:
        exchange = lanes_of(info)
        assert exchange is not None
        fours = ceil_div(max(p.width, p.depth), 4)
        lanes = min(exchange.width, max(4, next_power(fours)))
        each = ceil_div(fours, lanes)
        rows = p.batch * p.heads * p.length * slices.number
        threads = min(self.MOST_THREADS, info.max_work_group_size)
        wanted = self.MOST_THREADS * info.compute_units
        while threads > self.LEAST_THREADS and rows * threads > wanted:
            threads //= 2
        words = self.WORDS if not info.registers else min(self.WORDS, info.registers // 2)
        room = max(1, words // (2 * each * p.q.dtype.itemsize))
        keys = min(next_power(ceil_div(slices.size * lanes, threads)), lanes, self.MOST_KEYS)
        while keys > room:
            keys //= 2
        names = dict(
            LANES=lanes, FOURS=each, DP=4 * lanes * each, KEYS=keys, LANES_OF_WARP=exchange.width,
        )  # fmt: skip
        helper = exchange.helper + ahead.helper(info)
        return Text("attention_lanes", "attention_lanes.cl", threads, names, helper)


SOLVERS: tuple[Solver, ...] = (FewQueriesByLanes(), FewQueries())
