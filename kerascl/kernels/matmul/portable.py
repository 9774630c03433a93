"""Products on any device: tiles in local memory, and kernels for what is too small for them."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, narrow, prelude
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index, stride_args, usable
from kerascl.kernels.matmul.split_k import (
    partial_epilogue,
    slice_counts,
    vector_reduction_launch,
)
from kerascl.kernels.matmul.tiles import Loads, Tile, ends, load4
from kerascl.kernels.tuning import machine


class DirectMatmul(Solver):
    """One work-item per output element: tiny products, and whatever nothing else takes."""

    name = "direct"
    # Shares of the rates that products read from memory one by one reach.
    ON_GPU, ON_CPU = 0.059, 0.008
    # Of memory's rate, where each of neighbouring work-items reads a row of its own (a vector times
    # 768 x 50257, transposed, on an H100: 164 us, and 60 where neighbours read neighbours).
    APART = 0.36

    def applies(self, problem: MatmulProblem, info) -> bool:
        return usable(problem, info)

    def cost(self, problem: MatmulProblem, info) -> float:
        p, rates = problem, machine.of(info)
        if info.kind == "cpu":
            return rates.launch + rates.multiplying(p.total * p.k, p.acc, self.ON_CPU)
        width = 64 * info.compute_units
        products = ceil_div(p.total, width) * width * (p.k + 16)
        # A work-item waits for its reads, some of which are under way together.
        waits = rates.rounds(p.total) * p.k * rates.latency / 4
        multiplying = rates.multiplying(products, p.acc, self.ON_GPU)
        apart = p.n > 1 and abs(p.b_strides[-1]) > 1
        moving = rates.moving(p.nbytes, self.APART) if apart else rates.moving(p.nbytes)
        return rates.launch + rates.begin + max(multiplying, waits, moving)

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        index = problem_index(p)
        source = (
            prelude(index, A=p.a, B=p.b, ACC=p.acc)
            + epilogue.defines
            + "#define DIRECT\n"
            + cl_source("matmul/gemm_small.cl")
        )
        ints = (p.m, p.n, p.k, p.batch[1], p.batch[2])
        args = (
            Ref("a"), Ref("b"), Scalar(index, p.total), *(Scalar("int", v) for v in ints),
            *stride_args(p, index), *epilogue.args,
        )  # fmt: skip
        return Plan([Launch(source, "gemm_direct", args, (round_up(p.total, 64),), (64,))])


def _steps(p: MatmulProblem) -> list[int]:
    """Elements between neighbours of the operands' rows or columns that are not contiguous."""
    return [max(strides[-2:]) for strides in (p.a_strides, p.b_strides)]


# Clocks of a compute unit that copying an element to local memory takes beside products; none
# where the left operand's rows are read along k.
COPY = 0.055


class TiledMatmul(Solver):
    """A tile of gemm_tile.cl through local memory, its depth split when the groups are few."""

    def __init__(self, tile: Tile, split: int | None = None):
        self.tile = tile
        self.split = split
        self.name = tile.name + (f"s{split}" if split else "")

    def applies(self, problem: MatmulProblem, info) -> bool:
        p = problem
        return usable(p, info) and self.tile.fits(p.acc, Loads(*(n for _, n in _both(p))), info)

    def _splits(self, p: MatmulProblem, info) -> int:
        counts = slice_counts(self.split, p.total, p.acc, p.k, self.tile.bk(p.acc))
        return min(counts, key=lambda s: self._time(p, info, s))

    def _time(self, p: MatmulProblem, info, splits: int) -> float:
        (along_k, av), (_, bv) = _both(p)
        copies = 0.0 if along_k else COPY, COPY
        registers = self.tile.registers(p.acc, Loads(av, bv))
        time = self.tile.time(
            p.m, p.n, p.k, p.batches, splits, p.acc, p.nbytes, info, copies, registers
        )  # fmt: skip
        if p.a.itemsize == 2 and any(s % 4 for s in _steps(p)):
            time *= 2  # elements gathered one by one
        return time

    def cost(self, problem: MatmulProblem, info) -> float:
        time = self._time(problem, info, self._splits(problem, info))
        return machine.of(info).launch + time

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        p, tile = problem, self.tile
        index = problem_index(p)
        bk = tile.bk(p.acc)
        splits = self._splits(p, info)
        slice_ = round_up(ceil_div(p.k, splits), bk)
        splits = ceil_div(p.k, slice_)
        (a_along_k, av), (b_along_k, bv) = _both(p)
        whole = p.n % 4 == 0
        slices = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", aligned=whole)
        inner = epilogue if splits == 1 else slices
        source = (
            prelude(index, A=p.a, B=p.b, ACC=p.acc)
            + load4("A", p.a, p.acc)
            + load4("B", p.b, p.acc)
            + narrow(info)
            + tile.defines(p.acc, av, bv, a_along_k, b_along_k, info)
            + ends(inner, whole, info, tile)
            + inner.defines
            + cl_source("matmul/gemm_simt.cl")
            + cl_source("matmul/gemm_tile.cl")
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
        reduction = vector_reduction_launch(p.total, splits, p.acc, index, epilogue, info)
        return Plan([launch, reduction], [splits * p.total * p.acc.itemsize])


def _both(p: MatmulProblem) -> tuple[tuple[bool, int], tuple[bool, int]]:
    """`_loads` of both operands."""
    return (
        _loads(p.a_strides, p.a_offset, p.m, p.k, row_axis=-2, k_axis=-1),
        _loads(p.b_strides, p.b_offset, p.n, p.k, row_axis=-1, k_axis=-2),
    )


def _loads(strides, offset: int, rows: int, k: int, row_axis: int, k_axis: int) -> tuple[bool, int]:
    """Whether loads should run along k, and how many elements each may take (1 or 4)."""
    row, depth = strides[row_axis], strides[k_axis]
    along_k = depth == 1 or (row != 1 and abs(depth) < abs(row))
    unit, other, length = (depth, row, k) if along_k else (row, depth, rows)
    whole = all(s % 4 == 0 for s in (*strides[:-2], offset, other, length))
    return along_k, 4 if unit == 1 and whole else 1
