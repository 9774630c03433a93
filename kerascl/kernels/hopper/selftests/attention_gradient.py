"""Computes gradients with wgmma_attention_gradient.cl on one device, in a process of its own.

`python -m kerascl.kernels.hopper.selftests.attention_gradient <index>` exits 0 and prints OK, or
fails in whatever way the driver fails.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.kernels.hopper import attention_gradient as gradient
from kerascl.kernels.units import attention16_selftest, attention_selftest
from kerascl.runtime import device, selftest_child

# As attention_selftest.CASES, with the numbers of tiles of both tables and a dtype each: between
# them they have whole and partial blocks, more tiles than work-groups, own rows in registers and in
# local memory, one and two panels of features, and dropout.
CASES = (
    ((14, 197, 197, 12, 64, 64, False, 0.75), (0, 3), dtypes.bfloat16),
    ((4, 300, 333, 12, 128, 128, True, 1.0), (7, 5), dtypes.float16),
)


def cases(dev: device.Device) -> None:
    """Each case, from a statistic that the host computed.

    Raises:
        DeviceError: of any step, or something is wrong.
    """
    attention_selftest.attentions(dev, [
        (case, dtype, attention16_selftest.BOUNDS[dtype],
         (None, gradient.HopperAttentionGradient(gradient.QUERIES[n][1], gradient.KEYS[m][1])))
        for case, (n, m), dtype in CASES
    ])  # fmt: skip


if __name__ == "__main__":
    selftest_child.main(cases)
