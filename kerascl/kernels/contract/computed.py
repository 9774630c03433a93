"""Operands that a kernel computes as it reads them: what they are made of takes fewer bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kerascl.kernels.contract.plan import Arg


class Term(NamedTuple):
    """A variable of a kernel, 0 <= name < size, which adds `step` times itself to an index."""

    name: str
    size: int
    step: int


class Key(NamedTuple):
    """A load whose numbers name groups: its C type, variable, load, and the table it reads."""

    kind: str
    name: str
    load: str
    table: str


class Grouped(NamedTuple):
    """What elements share whose keys are equal, and what is left for each of them.

    Attributes:
        keys: loads of one number each that depend on the terms behind the first one alone; with
            `along`, of numbers for all neighbours, which depend on the first term alone.
        along: whether neighbours have keys of their own, which all must be those of the first.
        lines: statements that need nothing but keys and the other terms.
        kept: C types and variables of these that are needed by `rest` or are wanted.
        rest: the other statements of `fixed` and `lines` together, which do without keys.
    """

    keys: tuple[Key, ...]
    along: bool
    lines: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """C text that computes a few elements of an operand.

    Attributes:
        params, args: kernel parameters, and the arguments for them.
        first: of loads whose place depends on the terms alone, where these are told apart: a C
            type, a variable that `fixed` and `lines` read, and the load.
        fixed, lines: statements, which store nothing; the former do without the first term's
            variable, and so may stand before a loop over it.
        values: a variable for each element, of the compute type of the operand's dtype.
        helpers: C functions that `lines` call.
        uses_double: whether `lines` or `helpers` need fp64.
        nbytes: of memory, for each element of the operand, all that it is made of together.
        steady: whether the first term's next value leads to the next element of each array that is
            read, where it leads to another one.
        apart: how far the first term's next value takes the place in the largest array that is
            read, in bytes; infinity where that is not always the same.
        grouped: the same text, divided, where some of what is read lies behind other reads.
    """

    params: tuple[str, ...]
    args: tuple[Arg, ...]
    first: tuple[tuple[str, str, str], ...]
    fixed: tuple[str, ...]
    lines: tuple[str, ...]
    values: tuple[str, ...]
    helpers: tuple[str, ...]
    uses_double: bool
    nbytes: float
    steady: bool
    apart: float
    grouped: Grouped | None = None


class Computed(ABC):
    """An operand that does not lie in memory."""

    @abstractmethod
    def reading(
        self, terms: Sequence[Term], offset: int, neighbours: Sequence[int], joined: bool
    ) -> Reading:
        """The text for those elements whose indices are `offset`, plus the terms, plus each of
        `neighbours`: indices into the memory that the operand would lie in.  With `joined`, what
        lies side by side is read at once, and the `first` loads are told apart; else compilers
        find that themselves in a loop."""
