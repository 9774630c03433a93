"""Computes attention with attention_mma16.cl on one device, in a process of its own.

`python -m kerascl.kernels.units.attention16_selftest <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

from kerascl import dtypes
from kerascl.kernels.units import attention16, attention_selftest
from kerascl.runtime import device, selftest_child

# As attention_selftest.CASES: with these every tile of the tables serves once.
CASES = (
    (2, 75, 70, 2, 24, 40, False, 1.0), (1, 300, 300, 3, 64, 64, True, 1.0),
    (2, 150, 190, 2, 64, 64, False, 0.75), (1, 140, 170, 2, 128, 128, True, 1.0),
    (2, 130, 90, 1, 128, 96, False, 0.75),
)  # fmt: skip
BOUNDS = {dtypes.bfloat16: 1e-2, dtypes.float16: 2e-3}


def cases(dev: device.Device) -> None:
    """Each case in each dtype, with every tile that the device has room for.

    Raises:
        DeviceError: of any step, or something is wrong.
    """
    kinds = attention16.Attention16, attention16.Attention16Gradient
    for case in CASES:
        features = max(case[4:6])
        tables = [attention16.rows_of(table, features) for kind in kinds for table in kind.tables]
        for k in range(max(map(len, tables))):
            one = [(table[min(k, len(table) - 1)],) for table in tables]
            solvers = kinds[0](tuple(one[:1])), kinds[1](tuple(one[1:]))
            for dtype, bound in BOUNDS.items():
                attention_selftest.attention(dev, case, dtype, bound, solvers)


if __name__ == "__main__":
    selftest_child.main(cases)
