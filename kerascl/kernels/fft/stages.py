"""How lengths are taken apart: into passes over memory, and a pass into butterflies."""

from __future__ import annotations

import functools

from kerascl.kernels.fft.butterfly import butterfly

LARGEST = 64  # no butterfly has more values
_SMALL = 10  # composite ones have at most so many, for registers
_MOVED = 14.0  # what a value costs in each stage besides its butterfly: turned, read and written


@functools.cache
def _work(r: int) -> float:
    """Operations of a butterfly for each of its values."""
    if r > _SMALL:
        return float(2 * r)  # a loop
    text = butterfly(r, -1, False)
    return sum(text.count(f" {sign} ") for sign in "+-*") / r


def _primes(n: int) -> list[int]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found


def smooth(n: int) -> bool:
    """Whether there are butterflies for every factor of n."""
    return max(_primes(n), default=1) <= LARGEST


def radices(n: int) -> tuple[int, ...]:
    """The butterflies that make up a transform of n values, largest first; (1,) for one value."""
    return tuple(sorted(_cheapest(n)[1], reverse=True)) or (1,)


@functools.lru_cache(maxsize=4096)
def _cheapest(n: int) -> tuple[float, tuple[int, ...]]:
    if n == 1:
        return 0.0, ()
    best: tuple[float, tuple[int, ...]] | None = None
    for r in {*range(2, _SMALL + 1), *_primes(n)}:
        if n % r == 0:
            cost, rest = _cheapest(n // r)
            cost += _work(r) + _MOVED
            if best is None or cost < best[0]:
                best = cost, (r, *rest)
    assert best is not None
    return best


def work(n: int) -> float:
    """Operations for each value of a transform of n values."""
    return _cheapest(n)[0]


@functools.lru_cache(maxsize=4096)
def passes(n: int, most: int) -> tuple[int, ...]:
    """Factors of n, each at most `most` (64 at least), as few and as near each other as may be."""
    if n <= most:
        return (n,)
    found = [
        (d, *passes(n // d, most)) for d in range(2, most + 1) if n % d == 0
    ]  # a smooth length has some
    return min(found, key=lambda parts: (len(parts), max(parts), parts))
