"""Matrix units that a sub-group drives, as data: an instruction, and which lane holds what."""

from __future__ import annotations

from dataclasses import dataclass

from kerascl.dtypes import DType


@dataclass(frozen=True)
class Layout:
    """Which elements of a matrix each lane of a sub-group holds.

    Lanes come in groups of `size`; lane `size * g + t` holds, as its i-th element, the one at
    g * `group` + t * `thread` + `elements[i]`, each a (row, column).
    """

    size: int
    group: tuple[int, int]
    thread: tuple[int, int]
    elements: tuple[tuple[int, int], ...]

    def place(self, lane: int, i: int) -> tuple[int, int]:
        """The row and column of a lane's i-th element."""
        g, t = divmod(lane, self.size)
        steps = zip(self.group, self.thread, self.elements[i], strict=True)
        row, column = (g * of_group + t * of_thread + own for of_group, of_thread, own in steps)
        return row, column


@dataclass(frozen=True)
class Fragment:
    """One instruction: d (m x n, float32) += a (m x k) b (k x n).

    Attributes:
        dtype: of a and b.
        lanes: of the sub-group.
        a, b, d: who holds what.
        macro: OpenCL C that defines MMA(d, a, b) over a lane's elements, those of a and b in
            words of 32 bits.
    """

    dtype: DType
    m: int
    n: int
    k: int
    lanes: int
    a: Layout
    b: Layout
    d: Layout
    macro: str
