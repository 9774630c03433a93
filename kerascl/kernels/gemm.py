"""Matrix products: batched, arbitrarily strided, any dtype.

`plan` normalises a `GemmProblem` (drops and merges batch dimensions) and lets the cheapest
applicable solver plan it.
"""

from __future__ import annotations

import math

from kerascl.kernels import cpu, database, mma, wgmma, wgmma_gemm
from kerascl.kernels.cpu import Micro
from kerascl.kernels.gemm_problem import (
    GemmProblem,
    normalise,
    problem_index,
    reach,
    stride_args,
    usable,
)
from kerascl.kernels.solver import (
    Epilogue,
    Launch,
    Plan,
    Ref,
    Scalar,
    Solver,
    cl_source,
    prelude,
)
from kerascl.kernels.tiles import (
    TILES,
    Tile,
    ceil_div,
    fold_launch,
    load4,
    partial_epilogue,
    round_up,
    zero_plan,
)

__all__ = ["SOLVERS", "GemmProblem", "normalise", "plan", "reach"]

MAX_PARTIAL_BYTES = 128 * 2**20


class Direct(Solver):
    """One work-item per output element: tiny products, and whatever nothing else takes."""

    name = "direct"

    def applies(self, problem: GemmProblem, info) -> bool:
        return usable(problem, info)

    def cost(self, problem: GemmProblem, info) -> float:
        p = problem
        if info.kind == "cpu":
            return p.total * p.k * 40 / info.compute_units
        return ceil_div(p.total, info.compute_units * 64) * 64 * (p.k + 16) * 12

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        index = problem_index(p)
        source = (
            prelude(index, A=p.a, B=p.b, ACC=p.acc)
            + epilogue.defines
            + "#define DIRECT\n"
            + cl_source("gemm_small.cl")
        )
        ints = (p.m, p.n, p.k, p.batch[1], p.batch[2])
        args = (
            Ref("a"), Ref("b"), Scalar(index, p.total), *(Scalar("int", v) for v in ints),
            *stride_args(p, index), *epilogue.args,
        )  # fmt: skip
        return Plan([Launch(source, "gemm_direct", args, (round_up(p.total, 64),), (64,))])


class Tiled(Solver):
    """A tile of gemm_tile.cl through local memory, its depth split when the groups are few."""

    def __init__(self, tile: Tile, split: int | None = None):
        self.tile = tile
        self.split = split
        self.name = f"tiled{tile.bm}x{tile.bn}" + (f"s{split}" if split else "")

    def applies(self, problem: GemmProblem, info) -> bool:
        return usable(problem, info) and self.tile.fits(problem.acc, info)

    def _splits(self, p: GemmProblem, info) -> int:
        """How many slices of k; each has at least one tile's depth."""
        bk = self.tile.bk(p.acc)
        room = max(1, MAX_PARTIAL_BYTES // (p.total * p.acc.itemsize))
        most = min(room, ceil_div(p.k, bk), 256)
        if self.split is not None:
            return max(1, min(self.split, most))
        choices = [s for s in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if s <= most]
        choices = [s for s in choices if s == 1 or p.k // s >= 8 * bk]
        return min(choices, key=lambda s: self._time(p, info, s))

    def _time(self, p: GemmProblem, info, splits: int) -> float:
        return self.tile.time(p.m, p.n, p.k, p.batches, splits, info.compute_units)

    def cost(self, problem: GemmProblem, info) -> float:
        time = self._time(problem, info, self._splits(problem, info))
        return time * 1000 if info.kind == "cpu" else time

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        p, tile = problem, self.tile
        index = problem_index(p)
        bk = tile.bk(p.acc)
        splits = self._splits(p, info)
        slice_ = round_up(ceil_div(p.k, splits), bk)
        splits = ceil_div(p.k, slice_)
        a_along_k, av = _loads(p.a_strides, p.a_offset, p.m, p.k, row_axis=-2, k_axis=-1)
        b_along_k, bv = _loads(p.b_strides, p.b_offset, p.n, p.k, row_axis=-1, k_axis=-2)
        inner = epilogue if splits == 1 else partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        source = (
            prelude(index, A=p.a, B=p.b, ACC=p.acc)
            + load4("A", p.a, p.acc)
            + load4("B", p.b, p.acc)
            + tile.defines(p.acc, av, bv, a_along_k, b_along_k, info)
            + inner.defines
            + cl_source("gemm_simt.cl")
            + cl_source("gemm_tile.cl")
        )
        ints = (p.m, p.n, p.k, splits, slice_, p.batch[1], p.batch[2])
        args = (
            Ref("a"), Ref("b"), *(Scalar("int", v) for v in ints), *stride_args(p, index),
            *inner.args,
        )  # fmt: skip
        groups = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * splits * p.batches
        launch = Launch(source, "gemm_tile", args, (groups * tile.threads,), (tile.threads,))
        if splits == 1:
            return Plan([launch])
        fold = fold_launch(p.total, splits, p.acc, index, epilogue)
        return Plan([launch, fold], [splits * p.total * p.acc.itemsize])


def _loads(strides, offset: int, rows: int, k: int, row_axis: int, k_axis: int) -> tuple[bool, int]:
    """Whether loads should run along k, and how many elements each may take (1 or 4)."""
    row, depth = strides[row_axis], strides[k_axis]
    along_k = depth == 1 or (row != 1 and abs(depth) < abs(row))
    unit, other, length = (depth, row, k) if along_k else (row, depth, rows)
    whole = all(s % 4 == 0 for s in (*strides[:-2], offset, other, length))
    return along_k, 4 if unit == 1 and whole else 1


class Skinny(Solver):
    """One side of at most eight (matrix times vector): lanes sum along the depth."""

    name = "skinny"
    MOST = 8

    def __init__(self, split: int | None = None):
        self.split = split
        if split:
            self.name = f"skinny_s{split}"

    def applies(self, problem: GemmProblem, info) -> bool:
        p = problem
        small = usable(p, info) and min(p.m, p.n) <= self.MOST
        room = 256 * self.MOST * p.acc.itemsize <= info.local_mem_bytes
        return small and room and info.max_work_group_size >= 256

    def cost(self, problem: GemmProblem, info) -> float:
        p = problem
        if info.kind == "cpu":
            return math.inf
        # Reading the long operand takes about as long as 24 products an element.
        long = max(p.m, p.n) * p.k * p.batches * (24 + 2 * min(p.m, p.n))
        return long / min(info.compute_units, max(1, long // 2**18)) + 3e4

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, problem_index(problem)
        a = ("a", p.a, p.a_offset, p.a_strides[-2], p.a_strides[-1], p.a_strides[:3])
        b = ("b", p.b, p.b_offset, p.b_strides[-1], p.b_strides[-2], p.b_strides[:3])
        if p.n <= p.m:
            long, short, rows, count, steps = a, b, p.m, p.n, (p.n, 1)
        else:
            long, short, rows, count, steps = b, a, p.n, p.m, (1, p.n)
        along_k = long[4] == 1 or (long[3] != 1 and abs(long[4]) < abs(long[3]))
        group_rows, lanes = (8, 32) if along_k else (32, 8)
        groups = ceil_div(rows, group_rows) * p.batches
        room = max(1, MAX_PARTIAL_BYTES // (p.total * p.acc.itemsize))
        wanted = self.split or min(ceil_div(info.compute_units * 4, groups), p.k // 512)
        slice_ = ceil_div(p.k, max(1, min(wanted, room, p.k)))
        splits = ceil_div(p.k, slice_)
        inner = epilogue if splits == 1 else partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        short_rows = next(n for n in (1, 2, 4, 8) if n >= count)
        source = (
            prelude(index, L=long[1], S=short[1], ACC=p.acc)
            + f"#define ROWS {group_rows}\n#define LANES {lanes}\n#define SHORT {short_rows}\n"
            + f"#define L_ALONG_K {int(along_k)}\n"
            + inner.defines
            + cl_source("gemm_skinny.cl")
        )
        ints = (rows, count, p.k, splits, slice_, p.batch[1], p.batch[2])
        longs = (long[2], short[2], *long[3:5], *short[3:5], *long[5], *short[5], *steps)
        args = (
            Ref(long[0]), Ref(short[0]), *(Scalar("int", v) for v in ints),
            *(Scalar(index, v) for v in longs), *inner.args,
        )  # fmt: skip
        launch = Launch(source, "gemm_skinny", args, (groups * splits * 256,), (256,))
        if splits == 1:
            return Plan([launch])
        fold = fold_launch(p.total, splits, p.acc, index, epilogue)
        return Plan([launch, fold], [splits * p.total * p.acc.itemsize])


class Panels(Solver):
    """CPUs: register blocks without barriers, over operands that are streamed where they lie when
    their strides allow and packed into panels otherwise."""

    # Depth of one slice.  Longer panels would fall out of the second-level cache; rows that are
    # streamed where they lie, one depth after the other, out of the first-level one.
    DEPTH = 3072
    DEPTH_TRANSPOSED = 512
    ROWS_TO_PACK = 256

    def __init__(self, micro: Micro | None = None, pack: bool | None = None):
        self.micro = micro
        self.pack = pack
        self.name = "panels" + (f"{micro.mr}x{micro.nv}" if micro else "")
        if pack is not None:
            self.name += "_packed" if pack else "_direct"

    def applies(self, problem: GemmProblem, info) -> bool:
        return info.kind == "cpu" and usable(problem, info)

    def cost(self, problem: GemmProblem, info) -> float:
        p = problem
        work = cpu.best(p.acc, info, p.m, p.n).work(p.m, p.n) * p.k / 16 + p.m * p.n
        return p.batches * work / info.compute_units + 3e4

    def _shape(self, p: GemmProblem, info) -> Micro:
        if self.micro:
            return self.micro
        micro = cpu.best(p.acc, info, p.m, p.n)
        if self._pack_b(p, micro):
            return micro
        return cpu.best(p.acc, info, p.m, p.n, most_columns=p.n, streams=True)

    def _pack_b(self, p: GemmProblem, micro: Micro) -> bool:
        streams = p.b.storage == p.acc.compute and p.b_strides[-1] == 1 and p.n >= micro.nr
        if not streams or self.pack:
            return True
        if self._mode_a(p, micro) == 1:
            return False
        # Every row panel rereads b: packed panels are read faster unless all of b stays cached.
        # Many rows pay for the packing; fewer do where rows of b fall into the same cache sets.
        cached = p.k * p.n * p.b.itemsize <= 2**16
        clash = p.b_strides[-2] * p.b.itemsize % 4096 == 0
        rows = 2 * micro.mr if clash else self.ROWS_TO_PACK
        return self.pack is None and p.m > rows and not cached

    def _mode_a(self, p: GemmProblem, micro: Micro) -> int | None:
        """A_MODE for streaming a where it lies, or None to pack it."""
        if p.a.storage != p.acc.compute or self.pack:
            return None
        row, depth = p.a_strides[-2:]
        if depth == 1:
            # Rows a multiple of a page apart would fall into the same cache sets.
            clash = row * p.a.itemsize % 4096 == 0 and p.n > 2 * micro.nr and micro.mr > 4
            clash = clash and self.pack is None
            return None if clash else 0
        if row == 1 and p.m >= micro.mr:
            # Packing costs time in m + n, reading across the rows in m * n.
            large = p.m * p.n > 170 * (p.m + p.n)
            return None if large and self.pack is None else 1
        return 2 if p.n <= micro.nr or self.pack is False else None

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        index = problem_index(p)
        micro = self._shape(p, info)
        row_panels, panels = ceil_div(p.m, micro.mr), ceil_div(p.n, micro.nr)
        launches: list[Launch] = []
        workspace: list[int] = []
        a, a_offset, a_strides = Ref("a"), p.a_offset, p.a_strides
        a_panel, mode, a_type = micro.mr * a_strides[-2], self._mode_a(p, micro), p.a
        if direct_a := mode is not None:
            mode_row = a_strides[-2]
        else:
            a, a_offset, mode, mode_row, a_type = Ref(f"ws{len(workspace)}"), 0, 1, 1, p.acc
            launch, nbytes, steps = cpu.packing(
                index, micro.mr, p.m, p.k, Ref("a"), a, p.a, p.acc, p.a_offset, p.a_strides[-2],
                p.a_strides[-1], p.batch, p.a_strides[:3],
            )  # fmt: skip
            launches.append(launch)
            workspace.append(nbytes)
            a_strides, a_panel = (*steps, 1, micro.mr), p.k * micro.mr
        b, b_offset, b_strides, b_panel, b_type = Ref("b"), p.b_offset, p.b_strides, micro.nr, p.b
        direct_b = not self._pack_b(p, micro)
        if not direct_b:
            b, b_offset, b_type = Ref(f"ws{len(workspace)}"), 0, p.acc
            launch, nbytes, steps = cpu.packing(
                index, micro.nr, p.n, p.k, Ref("b"), b, p.b, p.acc, p.b_offset, p.b_strides[-1],
                p.b_strides[-2], p.batch, p.b_strides[:3],
            )  # fmt: skip
            launches.append(launch)
            workspace.append(nbytes)
            b_strides, b_panel = (*steps, micro.nr, 1), p.k * micro.nr
        depth = self.DEPTH_TRANSPOSED if direct_a and mode == 1 else self.DEPTH
        splits, slice_ = self._splits(p, info, row_panels * panels, depth)
        chunk = cpu.chunk(
            row_panels, panels * splits * p.batches, info, micro.mr * micro.nr * slice_
        )
        inner = epilogue
        if splits > 1:
            slot = f"ws{len(workspace)}"
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", slot)
            workspace.append(splits * p.total * p.acc.itemsize)
        source = (
            prelude(index, A=a_type, B=b_type, ACC=p.acc)
            + micro.source(p.acc, info, slice_)
            + inner.defines
            + f"#define PRODUCT\n#define A_MODE {mode}\n"
            + f"#define A_DIRECT {int(direct_a)}\n#define B_DIRECT {int(direct_b)}\n"
            + cl_source("gemm_cpu.cl")
        )
        units = ceil_div(row_panels, chunk) * panels * splits * p.batches
        per = cpu.chunk(units, 1, info, micro.mr * micro.nr * slice_ * chunk)
        ints = (p.m, p.n, p.k, splits, slice_, chunk, units, per, p.batch[1], p.batch[2])
        longs = (
            a_offset, b_offset, a_panel, mode_row, a_strides[-1], b_panel, b_strides[-2],
            *a_strides[:3], *b_strides[:3],
        )  # fmt: skip
        args = (
            a, b, *(Scalar("int", v) for v in ints), *(Scalar(index, v) for v in longs),
            *inner.args,
        )  # fmt: skip
        launches.append(Launch(source, "gemm_cpu", args, (ceil_div(units, per),), (1,)))
        if splits > 1:
            launches.append(fold_launch(p.total, splits, p.acc, index, epilogue, slot))
        return Plan(launches, workspace)

    def _splits(self, p: GemmProblem, info, tiles: int, depth: int) -> tuple[int, int]:
        """(number of slices, depth of one at most `depth`), enough for all threads."""
        room = max(1, MAX_PARTIAL_BYTES // (p.total * p.acc.itemsize))
        wanted = ceil_div(info.compute_units * 3, tiles * p.batches)
        splits = max(ceil_div(p.k, depth), min(wanted, p.k // 256), 1)
        slice_ = ceil_div(p.k, min(splits, room))
        return ceil_div(p.k, slice_), slice_


SOLVERS: tuple[Solver, ...] = (
    Direct(),
    Skinny(),
    Panels(),
    wgmma_gemm.Wgmma(),
    *(Tiled(tile) for tile in TILES),
    *mma.GEMM_SOLVERS,
)


# Plain solvers that the tuner checks all others against.
REFERENCES: tuple[Solver, ...] = (Tiled(TILES[-1]), Panels(), Direct())
# What only the tuner tries: the same tiles with another number of slices, other panels.
SLICES = (1, 2, 4, 8, 16, 32)
VARIANTS: tuple[Solver, ...] = (
    *(Tiled(tile, split) for tile in TILES for split in SLICES),
    *(mma.MmaGemm(tile, split) for tile in mma.TILES for split in SLICES),
    *(wgmma_gemm.Wgmma(shape, split) for shape in wgmma.SHAPES for split in SLICES),
    *(Skinny(split) for split in SLICES),
    *(Panels(pack=pack) for pack in (True, False)),
)


def plan(problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem` on the device that `info` describes.

    Raises:
        NotImplementedError: when the device lacks the dtypes (float64 without fp64).
    """
    problem = normalise(problem)
    if problem.total == 0 or problem.k == 0:
        return zero_plan(problem.total, problem.acc, epilogue)
    solver = database.choose("gemm", SOLVERS, VARIANTS, problem, info)
    return solver.plan(problem, info, epilogue)
