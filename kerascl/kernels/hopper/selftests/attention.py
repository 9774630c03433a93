"""Attention with wgmma_attention.cl: a self-test for that alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl.kernels.hopper import attention
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.Case, with the number of a tile each, by a part's other words: whole and
# partial blocks, more tiles than work-groups, one and two panels of features, and dropout by words
# of 16 and of 32 bits.
CASES = {
    "64": ((7, 197, 197, 12, 64, 64, False, 1.0), 1),
    "64 causal": ((7, 197, 197, 12, 64, 64, True, 1.0), 0),
    "64 dropout": ((7, 197, 197, 12, 64, 64, False, 0.75), 1),
    "64 causal dropout": ((5, 150, 290, 12, 64, 40, True, 0.9), 2),
    "128": ((4, 300, 333, 12, 104, 128, False, 1.0), 0),
    "128 causal": ((4, 300, 333, 12, 128, 128, True, 1.0), 0),
    "128 dropout": ((4, 300, 333, 12, 128, 128, False, 0.75), 1),
    "128 causal dropout": ((5, 150, 290, 12, 40, 128, True, 0.9), 2),
}
PARTS = tuple(f"{dtype.name} {case}" for dtype in attention16_selftest.BOUNDS for case in CASES)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case, and what its gradients need of it: the statistic, and what dropout keeps."""
    dtype, _, words = part.parsed(of)
    case, number = CASES[" ".join(words)]
    solvers = attention.HopperAttention(attention.TILES[number]), None
    cases = [(case, dtype, attention16_selftest.BOUNDS[dtype], solvers)]
    return attention_selftest.attentions(info, cases, kept=(False, True))
