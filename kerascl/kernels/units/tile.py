"""Products on matrix units that a sub-group drives: GEMM and every kind of convolution, for
bfloat16, float16 and float32, in precision "high" where a unit rounds it (NVIDIA's TF32, AMD's
XF32) or two bfloat16 are made of it (fragment.py, `threefold`); GEMM of int8, too.

OpenCL C and an instruction (fragment.py), built as any other source.  The recipe (fragments in
registers twice, operands through a ring of tiles in local memory) is that of the CUTLASS library's
kernels for mma.sync.  float32 as sums of two TF32 is not here: it was no faster than gemm_tile.cl,
and makes NaN of infinities.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from kerascl.dtypes import DType, bfloat16, float32
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.matmul.split_k import (
    partial_epilogue,
    reduction_wait,
    slice_counts,
    vector_reduction_launch,
)
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import known
from kerascl.kernels.units.fragment import Unit
from kerascl.kernels.units.nv_sm80 import UNIT as NVIDIA


@dataclass(frozen=True)
class FragmentTile:
    """A work-group's tile bm x bn, a sub-group's wm x wn, the bytes of depth in a stage, the number
    of stages and the lanes of a sub-group.  `efficiency` is the share of the instruction's rate
    that a large problem of 16-bit floats reaches, four fifths of it for float32."""

    bm: int
    bn: int
    wm: int
    wn: int
    efficiency: float
    depth: int = 64
    stages: int = 3
    lanes: int = 32

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.bm // self.wm * (self.bn // self.wn) * self.lanes

    @property
    def name(self) -> str:
        """Its rows and columns, as solvers' names have them."""
        return f"{self.bm}x{self.bn}"

    @property
    def resident(self) -> int:
        """Work-groups that one compute unit holds."""
        return max(2, 128 // self.threads)

    def bk(self, dtype: DType) -> int:
        """Elements of depth in one stage."""
        return self.depth // dtype.itemsize

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: all stages of both operands, or a band of results on its way out
        where that takes more."""
        ring = self.stages * (self.bm + self.bn) * self.depth
        return max(ring, self.wm * (self.bn + 8) * 4 + self.wm * 8)

    def time(
        self, m, n, k, batch: int, splits: int, info, dtype: DType, copies: float = 0.0,
        share: float = 1.0, rate: float = 0.0, products: int = 1,
    ) -> float:
        """Microseconds without the first launch, where `share` of the units' rate can be reached:
        of `rate` multiply-adds a clock of a compute unit, if it is not the machine's.  A product of
        float32 is made of so many `products` of bfloat16.

        A step of the depth takes as long as its products and its `copies` (in clocks), or as until
        its operands are there, which other groups of the compute unit hide."""
        rates, units, area = machine.of(info), info.compute_units, self.bm * self.bn
        groups = ceil_div(m, self.bm) * ceil_div(n, self.bn) * batch * splits
        reached = self.efficiency * share
        reached *= 0.8 if dtype.itemsize == 4 and products == 1 else 1.0 / products
        # Of a clock and compute unit; CPUs, on which tests run the kernels, have no such units.
        operands = bfloat16 if products > 1 else dtype
        known = (rates.matrix_rate(operands) or rates.rate(dtype)) / units / rates.clock
        rate = (rate or known) * reached
        if products > 1:
            lanes = rates.rate(dtype) / units / rates.clock
            copies += PARTS * (self.bm + self.bn) * self.bk(dtype) / lanes
        steps = ceil_div(ceil_div(k, splits), self.bk(dtype))
        # No products hide the copies that fill the ring.
        filling = area * TILE + self.stages * copies
        one = filling + steps * (area * self.bk(dtype) / rate + copies)
        whole, rest = divmod(ceil_div(groups, units), self.resident)
        wait = steps * (STEP + WAIT * copies / self.threads)
        alone = 1.3 if rest == 1 else rest  # one does not fill a compute unit
        time = whole * max(self.resident * one, wait) + (max(alone * one, wait) if rest else 0.0)
        return rates.clocks(time) + reduction_wait(splits, info)


# In clocks of a compute unit, measured on an H200: to begin and store a tile, for each of its
# results; until the operands of a step are there; a convolution's copy by bytes, and how many times
# that its thread waits for it; one element of two bytes that each thread of a product's group
# gathers, as the next waits for it.
TILE = 0.44
STEP = 484
COPY = {16: 0.0, 8: 0.121, 4: 0.352, 2: 1.21}
WAIT = 100
PARTS = 20  # instructions that make two bfloat16 of a float32, counted
GATHER = 121

# Of equal costs, where memory takes longer, the first is taken: more of them are under way.
TILES = (
    FragmentTile(32, 32, 32, 32, 0.268),
    FragmentTile(32, 128, 32, 32, 0.376),
    FragmentTile(128, 32, 32, 32, 0.358),
    FragmentTile(64, 64, 32, 32, 0.429),
    FragmentTile(64, 128, 32, 64, 0.519),
    FragmentTile(128, 64, 64, 32, 0.501),
    FragmentTile(128, 128, 64, 64, 0.608),
)


@dataclass(frozen=True)
class Side:
    """How one operand is read.

    Attributes:
        along_k: its tile holds rows of k.
        copy: elements of one copy.
        style: "FULL" when no copy is ever short or left out (but for rows that are clamped),
            "SOME" when copies are whole or left out, "PART" else.
    """

    along_k: bool
    copy: int
    style: str = "SOME"


ELEMENTS = {4: "float", 2: "ushort", 1: "uchar"}  # what operands are, by bytes
LEAST_COPY = 4  # bytes: of elements of one byte narrower ones are not worth their instructions


def widest_copy(dtype: DType, *multiples: int) -> int:
    """The most elements that one copy of at most 16 bytes may take where everything that moves
    it (strides, offsets) is among `multiples`."""
    wide = 16 // dtype.itemsize
    while wide > 1 and any(v % wide for v in multiples):
        wide //= 2
    return wide


def operand_defines(
    unit: Unit, tile: FragmentTile, dtype: DType, a: Side, b: Side, m_fast: bool
) -> str:
    """The macros that say how both operands are tiled and copied, and those of the instruction.

    Args:
        m_fast: whether rows that are neighbours are so in memory of the result, too.
    """
    size = dtype.itemsize
    names = dict(
        BM=tile.bm, BN=tile.bn, BK=tile.bk(dtype), WM=tile.wm, WN=tile.wn, STAGES=tile.stages,
        EB=size, ELEMENT=ELEMENTS[size],
        A_ALONG_K=int(a.along_k), B_ALONG_K=int(b.along_k), A_CE=a.copy, B_CE=b.copy,
        A_COPY=f"{a.style}{a.copy * size}", B_COPY=f"{b.style}{b.copy * size}",
        A_WHOLE=int(a.style == "FULL"), B_WHOLE=int(b.style == "FULL"),
        M_FAST=int(m_fast), SETS=1 if unit.fragments[dtype].products > 1 else unit.sets,
    )  # fmt: skip
    return defines(**names) + unit.fragments[dtype].defines


def _shaped(tile: FragmentTile, unit: Unit, gathers: bool) -> FragmentTile:
    """A tile whose sub-groups' tiles suit a unit's registers."""
    f = next(iter(unit.fragments.values()))
    rows, columns = unit.widest[gathers]
    wm, wn = min(tile.wm, rows), min(tile.wn, columns)
    tile = dataclasses.replace(tile, stages=unit.stages, lanes=unit.lanes, wm=wm, wn=wn)
    while tile.threads < unit.least and (wm > f.m or wn > f.n):
        wm, wn = (wm // 2, wn) if wm > f.m and (wm >= wn or wn <= f.n) else (wm, wn // 2)
        tile = dataclasses.replace(tile, wm=wm, wn=wn)
    return tile


class FragmentSolver(Solver):
    """What the solvers for GEMM and convolution share: a tile and how often depth is split.

    Attributes:
        gathers: whether addresses take registers, as those of convolutions do.
    """

    gathers: ClassVar[bool]

    def __init__(self, tile: FragmentTile, split: int | None = None, unit: Unit = NVIDIA):
        self.tile = _shaped(tile, unit, self.gathers)
        self.split = split
        self.unit = unit
        self.name = f"{unit.name}{tile.name}" + (f"s{split}" if split else "")

    def applies(self, problem, info) -> bool:
        p, tile, unit = problem, self.tile, self.unit
        if info.matrix not in unit.matrix or not unit.takes(p.a, p.b, p.acc, p.precision):
            return False
        sides, bk, copies = self._sides(p), tile.bk(p.a), 0
        a, b = sides
        for side, rows in zip(sides, (tile.bm, tile.bn), strict=True):
            # All copies of a work-item begin in one row, or at one place of the depth.
            if tile.threads % ((bk if side.along_k else rows) // side.copy):
                return False
            copies += ceil_div(rows * bk // side.copy, tile.threads)
        # Registers for them; to make two numbers of one takes some, too.
        spare = 2 if self._products(p) > 1 else 1
        if copies * spare > unit.copies:
            return False
        # Narrow copies need registers that large tiles do not leave.
        narrow = min(a.copy, b.copy) * p.a.itemsize
        if p.a.itemsize == 1 and narrow < LEAST_COPY:
            return False
        most = 4096 if narrow > 4 else 2048 if narrow > 2 else 1024
        if narrow < 16 and tile.wm * tile.wn > min(most, unit.largest[1]):
            return False
        # Where all work-items have one row at a time, it is the same for all lanes.
        rows = tile.bm * bk // tile.threads if tile.threads > bk else 1
        if a.along_k and a.copy == 1 and rows * spare > unit.rows:
            return False
        room = tile.local_bytes <= info.local_mem_bytes
        if not room or tile.threads > info.max_work_group_size:
            return False
        return known.available(unit, info, p.a, self._kind(p))

    def cost(self, problem, info) -> float:
        time = self._time(problem, info, self._splits(problem, info))
        rates = machine.of(info)
        return rates.launch + rates.begin + time

    def _kind(self, p) -> str:
        """Which of the self-test's kinds of kernels it is."""
        return "product"

    def _sizes(self, p) -> tuple[int, int, int, int]:
        """(m, n, k, number of products) of the GEMM or the implicit ones."""
        raise NotImplementedError

    def _sides(self, p) -> tuple[Side, Side]:
        raise NotImplementedError

    def _time(self, p, info, splits: int) -> float:
        """Microseconds without the first launch."""
        raise NotImplementedError

    def _share(self, info) -> float:
        """Of the units' rate, that is reached on a device."""
        return self.unit.matrix.get(info.matrix, 1.0)

    def _products(self, p) -> int:
        """Of bfloat16, that one of a problem's elements is made of."""
        return self.unit.fragments[p.a].products

    @property
    def _kernel(self) -> str:
        """The text of the kernel, behind the facts of a problem."""
        return cl_source(self.unit.moves) + cl_source("units/mma_tile.cl")

    def _splits(self, p, info) -> int:
        depth, step = self._sizes(p)[2], self.tile.bk(p.a)
        counts = slice_counts(self.split, p.total, float32, depth, step)
        return min(counts, key=lambda s: self._time(p, info, s))

    def _plan(self, p, info, epilogue, index, m_fast, launch_of) -> Plan:
        """`launch_of(source_head, splits, slice, inner)` makes the launch."""
        tile = self.tile
        k, bk = self._sizes(p)[2], tile.bk(p.a)
        slice_ = round_up(ceil_div(k, self._splits(p, info)), bk)
        splits = ceil_div(k, slice_)
        inner = epilogue
        if splits > 1:
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        head = (
            prelude(index, ACC=p.acc)
            + operand_defines(self.unit, tile, p.a, *self._sides(p), m_fast)
            + inner.defines
        )
        launch = launch_of(head, splits, slice_, inner)
        if splits == 1:
            return Plan([launch])
        reduction = vector_reduction_launch(p.total, splits, p.acc, index, epilogue, info)
        return Plan([launch, reduction], [splits * p.total * p.acc.itemsize])


def solvers(kind: type[FragmentSolver], *splits: int | None) -> tuple[FragmentSolver, ...]:
    """One of this kind for each unit, each tile that its registers hold, and each number of slices;
    None for what suits the problem."""
    return tuple(
        kind(tile, split, unit)
        for unit in known.UNITS for tile in TILES for split in splits
        if tile.wm * tile.wn <= unit.largest[kind.gathers]
    )  # fmt: skip
