"""Computes attention with 16-bit tiles of attention_mma.cl of more local memory than OpenCL gives.

`python -m kerascl.kernels.units.attention16_large_selftest <index>` exits 0 and prints OK, or fails
in whatever way the driver fails.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.units import attention16, attention16_selftest, attention_selftest
from kerascl.kernels.units.attention16 import Table
from kerascl.runtime import device, selftest_child

# As attention_selftest.CASES; of features of which a table has large tiles.
CASES = ((1, 300, 333, 2, 128, 128, True, 1.0), (2, 150, 190, 1, 64, 64, False, 0.75))
DTYPE = dtypes.bfloat16


def _first(table: Table, p: AttentionProblem, keys: bool) -> Table:
    rows = attention16.rows_of(table, max(p.width, p.depth))
    return next(((row,) for row in rows if row[1].large(p, keys)), rows[:1])


def cases(dev: device.Device) -> None:
    """Each case with the first large tile of each table, or the first of all where none is.

    Raises:
        DeviceError: of any step, or something is wrong.
    """
    kinds = attention16.Attention16, attention16.Attention16Gradient
    trials = []
    for case in CASES:
        solvers = tuple(
            kind(tuple(_first(t, p, k > 0) for k, t in enumerate(kind.tables)), attention16.LARGE)
            for kind, p in zip(kinds, attention_selftest.problems(case, DTYPE), strict=True)
        )
        trials.append((case, DTYPE, attention16_selftest.BOUNDS[DTYPE], solvers))
    attention_selftest.attentions(dev, trials)


if __name__ == "__main__":
    selftest_child.main(cases)
