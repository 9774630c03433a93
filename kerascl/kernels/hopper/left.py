"""Matrix products of float32 (as TF32) whose first operand has m contiguous: see `ptx`.

That operand's fragments come from registers, as those of the second one in `transposed`, and the
second one is laid out anew where its k is not contiguous.  Of a filter's gradient, x^T dy, neither
operand's k is: `transposed` lays out x^T, this one dy, where that is narrower and so less is moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import probe, transposed
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.tiles import Shape
from kerascl.kernels.matmul.problem import MatmulProblem

FRAGMENTS = 16  # registers of a work-item


def part(shape: Shape) -> str:
    """The part of `transposed`'s self-test for a tile."""
    return f"float32 left {shape.name}"


@dataclass(frozen=True)
class LeftRun(transposed.TransposedRun):
    """A launch of wgmma_transposed.cl that does not transpose: results lie as wgmma.cl's."""

    pairs: ClassVar[bool] = True
    left: ClassVar[int] = 1

    @property
    def registers(self) -> int:
        return 232 if self.wide else super().registers  # as wgmma_common.cl's TAKE_REGISTERS says

    @property
    def free(self) -> int:
        return super().free - FRAGMENTS

    def kept_counts(self, vector: int) -> tuple[int, ...]:
        return Run.kept_counts(self, vector)


class LeftMatmul(hopper_matmul.HopperMatmul):
    """Large products of float32, rounded to tf32, with a's columns where they lie.

    b is laid out anew where its k is not contiguous; only products whose a would be more to lay out
    are taken then.  Where both are as much it is better to have a's copy, which the gradients of
    several filters that read the same x share.
    """

    prefix = "wgmma_left"
    run = LeftRun
    shapes = transposed.SHAPES
    alternating: tuple[Shape, ...] = ()

    def takes(self, p: MatmulProblem) -> bool:
        if not (
            super().takes(p)
            and p.a.name == "float32"
            and p.precision != "highest"
            and (self.tile is None or self.tile.blocks == 1)
        ):
            return False
        a, b = self.layouts(p)
        return a == "mn" and (b == "k" or p.n < p.m)

    def applies(self, p: MatmulProblem, info) -> bool:
        return super().applies(p, info) and bool(self._candidates(p, info))

    def proven(self, shape: Shape, p: MatmulProblem, info) -> bool:
        return probe.available(info, transposed.TransposedRun.kernel, part(shape))

    def layouts(self, p: MatmulProblem) -> tuple[str, str]:
        return hopper_matmul.layouts(p, (True, False))

    def moments(self, p: MatmulProblem) -> bool:
        return False

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        if epilogue.moments:
            return hopper_matmul.HopperMatmul(self.tile).plan(problem, info, epilogue)
        return super().plan(problem, info, epilogue)
