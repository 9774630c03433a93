"""Computes filter gradients with wgmma_planes.py's solver: a `wgmma_selftest` for that alone.

`python -m kerascl.kernels.wgmma_planes_selftest <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.kernels import wgmma, wgmma_planes
from kerascl.kernels.conv_problem import FILTER_GRAD, ConvProblem
from kerascl.kernels.solver import store_epilogue
from kerascl.kernels.wgmma_selftest import check, run
from kerascl.runtime import device, selftest_child


def planes(dev: device.Device) -> None:
    """Filter gradients with strides and dilations, sizes no tile divides, every tile of "highest".

    Batches of many sizes: TMA faults where a shift by pixels is no multiple of 16 bytes.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    cases = (  # images, height, width, channels, filters, taps a side, stride, padding, dilation
        (3, 13, 13, 64, 64, 3, 1, 1, 1), (5, 15, 12, 96, 40, 3, 2, 1, 1),
        (2, 11, 9, 70, 36, 3, 1, 2, 2), (1, 14, 17, 20, 133, 2, 3, 0, 1),
        (32, 7, 7, 48, 72, 3, 1, 1, 1),
    )  # fmt: skip
    many = (1, 8, 8, 256, 320, 3, 1, 1, 1)  # more tiles than there are work-groups
    tries = [(case, precision, None, None) for case in cases for precision in ("high", "highest")]
    tries += [(cases[0], "highest", tile, 2) for tile in wgmma.PROMOTED]
    tries += [(many, "highest", tile, 3) for tile in wgmma.PROMOTED[:2]]
    for case, precision, tile, splits in tries:
        images, height, width, c, f, taps, stride, pad, dilation = case
        reach = (taps - 1) * dilation
        out_h, out_w = ((n + 2 * pad - reach - 1) // stride + 1 for n in (height, width))
        x = rng.standard_normal((images, height, width, c)).astype(np.float32)
        dy = rng.standard_normal((images, out_h, out_w, f)).astype(np.float32)
        problem = ConvProblem(
            FILTER_GRAD, x.shape, (taps, taps, c, f), dy.shape, (stride, stride),
            ((pad, pad), (pad, pad)), (dilation, dilation), 1, False, dtypes.float32,
            dtypes.float32, dtypes.float32, precision,
        )  # fmt: skip
        padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        want = np.empty(problem.w_shape)
        for i in range(taps):
            for j in range(taps):
                taken = padded[:, i * dilation :: stride, j * dilation :: stride][:, :out_h, :out_w]
                axes = ((0, 1, 2), (0, 1, 2))
                want[i, j] = np.tensordot(taken, dy.astype(np.float64), axes)
        got = np.empty(want.shape, np.float32)
        solver = wgmma_planes.Wgmma(tile, splits)
        plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
        run(plan, {"a": x, "b": dy}, got, dev)
        name = f"a filter gradient ({precision}{', ' + tile.name if tile else ''})"
        check(name, got, want, 2e-6 if precision == "highest" else 1e-3)


if __name__ == "__main__":
    selftest_child.main(planes)
