"""Filter gradients with wgmma_register_blocked16.cl: a self-test for that alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.conv.problem import FILTER_GRAD
from kerascl.kernels.hopper import register_blocked
from kerascl.kernels.hopper.selftests.convolutions import convolution
from kerascl.kernels.selftests.trial import Trial
from kerascl.runtime.device import DeviceInfo

CASES = ((9, 13, 11, 72, 136, 3, 1, 1, 1), (3, 20, 17, 64, 64, 5, 1, 0, 1))  # as convolutions.CASE


PARTS = ("bfloat16", "float16")


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Filter gradients of every box, sizes that no box divides, several tiles and slices."""
    dtype = dtypes.as_dtype(of)
    for number, box in enumerate(register_blocked.BOXES16):
        solver = register_blocked.RegisterBlockedFilterGradient16(box, 1 + number)
        what = f"a filter gradient of {dtype.name} ({box.name})"
        yield convolution(info, solver, FILTER_GRAD, CASES[number % 2], dtype, what, 2e-5)
