"""Attention of few queries over many keys, as where text is generated, in portable OpenCL C."""

from __future__ import annotations

from typing import NamedTuple

from kerascl.dtypes import float32
from kerascl.kernels.attention.problem import LOG2_E, AttentionProblem, extra_refs, extra_scalars
from kerascl.kernels.attention.tiled import head, in_vectors, strides
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.lanes import lanes_of
from kerascl.kernels.contract.plan import Arg, Counters, Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div
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


class FewQueries(Solver):
    """A work-group owns a query and a slice of its keys; the slices' results are then joined
    (Flash-Decoding: Dao, Haziza, Massa and Sizov, 2023)."""

    name = "few"
    ON_GPU, ON_CPU = 0.35, 0.005  # shares of the rate of multiply-adds

    def applies(self, problem: AttentionProblem, info) -> bool:
        p = problem
        shared = THREADS * (SHARING + 1)
        room = 4 * (p.width + 5 * THREADS + CHUNK + shared) + 512 <= info.local_mem_bytes
        few = p.length <= MOST_QUERIES and p.grad is None
        return p.usable and few and room and info.max_work_group_size >= THREADS

    def cost(self, problem: AttentionProblem, info) -> float:
        p, efficiency = problem, self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        return machine.of(info).roofline(p.products, p.nbytes, float32, efficiency)

    def plan(self, problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        slices = self._slices(p, info)
        rows = p.batch * p.heads * p.length
        lanes = next(n for n in (8, 16, 32, 64) if 4 * n >= p.depth)
        names = dict(
            FORWARD=1, THREADS=THREADS, CHUNK=CHUNK, LANES=lanes, SPLITS=slices.number,
            SLICE=slices.size, ARRIVES=int(slices.arrives),
        )  # fmt: skip
        first: tuple[Arg, ...] = ()
        params, helper = "", ""
        if slices.number > 1:
            params, first = "__global float* slices, ", (Ref("ws0"),)
        if slices.arrives:
            params += "volatile __global uint* arrivals, const int arrival, "
            first += (Counters(rows), Scalar("int", 0))
            helper = arrival.helper(info)
        helper += f"#define SLICES_PARAMS {params}\n"
        args = (
            *first, Ref("a"), Ref("b"), Ref("c"), *extra_refs(p, "d"), Ref("stat"),
            Scalar("int", p.length), Scalar("int", p.source), Scalar("int", p.heads // p.groups),
            Scalar("float", p.scale * LOG2_E), *strides(p, p.q, p.k, p.v), *extra_scalars(p),
            *epilogue.args,
        )  # fmt: skip
        early = self._early(p, info, slices, ceil_div(min(slices.size, CHUNK), THREADS // lanes))
        held = self._early(p, info, slices, lanes)
        exchange = lanes_of(info)
        exchange = exchange if exchange and lanes <= exchange.width else None
        share = held and p.width <= 4 * lanes and (exchange or lanes <= SHARING)
        names |= dict(EARLY=early, SHARE_KEYS=int(bool(share)), HELD=held)
        if exchange:
            names |= dict(LANES_OF_WARP=exchange.width)
            helper += exchange.helper
        raw = "ushort4" if p.q.dtype.storage == "half" else f"{p.q.dtype.storage}4"
        helper += f"#define X_RAW4 {raw}\n" + load4("RAW", p.q.dtype, float32, "__private")
        text = cl_source("attention/attention_few.cl")
        size = (p.length * slices.number * THREADS, p.heads, p.batch)
        options = arrival.options(info) if slices.arrives else ()
        source = head(p, epilogue, helper, **names) + text
        launches = [Launch(source, "attention_few", args, size, (THREADS, 1, 1), options)]
        if slices.number > 1 and not slices.arrives:
            factor = 1.0 if p.dropout is None else p.dropout.factor
            args = (
                Ref("ws0"), Ref("stat"), Scalar("int", p.length), Scalar("float", factor),
                *epilogue.args,
            )  # fmt: skip
            size = (p.length * THREADS, p.heads, p.batch)
            source = head(p, epilogue, "", JOIN=1, **names) + text
            join = Launch(
                source, "attention_join", args, size, (THREADS, 1, 1), role=Role.REDUCE
            )
            launches.append(join)
        place = 4 * (4 * lanes + 2)
        return Plan(launches, [rows * slices.number * place] if slices.number > 1 else [])

    def _early(self, p: AttentionProblem, info, slices: Slices, loads: int) -> int:
        """How many of a work-item's loads of four values come first."""
        if info.kind == "cpu" or not in_vectors(p):
            return 0
        room = EARLY_WORDS if slices.size <= THREADS else EARLY_WORDS // 2
        room = min(room, info.registers // 4) if info.registers else room
        return min(loads, room // p.q.dtype.itemsize)

    def _slices(self, p: AttentionProblem, info) -> Slices:
        """As many as keep the compute units busy, of no fewer than LEAST_KEYS keys."""
        wanted = ceil_div(2 * info.compute_units, p.batch * p.heads * p.length)
        size = ceil_div(p.source, max(1, min(wanted, p.source // LEAST_KEYS)))
        count = ceil_div(p.source, size)
        return Slices(count, size, count > 1 and arrival.supported(info))


SOLVERS: tuple[Solver, ...] = (FewQueries(),)
