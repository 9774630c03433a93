"""The part of solvers: costs predicted against measured, and tuning records."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator

from kerascl.commands import tune
from kerascl.commands.reports.parts import Item, Row, Setting, Tell
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.conv.problem import ConvProblem
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.tuning import database
from kerascl.runtime import device as devices

_CLASSES = {"gemm": MatmulProblem, "conv": ConvProblem}
_REPEATS, _SECONDS = 5, 10.0  # of one problem
_LONG = 50_000.0  # microseconds: problems that take more come last, as each race of them is long


def problems_of(rows: list[Row]) -> list[Row]:
    """The problems that other parts met, each once, in their order."""
    found = {str(p): p for row in rows for p in row.get("problems", ())}
    return list(found.values())


def predicted(kind: str, problem) -> tuple[str, float]:
    """The solver that is chosen for a problem, and the microseconds that it should take."""
    info = devices.default().info
    if kind == "attention":
        solver = database.choose(kind, attention.SOLVERS, (), problem, info)
        return solver.name, solver.cost(problem, info)
    own, variants = tune.KINDS[kind].candidates(problem, info)
    solver = database.choose(kind, own, variants, problem, info)
    return solver.name, database.estimate(kind, own, problem, info)(solver)


def items(setting: Setting) -> Iterator[Item]:
    """A race of solvers for each problem, those first whose records are worth most."""
    met = [database.from_json(entry, _CLASSES) for entry in setting.problems]
    costs = {pair: _cost(*pair) for pair in met}
    for kind, problem in sorted(met, key=lambda pair: (costs[pair] > _LONG, -costs[pair])):
        name = f"{kind} {database.key(problem)}"
        yield Item(name, functools.partial(_race, setting.quick, kind, problem))


def _cost(kind: str, problem) -> float:
    cost = predicted(kind, problem)[1]
    return cost if math.isfinite(cost) else 0.0


def _race(quick: bool, kind: str, problem, tell: Tell) -> None:
    dev = devices.default()
    end = time.monotonic() + _SECONDS
    found = tune.race(dev, kind, problem, _REPEATS, 3 if quick else 8, end)
    own, _ = tune.KINDS[kind].candidates(problem, dev.info)
    estimate = database.estimate(kind, own, problem, dev.info)
    module = tune.KINDS[kind]
    by_name = {s.name: s for s in (*module.VARIANTS, *module.SOLVERS, *own)}
    costs = {name: estimate(by_name[name]) for name in found.times}
    row = {
        "kind": kind, "problem": database.key(problem), "chosen": found.present,
        "fastest": found.fastest, "times": found.told,
        "measured": {name: t * 1e6 for name, t in found.times.items()},
        "predicted": {name: cost for name, cost in costs.items() if math.isfinite(cost)},
    }  # fmt: skip
    wrong = {n: why for n, why in found.wrong.items() if not why.startswith("NotImplemented")}
    if wrong:
        row["wrong"] = "; ".join(f"{name}: {why}" for name, why in wrong.items())
    tell(row)
