"""A convolution and its gradients with wgmma.cl and wgmma_register_blocked.cl: their self-test."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.hopper.conv import HopperConv
from kerascl.kernels.hopper.filter_gradient import FilterGradient
from kerascl.kernels.hopper.register_blocked import RegisterBlockedFilterGradient
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

# Images, height, width, channels, filters, taps a side, stride, padding, dilation: no box divides
# it.
CASE = (3, 13, 13, 40, 24, 3, 1, 1, 1)


PARTS = tuple(
    f"{name} {kind}"
    for name in ("float32", "float32 highest", "bfloat16", "float16")
    for kind in (FORWARD, DATA_GRAD, FILTER_GRAD)
    if (name, kind) != ("float32 highest", FILTER_GRAD)  # other solvers'
)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A convolution, or a gradient of one, in a dtype."""
    dtype, precision, (kind,) = part.parsed(of)
    solver: Solver = HopperConv()
    if kind == FILTER_GRAD:
        wide = dtype is dtypes.float32
        solver = RegisterBlockedFilterGradient() if wide else FilterGradient()
    bound = 2e-6 if precision == "highest" else 1e-3
    yield convolution(info, solver, kind, CASE, dtype, f"{of} convolution", bound, precision)


def convolution(
    info: DeviceInfo, solver, kind: str, case: tuple[int, ...], dtype: DType, what: str,
    bound: float, precision: str = "high",
) -> Trial:  # fmt: skip
    """A convolution, or a gradient of one, by a solver.

    Args:
        case: as CASE.
        what: it is, for the error.
    """
    plan = solver.plan(problem(kind, case, dtype, precision), info, store_epilogue(dtypes.float32))
    return Trial(plan, functools.partial(_data, kind, case, dtype, what, bound))


def problem(kind: str, case: tuple[int, ...], dtype: DType, precision: str = "high") -> ConvProblem:
    """The problem of a case."""
    stride, pad, dilation = case[-3:]
    return ConvProblem(
        kind, *_shapes(case), (stride, stride), ((pad, pad), (pad, pad)), (dilation, dilation), 1,
        False, dtype, dtype, dtypes.float32, precision,
    )  # fmt: skip


def _shapes(case: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of images, filters and results."""
    images, height, width, c, f, taps, stride, pad, dilation = case
    reach = (taps - 1) * dilation
    out_h, out_w = ((n + 2 * pad - reach - 1) // stride + 1 for n in (height, width))
    return (images, height, width, c), (taps, taps, c, f), (images, out_h, out_w, f)


def _data(kind: str, case: tuple[int, ...], dtype: DType, what: str, bound: float) -> Data:
    inputs, want = values(kind, case, dtype)
    got = np.empty(want.shape, np.float32)
    return Data(inputs, {"out": got}, lambda: check(what, got, want, bound))


def values(
    kind: str, case: tuple[int, ...], dtype: DType
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random inputs, and what they give in float64."""
    rng = np.random.default_rng()
    _, height, width, _, _, taps, stride, pad, dilation = case
    shapes = _shapes(case)
    _, out_h, out_w, _ = shapes[2]
    x, w, dy = (rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes)
    margins = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    wide_x, wide_w, wide_dy = (a.astype(np.float64) for a in (x, w, dy))
    padded, back = np.pad(wide_x, margins), np.pad(np.zeros(x.shape), margins)
    want = np.zeros(shapes[1] if kind == FILTER_GRAD else shapes[2])
    for i in range(taps):
        for j in range(taps):
            rows = slice(i * dilation, i * dilation + (out_h - 1) * stride + 1, stride)
            columns = slice(j * dilation, j * dilation + (out_w - 1) * stride + 1, stride)
            taken = padded[:, rows, columns]
            if kind == FORWARD:
                want += taken @ wide_w[i, j]
            elif kind == DATA_GRAD:
                back[:, rows, columns] += wide_dy @ wide_w[i, j].T
            else:
                want[i, j] = np.tensordot(taken, wide_dy, ((0, 1, 2), (0, 1, 2)))
    if kind == DATA_GRAD:
        want = back[:, pad : pad + height, pad : pad + width]
    inputs = {FORWARD: (x, w), DATA_GRAD: (dy, w), FILTER_GRAD: (x, dy)}[kind]
    return dict(zip("ab", inputs, strict=True)), want
