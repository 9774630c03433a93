"""Convolutions of stride one whose rows of taps share their pixels, see `wgmma` and `wgmma_conv`.

wgmma reads both operands from shared memory, which TMA fills; with few columns that takes longer
than the products.  Here one box of pixels with a margin is loaded for all taps of a row and its
fragments go through registers, from wherever a tap's pixels lie.  Weights of few filters of few
channels stay in shared memory.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

from kerascl.kernels import wgmma, wgmma_conv
from kerascl.kernels.conv_problem import FORWARD, ConvProblem, conv_index, geometry
from kerascl.kernels.solver import Epilogue, Launch, Plan, Ref
from kerascl.kernels.tiles import ceil_div, round_up
from kerascl.kernels.wgmma import KINDS, SHARED_LIMIT, Shape
from kerascl.kernels.wgmma_conv import grid, low_parts, sides, weights
from kerascl.kernels.wgmma_pack import pack_time

MARGIN = 21  # of 16: rows of a box, with its margin, for each 16 rows of a tile
TAPS = (2, 3)  # taps of a row

MOST_PIXELS = 256  # of a line of a box of TMA
LOAD_RATE = 1.1e5  # bytes a microsecond that a compute unit can load: 64 a clock


@dataclass(frozen=True)
class Tile(Shape):
    """One tile of wgmma_rows.cl; `resident` as its weights stay in shared memory."""

    resident: bool = False

    @property
    def name(self) -> str:
        return super().name + ("w" if self.resident else "")

    @property
    def box_rows(self) -> int:
        """Pixels that a stage has room for."""
        return MARGIN * self.bm // 16

    def fits(self, p: ConvProblem) -> bool:
        """Whether ring, weights and columns' moments fit into local memory."""
        taps = p.w_shape[1]
        weights = 128 * round_up(self.bn, 64)
        kept = p.w_shape[0] * taps * _chunks(p) if self.resident else 0
        stage = 128 * self.box_rows + (0 if self.resident else taps * weights) + 16
        side = 4 * self.teams * (8 * self.bn + 4) + 4
        return self.stages * stage + kept * weights + side <= SHARED_LIMIT


# Their speeds are counted.  Clocks for three taps, at 128 bytes a clock of shared memory:
#
#   rows x columns   arithmetic   fragments   wgmma reads   TMA writes   of them weights
#   256 x 128              3072         768          1536          720               384
#   128 x 128              1536         384           768          552               384
#   256 x 64               1536         768           768          528               192
#   128 x 64                768         384           384          360               192
#
# The rates of wgmma.KINDS are 0.82 and 0.85 of what the clock allows.
SHAPES = (
    Tile(128, 2, 2, 2, 1, 0.97, 0.94),
    Tile(128, 1, 2, 3, 1, 0.95, 0.92),
    Tile(64, 2, 2, 3, 1, 0.88, 0.82),
    Tile(64, 1, 2, 4, 1, 0.81, 0.74),
    Tile(128, 1, 2, 3, 1, 0.97, 0.94, True),
    Tile(64, 1, 2, 6, 1, 0.95, 0.86, True),
    Tile(64, 1, 2, 3, 1, 0.92, 0.83, True),
)


@functools.lru_cache(maxsize=4096)
def box(
    images: int, height: int, width: int, rows: int, limit: int, margin: int
) -> tuple[int, int, int, int]:
    """(tiles, images, height, width): the box of at most `rows` pixels, `limit` with so many more
    in each line, that covers with the fewest tiles; of equals the widest."""
    best = (math.inf, 0, 0, 0)
    for w in range(min(width, rows, MOST_PIXELS - margin), 0, -1):
        lines = min(rows // w, limit // (w + margin))
        for h in range(min(height, lines), 0, -1):
            n = min(images, lines // h)
            tiles = ceil_div(width, w) * ceil_div(height, h) * ceil_div(images, n)
            if tiles < best[0]:
                best = (tiles, n, h, w)
    return best


@dataclass(frozen=True)
class Run(wgmma.Run):
    """A launch of wgmma_rows.cl."""

    kernel: ClassVar[str] = "wgmma_rows"
    depth: int = 0  # tiles of b that one column of tiles reads

    @property
    def wide(self) -> bool:
        return self.shape.blocks * self.shape.bn > 128

    @property
    def resident(self) -> int:
        return self.depth if self.shape.resident else 0

    @property
    def operands(self) -> wgmma.Args:
        return Ref(self.a), Ref(self.b)

    @property
    def instruction(self) -> str:
        return wgmma.register_instruction(self.shape.bn, KINDS[self.dtype.name], self.b_mn)


class Wgmma(wgmma.MomentsSolver):
    """Forward and data gradient of two-dimensional convolutions of stride one, channels last."""

    family = verdict = "wgmma_rows"

    def takes(self, p: ConvProblem) -> bool:
        return (
            wgmma_conv.Wgmma().takes(p)
            and p.strides == (1, 1)
            and not low_parts(p)
            and p.w_shape[1] in TAPS
            and bool(self._shapes(p))
        )

    def moments(self, p: ConvProblem) -> bool:
        return p.kind == FORWARD

    def _shapes(self, p: ConvProblem) -> list[Tile]:
        split = self.splits not in (None, 1)
        known = (self.tile,) if self.tile else SHAPES
        return [tile for tile in known if tile.fits(p) and not (split and tile.resident)]

    def best(self, p: ConvProblem, info) -> tuple[float, Tile, int]:
        out = sides(p)[1]
        deep, kind = wgmma.depth_of(p.a), KINDS[p.a.name]
        rows, taps = p.w_shape[:2]
        chunks = _chunks(p)
        packing = pack_time(math.prod(p.w_shape) * p.a.itemsize) if wgmma_conv.packs(p) else 0.0
        choices = []
        for tile in self._shapes(p):
            tiles_n = ceil_div(out[-1], tile.bn)
            tiles, loading, wanted = _box(p, tile)[0] * tiles_n, 0.0, self.splits
            if tile.resident:
                loading, wanted = 128 * tile.bn * rows * taps * chunks / LOAD_RATE, 1
                # Units that are left over when each has its column are idle.
                units = info.compute_units
                tiles = ceil_div(tiles * units, max(units // tiles_n, 1) * tiles_n)
            for splits in wgmma.slice_counts(wanted, p.total, rows * chunks):
                depth = ceil_div(rows * chunks, splits) * taps * deep
                time = wgmma.tiles_time(tile, kind, tiles * splits, depth, 1, info) + loading
                choices.append((time + wgmma.fold_time(p.total, splits) + packing, tile, splits))
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.choice(p, info, epilogue)
        index, size, deep = conv_index(p), p.a.itemsize, wgmma.depth_of(p.a)
        (batch, height, width, channels), out = sides(p)
        rows, taps = p.w_shape[:2]
        launches: list[Launch] = []
        workspace = wgmma.Workspace()
        operand = weights(p, shape, index, workspace, launches)
        tiles_m, bn_, bh, bw = _box(p, shape)
        pixel = channels * size
        a_words = wgmma.map_words(
            p.a, (channels, width, height, batch), (pixel, width * pixel, height * width * pixel),
            (deep, bw + taps - 1, bh, bn_),
        )  # fmt: skip
        chunks = _chunks(p)
        slice_ = ceil_div(rows * chunks, splits)
        splits = ceil_div(rows * chunks, slice_)
        tiles_n = ceil_div(out[-1], shape.bn)
        tiles = tiles_m * tiles_n * splits
        run = Run(
            shape, p.a, index, "a", operand.slot, a_words, operand.words, False, operand.turned,
            columns=out[-1], depth=rows * taps * chunks,
            flags=(
                ("DATA_GRAD", int(p.kind != FORWARD)), ("B_TAPS_INNER", int(operand.taps_inner)),
                ("TAPS", taps), ("A_ROWS", shape.box_rows),
            ),
        )  # fmt: skip
        _, grid_h, grid_w = grid(p)
        params = geometry(p).add(
            "int", BATCH=batch, COUT=out[-1], TILES=tiles, TILES_M=tiles_m, TILES_N=tiles_n,
            TILES_H=ceil_div(grid_h, bh), TILES_W=ceil_div(grid_w, bw), CHUNKS=chunks,
            SLICE=slice_, BOX_N=bn_, BOX_H=bh, BOX_W=bw,
            A_BOX_BYTES=bn_ * bh * (bw + taps - 1) * 128,
        )  # fmt: skip
        launches += run.launches(tiles, splits, p.total, params, epilogue, workspace, info)
        return Plan(launches, workspace)


def _box(p: ConvProblem, tile: Tile) -> tuple[int, int, int, int]:
    return box(*grid(p), tile.bm, tile.box_rows, p.w_shape[1] - 1)


def _chunks(p: ConvProblem) -> int:
    """Stages of each row's channels."""
    return ceil_div(sides(p)[0][-1], wgmma.depth_of(p.a))
