"""Launches of a loop's iteration become one on a processor: a work-item does one after the other.

Where a small network generates text, most launches of an iteration keep one core busy for less time
than a launch takes.  So runs of such are one launch of one work-item, which runs the groups of each
in turn: nothing waits for another work-group, as no device has to promise that (`resident`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kerascl import config
from kerascl.compiler.program import parts, resident
from kerascl.compiler.program.expand import Unsupported
from kerascl.compiler.program.parts import GROUP, Part, Shape
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.compiler.program.repeat import predicated
from kerascl.compiler.program.resident import literal, waits
from kerascl.dtypes import float32
from kerascl.kernels.tuning import machine
from kerascl.runtime import programs
from kerascl.runtime.device import DeviceInfo

NAME = LABEL = "lone"
LEAST = 2  # launches that are worth one
MOST = 48  # launches in one: compilers take longer than in proportion
MOST_ITEMS = 1 << 11  # of a launch that has no vectors of its own
# Multiply-adds that a core could do while it reads a byte of weights from the last cache, or while
# it computes on a byte of what is no product, which may be an exponential of each number.
A_BYTE, A_BYTE_COMPUTED = 1, 16
# Launches' time that it takes to have other cores take part, which sleep meanwhile: on two cores a
# product of 60 us gained nothing from the second.
WAKING = 8
# Bytes of the last cache for each core: what loops use beyond comes from memory, and more cores
# bring more of that.
CACHE = 4 << 20
_SIZES_BYTES = 64  # of a kernel's arguments, beside memory
_SHARED = ("-cl-std=", "-D")  # options that a kernel can do with or without
_MEET = "barrier(CLK_GLOBAL_MEM_FENCE);"


def joins(nbytes: int, info: DeviceInfo) -> bool:
    """Whether a loop's kernels are chosen so that they can share a launch of one work-item.

    Args:
        nbytes: that it reads from outside.
    """
    near = nbytes <= CACHE * info.compute_units
    return info.kind == "cpu" and near and config.resident() in (1, resident.APART)


def joined(
    steps: Sequence[Step], flag: int, slots: Sequence[Slot], info: DeviceInfo
) -> list[Step]:
    """The steps of a loop's iteration, runs of small ones as one.

    Args:
        steps: in order; the last sets the flag, the others know nothing of it.
        flag: the slot that is 0 once the loop has ended.
        slots: all.

    Returns:
        Such steps; the last does nothing once the loop has ended.
    """
    if config.resident() == resident.APART:
        return list(steps)
    most = max(1, (info.max_parameter_bytes - _SIZES_BYTES) // 8)
    found: list[Step] = []
    run: list[tuple[Step, Part, Shape]] = []
    known = {id(step): _part(step, slots, info) for step in steps}

    def end(last: bool = False) -> None:
        if len(run) >= LEAST:
            one = _launch(run, flag)
            found.extend(predicated([one], flag) if last else [one])
        else:
            found.extend(step for step, *_ in run)
        run.clear()

    for step in steps:
        own = known[id(step)]
        if own is None:
            end()
            found.append(step)
            continue
        used = step.used.union({flag}, *(other.used for other, *_ in run))
        if len(used) > most or len(run) == MOST:
            end()
        run.append((step, *own))
    end(last=True)
    return found


def _part(step: Step, slots: Sequence[Slot], info: DeviceInfo) -> tuple[Part, Shape] | None:
    """A step as part of a launch of one work-item; None where it can be none, or takes longer there
    than in a launch of its own."""
    if type(step) is not Step or step.local_size is None or step.otherwise or step.reached:
        return None
    if any(not option.startswith(_SHARED) for option in step.options):
        return None
    if any(type(arg) is not Use and literal(arg) is None for arg in step.args):
        return None
    if any(n % m for n, m in zip(step.global_size, step.local_size, strict=True)):
        return None
    if not _small(step, slots, info):
        return None
    # of groups of one work-item, or of work-items that do not know their group
    shape = Shape(tuple(step.global_size), (1,) * len(step.global_size), 1, 1)
    options = (*step.options, *programs.always(info))
    try:
        found = parts.part(step.source, step.name, options, shape)
    except Unsupported:
        return None
    if len(found.params) != len(step.args) or found.local_bytes:
        return None
    if math.prod(step.local_size) > 1 and (found.meets or found.by_group):
        return None
    return found, shape


def _small(step: Step, slots: Sequence[Slot], info: DeviceInfo) -> bool:
    """Whether other cores would save no more of a step's time than it takes to have them begin."""
    items = math.prod(step.local_size or ())
    groups = math.prod(step.global_size) // items
    if items > 1 and math.prod(step.global_size) > MOST_ITEMS:
        return False
    rates = machine.of(info)
    cores = min(groups, rates.units)
    nbytes = sum(slots[slot].nbytes for slot in step.used)
    products = max(step.flops / 2, nbytes * (A_BYTE if step.flops else A_BYTE_COMPUTED))
    alone = products * rates.units / rates.rate(float32)
    return alone * (1 - 1 / cores) <= WAKING * rates.launch


def _launch(run: Sequence[tuple[Step, Part, Shape]], flag: int) -> Step:
    """The launch of a run."""
    steps = [step for step, *_ in run]
    uses = (arg.index for step in steps for arg in step.args if type(arg) is Use)
    slots = list(dict.fromkeys(uses))
    number = {slot: k for k, slot in enumerate(slots)}
    pragmas: dict[str, None] = {}
    items: dict[str, str] = {}
    lines: list[str] = []
    for (step, part, shape), after in zip(run, waits(steps, flag), strict=True):
        pragmas |= dict.fromkeys(part.pragmas)
        for name, text in part.items:
            if items.setdefault(name, text) != text:
                raise AssertionError(f"two texts are called {name}")
        args = [GROUP, "(__local uchar*)0"]
        for param, arg in zip(part.params, step.args, strict=True):
            if type(arg) is Use:
                args.append(f"({param.ctype})(memory_{number[arg.index]} + {arg.offset})")
            else:
                args.append(str(literal(arg)))
        if after:  # what kernels wrote may lie in memory as another type than they read
            lines.append(f"  {_MEET}")
        count = math.prod(shape.groups)
        lines.append(
            f"  for (uint {GROUP} = 0; {GROUP} < {count}u; ++{GROUP}) "
            f"{part.name}({', '.join(args)});"
        )
    params = [f"__global uchar* memory_{k}" for k in range(len(slots))]
    source = "\n".join([
        *pragmas,
        *items.values(),
        f"__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void {NAME}("
        f"{', '.join(params)}) {{",
        *lines,
        "}\n",
    ])  # fmt: skip
    step = Step(
        source, NAME, tuple(sorted({option for step in steps for option in step.options})),
        list(map(Use, slots)), (1,), (1,), LABEL,
        layer=steps[0].layer if len({s.layer for s in steps}) == 1 else "several layers",
        flops=sum(s.flops for s in steps),
    )  # fmt: skip
    step.writes = frozenset().union(*(s.used if s.writes is None else s.writes for s in steps))
    return step
