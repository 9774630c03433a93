"""Attention with 16-bit tiles of attention_mma.cl of more local memory than OpenCL gives: a
self-test for these alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16, attention16_selftest, attention_selftest
from kerascl.kernels.units.attention16 import Table
from kerascl.runtime.device import DeviceInfo

# As those of attention16_selftest; of features of which a table has large tiles.
CASES = {
    "64": (2, 150, 190, 1, 64, 64, False, 1.0),
    "64 causal": (2, 150, 190, 1, 64, 64, True, 1.0),
    "64 dropout": (2, 150, 190, 1, 64, 64, False, 0.75),
    "64 causal dropout": (2, 150, 190, 1, 64, 64, True, 0.75),
    "128": (1, 300, 333, 2, 128, 128, False, 1.0),
    "128 causal": (1, 300, 333, 2, 128, 128, True, 1.0),
    "128 dropout": (1, 300, 333, 2, 128, 128, False, 0.75),
    "128 causal dropout": (1, 300, 333, 2, 128, 128, True, 0.75),
}
PARTS = attention16_selftest.PARTS


def _first(table: Table, p: AttentionProblem, keys: bool) -> Table:
    rows = attention16.rows_of(table, max(p.width, p.depth))
    rows = tuple(row for row in rows if row[1].drops or p.dropout is None)
    return next(((row,) for row in rows if row[1].large(p, keys)), rows[:1])


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case with the first large tile of each table, or the first of all where none is."""
    kinds = attention16.Attention16, attention16.Attention16Gradient
    dtype, _, (*words, way) = part.parsed(of)
    case = CASES[" ".join(words)]
    solvers = [
        kind(tuple(_first(t, p, k > 0) for k, t in enumerate(kind.tables)), attention16.LARGE)
        for kind, p in zip(kinds, attention_selftest.problems(case, dtype), strict=True)
    ]
    bound, one = attention16_selftest.BOUNDS[dtype], attention_selftest.one_way(way, solvers)
    cases = [(case, dtype, bound, one)]
    return attention_selftest.attentions(info, cases, kept=(False, True))
