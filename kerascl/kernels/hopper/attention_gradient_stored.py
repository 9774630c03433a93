"""Gradients of attention of 16-bit floats whose gradients of logits go through memory.

The kernel of keys computes the probabilities and the gradients of logits and leaves the latter, in
16 bits; a product with the keys makes of them the gradients of queries.  So there are the five
products that there must be, instead of seven, and still no atomics.  Of long rows a few heads go
first, then the others, in the same memory.  It is worth it where features are many beside the two
bytes of a logit that are written and read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.hopper import attention, probe
from kerascl.kernels.hopper.attention import ROWS
from kerascl.kernels.hopper.attention_gradient import (
    KEYS,
    NO_EPILOGUE,
    START,
    HopperAttentionGradient,
    Tile,
    pitch,
    products_a_clock,
    rows_of,
    takes,
    words_of,
)
from kerascl.kernels.hopper.ptx import KINDS, REWRITE, instruction
from kerascl.kernels.hopper.tma import map_words
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import attention16
from kerascl.runtime.device import DeviceInfo

SELF_TEST = "wgmma_attention_stored"
LEAST_FEATURES = 65  # of keys and of values: with fewer it was not measured
MEMORY = 1 / 256  # of the device's, that gradients of logits may take
BLOCK = 64  # keys of a stage: a panel's rows
CACHE = 28  # bytes that a compute unit reads from the second cache in a clock


@dataclass(frozen=True)
class QueryTile:
    """A work-group of `consumers` warpgroups of 64 queries each, `stages` blocks in the ring."""

    consumers: int
    stages: int

    @property
    def br(self) -> int:
        """Queries of a work-group."""
        return ROWS * self.consumers

    @property
    def threads(self) -> int:
        """Work-items of a work-group: a warp loads."""
        return 128 * self.consumers + 32

    def stage_bytes(self, p: AttentionProblem) -> int:
        """Of STAGE in wgmma_attention_queries.cl."""
        return (self.consumers + ceil_div(p.width, 64)) * BLOCK * 128

    def local_bytes(self, p: AttentionProblem) -> int:
        """Bytes of local memory: of RING and barriers."""
        return self.stages * (self.stage_bytes(p) + 16)

    def blocks(self, p: AttentionProblem) -> list[int]:
        """Blocks of keys of each tile of one head."""
        ends = range(self.br, round_up(p.length, self.br) + 1, self.br)
        return [ceil_div(min(p.source, end) if p.causal else p.source, BLOCK) for end in ends]

    def microseconds(self, p: AttentionProblem, info: DeviceInfo, heads: int) -> float:
        """Of so many heads: products, the second cache or memory bound it."""
        rates, blocks = machine.of(info), self.blocks(p)
        multiply = self.br * BLOCK * round_up(p.width, 16) / products_a_clock(p, info)
        block = max(multiply, self.stage_bytes(p) / CACHE)
        rounds = ceil_div(len(blocks) * heads, info.compute_units)
        clocks = rounds * (START + block * sum(blocks) / len(blocks))
        return max(rates.clocks(clocks), rates.moving(heads * seen_bytes(p)))


QUERIES = (QueryTile(4, 4), QueryTile(2, 6))


def logits_bytes(p: AttentionProblem) -> int:
    """Bytes that gradients of one head's logits take in memory."""
    return p.source * pitch(p) * p.q.dtype.itemsize


def seen_bytes(p: AttentionProblem) -> float:
    """Those of them that are written and read: of keys that queries see."""
    return logits_bytes(p) * p.logits / (p.batch * p.heads * p.length * p.source)


class StoredAttentionGradient(HopperAttentionGradient):
    """See the module.

    Args:
        keys, queries: fixed tiles of either kernel, for tests and tuning; by default the fastest
            by estimate.
        groups: work-groups at most, by default one for each compute unit.
        heads: heads of keys at a time, by default as many as memory allows.
    """

    name = "wgmma_attention_grad_stored"
    stored = True

    def __init__(
        self, keys: Tile | None = None, queries: QueryTile | None = None,
        groups: int | None = None, heads: int | None = None,
    ):  # fmt: skip
        super().__init__(keys=keys, groups=groups)
        self.own = keys
        self.queries = queries
        self.heads = heads

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        p = problem
        return (
            takes(p) and min(p.width, p.depth) >= LEAST_FEATURES
            and (p.dropout is None or p.kept)
            and logits_bytes(p) * p.heads // p.groups <= info.global_mem_bytes * MEMORY
            and probe.available(info, SELF_TEST, attention16.part(p))
        )  # fmt: skip

    def parts(self, p: AttentionProblem, info: DeviceInfo) -> list[tuple[int, int]]:
        """The first of the heads of keys (of all batch entries) of each launch, and how many."""
        planes = p.batch * p.groups
        nbytes = logits_bytes(p) * (p.heads // p.groups)
        most = self.heads or max(1, int(info.global_mem_bytes * MEMORY) // nbytes)
        each = ceil_div(planes, ceil_div(planes, most))
        return [(first, min(each, planes - first)) for first in range(0, planes, each)]

    def key_tile(self, p: AttentionProblem, info: DeviceInfo) -> Tile:
        """The tile of the kernel of keys."""
        rows = [t for t in rows_of(KEYS, max(p.width, p.depth)) if t.holds(p)]
        return self.own or min(rows, key=lambda tile: tile.clocks(p, info, True))

    def query_tile(self, p: AttentionProblem, info: DeviceInfo) -> QueryTile:
        """The tile of the kernel of queries."""
        heads = self.parts(p, info)[0][1] * (p.heads // p.groups)
        return self.queries or min(QUERIES, key=lambda tile: tile.microseconds(p, info, heads))

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        p, rates, found = problem, machine.of(info), 0.0
        keys, queries = self.key_tile(p, info), self.query_tile(p, info)
        for _, count in self.parts(p, info):
            heads = count * (p.heads // p.groups)
            clocks = keys.clocks(p, info, True, count)
            found += max(rates.clocks(clocks), rates.moving(heads * seen_bytes(p)))
            found += queries.microseconds(p, info, heads) + 2 * rates.launch
        return found

    def plan(self, problem: AttentionProblem, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        p, launches, nbytes = problem, [], [0, 0]
        keys, queries, parts = self.key_tile(p, info), self.query_tile(p, info), self.parts(p, info)
        for part in parts:
            made = (
                self._launch(p, info, keys, 1, NO_EPILOGUE, part),
                self._queries(p, info, queries, epilogue, part),
            )
            launches += [launch for launch, _ in made]
            nbytes = [max(pair) for pair in zip(nbytes, (made[1][1], made[0][1]), strict=True)]
        heads = parts[0][1] * (p.heads // p.groups)
        return Plan(launches, [*nbytes, heads * logits_bytes(p)])

    def _queries(
        self, p: AttentionProblem, info: DeviceInfo, tile: QueryTile, epilogue: Epilogue,
        part: tuple[int, int],
    ) -> tuple[Launch, int]:  # fmt: skip
        """The kernel of queries, and the bytes of its workspace."""
        repeat, blocks = p.heads // p.groups, tile.blocks(p)
        first, heads = part[0] * repeat, part[1] * repeat
        total = len(blocks) * heads
        groups = min(total, self.most or info.compute_units)
        params = Params().add(
            "int", T=p.length, S=p.source, HEAD_COUNT=p.heads, REPEAT=repeat, TILES=total,
            BLOCKS=len(blocks), FIRST_PLANE=first, SLICE=max(blocks),
            K_HEADS=int(not attention.repeated(p.k, 2, p.groups)),
            K_BATCH=int(not attention.repeated(p.k, 0, p.batch)),
        ).add(p.index, kOff=p.k.offset)  # fmt: skip
        row = p.q.dtype.itemsize * pitch(p)
        logits = map_words(
            p.q.dtype, (p.length, p.source, heads), (row, row * p.source), (64, BLOCK, 1)
        )
        args = (
            Ref("ws2"), Ref("b"), Ref("ws0"), Scalar("ulong8", logits),
            words_of(p.k, p.source, p.groups, p.width, p.batch, BLOCK), *params.args,
            Scalar("float", p.scale), *epilogue.args,
        )  # fmt: skip
        names = dict(
            NWG=tile.consumers, BC=BLOCK, STAGES=tile.stages, THREADS=tile.threads, LARGE=1
        )
        kind = KINDS[p.q.dtype.name]
        source = (
            attention_tiled.head(replace(p, dropout=None), epilogue, "", **names)
            + instruction(round_up(p.width, 16), kind, True, True)
            + params.source
            + cl_source("hopper/wgmma_common.cl")
            + "#define SHUFFLE_XOR(to, from, bits) SHUFFLE(to, from, bits)\n"
            + cl_source("units/attention_quads.cl")
            + cl_source("hopper/wgmma_attention_queries.cl")
        )
        launch = Launch(
            source, "wgmma_attention_queries", args, (groups * tile.threads,), (tile.threads,),
            (f"--rewrite={REWRITE}",),
        )  # fmt: skip
        return launch, 128 * (2 * groups + 1)


SOLVERS = (StoredAttentionGradient(),)
