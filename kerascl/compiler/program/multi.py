"""Equal small kernels over different tensors become one launch.

A train step has hundreds of them: the second stage of every bias gradient,
the update of every scale.  A launch costs several microseconds on the host
whatever it does.  What becomes of a product's results may differ (`epilogues`).  Large products
take others in themselves (`several`).
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np

from kerascl.compiler.program import epilogues, schedule, several
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.contract.plan import Counters
from kerascl.kernels.contract.source import Source
from kerascl.runtime.device import DeviceInfo

MOST_SEGMENTS = 48
MOST_ITEMS = 1 << 21  # larger launches gain nothing from company
SMALL = 1 << 16  # bytes of temporaries that a step may hold longer even where memory is tight
# More that waits for the last part of a launch is no longer in any cache by then.
MOST_BYTES = 128 << 20


def merge(
    steps: list[Step],
    generated: list[tuple[Step, Source]],
    slots: list[Slot],
    aliases: set[tuple[int, int]],
    info: DeviceInfo,
) -> tuple[list[Step], list[tuple[Step, Source]]]:
    """Merge independent steps that run the same generated kernel, whatever its epilogue.

    Args:
        steps: in order.
        generated: the steps whose source may be changed, with it.
        slots: what their arguments use.
        aliases: pairs that may share memory; those that a merge makes unsafe are taken out.
        info: the device's facts.

    Returns:
        The steps in a new order, and the generated ones among them.
    """
    source_of = {id(step): source for step, source in generated}
    seen: dict[int, int] = {}
    for step in steps:
        seen[id(step)] = seen.get(id(step), 0) + 1
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for k, step in enumerate(steps):
        source = source_of.get(id(step))
        if seen[id(step)] > 1:
            continue
        if step.several is not None:
            kinds.setdefault(several.key(step), []).append(k)
        elif source is not None and _can_join(step):
            key = (*_apart(source), step.global_size[1:], step.local_size)
            kinds.setdefault(key, []).append(k)
    kinds = {key: members for key, members in kinds.items() if len(members) > 1}
    kinds = {key: members for key, members in kinds.items() if _proven(steps[members[0]])}
    if not kinds:
        return steps, generated
    before = schedule.dependencies(steps)
    memory = _Memory(steps, slots)
    groups: list[list[int]] = []
    for members in kinds.values():
        found = [steps[k] for k in members]
        if found[0].several is not None:
            capacity, texts = several.capacity(found[0], info), dict.fromkeys(members, ())
        else:
            capacity = _capacity(found, info)
            texts = {k: _text(source_of[id(steps[k])]) for k in members}
        groups.extend(_independent(members, before, capacity, memory, texts))
    return _rebuild(steps, groups, before, source_of, aliases)


@functools.lru_cache(maxsize=256)
def _apart(source: Source) -> tuple[Any, ...]:
    return epilogues.apart(source)


def _text(source: Source) -> tuple[Any, ...]:
    """What is equal for equal kernels, whatever they are called."""
    return source.params, source.body, source.helpers


def _proven(step: Step) -> bool:
    return step.several is None or step.several.proven()


def _can_join(step: Step) -> bool:
    size = 1
    for n in step.global_size:
        size *= n
    plain = all(
        (type(a) is Use and not a.offset) or type(a) is Counters or isinstance(a, np.generic)
        for a in step.args
    )
    return plain and size <= MOST_ITEMS


class _Memory:
    """What lives when, as steps are put off: what dies with them has to live on."""

    def __init__(self, steps: list[Step], slots: list[Slot]) -> None:
        known = schedule.lives(steps, slots)
        self.during, self.peak = known.during, known.peak
        self.dying: list[int] = []
        for k, step in enumerate(steps):
            used = {a.index for a in step.args if type(a) is Use}
            temporary = (s for s in used if slots[s].kind == "temporary" and known.last[s] == k)
            self.dying.append(sum(slots[s].nbytes for s in temporary))

    def put_off(self, members: list[int], until: int) -> bool:
        """Let steps that run together, the last at its own place, run at a later one's place, if
        the peak does not grow by that."""
        after, nbytes = max(members), sum(self.dying[m] for m in members)
        if nbytes > MOST_BYTES:
            return False
        if nbytes > SMALL * len(members):
            if max(self.during[after + 1 : until + 1], default=0) + nbytes > self.peak:
                return False
            for k in range(after + 1, until + 1):
                self.during[k] += nbytes
        return True


def _capacity(steps: list[Step], info: DeviceInfo) -> int:
    most = max(len(step.args) for step in steps)
    room = (info.max_parameter_bytes - 64) // (8 * max(1, most))
    return max(1, min(MOST_SEGMENTS, room))


def _independent(
    members: list[int], before: list[int], capacity: int, memory: _Memory,
    texts: dict[int, tuple[Any, ...]],
) -> list[list[int]]:  # fmt: skip
    """Split members into groups without dependencies inside; updates `before` for each merge.

    Args:
        texts: of each member, of which a group has `epilogues.MOST` at most.
    """
    groups: list[list[int]] = []
    for k in members:
        for group in groups:
            bits = sum(1 << m for m in group)
            few = len({texts[m] for m in (*group, k)}) <= epilogues.MOST
            if few and len(group) < capacity and not before[k] & bits:
                if not any(before[m] >> k & 1 for m in group) and memory.put_off(group, k):
                    group.append(k)
                    _contract(group, before)
                    break
        else:
            groups.append([k])
    return [group for group in groups if len(group) > 1]


def _contract(group: list[int], before: list[int]) -> None:
    """Dependencies once the members of a group run together."""
    bits = combined = 0
    for m in group:
        bits |= 1 << m
        combined |= before[m]
    for m in group:
        before[m] = combined
    for k, needed in enumerate(before):
        if needed & bits and not bits >> k & 1:
            before[k] = needed | combined | bits


def _rebuild(
    steps: list[Step], groups: Any, before: Any, source_of: Any, aliases: Any
) -> tuple[list[Step], list[tuple[Step, Source]]]:
    joined = {m for group in groups for m in group}
    units = [(k,) for k in range(len(steps)) if k not in joined] + [tuple(g) for g in groups]
    waiting = sorted(units, key=max)
    done = 0
    order: list[tuple[int, ...]] = []
    while waiting:
        # the first that is ready, so that steps keep their order where nothing forces another
        unit = next((unit for unit in waiting if _ready(unit, before, done)), None)
        if unit is None:
            raise AssertionError("merged steps depend on each other in a circle")
        waiting.remove(unit)
        order.append(unit)
        done |= sum(1 << m for m in unit)
    new_steps, new_generated = [], []
    for entry in order:
        parts = [steps[m] for m in entry]
        if len(parts) > 1 and parts[0].several is not None:
            step, source = several.joined(parts), None
        elif len(parts) > 1:
            step, source = _joined(*_among(parts, [source_of[id(part)] for part in parts]))
        else:
            step, source = parts[0], source_of.get(id(parts[0]))
        if len(parts) > 1:
            _drop_unsafe(step, parts, aliases)
        new_steps.append(step)
        if source is not None:
            new_generated.append((step, source))
    return new_steps, new_generated


def _ready(unit: tuple[int, ...], before: list[int], done: int) -> bool:
    needed = own = 0
    for m in unit:
        needed |= before[m]
        own |= 1 << m
    return not needed & ~(done | own)


def _among(parts: list[Step], sources: list[Source]) -> tuple[list[Step], list[Source]]:
    """Steps and their kernels as they are best in one launch."""
    first = parts[0]
    if first.among is None or len(set(map(_text, sources))) > 1:
        return parts, sources
    made = first.among(len(parts))
    if made.source.params != sources[0].params:
        return parts, sources
    found = [
        replace(part, global_size=made.global_size, local_size=made.local_size) for part in parts
    ]
    return found, [made.source] * len(parts)


def _joined(parts: list[Step], sources: list[Source]) -> tuple[Step, Source]:
    """One step that runs a kernel for each part in its own work-groups."""
    first = parts[0]
    assert first.local_size is not None
    local = first.local_size[0]
    counts = [part.global_size[0] // local for part in parts]
    kinds = list({_text(source): source for source in sources}.values())
    number = {_text(source): k for k, source in enumerate(kinds)}
    several = len(kinds) > 1
    if several:
        kinds = epilogues.joined(kinds)
    source = kinds[0]
    # those of some parts only begin as nothing
    declarations = [
        f"  {param.removeprefix('const ')}{' = 0' if several else ''};"
        for param in dict.fromkeys(param for kind in kinds for param in kind.params)
    ]
    if several:
        declarations.append(f"  int {epilogues.WHOSE} = 0;")
    params: list[str] = []
    cases = []
    for k, own in enumerate(map(_text, sources)):
        names = [tuple(param.rsplit(" ", 1)) for param in kinds[number[own]].params]
        params.extend(f"{ctype} {name}_{k}" for ctype, name in names)
        sets = " ".join(f"{name} = {name}_{k};" for _, name in names)
        if several:
            sets += f" {epilogues.WHOSE} = {number[own]};"
        head = "default" if k == len(parts) - 1 else f"case {k}"
        cases.append(f"    {head}: {sets} break;")
    if len(set(counts)) == 1:
        place = [
            f"  const int segment = get_group_id(0) / {counts[0]};",
            f"  const int segment_start = segment * {counts[0]};",
        ]
    else:
        ends = list(itertools.accumulate(counts))
        place = ["  int segment = 0, segment_start = 0;"]
        place += [
            f"  if (get_group_id(0) >= {end}) {{ segment = {k + 1}; segment_start = {end}; }}"
            for k, end in enumerate(ends[:-1])
        ]
    body = re.sub(
        r"get_global_id\(0\)", f"(get_global_id(0) - segment_start * {local})", source.body
    )
    body = re.sub(r"get_group_id\(0\)", "(get_group_id(0) - segment_start)", body)
    text = "\n".join(
        [
            *place,
            *declarations,
            "  switch (segment) {",
            *cases,
            "  }",
            body,
        ]
    )
    joined = replace(source, name=f"multi_{source.name}", params=tuple(params), body=text)
    step = Step(
        "",
        joined.name,
        joined.options,
        [a for k, part in enumerate(parts) for a in _arguments(part, k, len(parts))],
        (local * sum(counts), *first.global_size[1:]),
        first.local_size,
        joined.name,
        layer=first.layer if len({part.layer for part in parts}) == 1 else "several layers",
        flops=sum(part.flops for part in parts),
        phase=first.phase,
    )
    writes = [part.writes for part in parts if part.writes is not None]
    if len(writes) == len(parts):
        step.writes = frozenset().union(*writes)
    return step, joined


def _arguments(part: Step, k: int, parts: int) -> list[Any]:
    """The arguments of the k-th of so many parts, each with arrival counters of its own."""
    args = list(part.args)
    for place, arg in enumerate(part.args):
        if type(arg) is Counters:
            args[place] = Counters(arg.count * parts)
            args[place + 1] = np.int32(arg.count * k)
    return args


def _drop_unsafe(step: Step, parts: list[Step], aliases: set[tuple[int, int]]) -> None:
    """A slot that two parts use must not be overwritten by one of them."""
    count: dict[int, int] = {}
    for part in parts:
        for slot in {a.index for a in part.args if type(a) is Use}:
            count[slot] = count.get(slot, 0) + 1
    for pair in [p for p in aliases if count.get(p[0], 0) > 1]:
        aliases.discard(pair)
