"""Gradients whose gradients of logits go through memory: a self-test for them alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl.kernels.hopper import attention_gradient_stored as stored
from kerascl.kernels.hopper.attention_gradient import KEYS, rows_of
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.Case, with the number of the keys' tile, by a part's other words: whole and
# partial blocks, some heads after the others, one and two panels of features, and dropout.
CASES = {
    "128": ((3, 300, 333, 12, 104, 128, False, 1.0), 0),
    "128 causal": ((3, 300, 333, 12, 128, 128, True, 1.0), 0),
    "128 dropout": ((3, 300, 333, 12, 128, 128, False, 0.75), 1),
    "128 causal dropout": ((3, 150, 290, 12, 72, 128, True, 0.9), 1),
}
HEADS = 14  # at a time
PARTS = tuple(f"{dtype.name} {case}" for dtype in attention16_selftest.BOUNDS for case in CASES)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case with both tiles of queries, from a statistic that the host computed."""
    dtype, _, words = part.parsed(of)
    case, n = CASES[" ".join(words)]
    keys, bound = rows_of(KEYS, 128)[n], attention16_selftest.BOUNDS[dtype]
    cases = [
        (case, dtype, bound, (None, stored.StoredAttentionGradient(keys, queries, heads=HEADS)))
        for queries in stored.QUERIES
    ]
    return attention_selftest.attentions(info, cases, kept=(True,))
