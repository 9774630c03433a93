"""Integer index expressions with known bounds.

An expression is a sum of atoms with integer coefficients plus a constant.
Atoms are loop variables, values computed at run time, and quotients and
remainders that bounds could not remove.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Var:
    """A variable of the kernel, 0 <= name < size (or lo <= name <= hi)."""

    name: str
    lo: int
    hi: int


@dataclass(frozen=True)
class Quotient:
    """floor(top / by) that cannot be simplified."""

    top: Expr
    by: int

    @property
    def lo(self) -> int:
        """The least value."""
        return self.top.lo // self.by

    @property
    def hi(self) -> int:
        """The largest value."""
        return self.top.hi // self.by


@dataclass(frozen=True)
class Remainder:
    """top mod by that cannot be simplified."""

    top: Expr
    by: int
    lo: int = 0

    @property
    def hi(self) -> int:
        """The largest value."""
        return self.by - 1


Atom = Var | Quotient | Remainder


class Expr:
    """sum of coefficient * atom, plus a constant; immutable and hashable."""

    __slots__ = ("terms", "const", "lo", "hi", "_hash")

    def __init__(self, terms: tuple[tuple[Atom, int], ...], const: int) -> None:
        self.terms = terms
        self.const = const
        lo = hi = const
        for atom, k in terms:
            if k > 0:
                lo += k * atom.lo
                hi += k * atom.hi
            else:
                lo += k * atom.hi
                hi += k * atom.lo
        self.lo = lo
        self.hi = hi
        self._hash = hash((terms, const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Expr)
            and self._hash == other._hash
            and self.const == other.const
            and self.terms == other.terms
        )

    def __repr__(self) -> str:
        return f"Expr({self.terms}, {self.const})"

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return self if other == 0 else Expr(self.terms, self.const + other)
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        table = dict(self.terms)
        for atom, k in other.terms:
            table[atom] = table.get(atom, 0) + k
        return _make(table, self.const + other.const)

    def __mul__(self, k: int) -> Expr:
        if k == 1:
            return self
        if k == 0:
            return ZERO
        return Expr(tuple((atom, c * k) for atom, c in self.terms), self.const * k)

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (other * -1 if isinstance(other, Expr) else -other)

    def _split(self, d: int) -> tuple[Expr, Expr]:
        """(q, r) with self == q * d + r and r free of multiples of d."""
        whole, rest = {}, {}
        for atom, k in self.terms:
            if k % d == 0:
                whole[atom] = k // d
            else:
                rest[atom] = k
        q, r = divmod(self.const, d)
        return _make(whole, q), _make(rest, r)

    def __floordiv__(self, d: int) -> Expr:
        if d == 1:
            return self
        q, r = self._split(d)
        if r.lo >= 0 and r.hi < d:
            return q
        if len(r.terms) == 1 and not r.const and r.terms[0][1] == 1:
            atom = r.terms[0][0]
            if type(atom) is Quotient:
                return q + atom.top // (atom.by * d)
        g, coarse, _ = _coarse(r, d)
        if g > 1:
            return q + coarse // (d // g)
        if r.lo < 0:  # C divides towards zero: make what is divided non-negative
            shift = -(r.lo // d)
            q, r = q - shift, r + shift * d
            if r.hi < d:
                return q
        return q + Expr(((Quotient(r, d), 1),), 0)

    def __mod__(self, d: int) -> Expr:
        if d == 1:
            return ZERO
        _, r = self._split(d)
        if r.lo >= 0 and r.hi < d:
            return r
        g, coarse, fine = _coarse(r, d)
        if g > 1:
            return (coarse % (d // g)) * g + fine
        if r.lo < 0:
            r = r + -(r.lo // d) * d
            if r.hi < d:
                return r
        return Expr(((Remainder(r, d), 1),), 0)


def _coarse(r: Expr, d: int) -> tuple[int, Expr, Expr]:
    """The largest factor g of d with r == g * coarse + fine and 0 <= fine < g; 1 if there is none.

    Then r // d is coarse // (d // g), whatever fine is.
    """
    factors = {math.gcd(d, k) for _, k in r.terms}
    factors.add(math.gcd(*factors) if factors else 1)
    for g in sorted(factors, reverse=True):
        if g <= 1:
            break
        coarse, fine = r._split(g)
        if coarse.terms and fine.lo >= 0 and fine.hi < g:
            return g, coarse, fine
    return 1, r, ZERO


def _sort_key(term: tuple[Atom, int]) -> Any:
    atom, k = term
    return (-abs(k), atom.name if isinstance(atom, Var) else "~" + repr(atom))


def _join(table: dict[Atom, int]) -> Expr | None:
    """Find (e // d) * (d * k) + (e % d) * k in a sum; gives e * k and takes both terms out."""
    for atom, k in table.items():
        if type(atom) is not Remainder or not k:
            continue
        top, d = atom.top, atom.by
        partner = Quotient(top, d)
        if len(top.terms) == 1 and not top.const and top.terms[0][1] == 1:
            inner = top.terms[0][0]
            if type(inner) is Quotient:  # (y // b) // d is y // (b * d)
                partner = Quotient(inner.top, inner.by * d)
        if table.get(partner) == k * d:
            del table[atom], table[partner]
            return top * k
    return None


def _make(table: dict[Atom, int], const: int) -> Expr:
    joined = _join(table)
    if joined is not None:
        return _make(table, const) + joined
    return Expr(tuple(sorted(((a, k) for a, k in table.items() if k), key=_sort_key)), const)


ZERO = Expr((), 0)
# The step of the loop whose body a kernel belongs to; a kernel argument.
LOOP_INDEX = Var("loop_step", 0, 2**30)


def number(value: int) -> Expr:
    """A constant."""
    return Expr((), value)


def variable(name: str, size: int) -> Expr:
    """A variable with 0 <= name < size (0 itself when size is 1)."""
    return ZERO if size <= 1 else Expr(((Var(name, 0, size - 1), 1),), 0)


def strides_of(shape: Iterable[int]) -> tuple[int, ...]:
    """Element strides of a contiguous array."""
    strides, step = [], 1
    for n in reversed(tuple(shape)):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


# All arrays of one shape ask for the same indices.
@functools.lru_cache(maxsize=1 << 14)
def linear(coords: tuple[Expr, ...], shape: tuple[int, ...]) -> Expr:
    """The linear index of coordinates in a contiguous array."""
    total = ZERO
    for x, stride, n in zip(coords, strides_of(shape), shape, strict=True):
        if n != 1:
            total = total + x * stride
    return total


@functools.lru_cache(maxsize=1 << 14)
def unravel(index: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Coordinates of a linear index."""
    coords = []
    strides = strides_of(shape)
    for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        if n <= 1:
            coords.append(ZERO)
            continue
        x = index // stride
        # the first coordinate needs no remainder: the index is in range
        coords.append(x if axis == 0 or x.hi < n and x.lo >= 0 else x % n)
    return tuple(coords)


def variables(expr: Expr) -> Iterable[tuple[Var, bool]]:
    """Every Var of an expression, with whether it stands at the top level."""
    for atom, _ in expr.terms:
        if isinstance(atom, Var):
            yield atom, True
        else:
            for var, _ in variables(atom.top):
                yield var, False
