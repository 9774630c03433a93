"""Gradients with wgmma_attention_gradient.cl: a self-test for them alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.Case, with the numbers of tiles of both tables, by a part's other words:
# whole and partial blocks, more tiles than work-groups, own rows in registers and in local memory,
# one and two panels of features, and dropout.
CASES = {
    "64": ((7, 197, 197, 12, 64, 64, False, 1.0), (0, 0)),
    "64 causal": ((7, 197, 197, 12, 64, 64, True, 1.0), (1, 0)),
    "64 dropout": ((7, 197, 197, 12, 64, 64, False, 0.75), (0, 0)),
    "64 causal dropout": ((5, 150, 290, 12, 64, 40, True, 0.9), (2, 0)),
    "128": ((4, 300, 333, 12, 104, 128, False, 1.0), (4, 1)),
    "128 causal": ((4, 300, 333, 12, 128, 128, True, 1.0), (4, 1)),
    "128 dropout": ((4, 300, 333, 12, 128, 128, False, 0.75), (5, 2)),
    "128 causal dropout": ((5, 150, 290, 12, 40, 128, True, 0.9), (5, 2)),
}
PARTS = tuple(f"{dtype.name} {case}" for dtype in attention16_selftest.BOUNDS for case in CASES)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case, from a statistic that the host computed, and what dropout keeps drawn and read."""
    dtype, _, words = part.parsed(of)
    case, (n, m) = CASES[" ".join(words)]
    solver = gradient.HopperAttentionGradient(gradient.QUERIES[n][1], gradient.KEYS[m][1])
    cases = [(case, dtype, attention16_selftest.BOUNDS[dtype], (None, solver))]
    return attention_selftest.attentions(info, cases, kept=(False, True))
