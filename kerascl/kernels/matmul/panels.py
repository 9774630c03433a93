"""Products on CPUs: register blocks over packed panels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar, Workspace
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.matmul import computed as operands
from kerascl.kernels.matmul import cpu
from kerascl.kernels.matmul.cpu import Micro
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index, usable
from kerascl.kernels.matmul.split_k import most_slices, partial_epilogue, reduction_launch
from kerascl.kernels.tuning import machine

# B_MODE of gemm_cpu.cl.
_DIRECT, _OWN, _PACKED = range(3)


@dataclass(frozen=True)
class _Operand:
    """An operand as the kernel reads it.

    Attributes:
        matrix: where it lies.
        buffer, dtype, offset: of what is read.
        mode: A_MODE or B_MODE.
        direct: whether it is read where it lies.
        panel: elements from panel to panel.
        strides: those that `matrix` has, as kernels take them: rows and k of a, k and columns of b.
        steps: between batch entries.
    """

    matrix: cpu.Operand
    buffer: Ref
    dtype: DType
    mode: int | None
    direct: bool
    offset: int
    panel: int
    strides: tuple[int, int]
    steps: tuple[int, ...]

    def packed(self, buffer: Ref, lanes: int, acc: DType, steps: tuple[int, ...]) -> _Operand:
        """The same in panels."""
        left = self.mode is None
        return dataclasses.replace(
            self, buffer=buffer, dtype=acc, mode=1 if left else self.mode, direct=False, offset=0,
            panel=self.matrix.k * lanes, strides=(1, lanes) if left else (lanes, 1), steps=steps,
        )  # fmt: skip


@dataclass(frozen=True)
class _Cut:
    """How a product is shared out.

    Attributes:
        splits, slice: slices of the depth, and how deep they are.
        depth: what is read at a time.
        chunk, group: row panels, and tiles, that are taken together.
        tiles, per, items: tiles in all, of one work-item, and work-items.
        scratch: bytes of workspace that the kernel uses as it likes.
    """

    splits: int
    slice: int
    depth: int
    chunk: int
    group: int
    tiles: int
    per: int
    items: int
    scratch: tuple[int, ...]


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
    # Rows up to which b is computed as it is read: it is made anew for each block of them.
    ROWS_TO_COMPUTE = 8
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
        p, rates = problem, machine.of(info)
        work = p.batches * p.k * cpu.best(p.acc, info, p.m, p.n).work(p.m, p.n)
        stored = p.total * p.acc.itemsize
        return (
            rates.launch + rates.multiplying(work, p.acc, cpu.EFFICIENCY) + rates.moving(stored)
        )

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

    def computes(self, problem: MatmulProblem, info) -> str | None:
        p = problem
        few = p.batches == 1 and p.m <= self.ROWS_TO_COMPUTE and not self.pack
        return "b" if few and not p.acc.is_complex else None

    def computes_well(self, problem: MatmulProblem, info, computed: Computed) -> bool:
        # Compilers make vectors of nothing else, and without these it takes far longer.
        return _columns(problem, computed).reading.steady

    def plan_computing(
        self, problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed
    ) -> Plan:
        return self.plan(problem, info, epilogue, computed)

    def plan(
        self, problem: MatmulProblem, info, epilogue: Epilogue, computed: Computed | None = None
    ) -> Plan:
        p, index = problem, problem_index(problem)
        by_rows = self._by_rows(p, epilogue)
        micro = self._shape(p, info, by_rows)
        launches: list[Launch] = []
        workspace = Workspace()
        a, b = self._left(p, micro, info), self._right(p, micro, by_rows)
        near = None
        if computed is not None:
            b = dataclasses.replace(b, mode=_OWN)
            near = _columns(p, computed)
        read = []
        for given, lanes, packed in (
            (a, micro.mr, a.mode is None),
            (b, micro.nr, b.mode == _PACKED),
        ):
            if packed:
                target = Ref(f"ws{len(workspace)}")
                launch, nbytes, steps = cpu.packing(given.matrix, lanes, p.acc, index, target)
                launches.append(launch)
                workspace.room(nbytes)
                given = given.packed(target, lanes, p.acc, steps)
            read.append(given)
        a, b = read
        cut = self._cut(p, micro, info, a, b, by_rows)
        scratch = [Ref(workspace.room(nbytes)) for nbytes in cut.scratch]
        inner, slot = epilogue, ""
        if cut.splits > 1:
            slot = workspace.room(cut.splits * p.total * p.acc.itemsize)
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", slot)
        b_args: tuple[Arg, ...] = (b.buffer,) if near is None else near.reading.args
        source = self._source(p, index, micro, info, a, b, cut, inner, near)
        ints = (
            p.m, p.n, p.k, cut.splits, cut.slice, cut.depth, cut.chunk, cut.group, cut.tiles,
            cut.per, *p.batch[1:],
        )  # fmt: skip
        longs = (a.offset, b.offset, a.panel, *a.strides, b.panel, *b.strides, *a.steps, *b.steps)
        args: tuple[Arg, ...] = (
            a.buffer, *b_args, *scratch, *(Scalar("int", v) for v in ints),
            *(Scalar(index, v) for v in longs), *inner.args,
        )  # fmt: skip
        launches.append(Launch(source, "gemm_cpu", args, (cut.items,), (1,)))
        if slot:
            launches.append(reduction_launch(p.total, cut.splits, p.acc, index, epilogue, slot))
        return Plan(launches, workspace)

    def _left(self, p: MatmulProblem, micro: Micro, info) -> _Operand:
        """The left operand where it lies; without a mode where it must be packed."""
        *steps, row, k = p.a_strides
        matrix = cpu.Operand(Ref("a"), p.a, p.m, p.k, row, k, p.a_offset, p.batch, p.a_strides[:3])
        mode = self._mode_a(p, micro, info)
        return _Operand(
            matrix, Ref("a"), p.a, mode, True, p.a_offset, micro.mr * row, (row, k), tuple(steps)
        )

    def _right(self, p: MatmulProblem, micro: Micro, by_rows: bool) -> _Operand:
        """The right operand where it lies."""
        *steps, k, column = p.b_strides
        matrix = cpu.Operand(
            Ref("b"), p.b, p.n, p.k, column, k, p.b_offset, p.batch, p.b_strides[:3]
        )
        mode, panel = self._mode_b(p, micro, by_rows), micro.nr * column
        return _Operand(
            matrix, Ref("b"), p.b, mode, True, p.b_offset, panel, (k, column), tuple(steps)
        )

    def _cut(
        self, p: MatmulProblem, micro: Micro, info, a: _Operand, b: _Operand, by_rows: bool
    ) -> _Cut:
        """How the product is shared out."""
        mr, nr, nbytes = micro.mr, micro.nr, p.acc.itemsize
        row_panels = ceil_div(p.m, mr)
        tiles = row_panels * ceil_div(p.n, nr) * p.batches
        splits, slice_ = self._splits(p, info, tiles, mr * nr)
        tiles *= splits
        per = _share(tiles, mr * nr * slice_, info)
        items = ceil_div(tiles, per)
        apart = b.mode == _DIRECT or (a.direct and a.mode == 1)
        own = self.CACHED_BYTES // (nr * nbytes)
        most = self.DEPTH_APART if apart else own if b.mode == _OWN else self.DEPTH
        depth = ceil_div(slice_, ceil_div(slice_, most))
        blocks = ceil_div(row_panels * mr * depth * nbytes, self.ROW_BYTES)
        chunk = 1 if by_rows else ceil_div(row_panels, min(blocks, row_panels))
        group, scratch = per, []
        if depth < slice_:
            group = min(per, max(1, self.CACHED_BYTES // (mr * nr * nbytes * chunk)) * chunk)
            scratch.append(items * group * mr * nr * nbytes)
        if b.mode == _OWN:
            scratch.append(items * depth * nr * nbytes)
        return _Cut(splits, slice_, depth, chunk, group, tiles, per, items, tuple(scratch))

    def _source(
        self, p: MatmulProblem, index: str, micro: Micro, info, a: _Operand, b: _Operand,
        cut: _Cut, epilogue: Epilogue, near: operands.Neighbours | None,
    ) -> str:  # fmt: skip
        if near is not None:
            epilogue = dataclasses.replace(
                epilogue,
                helpers=tuple(dict.fromkeys((*near.reading.helpers, *epilogue.helpers))),
                uses_double=epilogue.uses_double or near.reading.uses_double,
            )
        # Small operands are cached anyway.
        fetch = b.mode == _DIRECT and p.k * p.n * p.b.itemsize > 2**17
        names = dict(
            A_MODE=a.mode, A_DIRECT=int(a.direct), B_MODE=b.mode,
            STEPWISE=int(cut.depth < cut.slice),
            FETCH=ceil_div(micro.nv, cut.chunk) if fetch else 0,
            SAME_TYPE=int(p.b.storage == p.acc.compute),
        )  # fmt: skip
        return (
            prelude(index, A=a.dtype, B=b.dtype, ACC=p.acc)
            + micro.source(p.acc, info, cut.depth)
            + epilogue.defines
            + "#define PRODUCT\n"
            + ("" if near is None else _computed(near, index))
            + defines(**names)
            + cl_source("matmul/gemm_cpu.cl")
        )

    def _splits(self, p: MatmulProblem, info, tiles: int, tile: int) -> tuple[int, int]:
        """(number of slices, depth of one): several only where threads would idle for longer than
        another launch takes."""
        units = info.compute_units
        if tiles % units == 0 or tiles * tile * p.k < 2e6 * units:
            return 1, p.k
        room = most_slices(p.total, p.acc)
        slice_ = ceil_div(p.k, max(1, min(ceil_div(units * 3, tiles), p.k // 256, room)))
        return ceil_div(p.k, slice_), slice_


def _columns(p: MatmulProblem, computed: Computed) -> operands.Neighbours:
    """How neighbouring columns of b are computed, in a loop that compilers make vectors of."""
    columns, depth = operands.Side(p.n, p.b_strides[-1]), operands.Side(p.k, p.b_strides[-2])
    return operands.along(False, computed, columns, depth, p.b_offset, (1, 2), joined=False)


def _computed(near: operands.Neighbours, index: str) -> str:
    """What gemm_cpu.cl must know of a right operand that is computed."""
    params = "".join(f", {param}" for param in near.reading.params).replace("* ", "* restrict ")
    stores = "".join(
        f"to_[{j}] = (ACC_T){value}; " for j, value in enumerate(near.reading.values)
    )
    return (
        f"#define B_PARAMS {params}\n#define B_WIDE {near.width}\n"
        f"#define B_FIXED(k_) {near.fixed(index, '(k_)')}\n"
        "#define B_COMPUTED(given_to_, j_) { __global ACC_T* to_ = (given_to_); "
        f"{near.each(index, '(j_)')} {stores}}}\n"
    )


def _share(tiles: int, tile_work: int, info) -> int:
    """How many tiles one work-item takes: as many as there are for each thread, for they share what
    is cached; less where work is plenty, so that a thread that is held up does not hold up all."""
    units = info.compute_units
    work = tiles * tile_work
    items = min(units, work // 2e5)
    if items == units:
        items = max(1, min(6, work // (units * 2 * 10**7))) * units
    return ceil_div(tiles, max(1, min(items, tiles)))
