"""Second kernels of sums of columns, on GPUs: they add up what work-groups left of each.

Such kernels are small, and many equal ones become one launch.  All of its work-groups shall run at
once, so the more there are, the fewer work-items a column has.  These read much at a time; what
follows the sums is asked for before them, and one barrier is all that they wait for.
"""

from __future__ import annotations

import math
import re
from typing import Any

from kerascl.compiler.generate.blocked import BLOCK
from kerascl.compiler.generate.builder import power_of_two
from kerascl.compiler.generate.emit import Scope
from kerascl.compiler.generate.rows import TOGETHER, Layout, layout_of, merged
from kerascl.kernels.contract.sizes import ceil_div, last_power
from kerascl.kernels.tuning.machine import of_facts
from kerascl.runtime.device import DeviceInfo

REGISTERS = 48  # of a work-item, about: as many of these as there are registers for run at once
READS = 32  # that a work-item has under way at most; and the part of its registers for them
PART = 0.25
USUAL = 4  # parts that a work-item of a GPU reads at once elsewhere
LEAST_THREADS = 4  # of a column: fewer would read too long
# A read of one element, in the text of a kernel, that needs to know a column's place alone.
_READ = re.compile(r"const (\w+) (val\d+) = ((?:\w+\()?buf\d+\[[x\d_ +*]+\]\)?);")


def layout(rows: int, splits: int, info: DeviceInfo, copies: int) -> Layout:
    """The layout of one of so many equal kernels in a launch, each for `splits` parts of `rows`;
    the usual one of fewer than two."""
    found = layout_of(rows, splits, rows == 1, True, info)
    if copies < 2 or not simple(found, info):
        return found
    machine, threads = of_facts(info), found.row_threads
    wanted = ceil_div(copies * found.groups(rows), info.compute_units)  # groups of a unit
    while threads > LEAST_THREADS:
        items = threads * found.group_rows
        if min(machine.resident // items, machine.registers // (REGISTERS * items)) >= wanted:
            break
        threads //= 2
    found.row_threads = min(found.row_threads, max(threads, LEAST_THREADS))
    return found


def simple(layout: Layout, info: DeviceInfo) -> bool:
    """Whether the first work-item of a column may be the only one that knows its sum, with what
    was read before it."""
    quirk = "keeps_choices_wrongly" in info.quirks
    alone = layout.threads_first or layout.row_threads > TOGETHER
    return info.kind == "gpu" and not quirk and not alone


def together(layout: Layout, splits: int, arrays: int, info: DeviceInfo) -> int:
    """How many parts of each of so many arrays a work-item reads at once; a power of two."""
    machine = of_facts(info)
    registers = min(4 * machine.registers / machine.resident, info.registers or math.inf)
    reads = min(READS, int(PART * registers))
    most = last_power(max(1, reads // arrays))
    return min(BLOCK, most, power_of_two(splits // layout.row_threads))


def turns(layout: Layout, splits: int, arrays: int, info: DeviceInfo) -> tuple[int, int]:
    """How many parts a work-item reads at once, of each of so many arrays, and how many it has left
    at most.  0 arrays stand for kernels that are not `simple`."""
    threads = layout.row_threads
    if arrays:
        count = together(layout, splits, arrays, info)
        return count, tail(splits, threads, count)
    each = ceil_div(splits, threads)
    count = USUAL if info.kind == "gpu" and each > 1 else 1
    return count, min(count - 1, each)


def tail(splits: int, threads: int, together: int) -> int:
    """How many parts, at most, a work-item has left behind its whole turns."""
    each, more = divmod(splits, threads)
    left = each % together
    return max(left, (each + 1) % together) if more else left


def early(lines: list[str], owner: str) -> tuple[list[str], list[str]]:
    """Of the lines that follow a column's sum: those that only read, for where nothing is known of
    it yet, and all others."""
    found = {line: m for line in lines if (m := _READ.fullmatch(line))}
    if not found:
        return [], lines
    before = [
        *(f"{m[1]} {m[2]} = 0;" for m in found.values()),
        f"if ({owner}) {{", *(f"  {m[2]} = {m[3]};" for m in found.values()), "}",
    ]  # fmt: skip
    return before, [line for line in lines if line not in found]


def combine(scope: Scope, layout: Layout, registers: list[Any], local_lines: list[str]) -> None:
    """Merge the registers of a column's work-items, of which the first has the results."""
    if layout.row_threads == 1:
        return
    stores, merges = [], []
    for spec, states in registers:
        size = layout.group_rows * layout.row_threads
        local_lines += [f"__local {ctype} l{name}[{size}];" for ctype, name in states]
        stores += [f"l{name}[lid] = {name};" for _, name in states]
        others = [f"l{name}[lid + k * {layout.group_rows}]" for _, name in states]
        merges.append(f"{{ {merged(spec, states, others)} }}")
    scope.lines += [
        *stores,
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"if (rl == 0) for (int k = 1; k < {layout.row_threads}; ++k) {{",
        *(f"  {merge}" for merge in merges),
        "}",
    ]
