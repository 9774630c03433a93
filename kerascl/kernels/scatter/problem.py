"""What scattering kernels solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class ScatterProblem:
    """c (rows, width) with the updates b (count, width) applied to the rows that a (count,) names.

    Rows outside 0 … rows - 1 (negative ones too) are dropped.

    Attributes:
        index_dtype: integer dtype of a.
        dtype: of b and c; results reach the epilogue in its accumulator.
        mode: "add", "mul", "max", "min" (NaN propagates in both), or "set"
            (the last update wins).  Updates of a row are joined in increasing
            position (long stretches in blocks, in that order): the same bits
            every time.  bool adds as "or" and multiplies as "and".
        base: whether there is a c; else it is 0 everywhere.
    """

    rows: int
    width: int
    count: int
    index_dtype: DType
    dtype: DType
    mode: str = "add"
    base: bool = True


@dataclass(frozen=True)
class CountsProblem:
    """How often each of 0 … size - 1 is among the integers a (count,) -> int32 (size,); or, with
    edges b (size + 1,), how many of the values a lie in each bin between neighbours of b.

    What is outside is dropped, NaN too.  A bin holds its left edge, the last one both.

    Attributes:
        dtype: of a, and of b: integers or, with edges, floats.
        edges: "" for none, else "even" where the edges are about equally far apart, or "any"; they
            rise.
    """

    size: int
    count: int
    dtype: DType
    edges: str = ""
