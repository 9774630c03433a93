"""What times of one problem say of another one near it: how wrong costs are there."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kerascl.dtypes import DType
from kerascl.kernels.contract.solver import Solver
from kerascl.runtime.device import DeviceInfo

# Problems are near where no extent of one is so many times as large.  Numbers up to SMALL say how
# something is computed (taps, steps, padding, a stride of one) and must be the same.
NEAR = 4.0
SMALL = 16
MOST = 4.0  # times by which a cost is corrected at most


@dataclass(frozen=True)
class Correction:
    """How wrong costs are near a problem.

    Attributes:
        ratios: measured by predicted time of each solver that was measured.
        weight: how much they say: 1 for that problem itself, 0 where an extent is NEAR times as
            large.
    """

    ratios: dict[str, float]
    weight: float

    def of(self, name: str) -> float:
        """The factor for a solver's cost: what its own cost was wrong by or, where it was not
        measured, what the others' were."""
        ratio = self.ratios.get(name) or statistics.median(self.ratios.values())
        return float(min(max(ratio, 1 / MOST), MOST) ** self.weight)


def correction(
    problem: Any, timed: Iterable[tuple[Any, dict[str, float]]], solvers: Iterable[Solver],
    info: DeviceInfo,
) -> Correction | None:  # fmt: skip
    """What the nearest of the `timed` problems (each with the microseconds of some solvers) says;
    None where none is near."""
    best, least = None, math.log2(NEAR)
    for other, times in timed:
        far = distance(problem, other)
        if far < least:
            best, least = (other, times), far
    if best is None:
        return None
    other, times = best
    ratios = {}
    for solver in solvers:
        if solver.name in times and solver.applies(other, info):
            cost = solver.cost(other, info)
            if 0 < cost < math.inf:
                ratios[solver.name] = times[solver.name] / cost
    return Correction(ratios, 1 - least / math.log2(NEAR)) if ratios else None


def distance(problem: Any, other: Any) -> float:
    """By how many doublings the extents of two problems of a class differ at most; infinity where
    they differ in more than extents."""
    far = 0.0
    for mine, its in zip(_flat(problem), _flat(other)):
        if mine == its:
            continue
        if not (isinstance(mine, int) and isinstance(its, int)) or min(mine, its) <= SMALL:
            return math.inf
        far = max(far, abs(math.log2(mine / its)))
    return far


def _flat(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, DType):
        value = tuple(getattr(value, f.name) for f in dataclasses.fields(value))
    if isinstance(value, tuple):
        yield len(value)
        for one in value:
            yield from _flat(one)
    else:
        yield value
