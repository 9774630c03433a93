r"""How well solvers' costs say what they take: predicted against measured, layer by layer.

    python benchmarks/costs.py
    python benchmarks/costs.py --networks resnet50 --batch 64 --size 224 --policy mixed_bfloat16
    KERASCL_DEVICE=portable python benchmarks/costs.py --json costs.json

Trains each network for one step, and notes every problem that a solver was chosen for.  Each is
then solved by the solver that is chosen and by the next ones by cost, in turns, on random inputs.
Prints what the slowest should take and take, and the fastest solver tried; of each kind of problem
the median error of the predictions (100 %: twice or half), and how often the chosen solver is at
most a tenth slower than the fastest.

Measured times are the least of several, as other programs may run beside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
from keras import layers

from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.contract.plan import Launch
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.pool import solvers as pool
from kerascl.kernels.scan import solvers as scan
from kerascl.kernels.scatter import solvers as scatter
from kerascl.kernels.sort import solvers as sort
from kerascl.kernels.tuning import database, machine
from kerascl.kernels.tuning.trial import Timing
from kerascl.kernels.tuning.trial import plan as plan_of
from kerascl.runtime import device as devices
from kerascl.runtime.device import Device
from kerascl.runtime.errors import CompileError, DeviceError

SOLVERS = {
    "pool": pool.SOLVERS, "scan": scan.SCAN_SOLVERS, "sort": sort.SOLVERS,
    "scatter": scatter.SOLVERS, "attention": attention.SOLVERS,
}  # fmt: skip
WITHIN = 1.1
TOGETHER = 16  # problems whose programs are built at once
WARM = 0.05  # seconds of work before times are taken: devices that idled run at lower clocks


def cnn(size: int) -> keras.Model:
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(32, 3, activation="relu")(inputs)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(64, 3, activation="relu")(x)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def mlp(size: int) -> keras.Model:
    inputs = keras.Input((784,))
    x = layers.Dense(512, activation="relu")(inputs)
    x = layers.Dense(512, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def resnet20(size: int) -> keras.Model:
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            skip = layers.Conv2D(filters, 1, stride)(x) if stride == 2 else x
            y = layers.Conv2D(filters, 3, stride, padding="same", activation="relu")(x)
            y = layers.Conv2D(filters, 3, padding="same")(y)
            x = layers.ReLU()(layers.add([y, skip]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def lstm(size: int) -> keras.Model:
    inputs = keras.Input((100,), dtype="int32")
    x = layers.Embedding(10000, 64)(inputs)
    x = layers.Bidirectional(layers.LSTM(64))(x)
    return keras.Model(inputs, layers.Dense(2)(x))


def transformer(size: int) -> keras.Model:
    inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(10000, 128)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y, use_causal_mask=True)
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128)(y)
    return keras.Model(inputs, layers.Dense(1000)(x))


def application(name: str):
    def build(size: int) -> keras.Model:
        make = getattr(keras.applications, name)
        shape = (size, size, 3)
        return make(weights=None, input_shape=shape, classes=100, classifier_activation=None)

    return build


NETWORKS = {
    "mlp": mlp, "cnn": cnn, "resnet20": resnet20, "lstm": lstm, "transformer": transformer,
    "mobilenet": application("MobileNetV2"), "resnet50": application("ResNet50"),
    "vgg16": application("VGG16"),
}  # fmt: skip


@dataclass
class Row:
    """One problem: microseconds predicted and measured of each solver tried."""

    kind: str
    problem: str
    chosen: str
    predicted: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def fastest(self) -> str:
        return min(self.measured, key=lambda name: self.measured[name])

    @property
    def slower(self) -> float:
        """How many times as long the chosen solver takes as the fastest."""
        return self.measured[self.chosen] / self.measured[self.fastest]

    @property
    def error(self) -> float:
        """Of what the chosen solver should take: 1 for twice or half of what it takes."""
        return error(self.predicted[self.chosen], self.measured[self.chosen])


def error(predicted: float, measured: float) -> float:
    return math.exp(abs(math.log(predicted / measured))) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS)[:6], choices=NETWORKS)
    parser.add_argument("--batch", type=int, help="of each network (8; 64 on GPUs)")
    parser.add_argument("--size", type=int, help="image side of keras.applications (64; 224)")
    parser.add_argument("--policy", default="float32", help="Keras dtype policy")
    parser.add_argument("--solvers", type=int, default=5, help="tried for each problem (5)")
    parser.add_argument("--within", type=float, default=8.0, help="times the least cost (8)")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of a solver (5)")
    parser.add_argument("--kinds", nargs="+", help="of problems (all)")
    parser.add_argument("--rows", type=int, default=40, help="of the table, the slowest (40)")
    parser.add_argument("--seconds", type=float, default=480, help="time budget (480)")
    parser.add_argument("--json", metavar="FILE", help="also write all times")
    options = parser.parse_args()
    console = Console()
    dev = devices.default()
    gpu = dev.info.kind != "cpu"
    batch, size = options.batch or (64 if gpu else 8), options.size or (224 if gpu else 64)
    problems = collect(options, batch, size)
    rates = machine.of(dev.info)
    console.print(f"{dev.info.name}: {rates}")
    rows: list[Row] = []
    end = time.monotonic() + options.seconds
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip
    with progress, dev.programs.compiler_processes():
        task = progress.add_task("problems", total=len(problems))
        for number, (kind, problem) in enumerate(problems):
            if time.monotonic() > end:
                console.print(f"The time is up: {len(problems) - number} problems are left.")
                break
            if number % TOGETHER == 0:
                progress.update(task, description="building")
                build(dev, problems[number : number + TOGETHER], options)
            progress.update(task, description=kind)
            row = measure(dev, kind, problem, options)
            rows += [row] if row else []
            progress.advance(task)
    report(rows, options.rows, console)
    if options.json:
        found = {"device": dev.info.name, "machine": asdict(rates)}
        found["rows"] = [asdict(row) for row in rows]
        Path(options.json).write_text(json.dumps(found, indent=1))


def collect(options: argparse.Namespace, batch: int, size: int) -> list[tuple[str, Any]]:
    """Problems of one training step of each network, those alike once."""
    found: dict[tuple[str, Any], None] = {}
    rng = np.random.default_rng(0)
    for name in options.networks:
        keras.utils.clear_session()
        keras.config.set_dtype_policy(options.policy)
        model = NETWORKS[name](size)
        shape = (batch, *model.input_shape[1:])
        words = "int" in model.inputs[0].dtype
        x = rng.integers(0, 1000, shape) if words else rng.standard_normal(shape, np.float32)
        y = rng.integers(0, model.output_shape[-1], (batch, *model.output_shape[1:-1]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        with database.recording() as problems:
            model.train_on_batch(x, y)
        found |= dict.fromkeys((kind, problem) for kind, problem in problems)
    kinds = options.kinds or ("gemm", "conv", *SOLVERS)
    return [(kind, problem) for kind, problem in found if kind in kinds]


def candidates(kind: str, problem, info) -> tuple[tuple[Solver, ...], tuple[Solver, ...]]:
    """Solvers whose costs decide, and all that may be tried beside."""
    if kind in SOLVERS:
        return SOLVERS[kind], ()
    module = {"gemm": matmul, "conv": conv}[kind]
    return module.candidates(problem, info)[0], module.SOLVERS


def build(dev: Device, problems: list[tuple[str, Any]], options: argparse.Namespace) -> None:
    """Build what is tried for several problems; what fails is met again one by one."""
    launches: list[Launch] = []
    for kind, problem in problems:
        for solver in tried(kind, problem, dev.info, options):
            with contextlib.suppress(NotImplementedError):
                launches += plan_of(solver, problem, dev.info).launches
    with contextlib.suppress(CompileError, DeviceError):
        dev.programs.build((launch.source, launch.options) for launch in launches)


def tried(kind: str, problem, info, options: argparse.Namespace) -> dict[Solver, float]:
    """The costs of the solver that is chosen, which is the first, and of others; of nobody where
    there is one solver only."""
    own, others = candidates(kind, problem, info)
    cost = database.estimate(kind, own, problem, info)
    usable = [s for s in dict.fromkeys((*own, *others)) if s.applies(problem, info)]
    if len(usable) < 2:
        return {}
    costs = {s: cost(s) for s in usable}
    chosen = min((s for s in usable if s in own), key=lambda s: costs[s])
    least = min(costs.values())
    found = sorted(usable, key=lambda s: (s is not chosen, costs[s]))
    found = [s for s in found if s is chosen or costs[s] < options.within * least]
    return {s: costs[s] for s in found[: options.solvers]}


def measure(dev: Device, kind: str, problem, options: argparse.Namespace) -> Row | None:
    """The problem's chosen solver and others in turns; None where there is no other."""
    costs = tried(kind, problem, dev.info, options)
    if not costs:
        return None
    chosen = next(iter(costs))
    row = Row(kind, database.key(problem), chosen.name)
    timing, plans = Timing(problem, dev), {}
    for solver in costs:
        try:
            plans[solver.name] = timing.plan(solver)
            timing.seconds(plans[solver.name], 1)
        except (CompileError, DeviceError, NotImplementedError):
            plans.pop(solver.name, None)
            continue
        row.predicted[solver.name] = costs[solver]
    if chosen.name not in plans:
        return None
    end = time.monotonic() + WARM
    while time.monotonic() < end:
        timing.seconds(plans[chosen.name], 1)
    for name, seconds in in_turns(timing, plans, options.repeats):
        row.measured[name] = min(row.measured.get(name, math.inf), seconds * 1e6)
    return row


def in_turns(timing: Timing, plans: dict, repeats: int) -> Iterator[tuple[str, float]]:
    for _ in range(repeats):
        for name, plan in plans.items():
            yield name, timing.seconds(plan, 1)


def short(problem: str) -> str:
    """A problem's key without what most have alike."""
    words = problem.replace(" 0 0 high", "").split()
    return " ".join(dict.fromkeys(w for w in words if w not in ("1x1x1", "0x0x0x0", "1x1")))


def report(rows: list[Row], most: int, console: Console) -> None:
    table = Table(title="slowest problems, microseconds")
    names = ("kind", "problem", "chosen", "predicted", "measured", "fastest", "us", "slower")
    for name in names:
        table.add_column(name, overflow="fold", min_width=34 if name == "problem" else None)
    for row in sorted(rows, key=lambda r: -r.measured[r.chosen])[:most]:
        us = (row.predicted[row.chosen], row.measured[row.chosen], row.measured[row.fastest])
        a, b, c = (f"{t:.1f}" for t in us)
        table.add_row(
            row.kind, short(row.problem), row.chosen, a, b, row.fastest, c, f"{row.slower:.2f}"
        )  # fmt: skip
    console.print(table)
    table = Table(title="predicted against measured")
    for name in ("kind", "problems", "median error", "of all tried", f"within {WITHIN - 1:.0%}"):
        table.add_column(name, justify="right")
    for kind in (*dict.fromkeys(row.kind for row in rows), "all"):
        some = [row for row in rows if kind in (row.kind, "all")]
        tried = [error(row.predicted[n], t) for row in some for n, t in row.measured.items()]
        good = sum(row.slower <= WITHIN for row in some) / len(some)
        table.add_row(
            kind, str(len(some)), f"{statistics.median(row.error for row in some):.0%}",
            f"{statistics.median(tried):.0%}", f"{good:.0%}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
