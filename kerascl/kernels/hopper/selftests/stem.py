"""Computes convolutions of few channels with stem.py's solvers: a self-test for them.

`python -m kerascl.kernels.hopper.selftests.stem <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD
from kerascl.kernels.hopper import stem
from kerascl.kernels.hopper.selftests.basics import check, convolution, run
from kerascl.runtime import device, selftest_child

CASES = (
    (3, 13, 13, 3, 64, 3, 1, 1, 1), (2, 31, 37, 3, 64, 7, 2, 3, 1), (2, 43, 51, 5, 72, 11, 4, 0, 1),
)  # fmt: skip


def stems(dev: device.Device) -> None:
    """Forward and filter gradient, sizes no tile divides.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    tries = [
        (FORWARD, dtypes.float32, "high", 1e-3), (FORWARD, dtypes.float32, "highest", 2e-6),
        (FORWARD, dtypes.bfloat16, "high", 2e-5), (FILTER_GRAD, dtypes.bfloat16, "high", 2e-5),
    ]  # fmt: skip
    for case in CASES:
        for kind, dtype, precision, bound in tries:
            problem, inputs, want = convolution(rng, kind, case, dtype, precision)
            got = np.empty(want.shape, np.float32)
            solver = stem.StemConv() if kind == FORWARD else stem.StemFilterGradient()
            plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
            run(plan, inputs, got, dev)
            check(f"{kind} of few channels ({dtype.name}, {precision})", got, want, bound)


if __name__ == "__main__":
    selftest_child.main(stems)
