"""Products on CPUs: register blocks over packed panels."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.matmul import cpu
from kerascl.kernels.matmul.cpu import Micro
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index, usable
from kerascl.kernels.matmul.split_k import MAX_PARTIAL_BYTES, partial_epilogue, reduction_launch

# B_MODE of gemm_cpu.cl.
_DIRECT, _OWN, _PACKED = range(3)


class PanelMatmul(Solver):
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

    def applies(self, problem: MatmulProblem, info) -> bool:
        return info.kind == "cpu" and usable(problem, info)

    def cost(self, problem: MatmulProblem, info) -> float:
        p = problem
        work = cpu.best(p.acc, info, p.m, p.n).work(p.m, p.n) * p.k / 16 + p.m * p.n
        return p.batches * work / info.compute_units + 3e4

    def _shape(self, p: MatmulProblem, info, by_rows: bool) -> Micro:
        if self.micro:
            return self.micro
        micro = cpu.best(p.acc, info, p.m, p.n)
        if self._mode_b(p, micro, by_rows) == _DIRECT:
            return cpu.best(p.acc, info, p.m, p.n, most_columns=p.n)
        return micro

    def _mode_a(self, p: MatmulProblem, micro: Micro, info) -> int | None:
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

    def _mode_b(self, p: MatmulProblem, micro: Micro, by_rows: bool) -> int:
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

    def _by_rows(self, p: MatmulProblem, epilogue: Epilogue) -> bool:
        """Whether most of the time goes by with what the epilogue reads and stores: row by row,
        memory is faster, if all of b stays cached meanwhile."""
        memory = sum(isinstance(arg, Ref) for arg in epilogue.args) * p.total * p.acc.itemsize
        return p.k <= 128 and memory > 2**21 and p.k * p.n * p.acc.itemsize <= self.ROW_BYTES

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        index = problem_index(p)
        by_rows = self._by_rows(p, epilogue)
        micro = self._shape(p, info, by_rows)
        mr, nr = micro.mr, micro.nr
        launches: list[Launch] = []
        workspace: list[int] = []
        b0, b1, b2 = p.batch

        def work(nbytes: int) -> Ref:
            workspace.append(nbytes)
            return Ref(f"ws{len(workspace) - 1}")

        def pack(slot: str, dtype, lanes, count, offset, lane_stride, k_stride, batch_strides):
            target = Ref(f"ws{len(workspace)}")
            launch, nbytes, steps = cpu.packing(
                index, lanes, count, p.k, Ref(slot), target, dtype, p.acc, offset, lane_stride,
                k_stride, (b0, b1, b2), batch_strides,
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
            + cl_source("matmul/gemm_cpu.cl")
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
            launches.append(reduction_launch(p.total, splits, p.acc, index, epilogue, partial.slot))
        return Plan(launches, workspace)

    def _splits(self, p: MatmulProblem, info, tiles: int, tile: int) -> tuple[int, int]:
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
