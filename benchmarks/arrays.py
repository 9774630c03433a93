"""Plain array operations beside NumPy's, CuPy's or torch's, in one process and in turns.

`python benchmarks/arrays.py [--against numpy|cupy|torch] [--most 1e7] [--seconds 0.3] [NAME …]`
prints for each operation and number of elements the median time of both, from arrays that lie where
each library keeps them to a result that is there: each library waits for its device. It marks where
kerascl takes over twice the other's time (from 1e6 elements on) or over a millisecond more (below).
On a machine that does other work only the ratios mean something. torch takes CUDA where it has it,
else the CPU; it rounds no product to TF32 by itself, so KERASCL_PRECISION=highest is its like.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Library(NamedTuple):
    """A library to measure: its functions under NumPy's names, and what differs."""

    name: str
    functions: Any
    array: Callable[[np.ndarray], Any]
    ready: Callable[[Any], None]


def _kerascl() -> Library:
    def ready(value: Any) -> None:
        if isinstance(value, kc.Array):
            value.evaluate()
            value.device.queue.finish()

    return Library("kerascl", kc, kc.array, ready)


def _numpy() -> Library:
    return Library("NumPy", np, lambda x: x, lambda value: None)


def _cupy() -> Library:
    import cupy

    return Library("CuPy", cupy, cupy.asarray, lambda value: cupy.cuda.Stream.null.synchronize())


def _torch() -> Library:
    import torch

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    # What torch calls otherwise than NumPy, or returns more of.
    functions = types.SimpleNamespace(
        maximum=lambda x, least: torch.clamp_min(x, least),
        sum=torch.sum,
        std=lambda x: torch.std(x, correction=0),
        argmax=torch.argmax,
        cumsum=lambda x: torch.cumsum(x, 0),
        sort=lambda x: torch.sort(x).values,
        argsort=torch.argsort,
        unique=torch.unique,
        concatenate=torch.cat,
        histogram=lambda x, bins: (torch.histc(x, bins),),
        bincount=torch.bincount,
        fft=torch.fft,
        linalg=torch.linalg,
    )

    def ready(value: Any) -> None:
        if cuda:
            torch.cuda.synchronize()

    return Library(f"torch ({device})", functions, lambda x: torch.from_numpy(x).to(device), ready)


OTHERS = {"numpy": _numpy, "cupy": _cupy, "torch": _torch}


def medians(
    calls: list[tuple[Callable[[], Any], Callable[[Any], None]]], seconds: float
) -> list[float]:
    """The median time of each call with the wait for its result, run in turns."""
    for call, ready in calls:
        ready(call())
        ready(call())
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for (call, ready), own in zip(calls, times, strict=True):
            start = time.perf_counter()
            ready(call())
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operations; all by default")
    parser.add_argument("--against", choices=OTHERS, default="numpy", help="the other library")
    parser.add_argument("--most", type=float, default=1e7, help="most elements (1e7)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement (0.3)")
    options = parser.parse_args()
    unknown = set(options.names) - OPERATIONS.keys()
    if unknown:
        parser.error(f"no such operation: {', '.join(sorted(unknown))}")
    rng = np.random.default_rng(0)
    other, own = OTHERS[options.against](), _kerascl()
    info = kc.current_device().info
    numbers = ("elements", f"{other.name} µs", "kerascl µs", "ratio")
    table = new_table(f"Arrays on {info.name}", ("operation", "slow"), numbers)
    sizes = [10**k for k in (2, 3, 4, 5, 6, 7)]
    if info.kind == "gpu":
        sizes.insert(-1, 4 * 10**6)  # more than launches cost, less than fills the caches of many
    for name in options.names or OPERATIONS:
        function, most = OPERATIONS[name]
        for count in (n for n in sizes if n <= min(most, options.most)):
            host = _inputs(count, rng)
            calls = []
            for library in (other, own):
                given = {key: library.array(x) for key, x in host.items()}
                call = functools.partial(function, library.functions, **given)
                calls.append((call, library.ready))
            try:
                calls[0][1](calls[0][0]())
            except Exception as error:  # what the other cannot do here must not end the table
                row = (name, "", f"{count:,}", type(error).__name__, "", "")
                table.add_row(*map(Text, row))
                continue
            theirs, ours = medians(calls, options.seconds)
            slow = ours > 2 * theirs if count >= 10**6 else ours > theirs + 1e-3
            table.add_row(
                Text(name), "slow" if slow else "", f"{count:,}", f"{theirs * 1e6:.0f}",
                f"{ours * 1e6:.0f}", f"{ours / theirs:.2f}",
            )  # fmt: skip
    console().print(table)


if __name__ == "__main__":
    main()
