"""Short rows of which work-items of a GPU keep vectors in registers, and how much is read.

Memory is busy only while enough reads are under way.  So a row has as few work-items as their
registers allow, what these read comes before all that is computed from it, and of rows of a vector
or two a work-item takes several.
"""

from __future__ import annotations

from typing import Any

from kerascl.compiler.generate import loops, neighbours
from kerascl.compiler.generate.blocked import BLOCK
from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import Writer
from kerascl.compiler.generate.loops import Kept
from kerascl.compiler.generate.reduced import Reduced
from kerascl.compiler.generate.rows import Held, Layout, few_rows
from kerascl.core.op import Kind
from kerascl.dtypes import DType

# Elements of a reduction that a work-item of a GPU reads at once; twice as many of up to 4 bytes.
TOGETHER = 4
LARGE_GROUP = 512  # work-items; beyond it each reads fewer bytes at once:
LARGE_BYTES = 2 * neighbours.VECTOR_BYTES  # two groups fit a unit if registers are few
STATEMENTS = 2048  # of all elements that are written out one after the other
# Bytes that a work-item of a GPU reads at once, and how many groups of several rows each compute
# unit has at least.
UNDER_WAY = 128
SEVERAL_GROUPS = 8
# Work-items of a group whose units may have two, and bytes of rows of which two on each unit crowd
# the last cache: registers that keep more of them leave room for but one.
KEEPING = 1024
CROWDING = 128 << 10
RAGGED_TURNS = 2  # vectors of a work-item, from which rows may begin and end beside them


def streams(build: Builder, of: Reduced) -> list[DType]:
    """Of which dtypes the bytes of rows are."""
    read = of.read_whole() or [x for x in of.values() if id(x) in build.outside]
    return [x.dtype for x in read]


def vectors(build: Builder, of: Reduced, along: bool, per_thread: int) -> Held | None:
    """What work-items of a GPU may keep of short rows; None where they may not.

    Args:
        along: whether neighbours belong to one row.
        per_thread: how many elements may be kept, 0 for none.
    """
    if build.info.kind != "gpu" or build.generic or not along or not of.bytes_each():
        return None
    if of.cluster.staged and per_thread == 0:
        return None
    vector = neighbours.most(streams(build, of), neighbours.MOST, of.length)
    most = STATEMENTS // max(1, of.cluster.statements)
    return Held(vector, of.bytes_each(), most) if vector > 1 else None


def together(
    build: Builder, of: Reduced, dims: tuple[int, ...], marks: Any, layout: Layout, each: int
) -> int:
    """How many neighbours a work-item of a GPU takes together, of `each` that it reads at once."""
    along = marks[-1] and sum(marks) == 1 and layout.threads_first and layout.splits == 1
    if build.info.kind != "gpu" or build.generic or not along or few_rows(of.rows, build.info):
        return 1
    if layout.held:  # the last vector of some is beyond the row's end
        each = neighbours.MOST
    return neighbours.most(streams(build, of), each, dims[-1])


def ragged(build: Builder, of: Reduced, marks: Any, layout: Layout, each: int) -> int:
    """As `together`, of long rows that begin or end anywhere: what lies beside whole vectors is
    taken alone.  Elements then come in another order, which results that are places cannot have."""
    along = marks[-1] and sum(marks) == 1 and layout.threads_first and layout.splits == 1
    loops = layout.per_thread == 0 and not layout.held and layout.lanes == layout.wide == 1
    gpu = build.info.kind == "gpu" and not build.generic
    if not (along and loops and gpu) or few_rows(of.rows, build.info):
        return 1
    read = streams(build, of)
    count = neighbours.most(read, each, each)
    whole = all(neighbours.fits(dtype, count) for dtype in read)
    specs = [m.op.reduction(m.inputs[0].dtype) for m in of.cluster.members if m.op.reduction]
    places = any(kind == "index" for spec in specs for kind, _ in spec.states)
    items = layout.row_threads
    enough = 2 * count <= items and RAGGED_TURNS * count * items <= of.length
    return count if whole and enough and not places else 1


def several(build: Builder, of: Reduced, dims: tuple[int, ...], marks: Any, layout: Layout) -> int:
    """How many short rows a work-item takes at once, where agreeing on each takes no barrier."""
    levels = of.levels()
    later = any(levels[id(m)] for m in of.cluster.members if m.op.kind is Kind.REDUCTION)
    if of.cluster.staged or later or layout.exchange is None:
        return 1
    kept = [n for n, mark in zip(dims, marks, strict=True) if not mark]
    most = at_once(of, layout.per_thread * of.bytes_each(), layout.per_thread)
    enough = SEVERAL_GROUPS * build.info.compute_units
    count = 1
    while 2 * count <= most and kept[-1] % (2 * count) == 0:
        if layout.groups(of.rows) < 2 * count * enough:
            break
        count *= 2
    return count


def at_once(of: Reduced, nbytes: int, copies: int) -> int:
    """How many times so many bytes, and copies of an element's statements, a work-item of a GPU
    reads at once; a power of two."""
    text = copies * of.cluster.statements
    count = 1
    while 2 * count * max(nbytes, UNDER_WAY // BLOCK) <= UNDER_WAY:
        if 2 * count * text > STATEMENTS:
            break
        count *= 2
    return count


def early(
    build: Builder, of: Reduced, writer: Writer, layout: Layout, lines: list[str], first: bool
) -> list[str]:
    """Those of a stage's lines that come before all others: no read then waits for what the row's
    threads agree on, or for what is computed from the reads before it."""
    whole = {writer.buffer(x) for x in of.read_whole()} if layout.held else set()
    few = few_rows(of.rows, build.info)

    def reads(line: str) -> bool:
        vector = loops.VECTOR.fullmatch(line)
        return few or bool(vector and vector[1] in whole)

    if first and (layout.held or few):
        return loops.read_early(lines, reads)
    found = (x for x in lines if loops.READ.fullmatch(x) or loops.VECTOR.fullmatch(x))
    return [x for x in found if reads(x)]


def turn(build: Builder, of: Reduced, layout: Layout, most: int) -> int:
    """How many elements a work-item reads in a loop before it goes on, of at most so many
    statements: a GPU's memory is busy only while several reads of each are under way."""
    if layout.together or build.info.kind != "gpu":
        return layout.together or 1
    width = max(1, sum(x.dtype.itemsize for x in of.read_whole()))
    count = 4 * TOGETHER if width <= 2 else 2 * TOGETHER if width <= 4 else TOGETHER
    if layout.row_threads > LARGE_GROUP:
        count = min(count, max(1, LARGE_BYTES // width))
    while count >= TOGETHER and layout.each(of.length) < 2 * count:
        count //= 2
    return count if count >= TOGETHER and count * of.cluster.statements <= most else 1


def kept(build: Builder, of: Reduced, layout: Layout) -> Kept | None:
    """What work-items of a GPU keep of long rows that large groups read again; None of others."""
    levels = of.levels()
    again = any(
        levels[id(m)] and id(m) not in of.cluster.row and id(m) in build.writes
        for m in of.cluster.members
    )
    info, near, threads = build.info, layout.near, layout.row_threads
    if info.kind != "gpu" or "keeps_choices_wrongly" in info.quirks or not again:
        return None
    found = Kept(1, True) if of.length * of.bytes_each() <= CROWDING else Kept(4, False)
    fits = 2 * found.count * threads * neighbours.VECTOR_BYTES <= info.local_mem_bytes
    large = threads >= KEEPING and near > 1 and not layout.ragged and layout.group_rows == 1
    enough = (loops.inside(of) or of.length) >= found.count * near * threads
    return found if large and enough and (fits or not found.near) else None


def move(lines: list[str], start: int, to: int) -> None:
    """Move reads of what a row has once, which stand before the loop that begins behind `start`, to
    where the row's first pass has not begun."""
    loop = lines.index("{", start)
    reads = [x for x in lines[start:loop] if loops.READ.fullmatch(x)]
    lines[start:loop] = [x for x in lines[start:loop] if x not in reads]
    lines[to:to] = reads
