"""Runs random programs of public functions and compares them with NumPy.

    python -m tests.fuzz                        2,000 programs; KERASCL_DEVICE chooses the device
    python -m tests.fuzz -n 16 --programs 20000
    python -m tests.fuzz --seed 1234 --programs 1          one program again
    python -m tests.fuzz --seconds 600 --programs 1000000  what is possible in ten minutes

A program has 5 to 15 steps of any dtypes.  All run captured (traced, bound and replayed), half of
them also at once, a quarter step by step, and of a quarter gradients are compared with differences;
with --every-way, all in every way.  Integers must be exact, floats within a bound that is followed
through the steps.  What is wrong is made as small as it goes and printed with its seed; where a
process dies another goes on.  Exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TOGETHER = 16  # programs in one captured function
LONGEST = 40  # batches of a process, which keeps all it has built


def work(every_way: bool) -> None:
    """A process' side: seeds come in by the line, mismatches go out."""
    from tests.fuzz import check
    from tests.fuzz.program import draw_program

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is not an answer
    for line in sys.stdin:
        first, count = map(int, line.split())
        programs = [draw_program(seed) for seed in range(first, first + count)]
        for found in check.mismatches(programs, every_way):
            small = check.smaller(found)
            answer = {"seed": found.program.seed, "key": small.key, "text": str(small)}
            print(json.dumps(answer), file=out, flush=True)
        print(json.dumps({"steps": sum(len(p.steps) for p in programs)}), file=out, flush=True)


@dataclass
class Outcome:
    """What all processes have found."""

    programs: int = 0
    steps: int = 0
    mismatches: dict[str, list[dict]] = field(default_factory=dict)  # by what they have in common

    def add(self, found: dict) -> bool:
        """Whether it is the first of its kind."""
        alike = self.mismatches.setdefault(found["key"], [])
        alike.append(found)
        return len(alike) == 1


class Runner:
    """Hands batches of seeds to processes."""

    def __init__(self, args: argparse.Namespace, console: Console, folder: str):
        """`folder` is the cache that the processes share."""
        self.args, self.console, self.folder = args, console, folder
        self.outcome = Outcome()
        self.todo: queue.Queue[tuple[int, int]] = queue.Queue()
        for start in range(0, args.programs, TOGETHER):
            self.todo.put((args.seed + start, min(TOGETHER, args.programs - start)))
        self.end = time.monotonic() + (args.seconds or 1e9)
        self.lock = threading.Lock()

    def run(self) -> Outcome:
        bar = (TextColumn("programs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[wrong]} mismatches"))  # fmt: skip
        with Progress(*bar, console=self.console) as progress:
            task = progress.add_task("", total=self.args.programs, wrong=0)

            def tell():
                wrong = sum(map(len, self.outcome.mismatches.values()))
                progress.update(task, completed=self.outcome.programs, wrong=wrong)

            make = lambda: threading.Thread(target=self._serve, args=(tell,))  # noqa: E731
            threads = [make() for _ in range(self.args.n)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return self.outcome

    def _serve(self, tell) -> None:
        while not self.todo.empty() and time.monotonic() < self.end:
            command = [sys.executable, "-m", "tests.fuzz", "--work"]
            command += ["--every-way"] * self.args.every_way
            # True float32 on every device: the bounds are those of its arithmetic.
            environment = {"KERASCL_BUILD_THREADS": "1", "KERASCL_PRECISION": "highest"}
            environment |= os.environ
            environment["KERASCL_CACHE_DIR"] = self.folder
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(command, env=environment, **pipes) as process:
                for _ in range(LONGEST):
                    if time.monotonic() > self.end or not self._batch(process, tell):
                        break
                process.stdin.close()

    def _batch(self, process, tell) -> bool:
        """Whether there was a batch and the process has outlived it."""
        try:
            first, count = self.todo.get_nowait()
        except queue.Empty:
            return False
        alive = False
        try:
            print(first, count, file=process.stdin, flush=True)
            while line := process.stdout.readline():
                answer = json.loads(line)
                if "steps" in answer:
                    alive = True
                    break
                self._found(answer)
        except BrokenPipeError:
            pass
        with self.lock:
            if alive:
                self.outcome.programs += count
                self.outcome.steps += answer["steps"]
        if not alive and count > 1:  # each alone: which one was it?
            for seed in range(first, first + count):
                self.todo.put((seed, 1))
        elif not alive:
            text = f"# seed {first}: the process ended with status {process.wait()}"
            self._found({"seed": first, "key": f"died {process.returncode}", "text": text})
            self.outcome.programs += 1
        tell()
        return alive

    def _found(self, answer: dict) -> None:
        with self.lock:
            new = self.outcome.add(answer)
        if new:
            self.console.print(answer["text"], "", markup=False, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("-n", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument(
        "--seed", type=int, help="of the first program; the next have the next ones"
    )
    parser.add_argument("--seconds", type=float, help="begin nothing after so long")
    parser.add_argument("--every-way", action="store_true", help="all programs, eagerly as well")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.every_way)
        return 0
    if args.seed is None:
        args.seed = int(os.environ.get("KERASCL_TEST_SEED", int.from_bytes(os.urandom(4))))
    from kerascl.runtime import device

    info = device.default().info
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"{info.name} ({info.platform} {info.driver_version}), seeds from {args.seed}")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kerascl-fuzz-") as folder:
        outcome = Runner(args, console, folder).run()
    seconds = time.monotonic() - begin
    wrong = sum(map(len, outcome.mismatches.values()))
    table = Table("programs", "steps", "seconds", "mismatches", "distinct")
    figures = (outcome.programs, outcome.steps, f"{seconds:.0f}", wrong, len(outcome.mismatches))
    table.add_row(*map(str, figures), style="red" if wrong else "green")
    console.print(table)
    for key, alike in sorted(outcome.mismatches.items(), key=lambda item: -len(item[1])):
        seeds = ", ".join(str(found["seed"]) for found in alike[:8])
        console.print(f"{len(alike)} x {key}: seeds {seeds}", markup=False, highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
