"""What sorting kernels solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class SortProblem:
    """The first `k` of each sorted row: a (rows, length) -> (rows, k), stable.

    Attributes:
        dtype: any but complex ones.  NaN is the largest value: last when
            ascending, first when descending.
        descending: largest first; equal values still keep the lower index first.
        outputs: which of "values" (through the epilogue) and "indices" (int32,
            written to the slot "indices") are wanted.
        k: valid outputs of a row; None is all.
    """

    rows: int
    length: int
    dtype: DType
    descending: bool = False
    outputs: tuple[str, ...] = ("values",)
    k: int | None = None

    @property
    def keep(self) -> int:
        """Outputs of a row."""
        return self.length if self.k is None else min(self.k, self.length)
