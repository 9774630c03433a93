"""Products whose epilogues run beside the next tile's products: see wgmma.cl.

Where all warpgroups of a work-group share its tile, the matrix units wait for what the epilogue
computes, reads and stores.  Here two teams take tiles in turn: one multiplies while the other is at
its epilogue (CUTLASS calls such kernels "pingpong").  A tile is then of one warpgroup, whose
128 x 128 sums take 128 registers; a producer warpgroup gives it enough for the epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.ptx import Kind
from kerascl.kernels.hopper.tiles import STORE_CLOCKS, TILE_CLOCKS, Shape, products_time
from kerascl.kernels.tuning import machine

SELF_TEST = "wgmma_pingpong"  # and the file that says how they take turns

SHAPES = (Shape(128, 2, 2, 7, 1, 0.94, 0.94, pingpong=2),)


@dataclass(frozen=True)
class PingpongRun(Run):
    """A launch of wgmma.cl whose consumers take turns; without slices of the depth or moments."""

    turns: ClassVar[str] = SELF_TEST

    @property
    def wide(self) -> bool:
        return True

    @property
    def registers(self) -> int:
        return 232  # as wgmma_common.cl's TAKE_REGISTERS says


def time(
    shape: Shape, kind: Kind, tiles: int, depth: int, info, store: float, more: float
) -> float:
    """Microseconds for `tiles` tiles; arguments as those of `tiles_time`.

    A team multiplies when the other has, and when it has stored its last tile.
    """
    rates = machine.of(info)
    rounds = ceil_div(tiles, info.compute_units)
    products = products_time(shape, kind, depth, 1, info)
    # Rates of epilogues are those of all warpgroups of a compute unit, of which a team is a part.
    each = shape.pingpong * (store + more * STORE_CLOCKS)
    alone = products + rates.clocks(shape.bm * shape.bn * each)
    before, own = divmod(rounds - 1, shape.pingpong)
    last = before * max(alone, shape.pingpong * products) + own * products
    return rates.clocks(TILE_CLOCKS) + last + alone
