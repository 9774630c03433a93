"""Runs the tests inside the installed Keras under a backend and compares with what is expected.

    python -m tests.upstream                       everything (but applications, which download)
    python -m tests.upstream --folder losses       a folder of keras/src
    python -m tests.upstream layers/core -k Dense  a path below keras/src, and pytest's -k
    python -m tests.upstream --part 2/3            a third of each file's tests
    python -m tests.upstream --backend jax         another backend, for times side by side

Exits 1 when a test fails that exclusions.txt does not name, or one does not fail that it names.
Needs the extra ``upstream``.
"""

import argparse
import dataclasses
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.selection import part_of
from tests.upstream import results as res
from tests.upstream.pool import Pool, Unit

LEFT_OUT = {"applications"}  # they download weights and pictures
PART = 100_000  # bytes of a test file that one worker runs in one go
RIVALS = {"numpy": "numpy", "jax": "JAX", "torch": "torch"}


def main() -> int:
    arguments = parse()
    console = Console(width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the workers
    started = time.monotonic()
    results = run(keras_root(), arguments, console)
    if arguments.failures:
        res.write_failures(results, arguments.failures)
    return report(results, arguments, time.monotonic() - started, console)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.upstream", description=__doc__.split("\n")[0]
    )
    parser.add_argument("paths", nargs="*", help="files or folders below keras/src")
    parser.add_argument("--folder", action="append", default=[], help="a folder of keras/src")
    parser.add_argument("--backend", default="kerascl", help="default kerascl")
    parser.add_argument("-n", type=int, default=2, help="processes, default 2")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a test may take")
    parser.add_argument("-k", default="", help="pytest's -k")
    parser.add_argument("--seed", type=int, default=0, help="of each test's random data")
    parser.add_argument(
        "--part", type=part_of, default="1/1", help="each file's i-th of n parts, as i/n"
    )
    parser.add_argument("--failures", type=Path, help="folder for a file of failures by folder")
    parser.add_argument("--slowest", type=int, default=0, help="how many slow files to list")
    parser.add_argument("--skips", action="store_true", help="list the reasons of skipped tests")
    return parser.parse_args()


def keras_root() -> Path:
    """The folder that holds the installed ``keras``; found without importing it."""
    spec = importlib.util.find_spec("keras")
    if spec is None or spec.origin is None:
        raise SystemExit("Keras is not installed")
    return Path(spec.origin).parent.parent


def targets(root: Path, arguments: argparse.Namespace) -> list[Unit]:
    """Test files below keras/src, large ones in parts, and those first: they take long."""
    source = root / "keras" / "src"
    chosen = [path.removeprefix("keras/src/") for path in arguments.paths] + arguments.folder
    files: set[Path] = set()
    for path in chosen or ["."]:
        if not (source / path).exists():
            raise SystemExit(f"there is no {path} in {source}")
        here = source / path
        files.update(here.rglob("*_test.py") if here.is_dir() else [here])
    names = {str(file.relative_to(source)): file.stat().st_size for file in files}
    if not chosen:
        names = {name: size for name, size in names.items() if res.folder(name) not in LEFT_OUT}
    units = []
    for name in sorted(names, key=lambda name: (-names[name], name)):
        parts = -(-names[name] // PART)
        units += [Unit(name, part, parts) for part in range(parts)]
    return units


def run(root: Path, arguments: argparse.Namespace, console: Console) -> res.Results:
    """Runs what was asked for and shows how far it is."""
    results = res.Results()
    options = [
        "-c", str(res.HERE / "pytest.ini"), "--rootdir", str(root), "--noconftest", "-q",
        "--no-header", "--tb=short", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist",
        "--timeout", str(arguments.timeout), "--timeout-method", "signal",
    ]  # fmt: skip
    if arguments.k:
        options += ["-k", arguments.k]

    def job(unit: Unit) -> dict:
        path = str(root / "keras" / "src" / unit.file)
        own = {"path": path, "options": options}
        return dataclasses.asdict(unit) | own | {"of": [arguments.part.start, arguments.part.step]}

    with tempfile.TemporaryDirectory(prefix="kerascl-upstream-") as work:
        pool = Pool(
            targets(root, arguments), arguments.n, arguments.timeout, job,
            environment(arguments, Path(work)), Path(work), results.add,
        )  # fmt: skip
        try:
            follow(pool, results, console)
        finally:
            pool.stop()
    results.close()
    return results


def environment(arguments: argparse.Namespace, work: Path) -> dict[str, str]:
    """One thread for the other frameworks, nothing read from the home folder."""
    import_paths = [str(res.HERE), str(res.HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    changes = {
        "PYTHONPATH": os.pathsep.join(filter(None, import_paths)),
        "KERAS_BACKEND": arguments.backend,
        "UPSTREAM_SEED": str(arguments.seed),
        "KERAS_HOME": str(work / "keras"),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "NO_GCE_CHECK": "true",
        "MPLBACKEND": "Agg",
    }
    return os.environ | changes


def follow(pool: Pool, results: res.Results, console: Console) -> None:
    """Shows a bar, or lines where there is no terminal, until the pool is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tests"),
        TimeElapsedColumn(),
    )
    said = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        while pool.busy:
            time.sleep(0.2)
            with pool.lock:
                ran, known = results.finished, len(results.collected)
                failed = sum(outcome.status == "failed" for outcome in results.outcomes.values())
            text = f"{failed} failed, {pool.units.qsize()} files to go"
            progress.update(bar, description=text, completed=ran, total=known)
            if not console.is_terminal and time.monotonic() - said > 30:
                said = time.monotonic()
                console.print(f"{ran}/{known} tests, {text}", highlight=False)


def report(
    results: res.Results, arguments: argparse.Namespace, wall: float, console: Console
) -> int:
    """Prints the table and what is wrong; returns the exit status."""
    console.print(table(results, arguments.backend))
    console.print(f"{wall:.0f} s with {arguments.n} processes")
    if arguments.slowest:
        for file, seconds in results.processor.most_common(arguments.slowest):
            console.print(f"{seconds:8.1f} CPU s  {file}", highlight=False)
    if arguments.skips:
        reasons = Counter(o.message for o in results.outcomes.values() if o.status == "skipped")
        for text, number in reasons.most_common():
            console.print(f"{number:6} x {text}", markup=False, highlight=False, soft_wrap=True)

    compare = arguments.backend == "kerascl" and not arguments.k
    exclusions = res.read_exclusions(res.HERE / "exclusions.txt") if compare else {}
    verdict = res.judge(results, exclusions, whole=arguments.part.step == 1)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for text, tests in res.by_cause(verdict.unexpected):
        say(f"\n{len(tests)} x {text}")
        for test in tests[:5]:
            say(f"    {test}")
        if len(tests) > 5:
            say(f"    and {len(tests) - 5} more")
    for name in verdict.passing:
        say(f"excluded, but does not fail: {name}")
    for name in verdict.stale:
        say(f"excluded, but there is no such test: {name}")
    wrong = len(verdict.passing) + len(verdict.stale)
    say(
        f"\n{len(verdict.unexpected)} unexpected failures, {verdict.excused} expected ones, "
        f"{wrong} exclusions to remove"
    )
    return 0 if verdict.good and results.outcomes else 1


def table(results: res.Results, backend: str) -> Table:
    """By folder, beside what Keras' own backends gave."""
    known = res.baselines()
    shown = Table(title=f"Keras' tests under {backend}; others: passed/failed/skipped")
    columns = ["folder", "passed", "failed", "skipped", "s", "CPU s"]
    for title in RIVALS.values():
        columns += [title, "s"]
    for name in columns:
        shown.add_column(name, justify="left" if name == "folder" else "right", no_wrap=True)
    total, sums = [0, 0, 0, 0.0, 0.0], {name: [0] * 4 for name in RIVALS}

    def cells(name: str, values: list, others: list[list[int]]) -> list[str]:
        made = [name, *map(str, values[:3]), f"{values[3]:.0f}", f"{values[4]:.0f}"]
        for other in others:
            made += ["/".join(map(str, other[:3])), str(other[3])]
        return made

    for name, row in res.counts(results).items():
        values = [row[key] for key in ("passed", "failed", "skipped", "seconds", "processor")]
        others = [known.get(name, {}).get(rival, [0] * 4) for rival in RIVALS]
        total = [a + b for a, b in zip(total, values)]
        for rival, other in zip(RIVALS, others):
            sums[rival] = [a + b for a, b in zip(sums[rival], other)]
        shown.add_row(*cells(name, values, others), style="red" if row["failed"] else None)
    shown.add_section()
    shown.add_row(*cells("all", total, list(sums.values())))
    return shown


if __name__ == "__main__":
    sys.exit(main())
