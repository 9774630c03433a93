"""Matrix products of float32 (as TF32) whose first operand has m contiguous: see `ptx`.

That operand's fragments come from registers, as those of the second one in `transposed`, and the
second one is laid out anew where its k is not contiguous.  Of a filter's gradient, x^T dy, neither
operand's k is: `transposed` lays out x^T, this one dy, where that is narrower and so less is moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import transposed
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.matmul.problem import MatmulProblem

FRAGMENTS = 16  # registers of a work-item


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


class LeftMatmul(transposed.RegisterMatmul):
    """Those with a's columns where they lie.

    Only products whose a would be more to lay out than b are taken where b has to be.  Where both
    are as much it is better to have a's copy, which the gradients of several filters that read the
    same x share.
    """

    prefix = "wgmma_left"
    run = LeftRun
    words = ("left",)
    form = ("left",)

    def takes(self, p: MatmulProblem) -> bool:
        if not super().takes(p):
            return False
        a, b = self.layouts(p)
        return not p.sums_columns and a == "mn" and (b == "k" or p.n < p.m)

    def layouts(self, p: MatmulProblem) -> tuple[str, str]:
        return hopper_matmul.layouts(p, (True, False))

    def moments(self, p: MatmulProblem) -> bool:
        return False
