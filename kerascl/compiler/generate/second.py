"""Second kernels of sums of columns, on GPUs: they add up what work-groups left of each.

Such kernels are small, and many equal ones become one launch: what they take is waiting.  So all
that a work-item reads is under way before it adds anything, of neighbouring columns as vectors;
what follows the sums is asked for before them; and one barrier is all that they wait for.  All
work-groups of a launch run at once, of as few work-items as have registers for that.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from kerascl.compiler.generate.blocked import PARTS_FROM, rename
from kerascl.compiler.generate.columns import local_bytes, sizeof
from kerascl.compiler.generate.emit import Writer
from kerascl.compiler.generate.neighbours import VECTOR_BYTES
from kerascl.compiler.generate.rows import WORDS, Layout
from kerascl.kernels.contract.lanes import lanes_of
from kerascl.kernels.contract.loaded import LOADED
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.tuning.machine import of_facts
from kerascl.runtime.device import DeviceInfo

COLUMNS = 32  # of a group: of words, those of a line of memory
GROUP = 512  # work-items of a group at most
READS = 0.7  # of a work-item's registers, those for what it reads
OTHERS = 48  # registers that it has for all else, about
SUB_GROUPS = 64  # work-items of the largest sub-groups, where it is not known
USUAL = 4  # parts that a work-item of a GPU reads at once elsewhere
# A read of one element, in the text of a kernel, that needs to know a column's place alone.
_READ = re.compile(r"const (\w+) (val\d+) = ((?:\w+\()?buf\d+\[[x\d_ +*]+\]\)?);")


def layout(
    rows: int, splits: int, kinds: list[str], info: DeviceInfo, copies: int = 1
) -> Layout | None:
    """The layout of one of so many equal kernels in a launch, each for `splits` parts of `rows`
    columns: registers of C types `kinds`.  None where work-items cannot read all at once, or the
    first of a column may not be the only one that knows its sum, with what was read before it."""
    if info.kind != "gpu" or "keeps_choices_wrongly" in info.quirks or rows < COLUMNS:
        return None
    words = all(kind in WORDS for kind in kinds)
    wide = next(n for n in (VECTOR_BYTES // 4, 2, 1) if n == 1 or (words and rows % n == 0))
    machine, lanes, group_rows = of_facts(info), lanes_of(info), COLUMNS // wide
    room = READS * min(4 * machine.registers / machine.resident, info.registers or math.inf)
    groups = ceil_div(copies * ceil_div(rows, COLUMNS), info.compute_units)  # of a unit
    step = max(wide, (lanes.width if lanes else SUB_GROUPS) // group_rows)
    best, most = None, 0.0  # of all groups, those that run at once
    for threads in range(step, min(GROUP, info.max_work_group_size) // group_rows + 1, step):
        items, each = threads * group_rows, ceil_div(splits, threads)
        made = Layout(group_rows, threads, 1, False, wide=wide)
        if lanes and items % lanes.width == 0:
            made = replace(made, exchange=lanes)
        read = each * wide * sum(map(sizeof, kinds)) // 4
        fits = (read <= room and each < PARTS_FROM) or each == 1
        if fits and local_bytes(made, kinds)[0] <= info.local_mem_bytes // 2:
            registers = (read + OTHERS) * items
            runs = min(machine.resident // items, machine.registers // registers)
            if best is None or min(1, runs / groups) > most:
                best, most = made, min(1, runs / groups)
    return best


def parts(
    writer: Writer, columns: list[list[Any]], pointers: list[str], rows: int, splits: int,
    layout: Layout,
) -> list[str]:  # fmt: skip
    """Statements that merge a work-item's parts of its columns, which are all read before.

    Args:
        columns: of each column, the registers of each reduction.
        pointers: of each reduction, to its register of every split and column.
    """
    writer.helper(LOADED)
    ctype, wide, threads = writer.index_type, layout.wide, layout.row_threads
    each = ceil_div(splits, threads)
    reads, merges = [], []
    for k in range(each):
        here = f"rl + {k * threads}" if k else "rl"
        reads.append(f"const {ctype} p{k} = ({ctype})({here}) * {writer.number(rows)} + o;")
        for number, pointer in enumerate(pointers):
            spec, ((kind, name),) = columns[0][number]
            vector, part = f"{kind}{wide}" if wide > 1 else kind, f"t{name}_{k}"
            value = f"{pointer}[p{k}]"
            if wide > 1:
                value = f"*(__global const {vector}*)({pointer} + p{k})"
            if (k + 1) * threads <= splits:
                reads.append(f"const {vector} {part} = {value};")
            else:  # nothing is there for the last work-items
                reads.append(f"{vector} {part} = ({vector})({spec.states[0][1]});")
                reads.append(f"if ({here} < {splits}) {part} = {value};")
            for column, own in enumerate(columns):
                taken = f"{part}.s{column}" if wide > 1 else part
                merges.append(f"{{ {rename(spec.combine, own[number][1], {'t0': taken})} }}")
    return [*reads, "KCL_LOADED {", *(f"  {line}" for line in merges), "}"]


def turns(layout: Layout, splits: int, info: DeviceInfo) -> tuple[int, int]:
    """How many parts a work-item reads at once in other layouts, and how many it has left behind
    its whole turns at most."""
    each = ceil_div(splits, layout.row_threads)
    count = USUAL if info.kind == "gpu" and each > 1 else 1
    return count, min(count - 1, each)


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
