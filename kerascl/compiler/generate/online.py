"""The greatest of a row and the sum of exponentials that are relative to it, in one pass.

A softmax' row is read for its maximum, for its sum and for its results.  The sum can be had with
the maximum: relative to the greatest element so far, and scaled whenever that grows (M. Milakov and
N. Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerascl.compiler.generate.blocked import Blocked
from kerascl.compiler.generate.builder import Builder
from kerascl.compiler.generate.emit import Scope
from kerascl.compiler.generate.reduced import Reduced
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.dtypes import float32
from kerascl.ops.pointwise import WHERE, exp, subtract
from kerascl.ops.views import EXPAND, RESHAPE, SUM_OP

# A term of such a sum, of x <= 0; what is less than the least normal number may be 0.  Rounding the
# difference that x is has cost as many digits as rounding the product does.
_TERM = """\
inline float kcl_term(float x) {
#ifdef KCL_PTX
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
#else
  return exp(x);
#endif
}
"""


@dataclass
class Online:
    """A maximum and such a sum.

    Attributes:
        most, total: the two reductions.
        greatest: the variable of the maximum so far.
        running: the register of the maximum, once it is declared.
        own: registers of the sum.
    """

    most: Node
    total: Node
    greatest: str = ""
    running: str = ""
    own: Blocked | None = None

    def begin(self, outer: Scope, running: str, own: Blocked) -> None:
        """Before the loop: what is computed from the maximum within is relative to that so far."""
        self.greatest, self.running, self.own = outer.writer.name("top"), running, own
        outer.lines.append(f"float {self.greatest} = -INFINITY;")
        outer.hold(self.most, self.greatest)
        node = self.total.inputs[0]
        node = node.inputs[1] if node.op is WHERE else node
        outer.writer.codes[id(node)] = "kcl_term({0})"
        outer.writer.helper(_TERM)

    def turn(
        self, outer: Scope, steps: list[str], scopes: list[Scope], value: Callable[..., str],
        **kind: Any,
    ) -> list[str]:  # fmt: skip
        """The lines that take elements, known in `scopes`, into both.

        Args:
            steps: those that take them into the maximum.
            value: of a scope, an element's number and its `kind`, the text of what is summed.
        """
        assert self.own is not None
        before = outer.writer.name("before")
        names = [self.own.states[0][1], *(level[0][1] for _, level in self.own.levels)]
        top = self.greatest
        lines = [
            f"const float {before} = {self.running};", *steps,
            f"if ({self.running} != {before}) {{",
            f"  {top} = {self.running};",
            *(f"  {line}" for line in _rescaled(names, before, top)), "}",
        ]  # fmt: skip
        taken = []
        for number, around in enumerate(scopes):
            scope = Scope(outer.writer, around, around.own)
            taken.append(self.own.step(value(scope, number, **kind)))
            lines += scope.lines
        return lines + taken

    def end(self, scope: Scope, result: str, before: str) -> None:
        """Have the sum relative to the row's maximum, whose register is complete.

        Args:
            before: the variable that holds what this work-item knew of the maximum.
        """
        assert self.own is not None
        name = self.own.states[0][1]
        scope.lines += [
            f"if ({before} != {result}) {{", *_rescaled([name], before, result), "}",
            f"{self.greatest} = {result};",
        ]  # fmt: skip


def _rescaled(names: list[str], before: str, now: str) -> list[str]:
    """Sums relative to a maximum that was `before`.  While all was minus infinity they are NaN, as
    of exp(-inf - -inf), or 0; relative to anything greater it adds nothing."""
    lines = [f"const float scale = exp({before} - {now});"]
    return lines + [f"{x} = {before} == -INFINITY ? 0 : {x} * scale;" for x in names]


def found(build: Builder, of: Reduced, levels: dict[int, int]) -> Online | None:
    """The pair, where a cluster begins with one and a GPU reads its rows in loops."""
    if build.info.kind != "gpu" or "keeps_choices_wrongly" in build.info.quirks:
        return None
    stages = [[m for m in of.cluster.members if levels[id(m)] == k] for k in (0, 1)]
    firsts, seconds = ([m for m in stage if m.op.kind is Kind.REDUCTION] for stage in stages)
    whole = [m for m in stages[1] if id(m) not in of.cluster.row and id(m) in build.writes]
    if len(firsts) != 1 or len(seconds) != 1 or whole:
        return None
    (most,), (total,) = firsts, seconds
    make = most.op.reduction
    if make is None or make(most.inputs[0].dtype).extreme != "max" or total.op is not SUM_OP:
        return None
    plain = all(x.dtype is float32 for x in (most, most.inputs[0], total, total.inputs[0]))
    scaled = plain and _is_scaled(total.inputs[0], most.inputs[0], most, build.outside)
    return Online(most, total) if scaled else None


def _is_scaled(node: Node, greatest: Node, most: Node, outside: set[int]) -> bool:
    """Whether a value is exp(x - most), and `most` the maximum of these x: of something else they
    could be greater than it is so far by more than a float holds.  Or 0 where x is left out of
    both."""
    if id(node) in outside:
        return False
    if node.op is WHERE and greatest.op is WHERE and id(greatest) not in outside:
        choice, value, other = node.inputs
        chosen, x, fill = greatest.inputs
        zero = other.op is CONST and other.attrs[0] == 0
        left_out = fill.op is CONST and fill.attrs[0] == fill.attrs[0]  # no NaN
        alike = zero and left_out and choice is chosen
        return alike and _is_scaled(value, x, most, outside)
    if node.op is not exp.op or node.inputs[0].op is not subtract.op:
        return False
    x, other = node.inputs[0].inputs
    while other.op in (EXPAND, RESHAPE):
        (other,) = other.inputs
    return other is most and x is greatest and node.inputs[0].dtype is float32
