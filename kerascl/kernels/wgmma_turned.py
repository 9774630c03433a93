"""Matrix products of float32 (as TF32) whose second operand has n contiguous: see `wgmma`.

wgmma reads TF32 from shared memory with k contiguous only, so `wgmma_gemm` lays such an operand out
anew first.  Here it is read as it lies: the product is turned, out^T = b^T a^T, and the fragments
of b^T, now the left operand, come from registers.

A stage of 128 x 256 x 32 moves as much through shared memory, at 128 bytes a clock, as one of
`wgmma_gemm`, which reads both operands there: 384 clocks for TMA's writes, 512 for a (by two
warpgroups), 128 for b.  Its products take 1024.  (Warps of 32 columns would load 16 bytes a lane
instead of eight, but warpgroups of 128 columns read a twice as often: 1152 clocks.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kerascl.kernels import wgmma, wgmma_gemm
from kerascl.kernels.solver import Epilogue, Plan, Ref
from kerascl.kernels.wgmma import Shape

if TYPE_CHECKING:
    from kerascl.kernels.gemm import GemmProblem


LARGEST_PACK = 4  # elements of a for each of the result, where a is packed

# Those whose registers suffice for fragments, too.
SHAPES = tuple(s for s in wgmma.SHAPES if s.blocks == 1 and s.name != "128x128x3")


@dataclass(frozen=True)
class Run(wgmma.Run):
    """A launch of wgmma_turned.cl."""

    kernel: ClassVar[str] = "wgmma_turned"

    @property
    def wide(self) -> bool:
        """Whether sums and fragments need registers of a whole producer warpgroup."""
        return self.shape.bn > 128

    @property
    def operands(self) -> wgmma.Args:
        return Ref(self.a), Ref(self.b)

    @property
    def instruction(self) -> str:
        return wgmma.register_instruction(self.shape.bn, wgmma.KINDS[self.dtype.name], False)


class Wgmma(wgmma_gemm.Wgmma):
    """Large products of float32, rounded to tf32, with b's rows where they lie.

    a is laid out anew where its k is not contiguous.
    """

    family = verdict = Run.kernel
    run = Run
    shapes = SHAPES
    store_time = 1.6 * wgmma.STORE_TIME  # a lane's results are in different rows of the output

    def takes(self, p: GemmProblem) -> bool:
        return (
            super().takes(p)
            and p.a.name == "float32"
            and p.precision != "highest"
            and self._readable(p)
            and (self.tile is None or self.tile.blocks == 1)
        )

    def _readable(self, p: GemmProblem) -> bool:
        """Whether b lies as it should, and a needs no packing that dwarfs the result."""
        a, b = self.layouts(p)
        return b == "mn" and (a == "k" or p.k <= LARGEST_PACK * p.n)

    def layouts(self, p: GemmProblem) -> tuple[str, str]:
        return wgmma_gemm.layouts(p, (False, True))

    def cut(self, shape: Shape) -> tuple[int, int]:
        return shape.bn, shape.bm

    def takes_moments(self, p: GemmProblem, info) -> bool:
        packing = wgmma_gemm.Wgmma(self.tile, 1)
        worth = self.best(p, info)[0] + wgmma.moments_time(p.total)
        return packing.takes_moments(p, info) and packing.best(p, info)[0] <= worth

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        if epilogue.moments:  # columns of the output are not a lane's own here
            return wgmma_gemm.Wgmma(self.tile).plan(problem, info, epilogue)
        return super().plan(problem, info, epilogue)
