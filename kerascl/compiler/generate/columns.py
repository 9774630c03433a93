"""Neighbouring columns that a work-item of a GPU reads as one vector.

Of tall arrays work-groups share a column's elements, and what they leave is merged later; of many
short columns one group has all of them, or one work-item.  Within a group the work-items of a
sub-group that have the same columns merge first, if lanes give each other values, then all of them
through local memory, where each has one column.
"""

from __future__ import annotations

from typing import Any

from kerascl.compiler.generate.builder import Builder, power_of_two
from kerascl.compiler.generate.emit import Scope
from kerascl.compiler.generate.held import at_once
from kerascl.compiler.generate.neighbours import MOST, VECTOR_BYTES, fits
from kerascl.compiler.generate.reduced import Reduced, ctypes
from kerascl.compiler.generate.rows import WORDS, Layout, merged
from kerascl.kernels.contract.lanes import lanes_of
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import narrowest
from kerascl.kernels.tuning.machine import of_facts
from kerascl.runtime.device import DeviceInfo

LINE = 128  # bytes that neighbours read of a row of memory: a third faster than 32 on an H200
GROUP = 512  # work-items of a group at most
LEAST = 4  # elements of a work-item, if it may read so many at once: what it leaves is read, too
BUSY = 0.5  # of the work-items that a device has room for, so many have enough reads under way
CROWDED = 1.1  # what more work-items than that cost: of some kernels registers allow no more
ACCUMULATORS = 32  # registers of a work-item that hold its columns' results
LONG_STEPS = 4  # elements that a work-item reads at once where a step is many instructions
BANKS = 32  # of local memory
# Work-items of a group that have whole columns, and bytes that those of a compute unit ask for.
ALONE_GROUP = 128
ENOUGH = 48 << 10


def sizeof(ctype: str) -> int:
    """Bytes of a register."""
    return 16 if ctype == "double2" else 8 if ctype in ("long", "ulong", "double", "float2") else 4


def found(
    build: Builder, of: Reduced, dims: tuple[int, ...], marks: Any, layout: Layout
) -> Layout | None:
    """The layout in which work-items take the most neighbouring columns, where a tall array is
    split; None elsewhere.

    Args:
        layout: that of single columns.
    """
    tall = not marks[-1] and layout.splits > 1
    read = [x.dtype for x in of.read_whole()]
    if build.info.kind != "gpu" or build.generic or not tall or not read:
        return None
    sizes = [t.itemsize for t in read]
    kinds, in_loop, long = _registers(build, of)
    wide, states = min(MOST, VECTOR_BYTES // max(sizes)), sum(map(sizeof, in_loop))
    while wide > 1:
        together = at_once(of, of.bytes_each(wide), wide)
        together = min(together, LONG_STEPS) if long else together
        made = _layout(of.rows, of.length, wide, wide * max(sizes), together, build.info)
        alike = all(fits(t, min(wide, VECTOR_BYTES // t.itemsize)) for t in read)
        room = build.info.local_mem_bytes
        merging, all_local = local_bytes(made, kinds)
        few = states * wide <= 4 * ACCUMULATORS and 2 * merging <= room >= all_local
        if alike and dims[-1] % wide == 0 and few and made.row_threads >= wide:
            return made if made.splits > 1 else None
        wide //= 2
    return None


def many(
    build: Builder, of: Reduced, dims: tuple[int, ...], marks: Any, layout: Layout
) -> Layout | None:
    """The layout in which a work-item has all elements of neighbouring columns, where there are so
    many that memory is busy; None elsewhere.

    Args:
        layout: that of single columns.
    """
    read, members = [x.dtype for x in of.read_whole()], of.cluster.members
    short = not marks[-1] and layout.splits == 1 and not of.cluster.staged
    if build.info.kind != "gpu" or build.generic or not short or not read or of.length < LEAST:
        return None
    stored = any(id(m) not in of.cluster.row and id(m) in build.writes for m in members)
    wide = min(MOST, VECTOR_BYTES // max(t.itemsize for t in read))
    states = sum(map(sizeof, _registers(build, of)[1]))
    while wide > 1 and not stored:
        together = min(at_once(of, of.bytes_each(wide), wide), power_of_two(of.length) // 2)
        under_way = of.rows // wide * together * of.bytes_each(wide)
        alike = all(fits(t, min(wide, VECTOR_BYTES // t.itemsize)) for t in read)
        few = states * wide <= 4 * ACCUMULATORS
        busy = under_way >= ENOUGH * build.info.compute_units
        if alike and few and busy and dims[-1] % wide == 0:
            size = min(ALONE_GROUP, build.info.max_work_group_size)
            return Layout(size, 1, 1, False, wide=wide, together=together)
        wide //= 2
    return None


def shared(
    build: Builder, of: Reduced, dims: tuple[int, ...], marks: Any, layout: Layout
) -> Layout | None:
    """The layout in which the work-items of one group share neighbouring columns, as few as keep
    memory busy, where each column has a group; None elsewhere.

    Args:
        layout: that of single columns.
    """
    read, info = [x.dtype for x in of.read_whole()], build.info
    short = not marks[-1] and layout.splits == 1 and not of.cluster.staged
    if info.kind != "gpu" or "keeps_choices_wrongly" in info.quirks or build.generic:
        return None
    stored = any(id(m) not in of.cluster.row and id(m) in build.writes for m in of.cluster.members)
    if not short or not read or stored:
        return None
    kinds, in_loop, _ = _registers(build, of)
    size, states = max(t.itemsize for t in read), sum(map(sizeof, in_loop))
    wide = min(MOST, VECTOR_BYTES // size)
    while wide > 1:
        alike = all(fits(t, min(wide, VECTOR_BYTES // t.itemsize)) for t in read)
        alike = alike and dims[-1] % wide == 0 and states * wide <= 4 * ACCUMULATORS
        group_rows = max(1, LINE // (wide * size))
        alike = alike and of.rows % (wide * group_rows) == 0
        most = min(GROUP, info.max_work_group_size) // group_rows
        threads, nbytes = wide, of.bytes_each(wide)
        while alike and threads <= most and LEAST * threads <= of.length:
            together = min(at_once(of, nbytes, wide), power_of_two(of.length // threads) // 2)
            under_way = of.rows // wide * threads * together * nbytes
            if under_way >= ENOUGH * info.compute_units:
                lanes = lanes_of(info)
                if lanes is not None and group_rows * threads % lanes.width:
                    lanes = None
                made = Layout(
                    group_rows, threads, 1, False, wide=wide, together=together, exchange=lanes
                )  # fmt: skip
                return made if local_bytes(made, kinds)[1] <= info.local_mem_bytes // 2 else None
            threads *= 2
        wide //= 2
    return None


def _registers(build: Builder, of: Reduced) -> tuple[list[str], list[str], bool]:
    """C types of the registers that reductions end with and of those that their loops have, and
    whether a step of one is many instructions."""
    writer, ends, in_loop, long = build.writer(), [], [], False
    for m in of.cluster.members:
        if m.op.reduction is not None:
            spec, own = m.op.reduction(m.inputs[0].dtype), ctypes(writer, m)
            ends += own
            in_loop += own * (2 if spec.block else 1)
            in_loop += ctypes(writer, m, [kind for kind, _ in spec.scratch])
            long = long or bool(spec.scratch)
    return ends, in_loop, long


def _layout(
    rows: int, length: int, wide: int, vector: int, together: int, info: DeviceInfo
) -> Layout:
    """The layout in which a work-item has `wide` of `rows` columns.

    Args:
        vector: bytes of the widest vector.
        together: elements of a column that a work-item reads at once, at most.
    """
    group_rows = min(max(1, LINE // vector), power_of_two(rows // wide))
    most = min(GROUP, info.max_work_group_size)
    threads = max(1, min(most // group_rows, power_of_two(length) // 4))
    groups = ceil_div(rows, group_rows * wide)
    items = of_facts(info).resident * info.compute_units
    slots = max(1, min(info.compute_units, items // (group_rows * threads)))
    wanted = items * BUSY / (group_rows * threads * groups)
    longest = max(2, length // (threads * min(LEAST, together)))
    few, many = (max(2, min(longest, int(part * wanted))) for part in (0.5, 1.5))

    def cost(splits: int) -> float:
        """What the compute unit with most groups reads of elements, and turns of reads."""
        each = ceil_div(length, threads * splits)
        own = ceil_div(groups * ceil_div(length, threads * each), slots) * each
        return (own + _turns(each, together)) * (1 if splits <= wanted else CROWDED)

    each = ceil_div(length, threads * min(range(few, many + 1), key=cost))
    chunk, together = each * threads, min(together, power_of_two(each))
    exchange = lanes_of(info)
    if exchange is not None and group_rows * threads % exchange.width:
        exchange = None
    return Layout(
        group_rows, threads, ceil_div(length, chunk), False, wide=wide, chunk=chunk,
        together=together, exchange=exchange,
    )  # fmt: skip


def sub_group(layout: Layout, info: DeviceInfo) -> int:
    """Lanes of one where neighbours have a column each, or several, 0 where compilers choose:
    Intel's, for GPUs with 16 or 32, takes 32 however many values a work-item holds, and spills."""
    fewest = narrowest(info)
    return fewest if layout.group_rows > 1 and fewest >= 16 else 0


def _turns(each: int, together: int) -> int:
    """How often a work-item waits for reads of a column's `each` elements."""
    turns = 0
    while together:
        turns += each // together
        each, together = each % together, together // 4
    return turns


def _alike(layout: Layout, kinds: list[str]) -> int:
    """How many work-items of a sub-group have the same columns and merge them lane by lane."""
    lanes, stride = layout.exchange, layout.group_rows
    if lanes is None or any(kind not in WORDS for kind in kinds):
        return 1
    return max(1, lanes.width // stride)


def _step(layout: Layout, alike: int) -> int:
    """Registers in local memory from a column's first to the next one's, in other banks."""
    return layout.row_threads // alike * layout.group_rows + max(1, BANKS // layout.wide)


def local_bytes(layout: Layout, kinds: list[str]) -> tuple[int, int]:
    """Bytes of local memory in which `combine` merges registers, and all: where each work-item has
    a column they are merged once more, and again by the last group."""
    states = sum(map(sizeof, kinds))
    merging = states * layout.wide * _step(layout, _alike(layout, kinds))
    return merging, merging + 2 * states * layout.group_rows * layout.row_threads


def combine(
    outer: Scope,
    inner: Scope,
    layout: Layout,
    columns: list[list[Any]],
    made: list[Any],
    local_lines: list[str],
    alone: bool = False,
) -> None:
    """Merge the registers of all columns of `layout`, known in `outer`, with one barrier.

    Args:
        inner: a scope in which each work-item has one column.
        columns: of each column, the registers of each reduction.
        made: of each reduction, registers in `inner`, of which a column's work-items get parts of
            the result.
        alone: whether the first of these gets all of it.
    """
    stride, wide, lanes = layout.group_rows, layout.wide, layout.exchange
    alike = _alike(layout, [ctype for _, states in made for ctype, _ in states])
    distance = alike * stride // 2
    while lanes is not None and alike > 1 and distance >= stride:
        outer.writer.helper(lanes.helper)
        for spec, states in (own for column in columns for own in column):
            others = [lanes.other(ctype, name, distance) for ctype, name in states]
            outer.lines.append(f"{{ {merged(spec, states, others)} }}")
        distance //= 2
    left, step = layout.row_threads // alike, _step(layout, alike)
    stores, merges = [], []
    for number, (spec, states) in enumerate(made):
        others = []
        for k, (ctype, name) in enumerate(states):
            local_lines.append(f"__local {ctype} c{name}[{wide * step}];")
            others.append(f"c{name}[ol % {wide} * {step} + k * {stride} + ol / {wide}]")
            for column, own in enumerate(columns):
                place = f"{column * step} + rl / {alike} * {stride} + ol"
                stores.append(f"c{name}[{place}] = {own[number][1][k][1]};")
        merges.append(f"{{ {merged(spec, states, others)} }}")
    outer.lines += [f"if (rl % {alike} == 0) {{", *stores, "}"] if alike > 1 else stores
    outer.lines.append("barrier(CLK_LOCAL_MEM_FENCE);")
    first, every = ("0", 1) if alone else ("rl", layout.narrowed().row_threads)
    inner.lines += [
        f"{'if (rl == 0) ' if alone else ''}for (int k = {first}; k < {left}; k += {every}) {{",
        *(f"  {merge}" for merge in merges),
        "}",
    ]
