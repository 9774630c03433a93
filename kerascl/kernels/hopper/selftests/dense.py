"""Products with the sums of their right operand's columns: a self-test for these."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper import transposed
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.selftests import several
from kerascl.kernels.hopper.tiles import SHAPES
from kerascl.kernels.matmul.problem import DenseGradProblem, normalise_matmul
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Arrays, Data, Trial, check
from kerascl.runtime.device import DeviceInfo

SIZES = 300, 392, 1000  # rows, columns and depth, which no tile divides
UNITS = 8  # so few that work-groups have several tiles, of both products of a launch
BOUNDS = {"bfloat16": 2e-5, "float16": 2e-5, "float32": 1e-3}
SUMS = {"bfloat16": 4e-3, "float16": 1e-3, "float32": 1e-6}  # bounds, of sums in their dtype
TURNED = transposed.SHAPES[1], transposed.SHAPES[2]
# Of a part the solvers: of one product in a launch, and of two.
KINDS = {
    "bfloat16": (HopperMatmul(SHAPES[1], 1), HopperMatmul(SHAPES[2], 2)),
    "float16": (HopperMatmul(SHAPES[1], 1), HopperMatmul(SHAPES[2], 2)),
    "float32 transposed": tuple(
        transposed.TransposedMatmul(tile, n) for n, tile in enumerate(TURNED, 1)
    ),
}
PARTS = tuple(KINDS)


def problem(m: int, n: int, k: int, dtype: DType) -> DenseGradProblem:
    """A product of a layer's inputs (k, m), transposed, with its gradient (k, n)."""
    found = normalise_matmul(
        DenseGradProblem(m, n, k, (), (1, m), (n, 1), dtype, dtype, dtypes.float32,
                         precision="high")
    )  # fmt: skip
    assert isinstance(found, DenseGradProblem)
    return found


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """One such product, and two in a launch, in slices of the depth."""
    p, store = problem(*SIZES, part.parsed(of)[0]), store_epilogue(dtypes.float32)
    info = dataclasses.replace(info, compute_units=UNITS)
    for count, solver in enumerate(KINDS[of], 1):
        plan = solver.plan(p, info, store)
        if count > 1:
            plan = several.together(plan, count)
        what = f"the gradients of a dense layer ({count}, {solver.name}, {of})"
        yield Trial(plan, functools.partial(_data, what, p, count))


def _data(what: str, p: DenseGradProblem, count: int) -> Data:
    rng = np.random.default_rng()
    inputs: Arrays = {}
    outs: Arrays = {}
    wants: dict[str, tuple[np.ndarray, float]] = {}
    for nth in ("", *map(str, range(1, count))):
        x = rng.standard_normal((p.k, p.m), np.float32).astype(p.a.numpy)
        slope = (rng.standard_normal((p.k, p.n), np.float32) + 0.5).astype(p.b.numpy)
        exact = slope.astype(np.float64)
        inputs |= {f"a{nth}": x, f"b{nth}": slope}
        outs[f"out{nth}"] = np.empty((p.m, p.n), np.float32)
        outs[f"sums{nth}"] = np.empty(p.n, p.b.numpy)
        wants[f"out{nth}"] = x.astype(np.float64).T @ exact, BOUNDS[p.a.name]
        wants[f"sums{nth}"] = exact.sum(0), SUMS[p.a.name]

    def verdict() -> None:
        for name, (want, bound) in wants.items():
            check(what, outs[name].astype(np.float32), want, bound)

    return Data(inputs, outs, verdict)
