"""Kernels of one's own beside the built-in operations that compute the same.

    python benchmarks/own_kernels.py
    python benchmarks/own_kernels.py --rows 512 --columns 256 --json times.json

The three of examples/own_kernels.py: an elementwise operation, a reduction, and a whole kernel.
Each runs eagerly, captured, with its gradient captured, and in a Keras layer behind a product,
trained by `fit`; its twin is the built-in operation in the same place, timed in turns with it.
Times are medians of rounds, in microseconds of a call or of a step; the ratio is the built-in's
time over ours. Errors are relative norms against float64; the last losses of both networks must
agree, too, else the program exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "kerascl")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

import kerascl as kc
from benchmarks.onnx_speed import seconds
from examples.own_kernels import norm, row_sums, softsign
from kerascl.runtime import device as devices

# name: the kernel of one's own, the built-in, and both in float64
KERNELS = {
    "elementwise": (softsign, lambda x: x / (1 + kc.abs(x)), lambda x: x / (1 + np.abs(x))),
    "reduction": (
        lambda x: norm(x, axis=1), lambda x: kc.sqrt(kc.sum(x * x, 1)),
        lambda x: np.sqrt((x * x).sum(1)),
    ),
    "whole kernel": (row_sums, lambda x: kc.sum(x, 1), lambda x: x.sum(1)),
}  # fmt: skip
WAYS = ("eager", "captured", "gradient", "fit")
BATCH = 256


class Own(keras.layers.Layer):
    """A function of (rows, columns) as a layer; a result of (rows,) gets a last axis."""

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def call(self, x):
        y = self.function(x)
        return y if len(y.shape) == 2 else y[:, None]


def network(function: Callable, columns: int, seed: int) -> keras.Model:
    """Products before and behind the layer, compiled."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    inputs = keras.Input((columns,), batch_size=BATCH)
    model = keras.Model(inputs, layers.Dense(1)(Own(function)(layers.Dense(columns)(inputs))))
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def in_turns(calls: list[Callable], rounds: int) -> list[float]:
    """Median microseconds of a call of each."""
    finish = devices.default().queue.finish
    engines = {str(k): (call, finish, call) for k, call in enumerate(calls)}
    return [median * 1e6 for median in seconds(engines, rounds, 0.03).values()]


def eager(function: Callable, x: kc.Array) -> Callable:
    return lambda: function(x).evaluate()


def captured(function: Callable, x: kc.Array) -> Callable:
    made = kc.jit(function)
    return lambda: made(x)


def measured(name: str, rows: int, columns: int, rounds: int) -> dict:
    """Times of a kernel and its twin in each way, and their errors."""
    rng = np.random.default_rng()
    own, built_in, exact = KERNELS[name]
    host = rng.standard_normal((rows, columns), np.float32)
    x, wanted = kc.array(host), exact(host.astype(np.float64))
    found = {"kernel": name, "rows": rows, "columns": columns}
    for side, function in (("own", own), ("built-in", built_in)):
        got = np.asarray(function(x), np.float64)
        found[f"{side} error"] = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))

    def gradient(function: Callable) -> Callable:
        return kc.grad(lambda x: kc.sum(function(x)))

    both = (own, built_in)
    found["eager"] = in_turns([eager(f, x) for f in both], rounds)
    found["captured"] = in_turns([captured(f, x) for f in both], rounds)
    found["gradient"] = in_turns([captured(gradient(f), x) for f in both], rounds)
    found["fit"], found["losses"] = fitted(both, host, int(rng.integers(2**31)), rounds)
    return found


def fitted(functions: tuple, host: np.ndarray, seed: int, rounds: int) -> tuple[list, list]:
    """Median microseconds of a step of both networks, in turns, and their last losses."""
    x = host[: len(host) // BATCH * BATCH]
    y = np.tanh(x.sum(1, keepdims=True))
    models = [network(f, x.shape[1], seed) for f in functions]
    steps = len(x) // BATCH
    times: list[list[float]] = [[], []]
    losses = [0.0, 0.0]
    for _ in range(rounds + 1):
        for k, model in enumerate(models):
            begin = time.perf_counter()
            history = model.fit(x, y, BATCH, epochs=4, shuffle=False, verbose=0).history
            times[k].append((time.perf_counter() - begin) / (4 * steps))
            losses[k] = history["loss"][-1]
    return [statistics.median(t[1:]) * 1e6 for t in times], losses


def report(rows: list[dict], console: Console) -> None:
    table = Table(title=f"{devices.default().info.name}: microseconds, own / built-in (ratio)")
    for column in ("kernel", *WAYS, "errors", "losses"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for row in rows:
        cells = [f"{a:.0f} / {b:.0f} ({b / a:.2f})" for a, b in (row[w] for w in WAYS)]
        errors = f"{row['own error']:.0e} / {row['built-in error']:.0e}"
        losses = " / ".join(f"{loss:.5f}" for loss in row["losses"])
        table.add_row(row["kernel"], *cells, errors, losses)
    console.print(table)


def main() -> int:
    """The command line; 1 where a kernel and its twin do not compute the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help="of the array (GPU 65536, CPU 4096)")
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures")
    options = parser.parse_args()
    rows = options.rows or (65536 if devices.default().info.kind == "gpu" else 4096)
    if rows < BATCH:
        parser.error(f"--rows: at least {BATCH}, the batch of fit")
    console, found = Console(), []
    for name in KERNELS:
        console.print(f"{name} …", style="dim")
        found.append(measured(name, rows, options.columns, options.rounds))
    report(found, console)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    wrong = [
        row["kernel"] for row in found
        if max(row["own error"], row["built-in error"]) > 1e-5
        or abs(row["losses"][0] / row["losses"][1] - 1) > 1e-3
    ]  # fmt: skip
    if wrong:
        console.print(f"differ: {', '.join(wrong)}", style="red")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
