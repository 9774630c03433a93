"""What kernels of linear systems solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class SolveProblem:
    """x with a @ x = b: a (count, n, n), b (count, n, columns) -> (count, n, columns), of `dtype`,
    which is float32 or float64.  A singular matrix gives infinities or NaN."""

    count: int
    n: int
    columns: int
    dtype: DType


def real(problem: SolveProblem, info: DeviceInfo) -> bool:
    """Whether the dtype is one that kernels take and the device has."""
    name = problem.dtype.name
    return name == "float32" or (name == "float64" and info.fp64)
