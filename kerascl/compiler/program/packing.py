"""Operands that a step lays out anew for its kernels: many small launches become few.

A weight is there from the start, so its new layout can be made long before it is used; both
operands of one product are laid out side by side.  A launch costs several microseconds whatever it
does.
"""

from __future__ import annotations

from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.hopper import pack
from kerascl.runtime.device import DeviceInfo

MOST_JOBS = 16  # matrices in one launch: all of them take memory until the last is used
MOST_BYTES = 8 << 20  # larger ones gain nothing from company


def gather(steps: list[Step], slots: list[Slot], info: DeviceInfo) -> list[Step]:
    """Join the packing of weights of the same kind, in groups, where the first of each group was;
    and that of neighbours.

    Args:
        steps: in order.
        slots: what their arguments use.
        info: the device's facts.
    """
    times: dict[int, int] = {}
    for step in steps:
        times[id(step)] = times.get(id(step), 0) + 1
    room = (info.max_parameter_bytes - 64) // 24
    open_groups: dict[str, list[Step]] = {}
    groups: list[list[Step]] = []
    written = {s for step in steps for s in step.writes or ()}
    for step in steps:
        if times[id(step)] > 1 or not _is_weight(step, slots, written):
            continue
        group = open_groups.get(step.source)
        if group is None or len(group) >= min(MOST_JOBS, room):
            group = open_groups[step.source] = []
            groups.append(group)
        group.append(step)
    groups = [group for group in groups if len(group) > 1]
    joined = {id(group[0]): _joined(group) for group in groups}
    gone = {id(step) for group in groups for step in group[1:]}
    steps = [joined.get(id(step), step) for step in steps if id(step) not in gone]
    return _join_neighbours(steps, times)


def _join_neighbours(steps: list[Step], times: dict[int, int]) -> list[Step]:
    found: list[Step] = []
    for step in steps:
        if found and _alike(found[-1], step, times):
            found[-1] = _joined([found[-1], step])
        else:
            found.append(step)
    return found


def _alike(last: Step, step: Step, times: dict[int, int]) -> bool:
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
