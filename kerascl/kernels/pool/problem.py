"""What pooling kernels solve."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class PoolProblem:
    """A pooling of x, or one of its derivatives.

    Attributes:
        kind: what is computed, from which slots:
            "max": a = x -> y.  NaN propagates; padding never wins; a window
            without elements gives the lowest value of the dtype.
            "max_grad": a = x, b = y, c = dy -> dx; a window's gradient goes
            to its first maximal element in row-major order.
            "max_select": a = x, b = y, c = gx (shaped as x) -> the element of
            gx at each window's first maximum (shaped as y).
            "average": a = x -> y.  "average_grad": a = dy -> dx.  Float dtypes.
        x_shape: (N, *spatial, C), whatever the memory order is.
        y_shape: (N, *pooled, C).
        window, strides: one number for each spatial dimension.
        pads: (low, high) for each spatial dimension.
        channels_first: memory order of every array is (N, C, *spatial).
        dtype: of every input.
        count_include_pad: averages divide by the whole window, not by its
            elements that lie inside x.
    """

    kind: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    channels_first: bool
    dtype: DType
    count_include_pad: bool = False

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Logical shape (N, *spatial, C) of what the epilogue stores."""
        return self.x_shape if self.kind in ("max_grad", "average_grad") else self.y_shape
