"""Python's collector of cycles waits while programs are made.

A graph's program takes so many objects that the collector looks through all of a process a few
times meanwhile, a tenth of a second each where Keras is loaded, and finds nothing: they are held.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_waiting = 0  # blocks that are open, of all threads


@contextlib.contextmanager
def waits() -> Iterator[None]:
    """Inside it no collection begins by itself, in any thread; what the user chose holds after."""
    global _waiting
    with _lock:
        ours = _waiting > 0 or gc.isenabled()
        if ours:
            _waiting += 1
            gc.disable()
    try:
        yield
    finally:
        with _lock:
            if ours:
                _waiting -= 1
                if not _waiting:
                    gc.enable()
