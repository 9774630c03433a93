"""Errors of very long sums: every kind of reduction against float64, in one table.

    python -m tests.faults.sums               up to 2**27 terms; KERASCL_DEVICE chooses the device
    python -m tests.faults.sums --terms 1e6   shorter

Terms are equal, so that what each addition rounds adds up.  Exits 1 if a relative error is beyond
its bound: 2**-20 (1e-6), for products with their long sums of products 2**-16, and for what is kept
in 16 bits what that holds.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np

import kerascl as kc
from tests.faults import table

VALUE = 0.1
SUM, PRODUCT = 2.0**-20, 2.0**-16
ROUNDED = {"float32": SUM, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _error(found, expected, bound: float) -> tuple[str, bool]:
    found, expected = (np.asarray(v, np.float64) for v in (found, expected))
    error = float(np.max(np.abs(found - expected) / np.abs(expected)))
    return f"{error:.1e} (bound {bound:.0e})", error <= bound


def _filled(shape, dtype: str) -> tuple[kc.Array, float]:
    """An array in memory, and its elements' value."""
    x = kc.full(shape, VALUE, dtype).evaluate()
    return x, float(x[(0,) * len(shape)])


def _over(name: str, shape, axis, dtype: str) -> table.Check:
    def check():
        x, v = _filled(shape, dtype)
        count = math.prod(shape) if axis is None else shape[axis]
        ours, expected = {
            "sum": (lambda: kc.sum(kc.cast(x, "float32"), axis), count * v),
            "mean": (lambda: kc.mean(x, axis), v),
            "mean of squares": (lambda: kc.mean(x * x, axis), v * v),
            "logsumexp": (lambda: kc.logsumexp(x, axis), math.log(count) + v),
            "norm": (lambda: kc.sqrt(kc.sum(x * x, axis)), math.sqrt(count) * v),
        }[name]
        return _error(kc.cast(ours(), "float32").numpy(), expected, ROUNDED[dtype])

    return check


def _deviation(count: int) -> table.Check:
    def check():
        found = float(kc.std(kc.full((count,), 12345.678)))
        return f"{found:.1e} (of 12345.678)", found <= 12345.678 * SUM

    return check


def _cumulative(count: int, reverse: bool) -> table.Check:
    def check():
        x, v = _filled((count,), "float32")
        sums = kc.cumsum(x, 0, reverse=reverse)
        places = np.unique(np.geomspace(1, count, 200).astype(np.int64)) - 1
        found = kc.take(sums, kc.array(count - 1 - places if reverse else places)).numpy()
        return _error(found, (places + 1) * v, 2 * SUM)

    return check


def _ones() -> tuple[str, bool]:
    last = float(kc.cumsum(kc.ones((2**25,)))[-1])
    return f"{last:.0f}", last == 2**25


def _product(m: int, k: int, n: int, dtype: str) -> table.Check:
    def check():
        (a, v), (b, _) = _filled((m, k), dtype), _filled((k, n), dtype)
        with kc.precision_scope("highest"):  # equal elements are all rounded the same way
            found = kc.cast(kc.matmul(a, b), "float32").numpy()
        return _error(found, k * v * v, PRODUCT if dtype == "float32" else ROUNDED[dtype])

    return check


def _scattered(name: str, count: int) -> table.Check:
    def check():
        x, v = _filled((count,), "float32")
        to = kc.zeros((count,), "int32")
        if name == "segment_sum":
            found = kc.segment_sum(x, to, 2)[0]
        else:
            found = kc.bincount(to, x, length=2)[0]
        return _error(found.numpy(), count * v, PRODUCT)

    return check


def checks(terms: int):
    """Every check, named."""
    shapes = {
        "all": ((terms,), None), "rows": ((4, terms // 4), 1), "columns": ((terms // 8, 8), 0),
        "128 columns": ((terms // 128, 128), 0), "middle": ((2, terms // 32, 16), 1),
    }  # fmt: skip
    for length in (10**3, 10**4, 10**6):
        if length < terms:
            yield f"sum, {length}", _over("sum", (length,), None, "float32")
    for place, (shape, axis) in shapes.items():
        for name in ("sum", "mean", "mean of squares", "logsumexp", "norm"):
            yield f"{name}, {place}", _over(name, shape, axis, "float32")
    for dtype in ("float16", "bfloat16"):
        for place in ("all", "columns"):
            yield f"mean, {place}, {dtype}", _over("mean", *shapes[place], dtype)
    yield "std of equal elements", _deviation(terms)
    yield "cumsum", _cumulative(terms, False)
    yield "cumsum, reverse", _cumulative(terms, True)
    yield "cumsum of 2**25 ones", _ones
    depth = min(terms, 10**7)
    for m, n in ((1, 1), (1, 64), (64, 1), (16, 16)):
        yield f"matmul {m} x {depth} x {n}", _product(m, depth // max(m, n), n, "float32")
    yield "matmul, float16", _product(16, depth // 1000, 16, "float16")
    for name in ("segment_sum", "bincount"):
        yield f"{name} of all to one", _scattered(name, min(terms, 10**7))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--terms", type=float, default=2**27, help="terms of the longest sums")
    terms = int(parser.parse_args().terms)
    return min(1, table.run(f"relative errors of sums of up to {terms:,} terms", checks(terms)))


if __name__ == "__main__":
    sys.exit(main())
