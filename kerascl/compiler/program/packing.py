"""Operands that a step lays out anew for its kernels: each once, many small launches become few.

The gradients of several filters that read the same x want the same copy of it.  A weight is there
from the start, so its new layout can be made long before it is used; both operands of one product
are laid out side by side.  A launch costs several microseconds whatever it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace

from kerascl.compiler.program import schedule
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.hopper import pack
from kerascl.runtime.device import DeviceInfo

MOST_JOBS = 16  # matrices in one launch: all of them take memory until the last is used
MOST_BYTES = 12 << 20  # of a weight that is packed long before it is used
MOST_TOGETHER = 128 << 20  # in one launch; of more the first is no longer in any cache at the end


def share(steps: list[Step], slots: list[Slot]) -> list[Step]:
    """Lay an operand out once for all that read the same copy, where the peak of memory stays.

    Args:
        steps: in order; the arguments of those that read a copy change.
        slots: what their arguments use.
    """
    times = Counter(map(id, steps))
    known: dict[Hashable, Step] = {}  # the first launch that makes each copy
    repeated: list[tuple[Step, Step]] = []  # it, and one that makes the same again
    for step in steps:
        if step.name == pack.NAME and times[id(step)] == 1 and _makes_copies(step, slots):
            first = known.setdefault(_key(step), step)
            if first is not step:
                repeated.append((first, step))
        written = step.used if step.writes is None else step.used & step.writes
        for key in [key for key, made in known.items() if made.args[0].index in written]:
            del known[key]
    peak = schedule.lives(steps, slots).peak if repeated else 0
    for first, again in repeated:
        names = {a.index: b.index for a, b in zip(again.args[1:3], first.args[1:3], strict=True)}
        found = {id(s): _renamed(s, names, first) for s in steps if s is not again}
        fewer = [found[id(s)] for s in steps if s is not again]
        if schedule.lives(fewer, slots).peak > peak:
            continue
        steps = [s for s in steps if s is not again]
        for step in steps:  # others know these objects
            step.args, step.writes = found[id(step)].args, found[id(step)].writes
    return steps


def _makes_copies(step: Step, slots: list[Slot]) -> bool:
    """Whether a launch that packs writes temporaries, and not its operand."""
    uses = step.args[:3]
    if not all(type(a) is Use for a in uses) or any(a.offset for a in uses[1:]):
        return False
    made = {a.index for a in uses[1:]}
    return uses[0].index not in made and all(slots[s].kind == "temporary" for s in made)


def _key(step: Step) -> Hashable:
    """Equal for launches that make the same copies; their text says which."""
    source, _, _, *numbers = step.args
    return step.source, source, tuple(int(n) for n in numbers), step.global_size


def _renamed(step: Step, names: dict[int, int], first: Step) -> Step:
    """A step that reads the copies which `first` makes in place of others."""
    if not step.used & {*names, *names.values()}:
        return step
    args = [
        Use(names[a.index], a.offset) if type(a) is Use and a.index in names else a
        for a in step.args
    ]
    writes = step.writes
    if writes is not None and step is not first:  # a plan's launches are said to write all of it
        writes = writes - {*names, *names.values()}
    return replace(step, args=args, writes=writes)


def gather(steps: list[Step], slots: list[Slot], info: DeviceInfo) -> list[Step]:
    """Pack each operand once, then join the packing of weights of the same kind, in groups, where
    the first of each group was; and that of neighbours.

    Args:
        steps: in order.
        slots: what their arguments use.
        info: the device's facts.
    """
    steps = share(steps, slots)
    times = Counter(map(id, steps))
    most = min(MOST_JOBS, (info.max_parameter_bytes - 64) // 24)
    open_groups: dict[str, list[Step]] = {}
    groups: list[list[Step]] = []
    written = {s for step in steps for s in step.writes or ()}
    for step in steps:
        if times[id(step)] > 1 or not _is_weight(step, slots, written):
            continue
        group = open_groups.get(step.source)
        more = [*(group or ()), step]
        if group is None or len(more) > most or _packed_bytes(more, slots) > MOST_TOGETHER:
            group = open_groups[step.source] = []
            groups.append(group)
        group.append(step)
    groups = [group for group in groups if len(group) > 1]
    joined = {id(group[0]): _joined(group) for group in groups}
    gone = {id(step) for group in groups for step in group[1:]}
    steps = [joined.get(id(step), step) for step in steps if id(step) not in gone]
    return _join_near(_join_neighbours(steps, times), slots, times, most)


def _join_neighbours(steps: list[Step], times: Counter[int]) -> list[Step]:
    found: list[Step] = []
    for step in steps:
        if found and _alike(found[-1], step, times):
            found[-1] = _joined([found[-1], step])
        else:
            found.append(step)
    return found


def _join_near(
    steps: list[Step], slots: list[Slot], times: Counter[int], most: int
) -> list[Step]:
    """Join packing with the one before where its operand, such as what a layer kept for its
    gradient, is there already and the peak of memory stays."""
    if not any(map(_can_join, steps)):
        return steps
    peak = schedule.lives(steps, slots).peak
    found = list(steps)
    group: list[Step] = []
    at = 0  # the group's place in `found`
    changed: set[int] = set()  # slots written since then
    for step in steps:
        if times.get(id(step)) == 1 and _can_join(step):
            more = [*group, step]
            fits = len(more) <= most and _packed_bytes(more, slots) <= MOST_TOGETHER
            if group and fits and _same(group[0], step) and step.args[0].index not in changed:
                joined = _joined(more)
                fewer = [s for s in found if s is not step]
                fewer[at] = joined
                if schedule.lives(fewer, slots).peak <= peak:
                    found, group = fewer, more
                    changed |= step.writes or step.used
                    continue
            group, at, changed = [step], found.index(step), set()
        changed |= step.used if step.writes is None else step.writes
    return found


def _same(one: Step, other: Step) -> bool:
    """Whether one kernel does what two launches that pack do."""
    return (one.source, one.options) == (other.source, other.options)


def _packed_bytes(steps: list[Step], slots: list[Slot]) -> int:
    return sum(slots[s].nbytes for step in steps for s in {a.index for a in step.args[1:3]})


def _alike(last: Step, step: Step, times: Counter[int]) -> bool:
    """Whether two steps that run once each may become one."""
    once = times.get(id(last)) == 1 and times.get(id(step)) == 1
    if not (once and last.source == step.source and _can_join(last) and _can_join(step)):
        return False
    return last.writes is not None and step.args[0].index not in last.writes


def _can_join(step: Step) -> bool:
    return (
        step.name == pack.NAME
        and all(type(a) is Use and not a.offset for a in step.args[:3])
        and pack.job_of(step.args, step.global_size) is not None
    )


def _is_weight(step: Step, slots: list[Slot], written: set[int]) -> bool:
    if not _can_join(step):
        return False
    source, out, _ = step.args[:3]
    read, packed = slots[source.index], slots[out.index]
    there = read.kind == "input" and source.index not in written
    return bool(there and packed.nbytes <= MOST_BYTES)


def _joined(group: list[Step]) -> Step:
    first = group[0]
    found = [pack.job_of(step.args, step.global_size) for step in group]
    jobs = [job for job in found if job is not None]  # of those that can be joined, all
    source, name, groups = pack.many(first.source, jobs)
    args = [arg for step in group for arg in step.args[:3]]
    layer = first.layer if len({step.layer for step in group}) == 1 else "several layers"
    joined = Step(
        source, name, first.options, args, (256 * groups,), first.local_size, name, layer=layer
    )
    joined.writes = frozenset().union(*(step.writes or () for step in group))
    return joined
