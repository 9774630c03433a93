"""Runs data-apis' suite for the Python array API standard against kerascl.

`python -m tests.array_api SUITE [--examples N] [PATH or PATH::TEST …]`, where SUITE is a checkout
of github.com/data-apis/array-api-tests with its submodule and the packages of the extra `array_api`
are installed. A test may fail only with a reason in `reasons.txt` beside this file: a value that
NumPy gives too, or a defect of the suite. Those of sums run a second time, see `sums.py`. Prints a
table by file; the exit status is 1 if anything else fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.array_api import sums

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MARK = "  # "


def reasons() -> dict[str, str]:
    """Why each test that may fail does, by its id: lines of `ID  # reason`."""
    found = {}
    for line in (HERE / "reasons.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            test, mark, reason = line.rpartition(MARK)
            if not mark or not reason.strip():
                raise SystemExit(f"reasons.txt: no reason in {line!r}")
            found[test.strip()] = reason.strip()
    return found


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """(passed, skipped or failed; first line of what went wrong) of each test, by its id."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        module, *classes = (case.get("classname") or "").split(".test_")
        file, *inner = f"test_{classes[0]}".split(".") if classes else (module, "")
        test = "::".join([f"array_api_tests/{file}.py", *inner, case.get("name") or ""])
        bad = [case.find("failure"), case.find("error")]
        message = next((b.get("message") or "" for b in bad if b is not None), None)
        if message is not None:
            found[test] = "failed", message.strip().splitlines()[0] if message.strip() else ""
        else:
            found[test] = ("passed" if case.find("skipped") is None else "skipped"), ""
    return found


def run(
    suite: Path, examples: int, jobs: int, which: Sequence[str], plugin: str | None = None
) -> dict[str, tuple[str, str]]:
    """Run the suite and collect what became of its tests."""
    environment = dict(os.environ)
    environment["ARRAY_API_TESTS_MODULE"] = "kerascl"
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
            "--disable-deadline", f"--max-examples={examples}", f"--junitxml={report}",
            *(["-p", plugin] if plugin else []),
            *(["-n", str(jobs)] if jobs > 1 else []), *(which or ["array_api_tests"]),
        ]  # fmt: skip
        subprocess.run(command, cwd=suite, env=environment, check=False)
        if not report.exists():
            raise SystemExit("the suite did not run; see above")
        return outcomes(report)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.array_api", description=__doc__)
    parser.add_argument("suite", type=Path, help="a checkout of array-api-tests")
    parser.add_argument("which", nargs="*", help="files or tests in it; by default all")
    parser.add_argument("--examples", type=int, default=100, help="examples a test (100)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_intermixed_args()
    known = reasons()
    found = run(options.suite, options.examples, options.jobs, options.which)
    summed = [test for test in sums.TESTS if test in found]
    if summed:  # beyond the dtype of their results
        again = run(options.suite, options.examples, 1, summed, "tests.array_api.sums")
        found |= {f"{test} (told of 64 bits)": outcome for test, outcome in again.items()}
    table: dict[str, Counter[str]] = defaultdict(Counter)
    unexpected = []
    for test, (outcome, message) in sorted(found.items()):
        if outcome == "failed" and test in known:
            outcome = "with a reason"
        elif outcome == "failed":
            unexpected.append(f"{test}\n    {message}")
        table[test.partition("::")[0].rpartition("/")[2]][outcome] += 1
    columns = ("passed", "with a reason", "failed", "skipped")
    width = max(map(len, [*table, "total"]), default=5)
    print(f"\n{'':{width}}" + "".join(f"{c:>15}" for c in columns))
    total: Counter[str] = Counter()
    for file, counts in table.items():
        print(f"{file:{width}}" + "".join(f"{counts[c]:15}" for c in columns))
        total += counts
    print(f"{'total':{width}}" + "".join(f"{total[c]:15}" for c in columns))
    for text in unexpected:
        print(f"failed without a reason: {text}")
    return 1 if unexpected or not found else 0


if __name__ == "__main__":
    sys.exit(main())
