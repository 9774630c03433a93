"""Products on the matrix units of sub-groups."""

from __future__ import annotations

from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index, stride_args
from kerascl.kernels.matmul.split_k import reduction_time
from kerascl.kernels.tuning import machine
from kerascl.kernels.units.tile import GATHER, FragmentSolver, Side, solvers, widest_copy


def gemm_side(
    dtype: DType, strides: tuple[int, ...], offset: int, row: int, depth: int, rows: int, k: int,
    bk: int,
) -> Side:  # fmt: skip
    """The side of a GEMM operand with strides (batch.., row, column), whose row (m or n) and
    depth strides and sizes are given."""
    along_k = depth == 1 or (row != 1 and abs(depth) < abs(row))
    unit, other, length = (depth, row, k) if along_k else (row, depth, rows)
    copy = widest_copy(dtype, offset, other, *strides[:-2]) if unit == 1 else 1
    if length % copy:
        return Side(along_k, copy, "PART")
    return Side(along_k, copy, "SOME" if k % bk else "FULL")


STREAMS = 0.8  # of the memory's rate, that copies by work-items are taken to reach


class FragmentMatmul(FragmentSolver):
    """GEMM with any strides."""

    gathers = False

    def _sizes(self, p: MatmulProblem):
        return p.m, p.n, p.k, p.batches

    def _sides(self, p: MatmulProblem):
        bk, (row, a_depth), (b_depth, col) = self.tile.bk(p.a), p.a_strides[-2:], p.b_strides[-2:]
        a = gemm_side(p.a, p.a_strides, p.a_offset, row, a_depth, p.m, p.k, bk)
        return a, gemm_side(p.b, p.b_strides, p.b_offset, col, b_depth, p.n, p.k, bk)

    def _time(self, p: MatmulProblem, info, splits: int) -> float:
        tile, bk, units = self.tile, self.tile.bk(p.a), info.compute_units
        time = tile.time(
            p.m, p.n, p.k, p.batches, splits, info, p.a, share=self._share(info),
            rate=self.unit.rate, products=self._products(p),
        )  # fmt: skip
        sides = tuple(zip(self._sides(p), (tile.bm, tile.bn), strict=True))
        # Narrow copies cost issue slots; two-byte ones also wait for memory.
        narrow = sum(16 // (side.copy * p.a.itemsize) - 1 for side, _ in sides)
        alone = sum(rows for side, rows in sides if side.copy * p.a.itemsize == 2)
        groups = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * p.batches * splits
        rounds = ceil_div(groups, 2 * units) * ceil_div(ceil_div(p.k, splits), bk)
        gathering = GATHER * rounds * alone * bk / tile.threads
        rates = machine.of(info)
        time = time * (1 + 0.08 * narrow) + rates.clocks(gathering)
        moving = rates.moving(p.nbytes, STREAMS) + reduction_time(p.total, splits, info)
        return max(time, moving)

    def plan(self, problem: MatmulProblem, info, epilogue: Epilogue) -> Plan:
        p, tile, index = problem, self.tile, problem_index(problem)

        def launch_of(head, splits, slice_, inner):
            source = (
                head
                + cl_source("matmul/gemm_simt.cl")
                + cl_source("units/mma_gemm.cl")
                + self._kernel
            )
            ints = (p.m, p.n, p.k, splits, slice_, p.batch[1], p.batch[2])
            args = (
                Ref("a"), Ref("b"), *(Scalar("int", v) for v in ints), *stride_args(p, index),
                *inner.args,
            )  # fmt: skip
            groups = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * splits * p.batches
            return Launch(
                source, "mma_tile", args, (groups * tile.threads,), (tile.threads,),
                self.unit.options,
            )  # fmt: skip

        return self._plan(p, info, epilogue, index, False, launch_of)


GEMM_SOLVERS = solvers(FragmentMatmul, None)
