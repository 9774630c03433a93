"""The order of steps: what depends on what stays so, and the peak of memory does not grow."""

import random

import pytest

from kerascl.compiler.program import schedule
from kerascl.compiler.program.program import Program, Slot, Step, Use


def step(reads, writes) -> Step:
    made = Step("", "k", (), [Use(s) for s in (*reads, *writes)], (1,), None)
    made.writes = frozenset(writes)
    return made


def peak(steps, slots) -> int:
    program = Program(list(steps), slots)
    live = [0] * len(steps)
    for k, slot in enumerate(slots):
        if slot.kind == "temporary" and program.first[k] >= 0:
            for t in range(program.first[k], program.last[k] + 1):
                live[t] += slot.nbytes
    return max(live)


def test_a_mask_is_made_while_its_source_is_at_hand():
    mib = 1 << 20
    sizes = (8, 100, 50, 12, 1, 1)
    slots = [Slot("input" if k == 0 else "temporary", n * mib, k) for k, n in enumerate(sizes)]
    pad, pool = step([0], [1]), step([1], [2])
    rest, place, back = step([2], [4]), step([1, 2], [3]), step([3, 4], [5])
    found = schedule.early([pad, pool, rest, place, back], slots)
    assert found == [pad, pool, place, rest, back]
    assert peak(found, slots) == 162 * mib


@pytest.mark.parametrize("seed", range(200))
def test_random_programs(seed):
    rng = random.Random(seed)
    slots = [Slot(rng.choice(["input", "temporary", "temporary", "output"]),
                  rng.randrange(1, 40) << 19, k) for k in range(12)]  # fmt: skip
    steps = []
    for _ in range(rng.randrange(2, 25)):
        writes = rng.sample([k for k, s in enumerate(slots) if s.kind != "input"], 1)
        steps.append(step(rng.sample(range(12), rng.randrange(0, 4)), writes))
    if rng.random() < 0.3:
        steps.append(steps[0])  # a loop launches one step many times
    found = schedule.early(steps, slots)
    assert sorted(map(id, found)) == sorted(map(id, steps))

    def trace(order):
        """What each step sees in the slots it reads, and what they hold in the end."""
        held, seen = {}, {}
        for one in order:
            reads = [a.index for a in one.args]
            seen.setdefault(id(one), []).append([held.get(s) for s in reads])
            held.update(dict.fromkeys(one.writes, (id(one), len(seen[id(one)]))))
        return seen, held

    assert trace(found) == trace(steps)
    if len({id(s) for s in steps}) == len(steps):
        assert peak(found, slots) <= peak(steps, slots)
