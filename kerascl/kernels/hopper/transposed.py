"""Matrix products of float32 (as TF32) whose second operand has n contiguous: see `ptx`.

wgmma reads TF32 from shared memory with k contiguous only, so `wgmma_gemm` lays such an operand out
anew first.  Here it is read as it lies: the product is transposed, out^T = b^T a^T, and the
fragments of b^T, now the left operand, come from registers.

A stage of 128 x 256 x 32 moves as much through shared memory, at 128 bytes a clock, as one of
`wgmma_gemm`, which reads both operands there: 384 clocks for TMA's writes, 512 for a (by two
warpgroups), 128 for b.  Its products take 1024.  (Warps of 32 columns would load 16 bytes a lane
instead of eight, but warpgroups of 128 columns read a twice as often: 1152 clocks.)
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ClassVar

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.hopper import tiles
from kerascl.kernels.hopper.kernel import Args, Run
from kerascl.kernels.hopper.ptx import KINDS, register_instruction
from kerascl.kernels.hopper.tiles import STORE_CLOCKS, Shape, moments_time
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.selftests import part as selftest_part

# Those whose registers suffice for fragments, too.
SHAPES = tuple(s for s in tiles.SHAPES if s.blocks == 1 and s.name != "128x128x3")


@dataclass(frozen=True)
class TransposedRun(Run):
    """A launch of wgmma_transposed.cl."""

    kernel: ClassVar[str] = "wgmma_transposed"
    pairs: ClassVar[bool] = False
    left: ClassVar[int] = 0  # whether the operand from registers is the first one: `left`

    @property
    def defines(self) -> dict[str, int]:
        return super().defines | {"A_IN_REGISTERS": self.left}

    def sum_parts(self, splits: int, tiles_m: int) -> int:
        return splits  # see wgmma_dense.cl

    @property
    def wide(self) -> bool:
        """Whether sums and fragments need registers of a whole producer warpgroup."""
        return self.shape.bn > 128

    def kept_counts(self, vector: int) -> tuple[int, ...]:
        return (1,)  # all vectors of a lane have the same columns

    @property
    def operands(self) -> Args:
        return Ref(self.a), Ref(self.b)

    @property
    def instruction(self) -> str:
        return register_instruction(self.shape.bn, KINDS[self.dtype.name], False)


class RegisterMatmul(hopper_matmul.HopperMatmul):
    """Large products of float32, rounded to tf32, an operand of which comes from registers.

    The other one is laid out anew where its k is not contiguous.  Each tile has a part of the
    self-test.

    Attributes:
        words: of the parts that prove its tiles, between dtype and tile.
    """

    shapes = SHAPES
    alternating: tuple[Shape, ...] = ()
    words: ClassVar[tuple[str, ...]] = ()
    form = ("transposed",)

    @classmethod
    def proof(cls, shape: Shape) -> str:
        """The part of the self-test for a tile."""
        return selftest_part.named(dtypes.float32, "high", *cls.words, shape.name)

    def takes(self, p: MatmulProblem) -> bool:
        return (
            super().takes(p)
            and p.a.name == "float32"
            and p.precision != "highest"
            and (self.tile is None or self.tile.blocks == 1)
        )

    def applies(self, p: MatmulProblem, info) -> bool:
        return super().applies(p, info) and bool(self._candidates(p, info))

    def proven(self, shape: Shape, p: MatmulProblem, info) -> bool:
        return hopper_probe.available(info, TransposedRun.kernel, self.proof(shape))

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        if problem.sums_columns:  # which wgmma.cl cannot make of such operands
            return super().plan(problem, info, epilogue)
        if not epilogue.moments:  # which come from rows of results as wgmma.cl has them
            with contextlib.suppress(hopper_matmul.NoTile):
                return super().plan(problem, info, epilogue)
        return hopper_matmul.HopperMatmul(self.tile).plan(problem, info, epilogue)


class TransposedMatmul(RegisterMatmul):
    """Those with b's rows where they lie."""

    prefix = TransposedRun.kernel
    run = TransposedRun
    store_clocks = 1.6 * STORE_CLOCKS  # a lane's results are in different rows of the output

    def takes(self, p: MatmulProblem) -> bool:
        return super().takes(p) and self.layouts(p)[1] == "mn"

    def layouts(self, p: MatmulProblem) -> tuple[str, str]:
        return hopper_matmul.layouts(p, (False, True))

    def cut(self, shape: Shape) -> tuple[int, int]:
        return shape.bn, shape.bm

    def takes_moments(self, p: MatmulProblem, info) -> bool:
        packing = hopper_matmul.HopperMatmul(self.tile, 1, turns=False)
        worth = self.best(p, info)[0] + moments_time(p.total, info)
        return packing.best(p, info)[0] <= worth and packing.takes_moments(p, info)
