"""Products and convolutions with mma_tile.cl: the self-test of both."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD
from kerascl.kernels.hopper.selftests.convolutions import CASE, convolution
from kerascl.kernels.hopper.selftests.products import K, M, N, matmul, product
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.kernels.units import known
from kerascl.kernels.units.conv import FragmentConv
from kerascl.kernels.units.fragment import Unit
from kerascl.kernels.units.matmul import FragmentMatmul
from kerascl.kernels.units.tile import solvers
from kerascl.runtime.device import DeviceInfo

F32 = dtypes.float32
ORDERS = ((False, False), (True, True), (False, True))  # whether operands are transposed


def _taken(info: DeviceInfo) -> list[tuple[Unit, DType]]:
    """The device's units with each dtype that they take."""
    return [(u, dtype) for u in known.UNITS if info.matrix in u.matrix for dtype in u.fragments]


def _bound(unit: Unit, dtype: DType) -> float:
    """Of relative errors: operands lose up to 13 bits, or 8, or sums are of float32."""
    return 1e-3 if unit.fragments[dtype].dtype is F32 and not unit.exact else 2e-5


KINDS = PRODUCT, *_CONVOLUTIONS = "product", FORWARD, DATA_GRAD, FILTER_GRAD
PARTS = (
    *(f"{name} {kind}" for name in ("float32", "bfloat16", "float16") for kind in KINDS),
    f"int8 {PRODUCT}",
)  # fmt: skip
ROUND = 208, 144, 432  # sizes no tile divides, but copies of 16 bytes of int8 do


def parts(info: DeviceInfo) -> tuple[str, ...]:
    """Those that the device's units have kernels of."""
    taken = {dtype.name for _, dtype in _taken(info)}
    return tuple(of for of in PARTS if of.split()[0] in taken)


def _of_integers(
    info: DeviceInfo, solver: Solver, sizes: tuple[int, int, int], turn_a: bool,
    turn_b: bool,
) -> Trial:  # fmt: skip
    """A product of all values of int8 in int32, which must be exact."""
    (m, n, k), int8, int32 = sizes, dtypes.int8, dtypes.int32
    problem = dataclasses.replace(matmul(m, n, k, int8, turn_a, turn_b), acc=int32)

    def data() -> Data:
        rng = np.random.default_rng()
        a = rng.integers(-128, 128, (k, m) if turn_a else (m, k)).astype(np.int8)
        b = rng.integers(-128, 128, (n, k) if turn_b else (k, n)).astype(np.int8)
        wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
        want = (wide_a.T if turn_a else wide_a) @ (wide_b.T if turn_b else wide_b)
        got = np.empty((m, n), np.int32)
        what = f"a product of int8 by {solver.name}"
        return Data({"a": a, "b": b}, {"out": got}, lambda: check(what, got, want, 0.0))

    return Trial(solver.plan(problem, info, store_epilogue(int32)), data)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Products of a dtype by each tile, of operands in each order, with sizes no tile divides, one
    of float16 with subnormal numbers, which some instructions take for 0, those of int8 exact; or a
    convolution, or a gradient of one."""
    wanted, _, (kind,) = part.parsed(of)
    for unit, dtype in _taken(info):
        if dtype is not wanted:
            continue
        bound = _bound(unit, dtype)
        if kind != PRODUCT:
            solver = [s for s in solvers(FragmentConv, None) if s.unit is unit][-1]
            what = f"{kind} of {dtype.name} by {solver.name}"
            yield convolution(info, solver, kind, CASE, dtype, what, bound)
            continue
        for i, solver in enumerate(s for s in solvers(FragmentMatmul, None) if s.unit is unit):
            turn_a, turn_b = ORDERS[i % len(ORDERS)]
            if dtype.is_integer:
                yield _of_integers(info, solver, (M, N, K) if i == 0 else ROUND, turn_a, turn_b)
                continue
            scale = 2.0**-20 if dtype is dtypes.float16 and i == 0 else 1.0
            plan = solver.plan(matmul(M, N, K, dtype, turn_a, turn_b), info, store_epilogue(F32))
            what = f"a product of {dtype.name} by {solver.name}"
            given = what, M, N, K, dtype, turn_a, turn_b, bound, scale
            yield Trial(plan, functools.partial(product, *given))
