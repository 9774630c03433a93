"""Reductions that memory bounds: microseconds, share of the bandwidth of a copy, and error of each.

    python benchmarks/reductions.py                             all cases, within --limit seconds
    python benchmarks/reductions.py --save before.json          keeps the times
    python benchmarks/reductions.py --beside before.json        and compares with them
    python benchmarks/reductions.py --only 'norm|loss' --small

Shapes are those of a vision transformer (batch 64, 197 tokens of 768), of a language model (8 times
512 tokens, 50257 words) and of convolutional networks.  A time is the median over calls, by the
device's clock, of all launches of a call.  Arguments rotate through more memory than caches hold.
Bytes are those of arguments and results, once each.  Shares are of a large copy's bandwidth, and of
a copy that moves as many bytes, which has a launch's fixed cost, too.  Results are checked against
NumPy in float64: of rows the first, the last and a random choice.  Exits 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KERASCL_CHECK", "0")

import ml_dtypes
import numpy as np

import kerascl as kc
from kerascl.runtime import device
from kerascl.runtime.copies import Copies
from kerascl.runtime.profile import profile

START = time.time()
ROTATED = 200e6  # bytes that the arguments of calls after one another have, at least
CHECKED = 200  # rows
EPSILON = 1e-5
KEEP = 0.9
ROUNDING = {"bfloat16": 4e-3, "float32": 3e-6}  # bounds of relative errors
rng = np.random.default_rng()


@dataclass
class Case:
    """A function, its arguments on the host, and a reference.

    Attributes:
        wanted: of the arguments in float64, and numbers of rows, gives of each result what those
            rows of it should be; or all of it, if `whole`.
        bounds: of the relative error of each result, by norms.
    """

    function: Callable[..., Any]
    arguments: list[np.ndarray]
    wanted: Callable[..., Any]
    bounds: list[float]
    whole: bool = False


def drawn(*shape: int, dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
    found = rng.standard_normal(shape, np.float32) * np.float32(scale)
    return found.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else found


def wide(x: Any) -> Any:
    return x.astype("float32")


# -- the cases: each is a function of a dtype and of a divisor of sizes
def norm(dtype: str, small: int) -> Case:
    """Dropout's result is added to a residual and normalised, as transformers' training does."""
    rows, width = 12608 // small, 768
    keep = rng.random((rows, width)) < KEEP

    def function(x, y, keep, gamma, beta):
        z = x + kc.where(keep, y * (1 / KEEP), 0).astype(x.dtype)
        mean, variance = kc.nn.moments(wide(z), -1, keepdims=True)
        scale = kc.rsqrt(variance + EPSILON) * gamma
        return z, ((wide(z) - mean) * scale + beta).astype(x.dtype), mean, variance

    def wanted(rows, results, x, y, keep, gamma, beta):
        z = x[rows] + np.where(keep[rows], y[rows] / KEEP, 0)
        stored = results[0]  # rounded, as what follows it reads
        mean, variance = stored.mean(1, keepdims=True), stored.var(1, keepdims=True)
        scaled = (stored - mean) / np.sqrt(variance + EPSILON) * gamma + beta
        return z, scaled, mean, variance

    arguments = [drawn(rows, width, dtype=dtype), drawn(rows, width, dtype=dtype), keep,
                 drawn(width), drawn(width)]  # fmt: skip
    rounding = ROUNDING[dtype]
    return Case(function, arguments, wanted, [2 * rounding, rounding, 1e-5, 1e-5])


def norm_slope(dtype: str, small: int) -> Case:
    """The slope of a layer norm, added to another, and what dropout makes of it."""
    rows, width = 12608 // small, 768
    x = drawn(rows, width, dtype=dtype)
    keep = rng.random((rows, width)) < KEEP
    mean, variance = (f(wide(x), axis=1, keepdims=True) for f in (np.mean, np.var))

    def function(g, x, other, keep, mean, variance, gamma):
        inverse = kc.rsqrt(variance + EPSILON)
        scaled, away = wide(g) * gamma, (wide(x) - mean) * inverse
        along = kc.mean(scaled * away, -1, keepdims=True)
        own = (scaled - kc.mean(scaled, -1, keepdims=True) - away * along) * inverse
        slope = other + own.astype(g.dtype)
        return slope, kc.where(keep, slope * (1 / KEEP), 0).astype(g.dtype)

    def wanted(rows, results, g, x, other, keep, mean, variance, gamma):
        inverse = 1 / np.sqrt(variance[rows] + EPSILON)
        scaled, away = g[rows] * gamma, (x[rows] - mean[rows]) * inverse
        along = (scaled * away).mean(1, keepdims=True)
        slope = other[rows] + (scaled - scaled.mean(1, keepdims=True) - away * along) * inverse
        return slope, np.where(keep[rows], slope / KEEP, 0)

    arguments = [drawn(rows, width, dtype=dtype), x, drawn(rows, width, dtype=dtype), keep, mean,
                 variance, drawn(width)]  # fmt: skip
    return Case(function, arguments, wanted, [2 * ROUNDING[dtype], 3 * ROUNDING[dtype]])


def norm_weights(dtype: str, small: int) -> Case:
    """The slopes of a layer norm's scale and offset: sums over the rows of a tall array."""
    rows, width = 12608 // small, 768
    x = drawn(rows, width, dtype=dtype)
    mean, variance = (f(wide(x), axis=1, keepdims=True) for f in (np.mean, np.var))

    def function(g, x, mean, variance):
        away = (wide(x) - mean) * kc.rsqrt(variance + EPSILON)
        return kc.sum(wide(g) * away, 0), kc.sum(wide(g), 0)

    def wanted(rows, results, g, x, mean, variance):
        return (g * ((x - mean) / np.sqrt(variance + EPSILON))).sum(0), g.sum(0)

    arguments = [drawn(rows, width, dtype=dtype), x, mean, variance]
    return Case(function, arguments, wanted, [1e-5, 1e-5], whole=True)


def softmax(rows: int, length: int) -> Callable[[str, int], Case]:
    def case(dtype: str, small: int) -> Case:
        def wanted(rows, results, x):
            e = np.exp(x[rows] - x[rows].max(1, keepdims=True))
            return (e / e.sum(1, keepdims=True),)

        def function(x):
            return kc.nn.softmax(wide(x)).astype(x.dtype)

        arguments = [drawn(rows // small, length, dtype=dtype, scale=2)]
        return Case(function, arguments, wanted, [2 * ROUNDING[dtype]])

    return case


def loss(words: int, padded: int) -> Callable[[str, int], Case]:
    """Cross-entropy of a vocabulary and its slope, in rows that begin `padded` apart."""

    def case(dtype: str, small: int) -> Case:
        rows = 1024 // small
        target = rng.integers(0, words, rows).astype(np.int32)

        def function(x, target):
            with kc.GradientTape() as tape:
                tape.watch(x)
                logits = wide(x[:, :words])
                found = kc.nn.sparse_categorical_crossentropy(target, logits, from_logits=True)
            return found, tape.gradient(found, x)

        def wanted(rows, results, x, target):
            x, target = x[rows], target[rows].astype(int)
            most = x[:, :words].max(1, keepdims=True)
            e = np.where(np.arange(padded) < words, np.exp(x - most), 0)
            total, at = e.sum(1, keepdims=True), np.arange(len(x))
            found = (np.log(total) + most)[:, 0] - x[at, target]
            slope = e / total
            slope[at, target] -= 1
            return found, slope

        arguments = [drawn(rows, padded, dtype=dtype, scale=2), target]
        return Case(function, arguments, wanted, [1e-5, 2 * ROUNDING[dtype]])

    return case


def normaliser(dtype: str, small: int) -> Case:
    """log(sum(exp(x))) of a vocabulary, as when a language model's words are drawn."""

    def function(x):
        most = kc.max(wide(x), -1, keepdims=True)
        return kc.log(kc.sum(kc.exp(wide(x) - most), -1, keepdims=True)) + most

    def wanted(rows, results, x):
        most = x[rows].max(1, keepdims=True)
        return (np.log(np.exp(x[rows] - most).sum(1, keepdims=True)) + most,)

    return Case(function, [drawn(1024 // small, 50257, dtype=dtype)], wanted, [1e-6])


def products(dtype: str, small: int) -> Case:
    """Sums of 64 products: what attention's slopes begin with."""
    shape = 151296 // small, 64

    def function(x, y):
        return kc.sum(wide(x) * wide(y), -1)

    def wanted(rows, results, x, y):
        return ((x[rows] * y[rows]).sum(1),)

    return Case(function, [drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype)], wanted, [1e-5])


def columns(rows: int, width: int) -> Callable[[str, int], Case]:
    """Sums over rows, as of the slopes of biases."""

    def case(dtype: str, small: int) -> Case:
        def wanted(rows, results, x):
            return (x.sum(0),)

        arguments = [drawn(max(1, rows // small), width, dtype=dtype)]
        return Case(lambda x: kc.sum(wide(x), 0), arguments, wanted, [1e-5], whole=True)

    return case


def channels(dtype: str, small: int) -> Case:
    """Mean and variance of channels, as batch norms have them."""
    shape = 64 * 56 * 56 // small, 64

    def function(x):
        return kc.nn.moments(wide(x), 0)

    def wanted(rows, results, x):
        return x.mean(0), x.var(0)

    arguments = [drawn(*shape, dtype=dtype) + np.ones(1).astype(drawn(1, dtype=dtype).dtype)]
    return Case(function, arguments, wanted, [1e-5, 1e-5], whole=True)


def pooled(dtype: str, small: int) -> Case:
    """Means over an image's places."""
    shape = max(1, 256 // small), 49, 2048

    def wanted(rows, results, x):
        return (x[rows].mean(1),)

    arguments = [drawn(*shape, dtype=dtype)]
    return Case(lambda x: kc.mean(wide(x), 1), arguments, wanted, [1e-5])


def greatest(dtype: str, small: int) -> Case:
    """Places of the greatest of 1000 classes."""

    def wanted(rows, results, x):
        return (x[rows].argmax(1),)

    arguments = [drawn(32768 // small, 1000, dtype=dtype)]
    return Case(lambda x: kc.argmax(x, 1), arguments, wanted, [0.0])


def squares(dtype: str, small: int) -> Case:
    """One sum of everything, as of a slope's norm."""

    def wanted(rows, results, x):
        return (np.sum(x * x),)

    arguments = [drawn(50257 // small, 768, dtype=dtype)]
    return Case(lambda x: kc.sum(kc.square(wide(x))), arguments, wanted, [1e-5], whole=True)


CASES: dict[str, Callable[[str, int], Case]] = {
    "norm": norm,
    "norm slope": norm_slope,
    "norm weights": norm_weights,
    "columns 12608x768": columns(12608, 768),
    "columns 12608x3072": columns(12608, 3072),
    "columns 4096x768": columns(4096, 768),
    "loss 50304": loss(50257, 50304),
    "loss 50257": loss(50257, 50257),
    "normaliser 50257": normaliser,
    "products 64": products,
    "softmax 197": softmax(151296, 197),
    "softmax 512": softmax(49152, 512),
    "softmax 1000": softmax(32768, 1000),
    "softmax 8192": softmax(4096, 8192),
    "channels 64": channels,
    "pooled 49x2048": pooled,
    "greatest 1000": greatest,
    "squares": squares,
}


def say(*words: Any) -> None:
    print(*words, flush=True)


def host(x: Any) -> np.ndarray:
    """What a device has, without 16-bit floats; or what a host has."""
    found = x if isinstance(x, np.ndarray) else x.numpy()
    return found.astype(np.float64) if found.dtype.kind not in "biu" else found


def errors(case: Case, given: list[np.ndarray], results: list[Any]) -> tuple[str, bool]:
    """The relative errors as text, and whether all are within bounds."""
    count = len(given[0])
    rows = rng.choice(count, min(count, CHECKED), replace=False)
    rows = np.unique([0, count - 1, *rows])
    found = [host(x) if case.whole else host(x)[rows] for x in results]
    wanted = case.wanted(rows, found, *map(host, given))
    texts, right = [], True
    for own, want, bound in zip(found, wanted, case.bounds, strict=True):
        assert own.shape == want.shape, (own.shape, want.shape)
        error = float(np.linalg.norm(np.ravel(own - want)) / np.linalg.norm(np.ravel(want)))
        within = error <= bound  # also where it is NaN
        texts.append(f"{error:.0e}{'' if within else ' WRONG'}")
        right = right and within
    return " ".join(texts), right


def microseconds(function: Any, sets: list[list[Any]], calls: int) -> tuple[float, int]:
    """The median of calls, and the launches of one."""
    for arguments in sets[:2]:
        function(*arguments)
    with profile(show=False) as recorded:
        for k in range(calls):
            function(*sets[k % len(sets)])
    spans = [span for span in recorded.spans if not span.beside]
    each = len(spans) // calls
    times = [
        sum(span.end - span.start for span in spans[k * each : (k + 1) * each]) / 1e3
        for k in range(calls)
    ]
    return float(np.median(times)), each


def copy_time(moved: float) -> float:
    """Microseconds of a copy that reads and writes `moved` bytes together."""
    return Copies(device.default(), [int(moved)])(int(moved)) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression of cases")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--limit", type=float, default=95, help="seconds, after which it ends")
    parser.add_argument("--small", action="store_true", help="a 64th of the rows: does it run")
    parser.add_argument("--save", type=Path, help="a file for the times")
    parser.add_argument("--beside", type=Path, help="a file of times to compare with")
    args = parser.parse_args()
    watch = threading.Timer(args.limit, lambda: (say("the time is over"), os._exit(3)))
    watch.daemon = True
    watch.start()
    small = 64 if args.small else 1
    before = json.loads(args.beside.read_text()) if args.beside else {}
    say(kc.__file__, device.default().info.name)
    large = 512e6 / small
    rate = large / copy_time(large)  # bytes a microsecond
    say(f"copy {rate * 1e-3:.0f} GB/s")
    say(f"{'case':20} {'dtype':8} {'us':>9} {'GB/s':>6} {'copy':>5} {'equal':>5} {'before':>9} "
        f"{'is':>5} launches, errors")  # fmt: skip
    times, right = {}, True
    for name, make in CASES.items():
        for dtype in args.dtypes:
            label = f"{name} {dtype}"
            if not re.search(args.only, label):
                continue
            if args.limit - (time.time() - START) < 5:
                say(f"{name:20} {dtype:8} left out: no time")
                continue
            case = make(dtype, small)
            sets = [[kc.array(x) for x in case.arguments]]
            nbytes = sum(x.nbytes for x in sets[0])
            function = kc.jit(lambda *xs, case=case: case.function(*xs))
            results = function(*sets[0])
            results = list(results) if isinstance(results, (tuple, list)) else [results]
            found, within = errors(case, case.arguments, results)
            right = right and within
            moved = nbytes + sum(x.nbytes for x in results)
            for _ in range(min(40, int(ROTATED / small // nbytes))):
                sets.append([kc.array(x) for x in case.arguments])
            us, launches = microseconds(function, sets, args.calls)
            times[label] = us
            old = before.get(label)
            beside = f"{old:9.2f} {us / old:5.2f}" if old else f"{'':9} {'':5}"
            equal = copy_time(moved) / us
            say(f"{name:20} {dtype:8} {us:9.2f} {moved / us * 1e-3:6.0f} {moved / us / rate:4.0%} "
                f" {equal:4.0%}  {beside} {launches}  {found}")  # fmt: skip
            if args.save:
                args.save.write_text(json.dumps(times, indent=1))
    say(f"{'all right' if right else 'WRONG'}, {time.time() - START:.0f} s")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
