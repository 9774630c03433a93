"""Long sums as sums of sums.

A sum of many terms loses digits in proportion to their number.  So BLOCK terms make a sum, as many
of those another, and so on: the loss is then in proportion to the number of such levels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kerascl.core.op import ReductionSpec

BLOCK = 16
# Elements of a work-item from which that is worth the code; partial results, from which it is.
BLOCKS_FROM = 4 * BLOCK
PARTS_FROM = 2 * BLOCK


@dataclass
class Blocked:
    """A reduction's registers in a loop: elements go into those of the first level; each level's
    are merged into the next one's, the last level's into `states`, when they hold as many elements
    as its size says."""

    spec: ReductionSpec
    states: list[tuple[str, str]]
    scratch: dict[str, str]
    resets: list[tuple[str, str]]  # of the scratch, with initial values
    levels: list[tuple[int, list[tuple[str, str]]]]

    def step(self, value: str) -> str:
        """Take an element."""
        states = self.taking()
        others = {"x": f"(({states[0][0]}){value})"} | self.scratch
        return rename(self.spec.step, states, others)

    def taking(self) -> list[tuple[str, str]]:
        """The registers that elements go into."""
        return self.levels[0][1] if self.levels else self.states

    def _close(self) -> list[str]:
        return [rename(self.spec.close, self.taking(), self.scratch)] if self.spec.close else []

    def merge(self, size: int) -> list[str]:
        """Empty the level of this size, if there is one, into the next."""
        place = next((k for k, (own, _) in enumerate(self.levels) if own == size), None)
        if place is None:
            return []
        states = self.levels[place][1]
        after = self.levels[place + 1][1] if place + 1 < len(self.levels) else self.states
        lines = self._close() if place == 0 else []
        others = {f"t{k}": name for k, (_, name) in enumerate(states)}
        lines.append(rename(self.spec.combine, after, others))
        inits = [init for _, init in self.spec.states]
        lines += [f"{name} = {init};" for (_, name), init in zip(states, inits, strict=True)]
        if place == 0:
            lines += [f"{name} = {init};" for name, init in self.resets]
        return lines

    def finish(self) -> list[str]:
        """After the last element."""
        if not self.levels:
            return self._close()
        return [line for size, _ in self.levels for line in self.merge(size)]


def sizes(block: int, length: int, least: int) -> list[int]:
    """Of each level, how many elements its registers take, where a work-item reads `length`."""
    found = []
    while block and length >= max(least, 2 * block):
        found.append(block)
        block *= BLOCK
    return found


def loop(
    sums: list[Blocked],
    threads: int,
    together: int,
    body: list[str],
    hint: str,
    beyond: int = 0,
    end: str = "r_end",
) -> list[str]:
    """The loop over whole blocks, of `body` for `together` elements, from r on; none if there are
    no levels.  Less than a block is left before `end`.  Each element is a vector if it ends
    `beyond` r."""
    steps = BLOCK // together
    levels = sorted({size for own in sums for size, _ in own.levels})
    if not levels:
        return []
    lines = [
        f"for (int block = 1; {end} - r > {(BLOCK - 1) * threads + beyond}; ++block) {{",
        f"  {hint}for (int turn = 0; turn < {steps}; ++turn, r += {together * threads}) {{",
        *(f"    {line}" for line in body),
        "  }",
    ]
    for size in levels:
        merges = [line for own in sums for line in own.merge(size)]
        test = f"if (block % {size // BLOCK} == 0) " if size > BLOCK else ""
        lines += [f"  {test}{{", *(f"    {line}" for line in merges), "  }"]
    return [*lines, "}"]


def parts(
    sums: list[Blocked],
    pointers: list[str],
    ctype: str,
    rows: str,
    threads: int,
    count: int,
    all_there: bool,
) -> list[str]:
    """Statements that merge what `count` splits left of a row, from split r on, each `threads`
    splits after the one before: all is read before the first is merged.

    Args:
        pointers: to each register of every split and row, of the reductions one after the other.
        rows: how many there are, as C text; the row itself is o.
        all_there: whether no split is beyond r_end, the last one's end.
    """
    reads, merges = [], []
    for k in range(count):
        pointer, here = iter(pointers), f"r + {k * threads}" if k else "r"
        at = here if all_there else f"min(({ctype})({here}), ({ctype})(r_end - 1))"
        reads.append(f"const {ctype} p{k} = ({at}) * {rows} + o;")
        texts = []
        for own in sums:
            others = {}
            for j, (kind, name) in enumerate(own.states):
                reads.append(f"const {kind} t{name}_{k} = {next(pointer)}[p{k}];")
                others[f"t{j}"] = f"t{name}_{k}"
            texts.append(f"{{ {rename(own.spec.combine, own.taking(), others)} }}")
        condition = "" if all_there else f"if ({here} < r_end) "
        merges.append(f"{condition}{{ {' '.join(texts)} }}")
    return reads + merges


def rename(text: str, states: list[tuple[str, str]], others: dict[str, str]) -> str:
    """Replace the registers s0, t0, u0, x … of a reduction's text by variables; m and n, too."""
    table = {f"s{k}": name for k, (_, name) in enumerate(states)} | others
    return re.sub(r"\b(s\d|t\d|u\d|[mnx])\b", lambda m: table.get(m.group(1), m.group(1)), text)
