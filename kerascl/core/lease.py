"""Leases: values in device memory, and who may write to that memory.

Every node of a value that lies in memory holds its `Lease`, and nothing else does, so a value is
in use exactly as long as its lease is alive.  Who writes to memory a second time (a State to its
place, a captured function to its results) keeps a weak reference to the lease that it gave last,
and asks it first.  Nobody counts references.
"""

from __future__ import annotations

from typing import Any

OWN = "own"  # nobody else writes to the memory; a State may take it as its place
LENT = "lent"  # a State or a captured function will write to it, and asks before
FIXED = "fixed"  # as OWN, but the address is bound for good: no State may take it


class Lease:
    """One value in device memory.

    Attributes:
        buffer: where it lies; another place after a `move`, which all its nodes follow.
        tenure: OWN, LENT or FIXED.
    """

    __slots__ = ("__weakref__", "buffer", "tenure")

    def __init__(self, buffer: Any, tenure: str = OWN):
        self.buffer = buffer
        self.tenure = tenure

    def move(self, buffer: Any) -> None:
        """The value lies in `buffer` now, which is its own."""
        self.buffer = buffer
        self.tenure = OWN
