"""Computes attention with 16-bit tiles of attention_mma.cl on one device, in a process of its own.

`python -m kerascl.kernels.units.attention16_selftest <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.kernels.units import attention16, attention_selftest
from kerascl.runtime import device, selftest_child

# As attention_selftest.CASES, with a dtype each: between them they have whole and partial blocks,
# causal masks, dropout, and features that are no multiple of 16.
CASES = (
    ((2, 150, 190, 2, 64, 64, False, 0.75), dtypes.bfloat16),
    ((1, 140, 170, 2, 128, 104, True, 1.0), dtypes.float16),
)
BOUNDS = {dtypes.bfloat16: 1e-2, dtypes.float16: 2e-3}


def cases(dev: device.Device) -> None:
    """Each case with the first tile of each table that OpenCL's local memory has room for.

    Raises:
        DeviceError: of any step, or something is wrong.
    """
    kinds = attention16.Attention16, attention16.Attention16Gradient
    attention_selftest.attentions(dev, [
        (case, dtype, BOUNDS[dtype], tuple(kind(room=attention16.PLAIN) for kind in kinds))
        for case, dtype in CASES
    ])  # fmt: skip


if __name__ == "__main__":
    selftest_child.main(cases)
