"""A pytest plugin: counts outcomes, and the problems of solvers that KERASCL_SOLVERS names in full.

Each run of pytest leaves a file of JSON in the folder that SOLVERS_COUNTED names.
"""

import functools
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

from kerascl import config
from kerascl.kernels.contract import solver as contract

_decided, _outcomes = set(), Counter()


@functools.cache
def _install():
    plain = contract.forced

    def forced(solvers, problem, info):
        chosen = plain(solvers, problem, info)
        if chosen is not None and chosen.name in config.solvers():
            _decided.add(problem)
        return chosen

    contract.forced = forced


def pytest_configure():
    _install()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        _outcomes[report.outcome] += 1


def pytest_unconfigure():
    found = dict(outcomes=_outcomes, decided=sorted(map(repr, _decided)))
    with tempfile.NamedTemporaryFile(
        "w", dir=os.environ["SOLVERS_COUNTED"], suffix=".json", delete=False
    ) as file:  # fmt: skip
        json.dump(found, file)
    _outcomes.clear()


def read(folder: str) -> tuple[Counter, int]:
    """Of all runs that left their files there: the outcomes, and the number of problems decided."""
    outcomes, decided = Counter(), set()
    for path in Path(folder).glob("*.json"):
        found = json.loads(path.read_text())
        outcomes += Counter(found["outcomes"])
        decided |= set(found["decided"])
    return outcomes, len(decided)
