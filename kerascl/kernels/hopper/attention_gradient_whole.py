"""Gradients of attention of 16-bit floats where a work-group meets all keys of a head.

One kernel, with the five products that there are: sums for queries have an order as one work-group
makes them all, block after block of queries and tile after tile of keys, so there are still no
atomics.  It needs as many heads as there are compute units, and lengths whose sums for queries fit
in local memory beside everything else, or keys of one tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.hopper import probe
from kerascl.kernels.hopper.attention import EXPONENTIALS, ROWS
from kerascl.kernels.hopper.attention_gradient import (
    BLOCK,
    OTHERS,
    START,
    HopperAttentionGradient,
    Tile,
    products_a_clock,
    takes,
)
from kerascl.kernels.hopper.tiles import SHARED_LIMIT
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import attention16
from kerascl.runtime.device import DeviceInfo

SELF_TEST = "wgmma_attention_whole"
FEATURES = 64  # of keys and of values, at most: one panel


@dataclass(frozen=True)
class WholeTile(Tile):
    """Two warpgroups of keys, blocks of as many queries as one matrix instruction has rows."""

    consumers: int = 2
    bc: int = ROWS
    stages: int = 3
    local: int = 2

    def handed(self, p: AttentionProblem) -> int:
        return 0

    def waiting(self, p: AttentionProblem) -> int:
        return ceil_div(p.length, self.bc) if p.source > self.br else 0

    def beside(self, p: AttentionProblem) -> int:
        waiting = self.waiting(p) * self.bc * round_up(p.width, 16) * 4
        return 2 * 128 * self.br + waiting

    def clocks(
        self, p: AttentionProblem, info: DeviceInfo, keys: bool, owners: int | None = None
    ) -> float:
        rate = products_a_clock(p, info)
        blocks = self.blocks(p, True)
        queries = self.consumers * ceil_div(p.width, 16) * ROWS * self.bc * 16 / rate
        multiply = self.multiplying(p, True, rate) + queries
        draws = attention16.DRAW if p.dropout and not p.kept else 0.0
        weigh = self.br * self.bc * max(1 / EXPONENTIALS, 1 / OTHERS + draws)
        rounds = ceil_div(owners or p.batch * p.groups, info.compute_units)
        return rounds * (START * len(blocks) + (BLOCK + multiply + weigh) * sum(blocks))


class WholeAttentionGradient(HopperAttentionGradient):
    """See the module.

    Args:
        tile: what a work-group takes, for tests and tuning.
        groups: work-groups at most, by default one for each compute unit.
    """

    name = "wgmma_attention_grad_whole"
    whole = True

    def __init__(self, tile: Tile = WholeTile(), groups: int | None = None):
        super().__init__(keys=tile, groups=groups)
        self.tile = tile

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        p = problem
        return (
            takes(p) and p.heads == p.groups and max(p.width, p.depth) <= FEATURES
            and self.tile.local_bytes(p, True) <= SHARED_LIMIT
            and probe.available(info, SELF_TEST, attention16.part(p))
        )  # fmt: skip

    def block(self, p: AttentionProblem, info: DeviceInfo) -> tuple[Tile, ...]:
        return (self.tile,)

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        p, rates = problem, machine.of(info)
        clocks = self.tile.clocks(p, info, True)
        return max(rates.clocks(clocks), rates.moving(p.nbytes)) + rates.launch

    def plan(self, problem: AttentionProblem, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        launch, nbytes = self._launch(problem, info, self.tile, 0, epilogue)
        return Plan([launch], [nbytes])


SOLVERS = (WholeAttentionGradient(),)
