"""Compiles every program for devices that need not be there, and says what their compilers say.

    python -m tests.offline                          all suites, all targets whose compiler is there
    python -m tests.offline --suites small --targets gfx1100 dg2
    python -m tests.offline --quick                  a few minutes: what changes most
    python -m tests.offline --json report.json --keep texts/

Networks, the table of operations, random programs and single problems are lowered by the facts of
each profile (tests/profiles/cards.toml), never run. Every text goes through the compiler of its
profile's vendor and, as OpenCL C 1.2 with the profile's extensions only, through clang's front end.
Outcomes are kept in the cache folder, so a second run compiles what has changed.

For each target: programs, errors, kernels whose registers do not fit (spills) or that keep private
memory, the most registers and local memory, the fewest hardware threads at once, and kernels whose
arguments are too many. Budgets are in tests/offline/budgets.toml. Exits 1 beyond one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from tests import profiles
from tests.offline import compilers, report, suites, work

QUICK_SUITES = ("small", "half")
QUICK_TARGETS = ("gfx1030", "dg2")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.offline", description=__doc__.split("\n")[0]
    )
    known = [*compilers.AMD.targets, *compilers.INTEL.targets, "opencl-c"]
    parser.add_argument("--targets", nargs="+", choices=known, default=known, metavar="TARGET",
                        help=f"of {' '.join(known)}")  # fmt: skip
    parser.add_argument("--profiles", nargs="+", choices=list(profiles.load()), metavar="PROFILE",
                        help=f"of {' '.join(profiles.load())}")  # fmt: skip
    parser.add_argument("--suites", nargs="+", choices=suites.SUITES, default=suites.SUITES)
    parser.add_argument("--quick", action="store_true", help="two suites for two targets")
    parser.add_argument("-n", type=int, default=os.cpu_count() or 2, help="processes")
    parser.add_argument("--json", type=Path, help="the whole report")
    parser.add_argument("--keep", type=Path, help="a folder for the texts")
    parser.add_argument("--most", type=int, default=12, help="kernels to name for each target")
    args = parser.parse_args()
    if args.quick:
        args.targets, args.suites = QUICK_TARGETS, QUICK_SUITES
    console = Console(width=None if sys.stdout.isatty() else 120)
    names = [n for n in args.profiles or profiles.load() if work.targets_of(n, args.targets)]
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        texts, refused = work.lowered(args.suites, names, args.n, progress)
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            for text in texts:
                head = f"// {' '.join(text.options)}\n"
                (args.keep / f"{text.key}.cl").write_text(head + text.source)
        outcomes = work.compiled(texts, args.targets, args.n, progress)
    found = report.Report(texts, refused, outcomes)
    found.show(console, args.most)
    for compiler in {compilers.AMD, compilers.INTEL, compilers.STANDARD}:
        if compiler.missing and set(args.targets) & {*compiler.targets, "opencl-c"}:
            console.print(f"left out, without {compiler.program}: {compiler.missing}")
    beyond = found.beyond_budgets()
    for line in beyond:
        console.print(f"[red]beyond its budget:[/] {line}")
    if args.json:
        args.json.write_text(json.dumps(found.as_json(), indent=1))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
