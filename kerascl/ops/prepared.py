"""Steps of operations whose results have a shape that depends on values: run again and again with
other shapes, without a graph to make or to compile for each.

Such an operation counts (`prepared`), reads the count, makes room for a little more (`room_for`),
so that few sizes are ever compiled, fills that (`prepared`), and gives what there is (`first`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from kerascl.core.array import Array
from kerascl.core.context import current
from kerascl.core.op import CONST
from kerascl.ops.views import window

_LEAST_ROOM = 16


def _is_plain() -> bool:
    """Whether nobody records what operations do here, so that they may be computed at once."""
    return current.trace is None and not current.tapes and not current.tracers


def prepared(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """A function of Arrays and hashable constants that is computed at once, and whose graph is made
    once for each shape, dtype and constant; where tapes, traces or `vmap` look on, an ordinary one.

    Its results must be new values, and it may read none.
    """

    @functools.wraps(function)
    def wrapped(*args: Array | Hashable) -> tuple[Array, ...]:
        nodes = [x._node for x in args if type(x) is Array]
        on = nodes[0].device
        if not _is_plain() or not all(
            node.size and node.op is not CONST and node.device is on for node in nodes
        ):
            return function(*args)

        def build(given: list[Any]) -> list[Any]:
            rest = iter(given)
            results = function(*[Array(next(rest)) if type(x) is Array else x for x in args])
            return [y._node for y in results]

        key = (function, *[None if type(x) is Array else x for x in args])
        return tuple(map(Array, current.engine.prepared(key, nodes, build)))

    return wrapped


def room_for(count: int, most: int) -> int:
    """At least `count`, and at most `most`, as a multiple of a power of two near an eighth of it:
    four sizes from each power of two to the next."""
    if not _is_plain():
        return count
    step = max(_LEAST_ROOM, 1 << max(0, count.bit_length() - 3))
    return min(most, -(-count // step) * step)


def first(x: Array, count: int) -> Array:
    """The first `count` slices of a result of a prepared function, which is not used any more."""
    if not _is_plain() or not x.size or x._node.lease is None:
        return window(x, 0, 0, count)
    current.engine.shorten(x._node, count)
    return x
