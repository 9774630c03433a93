"""What kernels of Fourier transforms solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class FftProblem:
    """Transforms along the middle axis of (outer, length, inner):
    y_k = scale * sum over j of x_j exp(sign 2 pi i j k / length).

    Slot "a" holds exp(-2 pi i j / length) in pairs of `acc`: for all j, or on two levels for j up
    to `fine` and for the multiples of `fine`.  Inputs follow: "b" and "c" (real and imaginary
    parts), "b" alone where all imaginary parts are 0, or "b" with complex values.

    Attributes:
        sign: 1 or -1.
        dtype: of real and imaginary parts.
        acc: what sums are kept in: float32 or float64.
        given: "pair", "real" or "complex".
        wanted: which of the slots "re" and "im" are stored, or ("complex",), which goes through the
            epilogue.
        fine: entries of a level of the table.
        levels: 1 or 2.
    """

    outer: int
    length: int
    inner: int
    sign: int
    dtype: DType
    acc: DType
    fine: int
    given: str = "pair"
    wanted: tuple[str, ...] = ("re", "im")
    scale: float = 1.0
    levels: int = 1

    @property
    def elements(self) -> int:
        """Elements of a result."""
        return self.outer * self.length * self.inner
