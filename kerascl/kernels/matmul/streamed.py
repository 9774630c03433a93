"""Products of a few rows on CPUs, as of generated text: the long operand is read as it lies."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.contract.vectors import vector_macros
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index
from kerascl.kernels.matmul.skinny import Side, sides
from kerascl.kernels.tuning import machine

VECTOR = 16  # neighbours that are read at once


class StreamedMatmul(Solver):
    """CPUs, one side of at most four: sums stay in the first-level cache, and memory is read in
    the order in which it lies."""

    name = "streamed"
    MOST = 4
    MOST_WHOLE = 1  # of float32 whose rows lie apart, which panels read as fast for more
    LEAST = 32  # rows and depth
    DEPTH = 16  # multiplied at once: of one row of the short side
    SUMS = 256  # of a work-item, that stay near
    ITEM_BYTES = 1 << 16  # of the long operand, that pay for one more work-item
    EFFICIENCY = 0.6  # share of the rate of large products

    def applies(self, problem: MatmulProblem, info) -> bool:
        p = problem
        if info.kind != "cpu" or p.batches != 1 or p.acc.name != "float32":
            return False
        long, short, rows, count, _ = sides(p)
        if any(t.compute != "float" or t.is_float8 for t in (p.a, p.b)):
            return False
        whole = long.row == 1 and long.dtype.itemsize == 4
        if count > (self.MOST_WHOLE if whole else self.MOST) or min(rows, p.k) < self.LEAST:
            return False
        return long.row == 1 or (long.depth == 1 and short.depth == 1)

    def cost(self, problem: MatmulProblem, info) -> float:
        p, rates = problem, machine.of(info)
        return rates.launch + rates.multiplying(p.m * p.n * p.k, p.acc, self.EFFICIENCY)

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, problem_index(problem)
        long, short, count, short_rows, steps = sides(p)
        along_k = long.row != 1
        rows = self._rows(p, info, long, count, along_k)
        names = dict(
            ALONG_K=int(along_k), SHORT=short_rows, ROWS=rows, R_STEP=steps[0],
            DEPTH=max(4, self.DEPTH // short_rows),
        )  # fmt: skip
        lacks = "#define NO_FMA\n" if "no_fma16" in info.quirks else ""
        source = (
            prelude(index, L=long.dtype, S=short.dtype, ACC=p.acc)
            + epilogue.defines
            + defines(**names)
            + lacks
            + vector_macros(VECTOR, L=long.dtype, S=short.dtype)
            + cl_source("matmul/streamed.cl")
        )
        longs = (
            p.k, long.offset, short.offset, long.row, long.depth, short.row, short.depth,
            steps[1],
        )  # fmt: skip
        args = (
            Ref(long.slot), Ref(short.slot), Scalar("int", count),
            *(Scalar(index, n) for n in longs), *epilogue.args,
        )  # fmt: skip
        return Plan([Launch(source, "gemm_streamed", args, (ceil_div(count, rows),), (1,))])

    def _rows(self, p: MatmulProblem, info, long: Side, count: int, along_k: bool) -> int:
        """Of a work-item: as many for each, and several items a thread only where sums take it."""
        nbytes = count * p.k * long.dtype.itemsize
        items = max(1, min(info.compute_units, nbytes // self.ITEM_BYTES))
        if not along_k:
            items *= ceil_div(count, items * self.SUMS)
        return round_up(ceil_div(count, items), VECTOR)
