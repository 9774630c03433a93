"""Launches of several products: a self-test for what these add to the kernels of products."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, rename_slots
from kerascl.kernels.hopper import left, pingpong, transposed
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.selftests import products
from kerascl.kernels.hopper.tiles import SHAPES
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Arrays, Data, Trial, check
from kerascl.runtime.device import DeviceInfo

COUNT = 3
UNITS = 8  # so few that work-groups have several tiles, of more than one product
SIZES = 700, 392, 424  # rows, columns and depth, which no tile divides
BOUNDS = {"bfloat16": 2e-5, "float16": 2e-5, "float32": 1e-3}
# Of a part the solvers, and whether a's m is contiguous.
ROWS = HopperMatmul(SHAPES[0], 2), HopperMatmul(pingpong.SHAPES[0], 1)
TILE = transposed.SHAPES[0]
KINDS = {
    "bfloat16": (ROWS, False), "float16": (ROWS, False), "float32": (ROWS, False),
    "float32 transposed": ((transposed.TransposedMatmul(TILE, 1),), False),
    "float32 left": ((left.LeftMatmul(TILE, 1),), True),
}  # fmt: skip
PARTS = tuple(KINDS)


def together(plan: Plan, count: int) -> Plan:
    """So many plans like one, whose main launch does the work of all.

    Slots of the n-th are those of `plan` with n behind, but for the first one's and the workspace.
    """
    (main,) = (n for n, launch in enumerate(plan.launches) if launch.several is not None)
    before: list[Launch] = []
    after: list[Launch] = []
    args: list[Arg] = []
    workspace: list[int] = []
    slots = {a.slot for launch in plan.launches for a in launch.args if isinstance(a, Ref)}
    for nth in range(count):
        names = {x: f"{x}{nth}" for x in slots if nth and not x.startswith("ws")}
        own = rename_slots(plan, names, len(workspace))
        workspace += plan.workspace
        before += own.launches[:main]
        after += own.launches[main + 1 :]
        args += [a for a in own.launches[main].args if nth == 0 or isinstance(a, Ref)]
    first = plan.launches[main]
    assert first.several is not None and first.local_size is not None
    made = dataclasses.replace(
        first, source=first.several.source(count), args=tuple(args), several=None,
        global_size=(first.several.groups(count) * first.local_size[0],),
    )  # fmt: skip
    return Plan([*before, made, *after], workspace)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Three products with a bias each: in slices of the depth, and by teams that take turns."""
    dtype, (solvers, turned) = part.parsed(of)[0], KINDS[of]
    m, n, k = SIZES
    p = products.matmul(m, n, k, dtype, turned, False)
    info = dataclasses.replace(info, compute_units=UNITS)
    for solver in solvers:
        plan = together(solver.plan(p, info, products.biased(dtypes.float32, n)), COUNT)
        what = f"several products ({solver.name}, {of})"
        yield Trial(plan, functools.partial(_data, what, p, dtype, turned))


def _data(what: str, p: MatmulProblem, dtype: DType, turned: bool) -> Data:
    rng = np.random.default_rng()
    inputs: Arrays = {}
    outs: Arrays = {}
    wants: Arrays = {}
    for nth in ("", *map(str, range(1, COUNT))):
        a = rng.standard_normal((p.m, p.k), np.float32).astype(dtype.numpy)
        b = rng.standard_normal((p.k, p.n), np.float32).astype(dtype.numpy)
        bias = rng.standard_normal(p.n, np.float32)
        wants[f"out{nth}"] = a.astype(np.float64) @ b.astype(np.float64) + bias
        inputs |= {f"a{nth}": a.T.copy() if turned else a, f"b{nth}": b, f"bias{nth}": bias}
        outs[f"out{nth}"] = np.empty((p.m, p.n), np.float32)

    def verdict() -> None:
        for name, want in wants.items():
            check(what, outs[name], want, BOUNDS[dtype.name])

    return Data(inputs, outs, verdict)
