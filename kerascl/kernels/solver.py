"""The contract between the compiler and the hand-written kernels.

A *problem* is a frozen dataclass that says what is to be computed (sizes,
strides, dtypes), never where it comes from.  A *solver* turns a problem into a
`Plan`: launches over named buffers.  The compiler gives every solver an
`Epilogue` that stores the results, so a kernel never knows its output buffer:
it calls `EPILOGUE(acc, i)` once for each output element `i` (linear index in
the contiguous output) with the value in the accumulator type.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerascl import dtypes
from kerascl.dtypes import DType

CL_FOLDER = Path(__file__).parent / "cl"


@dataclass(frozen=True)
class Ref:
    """A buffer argument: a named slot ("a", "b", …, workspace "ws0") and a byte offset."""

    slot: str
    offset: int = 0


@dataclass(frozen=True)
class Scalar:
    """A by-value argument: an OpenCL C type ("int", "uint", "long", "float", …) and a value."""

    ctype: str
    value: Any


@dataclass(frozen=True)
class Local:
    """A __local argument of so many bytes."""

    nbytes: int


Arg = Ref | Scalar | Local


@dataclass(frozen=True)
class Launch:
    """One kernel launch; sizes are in work-items, at most three dimensions."""

    source: str
    name: str
    args: tuple[Arg, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Epilogue:
    """What happens to each result of a heavy kernel.

    Attributes:
        params: kernel parameters, each with a leading comma
            (", __global float* restrict out").
        args: the arguments for `params`, in order; the solver appends them to
            those of the launch that calls EPILOGUE.
        body: C statements over `acc` (a value of the accumulator's compute
            type) and `i` (int or long linear output index); they store.
        helpers: C functions that `body` calls.
    """

    params: str
    args: tuple[Arg, ...]
    body: str
    helpers: str = ""

    @property
    def defines(self) -> str:
        """The helpers and the macros EPILOGUE_PARAMS and EPILOGUE(acc, i) as source text."""
        body = " ".join(line.strip() for line in self.body.splitlines())
        return (
            self.helpers + f"#define EPILOGUE_PARAMS {self.params}\n"
            "#define EPILOGUE(acc_, i_) "
            f"{{ const ACC_T acc = (acc_); const INDEX_T i = (i_); {body} }}\n"
        )


def store_epilogue(dtype: DType, slot: str = "out") -> Epilogue:
    """The epilogue that only stores, converted to `dtype`, into buffer `slot`."""
    store = dtype.store.format(p="out", i="i", v=f"(({dtype.compute})acc)")
    return Epilogue(f", __global {dtype.storage}* restrict out", (Ref(slot),), f"{store};")


@dataclass
class Plan:
    """Launches in order, over slots "a", "b", … (inputs in the problem's order), "ws<k>" (workspace
    of `workspace[k]` bytes) and whatever the epilogue names."""

    launches: list[Launch]
    workspace: list[int] = field(default_factory=list)


class Solver(ABC):
    """One way to solve one kind of problem.

    Solvers are stateless.  `applies` checks the problem and the device's
    queried capabilities (a `DeviceInfo`); `cost` orders applicable solvers
    (lower is better); `plan` gives the launches.
    """

    name: str

    @abstractmethod
    def applies(self, problem, info) -> bool: ...

    @abstractmethod
    def plan(self, problem, info, epilogue: Epilogue) -> Plan: ...

    def cost(self, problem, info) -> float:
        return 1.0


def choose(solvers: Iterable[Solver], problem, info) -> Solver:
    """The cheapest applicable solver.

    Raises:
        NotImplementedError: when none applies; it names the problem.
    """
    best = min(
        (s for s in solvers if s.applies(problem, info)),
        key=lambda s: s.cost(problem, info),
        default=None,
    )
    if best is None:
        raise NotImplementedError(f"no kernel applies to {problem} on {info.name}")
    return best


@functools.cache
def cl_source(name: str) -> str:
    """The text of kernels/cl/<name>."""
    return (CL_FOLDER / name).read_text()


def prelude(index: str = "int", **types: DType) -> str:
    """Macros that let one source serve every dtype.

    `prelude(A=bfloat16, ACC=float32)` defines A_T (storage type), A_C (compute
    type), A_LOAD(p, i), A_STORE(p, i, v) and so on for each name; ACC_T is the
    compute type of ACC, INDEX_T is `index` ("int" or "long").
    """
    lines = [f"#define INDEX_T {index}"]
    if any(t is dtypes.float64 for t in types.values()):
        lines.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    lines.append(dtypes.PRELUDE)
    for name, dtype in types.items():
        if name == "ACC":
            lines.append(f"#define ACC_T {dtype.compute}")
            continue
        lines.append(f"#define {name}_T {dtype.storage}")
        lines.append(f"#define {name}_C {dtype.compute}")
        lines.append(f"#define {name}_LOAD(p, i) {dtype.load.format(p='(p)', i='(i)')}")
        store = dtype.store.format(p="(p)", i="(i)", v=f"(({dtype.compute})(v))")
        lines.append(f"#define {name}_STORE(p, i, v) {store}")
    return "\n".join(lines) + "\n"
