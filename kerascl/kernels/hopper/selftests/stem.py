"""Convolutions of few channels with stem.py's solvers: a self-test for them."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD
from kerascl.kernels.hopper import stem
from kerascl.kernels.hopper.selftests.convolutions import convolution
from kerascl.kernels.selftests.trial import Trial
from kerascl.runtime.device import DeviceInfo

CASES = (  # as convolutions.CASE
    (3, 13, 13, 3, 64, 3, 1, 1, 1), (2, 31, 37, 3, 64, 7, 2, 3, 1), (2, 43, 51, 5, 72, 11, 4, 0, 1),
)  # fmt: skip
KINDS = (
    (FORWARD, dtypes.float32, "high", 1e-3), (FORWARD, dtypes.float32, "highest", 2e-6),
    (FORWARD, dtypes.bfloat16, "high", 2e-5), (FILTER_GRAD, dtypes.bfloat16, "high", 2e-5),
)  # fmt: skip


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Forward and filter gradient, sizes no tile divides."""
    for case in CASES:
        for kind, dtype, precision, bound in KINDS:
            solver = stem.StemConv() if kind == FORWARD else stem.StemFilterGradient()
            what = f"{kind} of few channels ({dtype.name}, {precision})"
            yield convolution(info, solver, kind, case, dtype, what, bound, precision)
