"""The order of a program's steps."""

from __future__ import annotations

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
