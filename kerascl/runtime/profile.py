"""Where device time goes: event timings by kernel, as a table or a Chrome trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from kerascl.runtime import device as devices
from kerascl.runtime.errors import DeviceError
from kerascl.runtime.opencl import cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device


@dataclass(frozen=True)
class Span:
    """One command on the device: its name, and nanoseconds of the device's clock."""

    name: str
    queued: int
    start: int
    end: int


class Profile:
    """Records every command of a device between `with profile() as p:` and its end.

    Commands go through pyopencl on a queue with profiling, so the host is
    slower than normal; the device times are true.

    Attributes:
        spans: after the end, one Span per command in order.
    """

    def __init__(self, device: Device | None = None, show: bool = True):
        self._device = device
        self._show = show
        self._events: list = []
        self._usual = None
        self.spans: list[Span] = []

    def __enter__(self) -> Profile:
        device = self._device = self._device or devices.default()
        queue = device.queue
        with device.lock:
            if queue.recorder is not None:
                raise DeviceError("a profile is already being recorded on this device")
            properties = cl.command_queue_properties.PROFILING_ENABLE
            self._usual = queue.handle
            handle = cl.CommandQueue(device.context, device.handle, properties=properties)
            queue.use(handle, self)
        return self

    def __exit__(self, kind, error, trace) -> None:
        queue = self._device.queue
        with self._device.lock:
            try:
                queue.use(self._usual, None)
            finally:
                # Also after a failed command: the device must not stay in recording mode.
                queue.recorder = None
        self._collect()
        if self._show and kind is None:
            self.print()

    def record(self, name: str, event) -> None:
        """Called by the queue for each command."""
        self._events.append((name, event))
        if len(self._events) >= 4096:
            self._collect()

    def _collect(self) -> None:
        events, self._events = self._events, []
        for name, event in events:
            try:
                event.wait()
                times = event.profile
                self.spans.append(Span(name, times.queued, times.start, times.end))
            except cl.Error:
                continue

    def totals(self) -> list[tuple[str, int, int, int, int]]:
        """(name, count, total ns, shortest ns, longest ns) of each name, longest total first."""
        found: dict[str, list[int]] = {}
        for span in self.spans:
            found.setdefault(span.name, []).append(span.end - span.start)
        rows = [(name, len(t), sum(t), min(t), max(t)) for name, t in found.items()]
        return sorted(rows, key=lambda row: -row[2])

    def print(self, console: Console | None = None, rows: int = 40) -> None:
        """Print the table of `totals`, at most so many rows."""
        totals = self.totals()
        total = sum(row[2] for row in totals) or 1
        table = Table(title=f"{self._device.info.name}: {total / 1e6:.3f} ms in {len(self.spans)}")
        table.add_column("command", overflow="fold")
        for name in ("count", "total ms", "%", "mean us", "min us", "max us"):
            table.add_column(name, justify="right")
        for name, count, all_ns, shortest, longest in totals[:rows]:
            table.add_row(
                name,
                str(count),
                f"{all_ns / 1e6:.3f}",
                f"{100 * all_ns / total:.1f}",
                f"{all_ns / count / 1e3:.1f}",
                f"{shortest / 1e3:.1f}",
                f"{longest / 1e3:.1f}",
            )
        if len(totals) > rows:
            table.caption = f"and {len(totals) - rows} more"
        (console or Console()).print(table)

    def chrome_trace(self, path: str | Path) -> None:
        """Write the spans for chrome://tracing or ui.perfetto.dev (times in microseconds)."""
        first = min((span.start for span in self.spans), default=0)
        name = self._device.info.name
        events = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": name}},
            *(
                {
                    "name": span.name,
                    "ph": "X",
                    "pid": 0,
                    "tid": 0,
                    "ts": (span.start - first) / 1e3,
                    "dur": (span.end - span.start) / 1e3,
                    "args": {"waited_us": (span.start - span.queued) / 1e3},
                }
                for span in self.spans
            ),
        ]
        Path(path).write_text(json.dumps({"traceEvents": events}))


def profile(device: Device | None = None, show: bool = True) -> Profile:
    """Record a device (default: the one in use) for the length of a `with` block.

    Args:
        show: print the table at the end.
    """
    return Profile(device, show)
