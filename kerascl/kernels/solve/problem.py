"""What kernels of linear systems solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class SolveProblem:
    """x with a @ x = b: a (count, n, n), b (count, n, columns) -> (count, n, columns), of `dtype`,
    which is float32 or float64.  A singular matrix gives infinities or NaN."""

    count: int
    n: int
    columns: int
    dtype: DType
