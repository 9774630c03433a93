"""Large products of equal shapes become one launch.

Queries, keys and values, say, and the gradients of their weights.  One product of a few tiles for
each compute unit leaves many idle at its end; see `contract.plan.Several`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from kerascl.compiler.program.program import Step, Use
from kerascl.runtime.device import DeviceInfo

PARAMETERS = 64  # bytes of a launch's parameters that others than the arguments take, at most


def key(step: Step) -> tuple[Hashable, ...]:
    """What is equal for launches that one can do: all but their buffers."""
    plain = tuple(_plain(arg) for arg in step.args)
    return "several", step.program, step.name, step.local_size, plain


def _plain(arg: object) -> Hashable:
    if type(arg) is Use:
        return Use
    value = getattr(arg, "tobytes", None)
    return type(arg), value() if value else arg


def capacity(step: Step, info: DeviceInfo) -> int:
    """How many launches like `step` one can do."""
    assert step.several is not None
    buffers = sum(type(arg) is Use for arg in step.args)
    rest = sum(
        len(arg) if isinstance(arg, bytes) else 8 for arg in step.args if type(arg) is not Use
    )
    room = info.max_parameter_bytes - PARAMETERS - rest
    return max(1, min(step.several.most, room // (8 * buffers)))


def joined(parts: list[Step]) -> Step:
    """One launch for all parts, as the first would do them."""
    first, count = parts[0], len(parts)
    assert first.several is not None and first.local_size is not None
    args = first.args + [arg for part in parts[1:] for arg in part.args if type(arg) is Use]
    writes = [part.writes for part in parts if part.writes is not None]
    return replace(
        first,
        source=first.several.source(count),
        args=args,
        global_size=(first.several.groups(count) * first.local_size[0],),
        writes=frozenset().union(*writes) if len(writes) == count else None,
        layer=first.layer if len({part.layer for part in parts}) == 1 else "several layers",
        flops=sum(part.flops for part in parts),
        tiles=frozenset(),
        division=None,
        aligned=frozenset(),
        several=None,
    )
