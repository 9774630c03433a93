"""The memory plan: temporaries of a program share blocks of memory, or parts of one arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from kerascl.compiler.program.program import Slot, Step, Use

ALIGNMENT = 512  # bytes; more than any kernel asks for


def replace(steps: Sequence[Step], slots: Sequence[Slot], aliases: set[tuple[int, int]]) -> None:
    """Put temporaries in the place of others that die as they are made of them.

    Args:
        steps: in their final order; those of a program, not loops, change in place.
        slots: what their arguments use.
        aliases: (slot, other) where the other may lie in the slot's memory, if the step that first
            uses it is the last to use the slot.
    """
    both = [p for p in aliases if all(slots[s].kind == "temporary" for s in p)]
    if not both:
        return
    users: dict[int, list[int]] = {}
    for k, step in enumerate(steps):
        for slot in step.used:
            users.setdefault(slot, []).append(k)
    names: dict[int, int] = {}
    for old, new in sorted(both, key=lambda pair: users[pair[1]][0] if pair[1] in users else -1):
        if new in names or old not in users or new not in users or old in names.values():
            continue
        met = users[old][-1] == users[new][0]
        plain = all(type(steps[k]) is Step for k in (*users[old], *users[new]))
        if met and plain:
            names[new] = old
    for new in names:  # in their order, so that what stands before is known
        names[new] = names.get(names[new], names[new])
    for step in {id(step): step for step in steps}.values():
        if step.used.isdisjoint(names):
            continue
        step.args = [
            Use(names.get(a.index, a.index), a.offset) if type(a) is Use else a for a in step.args
        ]
        if step.writes is not None:
            step.writes = frozenset(names.get(s, s) for s in step.writes)
        step.tiles = frozenset((names.get(s, s), number) for s, number in step.tiles)
        step.aligned = frozenset(x for x in step.aligned if x[0] not in names)


def plan(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Which block each value lies in, and the blocks' sizes in bytes.

    Args:
        lives: (bytes, first step, last step) of each value; steps inclusive.

    Values share a block when they are never alive at the same step.  Larger
    values choose first, each the smallest block that is free during its life
    (shared objects, greedy by size: Pisarchyk and Lee, 2020,
    https://arxiv.org/abs/2001.03288).  For devices whose kernels take memory
    objects: sub-buffers make some drivers slow, and NVIDIA's crash.
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


def arena(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """The offset of each value in one block, and the block's size, in bytes.

    Args:
        lives: as for `plan`.

    As `plan`, but values may lie anywhere in the block: larger ones choose
    first, each the smallest gap between those that live at the same time
    (greedy by size for offsets, ibid.).  For devices whose kernels take
    addresses.
    """
    order = sorted(range(len(lives)), key=lambda k: (-lives[k][0], lives[k][1]))
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step
    total = ALIGNMENT
    for k in order:
        nbytes, first, last = lives[k]
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        best, room, free = -1, 0, 0
        for begin, end, start, stop in placed:  # in order of their offsets
            if start > last or stop < first:
                continue
            if begin - free >= size and (best < 0 or begin - free < room):
                best, room = free, begin - free
            free = max(free, end)
        offsets[k] = free if best < 0 else best
        insort(placed, (offsets[k], offsets[k] + size, first, last))
        total = max(total, offsets[k] + size)
    return offsets, total
