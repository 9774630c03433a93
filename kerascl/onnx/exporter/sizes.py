"""Sizes that are not known before the file runs.

A function is traced several times, each time with other sizes of its inputs' free dimensions.  What
is the same number in all traces is a constant of the graph; what differs is a `Dim`, known by its
value in each trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from kerascl.onnx.exporter.errors import ExportError

Monomials: TypeAlias = dict[tuple[int, ...], Fraction]  # (symbols) -> coefficient


@dataclass(frozen=True)
class Dim:
    """A number that differs between traces: its value in each."""

    values: tuple[Any, ...]

    def __add__(self, other: Size) -> Size:
        found: Size = pointwise(lambda a, b: a + b, self, other)
        return found

    def __sub__(self, other: Size) -> Size:
        found: Size = pointwise(lambda a, b: a - b, self, other)
        return found

    def __rsub__(self, other: Size) -> Size:
        found: Size = pointwise(lambda a, b: b - a, self, other)
        return found

    def __mul__(self, other: Size) -> Size:
        found: Size = pointwise(lambda a, b: a * b, self, other)
        return found

    def __floordiv__(self, other: Size) -> Size:
        found: Size = pointwise(lambda a, b: a // b, self, other)
        return found

    __radd__, __rmul__ = __add__, __mul__


Size: TypeAlias = int | Dim
Shape: TypeAlias = tuple[Size, ...]


def joined(values: Sequence[Any]) -> Any:
    """One number, if it is the same in all traces, else a Dim."""
    first = values[0]
    alike = all(v == first or (v != v and first != first) for v in values)  # a NaN is a NaN
    return first if alike else Dim(tuple(values))


def pointwise(function: Callable[..., Any], *sizes: Size) -> Any:
    """A function of the sizes of each trace."""
    count = next((len(s.values) for s in sizes if isinstance(s, Dim)), 1)
    each = [s.values if isinstance(s, Dim) else (s,) * count for s in sizes]
    return joined([function(*now) for now in zip(*each, strict=True)])


def product(sizes: Sequence[Size]) -> Size:
    """The product of sizes."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def is_static(shape: Shape) -> bool:
    """Whether every size is a constant."""
    return not any(isinstance(n, Dim) for n in shape)


@dataclass(frozen=True)
class Symbol:
    """A free dimension: its name in the file, and its sizes in the traces: low, high, another."""

    name: str
    low: int
    high: int
    other: int


class Symbols:
    """The free dimensions of a function, and the sizes that it is traced with.

    The traces are one for every choice of low and high sizes, which determines every polynomial
    of degree one in each symbol, and one more that tells whether it is one.
    """

    def __init__(self, symbols: Sequence[Symbol]):
        self.symbols = list(symbols)
        ends = [(s.low, s.high) for s in symbols]
        self.points = list(itertools.product(*ends))
        if symbols:
            self.points.append(tuple(s.other for s in symbols))

    def dimension(self, k: int) -> Dim:
        """The Dim that a symbol is."""
        return Dim(tuple(p[k] for p in self.points))

    def polynomial(self, dim: Dim) -> Monomials | None:
        """The coefficients of a Dim, all whole; None where it is no such polynomial."""
        if any(v != int(v) for v in dim.values):
            return None
        corners = [Fraction(int(v)) for v in dim.values[:-1]]
        found = self._interpolated(corners, 0)
        if any(c.denominator != 1 for c in found.values()):
            return None
        total = Fraction(0)
        for names, c in found.items():
            for k in names:
                c = c * self.symbols[k].other
            total += c
        return found if total == int(dim.values[-1]) else None

    def _interpolated(self, values: list[Fraction], k: int) -> Monomials:
        if k == len(self.symbols):
            return {(): values[0]} if values[0] else {}
        half = len(values) // 2
        low, high = self.symbols[k].low, self.symbols[k].high
        slopes = [(b - a) / (high - low) for a, b in zip(values[:half], values[half:], strict=True)]
        rest = [a - low * s for a, s in zip(values[:half], slopes, strict=True)]
        found = self._interpolated(rest, k + 1)
        for names, c in self._interpolated(slopes, k + 1).items():
            found[(k, *names)] = c
        return found

    def text(self, size: Size) -> int | str | None:
        """How a size is written in the file: a number, a formula of symbols, or None."""
        if not isinstance(size, Dim):
            return int(size)
        found = self.polynomial(size)
        if found is None:
            return None
        terms = []
        for names, c in found.items():
            factors = [self.symbols[k].name for k in names]
            if c != 1 or not factors:
                factors.insert(0, str(c))
            terms.append("*".join(factors))
        return " + ".join(sorted(terms, key=lambda t: t[0].isdigit()))


def same_everywhere(size: Any, what: str) -> Any:
    """A number that must not depend on free dimensions.

    Raises:
        ExportError: when it does.
    """
    if isinstance(size, Dim):
        raise ExportError(
            f"{what} depends on a size that is only known when the file runs (it was "
            f"{', '.join(map(str, size.values))} in traces of different sizes); give the inputs "
            "fixed shapes: a shape without None in input_signature, or dynamic_batch=False"
        )
    return size
