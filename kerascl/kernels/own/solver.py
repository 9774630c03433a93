"""A user's kernel as a solver: its text, its launch, and the library's epilogue around it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.matmul.split_k import partial_epilogue, reduction_launch
from kerascl.kernels.own.texts import Kind, types
from kerascl.runtime.device import DeviceInfo


class OwnSolver(Solver):
    """One kernel of a user's, launched once.

    Its name ends in a digest of what it was declared with, so that no record of another kernel is
    taken for this one's.

    Args:
        grid, local: of a problem, sizes or what gives them.
        applies: of a problem and the device's facts, or None for every problem.
        template: of a problem, macros and their text.
        fused: whether the kernel calls EPILOGUE; else it stores accumulators, and one more launch
            makes results of them.
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        source: str,
        grid: Callable[[Any], Sequence[int]],
        local: Callable[[Any], Sequence[int]] | None,
        applies: Callable[[Any, DeviceInfo], bool] | None,
        template: Mapping[str, str],
        fused: bool,
    ):
        told = repr((source, sorted(template.items()), fused))
        self.name = f"{name}@{hashlib.sha256(told.encode()).hexdigest()[:8]}"
        self._kind, self._kernel, self._source = kind, name, source
        self._grid, self._local, self._applies = grid, local, applies
        self._template, self._fused = dict(template), fused

    def applies(self, problem: Any, info: DeviceInfo) -> bool:
        if not self._kind.fits(problem, info):
            return False
        return self._applies is None or bool(self._applies(problem, info))

    def cost(self, problem: Any, info: DeviceInfo) -> float:
        return float("inf")

    def plan(self, problem: Any, info: DeviceInfo, epilogue: Epilogue) -> Plan:
        p, index = problem, self._kind.index(problem)
        inner = epilogue if self._fused else partial_epilogue(p.acc, "0")
        parameters = inner.defines if self._fused else ""
        source = (
            types(p, index)
            + dtypes.PRELUDE
            + self._kind.macros(p)
            + "".join(f"#define {key} {text}\n" for key, text in self._template.items())
            + parameters
            + f'#line 1 "{self._kernel}"\n{self._source}\n'
        )
        grid = tuple(self._grid(p))
        local = None if self._local is None else tuple(self._local(p))
        if local is not None and (
            len(local) != len(grid) or any(n % m for n, m in zip(grid, local, strict=True))
        ):
            raise ValueError(
                f"solver {self._kernel!r}: grid {grid} is no multiple of local {local}; round it "
                "up, and let the kernel return for work-items past the end"
            )
        launch = Launch(source, self._kernel, (Ref("a"), Ref("b"), *inner.args), grid, local)
        if self._fused:
            return Plan([launch])
        stored = reduction_launch(p.total, 1, p.acc, index, epilogue)
        return Plan([launch, stored], [p.total * p.acc.itemsize])
