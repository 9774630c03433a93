"""Attention of float16 and bfloat16 by warpgroup matrix instructions, forward: see `ptx`.

A solver beside attention16's, of the same problem; that one's backward pass uses what this one
keeps.  Left to it are biases, masks, and keys or values that TMA cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerascl import philox
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import (
    LOG2_E,
    AttentionProblem,
    Tensor,
    extra_refs,
    extra_scalars,
    kept_words,
)
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.hopper import probe
from kerascl.kernels.hopper.ptx import KINDS, REWRITE, register_instruction
from kerascl.kernels.hopper.tma import depth_of, map_words
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import attention16
from kerascl.runtime.device import DeviceInfo

SELF_TEST = "wgmma_attention"
PRODUCERS = 128  # work-items of the warpgroup that loads, and gives registers to the others
MOST_FEATURES = 128
ROWS = 64  # of a consumer warpgroup
# Keys of a block with dropout, for which there are registers: by whether 16 bits decide with
# counters of 32 bits, and whether there are but 64 features.
MOST_DROPPED = {(True, True): 128, (True, False): 80, (False, True): 112, (False, False): 80}
# Clocks to begin and end a tile, and what a block takes whatever its keys are; exponentials and the
# other instructions of softmax for which a clock of a compute unit serves.  Counted, not measured.
START, BLOCK = 1500, 300
EXPONENTIALS, OTHERS = 16, 32
DRAW = 0.11  # clocks of a compute unit to draw dropout's numbers of a logit, beside products
HIDDEN = 0.4  # share of the shorter of products and softmax that the longer one hides
CACHED = 16 << 20  # bytes of keys and values that tiles under way should share in the cache


@dataclass(frozen=True)
class Tile:
    """A work-group of `consumers` warpgroups (1 to 3) of 64 queries each takes `bc` keys at a time.

    Attributes:
        stages: blocks of keys or of values in the ring.
        turns: whether two warpgroups issue their products in turn, so that one multiplies while the
            other is at softmax.  Not measured, and in no tile that is chosen.
    """

    consumers: int
    bc: int
    stages: int
    turns: bool = False

    @property
    def br(self) -> int:
        """Queries of a work-group."""
        return ROWS * self.consumers

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return 128 * self.consumers + PRODUCERS

    def holds(self, p: AttentionProblem) -> bool:
        """Whether registers hold everything: dropout's numbers take some, too."""
        if (drop := p.dropout) is None:
            return True
        small = not p.far and philox.coarse(drop.limit)
        return self.bc <= MOST_DROPPED[small, max(p.width, p.depth) <= 64]

    def blocks(self, p: AttentionProblem) -> list[int]:
        """Blocks of keys of each tile of one head."""
        ends = range(self.br, round_up(p.length, self.br) + 1, self.br)
        return [ceil_div(min(p.source, end) if p.causal else p.source, self.bc) for end in ends]

    def clocks(self, p: AttentionProblem, info: DeviceInfo) -> float:
        """Clocks of a compute unit for all its tiles."""
        rates = machine.of(info)
        rate = rates.matrix_rate(p.q.dtype) or rates.rate(p.q.dtype)
        rate *= KINDS[p.q.dtype.name].efficiency / info.compute_units / rates.clock
        logits = self.br * self.bc
        multiply = logits * (round_up(p.width, 16) + round_up(p.depth, 16)) / rate
        weigh = logits * max(1 / EXPONENTIALS, 1 / OTHERS + (DRAW if p.dropout else 0))
        block = max(multiply, weigh) + (1 - HIDDEN) * min(multiply, weigh)
        blocks, heads = self.blocks(p), p.batch * p.heads
        rounds = ceil_div(len(blocks) * heads, info.compute_units)
        return rounds * (START + (BLOCK + block) * sum(blocks) / len(blocks))


# Not measured: the fewer keys a block has, the more often results are scaled; blocks of 112 or 80
# waste less of lengths such as 197.
TILES = (Tile(2, 128, 6), Tile(2, 112, 6), Tile(2, 80, 8), Tile(2, 64, 8))


def takes(p: AttentionProblem) -> bool:
    """Whether the kernel can compute it, on a device with the instructions."""
    return (
        p.grad is None
        and p.bias is None
        and p.mask is None
        and max(p.width, p.depth) <= MOST_FEATURES
        and attention16.takes(p)
        and all(steps_up(x, p.source) for x in (p.k, p.v))
    )


def steps_up(x: Tensor, rows: int) -> bool:
    """Whether TMA can walk over a tensor: no dimension runs backwards, no rows are repeated."""
    return min(x.strides) >= 0 and (x.strides[1] > 0 or rows == 1)


def repeated(x: Tensor, axis: int, count: int) -> bool:
    return count == 1 or x.strides[axis] == 0


def _words(x: Tensor, features: int, p: AttentionProblem, tile: Tile) -> tuple[int, ...]:
    """The tensor map of keys or values: 64 features of `bc` rows in a box."""
    nbytes = x.dtype.itemsize
    counts = [p.source, p.groups, p.batch]
    steps = [nbytes * x.strides[axis] for axis in (1, 2, 0)]
    for n, axis in enumerate((1, 2, 0)):
        if repeated(x, axis, counts[n]):
            counts[n], steps[n] = 1, 16  # any step will do
    box = (depth_of(x.dtype), tile.bc, 1, 1)
    return map_words(x.dtype, (features, *counts), tuple(steps), box)


class HopperAttention(attention_tiled.TiledSolver):
    """A work-group owns blocks of queries, one after the other.

    Args:
        tile: a fixed choice, for tests and tuning; by default the fastest by estimate.
        groups: work-groups at most, by default one for each compute unit.
    """

    name = "wgmma_attention"
    kernel = "wgmma_attention"
    backward = False
    keeps = True

    def __init__(self, tile: Tile | None = None, groups: int | None = None):
        self.tile = tile
        self.most = groups

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        return (
            takes(problem) and super().applies(problem, info)
            and probe.available(info, SELF_TEST, attention16.part(problem))
        )  # fmt: skip

    def block(self, p: AttentionProblem, info: DeviceInfo) -> Tile:
        if self.tile:
            return self.tile
        fitting = [tile for tile in TILES if tile.holds(p)]
        return min(fitting, key=lambda tile: tile.clocks(p, info))

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        rates = machine.of(info)
        clocks = self.block(problem, info).clocks(problem, info)
        return max(rates.clocks(clocks), rates.moving(problem.nbytes)) + rates.launch

    def plan(self, problem: AttentionProblem, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        p, tile = problem, self.block(problem, info)
        blocks, planes = tile.blocks(p), p.batch * p.heads
        tiles = len(blocks) * planes
        groups = min(tiles, self.most or info.compute_units)
        keys = p.source * (p.width + p.depth) * p.q.dtype.itemsize
        band = min(planes, max(1, CACHED // keys)) if p.causal else 1
        params = Params().add(
            "int", T=p.length, S=p.source, HEAD_COUNT=p.heads, REPEAT=p.heads // p.groups,
            TILES=tiles, BLOCKS=len(blocks), PLANES=planes, BAND=band, SLICE=2 * max(blocks),
            K_HEADS=int(not repeated(p.k, 2, p.groups)),
            K_BATCH=int(not repeated(p.k, 0, p.batch)),
            V_HEADS=int(not repeated(p.v, 2, p.groups)),
            V_BATCH=int(not repeated(p.v, 0, p.batch)),
            HALVES=2 * kept_words(p.source),
        ).add(
            p.index, kOff=p.k.offset, vOff=p.v.offset, qOff=p.q.offset, q0=p.q.strides[0],
            q1=p.q.strides[1], q2=p.q.strides[2],
        )  # fmt: skip
        args = (
            Ref("a"), Ref("b"), Ref("c"), Ref("ws0"),
            Scalar("ulong8", _words(p.k, p.width, p, tile)),
            Scalar("ulong8", _words(p.v, p.depth, p, tile)),
            *extra_refs(p, "d"), Ref("stat"), *([Ref("kept")] if p.kept else []), *params.args,
            Scalar("float", p.scale * LOG2_E),
            *extra_scalars(p), *epilogue.args,
        )  # fmt: skip
        source = self.text(p, tile, params, epilogue)
        launch = Launch(
            source, self.kernel, args, (groups * tile.threads,), (tile.threads,),
            (f"--rewrite={REWRITE}",),
        )  # fmt: skip
        return Plan([launch], [128 * (2 * groups + 1)])

    def text(self, p: AttentionProblem, tile: Tile, params: Params, epilogue: Epilogue) -> str:
        """The kernel's source."""
        kind = KINDS[p.q.dtype.name]
        names = dict(
            FORWARD=1, NWG=tile.consumers, BC=tile.bc, STAGES=tile.stages, THREADS=tile.threads,
            MANY_REGISTERS=1, LARGE=1, TURNS=int(tile.turns), KEEPS=int(p.kept),
        )  # fmt: skip
        return (
            attention_tiled.head(p, epilogue, "", **names)
            + f'#define ELEMENT_NAME "{attention16.NAMES[p.q.dtype]}"\n'
            + register_instruction(tile.bc, kind, False, "_S")
            + register_instruction(round_up(p.depth, 16), kind, True, "_O")
            + params.source
            + cl_source("hopper/wgmma_common.cl")
            + cl_source("units/mma16_units.cl")
            + "#define SHUFFLE_XOR(to, from, bits) SHUFFLE(to, from, bits)\n"
            + cl_source("units/attention_quads.cl")
            + cl_source("units/attention_bits.cl")
            + cl_source("hopper/wgmma_attention.cl")
        )


SOLVERS = (HopperAttention(),)
