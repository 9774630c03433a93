"""Computes filter gradients with wgmma_register_blocked16.cl: a self-test for that alone.

`python -m kerascl.kernels.hopper.selftests.register_blocked16 <index>` exits 0 and prints OK, or
fails in whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import FILTER_GRAD
from kerascl.kernels.hopper import register_blocked
from kerascl.kernels.hopper.selftests.basics import check, convolution, run
from kerascl.runtime import device, selftest_child


def filter_gradients(dev: device.Device) -> None:
    """Filter gradients of every box, sizes that no box or tile divides, several tiles and slices.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    cases = ((9, 13, 11, 72, 136, 3, 1, 1, 1), (3, 20, 17, 64, 64, 5, 1, 0, 1))
    for dtype in (dtypes.bfloat16, dtypes.float16):
        for number, box in enumerate(register_blocked.BOXES16):
            problem, inputs, want = convolution(rng, FILTER_GRAD, cases[number % 2], dtype)
            got = np.empty(want.shape, np.float32)
            solver = register_blocked.RegisterBlockedFilterGradient16(box, 1 + number)
            plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
            run(plan, inputs, got, dev)
            check(f"a filter gradient of {dtype.name} ({box.name})", got, want, 2e-5)


if __name__ == "__main__":
    selftest_child.main(filter_gradients)
