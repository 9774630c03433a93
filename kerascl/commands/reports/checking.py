"""The part of self-checks: each kind of kernel against the host."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from kerascl.checks import first, kinds
from kerascl.checks.guard import KINDS
from kerascl.checks.trial import Result
from kerascl.commands.reports.parts import Item, Setting, Tell
from kerascl.kernels.units import selftests
from kerascl.runtime import device as devices


def items(setting: Setting) -> Iterator[Item]:
    """What a driver's first use checks; the self-tests of instructions that no specification
    promises; and of each kind what `python -m kerascl check` does."""
    assert setting.device is not None
    yield Item("a few of each kind", functools.partial(_few, setting.device))
    if devices.default().info.matrix:
        yield Item("self-tests of matrix units", _self_tests)
    if not setting.quick:
        # Those with few cases first, so that the time goes to as many kinds as it can.
        counts = Counter(case.kind for case, _ in kinds.CASES["many"]())
        for kind in sorted(KINDS, key=lambda kind: counts[kind]):
            yield Item(f"{kind} at many lengths", functools.partial(_many, setting.device, kind))


def _few(index: int, tell: Tell) -> None:
    statuses = first.judge(index, "few", told=functools.partial(_tell, tell))
    for kind, status in statuses.items():
        tell({"kind": kind, "status": status})
    first.keep(devices.default().info, statuses)


def _many(index: int, kind: str, tell: Tell) -> None:
    statuses = first.judge(index, "many", [kind], told=functools.partial(_tell, tell))
    tell({"kind": kind, "status": statuses[kind]})


def _tell(tell: Tell, result: Result) -> None:
    row = {"kind": result.kind, "case": result.name}
    if result.problem is None:
        row["unknown"] = "it took too long, or the host's side failed"
    elif result.problem:
        row["wrong"] = result.problem
    tell(row)


def _self_tests(tell: Tell) -> None:
    for name, problem in selftests.results(devices.default().info).items():
        row = {"kind": "matrix units", "case": name}
        tell(row | ({"wrong": problem} if problem else {}))
