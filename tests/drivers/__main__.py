"""Runs the table of operations and trains a network on each CPU driver that can be installed.

    python -m tests.drivers                     those that are here; the others are named with the
    python -m tests.drivers rusticl pocl        command that installs them
    python -m tests.drivers intel --part 1/4 --no-training

Each driver is the only one that its processes see. The network is that of
examples/fashion_mnist.py, of which 100 steps must tell clothes apart; weights and order of images
are the same on each driver, so that losses may be compared. Oclgrind runs a small share, and fails
for each race and each access out of bounds that it reports. Exits 1 when anything fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from tests.drivers import DRIVERS, Driver

_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
_RESULT = re.compile(r"test loss ([\d.]+|nan|inf), test accuracy ([\d.]+)%")
_NAME = """
from kerascl.runtime import device
info = device.default().info
print(f"DEVICE {info.name}; {info.platform} {info.driver_version}")
"""


@dataclass
class Outcome:
    """What one driver did; `wrong` has a line for each thing that failed."""

    name: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    loss: str = "-"
    accuracy: str = "-"
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def run(driver: Driver, library: str, args: argparse.Namespace) -> Outcome:
    """All that is asked of one driver."""
    begin, outcome = time.monotonic(), Outcome()
    with tempfile.TemporaryDirectory(prefix="kerascl-drivers-") as folder:
        log = Path(folder, "reports.txt")
        environment = {
            **os.environ, **driver.environment, "OCL_ICD_VENDORS": library,
            "KERASCL_DEVICE": driver.device, "KERAS_BACKEND": "kerascl", "KERASCL_CHECK": "0",
            "KERASCL_CACHE_DIR": folder,
        }  # fmt: skip
        if driver.reports:
            environment[driver.reports] = str(log)

        def python(*command: str) -> tuple[int, str]:
            try:
                done = subprocess.run(
                    [sys.executable, *command], capture_output=True, text=True, env=environment,
                    timeout=args.timeout,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return -1, f"took longer than {args.timeout:g} s"
            return done.returncode, (done.stdout + done.stderr).strip()

        status, text = python("-c", _NAME)
        named = re.search(r"DEVICE (.*)", text)
        if status or not named:
            outcome.wrong.append(text[-500:])
            return outcome
        outcome.name = named[1]
        if not args.no_table:
            part = args.part or driver.part
            status, text = python("-m", "pytest", "-q", "-n", str(args.n), "--part", part,
                                  "tests/ops/test_table.py")  # fmt: skip
            lines = text.splitlines() or [""]
            outcome.counts.update({what: int(n) for n, what in _COUNT.findall(lines[-1])})
            failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            outcome.wrong += failed or ([f"pytest ended with {status}: {lines[-1]}"] * bool(status))
        if not args.no_training:
            status, text = python("examples/fashion_mnist.py", *driver.train)
            if found := _RESULT.search(text):
                outcome.loss, outcome.accuracy = found[1], f"{found[2]} %"
            if status or not found:
                outcome.wrong.append(f"training ended with {status}: {text[-500:]}")
            elif not float(found[1]) < 100 or float(found[2]) < 100 * driver.accuracy:
                outcome.wrong.append(f"the network did not learn: {found[0]}")
        if log.exists() and (told := log.read_text(errors="replace").strip()):
            outcome.wrong.append(f"{driver.reports.split('_')[0].title()} reports:\n{told[:3000]}")
    outcome.seconds = time.monotonic() - begin
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drivers", description=__doc__.split("\n")[0],
        epilog="; ".join(f"{name}: {d.install}" for name, d in DRIVERS.items()),
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="DRIVER", help=f"of {' '.join(DRIVERS)}")
    parser.add_argument("--part", help="of the table of operations, as i/n")
    parser.add_argument("--no-table", action="store_true", help="only train")
    parser.add_argument("--no-training", action="store_true", help="only the table")
    parser.add_argument("-n", type=int, default=os.cpu_count() or 2, help="pytest's processes")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds a part may take")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in DRIVERS]:
        parser.error(f"no driver {unknown[0]!r}; there are {', '.join(DRIVERS)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("driver", "device", "passed", "failed", "skipped", "loss", "accuracy", "s")
    failed: list[str] = []
    libraries = {name: DRIVERS[name].find() for name in args.names or DRIVERS}
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("drivers", total=len(libraries))
        for name, library in libraries.items():
            if library is None:
                told = f"not installed: {DRIVERS[name].install}"
                table.add_row(name, told, style="red" if args.names else "dim")
                failed += [name] * bool(args.names)
            else:
                outcome = run(DRIVERS[name], library, args)
                counts = outcome.counts
                wrong = len(outcome.wrong)
                progress.console.print(f"{name}: {counts['passed']} passed, {wrong} things wrong")
                for line in outcome.wrong:
                    progress.console.print(line, markup=False)
                table.add_row(
                    name, outcome.name, str(counts["passed"]),
                    str(counts["failed"] + counts["error"]), str(counts["skipped"]), outcome.loss,
                    outcome.accuracy, f"{outcome.seconds:.0f}",
                    style="red" if outcome.wrong else "",
                )  # fmt: skip
                failed += [name] * bool(outcome.wrong)
            progress.advance(task)
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
