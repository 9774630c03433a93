"""Matrix products: batched, arbitrarily strided, any dtype.

`plan` normalises a `GemmProblem` (drops and merges batch dimensions) and lets the cheapest
applicable solver plan it.
"""

from __future__ import annotations

import math

from kerascl.kernels import cpu, database, mma, wgmma_gemm, wgmma_turned
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
    fixed_time,
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
        time = ceil_div(p.total, info.compute_units * 64) * 64 * (p.k + 16) * 12
        return max(time, fixed_time(0.035 * p.k, info))  # a work-item waits for each of its reads

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


def _steps(p: GemmProblem) -> list[int]:
    """Elements between neighbours of the operands' rows or columns that are not contiguous."""
    return [max(strides[-2:]) for strides in (p.a_strides, p.b_strides)]


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
        time = self.tile.time(p.m, p.n, p.k, p.batches, splits, info)
        # Long sums over rows of both, as filter gradients are, keep to 0.62 of the speed (H200).
        if p.a_strides[-2] == p.b_strides[-1] == 1 and p.k > 2048:
            time *= 1.6
        if info.matrix and p.a.itemsize == 2 and any(s % 4 for s in _steps(p)):
            time *= 2  # elements gathered one by one (H200)
        return time

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


# B_MODE of cl/gemm_cpu.cl.
_DIRECT, _OWN, _PACKED = range(3)


class Panels(Solver):
    """CPUs: register blocks without barriers, over operands that are streamed where they lie when
    their strides allow and packed into panels otherwise."""

    # Depth of one step.  Longer panels would fall out of the second-level cache; so would columns
    # read where they lie, whose rows are far apart and share few of its sets.
    DEPTH = 3072
    DEPTH_APART = 128
    # Rows from which packing b in a launch of its own pays; with columns that cannot be streamed;
    # with rows that fall into the same cache sets.
    ROWS_TO_PACK = 256
    ROWS_TO_PACK_APART = 128
    # What may lie in the second-level cache: rows of a that all columns use; beside them sums
    # between two steps, or a work-item's own panel.
    ROW_BYTES = 2**20
    CACHED_BYTES = 2**18

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

    def _shape(self, p: GemmProblem, info, by_rows: bool) -> Micro:
        if self.micro:
            return self.micro
        micro = cpu.best(p.acc, info, p.m, p.n)
        if self._mode_b(p, micro, by_rows) == _DIRECT:
            return cpu.best(p.acc, info, p.m, p.n, most_columns=p.n)
        return micro

    def _mode_a(self, p: GemmProblem, micro: Micro, info) -> int | None:
        """A_MODE for streaming a where it lies, or None to pack it."""
        if p.a.storage != p.acc.compute or self.pack:
            return None
        row, depth = p.a_strides[-2:]
        if depth == 1:
            return 0
        if row == 1 and p.m >= micro.mr:
            # Packing costs two launches and time in m + n, reading across the rows in m * n.
            gain = (p.m * p.n - 190 * (p.m + p.n)) * p.k
            return None if gain > 6e6 * info.compute_units and self.pack is None else 1
        return 2 if p.n <= micro.nr or self.pack is False else None

    def _mode_b(self, p: GemmProblem, micro: Micro, by_rows: bool) -> int:
        if self.pack:
            return _PACKED
        streams = p.b.storage == p.acc.compute and p.b_strides[-1] == 1 and p.n >= micro.nr
        if self.pack is False:
            return _DIRECT if streams else _OWN
        # All rows in one block, so that hardly a panel is packed twice.
        shallow = p.k <= 192 and p.m * p.k * p.acc.itemsize <= self.ROW_BYTES
        if not streams:
            few = p.m <= self.ROWS_TO_PACK_APART or p.k * p.n <= 2**12
            return _OWN if (few or shallow) and not by_rows else _PACKED
        if shallow and p.m > 8 * micro.mr and not by_rows:
            return _OWN
        # Every row panel rereads b: packed panels are read faster unless all of b stays cached.
        cached = p.k * p.n * p.b.itemsize <= 2**16
        clash = p.b_strides[-2] * p.b.itemsize % 4096 == 0
        many = p.m > (self.ROWS_TO_PACK_APART if clash else self.ROWS_TO_PACK)
        return _PACKED if many and not cached else _DIRECT

    def _by_rows(self, p: GemmProblem, epilogue: Epilogue) -> bool:
        """Whether most of the time goes by with what the epilogue reads and stores: row by row,
        memory is faster, if all of b stays cached meanwhile."""
        memory = sum(isinstance(arg, Ref) for arg in epilogue.args) * p.total * p.acc.itemsize
        return p.k <= 128 and memory > 2**21 and p.k * p.n * p.acc.itemsize <= self.ROW_BYTES

    def plan(self, problem: GemmProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        index = problem_index(p)
        by_rows = self._by_rows(p, epilogue)
        micro = self._shape(p, info, by_rows)
        mr, nr = micro.mr, micro.nr
        launches: list[Launch] = []
        workspace: list[int] = []

        def work(nbytes: int) -> Ref:
            workspace.append(nbytes)
            return Ref(f"ws{len(workspace) - 1}")

        def pack(slot: str, dtype, lanes, count, offset, lane_stride, k_stride, batch_strides):
            target = Ref(f"ws{len(workspace)}")
            launch, nbytes, steps = cpu.packing(
                index, lanes, count, p.k, Ref(slot), target, dtype, p.acc, offset, lane_stride,
                k_stride, p.batch, batch_strides,
            )  # fmt: skip
            launches.append(launch)
            return work(nbytes), steps

        (*a_steps, a_row, a_k), (*b_steps, b_k, b_n) = p.a_strides, p.b_strides
        mode_a, mode_b = self._mode_a(p, micro, info), self._mode_b(p, micro, by_rows)
        a, a_offset, a_panel, a_type, direct_a = Ref("a"), p.a_offset, mr * a_row, p.a, True
        if mode_a is None:
            a, a_steps = pack("a", p.a, mr, p.m, a_offset, a_row, a_k, p.a_strides[:3])
            a_offset, a_panel, a_row, a_k, a_type = 0, p.k * mr, 1, mr, p.acc
            mode_a, direct_a = 1, False
        b, b_offset, b_panel, b_type = Ref("b"), p.b_offset, nr * b_n, p.b
        if mode_b == _PACKED:
            b, b_steps = pack("b", p.b, nr, p.n, b_offset, b_n, b_k, p.b_strides[:3])
            b_offset, b_panel, b_k, b_n, b_type = 0, p.k * nr, nr, 1, p.acc

        row_panels, panels = ceil_div(p.m, mr), ceil_div(p.n, nr)
        tiles = row_panels * panels * p.batches
        splits, slice_ = self._splits(p, info, tiles, mr * nr)
        tiles *= splits
        per = _share(tiles, mr * nr * slice_, info)
        items = ceil_div(tiles, per)
        apart = mode_b == _DIRECT or (direct_a and mode_a == 1)
        own = self.CACHED_BYTES // (nr * p.acc.itemsize)
        most = self.DEPTH_APART if apart else own if mode_b == _OWN else self.DEPTH
        depth = ceil_div(slice_, ceil_div(slice_, most))
        blocks = ceil_div(row_panels * mr * depth * p.acc.itemsize, self.ROW_BYTES)
        chunk = 1 if by_rows else ceil_div(row_panels, min(blocks, row_panels))
        tile_bytes = mr * nr * p.acc.itemsize
        group = per
        scratch = []
        if stepwise := depth < slice_:
            group = min(per, max(1, self.CACHED_BYTES // (tile_bytes * chunk)) * chunk)
            scratch.append(work(items * group * tile_bytes))
        if mode_b == _OWN:
            scratch.append(work(items * depth * nr * p.acc.itemsize))
        # Small operands are cached anyway.
        fetch = mode_b == _DIRECT and p.k * p.n * p.b.itemsize > 2**17
        inner = epilogue
        if splits > 1:
            partial = work(splits * p.total * p.acc.itemsize)
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", partial.slot)
        names = dict(
            A_MODE=mode_a, A_DIRECT=int(direct_a), B_MODE=mode_b, STEPWISE=int(stepwise),
            FETCH=ceil_div(micro.nv, chunk) if fetch else 0,
            SAME_TYPE=int(p.b.storage == p.acc.compute),
        )  # fmt: skip
        source = (
            prelude(index, A=a_type, B=b_type, ACC=p.acc)
            + micro.source(p.acc, info, depth)
            + inner.defines
            + "#define PRODUCT\n"
            + "".join(f"#define {k} {v}\n" for k, v in names.items())
            + cl_source("gemm_cpu.cl")
        )
        ints = (
            p.m, p.n, p.k, splits, slice_, depth, chunk, group, tiles, per, *p.batch[1:],
        )  # fmt: skip
        longs = (
            a_offset, b_offset, a_panel, a_row, a_k, b_panel, b_k, b_n, *a_steps, *b_steps,
        )  # fmt: skip
        args = (
            a, b, *scratch, *(Scalar("int", v) for v in ints), *(Scalar(index, v) for v in longs),
            *inner.args,
        )  # fmt: skip
        launches.append(Launch(source, "gemm_cpu", args, (items,), (1,)))
        if splits > 1:
            launches.append(fold_launch(p.total, splits, p.acc, index, epilogue, partial.slot))
        return Plan(launches, workspace)

    def _splits(self, p: GemmProblem, info, tiles: int, tile: int) -> tuple[int, int]:
        """(number of slices, depth of one): several only where threads would idle for longer than
        another launch takes."""
        units = info.compute_units
        if tiles % units == 0 or tiles * tile * p.k < 2e6 * units:
            return 1, p.k
        room = max(1, MAX_PARTIAL_BYTES // (p.total * p.acc.itemsize))
        slice_ = ceil_div(p.k, max(1, min(ceil_div(units * 3, tiles), p.k // 256, room)))
        return ceil_div(p.k, slice_), slice_


def _share(tiles: int, tile_work: int, info) -> int:
    """How many tiles one work-item takes: as many as there are for each thread, for they share what
    is cached; less where work is plenty, so that a thread that is held up does not hold up all."""
    units = info.compute_units
    work = tiles * tile_work
    items = min(units, work // 2e5)
    if items == units:
        items = max(1, min(6, work // (units * 2 * 10**7))) * units
    return ceil_div(tiles, max(1, min(items, tiles)))


SOLVERS: tuple[Solver, ...] = (
    Direct(),
    Skinny(),
    Panels(),
    wgmma_gemm.Wgmma(),
    wgmma_turned.Wgmma(),
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
    *(
        kind(shape, split)
        for kind in (wgmma_gemm.Wgmma, wgmma_turned.Wgmma)
        for shape in kind.shapes
        for split in SLICES
    ),
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
    solver = database.choose_for("gemm", SOLVERS, VARIANTS, problem, info, epilogue)
    return solver.plan(problem, info, epilogue)


def cost(problem: GemmProblem, info) -> float:
    """The cost of the solver that `plan` takes."""
    problem = normalise(problem)
    return database.choose("gemm", SOLVERS, VARIANTS, problem, info).cost(problem, info)
