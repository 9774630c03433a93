"""A thread that waits for the device, for drivers whose waiting threads do its work.

Intel's CPU runtime has a thread for each core but one: the last core belongs to the host and works
for the device only while the host waits for it.  During a training step the host is elsewhere,
preparing the next one or waiting for another thread; of two cores that leaves one.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from kerascl.runtime.opencl import cl


class ProgressThread:
    """Waits for events, the last of those given, in a thread that begins with the first."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[cl.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait_for(self, event: cl.Event) -> None:
        """Begin to wait; returns at once.  Failures are left to those who need the results."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kerascl-progress", daemon=True)
            self._thread.start()
        self._events.put(event)

    def end(self) -> None:
        """End the thread after its last wait: the interpreter must not end while one is under way,
        as the thread could never come back from it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._events.put(None)
            thread.join()

    def _run(self) -> None:
        event = self._events.get()
        while event is not None:
            with contextlib.suppress(queue.Empty):
                while event is not None:
                    event = self._events.get_nowait()
            if event is not None:
                with contextlib.suppress(cl.Error):
                    event.wait()
                event = self._events.get()
