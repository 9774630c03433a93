"""Products of a vector or two of signed bytes, four at once, as quantised models have them."""

from __future__ import annotations

from kerascl.dtypes import DType, int8, int32
from kerascl.kernels.contract import dots
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import cl_source, defines
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.matmul.skinny import Ahead, Share, Side, SkinnyMatmul, in_blocks, sides

LOADS_BYTES = 16, 8, 4  # along the depth, the best first
# Along rows: sums of more bytes would take local memory that is not there.
LOADS_BYTES_ROWS = 8, 4
FOUR = 4  # of the depth, at once


class SkinnyDots(SkinnyMatmul):
    """One or two rows of signed bytes, whose products are summed in int32."""

    name = "skinny_dots"
    MOST = 2
    ON_GPU = 1.0  # four products an instruction

    def applies(self, problem: MatmulProblem, info) -> bool:
        p = problem
        signed = p.a == p.b == int8 and p.acc == int32
        return signed and super().applies(p, info) and self._width(p) > 0

    def cost(self, problem: MatmulProblem, info) -> float:
        slower = 1.0 if info.kind == "gpu" and dots.at_once(info) else 4.0
        return slower * super().cost(problem, info)

    def computes(self, problem: MatmulProblem, info) -> str | None:
        return None

    def _width(self, p: MatmulProblem) -> int:
        """Bytes of a load; 0 where nothing can be read by words."""
        long, short, rows, _, _ = sides(p)
        if not short.in_fours(short.depth, short.row, p.k):
            return 0
        return self._loads(long, rows, p.k)[1]

    def _loads(self, long: Side, rows: int, k: int) -> tuple[bool, int]:
        along_k = long.along_k
        unit, other, count = (
            (long.depth, long.row, k) if along_k else (long.row, long.depth, rows)
        )  # fmt: skip
        for width in LOADS_BYTES if along_k else LOADS_BYTES_ROWS:
            if unit == 1 and not any(n % width for n in (other, long.offset, count, *long.batch)):
                return along_k, width
        return along_k, 0

    def _shares(
        self, p: MatmulProblem, info, nbytes: float, rows: int, along_k: bool, width: int
    ) -> list[Share]:
        found = super()._shares(p, info, nbytes, rows, along_k, width)
        return [share._replace(words=width / 8) for share in found]

    def _whole(self, long: Side, along_k: bool, width: int) -> int:
        return width if along_k else FOUR

    def _ahead(
        self, p: MatmulProblem, info, short_rows: int, share: Share, along_k: bool, slice_: int,
        near: int, computed: int,
    ) -> Ahead:  # fmt: skip
        if info.kind == "cpu":
            return Ahead(0, 0)
        gather = 1 if along_k else FOUR
        early, blocks = in_blocks(ceil_div(slice_, share.step * gather), self.EARLY // gather)
        return Ahead(early * gather, blocks)

    def _helpers(self, info) -> tuple[str, ...]:
        return (dots.helper(info),)

    def _options(self, info, arrives: bool) -> tuple[str, ...]:
        return tuple({*dots.options(info), *super()._options(info, arrives)})

    def _multiplying(self, long: Side, short: Side, acc: DType, along_k: bool, width: int) -> str:
        return defines(WORDS=width // 4) + cl_source("matmul/skinny_dots.cl")
