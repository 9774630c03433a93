"""Launches of the kernels over warpgroup matrix instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue, VectorStore
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import (
    Arg,
    Counters,
    Launch,
    Ref,
    Scalar,
    Several,
    Workspace,
)
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.hopper.brought import Brought
from kerascl.kernels.hopper.ptx import (
    CONVERSIONS,
    KINDS,
    OF_PAIRS,
    PAIRS,
    REWRITE,
    ROUND_TF32,
    instruction,
)
from kerascl.kernels.hopper.tiles import PROMOTE_DEPTH, Shape
from kerascl.kernels.hopper.tma import depth_of
from kerascl.kernels.matmul.split_k import vector_reduction_launch

Args = tuple[Arg, ...]
OPERANDS = "pA", "pB", "pA2", "pB2"  # the kernels' parameters
COMPUTING = 32  # registers of a work-item for addresses, and for what an epilogue computes
BROUGHT = 16  # for one operand of it that is brought
# Products of equal shapes that a launch takes at most: of more, maps and pointers are many.  Those
# with tiles for less than half of the compute units are not worth a text of their own, and those
# with tiles for so many turns leave little idle.
SEVERAL = 4
SEVERAL_TURNS = 8


@dataclass(frozen=True)
class Run:
    """Everything a launch of wgmma.cl needs besides its parameters.

    `a`, `b` (and `a_low`, `b_low` for 3xTF32) are slots; `a_mn`, `b_mn` say that the operand is
    contiguous along rows or columns instead of k.  `brought`: the loads of the epilogue that TMA
    brings, if it does.  `terms`: the slots of both operands of each further product that is added.
    `sums`: where the sums of b's columns go, if they are wanted; see wgmma_dense.cl.
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
    brought: Brought | None = None
    terms: tuple[tuple[str, str], ...] = ()
    sums: str | None = None

    kernel: ClassVar[str] = "wgmma"  # its name and its file's
    turns: ClassVar[str] = ""  # the file that says how its teams take turns, if they do
    pairs: ClassVar[bool] = True  # whether wgmma_store.cl exchanges its results

    @property
    def defines(self) -> dict[str, int]:
        """What the kernel's text is told beside what all are."""
        return dict(self.flags)

    @property
    def maps(self) -> int:
        """Tensor maps that the kernel takes: of both operands, and of what TF32 loses of them."""
        return (self.a_maps + 1) * (2 if self.a_low else 1) + 2 * len(self.terms)

    @property
    def lone(self) -> bool:
        """Whether a launch has one product only, whatever becomes of it."""
        return bool(self.a_low or self.terms or self.brought or self.a_maps > 1)

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
        return 128 * (self.shape.consumers + 1) if self.wide else self.shape.threads

    @property
    def registers(self) -> int:
        """Of a work-item, for its results and an epilogue; ptxas counts warps in fours."""
        return min(65536 // (round_up(self.threads, 128) * self.shape.groups), 255)

    @property
    def free(self) -> int:
        """Registers of a work-item beside its results, of which 3xTF32 has two."""
        return self.registers - self.shape.results * (2 if self.a_low else 1)

    def sum_parts(self, splits: int, tiles_m: int) -> int:
        """Parts of the sums of b's columns: each tile leaves one, of its columns."""
        return splits * tiles_m

    @property
    def operands(self) -> Args:
        """The kernel's first arguments."""
        return Ref(self.a), Ref(self.b), Ref(self.a_low or self.a), Ref(self.b_low or self.b)

    @property
    def terms_source(self) -> str:
        """What wgmma.cl wants in front where several products are added."""
        if not self.terms:
            return ""
        names = [(n, f"pTermA{n}", f"pTermB{n}") for n in range(1, len(self.terms) + 1)]
        params = "".join(
            f", __global const uchar* restrict {a}, __global const uchar* restrict {b}"
            for _, a, b in names
        )
        maps = " ".join(
            f"write_map(maps + {32 * n}, (ulong){a} + A_OFFSET, mapA); "
            f"write_map(maps + {32 * n + 16}, (ulong){b} + B_OFFSET, mapB);"
            for n, a, b in names
        )
        return (
            f"#define TERMS {len(names) + 1}\n#define TERM_PARAMS {params}\n"
            f"#define WRITE_TERM_MAPS {maps}\n"
        )

    @property
    def sums_source(self) -> str:
        """What sums of b's columns are made with."""
        return OF_PAIRS.get(self.dtype.name, ROUND_TF32) + cl_source("hopper/wgmma_dense.cl")

    @property
    def instruction(self) -> str:
        """The macros with which the kernel multiplies."""
        return instruction(self.shape.bn, KINDS[self.dtype.name], self.a_mn, self.b_mn)

    def workspace(self, groups: int) -> int:
        """Bytes of tensor maps for so many work-groups."""
        brought = self.shape.pingpong * len(self.brought.loads) if self.brought else 0
        return 128 * (groups * (self.maps + brought) + 1)

    def launch(
        self, tiles: int, params: Params, epilogue: Epilogue, slot: str, info, moments: Args = ()
    ) -> Launch:
        """The launch over `tiles` tiles with tensor maps in `slot`."""
        source, epilogue = self._source(params, epilogue)
        args = (
            *self.operands, Ref(slot), Scalar("ulong8", self.a_words),
            Scalar("ulong8", self.b_words), *(Ref(slot) for pair in self.terms for slot in pair),
            *(self.brought.args if self.brought else ()),
            *params.args, *((Ref(self.sums),) if self.sums else ()), *moments, *epilogue.args,
        )  # fmt: skip
        groups = self.groups(tiles, info, self._one_column(epilogue))
        return Launch(
            source, self.kernel, args, (groups * self.threads,), (self.threads,),
            (f"--rewrite={REWRITE}",),
        )  # fmt: skip

    def several(
        self, tiles: int, params: Params, epilogue: Epilogue, info, proven: Callable[[], bool]
    ) -> Several | None:
        """How a launch takes several such products; None where it takes one, or need not."""
        known = all(isinstance(arg, Ref | Scalar) for arg in epilogue.args)
        units = info.compute_units
        fitting = units // 2 <= tiles <= SEVERAL_TURNS * units * self.shape.groups
        if self.lone or epilogue.moments or not (fitting and known):
            return None
        return Several(
            SEVERAL, lambda count: self._source(params, epilogue, count)[0],
            lambda count: self.groups(tiles * count, info), proven,
        )  # fmt: skip

    def _several_source(self, epilogue: Epilogue, count: int) -> str:
        """What wgmma_common.cl wants in front for several products."""
        own = [f"__global const uchar* restrict {name}" for name in OPERANDS[: len(self.operands)]]
        own.append("__global uchar* restrict pMaps")
        args = zip(epilogue.param_list, epilogue.args, strict=True)
        used = ["__global float* restrict sums"] if self.sums else []
        used += [param for param, arg in args if isinstance(arg, Ref)]
        params, maps, buffers = "", "", ""
        for n in range(1, count):
            params += "".join(f", {param}_{n}" for param in (*own, *used))
            maps += (
                f"write_map(maps + {32 * n}, (ulong)pA_{n} + A_OFFSET, mapA); "
                f"write_map(maps + {32 * n + 16}, (ulong)pB_{n} + B_OFFSET, mapB); "
            )
            names = [param.rsplit(" ", 1)[1] for param in used]
            buffers += f"if (nth_ == {n}) {{ {' '.join(f'{x} = {x}_{n};' for x in names)} }} "
        return (
            f"#define SEVERAL {count}\n#define SEVERAL_PARAMS {params}\n"
            f"#define WRITE_SEVERAL_MAPS {maps}\n#define TAKE_BUFFERS {buffers}\n"
        )

    def _source(
        self, params: Params, epilogue: Epilogue, count: int = 1
    ) -> tuple[str, Epilogue]:
        """The text for `count` products, and what is left of their epilogue."""
        shape, kind = self.shape, KINDS[self.dtype.name]
        names = dict(
            BM=shape.bm, BN=shape.bn, BK=depth_of(self.dtype), MI=shape.blocks, NWG=shape.consumers,
            STAGES=shape.stages, GROUPS=shape.groups, DEPTH=kind.depth, ITEM=self.dtype.itemsize,
            A_MN=int(self.a_mn), B_MN=int(self.b_mn), MAPS=self.maps * count,
            LOW=int(self.a_low is not None), VECTOR=self._vector(epilogue),
            VECTORS=self._vectors(epilogue), READS=len(epilogue.reads), RESIDENT=self.resident,
            ONE_COLUMN=int(self._one_column(epilogue)), PINGPONG=shape.pingpong,
            KEPT=self._kept(epilogue),
        ) | self.defines  # fmt: skip
        kept = ""
        if self.pairs and epilogue.rounds and names["VECTOR"]:
            kept, epilogue = PAIRS[epilogue.rounds.name], epilogue.after_rounding
        if self.wide:
            names["MANY_REGISTERS"] = 1
        if self.sums:
            names["SUMS"] = 1
        if self.a_low:
            names["PROMOTE"] = ceil_div(PROMOTE_DEPTH, 3 * depth_of(self.dtype))
        source = (
            prelude(self.index, ACC=dtypes.float32)
            + CONVERSIONS
            + kept
            + "".join(f"#define {k} {v}\n" for k, v in names.items())
            + self.instruction
            + params.source
            + epilogue.defines
            + (self._several_source(epilogue, count) if count > 1 else "")
            + cl_source("hopper/wgmma_common.cl")
            + (cl_source("hopper/wgmma_moments.cl") if epilogue.moments else "")
            + (self.brought.source(shape) if self.brought else "")
            + (self.sums_source if self.sums else "")
            + cl_source("hopper/wgmma_store.cl")
            + (cl_source(f"hopper/{self.turns}.cl") if self.turns else "")
            + self.terms_source
            + cl_source(f"hopper/{self.kernel}.cl")
        )
        return source, epilogue

    def launches(
        self, tiles: int, splits: int, total: int, params: Params, epilogue: Epilogue,
        workspace: Workspace, info, several: Callable[[], bool] | None = None,
    ) -> list[Launch]:  # fmt: skip
        """The launch over `tiles` tiles of `splits` slices of the depth, and the one that sums
        the slices of all `total` results.

        Args:
            several: whether launches of several products pass their self-test; None where there is
                none.
        """
        inner, part = epilogue, ""
        if splits > 1:
            part = workspace.room(4 * splits * total)
            inner = partial(total, self.index, part)
        groups = self.groups(tiles, info, self._one_column(inner))
        more = self.several(tiles, params, inner, info, several) if several else None
        room = more.most * self.workspace(more.groups(more.most)) if more else 0
        maps = workspace.room(room or self.workspace(groups))
        moments = self._moments(groups, workspace) if inner.moments else ()
        made = [replace(self.launch(tiles, params, inner, maps, info, moments), several=more)]
        if part:
            acc, index = dtypes.float32, self.index
            made.append(vector_reduction_launch(total, splits, acc, index, epilogue, info, part))
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
        if not vector or not epilogue.reads:
            return 1
        free = self.free
        read = sum(ceil_div(vector * load.dtype.itemsize, 4) for load in epilogue.reads)
        # Columns that the lanes of a row take together.
        columns, own = 4 * vector, (self.columns, self.shape.bn)
        fit = (n for n in (4, 2) if n * (read + 3 * vector) <= free)
        whole = (n for n in fit if not any(c % (columns * n) for c in own))
        return next(whole, 1)

    def _kept(self, epilogue: Epilogue) -> int:
        """Vectors of what all rows read, such as a bias, that a lane keeps: those of all its
        columns, or two, or one, as registers suffice; 0 where they do not or rows share nothing."""
        vector = self._vector(epilogue)
        if not vector or epilogue.reads or not epilogue.repeats(self.columns):
            return 0
        words = sum(ceil_div(vector * x.dtype.itemsize, 4) for x in epilogue.loads if x.period)
        free = self.free - COMPUTING - BROUGHT * len(epilogue.brought)
        return next((n for n in self.kept_counts(vector) if n * words <= free), 0)

    def kept_counts(self, vector: int) -> tuple[int, ...]:
        """How many vectors of what all rows read a lane may keep, the best first."""
        return self.shape.bn // (4 * vector), 2, 1

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


def partial(split_step: int, index: str, slot: str) -> Epilogue:
    """Stores the sums of slice `split` (a variable of wgmma.cl), `split_step` elements apart."""
    from_ = "part + (INDEX_T)split * part_step"
    return Epilogue(
        ", __global float* restrict part, const INDEX_T part_step",
        (Ref(slot), Scalar(index, split_step)),
        f"({from_})[i] = acc;",
        stores=(VectorStore(from_, dtypes.float32, "acc"),),
    )
