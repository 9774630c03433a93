"""Memory over hundreds of shapes and of models: what is kept is bounded, and what died is freed.

    python -m tests.faults.shapes                500 shapes of each kind on KERASCL_DEVICE
    python -m tests.faults.shapes --shapes 100   fewer
    python -m tests.faults.shapes --only fit     one kind

Exits 1 if the process took more than BOUND more memory for the second half of the shapes of any
kind, or if any result was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "kerascl"

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kerascl as kc

BOUND = 32.0  # MiB; without bounds, 250 shapes take 250 and more
WIDTH = 8


def resident() -> float:
    """MiB of memory that the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def rows(count: int):
    """Each number from 1 to `count` once, large and small ones mixed."""
    step = next(s for s in range(int(count * 0.62), 2 * count + 2) if np.gcd(s, count) == 1)
    return (1 + k * step % count for k in range(count))


def batch(n: int) -> np.ndarray:
    return np.linspace(-1, 1, n * WIDTH, dtype="float32").reshape(n, WIDTH)


# -- kinds: generators that use one shape at each step
def jitted(count: int):
    """One captured function."""
    weights = np.linspace(-1, 1, WIDTH * WIDTH, dtype="float32").reshape(WIDTH, WIDTH)
    held = kc.array(weights)

    @kc.jit
    def function(x):
        y = kc.tanh(kc.matmul(x, held))
        return kc.matmul(y - kc.mean(y, axis=-1, keepdims=True), held), kc.sum(y)

    for n in rows(count):
        x = batch(n)
        y = np.tanh(x.astype("float64") @ weights)
        product, total = function(x)
        np.testing.assert_allclose(total.numpy(), y.sum(), rtol=1e-4, atol=1e-3)
        expected = (y - y.mean(-1, keepdims=True)) @ weights
        np.testing.assert_allclose(product.numpy(), expected, rtol=1e-4, atol=1e-4)
        yield


def eager(count: int):
    """Expressions outside captured functions."""
    for n in rows(count):
        x = batch(n)
        found = kc.sum(kc.exp(kc.array(x) * 2), axis=0)
        np.testing.assert_allclose(found.numpy(), np.exp(2.0 * x).sum(0), rtol=1e-4)
        yield


def _model():
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(WIDTH, "tanh"), layers.LayerNormalization(),
         layers.Dense(2)]
    )  # fmt: skip
    model.compile("adam", "mse")
    return model


def predict(count: int):
    """`model.predict` with batches of other sizes."""
    model = _model()
    for n in rows(count):
        x = batch(n)
        found = model.predict(x, batch_size=n, verbose=0)
        np.testing.assert_allclose(found[:1], model.predict_on_batch(x[:1]), rtol=1e-3, atol=1e-4)
        yield


def fit(count: int):
    """`model.fit` with batches of other sizes."""
    model = _model()
    for n in rows(count):
        x = batch(n)
        history = model.fit(x, x[:, :2], batch_size=n, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        yield


def models(count: int):
    """A new model for each shape, trained and dropped."""
    for n in rows(count):
        model = _model()
        x = batch(n)
        history = model.fit(x, x[:, :2], batch_size=n, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        yield


KINDS = {kind.__name__: kind for kind in (jitted, eager, predict, fit, models)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", type=int, default=500)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    console = Console(width=110)
    marks = [round(args.shapes * quarter / 4) for quarter in range(5)]
    table = Table("kind", *[f"after {mark}" for mark in marks], "second half", "programs", "",
                  title=f"MiB of the process over {args.shapes} shapes")  # fmt: skip
    wrong = 0
    device = kc.zeros(1).evaluate().device
    with Progress(console=console) as progress:
        for name in args.only:
            task = progress.add_task(name, total=args.shapes)
            found, problem = [resident()], ""
            try:
                for done, _ in enumerate(KINDS[name](args.shapes), 1):
                    progress.advance(task)
                    if done in marks:
                        found.append(resident())
                        progress.console.print(f"{name}: {found[-1]:.0f} MiB after {done}")
            except Exception as error:  # the table shows it, and the other kinds go on
                problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:40]}"
            growth = found[-1] - found[2] if len(found) == len(marks) else float("nan")
            right = growth <= BOUND and not problem
            wrong += not right
            told = [f"{mib:.0f}" for mib in found] + ["-"] * (len(marks) - len(found))
            table.add_row(name, *told, f"{growth:+.1f}", str(device.programs.alive()),
                          "ok" if right else f"[red]WRONG[/] {problem}")  # fmt: skip
    console.print(table)
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
