"""Tiles of warpgroup matrix instructions, and how long they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kerascl.dtypes import float32
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.hopper.ptx import Kind
from kerascl.kernels.matmul.split_k import most_slices
from kerascl.kernels.tuning import machine

SHARED_LIMIT = 231_424  # bytes of the array: 227 KiB a work-group less what the driver reserves
PRODUCER = 32


@dataclass(frozen=True)
class Shape:
    """One tile of wgmma.cl.

    Attributes:
        bn: columns, a multiple of 16 up to 256.
        blocks: 64-row blocks of one consumer warpgroup.
        consumers: consumer warpgroups.
        stages: pairs of tiles in the ring.
        groups: work-groups that one compute unit is to hold.
        speed, speed_tf32: the share of the peak rate that a large problem of 16-bit floats and
            of float32 reaches.
        pingpong: teams of the `consumers` that take tiles alternately; 1: all share each tile.
    """

    bn: int
    blocks: int
    consumers: int
    stages: int
    groups: int
    speed: float
    speed_tf32: float
    pingpong: int = 1

    @property
    def bm(self) -> int:
        """Rows of a tile."""
        return 64 * self.blocks * self.consumers // self.pingpong

    @property
    def turns(self) -> str:
        """Of a name: how many teams take turns, where they do."""
        return f"p{self.pingpong}" if self.pingpong > 1 else ""

    @property
    def name(self) -> str:
        """Rows, columns and stages of the ring, and teams that take turns."""
        return f"{self.bm}x{self.bn}x{self.stages}{self.turns}"

    @property
    def threads(self) -> int:
        """Work-items: a warpgroup for each consumer, and the producer."""
        return 128 * self.consumers + PRODUCER

    @property
    def results(self) -> int:
        """Of a work-item, in registers."""
        return self.blocks * self.bn // 2

    @property
    def reading(self) -> Shape:
        """The tile for an epilogue that reads, whose registers may leave no room for two groups."""
        registers = self.results + 85
        if self.groups == 1 or registers * round_up(self.threads, 128) * self.groups <= 65536:
            return self
        speed, speed_tf32 = READING * self.speed, READING * self.speed_tf32
        return replace(self, groups=1, speed=speed, speed_tf32=speed_tf32)


SHAPES = (
    Shape(256, 1, 2, 4, 1, 1.0, 1.0),
    Shape(192, 1, 2, 5, 1, 0.99, 0.99),
    Shape(128, 2, 2, 4, 1, 0.98, 0.97),
    Shape(128, 1, 2, 3, 2, 0.83, 0.79),
    Shape(128, 1, 2, 6, 1, 0.95, 0.94),
    Shape(64, 2, 2, 4, 1, 0.74, 0.7),
    Shape(64, 1, 2, 4, 2, 0.62, 0.57),
    Shape(64, 1, 2, 8, 1, 0.7, 0.66),
    Shape(128, 1, 1, 4, 2, 0.71, 0.73),
    Shape(64, 1, 1, 6, 2, 0.55, 0.51),
    Shape(32, 1, 2, 4, 2, 0.32, 0.3),
)
# For 3xTF32: a stage holds both operands and their low parts, and sums in double registers leave
# room for 128 columns of 64 rows a warpgroup.
PROMOTED = (
    Shape(128, 1, 2, 3, 1, 1.07, 1.07),
    Shape(64, 1, 3, 3, 1, 0.97, 0.97),
    Shape(64, 1, 2, 2, 2, 0.78, 0.78),
    Shape(64, 1, 2, 4, 1, 0.78, 0.78),
    Shape(64, 1, 1, 3, 2, 0.71, 0.71),
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TILE_CLOCKS = 594  # to begin a tile
# The same of 3xTF32, whose ring has few stages of four operands each: products wait for it.
PROMOTED_CLOCKS = 3000
STORE_CLOCKS = 0.139  # to store one result of a tile
ONE_BY_ONE = 6.0  # times of that where results are stored one by one, as rows are not whole vectors
READ, MOMENTS = 3.0, 2.0  # times of that to read what a result is combined with, for moments
LIGHT, WORK = 8, 0.2  # an epilogue's work that is hidden, times of that for each further unit
READING = 0.75  # of a tile's speed where what an epilogue reads leaves registers for one group only
CROWDED = 1.5  # of such an epilogue's time is added where a work-item has 128 results, none at 64
PROMOTE_DEPTH = 256  # products between promotions, which bound the tensor cores' truncated sums


def moments_time(total: int, info) -> float:
    """Microseconds that moments of so many results take that are not computed beside them."""
    rates = machine.of(info)
    return rates.launch + max(rates.launch, rates.moving(4 * total))


def products_time(shape: Shape, kind: Kind, depth: int, passes: int, info) -> float:
    """Microseconds that a compute unit multiplies for one tile of so much k."""
    speed = shape.speed if kind.depth == 16 else shape.speed_tf32
    stages = ceil_div(depth, 4 * kind.depth)
    peak = machine.of(info).matrix_rate(kind.dtype) / info.compute_units
    rate = peak * kind.efficiency * speed
    return shape.bm * shape.bn * passes * stages * 4 * kind.depth / rate if rate else math.inf


def tiles_time(
    shape: Shape, kind: Kind, tiles: int, depth: int, passes: int, info,
    store: float = STORE_CLOCKS, more: float = 0.0, reads: bool = False,
) -> float:  # fmt: skip
    """Microseconds for `tiles` tiles of so much k each: rounds over the compute units.  The launch
    is left out.  A result takes `store` clocks to be stored, and `more` times STORE_CLOCKS for what
    else is done with it, for which an epilogue `reads`."""
    if reads:
        # The fewer registers are left, the fewer reads are under way; other groups hide none of it.
        shape = shape.reading
        crowded = 1 + CROWDED * (max(shape.results - 64, 0) / 64) ** 2
        more *= crowded * shape.groups
    rates = machine.of(info)
    whole, rest = divmod(tiles, info.compute_units * shape.groups)
    multiply = products_time(shape, kind, depth, passes, info)
    # Another work-group hides what the epilogue waits for, and that the ring is filled.
    each = store + more * STORE_CLOCKS / shape.groups
    one = multiply + rates.clocks(shape.bm * shape.bn * each)
    begin = rates.clocks(TILE_CLOCKS if passes == 1 else PROMOTED_CLOCKS)
    alone, all_ = begin + one, begin + shape.groups * one
    return whole * all_ + (0.0 if not rest else alone if rest <= info.compute_units else all_)


def slice_counts(wanted: int | None, total: int, chunks: int) -> tuple[int, ...]:
    """Numbers of slices to consider for a depth of so many stages: where none is `wanted`, those
    of at least four stages each."""
    most = max(1, min(most_slices(total, float32), chunks))
    if wanted is not None:
        return (min(wanted, most),)
    return tuple(s for s in SPLITS if s == 1 or (s <= most and 4 * s <= chunks))
