"""Gradients with wgmma_attention_gradient.cl: a self-test for them alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.CASES, with the numbers of tiles of both tables and a dtype each: between
# them they have whole and partial blocks, more tiles than work-groups, own rows in registers and in
# local memory, one and two panels of features, and dropout.
CASES = (
    ((14, 197, 197, 12, 64, 64, False, 0.75), (0, 0), dtypes.bfloat16),
    ((4, 300, 333, 12, 128, 128, True, 1.0), (4, 1), dtypes.float16),
)


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Each case, from a statistic that the host computed."""
    return attention_selftest.attentions(info, [
        (case, dtype, attention16_selftest.BOUNDS[dtype],
         (None, gradient.HopperAttentionGradient(gradient.QUERIES[n][1], gradient.KEYS[m][1])))
        for case, (n, m), dtype in CASES
    ])  # fmt: skip
