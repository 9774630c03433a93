"""Products on NVIDIA's matrix units by mma.sync (compute capability 8.0 and more): GEMM and every
kind of convolution, for float32 as TF32 (precision "high"), bfloat16 and float16.  float32 as sums
of two TF32 is not here: it was no faster than gemm_tile.cl, and makes NaN of infinities.

OpenCL C with inline PTX, built as any other source.  The recipe (fragments in registers twice,
operands by cp.async into a swizzled ring of tiles) is that of the CUTLASS library's kernels for
this generation; cl/mma_tile.cl explains the layouts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.conv_problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    gemm_shape,
    kind_defines,
    product_params,
)
from kerascl.kernels.gemm_problem import GemmProblem, problem_index, stride_args
from kerascl.kernels.solver import Epilogue, Launch, Plan, Ref, Scalar, Solver, cl_source, prelude
from kerascl.kernels.tiles import (
    ceil_div,
    fixed_time,
    fold_vectors_latency,
    fold_vectors_launch,
    partial_epilogue,
    round_up,
)

MAX_PARTIAL_BYTES = 128 * 2**20
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
UNITS = ("mma80", "wgmma90")  # values of DeviceInfo.matrix that offer mma.sync

_TYPES = {dtypes.float32: "tf32", dtypes.bfloat16: "bf16", dtypes.float16: "f16"}


@dataclass(frozen=True)
class Tile:
    """A work-group's tile bm x bn, a warp's wm x wn, the bytes of depth in a stage and the number
    of stages.  `speed` is relative to gemm_tile.cl's largest tile, for TF32."""

    bm: int
    bn: int
    wm: int
    wn: int
    speed: float
    depth: int = 64
    stages: int = 3

    @property
    def threads(self) -> int:
        return self.bm // self.wm * (self.bn // self.wn) * 32

    @property
    def name(self) -> str:
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
        ring = self.stages * (self.bm + self.bn) * self.depth
        return max(ring, self.wm * (self.bn + 8) * 4 + self.wm * 8)

    def time(
        self, m, n, k, batch: int, splits: int, info, dtype: DType, copies: float = 0.0
    ) -> float:
        """A relative time, in the unit of tiles.Tile.time.  A step of the depth takes as long as
        its products and its `copies`, or as until its operands are there, which other groups of
        the compute unit hide.  Fitted to measurements on an H200, within 20 %."""
        units, area = info.compute_units, self.bm * self.bn
        groups = ceil_div(m, self.bm) * ceil_div(n, self.bn) * batch * splits
        speed = self.speed * (1.0 if dtype.itemsize == 4 else 2.5)
        steps = ceil_div(ceil_div(k, splits), self.bk(dtype))
        # No products hide the copies that fill the ring.
        filling = area * TILE + self.stages * copies
        one = filling + steps * (area * self.bk(dtype) / speed + copies)
        whole, rest = divmod(ceil_div(groups, units), self.resident)
        wait = steps * (STEP + WAIT * copies / self.threads)
        alone = 1.3 if rest == 1 else rest  # one does not fill a compute unit
        time = whole * max(self.resident * one, wait) + (max(alone * one, wait) if rest else 0.0)
        fold = 0.2 * m * n * batch * (splits + 2) / units
        return time + (fold + fixed_time(fold_vectors_latency(splits), info) if splits > 1 else 0.0)


# In the unit of tiles.Tile.time: to begin and store a tile, for each of its results; until the
# operands of a step are there (0.25 us on an H200); a convolution's copy by bytes (0.2 ns for four
# bytes) and how much longer its thread waits for it; one element of two bytes that each thread of a
# product's group gathers (60 ns, as the next waits for it).
TILE = 40
STEP = 4.4e4
COPY = {16: 0, 8: 11, 4: 32, 2: 110}
WAIT = 100
GATHER = 1.1e4

TILES = (
    Tile(128, 128, 64, 64, 3.4),
    Tile(128, 64, 64, 32, 2.8),
    Tile(64, 128, 32, 64, 2.9),
    Tile(64, 64, 32, 32, 2.4),
    Tile(128, 32, 32, 32, 2.0),
    Tile(32, 128, 32, 32, 2.1),
    Tile(32, 32, 32, 32, 1.5),
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


def _widest(dtype: DType, *multiples: int) -> int:
    """The most elements that one copy of at most 16 bytes may take where everything that moves
    it (strides, offsets) is among `multiples`."""
    wide = 16 // dtype.itemsize
    while wide > 1 and any(v % wide for v in multiples):
        wide //= 2
    return wide


def gemm_side(
    dtype: DType, strides: tuple[int, ...], offset: int, row: int, depth: int, rows: int, k: int,
    bk: int,
) -> Side:  # fmt: skip
    """The side of a GEMM operand with strides (batch.., row, column), whose row (m or n) and
    depth strides and sizes are given."""
    along_k = depth == 1 or (row != 1 and abs(depth) < abs(row))
    unit, other, length = (depth, row, k) if along_k else (row, depth, rows)
    copy = _widest(dtype, offset, other, *strides[:-2]) if unit == 1 else 1
    if length % copy:
        return Side(along_k, copy, "PART")
    return Side(along_k, copy, "SOME" if k % bk else "FULL")


def conv_sides(p: ConvProblem, bk: int) -> tuple[Side, Side]:
    """Both sides of a convolution."""
    channels, filters, last = p.x_shape[-1], p.w_shape[-1], not p.channels_first
    depth, wide = p.w_shape[-2], p.w_shape[-1] // p.groups
    by_c = _widest(p.a, channels, depth)
    by_f = _widest(p.a, filters, wide)
    g = gemm_shape(p)
    tap = g.channels if p.kind == DATA_GRAD else g.k
    style = "SOME" if tap % bk else "FULL"
    if p.kind == FORWARD:
        return Side(True, by_c if last else 1), Side(False, by_f, style)
    if p.kind == DATA_GRAD:
        return Side(True, by_f if last else 1), Side(True, by_f, style)
    if last:
        return Side(False, by_c), Side(False, by_f, style)
    return Side(True, 1), Side(True, 1, style)


def takes(dtype: DType, other: DType, acc: DType, precision: str) -> bool:
    """Whether the kernels multiply such inputs as exactly as asked."""
    if dtype is not other or acc is not dtypes.float32 or dtype not in _TYPES:
        return False
    return dtype is not dtypes.float32 or precision == "high"


def _defines(tile: Tile, dtype: DType, a: Side, b: Side, m_fast: bool) -> str:
    size = dtype.itemsize
    names = dict(
        BM=tile.bm, BN=tile.bn, BK=tile.bk(dtype), WM=tile.wm, WN=tile.wn, STAGES=tile.stages,
        EB=size, ELEMENT="float" if size == 4 else "ushort", MMA_TYPE=f'"{_TYPES[dtype]}"',
        A_ALONG_K=int(a.along_k), B_ALONG_K=int(b.along_k), A_CE=a.copy, B_CE=b.copy,
        A_COPY=f"{a.style}{a.copy * size}", B_COPY=f"{b.style}{b.copy * size}",
        A_WHOLE=int(a.style == "FULL"), B_WHOLE=int(b.style == "FULL"),
        M_FAST=int(m_fast),
    )  # fmt: skip
    return "".join(f"#define {k} {v}\n" for k, v in names.items())


class _Mma(Solver):
    """What the solvers for GEMM and convolution share: a tile and how often depth is split."""

    def __init__(self, tile: Tile, split: int | None = None):
        self.tile = tile
        self.split = split
        self.name = f"mma{tile.name}" + (f"s{split}" if split else "")

    def applies(self, problem, info) -> bool:
        p, tile = problem, self.tile
        if info.matrix not in UNITS or not takes(p.a, p.b, p.acc, p.precision):
            return False
        # Narrow copies need registers that large tiles do not leave.
        narrow = min(side.copy * p.a.itemsize for side in self._sides(p))
        if narrow < 16 and tile.wm * tile.wn > (
            4096 if narrow > 4 else 2048 if narrow > 2 else 1024
        ):
            return False
        return tile.local_bytes <= info.local_mem_bytes and tile.threads <= info.max_work_group_size

    def cost(self, problem, info) -> float:
        splits = self._splits(problem, info)
        return self._time(problem, info, splits)

    def _sizes(self, p) -> tuple[int, int, int, int]:
        """(m, n, k, number of products) of the GEMM or the implicit ones."""
        raise NotImplementedError

    def _sides(self, p) -> tuple[Side, Side]:
        raise NotImplementedError

    def _time(self, p, info, splits: int) -> float:
        raise NotImplementedError

    def _splits(self, p, info) -> int:
        k, bk = self._sizes(p)[2], self.tile.bk(p.a)
        room = max(1, MAX_PARTIAL_BYTES // (p.total * 4))
        most = min(room, ceil_div(k, bk), 256)
        if self.split is not None:
            return max(1, min(self.split, most))
        choices = [s for s in SPLITS if s == 1 or (s <= most and k // s >= 8 * bk)]
        return min(choices, key=lambda s: self._time(p, info, s))

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
            prelude(index, ACC=p.acc) + _defines(tile, p.a, *self._sides(p), m_fast) + inner.defines
        )
        launch = launch_of(head, splits, slice_, inner)
        if splits == 1:
            return Plan([launch])
        fold = fold_vectors_launch(p.total, splits, p.acc, index, epilogue)
        return Plan([launch, fold], [splits * p.total * p.acc.itemsize])


class MmaGemm(_Mma):
    """GEMM with any strides."""

    def _sizes(self, p: GemmProblem):
        return p.m, p.n, p.k, p.batches

    def _sides(self, p: GemmProblem):
        bk, (row, a_depth), (b_depth, col) = self.tile.bk(p.a), p.a_strides[-2:], p.b_strides[-2:]
        a = gemm_side(p.a, p.a_strides, p.a_offset, row, a_depth, p.m, p.k, bk)
        return a, gemm_side(p.b, p.b_strides, p.b_offset, col, b_depth, p.n, p.k, bk)

    def _time(self, p: GemmProblem, info, splits: int) -> float:
        tile, bk, units = self.tile, self.tile.bk(p.a), info.compute_units
        time = tile.time(p.m, p.n, p.k, p.batches, splits, info, p.a)
        sides = tuple(zip(self._sides(p), (tile.bm, tile.bn), strict=True))
        # Narrow copies cost issue slots; two-byte ones also wait for memory.
        narrow = sum(16 // (side.copy * p.a.itemsize) - 1 for side, _ in sides)
        alone = sum(rows for side, rows in sides if side.copy * p.a.itemsize == 2)
        groups = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * p.batches * splits
        rounds = ceil_div(groups, 2 * units) * ceil_div(ceil_div(p.k, splits), bk)
        return time * (1 + 0.08 * narrow) + GATHER * rounds * alone * bk / tile.threads

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        p, tile, index = problem, self.tile, problem_index(problem)

        def launch_of(head, splits, slice_, inner):
            source = (
                head
                + cl_source("gemm_simt.cl")
                + cl_source("mma_gemm.cl")
                + cl_source("mma_tile.cl")
            )
            ints = (p.m, p.n, p.k, splits, slice_, p.batch[1], p.batch[2])
            args = (
                Ref("a"), Ref("b"), *(Scalar("int", v) for v in ints), *stride_args(p, index),
                *inner.args,
            )  # fmt: skip
            groups = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * splits * p.batches
            return Launch(source, "mma_tile", args, (groups * tile.threads,), (tile.threads,))

        return self._plan(p, info, epilogue, index, False, launch_of)


def _divisor(n: int) -> tuple[int, int]:
    """(factor, shift) with i // n == i * factor >> shift for 0 <= i < 2**31 (Granlund and
    Montgomery, Division by invariant integers using multiplication)."""
    shift = 31 + (n - 1).bit_length()
    return -(-(1 << shift) // n), shift


class MmaConv(_Mma):
    """Convolutions and their gradients, channels first or last."""

    def _sizes(self, p: ConvProblem):
        g = gemm_shape(p)
        return g.m, g.n, g.k, g.classes * p.groups

    def _sides(self, p: ConvProblem):
        return conv_sides(p, self.tile.bk(p.a))

    def _time(self, p: ConvProblem, info, splits: int) -> float:
        g, tile = gemm_shape(p), self.tile
        # The classes of a strided data gradient differ in taps: each tap belongs to one of them.
        taps = math.prod(p.w_shape[:-2])
        depth = g.k if g.classes == 1 else ceil_div(taps * g.channels, g.classes)
        copies = sum(
            COPY[side.copy * p.a.itemsize] * rows * tile.bk(p.a) / side.copy
            for side, rows in zip(self._sides(p), (tile.bm, tile.bn), strict=True)
        )
        return tile.time(g.m, g.n, depth, g.classes * p.groups, splits, info, p.a, copies)

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, tile = problem, self.tile
        shape, index = gemm_shape(p), conv_index(p)
        m_fast = p.channels_first and p.kind != FILTER_GRAD

        def launch_of(head, splits, slice_, inner):
            tiles_m = ceil_div(shape.m, tile.bm)
            params = product_params(p, index, tiles_m, splits, slice_)
            if p.kind == FILTER_GRAD:
                out = (1,) * (3 - p.rank) + p.y_shape[1:-1]
                for name, n in (*zip(("div0", "div1", "div2"), out), ("divP", math.prod(out))):
                    factor, shift = _divisor(n)
                    params.add("uint", **{f"{name}Mul": factor}).add(
                        "int", **{f"{name}Shift": shift}
                    )
            source = (
                head
                + kind_defines(p)
                + params.source
                + cl_source("conv_axis.cl")
                + cl_source("conv_simt.cl")
                + cl_source("mma_conv.cl")
                + cl_source("mma_tile.cl")
            )
            args = (Ref("a"), Ref("b"), *params.args, *inner.args)
            groups = tiles_m * ceil_div(shape.n, tile.bn) * splits * p.groups * shape.classes
            return Launch(source, "mma_tile", args, (groups * tile.threads,), (tile.threads,))

        return self._plan(p, info, epilogue, index, m_fast, launch_of)


GEMM_SOLVERS: tuple[Solver, ...] = tuple(MmaGemm(tile) for tile in TILES)
CONV_SOLVERS: tuple[Solver, ...] = tuple(MmaConv(tile) for tile in TILES)
