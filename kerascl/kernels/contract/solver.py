"""The contract between the compiler and the hand-written kernels.

A *problem* is a frozen dataclass that says what is to be computed (sizes,
strides, dtypes), never where it comes from.  A *solver* turns a problem into a
`Plan`: launches over named buffers.  The compiler gives every solver an
`Epilogue` that stores the results, so a kernel never knows its output buffer:
it calls `EPILOGUE(acc, i)` once for each output element `i` (linear index in
the contiguous output) with the value in the accumulator type.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from kerascl import config
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.runtime.device import DeviceInfo


class Solver(ABC):
    """One way to solve one kind of problem.

    Solvers are stateless.  `applies` checks the problem and the device's
    queried capabilities (a `DeviceInfo`); `cost` estimates the time that
    applicable solvers take; `plan` gives the launches.

    Attributes:
        joins: whether its launches become parts of one where launches stay: see `joining`.
    """

    name: str
    joins: ClassVar[bool] = False

    @abstractmethod
    def applies(self, problem: Any, info: DeviceInfo) -> bool:
        """Whether this solver can solve the problem on such a device."""

    @abstractmethod
    def plan(self, problem: Any, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        """The launches for a problem to which the solver applies."""

    def cost(self, problem: Any, info: DeviceInfo) -> float:
        """Microseconds that the plan takes on this device, by counted multiply-adds, bytes and
        launches, the rates of `tuning/machine.py` and an efficiency of the solver's own; infinity
        where only a record or KERASCL_SOLVERS should take it.  Problems with one solver need
        none."""
        return 0.0

    def takes_moments(self, problem: Any, info: DeviceInfo) -> bool:
        """Whether its plan for this problem, which applies, does `Epilogue.moments`."""
        return False

    def computes(self, problem: Any, info: DeviceInfo) -> str | None:
        """The slot of an operand that `plan_computing` computes, for this problem, which applies;
        None where there is none."""
        return None

    def computes_well(self, problem: Any, info: DeviceInfo, computed: Computed) -> bool:
        """Whether that takes less time than to compute the operand beforehand."""
        return True

    def plan_computing(
        self, problem: Any, info: DeviceInfo, epilogue: Epilogue, computed: Computed
    ) -> Plan:
        """The launches where the operand that `computes` names does not lie in memory."""
        raise NotImplementedError(f"{self.name} reads its operands from memory")


class _Thread(threading.local):
    joining = False


_thread = _Thread()


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Inside it, launches are planned of which those become one whose solvers join: theirs cost
    nothing, and any other ends a run of them."""
    before, _thread.joining = _thread.joining, True
    try:
        yield
    finally:
        _thread.joining = before


def joined() -> bool:
    """Whether this is inside `joining`."""
    return _thread.joining


def forced(solvers: Iterable[Solver], problem: Any, info: DeviceInfo) -> Solver | None:
    """The applicable solver that KERASCL_SOLVERS names first, if any: that of just this name, else
    the cheapest whose name begins so."""
    for part in config.solvers():
        named = [s for s in solvers if s.name.startswith(part) and s.applies(problem, info)]
        if named:
            return min(named, key=lambda s: (s.name != part, s.cost(problem, info)))
    return None


def avoided(solver: Solver) -> bool:
    """Whether KERASCL_SOLVERS wants any other solver than this."""
    return any(solver.name.startswith(part) for part in config.avoided_solvers())


def choose(
    solvers: Iterable[Solver], problem: Any, info: DeviceInfo,
    cost: Callable[[Solver], float] | None = None,
) -> Solver:  # fmt: skip
    """The cheapest applicable solver, or the forced one.

    Args:
        cost: instead of the solvers' own.

    Raises:
        NotImplementedError: when none applies; it names the problem.
    """
    best = forced(solvers, problem, info)
    if best is not None:
        return best
    found = [s for s in solvers if s.applies(problem, info)]
    if not found:
        raise NotImplementedError(f"no kernel applies to {problem} on {info.name}")
    if len(found) == 1:
        return found[0]
    if cost is None:
        return min(found, key=lambda s: (avoided(s), s.cost(problem, info)))
    return min(found, key=lambda s: (avoided(s), cost(s)))
