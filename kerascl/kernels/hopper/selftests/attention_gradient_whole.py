"""Gradients where a work-group meets all keys of a head: a self-test for them alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl.kernels.hopper.attention_gradient_whole import WholeAttentionGradient
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.Case, by a part's other words: one tile of keys and two, whole and partial
# ones, and several heads a work-group.
CASES = {
    "64": (7, 197, 197, 12, 64, 64, False, 1.0),
    "64 causal": (5, 150, 250, 12, 64, 40, True, 1.0),
    "64 dropout": (7, 197, 197, 12, 64, 64, False, 0.75),
    "64 causal dropout": (5, 300, 128, 12, 24, 64, True, 0.9),
}
GROUPS = 20
PARTS = tuple(f"{dtype.name} {case}" for dtype in attention16_selftest.BOUNDS for case in CASES)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case, from a statistic that the host computed, and what dropout keeps drawn and read."""
    dtype, _, words = part.parsed(of)
    solvers = None, WholeAttentionGradient(groups=GROUPS)
    bound = attention16_selftest.BOUNDS[dtype]
    cases = [(CASES[" ".join(words)], dtype, bound, solvers)]
    return attention_selftest.attentions(info, cases, kept=(False, True))
