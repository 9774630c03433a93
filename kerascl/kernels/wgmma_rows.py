"""Convolutions of stride one whose rows of taps share their pixels, see `wgmma` and `wgmma_conv`.

wgmma reads both operands from shared memory, which TMA fills; with few columns that takes longer
than the products.  Here one box of pixels with a margin is loaded for all taps of a row and its
fragments go through registers, from wherever a tap's pixels lie.
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

# Their speeds are counted: products' clocks over those that shared memory is busy.
SHAPES = (
    Shape(128, 1, 2, 3, 1, 0.95, 0.92),
    Shape(64, 2, 2, 3, 1, 0.88, 0.82),
    Shape(64, 1, 2, 4, 1, 0.81, 0.74),
)


def box_rows(shape: Shape) -> int:
    """Pixels that a stage has room for."""
    return MARGIN * shape.bm // 16


def fits(shape: Shape, taps: int) -> bool:
    """Whether the ring of a shape fits into local memory, with room for moments."""
    stage = 128 * (box_rows(shape) + taps * round_up(shape.bn, 64)) + 16
    side = 4 * shape.teams * (8 * shape.bn + 4) + 4
    return shape.stages * stage + side <= SHARED_LIMIT


@functools.lru_cache(maxsize=4096)
def box(
    images: int, height: int, width: int, rows: int, limit: int, margin: int
) -> tuple[int, int, int, int]:
    """(tiles, images, height, width): the box of at most `rows` pixels, `limit` with so many more
    in each line, that covers with the fewest tiles; of equals the widest."""
    best = (math.inf, 0, 0, 0)
    for w in range(min(width, rows), 0, -1):
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
            and any(fits(shape, p.w_shape[1]) for shape in self._shapes)
        )

    def moments(self, p: ConvProblem) -> bool:
        return p.kind == FORWARD

    @property
    def _shapes(self) -> tuple[Shape, ...]:
        return (self.tile,) if self.tile else SHAPES

    def best(self, p: ConvProblem, info) -> tuple[float, Shape, int]:
        gathered, out = sides(p)
        deep, kind = wgmma.depth_of(p.a), KINDS[p.a.name]
        rows, taps = p.w_shape[:2]
        chunks = ceil_div(gathered[-1], deep)
        packing = pack_time(math.prod(p.w_shape) * p.a.itemsize) if wgmma_conv.packs(p) else 0.0
        choices = []
        for shape in self._shapes:
            if not fits(shape, taps):
                continue
            tiles = _box(p, shape)[0] * ceil_div(out[-1], shape.bn)
            for splits in wgmma.slice_counts(self.splits, p.total, rows * chunks):
                depth = ceil_div(rows * chunks, splits) * taps * deep
                time = wgmma.tiles_time(shape, kind, tiles * splits, depth, 1, info)
                choices.append((time + wgmma.fold_time(p.total, splits) + packing, shape, splits))
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
        chunks = ceil_div(channels, deep)
        slice_ = ceil_div(rows * chunks, splits)
        splits = ceil_div(rows * chunks, slice_)
        tiles_n = ceil_div(out[-1], shape.bn)
        tiles = tiles_m * tiles_n * splits
        run = Run(
            shape, p.a, index, "a", operand.slot, a_words, operand.words, False, operand.turned,
            columns=out[-1],
            flags=(
                ("DATA_GRAD", int(p.kind != FORWARD)), ("B_TAPS_INNER", int(operand.taps_inner)),
                ("TAPS", taps), ("A_ROWS", box_rows(shape)),
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


def _box(p: ConvProblem, shape: Shape) -> tuple[int, int, int, int]:
    return box(*grid(p), shape.bm, box_rows(shape), p.w_shape[1] - 1)
