"""Find the fastest solver for each product and convolution of a network, and keep it.

Every candidate is checked against a plain solver on fresh random inputs before it is timed.  Rows
go into the cache folder, one after the other, so that an interrupted run keeps what it has found;
they come before the shipped rows and the cost models.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kerascl.commands.scripts import run_script
from kerascl.kernels import conv, database, gemm
from kerascl.kernels.solver import Solver, choose
from kerascl.kernels.trial import Trial
from kerascl.runtime import device as devices
from kerascl.runtime.device import Device
from kerascl.runtime.errors import CompileError, DeviceError

KINDS = {"gemm": gemm, "conv": conv}
# A candidate must beat the present choice by this much: less is noise.
_GAIN = 1.03
# Candidates whose cost model says so much more than the cheapest are not tried.
_COST_RATIO = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=300, help="time budget (300)")
    parser.add_argument("--network", help="a constructor in keras.applications, such as ResNet50")
    parser.add_argument("--batch", type=int, default=32, help="batch of --network (32)")
    parser.add_argument("--size", type=int, help="image side of --network (its own default)")
    parser.add_argument("--policy", default="float32", help="Keras dtype policy of --network")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of a candidate (7)")
    parser.add_argument("--export", metavar="FILE", help="also write the device's rows as JSON")
    parser.add_argument("script", nargs="?", help="or a script that trains, run once")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    if (options.script is None) == (options.network is None):
        console.print("tune: give --network or a script", style="red")
        return 2
    os.environ.setdefault("KERAS_BACKEND", "kerascl")
    dev = devices.default()
    with database.recording() as problems:
        if options.script:
            run_script(options.script, options.arguments)
        else:
            _run_network(options)
    todo = [(kind, p) for kind, p in problems if kind in KINDS and p.a.is_float and p.b.is_float]
    if not todo:
        console.print("tune: the network has no products or convolutions to tune")
        return 1
    _tune(dev, todo, options, console)
    if options.export:
        device = {"name": dev.info.name}
        text = json.dumps({"device": device, "rows": database.own_rows(dev.info)}, indent=0)
        Path(options.export).write_text(text)
    return 0


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
    table = Table(title=f"Tuned on {dev.info.name}")
    for name in ("problem", "before", "us", "fastest", "us", "gain", "tried", "wrong"):
        table.add_column(name, overflow="fold")
    end = time.monotonic() + options.seconds
    kept = True
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("tuning", total=len(problems))
        for number, (kind, problem) in enumerate(problems):
            if time.monotonic() > end:
                left = len(problems) - number
                console.print(f"The time is up: {left} problems left as they are.")
                break
            progress.update(task, description=f"{kind} {number + 1} of {len(problems)}")
            row = _tune_one(dev, kind, problem, options.repeats, end, table)
            if row:
                kept = database.keep(dev.info, row)
            progress.advance(task)
    console.print(table)
    if not kept:
        console.print("The cache is off (KERASCL_CACHE_DIR is empty): nothing was kept.")


def _tune_one(dev: Device, kind: str, problem, repeats: int, end: float, table: Table) -> dict:
    module, info = KINDS[kind], dev.info
    reference = choose(module.REFERENCES, problem, info)
    present = database.choose(kind, module.SOLVERS, module.VARIANTS, problem, info)
    trial = Trial(problem, reference, dev)
    before = trial.seconds(trial.plan(present), repeats)
    best, fastest, tried, wrong = before, present, 0, []
    for candidate in _candidates(module, problem, info):
        if time.monotonic() > end:
            break
        if candidate.name == present.name:
            continue
        try:
            plan = trial.plan(candidate)
            if not trial.error(plan) <= trial.bound:
                wrong.append(candidate.name)
                continue
            seconds = trial.seconds(plan, repeats)
        except (CompileError, DeviceError, NotImplementedError):
            wrong.append(candidate.name)
            continue
        tried += 1
        if seconds < best:
            best, fastest = seconds, candidate
    table.add_row(
        f"{kind} {database.key(problem)}", present.name, f"{before * 1e6:.1f}", fastest.name,
        f"{best * 1e6:.1f}", f"{before / best:.2f}", str(tried), " ".join(wrong),
    )  # fmt: skip
    if fastest is present or before / best < _GAIN:
        return {}
    return {f"{kind} {database.key(problem)}": fastest.name}


def _candidates(module, problem, info) -> list[Solver]:
    """Every applicable solver and variant whose cost is not hopeless, the cheapest first."""
    found = [s for s in (*module.SOLVERS, *module.VARIANTS) if s.applies(problem, info)]
    costs = {id(s): s.cost(problem, info) for s in found}
    least = min(costs.values())
    found = [s for s in found if costs[id(s)] <= _COST_RATIO * least]
    return sorted(found, key=lambda s: costs[id(s)])
