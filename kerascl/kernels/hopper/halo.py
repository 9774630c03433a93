"""Convolutions of stride one whose taps share their pixels, see `ptx` and `conv`.

wgmma reads both operands from shared memory, which TMA fills; with few columns that takes longer
than the products.  Here one box of pixels with a halo is loaded for all taps: a tap is a shift of
wgmma's descriptor.  Weights of few filters of few channels stay in shared memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import ClassVar

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Workspace
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.conv.problem import FORWARD, ConvProblem, conv_index, geometry
from kerascl.kernels.hopper import conv as hopper_conv
from kerascl.kernels.hopper.conv import grid, low_parts, sides, weights
from kerascl.kernels.hopper.kernel import Args, Run
from kerascl.kernels.hopper.pack import pack_time
from kerascl.kernels.hopper.ptx import KINDS
from kerascl.kernels.hopper.solver import MomentsSolver
from kerascl.kernels.hopper.tiles import SHARED_LIMIT, Shape, tiles_time
from kerascl.kernels.hopper.tma import depth_of, map_words
from kerascl.kernels.selftests import part
from kerascl.kernels.tuning import machine

ACROSS = 8  # pixels of a line of a tile: the rows of a group of a matrix in shared memory
MOST_TAPS = 7  # a side
LOADED = 55.6  # bytes a clock that a compute unit can load at best


@dataclass(frozen=True)
class HaloTile(Shape):
    """One tile of wgmma_halo.cl.

    Attributes:
        stages: boxes of pixels in their ring, or as many as there is room for.
        weights: tiles of weights in theirs; 0 where all of them stay.
    """

    weights: int = 0

    @property
    def name(self) -> str:
        """The shape, with stages of weights."""
        return f"{self.bm}x{self.bn}x{self.stages}w{self.weights}{self.turns}"

    def boxes(self, p: ConvProblem) -> int:
        """Stages of the ring of boxes; 0 where local memory has no room for two, or for so many
        that teams which take turns can tell their uses apart (see wgmma_halo.cl)."""
        tile = 128 * round_up(self.bn, 64)
        kept = self.weights or math.prod(p.w_shape[:2]) * _chunks(p)
        moments = 4 * self.consumers * (8 * self.bn + 4) + 4
        barriers = 16 * (self.stages + max(self.weights, 1))
        room = SHARED_LIMIT // self.groups - kept * tile - moments - barriers
        boxes = min(self.stages, room // round_up(_box(p, self).rows * 128, 1024))
        told_apart = self.pingpong == 1 or _chunks(p) < 2 * boxes
        return boxes if boxes >= 2 and told_apart else 0


# Clocks for 32 bytes of k of all rows, at 128 bytes a clock of shared memory, of 128 channels or,
# with 64 columns, of 64:
#
#   rows x columns   arithmetic   wgmma reads   TMA writes: pixels, weights
#   256 x 128               256           192                     10       32
#   128 x 128               128            96                      5       32
#   256 x 64                128           128                     10       16 or none
#   128 x 64                 64            64                      5       16 or none
#
# The speeds are measured (H200, 3x3, 28 to 224 pixels a side, 64 to 256 channels), the warm card's.
SHAPES = (
    HaloTile(128, 2, 2, 2, 1, 1.06, 1.12, weights=6),
    HaloTile(128, 1, 2, 2, 2, 1.05, 1.08, weights=3),
    HaloTile(64, 2, 2, 3, 1, 1.0, 1.07, weights=8),
    HaloTile(64, 1, 2, 2, 2, 0.97, 0.98, weights=6),
    HaloTile(64, 4, 2, 3, 1, 1.06, 1.0, pingpong=2),
    HaloTile(64, 2, 2, 6, 1, 1.06, 1.12, pingpong=2),
)


@dataclass(frozen=True)
class HaloBox:
    """Pixels that a tile covers: images x height x ACROSS.

    Attributes:
        tiles: boxes that cover all images.
        rows: of shared memory, with the halo.
    """

    tiles: int
    images: int
    height: int
    rows: int


@functools.lru_cache(maxsize=4096)
def box(images: int, height: int, width: int, rows: int, taps: tuple[int, int]) -> HaloBox:
    """The box of `rows` pixels that covers with the fewest tiles; of equals the smallest."""
    lines = rows // ACROSS
    found = []
    for h in range(ACROSS, lines + 1, ACROSS):  # a block of 64 rows is of one image
        n = lines // h
        tiles = ceil_div(width, ACROSS) * ceil_div(height, h) * ceil_div(images, n)
        found.append(HaloBox(tiles, n, h, n * (h + taps[0] - 1) * (ACROSS + taps[1] - 1)))
    return min(found, key=lambda b: (b.tiles, b.rows))


@dataclass(frozen=True)
class HaloRun(Run):
    """A launch of wgmma_halo.cl."""

    kernel: ClassVar[str] = "wgmma_halo"
    shape: HaloTile
    depth: int = 0  # tiles of b that one column of tiles reads

    @property
    def wide(self) -> bool:
        return self.shape.blocks * self.shape.bn > 128

    @property
    def resident(self) -> int:
        return 0 if self.shape.weights else self.depth

    @property
    def operands(self) -> Args:
        return Ref(self.a), Ref(self.b)


class HaloConv(MomentsSolver):
    """Forward and data gradient of two-dimensional convolutions of stride one, channels last."""

    prefix = self_test = "wgmma_halo"

    def part(self, problem: ConvProblem) -> str:
        return part.named(problem.a, "high", problem.kind)

    def takes(self, p: ConvProblem) -> bool:
        return (
            hopper_conv.HopperConv().takes(p)
            and p.strides == (1, 1)
            and not low_parts(p)
            and math.prod(p.w_shape[:2]) > 1
            and max(p.w_shape[:2]) <= MOST_TAPS
            and self.splits in (None, 1)
            and bool(self._shapes(p))
        )

    def moments(self, p: ConvProblem) -> bool:
        return p.kind == FORWARD

    def _shapes(self, p: ConvProblem) -> list[HaloTile]:
        known = (self.tile,) if self.tile else SHAPES
        return [tile for tile in known if tile.boxes(p)]

    def best(self, p: ConvProblem, info) -> tuple[float, HaloTile, int]:
        out, rates = sides(p)[1], machine.of(info)
        kind, chunks = KINDS[p.a.name], _chunks(p)
        taps = math.prod(p.w_shape[:2])
        depth = taps * chunks * depth_of(p.a)
        packing = 0.0
        if hopper_conv.packs(p):
            packing = pack_time(math.prod(p.w_shape) * p.a.itemsize, info)
        choices = []
        for tile in self._shapes(p):
            tiles_n = ceil_div(out[-1], tile.bn)
            tiles, loading = _box(p, tile).tiles * tiles_n, 0.0
            if not tile.weights:
                loading = rates.clocks(128 * tile.bn * taps * chunks / LOADED)
                # Units that are left over when each has its column are idle.
                units = info.compute_units
                tiles = ceil_div(tiles * units, max(units // tiles_n, 1) * tiles_n)
            # Parties share a compute unit as groups do.
            shared = dataclasses.replace(tile, groups=tile.groups * tile.pingpong)
            time = tiles_time(shared, kind, tiles, depth, 1, info, more=self.more, reads=self.reads)
            choices.append((time + loading + packing, tile, 1))
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, _ = self.choice(p, info, epilogue)
        index, size, deep = conv_index(p), p.a.itemsize, depth_of(p.a)
        (batch, height, width, channels), out = sides(p)
        rows, taps = p.w_shape[:2]
        launches: list[Launch] = []
        workspace = Workspace()
        operand = weights(p, shape, index, workspace, launches)
        cover = _box(p, shape)
        pixel = channels * size
        a_words = map_words(
            p.a, (channels, width, height, batch), (pixel, width * pixel, height * width * pixel),
            (deep, ACROSS + taps - 1, cover.height + rows - 1, cover.images),
        )  # fmt: skip
        chunks = _chunks(p)
        tiles_n = ceil_div(out[-1], shape.bn)
        tiles = cover.tiles * tiles_n
        boxes, kept = shape.boxes(p), max(shape.weights, 1)
        run = HaloRun(
            shape, p.a, index, "a", operand.slot, a_words, operand.words, False, operand.transposed,
            columns=out[-1], depth=rows * taps * chunks,
            flags=(
                ("DATA_GRAD", int(p.kind != FORWARD)), ("B_TAPS_INNER", int(operand.taps_inner)),
                ("TAPS1", rows), ("TAPS2", taps), ("A_ROWS", cover.rows),
                ("BOXES", boxes), ("WEIGHTS", kept), ("STAGES", boxes + kept),
            ),
        )  # fmt: skip
        _, grid_h, grid_w = grid(p)
        params = geometry(p).add(
            "int", BATCH=batch, COUT=out[-1], TILES=tiles, TILES_M=cover.tiles,
            TILES_N=tiles_n, TILES_H=ceil_div(grid_h, cover.height),
            TILES_W=ceil_div(grid_w, ACROSS), CHUNKS=chunks, BOX_N=cover.images, BOX_H=cover.height,
            BOX_W=ACROSS, A_BOX_BYTES=cover.rows * 128,
        )  # fmt: skip
        launches += run.launches(tiles, 1, p.total, params, epilogue, workspace, info)
        return Plan(launches, workspace)


def _box(p: ConvProblem, tile: HaloTile) -> HaloBox:
    return box(*grid(p), tile.bm, p.w_shape[:2])


def _chunks(p: ConvProblem) -> int:
    """Boxes of each tile's channels."""
    return ceil_div(sides(p)[0][-1], depth_of(p.a))
