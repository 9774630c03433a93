"""Computes products and convolutions with mma_tile.cl on one device, in a process of its own.

`python -m kerascl.kernels.units.product_selftest <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD
from kerascl.kernels.hopper.selftests.basics import check, convolution, run
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.units import known
from kerascl.kernels.units.conv import FragmentConv
from kerascl.kernels.units.fragment import Unit
from kerascl.kernels.units.matmul import FragmentMatmul
from kerascl.kernels.units.tile import solvers
from kerascl.runtime import device, selftest_child

F32 = dtypes.float32


def _taken(dev: device.Device) -> list[tuple[Unit, DType]]:
    """The device's units with each dtype that they take."""
    return [(u, dtype) for u in known.UNITS if dev.info.matrix in u.matrix for dtype in u.fragments]


def _bound(unit: Unit, dtype: DType) -> float:
    """Of relative errors: operands lose up to 13 bits, or 8, or sums are of float32."""
    return 1e-3 if unit.fragments[dtype].dtype is F32 and not unit.exact else 2e-5


def products(dev: device.Device) -> None:
    """Products of each dtype and each tile, of operands in each order, with sizes no tile divides;
    one of float16 with subnormal numbers, which some instructions take for 0.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    m, n, k = 200, 136, 424
    orders = ((False, False), (True, True), (False, True))
    for unit, dtype in _taken(dev):
        bound = _bound(unit, dtype)
        for i, solver in enumerate(s for s in solvers(FragmentMatmul, None) if s.unit is unit):
            turn_a, turn_b = orders[i % len(orders)]
            scale = 2.0**-20 if dtype is dtypes.float16 and i == 0 else 1.0
            a = (rng.standard_normal((k, m) if turn_a else (m, k)) * scale).astype(dtype.numpy)
            b = rng.standard_normal((n, k) if turn_b else (k, n)).astype(dtype.numpy)
            problem = normalise_matmul(
                MatmulProblem(
                    m, n, k, (), (1, m) if turn_a else (k, 1), (1, k) if turn_b else (n, 1),
                    dtype, dtype, F32, precision="high",
                )
            )  # fmt: skip
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            want = (wide_a.T if turn_a else wide_a) @ (wide_b.T if turn_b else wide_b)
            got = np.empty((m, n), np.float32)
            run(solver.plan(problem, dev.info, store_epilogue(F32)), {"a": a, "b": b}, got, dev)
            check(f"a product of {dtype.name} by {solver.name}", got, want, bound)


def convolutions(dev: device.Device) -> None:
    """A convolution and its gradients, with sizes no tile divides.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    for unit, dtype in _taken(dev):
        solver = [s for s in solvers(FragmentConv, None) if s.unit is unit][-1]
        for kind in (FORWARD, DATA_GRAD, FILTER_GRAD):
            problem, inputs, want = convolution(rng, kind, (3, 13, 13, 40, 24, 3, 1, 1, 1), dtype)
            got = np.empty(want.shape, np.float32)
            run(solver.plan(problem, dev.info, store_epilogue(F32)), inputs, got, dev)
            check(f"{kind} of {dtype.name} by {solver.name}", got, want, _bound(unit, dtype))


if __name__ == "__main__":
    selftest_child.main(products, convolutions)
