"""The order of a program's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kerascl.compiler.program.program import Slot, Step, Use

WORTH = 1 << 20  # bytes from which a change of order pays


@dataclass
class Lives:
    """When the temporaries of a program live.

    Attributes:
        first, last: for each slot used, the numbers of the steps that use it first and last.
        during: bytes of temporaries that live while each step runs.
        across: those of them that lived before it.
    """

    first: dict[int, int]
    last: dict[int, int]
    during: list[int]
    across: list[int]

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return max(self.during, default=0)


def lives(steps: list[Step], slots: list[Slot]) -> Lives:
    """See `Lives`; steps in order."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, step in enumerate(steps):
        for s in {a.index for a in step.args if type(a) is Use}:
            last[s] = k
            first.setdefault(s, k)
    born, dead = [0] * (len(steps) + 1), [0] * (len(steps) + 1)
    for s, k in first.items():
        if slots[s].kind == "temporary":
            born[k] += slots[s].nbytes
            dead[last[s] + 1] += slots[s].nbytes
    during, across, live = [], [], 0
    for k in range(len(steps)):
        live -= dead[k]
        across.append(live)
        live += born[k]
        during.append(live)
    return Lives(first, last, during, across)


def early(steps: list[Step], slots: list[Slot]) -> list[Step]:
    """Run a step that frees more memory than it takes as early as it can.

    What only the backward pass wants of a value (which element of a window was the largest, a mask)
    is computed while the value is at hand, and the value dies.  The peak never grows by it.

    Args:
        steps: in order; a step that stands there several times stays.
        slots: what their arguments use.
    """
    times: dict[int, int] = {}
    for step in steps:
        times[id(step)] = times.get(id(step), 0) + 1
    used = [frozenset(a.index for a in step.args if type(a) is Use) for step in steps]
    written = [u if s.writes is None else u & s.writes for u, s in zip(used, steps, strict=True)]
    known = lives(steps, slots)
    last, across, peak = known.last, known.across, known.peak
    last_use: dict[int, int] = {}  # before the step at hand
    last_write: dict[int, int] = {}
    keys = []
    for k, step in enumerate(steps):
        dying = [s for s in used[k] - written[k] if last[s] == k and slots[s].kind == "temporary"]
        taken = sum(slots[s].nbytes for s in written[k])
        place = k
        if times[id(step)] == 1 and sum(slots[s].nbytes for s in dying) >= taken + WORTH:
            needs = [last_write.get(s, -1) for s in used[k]]
            needs += [last_use.get(s, -1) for s in written[k]]
            soonest = 1 + max(needs, default=-1)
            # What dies is needed until its other readers are done.
            free_from = {s: 1 + last_use.get(s, -1) for s in dying}
            for at in sorted({soonest, *(f for f in free_from.values() if soonest < f < k)}):
                freed = sum(slots[s].nbytes for s in dying if free_from[s] <= at)
                if freed >= taken + WORTH and across[at] + taken <= peak:
                    place = at
                    break
        keys.append((place, place == k, k))
        last_use.update(dict.fromkeys(used[k], k))
        last_write.update(dict.fromkeys(written[k], k))
    return [steps[k] for *_, k in sorted(keys)]


def dependencies(steps: list[Step]) -> list[int]:
    """For each step, the bit set of all steps that must come before it."""
    before = [0] * len(steps)
    # of each slot: the last writers, several where they wrote tiles, and who read it since
    writers: dict[int, list[tuple[int, frozenset[int]]]] = {}
    readers: dict[int, list[int]] = {}
    of_phase: dict[int, int] = {}
    for k, step in enumerate(steps):
        used = {a.index for a in step.args if type(a) is Use}
        written = used if step.writes is None else used & step.writes
        tiles: dict[int, frozenset[int]] = {}
        for slot, number in step.tiles:
            tiles[slot] = tiles.get(slot, frozenset()) | {number}
        bits = 0
        for phase, members in of_phase.items():
            if phase < step.phase:
                bits |= members
        of_phase[step.phase] = of_phase.get(step.phase, 0) | 1 << k
        for slot in used:
            own = tiles.get(slot)
            for writer, others in writers.get(slot, ()):
                if not (own and others and own.isdisjoint(others)):
                    bits |= 1 << writer
            if slot in written:
                for reader in readers.get(slot, ()):
                    bits |= 1 << reader
        total = bits
        rest = bits
        while rest:
            low = rest & -rest
            total |= before[low.bit_length() - 1]
            rest ^= low
        before[k] = total
        for slot in used:
            if slot in tiles:
                writers.setdefault(slot, []).append((k, tiles[slot]))
            elif slot in written:
                writers[slot] = [(k, frozenset())]
                readers[slot] = []
            else:
                readers.setdefault(slot, []).append(k)
    return before


def in_levels(
    steps: list[Step], replaced: Iterable[tuple[int, int]] = ()
) -> tuple[list[Step], list[int]]:
    """Steps by the longest chain of others that must have ended before each, and how long that is:
    those of one length need not wait for each other.

    Args:
        steps: in order.
        replaced: (slot, other): the other may lie in the slot's memory, if nobody reads the slot
            once it is written.
    """
    before = dependencies(steps)
    ended = [0] * len(steps)  # of `before`, whatever they use
    for slot, other in replaced:
        readers = [k for k, step in enumerate(steps) if slot in step.used]
        for k, step in enumerate(steps):
            if other in (step.used if step.writes is None else step.writes):
                ended[k] |= sum(1 << reader for reader in readers if reader < k)
    levels: list[int] = []
    for k, step in enumerate(steps):
        level = 0
        for j, n in enumerate(levels):
            if ended[k] >> j & 1 or before[k] >> j & 1:
                level = max(level, n + (ended[k] >> j & 1 or step.conflicts(steps[j])))
        levels.append(level)
    order = sorted(range(len(steps)), key=levels.__getitem__)
    return [steps[k] for k in order], sorted(levels)
