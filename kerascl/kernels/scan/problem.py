"""What kernels of cumulative operations, of searches and of places solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl import dtypes
from kerascl.dtypes import DType


@dataclass(frozen=True)
class ScanProblem:
    """A cumulative operation along the middle axis: a (outer, length, inner) -> the same shape.

    Attributes:
        kind: "sum", "prod", "max", "min" (NaN propagates in both) or
            "logsumexp" (float dtypes).
        dtype: of a.
        acc: what partial results are kept in; values reach the epilogue in its
            compute type.
        reverse: scan from the last element to the first.
        exclusive: leave out each position's own element; the first is the
            identity (the lowest value for "max", the highest for "min").
    """

    outer: int
    length: int
    inner: int
    kind: str
    dtype: DType
    acc: DType
    reverse: bool = False
    exclusive: bool = False

    @property
    def elements(self) -> int:
        """Elements of the result."""
        return self.outer * self.length * self.inner


@dataclass(frozen=True)
class SearchProblem:
    """Insertion points: a (rows, sorted_length), each row ascending, b (rows, count) -> `acc`
    (rows, count).  `side` is "left" or "right"; NaN counts as the largest value, as in NumPy."""

    sorted_length: int
    count: int
    dtype: DType
    side: str = "left"
    rows: int = 1
    acc: DType = dtypes.int32

    @property
    def elements(self) -> int:
        """Elements of the result."""
        return self.rows * self.count


@dataclass(frozen=True)
class PlacesProblem:
    """Counts a (rows, length) that never fall along a row, from 0 or more on -> `acc` (rows, size):
    for each k the first place whose count is over k, `length` where none is."""

    length: int
    size: int
    dtype: DType
    rows: int = 1
    acc: DType = dtypes.int32

    @property
    def elements(self) -> int:
        """Elements of the result."""
        return self.rows * self.size
