"""The order of a program's steps."""

from __future__ import annotations

from kerascl.compiler.program import Slot, Step, Use

WORTH = 1 << 20  # bytes from which a change of order pays


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
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, slots_of in enumerate(used):
        last.update(dict.fromkeys(slots_of, k))
        for s in slots_of:
            first.setdefault(s, k)
    # bytes of temporaries that live during a step, and from the step before on
    changes, during = [0] * (len(steps) + 1), [0] * len(steps)
    for s, k in first.items():
        if slots[s].kind == "temporary":
            changes[k] += slots[s].nbytes
            changes[last[s] + 1] -= slots[s].nbytes
    across = [0] * len(steps)
    live = 0
    for k in range(len(steps)):
        born = sum(
            slots[s].nbytes for s in used[k] if first[s] == k and slots[s].kind == "temporary"
        )
        live += changes[k]
        during[k], across[k] = live, live - born
    peak = max(during, default=0)
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
