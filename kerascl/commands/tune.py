"""Find the fastest solver for each product and convolution of a network, and keep it.

Every candidate is checked against a plain solver on fresh random inputs before it is timed.
Records go into the cache folder, one after the other, so that an interrupted run keeps what it has
found; they come before the shipped records and the cost models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kerascl.commands.scripts import run_script
from kerascl.kernels.contract import registry
from kerascl.kernels.contract.solver import Solver, choose
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import ConvProblem
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.selftests import asked
from kerascl.kernels.tuning import database, machine
from kerascl.kernels.tuning.trial import Trial
from kerascl.kernels.tuning.trial import plan as plan_of
from kerascl.runtime import device as devices
from kerascl.runtime.device import Device
from kerascl.runtime.errors import CompileError, DeviceError
from kerascl.runtime.tables import table as new_table

KINDS = {"gemm": matmul, "conv": conv}
# A candidate must beat the present choice by this much: less is noise.
_GAIN = 1.03
# Problems whose candidates are built together.
_TOGETHER = 8
# Candidates whose cost model says so much more than the cheapest are not tried, but those that say
# nothing (infinity).
_COST_RATIO = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--seconds", type=float, default=300, help="time budget (300)")
    parser.add_argument("--network", help="a constructor in keras.applications, such as ResNet50")
    parser.add_argument("--batch", type=int, default=32, help="batch of --network (32)")
    parser.add_argument("--size", type=int, help="image side of --network (its own default)")
    parser.add_argument("--policy", default="float32", help="Keras dtype policy of --network")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of a candidate (7)")
    parser.add_argument("--candidates", type=int, default=16, help="tried for each problem (16)")
    parser.add_argument("--problems", metavar="FILE", help="or a list that --record wrote")
    parser.add_argument("--record", metavar="FILE", help="only list the network's problems there")
    parser.add_argument(
        "--export", metavar="FILE", help="also write the device's tuning records as JSON"
    )
    parser.add_argument("--times", metavar="FILE", help="also write each candidate's time as JSON")
    parser.add_argument("script", nargs="?", help="or a script that trains, run once")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    sources = (options.script, options.network, options.problems)
    if sum(source is not None for source in sources) != 1:
        console.print("tune: give --network, --problems or a script", style="red")
        return 2
    os.environ.setdefault("KERAS_BACKEND", "kerascl")
    dev = devices.default()
    if options.problems:
        try:
            problems = _read(options.problems)
        except (OSError, ValueError, TypeError) as error:
            console.print(f"tune: --problems {options.problems}: {error}", style="red")
            return 2
    else:
        with database.recording() as problems:
            if options.script:
                run_script(options.script, options.arguments)
            else:
                _run_network(options)
    todo = [(kind, p) for kind, p in problems if kind in KINDS and p.a.is_float and p.b.is_float]
    if options.record:
        Path(options.record).write_text(json.dumps([database.to_json(*p) for p in todo], indent=0))
        console.print(f"{len(todo)} problems in {options.record}")
        return 0
    if not todo:
        console.print("tune: the network has no products or convolutions to tune")
        return 1
    _tune(dev, todo, options, console)
    if options.export:
        device = {"name": dev.info.name}
        text = json.dumps({"device": device, "records": database.own_records(dev.info)}, indent=0)
        Path(options.export).write_text(text)
    return 0


def _read(file: str) -> list[tuple]:
    classes = {"gemm": MatmulProblem, "conv": ConvProblem}
    entries = json.loads(Path(file).read_text())
    return list(dict.fromkeys(database.from_json(entry, classes) for entry in entries))


def _run_network(options: argparse.Namespace) -> None:
    import keras  # the one command that needs Keras

    keras.config.set_dtype_policy(options.policy)
    make = getattr(keras.applications, options.network)
    shape = (options.size, options.size, 3) if options.size else None
    model = make(weights=None, input_shape=shape, classes=1000, classifier_activation=None)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((options.batch, *model.input_shape[1:]), np.float32)
    model.train_on_batch(x, rng.integers(0, 1000, options.batch))
    model.predict_on_batch(x)


def _tune(dev: Device, problems: list, options: argparse.Namespace, console: Console) -> None:
    texts, numbers = ("problem", "before", "fastest", "wrong"), ("us before", "us", "gain", "tried")
    table = new_table(f"Tuned on {dev.info.name}", texts, numbers)
    machine.of(dev.info)  # measured now if it never was, not within the time
    end = time.monotonic() + options.seconds
    times: dict[str, dict[str, float]] = {}
    kept = True
    # What takes longest first, as far as the time goes.
    todo = sorted(
        problems, key=lambda p: -_least(KINDS[p[0]], p[1], dev.info)
    )
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=console, transient=True)
    with progress, dev.programs.compiler_processes():
        task = progress.add_task("tuning", total=len(todo))
        for number, (kind, problem) in enumerate(todo):
            if time.monotonic() > end:
                left = len(todo) - number
                console.print(f"The time is up: {left} problems left as they are.")
                break
            if number % _TOGETHER == 0:
                progress.update(task, description="building")
                _build(dev, todo[number : number + _TOGETHER], options)
            progress.update(task, description=f"{kind} {number + 1} of {len(todo)}")
            name = f"{kind} {database.key(problem)}"
            times[name] = _tune_one(dev, kind, problem, options, end, table)
            kept = database.keep(dev.info, {name: times[name]})
            progress.advance(task)
    console.print(table)
    if options.times:
        Path(options.times).write_text(json.dumps(times, indent=0))
    if not kept:
        console.print("The cache is off (KERASCL_CACHE_DIR is empty): nothing was kept.")


def _build(dev: Device, problems: list, options: argparse.Namespace) -> None:
    """Build what the candidates of several problems need; what fails is met again one by one."""
    launches = []
    for kind, problem in problems:
        found = _candidates(KINDS[kind], problem, dev.info)[: options.candidates]
        for candidate in (*_own(kind, problem, dev.info), *found):
            with contextlib.suppress(NotImplementedError):
                launches += plan_of(candidate, problem, dev.info).launches
    with contextlib.suppress(CompileError, DeviceError):
        dev.programs.build((launch.source, launch.options) for launch in launches)


def _tune_one(
    dev: Device, kind: str, problem, options, end: float, table: Table
) -> dict[str, float]:
    """Microseconds of the present solver and of those that are right and either beat it or are
    slower: what is hardly faster is left out, as noise."""
    found = race(dev, kind, problem, options.repeats, options.candidates, end)
    before, best = found.times[found.present], found.times[found.fastest]
    table.add_row(
        f"{kind} {database.key(problem)}", found.present, found.fastest, " ".join(found.wrong),
        f"{before * 1e6:.1f}", f"{best * 1e6:.1f}", f"{before / best:.2f}",
        str(len(found.times) - 1),
    )  # fmt: skip
    return found.told


@dataclass
class Race:
    """What solvers took for one problem.

    Attributes:
        present: the solver that is chosen today.
        times: seconds of it and of the others that are right.
        wrong: why others are out, and whether it is wrong itself: a relative error, or what the
            driver said.
    """

    present: str
    times: dict[str, float]
    wrong: dict[str, str]

    @property
    def fastest(self) -> str:
        """The right solver of the least time."""
        right = [name for name in self.times if name not in self.wrong] or [self.present]
        return min(right, key=lambda name: self.times[name])

    @property
    def told(self) -> dict[str, float]:
        """The record to keep, in microseconds: what is hardly faster than the present solver is
        left out, as noise."""
        before = self.times[self.present]
        right = {n: t for n, t in self.times.items() if n not in self.wrong}
        told = {n: t for n, t in right.items() if t >= before or before / t >= _GAIN}
        return {name: round(seconds * 1e6, 2) for name, seconds in told.items()}


def race(dev: Device, kind: str, problem, repeats: int, candidates: int, end: float) -> Race:
    """Check and time the solver that is chosen and, until the time `end`, others.

    Args:
        kind: of KINDS.
        candidates: how many others, the cheapest first.
    """
    module, info = KINDS[kind], dev.info
    reference = _reference(module, problem, info)
    solvers, variants = module.candidates(problem, info)
    # Those that have not run yet of all their self-tests run together.
    others = asked.settled(info, lambda: _candidates(module, problem, info))
    present = database.choose(kind, solvers, variants, problem, info)
    trial = Trial(problem, reference, dev)
    plan = trial.plan(present)
    found = Race(present.name, {present.name: trial.seconds(plan, repeats)}, {})
    error = trial.error(plan)
    if not error <= trial.bound:
        found.wrong[present.name] = f"relative error {error:.1e}"
    for candidate in (*_own(kind, problem, info), *others[:candidates]):
        if time.monotonic() > end:
            break
        if candidate.name == present.name:
            continue
        try:
            plan = trial.plan(candidate)
            error = trial.error(plan)
            if not error <= trial.bound:
                found.wrong[candidate.name] = f"relative error {error:.1e}"
                continue
            found.times[candidate.name] = trial.seconds(plan, repeats)
        except (CompileError, DeviceError, NotImplementedError) as failure:
            text = str(failure).partition("\n")[0]
            found.wrong[candidate.name] = f"{type(failure).__name__}: {text}"
    return found


def _reference(module, problem, info) -> Solver:
    """The cheapest solver that is right beyond doubt and for whose workspace there is memory."""
    most = info.max_alloc_bytes or math.inf
    fitting = [
        solver for solver in module.REFERENCES
        if solver.applies(problem, info)
        and max(plan_of(solver, problem, info).workspace, default=0) <= most
    ]  # fmt: skip
    return choose(fitting or module.REFERENCES, problem, info)


def _own(kind: str, problem, info) -> list[Solver]:
    """The applicable solvers that the user's script added."""
    return [solver for solver in registry.of(kind) if solver.applies(problem, info)]


def _least(module, problem, info) -> float:
    """What the cheapest solver costs."""
    return choose(module.candidates(problem, info)[0], problem, info).cost(problem, info)


def _candidates(module, problem, info) -> list[Solver]:
    """Applicable solvers and variants whose cost is not hopeless, the cheapest first: of each tile
    the one that seems to cut the depth best."""
    found: dict[str, tuple[float, Solver]] = {}
    for solver in (*module.SOLVERS, *module.VARIANTS):
        if solver.applies(problem, info):
            cost, tile = solver.cost(problem, info), re.sub(r"_?s\d+$", "", solver.name)
            if tile not in found or cost < found[tile][0]:
                found[tile] = cost, solver
    least = min(cost for cost, _ in found.values())
    kept = [p for p in found.values() if p[0] <= _COST_RATIO * least or p[0] == math.inf]
    return [solver for _, solver in sorted(kept, key=lambda pair: pair[0])]
