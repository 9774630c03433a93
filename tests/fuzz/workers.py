"""Processes that are handed batches of checks; where one dies another goes on."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import kerascl as kc
from kerascl.runtime import device

LONGEST = 40  # batches of a process, which keeps all it has built
WRITTEN = 10.0  # seconds between two writings of how far it is


def serve(check: Callable[[list, Callable[[str, str, str], None]], dict]) -> None:
    """A process' side: `check(batch, found)` gives counts, those under "covered" by name;
    `found(key, title, text)` tells of what is wrong, by what it has in common with others."""
    kc.sum(kc.ones(3)).numpy()  # the driver's checks at its first use, whose results are kept
    device.default().programs.keep_on_disk(False)  # hardly any kernel is met again
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is not an answer

    def found(key: str, title: str, text: str) -> None:
        print(json.dumps({"key": key, "title": title, "text": text}), file=out, flush=True)

    for line in sys.stdin:
        print(json.dumps({"counts": check(json.loads(line), found)}), file=out, flush=True)


@dataclass
class Workers:
    """Runs `python -m module --work …` in `count` processes until all batches are done.

    Attributes:
        split: the smaller batches of one that a process died of, none if it is one check.
        label: what `size` counts, in the progress bar.
        kept: a file that says which batches are done, and of what; those are not run again.
    """

    module: str
    batches: list[list]
    size: Callable[[list], int]
    split: Callable[[list], list[list]]
    label: str
    count: int
    seconds: float | None
    more: list[str] = field(default_factory=list)
    kept: Path | None = None

    def __post_init__(self):
        self.console = Console(width=None if sys.stdout.isatty() else 120)
        self.counts: Counter = Counter()
        self.mismatches: dict[str, list[str]] = {}
        self.covered: Counter = Counter()
        self._done = 0
        self._seconds = 0.0
        self._finished: set[str] = set()
        self._written = time.monotonic()
        self._lock = threading.Lock()
        if self.kept is not None and self.kept.exists():
            self._resume(json.loads(self.kept.read_text()))

    def _resume(self, state: dict) -> None:
        self._finished = set(state["finished"])
        self.counts.update(state["counts"])
        self.covered.update(state["covered"])
        self.mismatches = state["mismatches"]
        self._seconds = state["seconds"]
        whole = [batch for batch in self.batches if json.dumps(batch) in self._finished]
        self._done = sum(map(self.size, whole))
        self.batches = [batch for batch in self.batches if batch not in whole]

    def _write(self) -> None:
        """How far it is, so that another run can go on from there."""
        if self.kept is None:
            return
        state = {
            "finished": sorted(self._finished),
            "counts": self.counts,
            "covered": self.covered,
            "mismatches": self.mismatches,
            "seconds": self._seconds + time.monotonic() - self._begin,
        }
        draft = self.kept.with_suffix(".new")
        draft.write_text(json.dumps(state))
        draft.replace(self.kept)
        self._written = time.monotonic()

    def run(self) -> int:
        """The exit status, after a table of all."""
        self._begin = time.monotonic()
        self._end = self._begin + (self.seconds or 1e9)  # 0 from Ctrl-C on
        self._todo: queue.Queue[list] = queue.Queue()
        for batch in self.batches:
            self._todo.put(batch)
        bar = (TextColumn(self.label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[wrong]} mismatches"))  # fmt: skip
        total = self._done + sum(map(self.size, self.batches))
        with (
            tempfile.TemporaryDirectory(prefix="kerascl-checks-") as self._folder,
            Progress(*bar, console=self.console) as self._progress,
        ):
            wrong = sum(map(len, self.mismatches.values()))
            self._task = self._progress.add_task("", completed=self._done, total=total, wrong=wrong)
            with open(os.path.join(self._folder, "log"), "w+") as log:
                self._process(log, stdin=subprocess.DEVNULL).wait()  # its checks serve all
            threads = [threading.Thread(target=self._feed) for _ in range(self.count)]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except KeyboardInterrupt:  # the table says how far it came
                self._end = 0.0
                for thread in threads:
                    thread.join()
        self._write()
        return self._report(self._seconds + time.monotonic() - self._begin)

    def _process(self, log, **pipes) -> subprocess.Popen:
        # True float32 on every device: the bounds are those of its arithmetic.
        environment = {"KERASCL_BUILD_THREADS": "1", "KERASCL_PRECISION": "highest"}
        environment |= os.environ
        environment["KERASCL_CACHE_DIR"] = self._folder
        command = [sys.executable, "-m", self.module, "--work", *self.more]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **pipes}
        return subprocess.Popen(command, env=environment, stderr=log, **pipes)

    def _report(self, seconds: float) -> int:
        wrong = sum(map(len, self.mismatches.values()))
        named = {"operations": len(self.covered)} if self.covered else {}
        counts = {**self.counts, **named}
        table = Table(self.label, *counts, "seconds", "mismatches", "distinct")
        figures = (self._done, *counts.values(), f"{seconds:.0f}", wrong, len(self.mismatches))
        table.add_row(*map(str, figures), style="red" if wrong else "green")
        self.console.print(table)
        if self.covered:
            often = ", ".join(f"{name} {n}" for name, n in self.covered.most_common())
            self.console.print(f"Calls of each: {often}", markup=False, highlight=False)
        for key, alike in sorted(self.mismatches.items(), key=lambda item: -len(item[1])):
            titles = ", ".join(alike[:8])
            self.console.print(f"{len(alike)} x {key}: {titles}", markup=False, highlight=False)
        return 1 if wrong else 0

    def _feed(self) -> None:
        while not self._todo.empty() and time.monotonic() < self._end:
            with (
                open(os.path.join(self._folder, f"log-{threading.get_ident()}"), "w+") as log,
                self._process(log) as process,
            ):
                for _ in range(LONGEST):
                    if time.monotonic() > self._end or not self._one(process, log):
                        break
                process.stdin.close()

    def _one(self, process, log) -> bool:
        """Whether there was a batch and the process has outlived it."""
        try:
            batch = self._todo.get_nowait()
        except queue.Empty:
            return False
        counts = self._ask(process, batch)
        if counts is None and not self._end:  # Ctrl-C reaches the processes, too
            return False
        parts = self.split(batch) if counts is None else []
        for part in parts:  # which one was it?
            self._todo.put(part)
        if counts is None and not parts:
            process.wait()
            log.seek(0)
            status = f"the process ended with status {process.returncode}"
            text = f"# {batch}: {status}\n{log.read()[-2000:]}"
            self._found({"key": status, "title": str(batch), "text": text})
        with self._lock:
            self.covered.update((counts or {}).pop("covered", {}))
            self.counts.update(counts or {})
            self._done += 0 if parts else self.size(batch)
            if not parts:
                self._finished.add(json.dumps(batch))
            if time.monotonic() > self._written + WRITTEN:
                self._write()
            wrong = sum(map(len, self.mismatches.values()))
            self._progress.update(self._task, completed=self._done, wrong=wrong)
        return counts is not None

    def _ask(self, process, batch: list) -> dict | None:
        """The counts of a batch, None where the process died of it."""
        try:
            print(json.dumps(batch), file=process.stdin, flush=True)
        except BrokenPipeError:
            return None
        while line := process.stdout.readline():
            answer = json.loads(line)
            if "counts" in answer:
                return answer["counts"]
            self._found(answer)
        return None

    def _found(self, answer: dict) -> None:
        with self._lock:
            alike = self.mismatches.setdefault(answer["key"], [])
            alike.append(answer["title"])
        if len(alike) == 1:
            self.console.print(answer["text"], "", markup=False, highlight=False)
