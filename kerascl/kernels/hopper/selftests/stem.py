"""Convolutions of few channels with stem.py's solvers: a self-test for them."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD
from kerascl.kernels.hopper import stem
from kerascl.kernels.hopper.selftests.convolutions import convolution
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.runtime.device import DeviceInfo

CASES = (  # as convolutions.CASE
    (3, 13, 13, 3, 64, 3, 1, 1, 1), (2, 31, 37, 3, 64, 7, 2, 3, 1), (2, 43, 51, 5, 72, 11, 4, 0, 1),
)  # fmt: skip
BOUNDS = {
    f"float32 {FORWARD}": 1e-3, f"float32 highest {FORWARD}": 2e-6,
    **{f"{name} {kind}": 2e-5 for name in ("bfloat16", "float16")
       for kind in (FORWARD, FILTER_GRAD)},
}  # fmt: skip
PARTS = tuple(BOUNDS)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Forward or filter gradient, sizes no tile divides."""
    dtype, precision, (kind,) = part.parsed(of)
    for case in CASES:
        solver = stem.StemConv() if kind == FORWARD else stem.StemFilterGradient()
        what = f"{kind} of few channels ({dtype.name}, {precision})"
        yield convolution(info, solver, kind, case, dtype, what, BOUNDS[of], precision)
