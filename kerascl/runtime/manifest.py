"""Which programs a graph took, so that the next process that meets it knows whether any is new.

It knows before the graph is compiled, which is when processes that build them are best begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kerascl.runtime.diskcache import DiskCache

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # an object's in its repr


class Manifest:
    """The keys of the programs that a graph took, kept in the disk cache of the programs.

    A guess: code that has changed since, or a graph that differs in an object without a repr of its
    own, takes other programs.

    Args:
        disk: the cache.
        graph: whose repr is the same in every process, but for addresses.
    """

    def __init__(self, disk: DiskCache, graph: object):
        self._disk = disk
        self._key = disk.key("note", _ADDRESS.sub("", repr(graph)))
        self._found = disk.load(self._key, _keys)

    def complete(self) -> bool:
        """Whether they were noted and all are still there."""
        return self._found is not None and all(self._disk.path(k).exists() for k in self._found)

    def keep(self, keys: Iterable[str]) -> None:
        """Note what has been built."""
        found = sorted(set(keys))
        if found != self._found:
            self._disk.put(self._key, "\n".join(found).encode())


def _keys(note: bytes) -> list[str]:
    keys = note.decode().split()
    for key in keys:
        bytes.fromhex(key)  # ValueError: it is none
    return keys
