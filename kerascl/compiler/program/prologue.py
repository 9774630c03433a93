"""Small steps before products of a few rows become a part of these.

A norm of one token's features, or a mask behind attention, takes a launch of its own, several
microseconds, for a few thousand elements.  Where only such products read them, each of their
work-groups computes them again into its local memory.  A row that is quantised on the way has two
results: the numbers, which are multiplied, and the scale, which epilogues read.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kerascl import dtypes
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.contract.sizes import round_up
from kerascl.kernels.contract.source import MADE, SPACE, Source
from kerascl.runtime.device import DeviceInfo

MOST_ROWS = 2  # that a work-group reduces, one after the other
MOST_ITEMS = 1 << 13  # of a map
MOST_BYTES = 24 << 10  # of local memory for the values
ALIGNED = 32  # bytes: where each value begins
SPARE_BYTES = 64  # of local memory for what texts have beside arrays
# Work-groups of a product to a compute unit: more come after each other, and each does the work.
MOST_GROUPS = 8
_LOCAL = re.compile(r"^ *__local (\w+) \w+\[(\d+)\];\n", re.MULTILINE)
_BYTES = {dtype.storage: dtype.itemsize for dtype in dtypes.ALL}
_GUARD = re.compile(r"^(  if \([^\n]*\)) return;$", re.MULTILINE)
# What the text of a step may not have: it would see the product's work-group, or memory that its
# result is not in.
_ROWS_WITHOUT = re.compile(r"return|__global|KCL_|get_global_id|get_(?!global_offset)\w+\((?!0\))")
_MAP_WITHOUT = re.compile(r"barrier|__local|__global|KCL_|get_(?!global_id\(0\))|return")


def absorb(
    steps: list[Step],
    generated: list[tuple[Step, Source]],
    slots: list[Slot],
    aliases: set[tuple[int, int]],
    info: DeviceInfo,
) -> tuple[list[Step], list[tuple[Step, Source]]]:
    """Let products compute what small steps compute for them alone.

    Args:
        steps: in order.
        generated: the steps whose source may be changed, with it.
        slots: what their arguments use.
        aliases: pairs that may share memory; those that become unsafe are taken out.
        info: the device's facts.

    Returns:
        The steps that are left, and the generated ones among them.
    """
    sources = {id(step): source for step, source in generated}
    order = {id(step): k for k, step in enumerate(steps)}
    if len(order) < len(steps):
        return steps, generated  # a loop, which launches some again
    users: dict[int, list[Step]] = {}
    for step in steps:
        for used in _used(step):
            users.setdefault(used, []).append(step)
    instead: dict[int, Step | None] = {}
    for step in steps:
        source, made = sources.get(id(step)), _results(step)
        if source is None or not made or any(slots[k].kind != "temporary" for k in made):
            continue
        readers = list(dict.fromkeys(x for k in made for x in users[k] if x is not step))
        places, nbytes = _places(made, slots)
        text = _prologue(step, source, nbytes)
        if not readers or text is None:
            continue
        text = text._replace(nbytes=text.nbytes + nbytes)
        if not all(_takes(x, sources.get(id(x)), made, text, info) for x in readers):
            continue
        read = _used(step).difference(made)
        after = steps[order[id(step)] + 1 : max(order[id(x)] for x in readers) + 1]
        if any(_written(x) & read for x in after):
            continue
        instead[id(step)] = None
        for x in readers:
            instead[id(x)], sources[id(x)] = _joined(
                step, source, text, x, sources[id(x)], places, nbytes
            )
        # work-groups read all of what another of them may have replaced
        aliases -= {pair for pair in aliases if pair[0] in read}
    found = [(step, instead.get(id(step), step)) for step in steps]
    kept = [(old, new) for old, new in found if new is not None]
    texts = [(new, sources[id(old)]) for old, new in kept if id(old) in sources]
    return [new for _, new in kept], texts


def _used(step: Step) -> set[int]:
    return {a.index for a in step.args if type(a) is Use}


def _written(step: Step) -> set[int]:
    return _used(step) if step.writes is None else set(step.writes)


def _is_written(step: Step, arg: object) -> bool:
    return type(arg) is Use and arg.index in _written(step)


def _results(step: Step) -> tuple[int, ...]:
    """The slots that a step writes, if nothing speaks against it."""
    if not all((type(a) is Use and not a.offset) or isinstance(a, np.generic) for a in step.args):
        return ()
    written = [a.index for a in step.args if type(a) is Use and _is_written(step, a)]
    return tuple(written) if len(set(written)) == len(written) else ()


def _places(made: tuple[int, ...], slots: list[Slot]) -> tuple[dict[int, int], int]:
    """Where each result begins in the local memory of all, and how many bytes that has."""
    places, end = {}, 0
    for slot in made:
        places[slot] = end
        end += round_up(slots[slot].nbytes, ALIGNED)
    return places, end


def _takes(
    step: Step, source: Source | None, made: tuple[int, ...], prologue: _Prologue, info: DeviceInfo
) -> bool:
    """Whether a product's kernel may find the slots in local memory: one as its inner parameter,
    others where its epilogue reads them."""
    if source is None or source.inner not in source.params or not step.local_size:
        return False
    inner = source.params.index(source.inner)
    groups = math.prod(step.global_size) // math.prod(step.local_size)
    fits = groups <= MOST_GROUPS * info.compute_units
    fits = fits and prologue.nbytes + source.local_bytes + SPARE_BYTES <= info.local_mem_bytes
    alike = prologue.threads in (0, step.local_size[0]) and len(step.local_size) == 1
    if not fits or not alike or _written(step).intersection(made):
        return False
    places = {k for k, a in enumerate(step.args) if type(a) is Use and a.index in made}
    beside = [source.params[k] for k in places - {inner}]
    late = all(p in source.epilogue and _read_late(p, source.body) for p in beside)
    return inner in places and late


def _read_late(param: str, body: str) -> bool:
    """Whether an epilogue reads its parameter by loads that do for any memory, and only behind what
    makes the inner parameter, unlike EPILOGUE_READ."""
    name = param.rsplit(" ", 1)[1]
    word = re.compile(rf"\b{name}\b")
    load = re.compile(rf"\b{name}\[|= vload_half\([^;]*, {name}\);")
    lines = [line for line in body.splitlines() if word.search(line)]
    return all(
        line.startswith("#define EPILOGUE(") and not word.search(load.sub("", line))
        for line in lines
    )


class _Prologue(NamedTuple):
    """What computes a step's result in any work-group: declarations of local memory, statements,
    how many work-items the group must have, 0 for any number, and bytes of local memory."""

    declared: str
    text: str
    threads: int
    nbytes: int


def _prologue(step: Step, source: Source, nbytes: int) -> _Prologue | None:
    """None where that takes too long, or the text is of another form."""
    size, local, body = step.global_size, step.local_size, source.body
    if local is None or nbytes > MOST_BYTES or math.prod(size) != size[0]:
        return None
    if "get_local_id" in body:  # work-items agree
        rows = size[0] // local[0]
        if rows > MOST_ROWS or size[0] % local[0] or _ROWS_WITHOUT.search(body):
            return None
        declared = list(_LOCAL.finditer(body))
        text = _LOCAL.sub("", body).replace("get_group_id(0)", "group_")
        if "__local" in text or any(found[1] not in _BYTES for found in declared):
            return None
        head = f"for (int group_ = 0; group_ < {rows}; ++group_)"
        text = f"  {head} {{\n{text}  barrier(CLK_LOCAL_MEM_FENCE);\n  }}\n"
        own = sum(_BYTES[found[1]] * int(found[2]) for found in declared)
        return _Prologue("".join(found[0] for found in declared), text, local[0], own)
    text = _GUARD.sub(r"\1 continue;", body)
    if size[0] > MOST_ITEMS or _MAP_WITHOUT.search(text):
        return None
    text = text.replace("get_global_id(0)", "item_")
    head = f"for (int item_ = get_local_id(0); item_ < {size[0]}; item_ += get_local_size(0))"
    return _Prologue("", f"  {head} {{\n{text}  }}\n  barrier(CLK_LOCAL_MEM_FENCE);\n", 0, 0)


def _joined(
    maker: Step, source: Source, prologue: _Prologue, reader: Step, target: Source,
    places: dict[int, int], nbytes: int,
) -> tuple[Step, Source]:  # fmt: skip
    """A product's step and source that begin with another step's work, whose results begin at
    `places` of so many bytes of local memory."""
    own: list[str] = []  # declarations beside the other step's text
    after: list[str] = []  # and behind it
    params: list[str] = []
    args: list[Any] = []
    for param, arg in zip(source.params, maker.args, strict=True):
        kind, name = param.rsplit(" ", 1)
        if _is_written(maker, arg):
            own.append(_local(param, places[arg.index]))
        else:
            own.append(f"  {kind} {name} = made_{name};\n")
            params.append(f"{kind} made_{name}")
            args.append(arg)
    for param, arg in zip(target.params, reader.args, strict=True):
        if type(arg) is Use and arg.index in places:
            after.append(_local(param, places[arg.index]))
        else:
            params.append(param)
            args.append(arg)
    making = [
        f"  __local uchar made_[{nbytes}] __attribute__((aligned({ALIGNED})));\n",
        prologue.declared, "  {\n", *own, prologue.text, "  }\n", *after,
    ]  # fmt: skip
    body = target.body.replace(SPACE.format("__global"), SPACE.format("__local"))
    # what is read of other operands is under way meanwhile
    before, mark, behind = body.rpartition(MADE)
    text = ["#define INNER_MADE\n", before, *making, mark, behind, "#undef INNER_MADE\n"]
    joined = replace(
        target,
        name=f"{target.name}_after_{source.name}",
        params=tuple(params),
        body="".join(text),
        helpers=tuple(dict.fromkeys((*source.helpers, *target.helpers))),
        uses_double=source.uses_double or target.uses_double,
        options=tuple(dict.fromkeys((*source.options, *target.options))),
        inner="",
        epilogue=tuple(param for param in target.epilogue if param in params),
    )
    # of what the other step reads any group reads all
    aligned = frozenset(x for x in reader.aligned if x[0] not in _used(maker))
    return replace(reader, args=args, name=joined.name, label=joined.name, aligned=aligned), joined


def _local(param: str, place: int) -> str:
    """The declaration of a parameter's name where its memory is the work-group's own."""
    kind, name = param.replace(" restrict", "").rsplit(" ", 1)
    kind = kind.replace("__global", "__local")
    return f"  {kind} {name} = ({kind})(made_ + {place});\n"
