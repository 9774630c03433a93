"""Loops of reductions in explicit vectors, for CPUs.

CPUs' compilers make no vectors of a loop over a row whose neighbours are work-items of a group.  So
one work-item takes vectors of neighbours: lane l of its registers has the elements l, l + width, …
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kerascl.compiler.generate import blocked
from kerascl.compiler.generate.blocked import Blocked, rename
from kerascl.compiler.generate.emit import Scope, Writer
from kerascl.compiler.graph import views
from kerascl.compiler.graph.symbolic import Expr, unravel, variables
from kerascl.core.node import Node
from kerascl.core.op import ReductionSpec
from kerascl.dtypes import DType
from kerascl.ops.declare import CAST
from kerascl.ops.views import CONCAT

LEAST = 64  # elements of a row from which vectors are worth the code
WIDTH = 16  # elements of a vector of up to 4 bytes each; half as many of 8
# Code of pointwise operations that is valid for vectors: of floats, and of what can be compared.
_ARITHMETIC = re.compile(r"\(\{0\} [-+*/] \{[01]\}\)")
_COMPARISON = re.compile(r"\(\{0\} ([=!<>]=|[<>]) \{[01]\}\)")
_SIZES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "long": 8, "ulong": 8, "double": 8}

Place = tuple[str, Expr, list[str], list[str]]


class Unfit(Exception):
    """What is reduced cannot be written in vectors."""


def width(nodes: Iterable[Node]) -> int:
    """Elements of a vector where these values are read and computed."""
    return WIDTH if all(_SIZES.get(x.dtype.compute, 4) <= 4 for x in nodes) else WIDTH // 2


class Lanes(Scope):
    """Statements of neighbours along the one reduced dimension, whose variable is `axis`.

    What does not vary along it is a scalar, of the scope around.
    """

    def __init__(self, parent: Scope, own: list[str], axis: Expr, width: int) -> None:
        super().__init__(parent.writer, parent, own)
        self.axis = axis
        self.width = width

    def vector(self, ctype: str) -> str:
        """The type of a vector of these."""
        return f"{ctype}{self.width}"

    def define(self, ctype: str, value: str) -> str:
        return super().define(self.vector(ctype), value)

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        assert self.parent is not None and self.own is not None
        if not self._varies((index,), guards):
            return self.parent.element(node, index, guards)
        rest = index - self.axis
        if guards or any(var.name in self.own for var, _ in variables(rest)):
            raise Unfit
        key = (id(node), index, guards)
        if key not in self.memo:
            writer = self.writer
            place = f"{writer.buffer(node)} + {writer.index(index)}"
            value = _load(node.dtype, place, self.width)
            self.memo[key] = self.define(writer.ctype(node.dtype), value)
        return self.memo[key]

    def _view(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        edges = node.op is CONCAT or not node.inputs[0].size or views.source(node, coords)[1]
        if edges:
            raise Unfit
        return super()._view(node, coords, guards, stored)

    def _gather(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        raise Unfit

    def _pointwise(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        op, dtype, inputs = node.op, node.dtype, node.inputs
        arithmetic = dtype.is_float and self._computes(op.code)
        comparison = dtype.is_bool and bool(_COMPARISON.fullmatch(op.code))
        rounds = dtype.round and self.rounds and not op.exact
        complexes = any(x.dtype.is_complex for x in (node, *inputs))
        if not (op is CAST or arithmetic or comparison) or rounds or complexes:
            raise Unfit
        args = []
        for x in inputs:
            value = self.value(x, coords if x.shape else (), guards, stored)
            args.append(f"(({self.vector(x.dtype.compute)})({value}))")
        if op is CAST:
            text = self._vector_cast(args[0], inputs[0].dtype, dtype)
        else:
            text = op.code.format(*args)
            text = self._truth(text) if comparison else text
        return self.define(self.writer.ctype(dtype), text)

    def _computes(self, code: str) -> bool:
        """Whether an operation's code is valid for vectors of floats."""
        return bool(_ARITHMETIC.fullmatch(code))

    def _truth(self, test: str) -> str:
        """0 and 1, as bools are computed; where a comparison of vectors holds it gives -1."""
        return f"-convert_{self.vector('int')}{test}"

    def _vector_cast(self, value: str, old: DType, new: DType) -> str:
        if new.is_bool:
            return self._truth(f"({value} != ({self.vector(old.compute)})(0))")
        if new.is_integer and old.is_float:
            raise Unfit
        return f"convert_{self.vector(new.compute)}({value})"


def _load(dtype: DType, place: str, width: int) -> str:
    """Neighbours from `place` on, as they are computed."""
    if dtype.name == "float16":
        return f"vload_half{width}(0, {place})"
    value = f"vload{width}(0, {place})"
    if dtype.is_bool:
        return f"-(convert_int{width}({value}) != 0)"
    if dtype.name == "bfloat16":
        return f"as_float{width}(convert_uint{width}({value}) << 16)"
    if dtype.is_complex or dtype.storage != dtype.compute:
        raise Unfit
    return value


class _Register:
    """The registers of one reduction: vectors, and arrays of their lanes after the last vector."""

    def __init__(
        self, outer: Scope, spec: ReductionSpec, states: list[tuple[str, str]], width: int,
        length: int,
    ) -> None:  # fmt: skip
        self.spec, self.states, self.width = spec, states, width
        self.choice = "long" if _SIZES.get(states[0][0], 4) == 8 else "int"
        index = outer.writer.index_type
        positions = len(states) > 1
        small = _SIZES.get(states[0][0], 4) < 4
        if not spec.lanes or positions and (small or self.choice == "int" != index):
            raise Unfit
        kinds = [states[0][0], *(self.choice for _ in states[1:])]
        self.kinds = kinds
        types = [f"{kind}{width}" for kind in kinds]
        inits = [f"({t})({init})" for t, (_, init) in zip(types, spec.states, strict=True)]
        wide = replace(
            spec, states=tuple(zip(types, inits, strict=True)),
            step=spec.lanes.replace("LANES", str(width)),
        )  # fmt: skip
        sizes = blocked.sizes(spec.block, length, blocked.BLOCKS_FROM)
        levels = [(size, self._declare(outer, wide)) for size in sizes]
        self.blocked = Blocked(wide, self._declare(outer, wide), {}, [], levels)
        self.arrays = [outer.writer.name("lanes") for _ in kinds]

    def _declare(self, outer: Scope, spec: ReductionSpec) -> list[tuple[str, str]]:
        names = [(kind, outer.writer.name("s")) for kind, _ in spec.states]
        inits = [init for _, init in spec.states]
        outer.lines += [f"{k} {n} = {i};" for (k, n), i in zip(names, inits, strict=True)]
        return names

    def step(self, value: str) -> str:
        """Take a vector that begins at position r."""
        text = self.blocked.step(value)
        if len(self.states) == 1:
            return text
        lanes = ", ".join(map(str, range(self.width)))
        kind = f"{self.choice}{self.width}"
        return f"{{ const {kind} places = ({kind})(r) + ({kind})({lanes}); {text} }}"

    def spill(self) -> list[str]:
        """Lines that leave each lane in an array."""
        lines = self.blocked.finish()
        for kind, array, (_, name) in zip(
            self.kinds, self.arrays, self.blocked.states, strict=True
        ):
            lines.append(f"{kind} {array}[{self.width}];")
            lines.append(f"vstore{self.width}({name}, 0, {array});")
        return lines

    def take(self, value: str) -> str:
        """Take one more element into lane `lane`."""
        lane = [(k, f"{a}[lane]") for k, a in zip(self.kinds, self.arrays, strict=True)]
        return rename(self.spec.step, lane, {"x": f"(({self.states[0][0]}){value})"})

    def join(self) -> list[str]:
        """Lines that merge the lanes in pairs, as work-items are."""
        lane = [(k, f"{a}[lane]") for k, a in zip(self.kinds, self.arrays, strict=True)]
        others = {f"t{k}": f"{a}[lane + d]" for k, a in enumerate(self.arrays)}
        text = rename(self.spec.combine, lane, others)
        return [
            f"for (int d = {self.width // 2}; d > 0; d >>= 1)",
            f"  for (int lane = 0; lane < d; ++lane) {{ {text} }}",
            *(f"{n} = {a}[0];" for a, (_, n) in zip(self.arrays, self.states, strict=True)),
        ]


def loop(
    outer: Scope,
    reductions: list[tuple[Node, ReductionSpec, list[tuple[str, str]]]],
    place: Place,
    axis: Expr,
    visible: set[int],
    width: int,
    length: int,
) -> None:
    """Write the loop over a row from r_begin to r_end: into the declared states of each reduction.

    Args:
        place: variable, index over the full space, own variables and their lines, of an element.
        axis: the variable of the reduced dimension.
        length: how many elements a lane takes.

    Raises:
        Unfit: what is reduced cannot be written in vectors.
    """
    _, full, own, decode = place
    writer: Writer = outer.writer
    made = [_Register(outer, spec, states, width, length) for _, spec, states in reductions]

    def body(scope: Scope, take: Callable[[_Register, str], str]) -> list[str]:
        """The lines for the element or vector at r."""
        scope.lines += decode
        steps = []
        for (node, _, _), register in zip(reductions, made, strict=True):
            x = node.inputs[0]
            value = scope.value(x, unravel(full, x.shape), (), visible)
            steps.append(take(register, value))
        return ["  " + line for line in scope.lines + steps]

    vectors = body(Lanes(outer, own, axis, width), _Register.step)
    single = body(Scope(writer, outer, own), _Register.take)
    sums = [register.blocked for register in made]
    hint = '_Pragma("nounroll") '
    lines = [
        f"{writer.index_type} r = r_begin;",
        *blocked.loop(sums, width, 1, vectors, hint, width - 1),
        f"for (; r_end - r > {width - 1}; r += {width}) {{",
        *vectors,
        "}",
        *(line for register in made for line in register.spill()),
        "for (int lane = 0; r < r_end; ++lane, ++r) {",
        *single,
        "}",
        *(line for register in made for line in register.join()),
    ]
    outer.lines += ["{", *("  " + line for line in lines), "}"]
