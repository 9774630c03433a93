"""What a run of Keras' tests gave: outcomes, exclusions, causes, tables."""

import fnmatch
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PREFIX = "keras/src/"
NOT_RUN = "not run: the process ended before it"


@dataclass
class Outcome:
    """One test: ``status`` is passed, failed, skipped or xfailed."""

    status: str = ""
    seconds: float = 0.0
    message: str = ""
    where: str = ""


@dataclass
class Results:
    """Outcomes by node id below keras/src, filled from the recorder's events."""

    collected: set[str] = field(default_factory=set)
    outcomes: dict[str, Outcome] = field(default_factory=lambda: defaultdict(Outcome))
    processor: Counter = field(default_factory=Counter)  # file -> seconds of processor time
    finished: int = 0

    def add(self, event: dict) -> None:
        """Takes one line of the recorder's file."""
        if "collected" in event:
            self.collected.update(map(short, event["collected"]))
            return
        if "finish" in event:
            self.finished += 1
            return
        if "end" in event:
            self.processor[event["file"]] += event["processor"]
        if "id" not in event:
            return
        outcome = self.outcomes[short(event["id"])]
        outcome.seconds += event["seconds"]
        if event["outcome"] == "failed":
            if outcome.status != "failed":  # the first error, not what the teardown made of it
                outcome.message, outcome.where = event["message"], event["where"]
            outcome.status = "failed"
        elif event["outcome"] in ("skipped", "xfailed") and outcome.status != "failed":
            outcome.status, outcome.message = event["outcome"], event["message"]
        elif event["phase"] == "call" and not outcome.status:
            outcome.status = "passed"

    def close(self) -> None:
        """Whatever was collected and never reported is a failure."""
        for name in self.collected:
            if not self.outcomes[name].status:
                self.outcomes[name] = Outcome("failed", 0.0, NOT_RUN, "")

    @property
    def failures(self) -> dict[str, Outcome]:
        return {n: o for n, o in sorted(self.outcomes.items()) if o.status == "failed"}


def short(name: str) -> str:
    """A node id below keras/src."""
    return name.removeprefix(PREFIX)


def folder(name: str) -> str:
    return name.split("/")[0]


def read_exclusions(path: Path) -> dict[str, str]:
    """Pattern -> reason.

    Raises:
        ValueError: a line without a reason.
    """
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.partition("  # ")
        if not reason.strip():
            raise ValueError(f"{path.name}:{number}: no reason is given for {pattern.strip()}")
        found[pattern.strip()] = reason.strip()
    return found


@dataclass
class Verdict:
    """Failures nobody expects, excluded tests that do not fail, exclusions that match nothing."""

    unexpected: dict[str, Outcome]
    passing: list[str]
    stale: list[str]
    excused: int

    @property
    def good(self) -> bool:
        return not (self.unexpected or self.passing or self.stale)


def judge(results: Results, exclusions: dict[str, str], whole: bool = True) -> Verdict:
    """Compares failures with the exclusions whose files were run, as a `whole` or in part."""
    files = {name.split("::")[0] for name in results.outcomes}
    excused, passing, stale = set(), [], []
    for pattern in exclusions:
        # Parametrised names hold brackets, which are not sets of characters here.
        expression = re.compile(".*".join(map(re.escape, pattern.split("*"))) + r"\Z")
        matches = [name for name in results.outcomes if expression.match(name)]
        ran = any(fnmatch.fnmatch(file, pattern.split("::")[0]) for file in files)
        if whole and ran and not matches:
            stale.append(pattern)
        for name in matches:
            if results.outcomes[name].status == "failed":
                excused.add(name)
            else:
                passing.append(name)
    unexpected = {n: o for n, o in results.failures.items() if n not in excused}
    return Verdict(unexpected, sorted(passing), stale, len(excused))


def cause(outcome: Outcome) -> str:
    """The error without what differs between like failures: numbers, addresses, shapes, names."""
    text = re.sub(r"0x[0-9a-f]+", "0x#", outcome.message)
    text = re.sub(r"Mismatched elements.*", "", text)
    text = re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", text)
    place = f"  [{outcome.where}]" if outcome.where.startswith("kerascl") else ""
    return text[:160].strip() + place


def by_cause(failures: dict[str, Outcome]) -> list[tuple[str, list[str]]]:
    """Causes with their tests, most frequent first."""
    groups = defaultdict(list)
    for name, outcome in failures.items():
        groups[cause(outcome)].append(name)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def counts(results: Results) -> dict[str, Counter]:
    """Folder -> how many tests of each status, their ``seconds``, and ``processor`` time."""
    table = defaultdict(lambda: Counter(passed=0, failed=0, skipped=0))
    for name, outcome in results.outcomes.items():
        table[folder(name)][outcome.status] += 1
        table[folder(name)]["seconds"] += outcome.seconds
    for file, seconds in results.processor.items():
        table[folder(file)]["processor"] += seconds
    return dict(sorted(table.items()))


def baselines() -> dict[str, dict[str, list[int]]]:
    """Folder -> backend -> passed, failed, skipped, summed seconds: Keras 3.15.1 on two cores."""
    return json.loads((HERE / "baselines.json").read_text(encoding="utf-8"))


def write_failures(results: Results, target: Path) -> None:
    """One file a folder that was run: the causes, then every failure on a line."""
    target.mkdir(parents=True, exist_ok=True)
    failures = defaultdict(dict)
    for name, outcome in results.failures.items():
        failures[folder(name)][name] = outcome
    for name, row in counts(results).items():
        lines = ["# {}: {passed} passed, {failed} failed, {skipped} skipped".format(name, **row)]
        for text, tests in by_cause(failures[name]):
            files = Counter(test.split("::")[0] for test in tests)
            where = ", ".join(f"{file} {number}" for file, number in files.items())
            lines.append(f"# {len(tests):4} x {text}  ({where})")
        lines.append("")
        for test, outcome in failures[name].items():
            lines.append(f"{test}  {outcome.where}  {outcome.message}")
        (target / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
