"""An operand of a product that is computed as it is read: how many neighbours at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kerascl.kernels.contract.computed import Computed, Reading, Term

_ROW, _DEPTH = "of_row", "of_depth"  # variables of the text


class Side(NamedTuple):
    """A dimension of the operand: its size, and elements from one index to the next."""

    size: int
    step: int


class Neighbours(NamedTuple):
    """`width` elements along the depth or along the rows (of the right operand: its columns)."""

    along_k: bool
    width: int
    reading: Reading

    def fixed(self, index: str, place: str) -> str:
        """The statements before a loop along the neighbours, at a place of the other side; both in
        C, with the type of indices."""
        return self._text(_ROW if self.along_k else _DEPTH, index, place, self.reading.fixed)

    def each(self, index: str, place: str) -> str:
        """The statements that follow, for the neighbours that begin at `place` times the width."""
        return self._text(_DEPTH if self.along_k else _ROW, index, place, self.reading.lines)

    def places(self, index: str, fixed: str, place: str) -> str:
        """What `fixed` and `each` declare of the terms, alone."""
        names = (_ROW, _DEPTH) if self.along_k else (_DEPTH, _ROW)
        each = zip(names, (fixed, place), strict=True)
        return " ".join(f"const {index} {name} = {value};" for name, value in each)

    def _text(self, name: str, index: str, place: str, lines: tuple[str, ...]) -> str:
        return f"const {index} {name} = {place}; {' '.join(lines)}"


def along(
    along_k: bool, computed: Computed, rows: Side, depth: Side, offset: int,
    widths: Sequence[int], joined: bool,
) -> Neighbours:  # fmt: skip
    """Neighbours along one side: as many as the first of `widths` that divides that side's size and
    so follows what is read step by step (packed numbers do so two at a time), else one.

    Args:
        rows, depth, offset: how the operand would lie in memory.
        joined: see `Computed.reading`.
    """
    side = depth if along_k else rows
    for count in (*(n for n in widths if side.size % n == 0), 1):
        terms = [Term(_ROW, *rows), Term(_DEPTH, *depth)]
        first = terms.pop(int(along_k))
        first = Term(first.name, side.size // count, side.step * count)
        near = [j * side.step for j in range(count)]
        reading = computed.reading([first, *terms], offset, near, joined)
        if reading.apart < math.inf:
            break
    return Neighbours(along_k, count, reading)


def closest(
    computed: Computed, rows: Side, depth: Side, offset: int, row_widths: Sequence[int],
    depth_widths: Sequence[int], joined: bool,
) -> Neighbours:  # fmt: skip
    """`along` the side on which what neighbours are made of lies closer together."""
    sides = (False, row_widths), (True, depth_widths)
    found = (along(k, computed, rows, depth, offset, widths, joined) for k, widths in sides)
    return min(found, key=lambda near: near.reading.apart / near.width)


def bytes_each(computed: Computed) -> float:
    """Bytes of memory that an element is made of, all together."""
    return computed.reading([Term(_ROW, 1, 0)], 0, [0], joined=False).nbytes
