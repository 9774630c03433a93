"""The memory plan: temporaries of a program share blocks of memory."""

from __future__ import annotations

from collections.abc import Sequence


def plan(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Which block each value lies in, and the blocks' sizes in bytes.

    Args:
        lives: (bytes, first step, last step) of each value; steps inclusive.

    Values share a block when they are never alive at the same step.  Larger
    values choose first, each the smallest block that is free during its life
    (shared objects, greedy by size: Pisarchyk and Lee, 2020,
    https://arxiv.org/abs/2001.03288).  Whole blocks, not offsets into one
    arena: sub-buffers make some drivers slow, and NVIDIA's crash.
    """
    order = sorted(range(len(lives)), key=lambda k: (-lives[k][0], lives[k][1]))
    places = [0] * len(lives)
    sizes: list[int] = []
    taken: list[list[tuple[int, int]]] = []
    for k in order:
        nbytes, first, last = lives[k]
        # blocks were opened from large to small: the last one that fits is the smallest
        for block in range(len(sizes) - 1, -1, -1):
            if all(end < first or last < begin for begin, end in taken[block]):
                break
        else:
            block = len(sizes)
            sizes.append(max(nbytes, 1))
            taken.append([])
        places[k] = block
        taken[block].append((first, last))
    return places, sizes
