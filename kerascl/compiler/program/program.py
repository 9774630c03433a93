"""A compiled graph: launches over numbered slots of memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kerascl.compiler.generate.builder import Generated
from kerascl.compiler.generate.emit import LoopStep
from kerascl.kernels.contract.plan import Counters, Local, Scalar, Several
from kerascl.runtime.launch import LocalMemory


@dataclass(frozen=True)
class Slot:
    """Memory a program touches.

    `kind` is "input" (a leaf of the graph), "output" (a value wanted) or
    "temporary"; `node` is its position in the graph's topological order (-1
    for workspace).
    """

    kind: str
    nbytes: int
    node: int


@dataclass(frozen=True)
class Use:
    """A launch argument: slot `index` from byte `offset` on."""

    index: int
    offset: int = 0


@dataclass(eq=False)
class Step:
    """One kernel launch; `args` holds Use, Counters and ready values (NumPy scalars,
    LocalMemory).

    `writes` are the slots it may write; None stands for all it uses.  `layer` and `flops` (floating
    point operations of a product) are for profiles.  `kernel` is what eager evaluation launches.
    Equal sources of all steps are one string.  `otherwise` are C statements for where a loop that
    the step is part of has ended.  `tiles` are (slot, number): of what it writes in the slot, which
    does not overlap tiles of other numbers; a slot without is written anywhere.  `reached` are
    slots that it uses by addresses it finds in memory.  `division` and `aligned` are those of
    `contract.plan.Division`, of slots.  `several` is that of `contract.plan.Launch`, `among` that
    of `generate.builder.Generated`.  Steps of one `phase` come before those of all later ones.
    """

    source: str
    name: str
    options: tuple[str, ...]
    args: list[Any]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    label: str = ""
    kernel: Any = None
    writes: frozenset[int] | None = None
    layer: str = ""
    flops: int = 0
    otherwise: str = ""
    tiles: frozenset[tuple[int, int]] = frozenset()
    reached: frozenset[int] = frozenset()
    division: Hashable = None
    aligned: frozenset[tuple[int, int]] = frozenset()
    several: Several | None = field(default=None, compare=False)
    among: Callable[[int], Generated] | None = field(default=None, compare=False)
    phase: int = 0

    def __post_init__(self) -> None:
        self.source = sys.intern(self.source)

    @property
    def program(self) -> tuple[str, tuple[str, ...]]:
        """What has to be built for it: source and options."""
        return self.source, self.options

    def conflicts(self, other: Step, alike: bool = True) -> bool:
        """Whether the two may not run at once.

        Args:
            alike: whether the same work-groups run groups of one number, one after the other.
        """
        alike = alike and self.division is not None and self.division == other.division
        for slot in self.used & other.used:
            if any(s.writes is None or slot in s.writes for s in (self, other)):
                tiles = [{n for at, n in s.tiles if at == slot} for s in (self, other)]
                apart = tiles[0] and tiles[1] and tiles[0].isdisjoint(tiles[1])
                met = alike and any(at == slot for at, _ in self.aligned & other.aligned)
                if not (apart or met):
                    return True
        return False

    @property
    def leaves(self) -> Iterator[Step]:
        """The kernels' launches in it: itself, or what a loop repeats."""
        yield self

    @property
    def used(self) -> set[int]:
        """The slots that it uses."""
        return {arg.index for arg in self.args if type(arg) is Use} | self.reached

    def moved(self, slots: Mapping[int, int], index: object) -> Step:
        """The same over other slots, with `index` as the number of a loop's step."""
        args = []
        for arg in self.args:
            if type(arg) is Use:
                arg = Use(slots[arg.index], arg.offset)
            elif type(arg) is LoopStep:
                arg = index
            args.append(arg)
        writes = None
        if self.writes is not None:
            writes = frozenset(slots[w] for w in self.writes if w in slots)
        tiles = frozenset((slots[s], number) for s, number in self.tiles if s in slots)
        reached = frozenset(slots[s] for s in self.reached)
        nbytes: dict[int, set[int]] = {}  # of a slot, which may take the place of several
        for slot in self.used:
            nbytes.setdefault(slots[slot], set()).add(dict(self.aligned).get(slot, 0))
        aligned = frozenset((s, max(n)) for s, n in nbytes.items() if len(n) == 1 and 0 not in n)
        return replace(
            self, args=args, writes=writes, tiles=tiles, reached=reached, aligned=aligned
        )


@dataclass
class Program:
    """Launches in order, and the slots they use.

    Attributes:
        aliases: (input slot, output slot) pairs that may share memory although one step uses
            both: it reads each element just before it writes it.
        counters: how many arrival counters its steps need.
        first, last: for each slot, the first and last step that uses it.
    """

    steps: list[Step]
    slots: list[Slot]
    aliases: set[tuple[int, int]] = field(default_factory=set)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    counters: int = 0

    def __post_init__(self) -> None:
        self.first = [-1] * len(self.slots)
        self.last = [-1] * len(self.slots)
        self.counters = 0
        for step in self.launches:
            for arg in step.args:
                if type(arg) is Counters:
                    self.counters = max(self.counters, arg.count)
        for position, step in enumerate(self.steps):
            for arg in step.args:
                if type(arg) is Use:
                    if self.first[arg.index] < 0:
                        self.first[arg.index] = position
                    self.last[arg.index] = position

    def may_overwrite(self, source: int | None, target: int) -> bool:
        """Whether slot `target` may lie in the memory of input slot `source`."""
        if source is None or self.first[source] < 0:
            return True
        if self.last[source] < self.first[target]:
            return True
        return self.last[source] == self.first[target] and (source, target) in self.aliases

    def nbytes(self, step: Step) -> int:
        """Bytes of all memory that a step uses."""
        return sum(self.slots[index].nbytes for index in step.used)

    @property
    def launches(self) -> Iterator[Step]:
        """Its steps, and those inside loops in place of these."""
        for step in self.steps:
            yield from step.leaves

    @property
    def kernels(self) -> int:
        """How many different kernels its steps launch."""
        return len({(step.name, *step.program) for step in self.launches})

    @property
    def intermediate_bytes(self) -> int:
        """Sum of all temporaries, as if none shared memory."""
        return sum(s.nbytes for s in self.slots if s.kind == "temporary")


# Sixteen bytes a work-item.
COPY_SOURCE = """\
__kernel void copy_bytes(__global const {word}* source, __global {word}* target, const ulong n,
                         const ulong at) {{
  const ulong i = (ulong)get_global_id(0) * {lanes};
  target += at;
  if (i + {lanes} <= n) vstore{lanes}(vload{lanes}(0, source + i), 0, target + i);
  else for (ulong k = i; k < n; ++k) target[k] = source[k];
}}
"""


def copy_step(source: int, target: int, nbytes: int, at: int = 0) -> Step:
    """A launch that copies one slot's bytes to another's, from byte `at` of that on."""
    word, lanes = ("uint", 4) if nbytes % 4 == 0 and at % 4 == 0 else ("uchar", 16)
    unit = 16 // lanes
    text = COPY_SOURCE.format(word=word, lanes=lanes)
    args = [Use(source), Use(target), np.uint64(nbytes // unit), np.uint64(at // unit)]
    size = -(-nbytes // 16)
    step = Step(text, "copy_bytes", (), args, (-(-size // 64) * 64,), (64,), "copy")
    step.writes = frozenset((target,))
    return step


def copy_many(sizes: tuple[int, ...]) -> tuple[str, int]:
    """Source of kernel `copy_many(s0, t0, s1, t1, …)` for so many bytes each, and its groups.

    Groups have 64 work-items; one launch replaces as many as there are pairs.
    """
    params, lines, first = [], [], 0
    for k, nbytes in enumerate(sizes):
        ctype, count = ("uint", nbytes // 4) if nbytes % 4 == 0 else ("uchar", nbytes)
        params.append(f"__global const {ctype}* s{k}, __global {ctype}* t{k}")
        groups = max(1, -(-count // 256))
        lines.append(f"  if (g < {first + groups}) {{")
        lines.append(f"    for (uint i = (g - {first}) * 256 + l, e = 0; e < 4; ++e, i += 64)")
        lines.append(f"      if (i < {count}) t{k}[i] = s{k}[i];")
        lines.append("    return;\n  }")
        first += groups
    head = "  const uint g = get_group_id(0), l = get_local_id(0);\n"
    body = head + "\n".join(lines)
    return f"__kernel void copy_many({', '.join(params)}) {{\n{body}\n}}\n", first


def value_of(arg: Any) -> Any:
    """A by-value argument in the form the runtime takes."""
    if isinstance(arg, Scalar):
        return arg.host
    if isinstance(arg, Local):
        return LocalMemory(arg.nbytes)
    return arg
