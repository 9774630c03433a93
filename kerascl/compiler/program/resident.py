"""Launches of a loop's iteration become one, whose work-groups stay.

Where text is generated an iteration takes a hundred small launches and more, each of which costs
the host several microseconds.  A resident launch has one work-group a compute unit.  These run the
groups of one kernel after the other (`parts`, `staying`), and wait for each other where a kernel
needs what an earlier one of the launch wrote.  Which kernel is next, and its arguments, they read
from a table, which a small kernel writes before the loop begins: addresses of memory, so only
devices take part whose kernels may use these (see runtime/addresses.py).

OpenCL promises neither that all groups of a launch run at once nor that they can wait for each
other: hence the self-test (`resident_selftest`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerascl import config
from kerascl.compiler.program import parts, staying
from kerascl.compiler.program.expand import Unsupported
from kerascl.compiler.program.parts import Part, Shape
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.compiler.program.repeat import predicated
from kerascl.compiler.program.staying import Address, Arrivals, Call, Launch, Team, Value
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.plan import Counters
from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.runtime import addresses, programs
from kerascl.runtime import device as devices
from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.launch import LocalMemory

ALONE, APART = 2, 3  # values of KERASCL_RESIDENT
LEAST = 3  # launches that are worth a table
# Of a launch: larger ones take long beside what it costs to launch them, and need more than one
# work-group on a compute unit.
MOST_ITEMS, MOST_FLOPS = 1 << 21, 2 * 10**9
LABEL = "resident"
LEAST_AHEAD = 64 << 10  # bytes of memory that is worth to be fetched ahead
PIECE = 1 << 20
# Of what a product reads for each of its floating point operations: more than four bytes are not
# read whole, as where rows are looked up.
MOST_BYTES_A_FLOP = 4
_SIZES_BYTES = 64  # of a kernel's arguments, beside memory
# Options that a kernel can do with or without, if all of a program have them.
_SHARED = ("-cl-std=", "-D")


# Groups that never run together hang.
SELF_TEST = SelfTest(
    "resident", "kerascl.compiler.program.resident_selftest", alone=True,
    environment=(("KERASCL_ADDRESSES", "2"), ("KERASCL_RESIDENT", "0")),
)  # fmt: skip


def team(info: DeviceInfo) -> Team | None:
    """How launches stay on the device; None where they do not."""
    wanted = config.resident()
    if wanted == ALONE:
        return Team(1, 0, False, info.device_atomics)
    if wanted and not _reason(info) and asked.passed(info, SELF_TEST):
        return staying.known(info)
    return None


def result(info: DeviceInfo) -> str:
    """Of the self-test: "" where it passed, else why launches do not stay."""
    return _reason(info) or asked.results(info, (SELF_TEST,))[SELF_TEST.title]


@functools.cache
def _reason(info: DeviceInfo) -> str:
    """Why launches cannot stay, whatever a self-test says; or ""."""
    if staying.known(info) is None:
        return "nothing is known that its work-groups could wait by"
    if not addresses.usable(info, devices.index_of(info)):
        return "its kernels take no plain addresses"
    return ""


def repeated(
    steps: Sequence[Step], flag: int, slots: Sequence[Slot], info: DeviceInfo,
    work: Callable[[int], int],
) -> tuple[list[Step], list[Step]]:  # fmt: skip
    """The steps of a loop's iteration, ready to be repeated, with as few launches as can be.

    Args:
        steps: in order; the last sets the flag, the others know nothing of it.
        flag: the slot that is 0 once the loop has ended.
        slots: all.
        work: gives a slot of so many bytes more.

    Returns:
        Steps that must run before the loop, and those of an iteration.
    """
    how = team(info)
    lasting = _lasting(steps, slots)
    runs: list[_Run] = []
    if how is not None and config.resident() != APART:
        runs = _runs(steps, how, lasting, info)
    runs = [run for run in runs if len(run.parts) >= LEAST]
    joined = {k for run in runs for k in range(run.first, run.first + len(run.parts))}
    last = len(steps) - 1
    heeding = predicated([s for k, s in enumerate(steps[:last]) if k not in joined], flag)
    rest = iter([*heeding, steps[last]])
    first = {run.first: run for run in runs}
    before: list[Step] = []
    found: list[Step] = []
    for k in range(len(steps)):
        if k in first:
            assert how is not None
            run = first[k]
            tables, step = _launch(
                steps[k : k + len(run.parts)], run, how, flag, lasting, info, work
            )
            before += tables
            found.append(step)
        elif k not in joined:
            found.append(next(rest))
    return before, found


@dataclass
class _Run:
    """Steps from the one at `first` on, a part of each, and the work-items of a group."""

    first: int
    parts: list[tuple[Part, Shape]]
    width: int


def _runs(
    steps: Sequence[Step], how: Team, lasting: Mapping[int, int], info: DeviceInfo
) -> list[_Run]:
    """The longest runs of steps that can be parts of one launch."""
    runs: list[_Run] = []
    probed = {id(step): _probe(step, info) for step in steps}
    at = 0
    while at < len(steps):
        end, width = at, how.width
        least = 1  # of the width, that steps so far ask for
        words = 0  # of the table, but for values that differ among calls
        while end < len(steps):
            probe = probed[id(steps[end])]
            if probe is None:
                break
            found, alone = probe
            if not width and found.meets:
                if alone.items < least:
                    break
                width = alone.items
            if width and staying.shape(found, alone, how, width, info) is None:
                break
            words += 1 + sum(type(arg) is Use for arg in steps[end].args)
            words += len(list(_pieces(steps[end], lasting, how.ahead)))
            if end > at and 8 * words > staying.TABLE_BYTES:
                break
            least = max(least, alone.items)
            end += 1
        if end == at:
            at += 1
            continue
        width = width or least
        own = [_part(step, width, how, lasting, info) for step in steps[at:end]]
        runs.append(_Run(at, own, width))
        at = end
    return runs


def _probe(step: Step, info: DeviceInfo) -> tuple[Part, Shape] | None:
    """A step's part in a launch as wide as its own groups; None where it can be none."""
    fits = type(step) is Step and step.local_size is not None and not step.otherwise
    if not fits or step.label == LABEL:
        return None
    if math.prod(step.global_size) > MOST_ITEMS or step.flops > MOST_FLOPS:
        return None
    if any(not option.startswith(_SHARED) for option in step.options):
        return None
    if not all(_known(arg) for arg in step.args):
        return None
    alone = _alone(step)
    if alone is None or alone.items > info.max_work_group_size:
        return None
    try:
        found = _text(step, alone, info)
    except Unsupported:
        return None
    if len(found.params) != len(step.args) or found.local_bytes > staying.room(info):
        return None
    return found, alone


def _known(arg: Any) -> bool:
    if isinstance(arg, np.generic):
        return arg.dtype.name in _CTYPES
    return type(arg) in (Use, Counters, LocalMemory)


def _alone(step: Step) -> Shape | None:
    """How a step's groups stand in a launch as wide as these."""
    local = step.local_size
    assert local is not None
    if any(n % m for n, m in zip(step.global_size, local, strict=True)):
        return None
    groups = tuple(n // m for n, m in zip(step.global_size, local, strict=True))
    items = math.prod(local)
    return Shape(groups, tuple(local), items, items)


def _text(step: Step, shape: Shape, info: DeviceInfo, wait: parts.Wait | None = None) -> Part:
    options = (*step.options, *programs.always(info))
    own = tuple(arg.nbytes for arg in step.args if type(arg) is LocalMemory)
    return parts.part(step.source, step.name, options, shape, own, wait)


def _part(
    step: Step, width: int, how: Team, lasting: Mapping[int, int], info: DeviceInfo
) -> tuple[Part, Shape]:
    """A step's part in a launch of groups of `width` work-items: one that waits by itself where all
    that it reads before that is never written."""
    alone = _alone(step)
    assert alone is not None
    shape = staying.shape(_text(step, alone, info), alone, how, width, info)
    assert shape is not None
    if staying.may_wait(shape, how):
        found = _text(step, shape, info, staying.WAIT)
        read = [step.args[k] for k in found.early]
        if found.itself and all(type(arg) is Use and arg.index in lasting for arg in read):
            return found, shape
    return _text(step, shape, info), shape


def waits(
    steps: Sequence[Step], flag: int, shapes: Sequence[Shape | None] | None = None
) -> list[bool]:
    """Before which steps all groups of their launch must have finished those before.

    Args:
        flag: a slot that all groups read when the launch begins.
        shapes: how the groups of each step stand in the launch.
    """
    found: list[bool] = []
    shapes = shapes or [None] * len(steps)
    since: list[int] = []  # what has run since all waited
    looks = True  # at the flag
    for k, step in enumerate(steps):
        writes = step.used if step.writes is None else step.writes
        after = looks and flag in step.used & writes
        after = after or any(step.conflicts(steps[j], shapes[j] == shapes[k]) for j in since)
        if after:
            since, looks = [], False
        found.append(after)
        since.append(k)
    return found


def begins(
    steps: Sequence[Step], waiting: Sequence[bool], shapes: Sequence[Shape], groups: int
) -> list[int]:
    """Which of a launch's groups runs the first group of each step.

    Steps that need not wait begin where those before end, which may still run.  Those that need not
    because the same groups wrote what they go on with begin together.

    Args:
        waiting: what `waits` found.
        groups: of the launch.
    """
    first = list(range(len(steps)))  # of each step, the first that it begins together with
    start = 0
    for k, step in enumerate(steps):
        start = k if waiting[k] else start
        for j in range(start, k):
            if first[j] != first[k] and step.conflicts(steps[j], False):
                one, other = sorted((first[j], first[k]))
                first[start : k + 1] = [one if f == other else f for f in first[start : k + 1]]
    found: list[int] = []
    end = 0
    for k, shape in enumerate(shapes):
        end = 0 if waiting[k] else end
        found.append(end if first[k] == k else found[first[k]])
        if first[k] == k:
            end = (end + math.prod(shape.groups)) % groups
    return found


def _lasting(steps: Sequence[Step], slots: Sequence[Slot]) -> dict[int, int]:
    """The slots that a loop only reads, with their bytes."""
    written: set[int] = set()
    for step in steps:
        written |= step.used if step.writes is None else step.writes
    used = set().union(*(step.used for step in steps))
    return {s: slots[s].nbytes for s in used - written}


def ahead(
    steps: Sequence[Step], lasting: Mapping[int, int], room: int
) -> list[list[Address]]:
    """What is fetched ahead before each step: parts of what later ones read whole.

    While all groups wait for each other, and for what lies in caches, no memory is read.  So what
    products read that no step writes is asked for as many bytes before as caches have room for.

    Args:
        steps: a launch's; the loop begins anew after the last.
        lasting: bytes of the slots that no step of the loop writes.
        room: bytes that may have been fetched but not read.
    """
    wanted = [(k, place) for k, step in enumerate(steps) for place in _pieces(step, lasting, room)]
    count = len(steps)
    wanted += [(k + count * turn, place) for turn in (1, 2) for k, place in wanted]
    found: list[list[Address]] = [[] for _ in range(count)]
    reads: dict[int, int] = {}  # bytes that were fetched for a step
    waiting = at = 0
    for k in range(2 * count):  # what is fetched in the second turn, as in all that follow
        while at < len(wanted):
            reader, place = wanted[at]
            nbytes = place.lines * staying.LINE
            if reader > k:  # what it would read at once need not be fetched
                if waiting + nbytes > room or reader >= k + count:
                    break
                if k >= count:
                    found[k - count].append(place)
                reads[reader] = reads.get(reader, 0) + nbytes
                waiting += nbytes
            at += 1
        waiting -= reads.get(k, 0)
    return found


def _pieces(step: Step, lasting: Mapping[int, int], room: int) -> Iterator[Address]:
    """The memory that a step reads whole and no step of the loop writes, no more than `room` of
    each slot."""
    for arg in step.args:
        if type(arg) is Use and arg.index in lasting:
            nbytes = lasting[arg.index] - arg.offset
            if LEAST_AHEAD <= nbytes <= MOST_BYTES_A_FLOP * step.flops:
                nbytes = min(nbytes, room)
                for at in range(0, nbytes, PIECE):
                    lines = -(-min(PIECE, nbytes - at) // staying.LINE)
                    yield Address(arg.index, arg.offset + at, lines)


_CTYPES = {
    "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
    "uint16": "ushort", "uint32": "uint", "uint64": "ulong", "float32": "float",
    "float64": "double", "complex64": "float2",
}  # fmt: skip


def _value(arg: np.generic) -> Value:
    """A by-value argument as text and as bits."""
    bits = int.from_bytes(arg.tobytes(), "little")
    ctype = _CTYPES[arg.dtype.name]
    if ctype == "float":
        return Value(bits, f"as_float({bits}u)")
    if ctype in ("double", "float2"):
        return Value(bits, f"as_{ctype}({bits}UL)")
    return Value(bits, f"({ctype}){bits}UL")


def literal(arg: Any) -> str | None:
    """A by-value argument as text; None where it has none."""
    known = isinstance(arg, np.generic) and arg.dtype.name in _CTYPES
    return _value(arg).text if known else None


def _launch(
    steps: Sequence[Step], run: _Run, how: Team, flag: int, lasting: Mapping[int, int],
    info: DeviceInfo, work: Callable[[int], int],
) -> tuple[list[Step], Step]:  # fmt: skip
    """The steps that write a run's table, and the run.

    Args:
        lasting: see `_lasting`.
    """
    calls: list[Call] = []
    most = counters = 0  # arrival counters: each call has its own until all groups have waited
    shapes = [shape for _, shape in run.parts]
    waiting = waits(steps, flag, shapes)
    begin = begins(steps, waiting, shapes, how.groups)
    for step, (part, shape), after, first in zip(steps, run.parts, waiting, begin, strict=True):
        counters = 0 if after else counters
        args: list[Address | Value | Arrivals] = []
        count = 0
        for arg in step.args:
            if type(arg) is Use:
                args.append(Address(arg.index, arg.offset))
            elif type(arg) is Counters:
                args.append(Arrivals())
                count = arg.count
            elif type(arg) is not LocalMemory:
                own = counters if args and isinstance(args[-1], Arrivals) else 0
                args.append(_value(type(arg)(arg + own) if own else arg))
        calls.append(Call(part, shape, tuple(args), after, first))
        counters += count
        most = max(most, counters)
    made = Launch(calls, how, run.width, ahead(steps, lasting, how.ahead))
    table = work(8 * (staying.HEAD + len(made.table)))
    slots = list(dict.fromkeys(w.slot for w in made.table if isinstance(w, Address)))
    options = arrival.options(info) if how.standard else ()
    given = sorted({option for step in steps for option in step.options}.difference(options))
    step = Step(
        made.source, Launch.NAME, (*options, *given), [Use(flag), Use(table)],
        (how.groups * run.width,), (run.width,), LABEL,
        layer=steps[0].layer if len({s.layer for s in steps}) == 1 else "several layers",
        flops=sum(s.flops for s in steps),
    )  # fmt: skip
    if made.arrives:
        step.args.append(Counters(most))
    step.reached = frozenset().union(*(s.used for s in steps))
    written = (s.used if s.writes is None else s.writes for s in steps)
    step.writes = frozenset((table,)).union(*written)
    return _tables(made.table, slots, table, info), step


def _tables(
    words: Sequence[Address | int], slots: Sequence[int], table: int, info: DeviceInfo
) -> list[Step]:
    """The steps that write a table: as many as its addresses take."""
    most = max(1, (info.max_parameter_bytes - _SIZES_BYTES) // 8)
    found = []
    for start in range(0, max(1, len(slots)), most):
        some = slots[start : start + most]
        text = staying.table_text(words, some, start == 0)
        args = [Use(slot) for slot in (*some, table)]
        step = Step(text, "resident_table", (), args, (1,), (1,), LABEL)
        step.writes = frozenset((table,))
        found.append(step)
    return found
