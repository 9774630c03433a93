"""Steps that run again while the device says so: loops whose end depends on values.

The host enqueues iterations before it knows whether they are wanted. So each kernel of an iteration
looks at the loop's flag first, and does nothing once the loop has ended: the result is that of a
loop that stops in time, whenever the host finds out.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from kerascl.compiler.program.program import Step, Use

_HEAD = re.compile(r"(?:__kernel|\bkernel)\b[^;{}]*?\bvoid\s+\w+\s*\(")
_FLAG = "loop_flag"

_START = """\
__kernel void loop_start(__global const uchar* wanted, __global int* flag) {
  *flag = *wanted != 0;
}
"""
_ADVANCE = """\
__kernel void loop_advance(__global const uchar* wanted, __global int* flag) {
  if (*flag) *flag = *wanted != 0;
}
"""


@dataclass(eq=False)
class Repeat(Step):
    """A loop: `body` again and again while the flag in a slot is not 0.

    Its `args` are all slots that the body uses, so that for the order of steps and for their
    memory a loop is one step.

    Attributes:
        body: the steps of an iteration; the last sets the flag.
        flag: the flag's slot.
        most: iterations at most, or None.
    """

    body: list[Step] = field(default_factory=list)
    flag: int = -1
    most: int | None = None

    @property
    def leaves(self) -> Iterator[Step]:
        """The kernels' launches in it."""
        for step in self.body:
            yield from step.leaves

    def moved(self, slots: Mapping[int, int], index: object) -> Repeat:
        """See `Step.moved`."""
        known: dict[int, Step] = {}
        for step in self.body:
            known.setdefault(id(step), step.moved(slots, index))
        body = [known[id(step)] for step in self.body]
        return repeat_step(body, slots[self.flag], self.most)


def repeat_step(body: list[Step], flag: int, most: int | None) -> Repeat:
    """The loop of such an iteration; its steps must be predicated."""
    used = dict.fromkeys(slot for step in body for slot in sorted(step.used))
    step = Repeat("", "loop", (), [Use(index) for index in used], (1,), (1,), "loop")
    step.body, step.flag, step.most = body, flag, most
    writes: set[int] = set()
    for part in body:
        writes |= part.used if part.writes is None else part.writes
    step.writes = frozenset(writes)
    return step


def start_step(wanted: int, flag: int) -> Step:
    """Sets a loop's flag from the first condition, a bool; a loop in an iteration that is not
    wanted does not start."""
    step = Step(_START, "loop_start", (), [Use(wanted), Use(flag)], (1,), (1,), "loop")
    step.writes = frozenset((flag,))
    step.otherwise = "*flag = 0;"
    return step


def advance_step(wanted: int, flag: int) -> Step:
    """Ends a loop where its condition, a bool, does not hold."""
    step = Step(_ADVANCE, "loop_advance", (), [Use(wanted), Use(flag)], (1,), (1,), "loop")
    step.writes = frozenset((flag,))
    return step


def predicated(steps: list[Step], flag: int) -> list[Step]:
    """Steps that do nothing where the flag is 0; equal ones stay equal."""
    known: dict[int, Step] = {}
    for step in steps:
        if id(step) in known:
            continue
        if isinstance(step, Repeat):  # it has a flag of its own, which was not set
            known[id(step)] = step
            continue
        source = _predicated_source(step.source, step.otherwise)
        known[id(step)] = replace(step, source=source, args=[*step.args, Use(flag)])
    return [known[id(step)] for step in steps]


@functools.lru_cache(maxsize=1024)
def _predicated_source(source: str, otherwise: str) -> str:
    """A translation unit whose kernels have one more parameter, and look at it first."""
    parts: list[str] = []
    done = 0
    for head in _HEAD.finditer(source):
        close = _closing(source, head.end())
        brace = source.index("{", close)
        parameter = f", __global const int* {_FLAG}"
        check = f" if (!*{_FLAG}) {{ {otherwise} return; }}"
        parts += [source[done:close], parameter, source[close : brace + 1], check]
        done = brace + 1
    return sys.intern("".join([*parts, source[done:]]))


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that was opened before `start` is closed."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
    raise ValueError("a kernel's parameters have no end")
