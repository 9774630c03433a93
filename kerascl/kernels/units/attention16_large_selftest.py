"""Attention with 16-bit tiles of attention_mma.cl of more local memory than OpenCL gives: a
self-test for these alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16, attention16_selftest, attention_selftest
from kerascl.kernels.units.attention16 import Table
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.CASES; of features of which a table has large tiles.
CASES = ((1, 300, 333, 2, 128, 128, True, 1.0), (2, 150, 190, 1, 64, 64, False, 0.75))
DTYPE = dtypes.bfloat16


def _first(table: Table, p: AttentionProblem, keys: bool) -> Table:
    rows = attention16.rows_of(table, max(p.width, p.depth))
    return next(((row,) for row in rows if row[1].large(p, keys)), rows[:1])


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Each case with the first large tile of each table, or the first of all where none is."""
    kinds = attention16.Attention16, attention16.Attention16Gradient
    cases = []
    for case in CASES:
        solvers = tuple(
            kind(tuple(_first(t, p, k > 0) for k, t in enumerate(kind.tables)), attention16.LARGE)
            for kind, p in zip(kinds, attention_selftest.problems(case, DTYPE), strict=True)
        )
        cases.append((case, DTYPE, attention16_selftest.BOUNDS[DTYPE], solvers))
    return attention_selftest.attentions(info, cases)
