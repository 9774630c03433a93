"""Assignment to elements: an Array takes a new value, and who relies on the old one keeps it.

Values of the graph never change.  `x[key] = value` makes a new one and lets `x` stand for it.
Tapes, traced functions and States hold Arrays, which may be `x`: they are *holders*, and are
handed another Array of the old value.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from kerascl.core.context import current
from kerascl.core.errors import CaptureError
from kerascl.core.op import BATCHED

if TYPE_CHECKING:
    from kerascl.core.array import Array


class Holder(Protocol):
    """What holds Arrays for their value."""

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` wherever `array` stood."""


_holders: dict[int, weakref.ref[Holder]] = {}


def enrol(holder: Holder) -> None:
    """Tell a holder from now on when an Array takes another value."""
    key = id(holder)

    def forget(gone: weakref.ref[Holder]) -> None:
        if _holders.get(key) is gone:
            del _holders[key]

    _holders[key] = weakref.ref(holder, forget)


def _swap(array: Array, other: Array) -> None:
    for reference in list(_holders.values()):
        holder = reference()
        if holder is not None:
            holder.swap(array, other)


def rebind(array: Array, new: Array) -> None:
    """Let `array` stand for the value of `new`, which nobody else holds and which was computed from
    it; holders of `array` keep the old value.

    Raises:
        CaptureError: inside a captured function, a loop or a vectorized map, for an array from
            outside, which would take a value that only exists inside.
    """
    before, after = array._node, new._node
    trace = current.trace
    start = getattr(trace, "start", None)
    leaks = start is not None and before.serial < start
    if after.op is BATCHED and before.op is not BATCHED:
        leaks = leaks or before.serial < after.attrs[0].start
    if leaks:
        raise CaptureError(
            "elements of an array from outside are assigned inside a captured function, a loop or "
            "a vectorized map; assign to a copy made inside (x = x.copy()) and return it, or use a "
            "kerascl.State"
        )
    kind = type(array)
    old = kind.__new__(kind)
    old.stand_for(before)
    _swap(array, old)
    _swap(new, array)
    array.stand_for(after)
