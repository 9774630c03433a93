"""The memory plan: temporaries of a program share one arena."""

from __future__ import annotations

from collections.abc import Sequence


def plan(lives: Sequence[tuple[int, int, int]], alignment: int) -> tuple[list[int], int]:
    """Offsets for values that live over intervals of steps, and the arena's size in bytes.

    Args:
        lives: (bytes, first step, last step) of each value; steps inclusive.
        alignment: multiple in bytes that offsets must have.

    Larger values are placed first, each at the lowest gap that is free during
    its whole life (greedy by size, as in TensorFlow Lite's planner: Pisarchyk
    and Lee, 2020, https://arxiv.org/abs/2001.03288).
    """
    order = sorted(range(len(lives)), key=lambda k: (-lives[k][0], lives[k][1]))
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    total = 0
    for k in order:
        nbytes, first, last = lives[k]
        nbytes = -(-max(nbytes, 1) // alignment) * alignment
        offset = 0
        for start, end, begin, finish in placed:
            if begin > last or finish < first:
                continue
            if start - offset >= nbytes:
                break
            offset = max(offset, end)
        offsets[k] = offset
        entry = (offset, offset + nbytes, first, last)
        position = len(placed)
        while position and placed[position - 1][0] > offset:
            position -= 1
        placed.insert(position, entry)
        total = max(total, offset + nbytes)
    return offsets, total
