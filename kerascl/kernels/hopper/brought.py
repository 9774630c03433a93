"""What epilogues read at their results' own places, brought by TMA: see wgmma_brought.cl."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad
from kerascl.kernels.contract.plan import Arg, Scalar
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.hopper.tiles import Shape
from kerascl.kernels.hopper.tma import map_words

OPERANDS = 2  # as many as a lane has registers for
ROWS, BYTES = 64, 128  # of a part: rows, and bytes of each
IN_RING = 2  # parts of a team


def _tiles(load: VectorLoad) -> int:
    """Columns of a part, in tiles of eight."""
    return BYTES // (8 * load.dtype.itemsize)


def bring(epilogue: Epilogue, shape: Shape, columns: int) -> Epilogue:
    """The epilogue of a product of so many columns; if the teams of `shape` can have all brought
    that it reads at its results' own places, these loads are marked so.  What else a lane reads for
    each row it would wait for, one vector after the other."""
    loads, nbytes = epilogue.reads, [load.dtype.itemsize for load in epilogue.reads]
    parts = sum(shape.blocks * shape.bn * n // BYTES for n in nbytes)
    fit = (
        shape.consumers == shape.pingpong > 1
        and epilogue.has_vectors
        and len(loads) <= OPERANDS
        and all(load.period for load in epilogue.loads if load.at)
        and parts % (2 * IN_RING) == 0
        and all(n in (2, 4) and columns * n % 16 == 0 and shape.bn * n % BYTES == 0 for n in nbytes)
    )
    if not fit:
        return epilogue
    marked = (replace(x, brought=loads.index(x)) if x in loads else x for x in epilogue.loads)
    return replace(epilogue, loads=tuple(marked))


@dataclass(frozen=True)
class Brought:
    """The loads of an epilogue that wgmma_brought.cl brings for products of `rows` (of all
    batches) and `columns`."""

    loads: tuple[VectorLoad, ...]
    rows: int
    columns: int

    @staticmethod
    def ring(shape: Shape) -> Shape:
        """The tile whose ring of operands leaves room for the parts of all teams."""
        room = shape.pingpong * IN_RING * ROWS * BYTES
        return replace(shape, stages=shape.stages - ceil_div(room, 128 * (shape.bm + shape.bn)))

    @property
    def args(self) -> tuple[Arg, ...]:
        """Of each operand the words of its tensor map, in units of 16 bits."""
        return tuple(Scalar("ulong8", self._words(load)) for load in self.loads)

    def _words(self, load: VectorLoad) -> tuple[int, ...]:
        nbytes = self.columns * load.dtype.itemsize
        sizes, box = (nbytes // 2, self.rows), (BYTES // 2, ROWS)
        return map_words(dtypes.bfloat16, sizes, (nbytes,), box)

    def source(self, shape: Shape) -> str:
        """wgmma_brought.cl and what it wants in front."""
        count = range(len(self.loads))
        parts = sum(shape.bn // 8 // _tiles(load) for load in self.loads)
        lines = [
            f"PANEL_ROWS {ROWS}",
            f"IN_RING {IN_RING}",
            f"BROUGHT_COUNT {len(count)}",
            f"BROUGHT_PARTS {parts}",
            "BROUGHT_PARAMS " + " ".join(f", const ulong8 mapBrought{k}" for k in count),
            "BROUGHT_OPERANDS(DO) " + " ".join(f"DO({k})" for k in count),
        ]
        for k, load in enumerate(self.loads):
            # Of operands before it those parts at the same column, too.
            before = (
                f"((j) + {_tiles(x) - (o >= k)}) / {_tiles(x)}" for o, x in enumerate(self.loads)
            )
            lines += [
                f"BROUGHT_ITEM{k} {load.dtype.itemsize}",
                f"BROUGHT_POINTER{k} ({load.pointer})",
                f"BROUGHT_PART{k}(j) ({' + '.join(before)})",
            ]
        defines = "".join(f"#define {line}\n" for line in lines)
        return defines + cl_source("hopper/wgmma_brought.cl")
