"""Computes convolutions of few channels with wgmma_stem.py's solvers: a `wgmma_selftest` for them.

`python -m kerascl.kernels.wgmma_stem_selftest <index>` exits 0 and prints OK, or fails in whatever
way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.kernels import wgmma_stem
from kerascl.kernels.conv_problem import FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.solver import store_epilogue
from kerascl.kernels.wgmma_selftest import check, run
from kerascl.runtime import device, selftest_child

CASES = (  # images, height, width, channels, filters, taps a side, stride, padding
    (3, 13, 13, 3, 64, 3, 1, 1), (2, 31, 37, 3, 64, 7, 2, 3), (2, 43, 51, 5, 72, 11, 4, 0),
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
    for images, height, width, c, f, taps, stride, pad in CASES:
        out_h, out_w = ((n + 2 * pad - taps) // stride + 1 for n in (height, width))
        shapes = (images, height, width, c), (taps, taps, c, f), (images, out_h, out_w, f)
        values = [rng.standard_normal(shape) for shape in shapes]
        for kind, dtype, precision, bound in tries:
            x, w, dy = (v.astype(dtype.numpy) for v in values)
            problem = ConvProblem(
                kind, *shapes, (stride, stride), ((pad, pad), (pad, pad)), (1, 1), 1, False,
                dtype, dtype, dtypes.float32, precision,
            )  # fmt: skip
            padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
            want = np.zeros(problem.out_shape)
            for i in range(taps):
                for j in range(taps):
                    taken = padded[:, i::stride, j::stride][:, :out_h, :out_w]
                    if kind == FORWARD:
                        want += taken @ w[i, j].astype(np.float64)
                    else:
                        axes = ((0, 1, 2), (0, 1, 2))
                        want[i, j] = np.tensordot(taken, dy.astype(np.float64), axes)
            got = np.empty(want.shape, np.float32)
            solver = wgmma_stem.Forward() if kind == FORWARD else wgmma_stem.FilterGrad()
            plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
            run(plan, {"a": x, "b": w if kind == FORWARD else dy}, got, dev)
            check(f"{kind} of few channels ({dtype.name}, {precision})", got, want, bound)


if __name__ == "__main__":
    selftest_child.main(stems)
