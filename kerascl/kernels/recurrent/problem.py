"""What a recurrence kernel solves."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.vectors import compute_bytes


@dataclass(frozen=True)
class Fetch:
    """A value that the cell reads at each step.

    Attributes:
        slot: the buffer.
        kind: "step": (steps, batch, blocks, units); "row": (steps, batch); "unit": (blocks, units).
        block, blocks: which of the blocks.
    """

    slot: str
    dtype: DType
    kind: str = "step"
    block: int = 0
    blocks: int = 1


@dataclass(frozen=True)
class Stored:
    """A value of the cell, by its C name, stored to (steps, batch, blocks, units) at each step."""

    slot: str
    dtype: DType
    value: str
    block: int = 0
    blocks: int = 1


@dataclass(frozen=True)
class RecurrentProblem:
    """For each step and each row: products = operand @ weights, then the cell.

    Attributes:
        fan_in, fan_out: weights, slot "a", are (fan_in * units, fan_out * units).
        initial, final: slots of the carried states (batch, units) before and after; None for a
            final state that nobody wants.
        state: their dtype.
        reverse: from the last step to the first.
        cell: C statements that read x[0] … (the fetches), P(0) … (the products) and c0 … (the
            carried states), and define the values named in the next three.
        carried: the new states.
        operand: what the next step multiplies, `fan_in` values; None: the first state, from the
            first step on.  Else the first step's operand is zero, and one more product after the
            last step is added to the first final state.
        stored: what goes to memory.
        helpers: C functions that `cell` calls.
    """

    steps: int
    batch: int
    units: int
    fan_in: int
    fan_out: int
    weights: DType
    acc: DType
    state: DType
    initial: tuple[str, ...]
    final: tuple[str | None, ...]
    fetches: tuple[Fetch, ...]
    reverse: bool
    cell: str
    carried: tuple[str, ...]
    operand: tuple[str, ...] | None
    stored: tuple[Stored, ...]
    helpers: str = ""

    @property
    def row_bytes(self) -> int:
        """Local memory for each row of the batch, with one partial product a block of depth."""
        blocks = self.fan_in + max(self.fan_in, self.fan_out) + len(self.initial)
        return blocks * self.units * compute_bytes(self.acc)
