"""What epilogues read at their results' own places, brought by TMA: see wgmma_brought.cl."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad
from kerascl.kernels.contract.plan import Arg, Scalar
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.hopper.tiles import Shape
from kerascl.kernels.hopper.tma import map_words

OPERANDS = 2  # as many as a lane has registers for
BLOCK = 64  # rows of a warpgroup's block


def _rows(load: VectorLoad, shape: Shape) -> int:
    """Rows of a tile that a stage of the ring holds."""
    return 128 * (shape.bm + shape.bn) // (shape.bn * load.dtype.itemsize)


def _fits(load: VectorLoad, shape: Shape, columns: int) -> bool:
    """Whether TMA can walk rows of so many columns, and stages hold whole blocks."""
    nbytes = load.dtype.itemsize
    if nbytes not in (2, 4) or columns * nbytes % 16 or shape.bn * nbytes % 128:
        return False
    rows = _rows(load, shape)
    return rows % BLOCK == 0 and shape.bm % rows == 0 and rows <= 256


def bring(epilogue: Epilogue, shape: Shape, columns: int) -> Epilogue:
    """The epilogue of a product of so many columns; if TMA can bring all that it reads at its
    results' own places, and half of the ring is left for products, these loads are `brought`."""
    loads = epilogue.reads
    fit = shape.consumers == shape.pingpong > 1 and epilogue.has_vectors
    if not fit or len(loads) > OPERANDS or not all(_fits(x, shape, columns) for x in loads):
        return epilogue
    if 2 * sum(shape.bm // _rows(x, shape) for x in loads) > shape.stages + 1:
        return epilogue
    marked = (replace(x, brought=loads.index(x)) if x in loads else x for x in epilogue.loads)
    return replace(epilogue, loads=tuple(marked))


@dataclass(frozen=True)
class Brought:
    """The loads of an epilogue that wgmma_brought.cl brings for products of `rows` (of all
    batches) and `columns`."""

    loads: tuple[VectorLoad, ...]
    shape: Shape
    rows: int
    columns: int

    @property
    def _stages(self) -> list[tuple[int, int]]:
        """(operand, first row) of each stage, those first that are handed back first."""
        parts = []
        for k, load in enumerate(self.loads):
            rows = _rows(load, self.shape)
            parts += [(row + rows, k, row) for row in range(0, self.shape.bm, rows)]
        return [(k, row) for _, k, row in sorted(parts)]

    @property
    def args(self) -> tuple[Arg, ...]:
        """Of each operand the words of its tensor map, in units of 16 bits."""
        return tuple(Scalar("ulong8", self._words(load)) for load in self.loads)

    def _words(self, load: VectorLoad) -> tuple[int, ...]:
        nbytes = self.columns * load.dtype.itemsize
        sizes, box = (nbytes // 2, self.rows), (64, _rows(load, self.shape))
        return map_words(dtypes.bfloat16, sizes, (nbytes,), box)

    @property
    def source(self) -> str:
        """wgmma_brought.cl and what it wants in front."""
        stages, count = self._stages, range(len(self.loads))
        lines = [
            f"BROUGHT {len(stages)}",
            f"BROUGHT_COUNT {len(count)}",
            "BROUGHT_PARAMS " + " ".join(f", const ulong8 mapBrought{k}" for k in count),
            "BROUGHT_STAGES(DO) " + " ".join(f"DO({k}, {row})" for k, row in stages),
            "BROUGHT_OPERANDS(DO) " + " ".join(f"DO({k})" for k in count),
        ]
        for k, load in enumerate(self.loads):
            rows = _rows(load, self.shape)
            at, *later = (
                str(stages.index((k, row // rows * rows)))
                for row in range(0, self.shape.bm, BLOCK)
            )
            for block, stage in enumerate(later, 1):
                at = f"(i) < {block} ? {at} : {stage}"
            lines += [
                f"BROUGHT_ITEM{k} {load.dtype.itemsize}",
                f"BROUGHT_POINTER{k} ({load.pointer})",
                f"BROUGHT_AT{k}(i) ({at})",
            ]
        defines = "".join(f"#define {line}\n" for line in lines)
        return defines + cl_source("hopper/wgmma_brought.cl")
