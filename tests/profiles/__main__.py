"""Runs tests on CPU drivers that pass for the devices of cards.toml.

    python -m tests.profiles                            every profile, on every CPU driver found
    python -m tests.profiles a770 malig715 --drivers intel
    python -m tests.profiles rx580 --paths tests/ops/test_table.py -k captured
    python -m tests.profiles --list

The table of operations, the solvers, Keras' layers and training then have the card's schedules,
tiles, work-groups and local memory, and go without what it lacks (doubles, halves, 64-bit atomics,
sub-groups). Numbers are checked; speed, drivers and the hardware's rounding are not, nor what only
that vendor's compiler understands. Exits 1 when a test fails.
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
from concurrent.futures import ThreadPoolExecutor, as_completed

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from kerascl.runtime import device
from tests import profiles

KERNELS = (
    "gemm", "conv", "winograd", "attention", "pool", "recurrent", "scan", "sort", "scatter",
    "counts", "fft",
)  # fmt: skip
PATHS = (
    "tests/ops/test_table.py",
    *(f"tests/kernels/test_{name}.py" for name in KERNELS),
    *(f"tests/backend/test_{name}.py" for name in ("nn", "rnn", "trainer")),
)
DRIVERS = {"Intel(R) OpenCL": "intel", "Portable Computing Language": "portable"}
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


def drivers() -> list[str]:
    """Names, for KERASCL_DEVICE, of the CPU drivers that are here."""
    found = [f.info.platform for f in device.find_devices() if f.info and f.info.kind == "cpu"]
    return [DRIVERS[name] for name in dict.fromkeys(found) if name in DRIVERS]


def run(name: str, driver: str, folder: str, args: argparse.Namespace) -> dict:
    """The outcome of the tests as one device on one driver; what is built is kept in a folder."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *args.paths]
    command += ["-k", args.k] if args.k else []
    environment = {**os.environ, "KERASCL_DEVICE": driver, "KERASCL_TEST_PROFILE": name,
                   "KERASCL_CHECK": "0", "PYTEST_PLUGINS": "tests.profiles.pretending",
                   "KERASCL_CACHE_DIR": folder}  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.timeout, env=environment
        )
        text, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        text, status = (late.stdout or b"").decode(), -1
    lines = text.strip().splitlines() or [""]
    counts = Counter({what: int(n) for n, what in _COUNT.findall(lines[-1])})
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if status and not failures:
        failures = [f"{'too long' if status == -1 else f'ended with {status}'}: {lines[-1]}"]
    return dict(status=status, counts=counts, failures=failures, seconds=time.monotonic() - begin)


def main() -> int:
    known = profiles.load()
    parser = argparse.ArgumentParser(
        prog="python -m tests.profiles", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="PROFILE", help="default all; see --list")
    parser.add_argument("--list", action="store_true", help="only list the profiles")
    parser.add_argument("--drivers", nargs="+", choices=list(DRIVERS.values()), help="default all")
    parser.add_argument("--paths", nargs="+", default=PATHS, help="what pytest runs")
    parser.add_argument("-k", help="as pytest's")
    parser.add_argument("-n", type=int, default=2, help="runs at a time")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds a run may take")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    if args.list:
        for profile in known.values():
            console.print(f"{profile.name:12} {profile.title}", markup=False)
        return 0
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no profile {unknown[0]!r}; there are {', '.join(known)}")
    runs = [(n, d) for n in args.names or known for d in args.drivers or drivers()]
    table = Table("device", "driver", "passed", "failed", "skipped", "s")
    failures = []
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="kerascl-profiles-") as folder,
        Progress(*columns, console=console) as progress,
        ThreadPoolExecutor(args.n) as pool,
    ):
        task = progress.add_task("profiles", total=len(runs))
        futures = {pool.submit(run, *one, folder, args): one for one in runs}
        for done in as_completed(futures):
            (name, driver), r = futures[done], done.result()
            progress.advance(task)
            counts = r["counts"]
            wrong = counts["failed"] + counts["error"]
            cells = (counts["passed"], wrong, counts["skipped"], f"{r['seconds']:.0f}")
            progress.console.print(f"{name} on {driver}: {counts['passed']} passed, {wrong} failed")
            table.add_row(name, driver, *map(str, cells), style="red" if r["status"] else "")
            failures += [f"{name} on {driver}: {line}" for line in r["failures"]]
    console.print(table)
    for line in failures:
        console.print(line, markup=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
