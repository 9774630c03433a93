"""Plain array operations beside NumPy's, in one process and in turns.

`python benchmarks/arrays.py [--most 1e7] [--seconds 0.3] [NAME …]` prints for each operation and
number of elements the median time of both, from arrays that lie where each library keeps them to a
result that is there. It marks where kerascl takes over twice NumPy's time (from 1e6 elements on) or
over a millisecond more (below). On a machine that does other work only the ratios mean something.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.text import Text

import kerascl as kc
from kerascl.runtime.tables import console
from kerascl.runtime.tables import table as new_table

# name -> (function of the library and inputs, most elements): `x` and `y` are vectors of float32,
# `n` of int32, `p` of positions, `m` and `s` square matrices of as many elements, `s` well
# conditioned
OPERATIONS: dict[str, tuple[Callable[..., Any], float]] = {
    "x * x + 1": (lambda xp, x, **_: x * x + 1, 1e8),
    "chain of ten": (lambda xp, x, y, **_: _chain(xp, x, y), 1e8),
    "sum": (lambda xp, x, **_: xp.sum(x), 1e8),
    "sum of rows": (lambda xp, m, **_: xp.sum(m, axis=1), 1e8),
    "std": (lambda xp, x, **_: xp.std(x), 1e8),
    "argmax": (lambda xp, x, **_: xp.argmax(x), 1e8),
    "cumsum": (lambda xp, x, **_: xp.cumsum(x), 1e8),
    "sort": (lambda xp, x, **_: xp.sort(x), 1e7),
    "argsort": (lambda xp, x, **_: xp.argsort(x), 1e7),
    "unique": (lambda xp, n, **_: xp.unique(n), 1e7),
    "x[x > 0.5]": (lambda xp, x, **_: x[x > 0.5], 1e8),
    "x[positions]": (lambda xp, x, p, **_: x[p], 1e8),
    "x[1:-1:2]": (lambda xp, x, **_: x[1:-1:2] * 1, 1e8),
    "concatenate": (lambda xp, x, y, **_: xp.concatenate([x, y]), 1e8),
    # NumPy's m.T * 1 is in m's order: a copy, where kerascl transposes
    "m.T * 1": (lambda xp, m, **_: m.T * 1, 1e8),
    "transpose": (lambda xp, m, **_: m.T.copy(), 1e8),
    "histogram": (lambda xp, x, **_: xp.histogram(x, bins=100)[0], 1e8),
    "bincount": (lambda xp, n, **_: xp.bincount(n), 1e8),
    "matmul": (lambda xp, m, **_: m @ m, 2e6),
    "fft": (lambda xp, x, **_: xp.fft.fft(x), 1e7),
    "solve": (lambda xp, s, m, **_: xp.linalg.solve(s, m), 2e5),
    "inv": (lambda xp, s, **_: xp.linalg.inv(s), 2e5),
    "iteration": (lambda xp, x, **_: [float(v) for v in x], 1e3),
}  # fmt: skip


def _chain(xp: Any, x: Any, y: Any) -> Any:
    for _ in range(5):
        x = xp.maximum(x * y, 0.1)
    return x


def _inputs(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    side = max(1, int(count**0.5))
    m = rng.random((side, side), np.float32)
    return {
        "x": rng.random(count, np.float32),
        "y": rng.random(count, np.float32),
        "n": rng.integers(0, 1000, count).astype(np.int32),
        "p": rng.integers(0, count, count).astype(np.int32),
        "m": m,
        "s": m + side * np.eye(side, dtype=np.float32),
    }


def _ready(value: Any) -> None:
    if isinstance(value, kc.Array):
        value.evaluate()
        value.device.queue.finish()


def medians(calls: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The median time of each, run in turns."""
    for call in calls:
        _ready(call())
        _ready(call())
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            _ready(call())
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operations; all by default")
    parser.add_argument("--most", type=float, default=1e7, help="most elements (1e7)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement (0.3)")
    options = parser.parse_args()
    unknown = set(options.names) - OPERATIONS.keys()
    if unknown:
        parser.error(f"no such operation: {', '.join(sorted(unknown))}")
    rng = np.random.default_rng(0)
    numbers = ("elements", "NumPy µs", "kerascl µs", "ratio")
    table = new_table(f"Arrays on {kc.current_device().info.name}", ("operation", "slow"), numbers)
    sizes = [10**k for k in (2, 3, 4, 5, 6, 7) if 10**k <= options.most]
    for name in options.names or OPERATIONS:
        function, most = OPERATIONS[name]
        for count in (n for n in sizes if n <= most):
            host = _inputs(count, rng)
            device = {key: kc.array(x) for key, x in host.items()}
            theirs, ours = medians(
                [
                    lambda f=function, given=host: f(np, **given),
                    lambda f=function, given=device: f(kc, **given),
                ],
                options.seconds,
            )
            slow = ours > 2 * theirs if count >= 10**6 else ours > theirs + 1e-3
            table.add_row(
                Text(name), "slow" if slow else "", f"{count:,}", f"{theirs * 1e6:.0f}",
                f"{ours * 1e6:.0f}", f"{ours / theirs:.2f}",
            )  # fmt: skip
    console().print(table)


if __name__ == "__main__":
    main()
