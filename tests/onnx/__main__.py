"""Runs the ONNX project's tests of backends, and prints how many of each kind pass.

    python -m tests.onnx                     all kinds; KERASCL_DEVICE chooses the device
    python -m tests.onnx --kind node -k lstm those of a kind whose names hold a word
    python -m tests.onnx -v                  what each failure says

A test may fail only with a reason, in tests/onnx/reasons.txt. Exits 1 when another fails, or when
one passes that has a reason.
"""

import argparse
import os
import sys
import time
from collections import Counter

os.environ.setdefault("KERAS_BACKEND", "kerascl")

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.onnx import cases
from tests.selection import part_of

_SHOWN = 200  # tests between two lines that say how far it is, where nobody sees a bar


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.onnx", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--kind", nargs="+", choices=cases.KINDS, default=cases.KINDS)
    parser.add_argument("-k", default="", help="only tests whose name holds this")
    parser.add_argument("--part", type=part_of, default="1/1", help="the i-th of n parts, as i/n")
    parser.add_argument("-v", action="store_true", help="print what expected failures say, too")
    options = parser.parse_args()
    console, known = Console(soft_wrap=True), cases.reasons()
    chosen = [case for case in cases.cases(options.kind) if options.k in case.name]
    chosen = chosen[options.part]
    passed: Counter = Counter()
    expected: Counter = Counter()
    wrong = []
    begin = time.perf_counter()
    for place, case in enumerate(track(chosen, console=console, disable=not console.is_terminal)):
        if not console.is_terminal and place % _SHOWN == 0:
            seconds = time.perf_counter() - begin
            print(f"{place} of {len(chosen)} in {seconds:.0f} s", file=sys.stderr, flush=True)
        error, why = cases.run(case), cases.reason(case, known)
        passed[case.kind] += not error
        expected[case.kind] += bool(error and why)
        if error and (why is None or options.v):
            console.print(f"{case.kind}/{case.name}: {error}", markup=False, highlight=False)
        if bool(error) != bool(why):
            wrong.append(f"{case.kind}/{case.name}: {'fails' if error else 'passes, for all that'}")
    table = Table("kind", "tests", "passed", "%", "failed with a reason", "unexpected")
    for kind in options.kind:
        total = sum(case.kind == kind for case in chosen)
        if total:
            bad = sum(line.startswith(f"{kind}/") for line in wrong)
            table.add_row(kind, str(total), str(passed[kind]), f"{100 * passed[kind] / total:.1f}",
                          str(expected[kind]), str(bad))  # fmt: skip
    console.print(table)
    for line in wrong:
        console.print(f"unexpected: {line}", markup=False, highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
