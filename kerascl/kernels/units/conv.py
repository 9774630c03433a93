"""Convolutions and their gradients on the matrix units of sub-groups."""

from __future__ import annotations

import math

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    gemm_shape,
    kind_defines,
    product_params,
)
from kerascl.kernels.units.tile import COPY, FragmentSolver, Side, solvers, widest_copy


def conv_sides(p: ConvProblem, bk: int) -> tuple[Side, Side]:
    """Both sides of a convolution."""
    channels, filters, last = p.x_shape[-1], p.w_shape[-1], not p.channels_first
    depth, wide = p.w_shape[-2], p.w_shape[-1] // p.groups
    by_c = widest_copy(p.a, channels, depth)
    by_f = widest_copy(p.a, filters, wide)
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


def _divisor(n: int) -> tuple[int, int]:
    """(factor, shift) with i // n == i * factor >> shift for 0 <= i < 2**31 (Granlund and
    Montgomery, Division by invariant integers using multiplication)."""
    shift = 31 + (n - 1).bit_length()
    return -(-(1 << shift) // n), shift


class FragmentConv(FragmentSolver):
    """Convolutions and their gradients, channels first or last."""

    gathers = True

    def applies(self, problem: ConvProblem, info) -> bool:
        return problem.a.is_float and super().applies(problem, info)

    def _kind(self, p: ConvProblem) -> str:
        return p.kind

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
        return tile.time(
            g.m, g.n, depth, g.classes * p.groups, splits, info, p.a, copies, self._share(info),
            self.unit.rate, self._products(p),
        )  # fmt: skip

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
                + cl_source("conv/conv_axis.cl")
                + cl_source("conv/conv_simt.cl")
                + cl_source("units/mma_conv.cl")
                + self._kernel
            )
            args = (Ref("a"), Ref("b"), *params.args, *inner.args)
            groups = tiles_m * ceil_div(shape.n, tile.bn) * splits * p.groups * shape.classes
            return Launch(
                source, "mma_tile", args, (groups * tile.threads,), (tile.threads,),
                self.unit.options,
            )  # fmt: skip

        return self._plan(p, info, epilogue, index, m_fast, launch_of)


CONV_SOLVERS = solvers(FragmentConv, None)
