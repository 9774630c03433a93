"""Gradients of attention of float16 and bfloat16 by warpgroup matrix instructions: see `ptx`.

A solver beside attention16's, of the same problem, for what `attention` computes forward.  The
gradient of queries has a kernel of its own, as there: no sums by atomics, which vary from run to
run.  Both compute the probabilities again, so there are seven products instead of five.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import (
    LOG2_E,
    MOST_BITS,
    AttentionProblem,
    Tensor,
    extra_refs,
    extra_scalars,
    kept_bytes,
    kept_words,
)
from kerascl.kernels.contract.epilogue import STORE_VECTOR, Epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.hopper import attention, probe
from kerascl.kernels.hopper.attention import CACHED, EXPONENTIALS, HIDDEN, PRODUCERS, ROWS
from kerascl.kernels.hopper.ptx import (
    KINDS,
    PRODUCT,
    REWRITE,
    instruction,
    register_instruction,
)
from kerascl.kernels.hopper.tiles import SHARED_LIMIT
from kerascl.kernels.hopper.tma import depth_of, map_words
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import attention16
from kerascl.kernels.units.attention import stores
from kerascl.runtime.device import DeviceInfo

SELF_TEST = "wgmma_attention_gradient"
KERNEL = "wgmma_attention_gradient"
NO_EPILOGUE = Epilogue("", (), "")
# Clocks to begin and end a tile, and what a block takes whatever its columns are; logits whose
# instructions beside the exponential take a clock of a compute unit.  Fitted to an H200.
START, BLOCK, OTHERS = 5400, 100, 16
HOLD = 400  # clocks to bring a tile's own rows to registers
SHARED = 128  # bytes of local memory that matrix units read in a clock


@dataclass(frozen=True)
class Tile:
    """A work-group of `consumers` warpgroups of 64 rows each takes `bc` columns at a time.

    Attributes:
        stages: blocks of columns in the ring.
        local: tiles whose own rows are in local memory at a time, in as much of it as two more
            stages each; 0 where they are in registers.
        drops: whether there are registers for dropout, too.
    """

    consumers: int
    bc: int
    stages: int
    local: int = 0
    drops: bool = True

    @property
    def br(self) -> int:
        """Rows of a work-group."""
        return ROWS * self.consumers

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return 128 * self.consumers + PRODUCERS

    @property
    def areas(self) -> int:
        """Stages of the ring, and those beside it."""
        return self.stages + 2 * self.local

    def handed(self, p: AttentionProblem) -> int:
        """Bytes of dropout's bits that one kernel leaves for the other."""
        return handed_bytes(p)

    def waiting(self, p: AttentionProblem) -> int:
        """Blocks of queries whose sums wait in local memory between tiles of keys."""
        return 0

    def beside(self, p: AttentionProblem) -> int:
        """Bytes of local memory behind the stages."""
        return 0

    def local_bytes(self, p: AttentionProblem, keys: bool) -> int:
        """Bytes of local memory: of RING and barriers in wgmma_attention_gradient.cl."""
        panels = ceil_div(p.width, 64), ceil_div(p.depth, 64)
        facts = 8 + (self.br // 8 if self.handed(p) or p.kept else 0)
        block = round_up(128 * self.bc * sum(panels) + keys * facts * self.bc, 1024)
        own = 128 * self.br * max(panels) if self.local else 0
        return self.areas * (max(block, own) + 16) + self.beside(p)

    def blocks(self, p: AttentionProblem, keys: bool) -> list[int]:
        """Blocks of columns of each tile of one owner."""
        if not keys:
            ends = range(self.br, round_up(p.length, self.br) + 1, self.br)
            return [ceil_div(min(p.source, end) if p.causal else p.source, self.bc) for end in ends]
        firsts = range(0, p.source, self.br)
        begins = [first // self.bc * self.bc if p.causal else 0 for first in firsts]
        repeat = p.heads // p.groups
        return [repeat * ceil_div(max(p.length - begin, 0), self.bc) for begin in begins]

    def holds(self, p: AttentionProblem) -> bool:
        """Whether registers hold everything: dropout's numbers take some, too."""
        return self.drops or p.dropout is None

    def multiplying(self, p: AttentionProblem, keys: bool, rate: float) -> float:
        """Clocks for all products of a block, at `rate` multiply-adds a clock: 16 deep each."""
        width, depth = ceil_div(p.width, 16), ceil_div(p.depth, 16)
        read = 32 * self.bc + (32 * ROWS if self.local else 0)
        logits = (width + depth) * max(16 * ROWS * self.bc / rate, read / SHARED)
        sums = (width + keys * depth) * ROWS * self.bc * 16 / rate
        return self.consumers * (logits + sums)

    def clocks(
        self, p: AttentionProblem, info: DeviceInfo, keys: bool, owners: int | None = None
    ) -> float:
        """Clocks of a compute unit for all its tiles, of so many heads: by default of all."""
        rate = products_a_clock(p, info)
        blocks = self.blocks(p, keys)
        owners = owners or p.batch * (p.groups if keys else p.heads)
        multiply = self.multiplying(p, keys, rate)
        # Warps without rows weigh nothing.
        rows = round_up(p.source if keys else p.length, 16) / len(blocks)
        found = p.kept or (keys and self.handed(p))
        draws = attention16.DRAW if p.dropout and not found else 0.0
        weigh = rows * self.bc * max(1 / EXPONENTIALS, 1 / OTHERS + draws)
        block = max(multiply, weigh) + (1 - HIDDEN) * min(multiply, weigh)
        rounds = ceil_div(len(blocks) * owners, info.compute_units)
        begin = START + HOLD * (not self.local)
        return rounds * (begin + (BLOCK + block) * sum(blocks) / len(blocks))


def products_a_clock(p: AttentionProblem, info: DeviceInfo) -> float:
    """Multiply-adds of a compute unit in a clock, at what products reach at best."""
    rates = machine.of(info)
    rate = rates.matrix_rate(p.q.dtype) or rates.rate(p.q.dtype)
    return rate * KINDS[p.q.dtype.name].efficiency / info.compute_units / rates.clock


def handed_bytes(p: AttentionProblem) -> int:
    """Bytes of dropout's bits that the queries' kernel leaves for that of keys; 0 where there are
    none, they are there already, or they are too many: then both kernels draw."""
    nbytes = kept_bytes(p) if p.dropout and not p.kept else 0
    return nbytes if nbytes <= MOST_BITS else 0


def pitch(p: AttentionProblem) -> int:
    """Queries in a row of gradients of logits in memory: whole 16 bytes."""
    return round_up(p.length, 8)


Table = tuple[tuple[int, Tile], ...]
# (most features, tile) of queries' gradients and of keys'.  Those of 64 features are each the best
# of an H200 for some problem; blocks of 112 waste less of lengths such as 197.
QUERIES: Table = (
    (64, Tile(2, 112, 3, local=1)), (64, Tile(2, 128, 3, local=1, drops=False)),
    (64, Tile(2, 80, 4, local=1)), (64, Tile(2, 64, 4, local=1)),
    (128, Tile(2, 80, 3, local=1, drops=False)), (128, Tile(2, 48, 4, local=1)),
)  # fmt: skip
KEYS: Table = (
    (64, Tile(2, 64, 4)),
    (128, Tile(2, 48, 4, local=1, drops=False)), (128, Tile(2, 32, 4, local=1)),
)  # fmt: skip


def takes(p: AttentionProblem) -> bool:
    """Whether the kernels can compute it, on a device with the instructions."""
    return (
        p.grad is not None
        and attention.takes(replace(p, grad=None))
        and attention16.takes(p)
        and all(attention.steps_up(x, p.length) for x in (p.q, p.grad))
    )


def words_of(x: Tensor, rows: int, count: int, features: int, batch: int, box: int) -> Scalar:
    """The tensor map of queries, keys, values or the result's gradient.

    Args:
        rows, count: queries or keys, and heads of them.
        box: rows of a box, of 64 features each.
    """
    counts = [rows, count, batch]
    steps = [x.dtype.itemsize * x.strides[axis] for axis in (1, 2, 0)]
    for n, axis in enumerate((1, 2, 0)):
        if attention.repeated(x, axis, counts[n]):
            counts[n], steps[n] = 1, 16  # any step will do
    sizes = (features, *counts)
    return Scalar("ulong8", map_words(x.dtype, sizes, tuple(steps), (depth_of(x.dtype), box, 1, 1)))


class HopperAttentionGradient(attention_tiled.TiledSolver):
    """One kernel owns blocks of queries, another blocks of keys; both compute the probabilities.

    Args:
        queries, keys: fixed tiles of either, for tests and tuning; by default the fastest by
            estimate.
        groups: work-groups at most, by default one for each compute unit.
    """

    name = "wgmma_attention_grad"
    kernel = KERNEL
    backward = True
    keeps = True

    def __init__(
        self, queries: Tile | None = None, keys: Tile | None = None, groups: int | None = None
    ):
        self.tiles = queries, keys
        self.most = groups

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        return (
            takes(problem) and super().applies(problem, info)
            and probe.available(info, SELF_TEST, attention16.part(problem))
        )  # fmt: skip

    def block(self, p: AttentionProblem, info: DeviceInfo) -> tuple[Tile, ...]:
        """The tiles of queries and of keys."""
        return tuple(
            given or _fastest(p, info, bool(keys)) for keys, given in enumerate(self.tiles)
        )

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        p, rates = problem, machine.of(info)
        clocks = sum(
            tile.clocks(p, info, bool(keys)) for keys, tile in enumerate(self.block(p, info))
        )
        return max(rates.clocks(clocks), rates.moving(p.nbytes)) + 2 * rates.launch

    def plan(self, problem: AttentionProblem, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        p = problem
        tiles = self.block(p, info)
        made = [
            self._launch(p, info, tile, keys, NO_EPILOGUE if keys else epilogue)
            for keys, tile in enumerate(tiles)
        ]
        shared = [handed_bytes(p)] if handed_bytes(p) else []
        return Plan([launch for launch, _ in made], [nbytes for _, nbytes in made] + shared)

    whole = False  # whether a work-group has all tiles of its heads
    stored = False  # whether gradients of logits go to memory, of some heads after the others

    def _launch(
        self, p: AttentionProblem, info: DeviceInfo, tile: Tile, nth: int, epilogue: Epilogue,
        some: tuple[int, int] | None = None,
    ) -> tuple[Launch, int]:  # fmt: skip
        """The `nth` kernel, and the bytes of its workspace.

        Args:
            some: the first of the heads (of keys, of all batch entries) that it has, and how many.
        """
        assert p.grad is not None
        keys = bool(nth or self.whole)
        assert tile.local_bytes(p, keys) <= SHARED_LIMIT
        queries = ((p.q, p.width), (p.grad, p.depth))
        values = ((p.k, p.width), (p.v, p.depth))
        own, other = (values, queries) if keys else (queries, values)
        counts = (p.length, p.heads), (p.source, p.groups)
        owners = p.groups if keys else p.heads
        before, planes = some or (0, p.batch * owners)
        blocks = tile.blocks(p, keys)
        total = len(blocks) * planes
        groups = min(planes if self.whole else total, self.most or info.compute_units)
        rows, heads = counts[not keys]
        nbytes = rows * heads // owners * (p.width + p.depth) * p.q.dtype.itemsize
        band = min(planes, max(1, CACHED // max(nbytes, 1))) if p.causal and not self.whole else 1
        params = Params().add(
            "int", T=p.length, S=p.source, HEAD_COUNT=p.heads, REPEAT=p.heads // p.groups,
            OWNERS=owners, TILES=total, BLOCKS=len(blocks), PLANES=planes, BAND=band,
            SLICE=max(blocks), HALVES=2 * kept_words(p.source),
        )  # fmt: skip
        if self.stored:
            params.add("int", FIRST_PLANE=before, PITCH=pitch(p))
        for name, tensors, of in (("", other, not keys), ("OWN_", own, keys)):
            for part, (x, _) in zip("XY", tensors, strict=True):
                params.add("int", **{
                    f"{name}{part}_HEADS": int(not attention.repeated(x, 2, counts[of][1])),
                    f"{name}{part}_BATCH": int(not attention.repeated(x, 0, p.batch)),
                })  # fmt: skip
        for name, x in zip("qkvg", (p.q, p.k, p.v, p.grad), strict=True):
            a, b, c, _ = x.strides
            params.add(p.index, **{f"{name}Off": x.offset, f"{name}0": a, f"{name}1": b,
                                   f"{name}2": c})  # fmt: skip
        maps = [
            words_of(x, *counts[of], features, p.batch, box)
            for tensors, of, box in ((other, not keys, tile.bc), (own, keys, tile.br))
            for x, features in tensors
        ]
        results: tuple[Arg, ...] = (Ref("dk"), Ref("dv")) if keys else ()
        results += (Ref("ws2"),) if self.stored else ()
        bits = [Ref("h")] if p.kept else [Ref("ws2")] if tile.handed(p) else []
        args = (
            *map(Ref, "abcd"), Ref(f"ws{nth}"), *maps, *extra_refs(p, "g"), Ref("e"),
            Ref("f"), *bits, *results, *params.args,
            Scalar("float", p.scale), Scalar("float", p.scale * LOG2_E), *extra_scalars(p),
            *epilogue.args,
        )  # fmt: skip
        launch = Launch(
            self.text(p, tile, keys, params, epilogue), self.kernel, args,
            (groups * tile.threads,), (tile.threads,), (f"--rewrite={REWRITE}",),
        )  # fmt: skip
        return launch, 128 * ((4 if tile.local else 2) * groups + 1)

    def text(
        self, p: AttentionProblem, tile: Tile, keys: bool, params: Params, epilogue: Epilogue
    ) -> str:
        """A kernel's source."""
        kind = KINDS[p.q.dtype.name]
        names = dict(
            KEYS=int(keys), NWG=tile.consumers, BC=tile.bc, STAGES=tile.areas,
            OWN_LOCAL=int(tile.local), HANDED=int(tile.handed(p) > 0 or p.kept),
            KEPT_BITS=int(p.kept), THREADS=tile.threads,
            MANY_REGISTERS=1, LARGE=1, SHORT_RESULTS=int(p.dtype is p.q.dtype),
            WHOLE=int(self.whole), STORED=int(self.stored), WAITING=tile.waiting(p),
        )  # fmt: skip
        text = PRODUCT + attention_tiled.head(p, epilogue, "", **names)
        if keys:
            text += STORE_VECTOR + stores("PUT_K", "outK", p) + stores("PUT_V", "outV", p)
        text += f'#define ELEMENT_NAME "{attention16.NAMES[p.q.dtype]}"\n'
        for of in ("_S", "_P"):
            if tile.local:
                text += instruction(tile.bc, kind, False, False, of)
            else:
                text += register_instruction(tile.bc, kind, False, of)
        made = functools.partial(instruction, a_mn=False) if self.whole else register_instruction
        text += made(round_up(p.width, 16), kind, b_mn=True, of="_K")
        if keys:
            text += register_instruction(round_up(p.depth, 16), kind, True, "_V")
        if self.whole:
            text += instruction(round_up(p.width, 16) // 2, kind, True, True, "_Q")
        return (
            text
            + params.source
            + cl_source("hopper/wgmma_common.cl")
            + cl_source("units/mma16_units.cl")
            + "#define SHUFFLE_XOR(to, from, bits) SHUFFLE(to, from, bits)\n"
            + cl_source("units/attention_quads.cl")
            + cl_source("units/attention_bits.cl")
            + cl_source("hopper/wgmma_attention_gradient.cl")
        )


def rows_of(table: Table, features: int) -> list[Tile]:
    """Those of a table for so many features: with the least bound that holds."""
    bound = min(most for most, _ in table if features <= most)
    return [tile for most, tile in table if most == bound]


def _fastest(p: AttentionProblem, info: DeviceInfo, keys: bool) -> Tile:
    rows = rows_of(KEYS if keys else QUERIES, max(p.width, p.depth))
    return min((t for t in rows if t.holds(p)), key=lambda tile: tile.clocks(p, info, keys))


SOLVERS = (HopperAttentionGradient(),)
