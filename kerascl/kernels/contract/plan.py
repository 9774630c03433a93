"""What a solver hands back: launches over named buffers, and their arguments."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kerascl.kernels.contract.source import Source


@dataclass(frozen=True)
class Ref:
    """A buffer argument: a named slot ("a", "b", …, workspace "ws0") and a byte offset."""

    slot: str
    offset: int = 0


_HOST_TYPES: dict[str, type[np.generic]] = {
    "char": np.int8, "short": np.int16, "int": np.int32, "long": np.int64,
    "uchar": np.uint8, "ushort": np.uint16, "uint": np.uint32, "ulong": np.uint64,
    "float": np.float32, "double": np.float64, "float2": np.complex64,
    "double2": np.complex128,
}  # fmt: skip


@dataclass(frozen=True)
class Scalar:
    """A by-value argument: an OpenCL C type ("int", "uint", "long", "float", …) and a value, or
    "ulong8" and eight."""

    ctype: str
    value: Any

    @property
    def host(self) -> np.generic | bytes:
        """The value as the runtime takes it."""
        if self.ctype == "ulong8":
            return np.array(self.value, np.uint64).tobytes()
        return _HOST_TYPES[self.ctype](self.value)


@dataclass(frozen=True)
class Local:
    """A __local argument of so many bytes."""

    nbytes: int


@dataclass(frozen=True)
class Counters:
    """A buffer of `count` arrival counters (see arrival.py), zero between launches.

    The int argument after it is the first that is the launch's own.
    """

    count: int


Arg = Ref | Scalar | Local | Counters


class Role(enum.Enum):
    """What a launch does for its plan: only MAIN does the arithmetic that a problem asks for."""

    MAIN = "main"
    PACK = "pack"  # lays operands out anew, or transforms them
    REDUCE = "reduce"  # adds up what several work-groups left
    STORE = "store"  # lays results out, or transforms them back


@dataclass(frozen=True)
class Division:
    """How work-groups share the results of a launch, where each result is one group's alone.

    Attributes:
        of: equal for launches whose work-groups of one number have results of the same indices.
        aligned: (slot, bytes of an element) of buffers that are used at the results' indices only.
    """

    of: Hashable
    aligned: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Several:
    """How one launch does what several of the same text would, over buffers of their own.

    Its arguments are those of the first, then the buffers of each other, in their order there.

    Attributes:
        most: launches that one stands for.
        source: the text for so many.
        groups: work-groups for so many.
        proven: whether the text's self-test passes.
    """

    most: int
    source: Callable[[int], str]
    groups: Callable[[int], int]
    proven: Callable[[], bool]


@dataclass(frozen=True)
class Launch:
    """One kernel launch; sizes are in work-items, at most three dimensions.

    `text` is the kernel alone, where it may share a translation unit and its work-groups may share
    a launch with others of the same text: it then asks for its place by get_global_id(0) or
    get_group_id(0) only.  `division` is None where nothing is known of it, `several` where a launch
    takes on nobody else's work.
    """

    source: str
    name: str
    args: tuple[Arg, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    options: tuple[str, ...] = ()
    text: Source | None = None
    role: Role = Role.MAIN
    division: Division | None = None
    several: Several | None = field(default=None, compare=False)


class Workspace(list[int]):
    """Bytes of a plan's workspace, in order of demand."""

    def room(self, nbytes: int) -> str:
        """The slot of so many bytes more."""
        self.append(nbytes)
        return f"ws{len(self) - 1}"


@dataclass
class Plan:
    """Launches in order, over slots "a", "b", … (inputs in the problem's order), "ws<k>" (workspace
    of `workspace[k]` bytes) and whatever the epilogue names."""

    launches: list[Launch]
    workspace: list[int] = field(default_factory=list)


def rename_slots(plan: Plan, names: dict[str, str], before: int = 0) -> Plan:
    """The plan with input slots renamed, for a solver that delegates.

    Args:
        names: of slots, from the plan's to the solver's.
        before: how many slots of workspace the solver has in front of the plan's.
    """
    names = names | {f"ws{k}": f"ws{k + before}" for k in range(len(plan.workspace))}

    def rename(arg: Arg) -> Arg:
        if isinstance(arg, Ref) and arg.slot in names:
            return dataclasses.replace(arg, slot=names[arg.slot])
        return arg

    launches = [dataclasses.replace(x, args=tuple(map(rename, x.args))) for x in plan.launches]
    return Plan(launches, plan.workspace)
