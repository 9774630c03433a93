"""What fused work costs: activations behind products, and rows that are normalised.

    python benchmarks/fusion.py
    python benchmarks/fusion.py --only rows --scale 0.1     a tenth of the rows, for small devices

A product with its bias is timed alone; with an activation behind it, both stored, as training does;
and the activation is timed as a pass of its own.  Its gradient is timed behind the product that
brings what flows back.  An epilogue is worth it where it costs less than the pass.  Rows are
normalised (a residual is added first) or go through softmax; GB/s counts each array once.  Errors
are relative norms against float64.  Inputs are random; medians of rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kerascl as kc
from kerascl.runtime import device as devices

ACTIVATIONS = {
    "relu": kc.nn.relu, "sigmoid": kc.nn.sigmoid, "silu": kc.nn.silu, "tanh": kc.tanh,
    "gelu": lambda x: kc.nn.gelu(x, approximate=False), "gelu, tanh": kc.nn.gelu,
    "softplus": kc.nn.softplus, "elu": kc.nn.elu,
}  # fmt: skip
PRODUCTS = ((32768, 128, 512), (8192, 768, 3072))  # rows, features before and behind
ROWS = ((32768, 128), (32768, 512), (8192, 768), (8192, 1024), (131072, 64), (65536, 197))


def microseconds(function: Callable, args: tuple, rounds: int) -> float:
    """Median over rounds, of a captured call among many."""
    captured = kc.jit(function)
    captured(*args)
    replay, queue = captured.captured(*args).replay, devices.default().queue

    def seconds(count: int) -> float:
        queue.finish()
        begin = time.perf_counter()
        for _ in range(count):
            replay.run()
        queue.finish()
        return (time.perf_counter() - begin) / count

    seconds(2)
    count = max(2, int(0.02 / max(seconds(3), 1e-7)))
    return statistics.median(seconds(count) for _ in range(rounds)) * 1e6


def error(found: kc.Array, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(np.array(found, np.float64) - wanted) / np.linalg.norm(wanted))


def product_rows(sizes: tuple[int, int, int], rng, rounds: int):
    """The table's rows of one product."""
    rows, before, behind = sizes
    shapes = (rows, before), (before, behind), (behind,), (behind, before)
    x, w, b, w2 = (kc.array(rng.standard_normal(s, np.float32) / s[0] ** 0.5) for s in shapes)
    dy = kc.array(rng.standard_normal((rows, before), np.float32))

    def product(x, w, b):
        return kc.matmul(x, w) + b

    def back(dy, w2):
        return kc.matmul(dy, kc.transpose(w2))

    alone = microseconds(product, (x, w, b), rounds)
    back_alone = microseconds(back, (dy, w2), rounds)
    between = product(x, w, b)
    some = kc.array(np.array(between)[:64].astype(np.float64))
    name = "{}x{}x{}".format(*sizes)
    for activation, act in ACTIVATIONS.items():

        def forward(x, w, b, act=act):
            z = product(x, w, b)
            return z, act(z)

        def slope(dy, z, act=act):
            with kc.GradientTape() as tape:
                y = act(z)
            return tape.gradient(y, z, dy)

        def gradient(dy, w2, z, slope=slope):
            return slope(back(dy, w2), z)

        wide = back(dy, w2)
        times = (
            microseconds(forward, (x, w, b), rounds), microseconds(act, (between,), rounds),
            microseconds(gradient, (dy, w2, between), rounds),
            microseconds(slope, (wide, between), rounds),
        )  # fmt: skip
        wanted = np.array(act(some))
        figures = (alone, times[0], times[1], back_alone, times[2], times[3])
        bad = error(act(between[:64]), wanted)
        yield name, activation, *(f"{t:.0f}" for t in figures), f"{bad:.1e}"


def normalise(x, residual, gamma, beta):
    x = x + residual
    mean, variance = kc.nn.moments(x, -1, keepdims=True)
    return x, (x - mean) * kc.rsqrt(variance + 1e-6) * gamma + beta


def row_rows(shape: tuple[int, int], rng, rounds: int):
    """The table's rows of one shape of rows."""
    x, residual = (kc.array(rng.standard_normal(shape, np.float32)) for _ in range(2))
    gamma, beta = (kc.array(rng.standard_normal(shape[1:], np.float32)) for _ in range(2))
    cases = {
        "normalise": (normalise, (x, residual, gamma, beta), 4),
        "softmax": (kc.nn.softmax, (x,), 2),
    }
    for name, (function, args, arrays) in cases.items():
        taken = microseconds(function, args, rounds)
        some = [a[:64] if a.ndim == 2 else a for a in args]
        wide = function(*(kc.cast(a, "float64") for a in some))
        found, wanted = (y[-1] if isinstance(y, tuple) else y for y in (function(*some), wide))
        rate = arrays * 4 * x.size / taken / 1e3
        bad = error(found, np.array(wanted))
        yield "{}x{}".format(*shape), name, f"{taken:.0f}", f"{rate:.0f}", f"{bad:.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("products", "rows"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    rng = np.random.default_rng()
    device = devices.default().info
    parts = {
        "products": (product_rows, PRODUCTS, (
            "product", "behind it", "alone", "both", "pass", "back", "both", "pass", "error",
        )),
        "rows": (row_rows, ROWS, ("rows", "", "us", "GB/s", "error")),
    }  # fmt: skip
    for part, (make, sizes, columns) in parts.items():
        if args.only not in (None, part):
            continue
        table = Table(*columns, title=f"{device.name}: {part}, microseconds")
        with Progress(console=console, transient=True) as progress:
            for size in progress.track(sizes, description=part):
                scaled = (max(64, int(size[0] * args.scale)), *size[1:])
                for row in make(scaled, rng, args.rounds):
                    table.add_row(*row)
        console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
