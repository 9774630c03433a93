"""Looks through the instructions that ptxas makes of Hopper's kernels for products gone wrong.

A product of a warpgroup reads its left operand from registers, and adds to others, until a wait for
it.  Whoever writes one of these in between changes the product.  No compiler may do so, but ptxas
does: it forgets a left operand's registers at a branch, and gives them to other values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Instructions that write no register, or are looked at apart.
_WRITE_NOTHING = frozenset({
    "ST", "STG", "STS", "STL", "RED", "BRA", "BRX", "BSYNC", "BSSY", "BREAK", "EXIT", "SYNCS",
    "WARPGROUP", "BAR", "UTMALDG", "UTMASTG", "UTMACCTL", "FENCE", "MEMBAR", "CCTL", "HGMMA", "NOP",
    "DEPBAR", "WARPSYNC", "ERRBAR", "LDGDEPBAR", "USETMAXREG", "ISETP", "FSETP", "DSETP", "HSETP2",
})  # fmt: skip
_DOUBLES = frozenset({"DADD", "DMUL", "DFMA"})
_PRODUCT = re.compile(r"HGMMA\.64x(\d+)x\d+\.\S+ R(\d+), (?:R(\d+), )?")
MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class Hazard:
    """A write to a register of a product that is under way.

    Attributes:
        kind: "operand" or "result".
        product, writer: addresses of the product's first instruction and of the writing one.
        text: the writing instruction.
    """

    kind: str
    product: int
    writer: int
    text: str


@dataclass
class _Group:
    """Products that are waited for together."""

    at: int
    operand: set[int] = field(default_factory=set)
    result: set[int] = field(default_factory=set)


def hazards(listing: str) -> list[Hazard]:
    """Those of a kernel, from nvdisasm's listing of it.

    The instructions are walked in order, and each branch back is taken once, so that what a loop's
    turn leaves under way meets the next turn; what is jumped over is looked at, too.
    """
    instructions, labels = _parsed(listing)
    under_way: list[_Group] = []
    open_group: _Group | None = None
    taken: set[int] = set()
    found: dict[Hazard, None] = {}
    at = steps = 0
    while at < len(instructions):
        steps += 1
        assert steps < MOST_STEPS, "the walk does not end"
        address, text = instructions[at]
        if product := _PRODUCT.search(text):
            columns, result, operand = product.groups()
            open_group = open_group or _Group(address)
            open_group.result |= _registers(int(result), int(columns) // 2)
            if operand:
                open_group.operand |= _registers(int(operand), 4)
            if "gsb0" in text:  # the group ends
                under_way.append(open_group)
                open_group = None
        elif wait := re.search(r"WARPGROUP\.DEPBAR\.LE \w+, (0x[0-9a-f]+)", text):
            left = int(wait[1], 16)
            under_way = under_way[-left:] if left else []
        else:
            written = _written(text)
            for group in [*under_way, *([open_group] if open_group else [])]:
                for kind in ("operand", "result"):
                    if written & getattr(group, kind):
                        found[Hazard(kind, group.at, address, text)] = None
        branch = re.search(r"BRA\S* .*`\((\S+)\)", text)
        target = labels.get(branch[1], len(instructions)) if branch else at + 1
        if target <= at and at not in taken:
            taken.add(at)
            at = target
        else:
            at += 1
    return list(found)


def products(listing: str) -> tuple[int, int]:
    """How many products there are, and how many of them read a left operand from registers."""
    found = _PRODUCT.findall(listing)
    return len(found), sum(bool(operand) for *_, operand in found)


def _parsed(listing: str) -> tuple[list[tuple[int, str]], dict[str, int]]:
    instructions: list[tuple[int, str]] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"(\.L\S*):", line.strip()):
            labels[label[1]] = len(instructions)
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            instructions.append((int(match[1], 16), match[2]))
    return instructions, labels


def _registers(first: int, count: int) -> set[int]:
    return set(range(first, first + count))


def _written(text: str) -> set[int]:
    """Registers that an instruction writes."""
    name, _, rest = re.sub(r"^@!?U?P\w+\s+", "", text).partition(" ")
    kind, *parts = name.split(".")
    to = re.match(r"(?:U?P\w+,\s*)*R(\d+)\b", rest.strip())
    if kind in _WRITE_NOTHING or not to:
        return set()
    count = 1
    if "128" in parts or kind == "LDSM" and "4" in parts:
        count = 4
    elif {"64", "WIDE"} & set(parts) or (kind == "CS2R" and "32" not in parts):
        count = 2
    elif kind in _DOUBLES or kind == "LDSM" and "2" in parts:
        count = 2
    return _registers(int(to[1]), count)
