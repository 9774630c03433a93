"""Workers that run test files, where a crash or a hang costs one test and no more."""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.upstream.results import HERE

START = 300.0  # seconds that a worker's imports may take
GRACE = 60.0  # seconds between a test's time limit, which pytest keeps, and the end of its worker
TRIES = 3  # workers that may die on one file while no test of it is running
MEMORY = 6000  # MiB after which a worker is replaced


@dataclass(frozen=True)
class Unit:
    """A part of a test file: the ``part``-th of ``parts`` runs of its tests."""

    file: str
    part: int = 0
    parts: int = 1


class Worker:
    """One process; see worker.py for what is said to it and what it answers."""

    def __init__(self, environment: dict[str, str], folder: Path, log: Path):
        read, write = os.pipe()
        self.reader, self.rest = read, b""
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "worker.py"), str(write)],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True,
                cwd=folder, env=environment, pass_fds=(write,), start_new_session=True,
            )  # fmt: skip
        os.close(write)

    def ask(self, job: dict) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is dead, as the next event() says
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()

    def event(self, patience: float) -> dict | None:
        """The next event, or None when it has died or was silent for ``patience`` seconds."""
        end = time.monotonic() + patience
        while b"\n" not in self.rest:
            # Not only the end of the pipe: a test's own child may hold it open.
            dead = self.process.poll() is not None
            if not select.select([self.reader], [], [], 0 if dead else 0.5)[0]:
                if dead or time.monotonic() > end:
                    return None
                continue
            data = os.read(self.reader, 1 << 20)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)
                return None
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def end(self) -> str:
        """Ends the process with whatever it started; how it had ended, in words."""
        status = self.process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.reader)
        if status is None:
            return "hung"
        return f"died of signal {-status}" if status < 0 else f"ended with status {status}"


class Pool:
    """``count`` workers over a queue of units; every event goes to ``take`` under one lock."""

    def __init__(
        self,
        units: list[Unit],
        count: int,
        timeout: float,
        job: Callable[[Unit], dict],
        environment: dict[str, str],
        folder: Path,
        take: Callable[[dict], None],
    ):
        self.units: queue.SimpleQueue[Unit] = queue.SimpleQueue()
        for unit in units:
            self.units.put(unit)
        self.timeout, self.job, self.environment, self.folder = timeout, job, environment, folder
        self.lock, self._take = threading.Lock(), take
        self.stopped, self.processes = False, []
        self.threads = [
            threading.Thread(target=self.work, args=(index,), daemon=True) for index in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def take(self, event: dict) -> None:
        with self.lock:
            self._take(event)

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)

    def work(self, index: int) -> None:
        worker = None
        try:
            while not self.stopped:
                try:
                    unit = self.units.get_nowait()
                except queue.Empty:
                    return
                worker = self.run_unit(unit, worker, self.folder / f"log-{index}")
        finally:
            if worker is not None:
                worker.end()

    def run_unit(self, unit: Unit, worker: Worker | None, log: Path) -> Worker | None:
        """Runs a unit to its end, with as many workers as it takes; returns the last one."""
        done: set[str] = set()
        tries = 0
        while tries < TRIES and not self.stopped:
            if worker is None:
                worker = Worker(self.environment, self.folder, log)
                self.processes.append(worker.process)
                if worker.event(START) is None:
                    self.fail(unit.file, f"a worker {worker.end()} while it started: {_tail(log)}")
                    return None
            worker.ask({**self.job(unit), "skip": sorted(done)})
            running = None
            while (event := worker.event(self.timeout + GRACE)) is not None:
                if "start" in event:
                    running = event["start"]
                elif "finish" in event:
                    done.add(event["finish"])
                    running = None
                elif "end" in event:
                    self.take(event)
                    status = event["end"]
                    if status not in (0, 1, 2, 5):  # neither tests nor files, but pytest's own
                        self.fail(unit.file, f"pytest ended with status {status}: {_tail(log)}")
                    if event["mib"] > MEMORY:
                        worker.end()
                        worker = None
                    return worker
                self.take(event)
            how = worker.end()
            worker = None
            if running is None:
                tries += 1
                message = f"the worker {how} between tests"
            else:
                done.add(running)
                message = f"the worker {how} in it"
            if running is not None or tries == TRIES:
                self.fail(running or unit.file, message)
                self.take({"finish": running})
        return worker

    def fail(self, name: str, message: str) -> None:
        self.take({"id": name, "phase": "worker", "outcome": "failed", "seconds": 0.0,
                   "message": message, "where": ""})  # fmt: skip

    def stop(self) -> None:
        """Ends every worker; their threads see it and return."""
        self.stopped = True
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " ".join(" ".join(lines[-2:]).split())[-300:]
