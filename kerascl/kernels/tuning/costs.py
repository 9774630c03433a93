"""The unit of solvers' costs."""

from __future__ import annotations

COST_PER_MICROSECOND = 1.8e5  # of an H200, in the unit of Tile.time
LAUNCH = 6.5  # microseconds that one more launch takes


def fixed_time(microseconds: float, info) -> float:
    """What takes so long on any GPU, in the unit of Tile.time: one product of one compute unit,
    about 5.5 ps on an H200.  Compute units without matrix units are slower."""
    return microseconds * (COST_PER_MICROSECOND if info.matrix else 6.15e3)
