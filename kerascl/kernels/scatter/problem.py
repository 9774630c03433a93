"""What scattering kernels solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class ScatterProblem:
    """a (rows, width) with the updates c (count, width) applied to the rows b (count,) names.

    Rows outside 0 … rows - 1 (negative ones too) are dropped.

    Attributes:
        index_dtype: integer dtype of b.
        dtype: of a and c; results reach the epilogue in its accumulator.
        mode: "add", "mul", "max", "min" (NaN propagates in both), or "set"
            (the last update wins).  Updates of a row are joined in increasing
            position (long stretches in blocks, in that order): the same bits
            every time.  bool adds as "or" and multiplies as "and".
    """

    rows: int
    width: int
    count: int
    index_dtype: DType
    dtype: DType
    mode: str = "add"
