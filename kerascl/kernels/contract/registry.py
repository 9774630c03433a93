"""Solvers that users add to those of a kind of problem (`kerascl.solver`).

They cost infinity: KERASCL_SOLVERS takes one, or a record of the tuner, which has checked it.
"""

from __future__ import annotations

from kerascl.kernels.contract.solver import Solver

_added: dict[str, dict[str, Solver]] = {}


def add(kind: str, name: str, solver: Solver) -> None:
    """Let a kind of problem have a solver, in place of the one added under this name before."""
    _added.setdefault(kind, {})[name] = solver


def remove(kind: str, name: str) -> None:
    """Forget a solver that was added; nothing where there is none."""
    _added.get(kind, {}).pop(name, None)


def of(kind: str) -> tuple[Solver, ...]:
    """The solvers added for a kind of problem."""
    return tuple(_added.get(kind, {}).values())
