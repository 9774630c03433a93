"""NVIDIA's warpgroup matrix instructions (compute capability 9.0) from OpenCL C.

OpenCL C is compiled for sm_90, which has TMA and mbarriers but not wgmma (sm_90a).  So the source
holds wgmma as comments in inline PTX; the rewrite "sm_90a" takes the PTX that the driver gives as
the program's binary, names the other target, switches the comments on, enlarges local memory
beyond 48 KiB, and the driver builds that text.  None of it is documented for OpenCL, hence the
self-test in `wgmma_probe`.

TMA's descriptors (tensor maps) hold an address, which OpenCL never tells the host: each work-group
writes its own into workspace from words that the host computed and its pointer arguments.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import ClassVar

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels import wgmma_probe
from kerascl.kernels.conv_problem import Params
from kerascl.kernels.solver import (
    Arg,
    Counters,
    Epilogue,
    Launch,
    Ref,
    Scalar,
    Solver,
    VectorStore,
    cl_source,
    prelude,
)
from kerascl.kernels.tiles import (
    COST_PER_MICROSECOND,
    LAUNCH,
    ceil_div,
    fold_vectors_latency,
    fold_vectors_launch,
    round_up,
)
from kerascl.kernels.wgmma_pack import COPY_RATE
from kerascl.runtime import programs

REWRITE = "sm_90a"
Args = tuple[Arg, ...]
SHARED_LIMIT = 231_424  # bytes of the array: 227 KiB a work-group less what the driver reserves
PRODUCER = 32


def sm_90a(binary: bytes) -> bytes:
    """PTX for sm_90 with markers -> PTX for sm_90a.

    `//@ instruction` becomes the instruction; `//#shared n` sets the size of the first array in
    shared memory to n bytes; `//#entry text` adds a directive to the entry.

    Raises:
        ValueError: it is no such PTX.
    """
    text = binary.decode("utf-8", "replace").rstrip("\0")
    text, count = re.subn(r"(?m)^(\s*\.target\s+)sm_90[a-z]?\b", r"\1sm_90a", text)
    size = re.search(r"//#shared (\d+)", text)
    if count != 1 or size is None:
        raise ValueError("the program's binary is no PTX for sm_90 with its markers")
    text, count = re.subn(
        r"(\.shared\s+\.align\s+\d+\s+\.b8\s+[\w$]+)\[\d+\]", rf"\1[{size[1]}]", text, count=1
    )
    if not count:
        raise ValueError("the PTX has no array in shared memory")
    entry = re.search(r"//#entry ([^\n]+)", text)
    if entry:
        text = re.sub(r"(\.reqntid[^\n]*)", rf"\1\n{entry[1]}", text, count=1)
    return text.replace("//@", "").encode()


programs.REWRITES[REWRITE] = sm_90a


@dataclass(frozen=True)
class Shape:
    """One tile of wgmma.cl.

    Attributes:
        bn: columns, a multiple of 16 up to 256.
        blocks: 64-row blocks of one consumer warpgroup.
        teams: consumer warpgroups.
        stages: pairs of tiles in the ring.
        groups: work-groups that one compute unit is to hold.
        speed, speed_tf32: the share of the peak rate that a large problem of 16-bit floats and
            of float32 reaches.
    """

    bn: int
    blocks: int
    teams: int
    stages: int
    groups: int
    speed: float
    speed_tf32: float

    @property
    def bm(self) -> int:
        return 64 * self.blocks * self.teams

    @property
    def name(self) -> str:
        return f"{self.bm}x{self.bn}x{self.stages}"

    @property
    def threads(self) -> int:
        return 128 * self.teams + PRODUCER


SHAPES = (
    Shape(256, 1, 2, 4, 1, 1.0, 1.0),
    Shape(192, 1, 2, 5, 1, 0.99, 0.99),
    Shape(128, 2, 2, 4, 1, 0.98, 0.97),
    Shape(128, 1, 2, 3, 2, 0.83, 0.79),
    Shape(128, 1, 2, 6, 1, 0.95, 0.94),
    Shape(64, 2, 2, 4, 1, 0.74, 0.7),
    Shape(64, 1, 2, 4, 2, 0.62, 0.57),
    Shape(64, 1, 2, 8, 1, 0.7, 0.66),
    Shape(128, 1, 1, 4, 2, 0.71, 0.73),
    Shape(64, 1, 1, 6, 2, 0.55, 0.51),
    Shape(32, 1, 2, 4, 2, 0.32, 0.3),
)
# For 3xTF32: a stage holds both operands and their low parts, and sums in double registers leave
# room for 128 columns of 64 rows a warpgroup.
PROMOTED = (
    Shape(128, 1, 2, 3, 1, 0.86, 0.86),
    Shape(64, 1, 3, 3, 1, 0.78, 0.78),
    Shape(64, 1, 2, 2, 2, 0.71, 0.71),
    Shape(64, 1, 2, 4, 1, 0.71, 0.71),
    Shape(64, 1, 1, 3, 2, 0.57, 0.57),
)
MAX_PARTIAL_BYTES = 128 * 2**20
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TILE_TIME = 0.3  # microseconds to begin a tile
STORE_TIME = 2.3 / 32768  # microseconds to store one result of a tile
READ, MOMENTS = 3.0, 2.0  # times of that to read what a result is combined with, for moments
MOMENTS_TIME = 13.0  # least microseconds that a launch of its own for the moments takes
PROMOTE_DEPTH = 256  # products between promotions, which bound the tensor cores' truncated sums


@dataclass(frozen=True)
class Kind:
    """How wgmma multiplies one input dtype.

    Attributes:
        name: the type's name in PTX.
        code: TMA's number of the element type, with the bit that rounds float32 to tf32.
        depth: k of one instruction.
        rate: products a compute unit makes in a microsecond at the peak that GEMMs reach.
    """

    name: str
    code: int
    depth: int
    rate: float


_TF32 = Kind("tf32", 7 << 7 | 1 << 16, 8, 1.6e6)
KINDS = {
    "float32": _TF32,
    "bfloat16": Kind("bf16", 10 << 7, 16, 3.1e6),
    "float16": Kind("f16", 6 << 7, 16, 3.1e6),
}


def depth_of(dtype: DType) -> int:
    """Elements of k in one stage: 128 bytes."""
    return 128 // dtype.itemsize


def map_words(
    dtype: DType, sizes: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...]
) -> tuple[int, ...]:
    """Words 1 to 8 of a tensor map (word 0 is the address).

    Tiled, 128-byte swizzle, zeros outside, L2 promotion to 128 bytes.

    Args:
        sizes: elements of each dimension, innermost first.
        steps: bytes between neighbours of dimensions 1 and up, multiples of 16.
        box: elements of a box, at most 256 each; box[0] is 128 bytes.
    """
    s = [step >> 4 for step in steps] + [0] * (5 - len(sizes))
    d = [size - 1 for size in sizes] + [0] * (5 - len(sizes))
    b = [size - 1 for size in box] + [0] * (5 - len(box))
    nbytes = dtype.itemsize
    for size in box:
        nbytes *= size
    head = (len(sizes) - 1) << 4 | KINDS[dtype.name].code | 3 << 13 | 2 << 17
    return (
        head | s[0] << 32,
        s[1] | s[2] << 32,
        s[3],
        d[0] | d[1] << 32,
        d[2] | d[3] << 32,
        d[4] | b[0] << 56,
        b[1] | b[2] << 8 | b[3] << 16 | b[4] << 24,
        nbytes,
    )


def instruction(shape: Shape, kind: Kind, a_mn: bool, b_mn: bool) -> str:
    """The macros WGMMA(d, a, b, add) and WGMMA_KEEP(d) over BN / 2 accumulators."""
    count = shape.bn // 2
    registers = ", ".join(f"%{k}" for k in range(count))
    places = ", ".join(f'"+f"(d[{k}])' for k in range(count))
    turned = f", {int(a_mn)}, {int(b_mn)}" if kind.depth == 16 else ""
    name = f"wgmma.mma_async.sync.aligned.m64n{shape.bn}k{kind.depth}.f32.{kind.name}.{kind.name}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0;\\n"
        f"//@ {name} {{{registers}}}, %{count}, %{count + 1}, p, 1, 1{turned};\\n}}"
    )
    return (
        f'#define WGMMA(d, a, b, add) asm volatile("{text}" : {places} '
        ': "l"(a), "l"(b), "r"(add))\n'
        f'#define WGMMA_KEEP(d) asm volatile("" : {places} :: "memory")\n'
    )


@functools.cache
def register_instruction(columns: int, kind: Kind, b_mn: bool) -> str:
    """The macros WGMMA_A(d, x0, x1, b, add), whose left operand is two pairs of registers, and
    WGMMA_KEEP(d)."""
    count = columns // 2
    registers = ", ".join(f"%{k}" for k in range(count))
    places = ", ".join(f'"+f"(d[{k}])' for k in range(count))
    left = ", ".join(f"%{count + k}" for k in range(4))
    turned = f", {int(b_mn)}" if kind.depth == 16 else ""
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{kind.depth}.f32.{kind.name}.{kind.name}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0;\\n"
        f"//@ {name} {{{registers}}}, {{{left}}}, %{count + 4}, p, 1, 1{turned};\\n}}"
    )
    return (
        f'#define WGMMA_A(d, x0, x1, b, add) asm volatile("{text}" : {places} '
        ': "r"((x0)[0]), "r"((x0)[1]), "r"((x1)[0]), "r"((x1)[1]), "l"(b), "r"(add))\n'
        f'#define WGMMA_KEEP(d) asm volatile("" : {places} :: "memory")\n'
    )


# One instruction for what takes several in portable code.
_CONVERSIONS = """\
inline ushort kcl_cvt_bf16(float v) {
  ushort r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}
#define kcl_to_bf16 kcl_cvt_bf16
"""


@dataclass(frozen=True)
class Run:
    """Everything a launch of wgmma.cl needs besides its parameters.

    `a`, `b` (and `a_low`, `b_low` for 3xTF32) are slots; `a_mn`, `b_mn` say that the operand is
    contiguous along rows or columns instead of k.
    """

    shape: Shape
    dtype: DType
    index: str
    a: str
    b: str
    a_words: tuple[int, ...]
    b_words: tuple[int, ...]
    a_mn: bool = False
    b_mn: bool = False
    a_low: str | None = None
    b_low: str | None = None
    a_maps: int = 1
    columns: int = 0
    flags: tuple[tuple[str, int], ...] = ()

    kernel: ClassVar[str] = "wgmma"  # its name and its file's

    @property
    def maps(self) -> int:
        return (self.a_maps + 1) * (2 if self.a_low else 1)

    @property
    def wide(self) -> bool:
        """Whether the others need registers of a whole producer warpgroup."""
        return False

    @property
    def resident(self) -> int:
        """Tiles of b that stay in shared memory, whose groups keep to a column of tiles."""
        return 0

    @property
    def threads(self) -> int:
        """Work-items of a group."""
        return 128 * (self.shape.teams + 1) if self.wide else self.shape.threads

    @property
    def operands(self) -> Args:
        """The kernel's first arguments."""
        return Ref(self.a), Ref(self.b), Ref(self.a_low or self.a), Ref(self.b_low or self.b)

    @property
    def instruction(self) -> str:
        """The macros with which the kernel multiplies."""
        return instruction(self.shape, KINDS[self.dtype.name], self.a_mn, self.b_mn)

    def workspace(self, groups: int) -> int:
        """Bytes of tensor maps for so many work-groups."""
        return 128 * (groups * self.maps + 1)

    def launch(
        self, tiles: int, params: Params, epilogue: Epilogue, slot: str, info, moments: Args = ()
    ) -> Launch:
        """The launch over `tiles` tiles with tensor maps in `slot`."""
        shape, kind = self.shape, KINDS[self.dtype.name]
        names = dict(
            BM=shape.bm, BN=shape.bn, BK=depth_of(self.dtype), MI=shape.blocks, NWG=shape.teams,
            STAGES=shape.stages, GROUPS=shape.groups, DEPTH=kind.depth, ITEM=self.dtype.itemsize,
            A_MN=int(self.a_mn), B_MN=int(self.b_mn), MAPS=self.maps,
            LOW=int(self.a_low is not None), VECTOR=self._vector(epilogue),
            VECTORS=self._vectors(epilogue), READS=len(epilogue.loads), RESIDENT=self.resident,
            ONE_COLUMN=int(self._one_column(epilogue)),
        ) | dict(self.flags)  # fmt: skip
        if self.wide:
            names["MANY_REGISTERS"] = 1
        if self.a_low:
            names["PROMOTE"] = ceil_div(PROMOTE_DEPTH, 3 * depth_of(self.dtype))
        source = (
            prelude(self.index, ACC=dtypes.float32)
            + _CONVERSIONS
            + "".join(f"#define {k} {v}\n" for k, v in names.items())
            + self.instruction
            + params.source
            + epilogue.defines
            + cl_source("wgmma_common.cl")
            + (cl_source("wgmma_moments.cl") if epilogue.moments else "")
            + cl_source("wgmma_store.cl")
            + cl_source(f"{self.kernel}.cl")
        )
        args = (
            *self.operands, Ref(slot), Scalar("ulong8", self.a_words),
            Scalar("ulong8", self.b_words), *params.args, *moments, *epilogue.args,
        )  # fmt: skip
        groups = self.groups(tiles, info, self._one_column(epilogue))
        return Launch(
            source, self.kernel, args, (groups * self.threads,), (self.threads,),
            (f"--rewrite={REWRITE}",),
        )  # fmt: skip

    def launches(
        self, tiles: int, splits: int, total: int, params: Params, epilogue: Epilogue,
        workspace: Workspace, info,
    ) -> list[Launch]:  # fmt: skip
        """The launch over `tiles` tiles of `splits` slices of the depth, and the one that sums
        the slices of all `total` results."""
        inner, part = epilogue, ""
        if splits > 1:
            part = workspace.room(4 * splits * total)
            inner = partial(total, self.index, part)
        groups = self.groups(tiles, info, self._one_column(inner))
        maps = workspace.room(self.workspace(groups))
        moments = self._moments(groups, workspace) if inner.moments else ()
        made = [self.launch(tiles, params, inner, maps, info, moments)]
        if part:
            acc = dtypes.float32
            made.append(fold_vectors_launch(total, splits, acc, self.index, epilogue, part))
        return made

    def _moments(self, groups: int, workspace: Workspace) -> Args:
        """The arguments of wgmma_moments.cl: each group leaves its columns' moments."""
        tiles_n = ceil_div(self.columns, self.shape.bn)
        slot = workspace.room(16 * groups // tiles_n * self.columns)
        return Ref(slot), Counters(tiles_n), Scalar("int", 0)

    def _vector(self, epilogue: Epilogue) -> int:
        """Neighbouring results that a lane stores at once: 16 bytes where the columns allow it."""
        small = all(store.dtype.itemsize <= 2 for store in epilogue.stores)
        wide = 8 if small and self.shape.bn % 32 == 0 else 4
        return next((w for w in (wide, 4) if self.columns % w == 0), 0)

    def _vectors(self, epilogue: Epilogue) -> int:
        """Vectors of a row that a lane computes at once: as many as there are registers for what
        the epilogue reads, where a tile's columns are whole groups of them."""
        vector = self._vector(epilogue)
        if not vector or not epilogue.loads:
            return 1
        results = self.shape.blocks * self.shape.bn // 2 * (2 if self.a_low else 1)
        # ptxas counts warps in fours.
        free = min(65536 // (round_up(self.threads, 128) * self.shape.groups), 255) - results
        read = sum(ceil_div(vector * load.dtype.itemsize, 4) for load in epilogue.loads)
        # Columns that the lanes of a row take together.
        columns, own = 4 * vector, (self.columns, self.shape.bn)
        fit = (n for n in (4, 2) if n * (read + 3 * vector) <= free)
        whole = (n for n in fit if not any(c % (columns * n) for c in own))
        return next(whole, 1)

    def _one_column(self, epilogue: Epilogue) -> bool:
        """Whether a work-group keeps to a column of tiles."""
        return bool(self.resident or epilogue.moments)

    def groups(self, tiles: int, info, one_column: bool = False) -> int:
        """Work-groups for so many tiles: as many for each column of tiles if they keep to it."""
        most = info.compute_units * self.shape.groups
        if one_column:
            tiles_n = ceil_div(self.columns, self.shape.bn)
            most = max(most // tiles_n, 1) * tiles_n
        return min(tiles, most)


class Workspace(list):
    """Bytes of a plan's workspace, in order of demand."""

    def room(self, nbytes: int) -> str:
        """The slot of so many bytes more."""
        self.append(nbytes)
        return f"ws{len(self) - 1}"


class WgmmaSolver(Solver):
    """What these solvers share: they apply where the self-test passed, and cost what they estimate.

    Args:
        tile, splits: fixed choices of a tile and of the slices of the depth, for tests and tuning;
            by default the fastest by estimate.
        more: what the epilogue does with a result besides storing it, in times of that.
    """

    family = "wgmma"  # how its solvers are called
    verdict = wgmma_probe.BASE  # the self-test that speaks for it

    def __init__(self, tile=None, splits: int | None = None, more: float = 0.0):
        self.tile = tile
        self.splits = splits
        self.more = more
        self.name = self.family + (tile.name if tile else "") + (f"s{splits}" if splits else "")

    def takes(self, problem) -> bool:
        """Whether the kernel can compute this problem, whatever the device."""
        raise NotImplementedError

    def best(self, problem, info) -> tuple:
        """(microseconds, tile, splits) of the fastest choice."""
        raise NotImplementedError

    def applies(self, problem, info) -> bool:
        return self.takes(problem) and wgmma_probe.available(info, self.verdict)

    def cost(self, problem, info) -> float:
        return self.best(problem, info)[0] * COST_PER_MICROSECOND


class MomentsSolver(WgmmaSolver):
    """One whose output's rows and columns may have moments: see cl/wgmma_moments.cl."""

    def moments(self, problem) -> bool:
        """Whether all rows of this problem's product are those of one output."""
        raise NotImplementedError

    def choice(self, problem, info, epilogue: Epilogue) -> tuple:
        """`best` for the epilogue."""
        more = READ * len(epilogue.loads) + (MOMENTS if epilogue.moments else 0.0)
        # Moments are those of whole sums.
        splits = 1 if epilogue.moments else self.splits
        return type(self)(self.tile, splits, more).best(problem, info)

    def takes_moments(self, problem, info) -> bool:
        if not self.moments(problem) or not wgmma_probe.available(info, "wgmma_moments"):
            return False
        whole = type(self)(self.tile, 1).best(problem, info)[0]
        return whole <= self.best(problem, info)[0] + moments_time(problem.total)


def moments_time(total: int) -> float:
    """Microseconds that moments of so many results take that are not computed beside them."""
    return max(MOMENTS_TIME, LAUNCH + 4 * total / COPY_RATE)


def tiles_time(
    shape: Shape, kind: Kind, tiles: int, depth: int, passes: int, info,
    store: float = STORE_TIME, more: float = 0.0,
) -> float:  # fmt: skip
    """Microseconds for `tiles` tiles of so much k each: rounds over the compute units.  What any
    launch takes is left out, here as in other solvers' costs."""
    whole, rest = divmod(tiles, info.compute_units * shape.groups)
    speed = shape.speed if kind.depth == 16 else shape.speed_tf32
    stages = ceil_div(depth, 4 * kind.depth)
    multiply = shape.bm * shape.bn * passes * stages * 4 * kind.depth / (kind.rate * speed)
    # Another work-group hides what the epilogue waits for, and that the ring is filled.
    one = multiply + shape.bm * shape.bn * (store + more * STORE_TIME / shape.groups)
    alone, all_ = TILE_TIME + one, TILE_TIME + shape.groups * one
    return whole * all_ + (0.0 if not rest else alone if rest <= info.compute_units else all_)


def slice_counts(wanted: int | None, total: int, chunks: int) -> tuple[int, ...]:
    """Numbers of slices to consider for a depth of so many stages: where none is `wanted`, those
    of at least four stages each.  Their partial sums stay below MAX_PARTIAL_BYTES."""
    most = max(1, min(MAX_PARTIAL_BYTES // (4 * total), chunks))
    if wanted is not None:
        return (min(wanted, most),)
    return tuple(s for s in SPLITS if s == 1 or (s <= most and 4 * s <= chunks))


def fold_time(total: int, splits: int) -> float:
    """Microseconds to sum the parts of a split depth."""
    if splits == 1:
        return 0.0
    return fold_vectors_latency(splits) + 4 * total * (2 * splits + 1) / COPY_RATE


def partial(split_step: int, index: str, slot: str) -> Epilogue:
    """Stores the sums of slice `split` (a variable of wgmma.cl), `split_step` elements apart."""
    from_ = "part + (INDEX_T)split * part_step"
    return Epilogue(
        ", __global float* restrict part, const INDEX_T part_step",
        (Ref(slot), Scalar(index, split_step)),
        f"({from_})[i] = acc;",
        stores=(VectorStore(from_, dtypes.float32, "acc"),),
    )
