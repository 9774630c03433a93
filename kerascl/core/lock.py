"""The lock of the graph and of the places of States."""

from __future__ import annotations

import os
import threading

# Evaluation turns nodes into data in place, and Keras runs callbacks, which read metrics, on
# another thread.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not wait for a thread that it does not have
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )
