"""Where device time goes: event timings by kernel, as a table or a Chrome trace."""

from __future__ import annotations

import bisect
import functools
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from kerascl.runtime import device as devices
from kerascl.runtime.errors import DeviceError
from kerascl.runtime.launch import WRITE_BESIDE
from kerascl.runtime.opencl import cl
from kerascl.runtime.replay import Note
from kerascl.runtime.tables import console as standard_console
from kerascl.runtime.tables import table as new_table

if TYPE_CHECKING:
    from kerascl.runtime.device import Device
    from kerascl.runtime.peaks import Peaks


@dataclass(frozen=True)
class Span:
    """One command on the device: its name, nanoseconds of the device's clock, what it was for."""

    name: str
    queued: int
    start: int
    end: int
    note: Note = field(default_factory=Note)

    @property
    def beside(self) -> bool:
        """Whether it is a copy beside the other commands, which come one after another."""
        return self.name == WRITE_BESIDE


@dataclass
class Total:
    """All commands of one name or of one layer: nanoseconds and bytes of each, operations."""

    name: str
    times: list[int] = field(default_factory=list)
    flops: int = 0
    sizes: list[int] = field(default_factory=list)

    @property
    def nanoseconds(self) -> int:
        """The sum of the times."""
        return sum(self.times)

    @property
    def nbytes(self) -> int:
        """The sum of the sizes."""
        return sum(self.sizes)


@dataclass
class Region:
    """A named stretch of commands: from number `first` up to, but not including, `stop`."""

    name: str
    first: int
    stop: int | None = None


class Profile:
    """Records every command of a device between `with profile() as p:` and its end.

    Commands go through pyopencl on a queue with profiling, so the host is
    slower than normal; the device times are true.

    Attributes:
        spans: after the end, one Span per command in order.
        regions: what `begin` and `end` marked.
    """

    def __init__(self, device: Device | None = None, show: bool = True):
        self._device = device
        self._show = show
        self._events: list[tuple[str, cl.Event, Note]] = []
        self._usual: cl.CommandQueue | None = None
        self.spans: list[Span] = []
        self.regions: list[Region] = []

    @functools.cached_property
    def device(self) -> Device:
        """The device whose commands are recorded."""
        return self._device or devices.default()

    def __enter__(self) -> Profile:
        device = self.device
        queue = device.queue
        with device.lock:
            if queue.recorder is not None:
                raise DeviceError("a profile is already being recorded on this device")
            properties = cl.command_queue_properties.PROFILING_ENABLE
            self._usual = queue.handle
            handle = cl.CommandQueue(device.context, device.handle, properties=properties)
            queue.use(handle, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        queue = self.device.queue
        with self.device.lock:
            try:
                queue.use(self._usual, None)
            finally:
                # Also after a failed command: the device must not stay in recording mode.
                queue.recorder = None
        self._collect()
        if self._show and kind is None:
            self.print()

    def record(self, name: str, event: cl.Event, note: Note | None = None) -> None:
        """Called by the queue for each command."""
        self._events.append((name, event, note or Note()))
        if len(self._events) >= 4096:
            self._collect()

    def begin(self, name: str) -> Region:
        """Begin a region: the commands from now on belong to it, until `end`."""
        region = Region(name, len(self.spans) + len(self._events))
        self.regions.append(region)
        return region

    def end(self, region: Region) -> None:
        """End a region."""
        region.stop = len(self.spans) + len(self._events)

    def _collect(self) -> None:
        events, self._events = self._events, []
        for name, event, note in events:
            try:
                event.wait()
                times = event.profile
                self.spans.append(Span(name, times.queued, times.start, times.end, note))
            except cl.Error:
                continue

    def alone(self) -> int:
        """Nanoseconds of the copies beside other commands during which no other command ran."""
        others = sorted((s.start, s.end) for s in self.spans if not s.beside)
        alone = 0
        for span in self.spans:
            if not span.beside:
                continue
            now = span.start
            k = bisect.bisect_left(others, now, key=lambda times: times[1])
            while k < len(others) and others[k][0] < span.end:
                alone += max(others[k][0] - now, 0)
                now = max(now, others[k][1])
                k += 1
            alone += max(span.end - now, 0)
        return alone

    def totals(self, by: str = "name") -> list[Total]:
        """Sums over equal commands, the longest first.

        Args:
            by: "name" (of the command) or "layer" (of the model; captured steps only), without
                copies beside other commands.
        """
        found: dict[str, Total] = {}
        for span in self.spans:
            if span.beside and by == "layer":
                continue
            key = span.name if by == "name" else span.note.layer
            total = found.setdefault(key, Total(key))
            total.times.append(span.end - span.start)
            total.flops += span.note.flops
            total.sizes.append(span.note.nbytes)
        return sorted(found.values(), key=lambda total: -total.nanoseconds)

    def print(
        self,
        console: Console | None = None,
        rows: int = 40,
        by: str = "name",
        peaks: Peaks | None = None,
        copies: Callable[[int], float] | None = None,
    ) -> None:
        """Print the table of `totals`, at most so many rows.

        With `peaks` a column says how near each comes to the device's best rate.  With `copies`
        (see `kerascl.runtime.copies`) one says how near to copies of as many bytes, launch by
        launch.
        """
        totals = self.totals(by)
        all_ns = sum(span.end - span.start for span in self.spans if not span.beside) or 1
        numbers = ["count", "total ms", "%", "mean us", "min us", "max us", "GFLOP/s", "GB/s"]
        if peaks is not None:
            numbers.append("of peak")
        if copies is not None:
            numbers.append("of copies")
        title = f"{self.device.info.name}: {len(self.spans)} commands in {all_ns / 1e6:.3f} ms"
        table = new_table(title, ["command" if by == "name" else "layer"], numbers)
        for total in totals[:rows]:
            ns, count = total.nanoseconds, len(total.times)
            cells = [
                total.name or "(none)",
                str(count),
                f"{ns / 1e6:.3f}",
                "" if total.name == WRITE_BESIDE else f"{100 * ns / all_ns:.1f}",
                f"{ns / count / 1e3:.1f}",
                f"{min(total.times) / 1e3:.1f}",
                f"{max(total.times) / 1e3:.1f}",
                f"{total.flops / ns:.0f}" if total.flops and ns else "",
                f"{total.nbytes / ns:.0f}" if total.nbytes and ns else "",
            ]
            if peaks is not None:
                known = ns and (total.flops or total.nbytes)
                share = peaks.share(total.flops, total.nbytes, ns * 1e-9) if known else 0
                cells.append(f"{100 * share:.0f} %" if known else "")
            if copies is not None:
                copied = sum(map(copies, total.sizes))
                cells.append(f"{100 * copied / ns:.0f} %" if copied and ns else "")
            table.add_row(*cells)
        remarks = [f"and {len(totals) - rows} more"] if len(totals) > rows else []
        if any(span.beside for span in self.spans):
            alone = self.alone() / 1e6
            remarks.append(f"nothing else ran during {alone:.3f} ms of {WRITE_BESIDE!r}")
        if remarks:
            table.caption = "; ".join(remarks)
        (console or standard_console()).print(table)

    def chrome_trace(self, path: str | Path) -> None:
        """Write the spans for chrome://tracing or ui.perfetto.dev (times in microseconds).

        Regions with commands in them are on a line of their own, and so are copies beside other
        commands.  A path that ends in ".gz" is compressed.
        """
        first = min((span.start for span in self.spans), default=0)
        name = self.device.info.name
        events = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": name}},
            *(
                {
                    "name": span.name,
                    "ph": "X",
                    "pid": 0,
                    "tid": 2 if span.beside else 0,
                    "ts": (span.start - first) / 1e3,
                    "dur": (span.end - span.start) / 1e3,
                    "cat": span.note.layer,
                    "args": {
                        "waited_us": (span.start - span.queued) / 1e3,
                        "layer": span.note.layer,
                        "flops": span.note.flops,
                        "bytes": span.note.nbytes,
                    },
                }
                for span in self.spans
            ),
        ]
        for region in self.regions:
            spans = [s for s in self.spans[region.first : region.stop] if not s.beside]
            if spans:
                start = min(span.start for span in spans)
                length = max(span.end for span in spans) - start
                event = {"name": region.name, "ph": "X", "pid": 0, "tid": 1}
                events.append(event | {"ts": (start - first) / 1e3, "dur": length / 1e3})
        data = json.dumps({"traceEvents": events}).encode()
        path = Path(path)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def profile(device: Device | None = None, show: bool = True) -> Profile:
    """Record a device (default: the one in use) for the length of a `with` block.

    Args:
        show: print the table at the end.
    """
    return Profile(device, show)
