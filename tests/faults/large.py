"""Arrays of more than 2**31 elements: positions, counts, steps, sums and joins, in one table.

    python -m tests.faults.large             2**31 + 1000 elements on KERASCL_DEVICE
    python -m tests.faults.large --gib 6     leaves out what takes more memory

Exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import kerascl as kc
from tests.faults import table

SIZE = 2**31 + 1000
LAST = SIZE - 7  # where the array of zeros has its ones
FIRST = 2**31 + 5


def _held() -> kc.Array:
    """uint8 zeros, but for a 1 at FIRST and a 2 at LAST."""
    x = kc.zeros((SIZE,), "uint8").evaluate()
    tail = np.zeros(SIZE - 2**31, np.uint8)
    tail[FIRST - 2**31], tail[LAST - 2**31] = 1, 2
    return kc.concatenate([x[: 2**31], kc.array(tail)]).evaluate()


def _same(found, expected) -> tuple[str, bool]:
    found = np.asarray(found)
    return str(found.tolist())[:60], bool(np.array_equal(found, expected))


def checks(gib: float):
    """Every check, named, of those that take so much memory at most."""
    cache: list[kc.Array] = []

    def x() -> kc.Array:
        if not cache:
            cache.append(_held())
        return cache[0]

    def far(step: int):
        expected = np.zeros(len(range(SIZE)[::step]), np.uint8)
        for place, value in ((FIRST, 1), (LAST, 2)):
            at = (SIZE - 1 - place) // -step if step < 0 else place // step
            if range(SIZE)[::step][at] == place:
                expected[at] = value
        return lambda: ("", bool(np.array_equal(x()[::step].numpy(), expected)))

    def random():
        mean = float(kc.mean(kc.random.uniform(kc.random.key(1), (SIZE,))))
        return f"mean {mean:.6f}", abs(mean - 0.5) < 1e-4

    table_ = [
        ("make, concatenate", 6, lambda: _same(x()[FIRST - 1 : FIRST + 2].numpy(), [0, 1, 0])),
        ("argmax", 6, lambda: _same(kc.argmax(x()).numpy(), LAST)),
        ("argmin of 2 - x", 6, lambda: _same(kc.argmin(2 - x()).numpy(), LAST)),
        ("count_nonzero", 6, lambda: _same(kc.count_nonzero(x()).numpy(), 2)),
        ("count_nonzero of x == 0", 6, lambda: _same(kc.count_nonzero(x() == 0).numpy(), SIZE - 2)),
        ("sum", 6, lambda: _same(kc.sum(x(), dtype="int64").numpy(), 3)),
        ("max, any", 6, lambda: _same([int(kc.max(x())), int(kc.any(x()))], [2, 1])),
        ("mean of ones", 6, lambda: _same(kc.mean(x() == x()).numpy(), 1)),
        ("x[::-1000]", 6, far(-1000)),
        ("x[::-999]", 6, far(-999)),
        ("x[::1003]", 6, far(1003)),
        ("x[LAST], x[-7]", 6, lambda: _same([int(x()[LAST]), int(x()[-7])], [2, 2])),
        ("take", 6, lambda: _same(
            kc.take(x(), kc.array(np.array([FIRST, LAST, -7, 2**32 + 1, 2**40]))).numpy(),
            [1, 2, 2, 255, 255])),
        ("take of few, index 2**32 + 1", 1, lambda: _same(
            kc.take(kc.arange(5), kc.array(np.array([2**32 + 1]))).numpy(), [-(2**31)])),
        ("flip", 10, lambda: _same(kc.argmax(kc.flip(x()).evaluate()).numpy(), SIZE - 1 - LAST)),
        ("searchsorted", 10, lambda: _same(
            kc.searchsorted(kc.concatenate([x()[: 2**31], kc.ones((1000,), "uint8")]).evaluate(),
                            kc.array(np.array([1], np.uint8))).numpy(), [2**31])),
        ("matmul of 2**31 elements", 12, lambda: _same(
            kc.sum(kc.matmul(kc.cast(kc.reshape(x()[: 2**31 - 2**20], (-1, 2**20)), "float16")
                             .evaluate(), kc.ones((2**20, 1), "float16"))).numpy(), 0)),
        ("nonzero", 40, lambda: _same(kc.nonzero(x())[0].numpy(), [FIRST, LAST])),
        ("cumsum", 40, lambda: _same(
            kc.cumsum(x(), dtype="int32")[kc.array(np.array([FIRST - 1, FIRST, SIZE - 1]))].numpy(),
            [0, 1, 3])),
        ("random numbers", 24, random),
    ]  # fmt: skip
    return [(name, check) for name, needed, check in table_ if needed <= gib]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=100, help="memory that checks may take")
    gib = parser.parse_args().gib
    return min(1, table.run(f"arrays of {SIZE:,} elements", checks(gib)))


if __name__ == "__main__":
    sys.exit(main())
