"""Attention with 16-bit tiles of attention_mma.cl: a self-test for that alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16, attention_selftest
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.CASES, with a dtype each: between them they have whole and partial blocks,
# causal masks, dropout, and features that are no multiple of 16.
CASES = (
    ((2, 150, 190, 2, 64, 64, False, 0.75), dtypes.bfloat16),
    ((1, 140, 170, 2, 128, 104, True, 1.0), dtypes.float16),
)
BOUNDS = {dtypes.bfloat16: 1e-2, dtypes.float16: 2e-3}


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Each case with the first tile of each table that OpenCL's local memory has room for."""
    kinds = attention16.Attention16, attention16.Attention16Gradient
    return attention_selftest.attentions(info, [
        (case, dtype, BOUNDS[dtype], tuple(kind(room=attention16.PLAIN) for kind in kinds))
        for case, dtype in CASES
    ])  # fmt: skip
