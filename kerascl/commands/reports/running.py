"""Parts run in child processes, which a driver may take down or hang, within a time."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kerascl.commands.reports.parts import Row, Setting
from kerascl.runtime import children

DEATHS = 6  # processes of a part that may die before the rest of it is given up
_GRACE, _LEAST_GRACE = 0.25, 20.0  # of a part's time, and seconds, that its last item may take more
_SHARE, _PATIENCE = 0.5, 60.0  # the same that an item may take before it counts as hanging
_START = 60.0  # seconds until a process begins its first item
_TAIL = 12  # lines of a dead process' last words


@dataclass
class Fault:
    """Something that went wrong: the part, the item in which it did, and what is known of it."""

    part: str
    item: str
    text: str


@dataclass
class Outcome:
    """What came of one part.

    Attributes:
        rows: what it found.
        faults: what failed or was wrong.
        items, done: how many there were, and how many of them ended.
        remarks: what was left out, and why; no fault of the device's.
        seconds: that it took.
    """

    part: str
    rows: list[Row] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    items: int = 0
    done: int = 0
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0


def command(part: str) -> list[str]:
    """What runs a part."""
    return [sys.executable, "-m", "kerascl.commands.reports.child", part]


class Runner:
    """Runs one part; `outcome` is filled as it goes, so that it holds after an interruption.

    Args:
        words: the command, which speaks as child.py does.
        setting: its `seconds` are when no item is begun any more.
        told: called as (number of items, items done, name of the present one).
    """

    def __init__(
        self, part: str, words: Sequence[str], setting: Setting,
        told: Callable[[int, int, str], None] = lambda *_: None,
    ):  # fmt: skip
        self.outcome = Outcome(part)
        self._words, self._setting, self._told = words, setting, told
        self._item: tuple[int, str] | None = None  # that has begun and not ended

    def run(self) -> Outcome:
        """The whole part, in as many processes as it takes."""
        begun = time.monotonic()
        end = begun + self._setting.seconds
        stop = end + max(_GRACE * self._setting.seconds, _LEAST_GRACE)
        try:
            for _ in range(DEATHS):
                if self._process(stop):
                    return self.outcome
                left = end - time.monotonic()
                if left <= 0:
                    self.outcome.remarks.append("the time was up after a process had ended early")
                    return self.outcome
                self._setting.seconds = left
            self.outcome.remarks.append(f"given up after {DEATHS} processes had ended early")
        except KeyboardInterrupt:
            self.outcome.remarks.append("interrupted")
            raise
        finally:
            self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def _process(self, stop: float) -> bool:
        """One process; whether nothing is left to do."""
        process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", env=children.environment(),
            # Ctrl-C is this process' to answer.
            start_new_session=sys.platform != "win32",
        )  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(asdict(self._setting)))
            process.stdin.close()
        lines: queue.Queue[str | None] = queue.Queue()
        words: list[str] = []
        threads = [
            threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True),
            threading.Thread(target=_keep_tail, args=(process.stderr, words), daemon=True),
        ]
        for thread in threads:
            thread.start()
        patience = max(_SHARE * self._setting.seconds, _PATIENCE)
        ended, late = False, ""
        try:
            while True:
                wait = min(patience if self._item else _START, stop - time.monotonic())
                try:
                    line = lines.get(timeout=max(wait, 0.01))
                except queue.Empty:
                    late = "the part's time was up" if time.monotonic() >= stop else "it hung"
                    break
                if line is None:
                    break
                ended = self._hear(line) or ended
        finally:
            _end(process)
            code = process.wait()
            for thread in threads:
                thread.join(1.0)
        if ended:
            return True
        return self._died(late, code, patience, words)

    def _hear(self, line: str) -> bool:
        """One line of a process; whether it was its last."""
        outcome = self.outcome
        try:
            event, *values = json.loads(line)
        except (ValueError, TypeError):
            return False  # a driver printed it
        if event == "items":
            outcome.items = int(values[0])
        elif event == "begun":
            self._close()
            self._item = (int(values[0]), str(values[1]))
        elif event == "row":
            row: Row = values[0]
            outcome.rows.append(row)
            if row.get("wrong"):
                outcome.faults.append(Fault(outcome.part, self._where(row), row["wrong"]))
        elif event == "failed":
            outcome.faults.append(Fault(outcome.part, self._where({}), str(values[0])))
        elif event == "left":
            self._close()
            names = ", ".join(map(str, values[1])) + (", …" if values[0] > len(values[1]) else "")
            remark = f"{values[0]} of {outcome.items} left out: the time was up before {names}"
            outcome.remarks.append(remark)
        elif event == "done":
            self._close()
            self._tell({})
            return True
        self._tell(values[0] if event == "row" else {})
        return False

    def _tell(self, row: Row) -> None:
        name = self._where(row) if self._item else ""
        self._told(self.outcome.items, self.outcome.done, name)

    def _where(self, row: Row) -> str:
        name = self._item[1] if self._item else "?"
        return f"{name}: {row['case']}" if "case" in row else name

    def _close(self) -> None:
        if self._item is not None:
            self.outcome.done += 1
            self._setting.first = self._item[0] + 1
            self._item = None

    def _died(self, late: str, code: int, patience: float, words: list[str]) -> bool:
        """A process ended early, or was ended; whether nothing is left to do."""
        outcome, item = self.outcome, self._item
        if late.startswith("the part"):
            if item is not None:
                outcome.remarks.append(f"{item[1]}: stopped, as {late}")
            left = outcome.items - outcome.done - (item is not None)
            if left > 0:
                outcome.remarks.append(f"{left} of {outcome.items} left out: the time was up")
            return True
        seconds = patience if item else _START
        what = f"it took more than {seconds:.0f} s" if late else _ending(code)
        tail = "\n".join(words[-_TAIL:])
        where = item[1] if item else "before anything began"
        outcome.faults.append(Fault(outcome.part, where, f"{what}\n{tail}".strip()))
        if item is None:
            return True  # another process would do the same
        self._close()
        return self._setting.first >= outcome.items


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it and what it began."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        elif process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"its process was ended by signal {-code}" if code < 0 else f"its process ended ({code})"


def _pump(stream: Any, lines: queue.Queue[str | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            lines.put(line)
    lines.put(None)


def _keep_tail(stream: Any, words: list[str]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            if line.strip():
                words.append(line.rstrip()[:300])
                del words[: -4 * _TAIL]
