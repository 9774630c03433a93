"""Products with a side of two to eight on NVIDIA's matrix units: text for a few at once."""

from __future__ import annotations

from kerascl.dtypes import DType
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source, defines
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.matmul.skinny import (
    THREADS,
    Ahead,
    Share,
    Side,
    SkinnyMatmul,
    in_blocks,
    sides,
)
from kerascl.kernels.tuning import machine
from kerascl.kernels.units.nv_sm80 import UNIT

WARPS = THREADS // 32
COLUMNS = 8  # of the instruction: rows of the short operand
LOAD_BYTES = 16, 8, 4  # of a work-item, the best first
LEAST_LOCAL = 16 * 1024  # bytes, for the sums and a share of the short side


class SkinnyMma(SkinnyMatmul):
    """Two to eight rows by mma.sync: a warp multiplies what its lanes load, of 16-bit floats, of
    float32 by TF32, or of 8-bit integers.  The depth is a multiple of what a warp takes."""

    name = "mma_skinny"
    INNER = False
    APART = 128
    ADDING = 24, 3  # Llama's tokens, eight at once, on an H100
    EARLY_BYTES = 64  # of a work-item's loads that are under way at once, where two can be
    READS = 0.9  # of the memory's rate

    def applies(self, problem: MatmulProblem, info) -> bool:
        p = problem
        taken = UNIT.takes(p.a, p.b, p.acc, p.precision)
        if info.matrix not in UNIT.matrix or not taken:
            return False
        if not super().applies(p, info) or min(p.m, p.n) < 2 or p.k == 0:
            return False
        long, _, rows, _, _ = sides(p)
        return info.local_mem_bytes >= LEAST_LOCAL and self._fits(long, rows, p.k) > 0

    def cost(self, problem: MatmulProblem, info) -> float:
        p, rates = problem, machine.of(info)
        long = max(p.m, p.n) * p.k * p.batches
        busy = min(1.0, max(1, long // self.LEAST) / info.compute_units)
        return rates.launch + rates.begin + rates.moving(long * p.a.itemsize, self.READS) / busy

    def computes(self, problem: MatmulProblem, info) -> str | None:
        return None

    def _fits(self, long: Side, rows: int, k: int) -> int:
        """Elements of the widest load that all rows allow; 0 where none does."""
        along_k, size = long.along_k, long.dtype.itemsize
        unit, other, count = (
            (long.depth, long.row, k) if along_k else (long.row, long.depth, rows)
        )  # fmt: skip
        for width in (nbytes // size for nbytes in LOAD_BYTES):
            pairs = along_k or (width > 1 and k % (4 * _gather(long.dtype)) == 0)
            whole = not any(n % width for n in (other, long.offset, count, *long.batch))
            warps = not along_k or (k % (4 * width) == 0 and width * size == max(LOAD_BYTES))
            if unit == 1 and whole and pairs and warps:
                return width
        return 0

    def _loads(self, long: Side, rows: int, k: int) -> tuple[bool, int]:
        return long.along_k, self._fits(long, rows, k)

    def _short_rows(self, count: int) -> int:
        return COLUMNS

    def _whole(self, long: Side, along_k: bool, width: int) -> int:
        return 4 * (width if along_k else _gather(long.dtype))

    def _shares(
        self, p: MatmulProblem, info, nbytes: float, rows: int, along_k: bool, width: int
    ) -> list[Share]:
        if along_k:  # the rows of all warps share what is copied of the short side
            return [self._share(16, width, lanes, 4 * width / 2, p) for lanes in (8, 4, 2, 1)]
        widths = (n for n in (nbytes // p.a.itemsize for nbytes in LOAD_BYTES) if 2 <= n <= width)
        return [self._share(COLUMNS * n, n, WARPS, 4, p) for n in widths]

    def _share(self, rows: int, width: int, lanes: int, deep: float, p: MatmulProblem) -> Share:
        """Warps of so many rows, and so `deep` with each load, share the depth by `lanes`."""
        words = width * p.a.itemsize / 8
        return Share(rows * WARPS // lanes, width, lanes, int(deep * lanes), words)

    def _pitch(self, stage: int, dtype: DType, along_k: bool) -> int:
        # Rows lie so that what lanes of eight of them, or two, read at once is in all banks.
        apart = (64, 128) if along_k else (32, 64)
        nbytes = round_up(stage * dtype.itemsize - apart[0], apart[1]) + apart[0]
        return nbytes // dtype.itemsize

    def _ahead(
        self, p: MatmulProblem, info, short_rows: int, share: Share, along_k: bool, slice_: int,
        near: int, computed: int,
    ) -> Ahead:  # fmt: skip
        gather = 2 if along_k else _gather(p.a)
        deep = share.step * gather
        most = max(2, self.EARLY_BYTES // (share.width * p.a.itemsize * gather))
        early, blocks = in_blocks(ceil_div(slice_, deep), max(1, min(most, near // deep)))
        return Ahead(early * gather, blocks)

    def _multiplying(self, long: Side, short: Side, acc: DType, along_k: bool, width: int) -> str:
        per = 4 // long.dtype.itemsize
        wide = width if along_k else _gather(long.dtype)
        names = dict(PER=per, WORDS=width // per, S_WIDE=wide, S_WORDS=wide // per)
        macro = UNIT.fragments[long.dtype].macro
        return macro + defines(**names) + cl_source("units/skinny_mma.cl")


def _gather(dtype: DType) -> int:
    """Depths of which a lane holds two words of a product."""
    return 8 // dtype.itemsize
