"""Attention with wgmma_attention.cl: a self-test for that alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.hopper import attention
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.CASES, with the number of a tile and a dtype each: between them they have
# whole and partial blocks, more tiles than work-groups, one and two panels of features, and dropout
# by words of 16 and of 32 bits.
CASES = (
    ((4, 300, 333, 12, 128, 128, True, 1.0), 0, dtypes.bfloat16),
    ((14, 197, 197, 12, 64, 64, False, 0.75), 1, dtypes.bfloat16),
    ((2, 150, 290, 2, 40, 128, True, 0.9), 2, dtypes.float16),
    ((3, 63, 65, 4, 8, 8, False, 1.0), 3, dtypes.bfloat16),
)


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Each case, and the statistic that its gradients need: they are attention16's."""
    return attention_selftest.attentions(info, [
        (case, dtype, attention16_selftest.BOUNDS[dtype],
         (attention.HopperAttention(attention.TILES[number]), None))
        for case, number, dtype in CASES
    ])  # fmt: skip
