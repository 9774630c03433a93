"""Small steps before products of a few rows become a part of these.

A norm of one token's features, or a mask behind attention, takes a launch of its own, several
microseconds, for a few thousand elements.  Where only such products read them, each of their
work-groups computes them again into its local memory.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kerascl import dtypes
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.contract.source import MADE, SPACE, Source
from kerascl.runtime.device import DeviceInfo

MOST_ROWS = 2  # that a work-group reduces, one after the other
MOST_ITEMS = 1 << 13  # of a map
MOST_BYTES = 24 << 10  # of local memory for the values
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
        source, slot = sources.get(id(step)), _result(step)
        if source is None or slot is None or slots[slot].kind != "temporary":
            continue
        readers = [x for x in users[slot] if x is not step]
        text = _prologue(step, source, slots[slot].nbytes)
        if not readers or text is None:
            continue
        text = text._replace(nbytes=text.nbytes + slots[slot].nbytes)
        if not all(_takes(x, sources.get(id(x)), slot, text, info) for x in readers):
            continue
        read = _used(step) - {slot}
        after = steps[order[id(step)] + 1 : max(order[id(x)] for x in readers) + 1]
        if any(_written(x) & read for x in after):
            continue
        instead[id(step)] = None
        for x in readers:
            instead[id(x)], sources[id(x)] = _joined(
                step, source, text, x, sources[id(x)], slots[slot]
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


def _result(step: Step) -> int | None:
    """The slot that a step writes, if it is one, and nothing else speaks against it."""
    if not all((type(a) is Use and not a.offset) or isinstance(a, np.generic) for a in step.args):
        return None
    written = [a.index for a in step.args if _is_written(step, a)]
    return written[0] if len(written) == 1 else None


def _takes(
    step: Step, source: Source | None, slot: int, prologue: _Prologue, info: DeviceInfo
) -> bool:
    """Whether a product's kernel may find the slot in local memory."""
    if source is None or source.inner not in source.params or not step.local_size:
        return False
    places = [k for k, a in enumerate(step.args) if type(a) is Use and a.index == slot]
    groups = math.prod(step.global_size) // math.prod(step.local_size)
    fits = groups <= MOST_GROUPS * info.compute_units
    fits = fits and prologue.nbytes + source.local_bytes + SPARE_BYTES <= info.local_mem_bytes
    alike = prologue.threads in (0, step.local_size[0]) and len(step.local_size) == 1
    return fits and alike and places == [source.params.index(source.inner)]


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
    maker: Step, source: Source, prologue: _Prologue, reader: Step, target: Source, made: Slot
) -> tuple[Step, Source]:
    """A product's step and source that begin with another step's work, whose result is `made`."""
    params = [param.rsplit(" ", 1) for param in source.params]
    (own,) = (k for k, a in enumerate(maker.args) if _is_written(maker, a))
    ctype, result = params.pop(own)
    item = ctype.removeprefix("__global ").removesuffix("*")
    place, inner = target.params.index(target.inner), target.inner.rsplit(" ", 1)[1]
    making = [
        f"  __local uchar made_[{made.nbytes}] __attribute__((aligned(32)));\n",
        prologue.declared,
        "  {\n",
        f"  __local {item}* {result} = (__local {item}*)made_;\n",
        *(f"  {kind} {name} = made_{name};\n" for kind, name in params),
        prologue.text,
        "  }\n",
        f"  __local const {item}* {inner} = (__local const {item}*)made_;\n",
    ]
    body = target.body.replace(SPACE.format("__global"), SPACE.format("__local"))
    # what is read of other operands is under way meanwhile
    before, mark, after = body.rpartition(MADE)
    text = ["#define INNER_MADE\n", before, *making, mark, after, "#undef INNER_MADE\n"]
    joined = replace(
        target,
        name=f"{target.name}_after_{source.name}",
        params=(
            *(f"{kind} made_{name}" for kind, name in params),
            *target.params[:place],
            *target.params[place + 1 :],
        ),
        body="".join(text),
        helpers=tuple(dict.fromkeys((*source.helpers, *target.helpers))),
        uses_double=source.uses_double or target.uses_double,
        options=tuple(dict.fromkeys((*source.options, *target.options))),
        inner="",
    )
    given = [a for k, a in enumerate(maker.args) if k != own]
    args = [*given, *reader.args[:place], *reader.args[place + 1 :]]
    return replace(reader, args=args, name=joined.name, label=joined.name), joined
