"""Arithmetic of sizes that planners share."""

from __future__ import annotations

INT_MAX = 2**31 - 1


def index_type(*sizes: int) -> str:
    """ "int" where every linear index below the given element counts fits, else "long"."""
    return "int" if max(sizes, default=0) <= INT_MAX else "long"


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up to an integer."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of `b` that is at least `a`."""
    return -(-a // b) * b


def next_power(n: int) -> int:
    """The smallest power of two that is at least `n` (and at least 1)."""
    return 1 << max(0, n - 1).bit_length()


def last_power(n: int) -> int:
    """The largest power of two that is at most `n` (at least 1)."""
    return 1 << (max(1, n).bit_length() - 1)
