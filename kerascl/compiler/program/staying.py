"""The text of a launch whose work-groups stay: they run the groups of one kernel after the other.

Each of its groups finds in a table which kernel is next, and its arguments.  Where a call says so,
all groups wait for each other before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kerascl.compiler.program.parts import ALIGNMENT, GROUP, MOST_TEAMS, WARP, Part, Shape, Wait
from kerascl.kernels.contract.ahead import statement as fetching
from kerascl.runtime.device import DeviceInfo

HEAD = 16  # words in front of a table: the first counts groups that wait
LOCAL_BYTES = 48 << 10  # that a kernel may declare everywhere
TABLE_BYTES = 16 << 10  # of a table that each group copies to its local memory
SPARE_BYTES = 512  # of local memory, for what compilers add
WIDTH = 512  # work-items of a group: half the registers that a work-item may have, and two teams
# What is fetched must be in the last cache when it is read, and comes before what is read at once:
# of 0, 2, 4, 8, 16 and 32 MiB the fastest on an H100, which has 50.
AHEAD = 4 << 20
LINE = 128  # bytes that are fetched at once
_LINES_AT = 48  # the bit from which on a word says how many lines, behind the first one's number
# In a call's first word: whether all wait, whether its kernel waits by itself, from which bit on
# where its groups begin, and below that which kernel it is.
_WAITS, _ITSELF, _BEGINS_AT = 1 << 31, 1 << 30, 15
# How a kernel's function waits by itself: a work-item's first group does, `kr_due`.
WAIT = Wait(
    "const bool kr_due, kr_words* kr_call, volatile __global uint* kr_word, uint* kr_turn",
    "if (kr_due) kr_wait(kr_call, kr_word, kr_turn)",
)
_WAIT = "kr_wait(call, (volatile __global uint*)table, &turn);"


@dataclass(frozen=True)
class Team:
    """How launches stay on a device.

    Attributes:
        groups: work-groups, all of which run at once.
        width: work-items of each, or 0: as many as a kernel asks for that has barriers.
        named: whether teams of fewer work-items can meet alone.
        standard: whether groups wait by OpenCL C 3.0's atomics, and not by PTX.
        ahead: bytes of what kernels to come read that are brought to the last cache before they
            begin.
    """

    groups: int
    width: int
    named: bool
    standard: bool
    ahead: int = 0


@dataclass(frozen=True)
class Address:
    """Global memory: slot `slot` from byte `offset` on; `lines` of LINE bytes, to be fetched."""

    slot: int
    offset: int = 0
    lines: int = 0


@dataclass(frozen=True)
class Value:
    """An argument by value: its bits as an unsigned integer of 64 bits, and its C text."""

    bits: int
    text: str


@dataclass(frozen=True)
class Arrivals:
    """An argument that is the launch's arrival counters."""


@dataclass(eq=False)
class Call:
    """A kernel over its groups.

    Attributes:
        args: of each parameter that does not point to local memory: an Address, Value or Arrivals.
        waits: whether all groups wait for each other first.
        begins: the launch's group that runs its first one.
    """

    part: Part
    shape: Shape
    args: tuple[Address | Value | Arrivals, ...]
    waits: bool = False
    begins: int = 0

    @property
    def count(self) -> int:
        """Groups that it has."""
        return math.prod(self.shape.groups)


def known(info: DeviceInfo) -> Team | None:
    """How launches would stay on a device, whatever a self-test says; None where nothing is known
    that groups could wait by."""
    if (info.nvidia_capability or (0, 0)) < (7, 0) or info.kind != "gpu":
        return None
    return Team(info.compute_units, min(WIDTH, info.max_work_group_size), True, False, AHEAD)


def room(info: DeviceInfo) -> int:
    """Bytes of local memory for all teams of a group."""
    return min(info.local_mem_bytes, LOCAL_BYTES) - TABLE_BYTES - SPARE_BYTES


def shape(
    part: Part, alone: Shape, team: Team, width: int, info: DeviceInfo
) -> Shape | None:
    """How a part's groups stand in those of a launch; None where they cannot.

    Args:
        part: in a launch as wide as its own groups, where they stand as `alone`.
        width: work-items of a group of the launch.
    """
    items = alone.items
    stride = items
    if part.meets and items != width:
        if not team.named or (items > WARP and items % WARP):
            return None
        stride = max(items, WARP)
    most = width // stride
    if part.meets and WARP < items < width:
        most = min(most, MOST_TEAMS)
    if part.local_bytes:
        most = min(most, room(info) // part.local_bytes)
    return Shape(alone.groups, alone.local, width, stride, most) if most else None


def may_wait(shape: Shape, team: Team) -> bool:
    """Whether kernels may wait by themselves: all work-items do so in one, or whole warps, of which
    those without a group do elsewhere."""
    return shape.items == shape.width or (team.named and shape.items % WARP == 0)


class Launch:
    """A launch of some calls.

    Args:
        ahead: of each call, what is fetched ahead before it.

    Attributes:
        source: its translation unit.
        table: what follows HEAD in its table.
        arrives: whether it takes arrival counters, after the flag and the table.
    """

    NAME = "resident"

    def __init__(
        self, calls: Sequence[Call], team: Team, width: int,
        ahead: Sequence[Sequence[Address]] = (),
    ) -> None:  # fmt: skip
        self._team = team
        self._width = width
        kinds: dict[tuple[str, Shape], list[Call]] = {}
        for call in calls:
            kinds.setdefault((call.part.name, call.shape), []).append(call)
        number = {key: k for k, key in enumerate(kinds)}
        # arguments that are the same in all calls of a kind stand in the text
        varies = {key: _varying(same) for key, same in kinds.items()}
        self.table: list[Address | int] = []
        for call, fetched in zip(calls, ahead or [()] * len(calls), strict=True):
            key = call.part.name, call.shape
            word = number[key] | (_WAITS if call.waits else 0)
            word |= (_ITSELF if call.part.itself else 0) | call.begins << _BEGINS_AT
            self.table.append(word | len(fetched) << 32)
            self.table += fetched
            for k in varies[key]:
                arg = call.args[k]
                assert not isinstance(arg, Arrivals)
                self.table.append(arg if isinstance(arg, Address) else arg.bits)
        self.arrives = any(isinstance(a, Arrivals) for call in calls for a in call.args)
        cases = [self._case(k, same[0], varies[key]) for k, (key, same) in enumerate(kinds.items())]
        self.source = self._text(list(kinds.values()), cases)

    def _case(self, number: int, call: Call, varies: Sequence[int]) -> str:
        """Runs one kind of call."""
        part, shape = call.part, call.shape
        args = [GROUP, f"pool + team * {part.local_bytes}u"]
        given = iter(enumerate(call.args))
        places = iter(part.local_args)
        for param in part.params:
            if param.is_local:
                args.append(f"({param.ctype})(pool + team * {part.local_bytes}u + {next(places)})")
                continue
            k, arg = next(given)
            if isinstance(arg, Arrivals):
                args.append("arrivals")
            elif k not in varies:
                assert isinstance(arg, Value)
                args.append(arg.text)
            else:
                word = f"given[{list(varies).index(k)}]"
                args.append(_from_word(param.ctype, param.is_pointer, word))
        after = ""
        if part.itself:
            args += ["due", "call", "(volatile __global uint*)table", "&turn"]
            after = " due = false;"
        run = f"{part.name}({', '.join(args)});{after}"
        if part.meets or part.local_bytes:
            run += f" {shape.meeting()};"  # the next group takes the same local memory
        loop = (
            f"for (uint {GROUP} = team * (uint)get_num_groups(0) + place; "
            f"{GROUP} < {call.count}u; {GROUP} += {shape.teams}u * (uint)get_num_groups(0)) "
            f"{{ {run} }}"
        )
        team = "0u" if shape.stride == self._width else f"item / {shape.stride}u"
        if shape.teams * shape.stride < self._width:
            loop = f"if (team < {shape.teams}u) {loop}"
        if shape.items < shape.stride:
            loop = f"if (item % {shape.stride}u < {shape.items}u) {loop}"
        return (
            f"      case {number}: {{\n        const uint team = {team};\n        {loop}\n"
            f"        at += {len(varies)};\n        {self._whole}\n        break;\n      }}\n"
        )

    def _text(self, kinds: Sequence[Sequence[Call]], cases: Sequence[str]) -> str:
        pragmas: dict[str, None] = {}
        items: dict[str, str] = {}
        pool = 0
        for same in kinds:
            part, shape = same[0].part, same[0].shape
            pragmas |= dict.fromkeys(part.pragmas)
            for name, text in part.items:
                if items.setdefault(name, text) != text:
                    raise AssertionError(f"two texts are called {name}")
            pool = max(pool, shape.teams * part.local_bytes)
        words = len(self.table)
        near = words * 8 <= TABLE_BYTES
        itself = any(same[0].part.itself for same in kinds)
        params, known = self._parameters()
        source = "__local" if near else "__global"
        lines = [
            *pragmas,
            f"typedef {source} const ulong kr_words;",
            _FETCH.format(
                line=LINE, width=self._width, at=_LINES_AT, place=f"{2**_LINES_AT - 1}UL",
                one=fetching("(__global const uchar*)at", self._team.named),
            ),
            _ARRIVING.format(how=_ARRIVE[self._how]),
            _WAITING.format(how=_poll(self._how), whole=self._whole),
            *items.values(),
            f"__kernel __attribute__((reqd_work_group_size({self._width}, 1, 1))) void "
            f"{self.NAME}({params}) {{",
            *known,
            f"  __local uchar pool[{max(pool, ALIGNMENT)}] __attribute__((aligned({ALIGNMENT})));",
            f"  __local ulong words[{words}];" if near else "",
            # A group sees the flag as it was: no other can pass the wait before it is written.
            "  if (!*loop_flag) return;",
            "  const uint item = get_local_id(0);",
            # nor can it flip the highest bit
            "  uint turn = *(volatile __global uint*)table;",
            f"  for (uint k = item; k < {words}u; k += {self._width}u)"
            f" words[k] = table[{HEAD} + k];"
            if near else f"  __global const ulong* words = table + {HEAD};",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            f"  for (uint at = 0; at < {words}u;) {{",
            "    kr_words* call = words + at;",
            "    const uint kind = (uint)call[0];",
            "    at += 1 + (uint)(call[0] >> 32);",
            "    kr_words* given = words + at;",
            f"    {self._whole}",
            f"    if (kind & {_WAITS}u) kr_arrive((volatile __global uint*)table);",
            f"    if (!(kind & {_ITSELF}u)) {_WAIT}",
            f"    bool due = kind & {_ITSELF}u;" if itself else "",
            f"    const uint begins = kind >> {_BEGINS_AT} & {(_ITSELF >> _BEGINS_AT) - 1}u;",
            "    const uint place = (uint)get_group_id(0) - begins"
            " + (get_group_id(0) < begins ? (uint)get_num_groups(0) : 0u);",
            f"    switch (kind & {(1 << _BEGINS_AT) - 1}u) {{",
            *cases,
            "      default: return;",
            "    }",
            # those without a group, once for all kernels: each copy takes compilers long
            f"    if (due) {_WAIT}" if itself else "",
            "  }",
            "}",
        ]  # fmt: skip
        return "\n".join(line for line in lines if line) + "\n"

    def _parameters(self) -> tuple[str, list[str]]:
        """The kernel's parameters, and what makes them known."""
        given = [("__global int*", "loop_flag"), ("__global ulong*", "table")]
        if self.arrives:
            given.append(("volatile __global uint*", "arrivals"))
        if not self._team.named:
            return ", ".join(f"{ctype} {name}" for ctype, name in given), []
        # Addresses as the integers that they become (runtime/addresses.py): a long text that is
        # not rewritten is assembled once and not twice.
        params = ", ".join(f"const ulong {name}_" for _, name in given)
        return params, [f"  {ctype} {name} = ({ctype}){name}_;" for ctype, name in given]

    @property
    def _whole(self) -> str:
        return _WHOLE if self._team.named else ""

    @property
    def _how(self) -> str:
        if self._team.standard:
            return "standard"
        return "ptx" if self._team.named else "alone"


def table_text(table: Sequence[Address | int], slots: Sequence[int], first: bool) -> str:
    """The kernel `resident_table(memory of each slot, table)`, which writes a table's words.

    Args:
        table: the words.
        slots: those of the launch; addresses of others are left to others.
        first: whether it writes what is no address, too.
    """
    number = {slot: k for k, slot in enumerate(slots)}
    lines = ["  table[0] = 0;"] if first else []
    for k, word in enumerate(table, HEAD):
        if isinstance(word, int):
            if first:
                lines.append(f"  table[{k}] = {word}UL;")
        elif word.slot in number:
            place = f"(ulong)(memory_{number[word.slot]} + {word.offset})"
            if word.lines:
                place = f"{place} / {LINE} | {word.lines}UL << {_LINES_AT}"
            lines.append(f"  table[{k}] = {place};")
    params = [f"__global uchar* memory_{k}" for k in range(len(slots))]
    return (
        f"__kernel void resident_table({', '.join(params)}, __global ulong* table) {{\n"
        + "\n".join(lines) + "\n}\n"
    )  # fmt: skip


def _varying(calls: Sequence[Call]) -> list[int]:
    """Which arguments are addresses, or differ among calls of a kind."""
    first = calls[0].args
    return [
        k for k, arg in enumerate(first)
        if isinstance(arg, Address) or any(call.args[k] != arg for call in calls)
    ]  # fmt: skip


_AS = {"float": "as_float((uint){})", "double": "as_double({})", "float2": "as_float2({})"}


def _from_word(ctype: str, is_pointer: bool, word: str) -> str:
    """An argument from the word in which its bits lie."""
    if not is_pointer and ctype in _AS:
        return _AS[ctype].format(word)
    return f"({ctype}){word}"


# Brings memory to the last cache, each line by one work-item of all groups.
_FETCH = """\
inline void kr_fetch(const ulong word) {{
  const ulong from = (word & {place}) * {line};
  const uint lines = (uint)(word >> {at}), step = (uint)get_num_groups(0) * {width}u;
  for (uint k = (uint)get_group_id(0) * {width}u + (uint)get_local_id(0); k < lines; k += step) {{
    const ulong at = from + (ulong)k * {line};
    {one}
  }}
}}
"""

# All work-groups wait for each other: each adds its share, and those of all flip the highest bit,
# as CUDA's cooperative groups do, so that the word needs no setting back.  What a group wrote
# before is seen by all after it: its work-items met, the first released and acquires, then they
# meet again.  Between arriving and waiting it may read what nobody writes.
# NVIDIA's barrier counts a warp when the first of its lanes come: those that had no group to run,
# or fewer, wait for the others first.
_WHOLE = 'asm volatile("bar.warp.sync -1;" ::: "memory");'
_ARRIVING = """\
inline void kr_arrive(volatile __global uint* word) {{
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
{how}}}
"""
_WAITING = """\
inline void kr_wait(kr_words* call, volatile __global uint* word, uint* turn) {{
  const uint kind = (uint)call[0], fetched = (uint)(call[0] >> 32);
  for (uint k = 0; k < fetched; ++k) kr_fetch(call[k + 1]);
  {whole}
{how}  {whole}
  // other teams use the same local memory, and barriers of the same numbers
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}}
"""
_SHARE = """\
  if (get_local_id(0) == 0) {
    const uint share = get_group_id(0) ? 1u : 0x80000001u - (uint)get_num_groups(0);
"""
# NVIDIA's OpenCL 3.0 has none of the optional atomics; its instructions exist from Volta on.
_ARRIVE = {
    "standard": _SHARE + """\
    atomic_fetch_add_explicit((volatile __global atomic_uint*)word, share, memory_order_release,
                              memory_scope_device);
  }
""",
    "ptx": _SHARE + """\
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;"
                 :: "l"((ulong)word), "r"(share) : "memory");
  }
""",
    "alone": "",  # a single group
}  # fmt: skip
_LOOK = {
    "standard": """\
      now = atomic_load_explicit((volatile __global atomic_uint*)word, memory_order_acquire,
                                 memory_scope_device);
""",
    "ptx": """\
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"((ulong)word) : "memory");
""",
}


def _poll(how: str) -> str:
    """Looks until all groups have arrived; nothing of a single group."""
    if how not in _LOOK:
        return ""
    return (
        f"  if (get_local_id(0) == 0 && (kind & {_WAITS}u)) {{\n    uint now;\n    do {{\n"
        f"{_LOOK[how]}    }} while (!((*turn ^ now) & 0x80000000u));\n    *turn = now;\n  }}\n"
    )
