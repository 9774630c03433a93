"""Index spaces of generated kernels: which dimensions to loop over."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from kerascl.compiler.graph.symbolic import Expr, Var, variable, variables


def refine(shape: tuple[int, ...], others: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The dimensions of `shape`, split further where other shapes of the same size have edges.

    With such dimensions, reshapes inside a kernel need no division.
    """
    size = math.prod(shape)
    cuts = _edges(shape)
    for other in others:
        if math.prod(other) != size:
            continue
        for cut in _edges(other):
            trial = sorted({*cuts, cut})
            if all(b % a == 0 for a, b in zip(trial, trial[1:], strict=False)):
                cuts = set(trial)
    ordered = sorted(cuts)
    return tuple(b // a for a, b in zip(ordered, ordered[1:], strict=False))[::-1]


def _edges(shape: tuple[int, ...]) -> set[int]:
    edges, step = {1}, 1
    for n in reversed(shape):
        step *= n
        edges.add(step)
    return edges


def names(count: int) -> list[str]:
    """The names of the variables of `count` dimensions."""
    return [f"x{d}" for d in range(count)]


def axes(dims: tuple[int, ...]) -> tuple[Expr, ...]:
    """One variable for each dimension."""
    return tuple(variable(name, n) for name, n in zip(names(len(dims)), dims, strict=True))


def mergeable(dims: tuple[int, ...], indices: Iterable[Expr], fixed: set[int]) -> list[bool]:
    """For each dimension d, whether it can be one loop with d + 1.

    That is so when every index uses both only as `k * (x_d * n_{d+1} + x_{d+1})`.
    `fixed` holds positions d that must stay apart from d + 1.
    """
    joined = [d not in fixed for d in range(len(dims) - 1)]
    position = {name: d for d, name in enumerate(names(len(dims)))}
    for expr in indices:
        factor = [0] * len(dims)
        for atom, k in expr.terms:
            if isinstance(atom, Var) and atom.name in position:
                factor[position[atom.name]] = k
        for d in range(len(dims) - 1):
            if factor[d] != factor[d + 1] * dims[d + 1]:
                joined[d] = False
        for var, top in variables(expr):
            if not top and var.name in position:
                d = position[var.name]
                if d < len(joined):
                    joined[d] = False
                if d > 0:
                    joined[d - 1] = False
    return joined


def merge(dims: tuple[int, ...], joined: list[bool]) -> tuple[int, ...]:
    """Dimensions after joining neighbours."""
    result = list(dims[:1])
    for d, join in enumerate(joined):
        if join:
            result[-1] *= dims[d + 1]
        else:
            result.append(dims[d + 1])
    return tuple(result)


def decode(
    index: str, dims: tuple[int, ...], variable_names: list[str], number: Any, ctype: str
) -> list[str]:
    """C statements that set each dimension's variable from a linear index."""
    live = [(n, v) for n, v in zip(dims, variable_names, strict=True) if n > 1]
    lines = []
    rest = index
    for position in range(len(live) - 1, -1, -1):
        n, name = live[position]
        if position == 0:
            lines.append(f"const {ctype} {name} = {rest};")
        else:
            size = number(n)
            lines.append(f"const {ctype} {name} = {rest} % {size};")
            following = f"q{name}"
            lines.append(f"const {ctype} {following} = {rest} / {size};")
            rest = following
    return lines
