"""Convolutions on CPUs: register blocks over packed weights."""

from __future__ import annotations

import math

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    gemm_shape,
    geometry,
    image_strides,
    kind_defines,
    usable,
)
from kerascl.kernels.matmul import cpu
from kerascl.kernels.matmul.cpu import Micro
from kerascl.kernels.matmul.split_k import most_slices, partial_epilogue, reduction_launch
from kerascl.kernels.tuning import machine


class PanelConv(Solver):
    """CPUs: register blocks without barriers over packed weights (packed dy for the filter
    gradient unless it is channels-last); x is read where it lies."""

    name = "panels"
    NARROW = 0.1  # of the usual efficiency where a group's filters fill no vector
    DEPTH = 512  # pixels in one slice of a filter gradient, about: its operands stay cached

    def __init__(self, micro: Micro | None = None, lines: int | None = None):
        self.micro = micro
        self.lines = lines
        if micro:
            self.name = f"panels{micro.mr}x{micro.nv}"

    def applies(self, problem: ConvProblem, info) -> bool:
        return info.kind == "cpu" and usable(problem, info)

    def cost(self, problem: ConvProblem, info) -> float:
        p, rates, g = problem, machine.of(info), gemm_shape(problem)
        micro = cpu.best(p.acc, info, g.m, g.n)
        work = micro.work(g.m, g.n) * g.k * g.classes * p.groups
        efficiency = cpu.EFFICIENCY * (self.NARROW if g.n < micro.vl else 1.0)
        # Weights, or dy, are packed first.
        return 2 * rates.launch + rates.multiplying(work, p.acc, efficiency)

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        if problem.kind == FILTER_GRAD:
            return self._filter_grad(problem, info, epilogue)
        p = problem
        g, index = gemm_shape(p), conv_index(p)
        micro = self.micro or cpu.best(p.acc, info, g.m, g.n)
        filters, taps = p.w_shape[-1], math.prod(p.w_shape[:-2])
        # Weights as (tap, depth channel) by columns, whichever of the two is contiguous.
        depth_stride, column_stride = (filters, 1) if p.kind == FORWARD else (1, filters)
        zeros = (
            0
            if p.channels_first
            else p.w_shape[-3] * g.channels * max(1, p.a.itemsize // p.acc.itemsize)
        )
        weights = cpu.Operand(
            Ref("b"), p.b, g.n, taps * g.channels, column_stride, depth_stride, 0,
            (1, 1, p.groups), (0, 0, filters // p.groups), (g.channels, p.w_shape[-2] * filters),
        )  # fmt: skip
        pack, nbytes, _ = cpu.packing(weights, micro.nr, p.acc, index, Ref("ws0"), zeros or 1)
        row_panels = ceil_div(g.m, micro.mr)
        others = ceil_div(g.n, micro.nr) * p.groups * g.classes
        work = micro.mr * micro.nr * g.k
        chunk = cpu.chunk(row_panels, others, info, work)
        chunks = ceil_div(row_panels, chunk)
        per = cpu.chunk(chunks * others, 1, info, work * chunk)
        params = geometry(p).add(
            "int", BATCH=p.x_shape[0], CIN=g.channels, COUT=g.n, GROUPS=p.groups, CHUNK=chunk,
            CHUNKS=chunks, UNITS=chunks * others, PER=per,
        )  # fmt: skip
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        strides = zip(("aN", "aP", "aC"), image_strides(gathered, p.channels_first))
        params.add(index, **dict(strides))
        strides = zip(("oN", "oP", "oC"), image_strides(p.out_shape, p.channels_first))
        params.add(index, **dict(strides))
        launch = self._launch(
            p, index, micro, params, epilogue, info, ceil_div(chunks * others, per)
        )
        return Plan([pack, launch], [nbytes])

    def _filter_grad(self, p: ConvProblem, info, epilogue: Epilogue) -> Plan:
        g, index = gemm_shape(p), conv_index(p)
        channels = g.channels
        micro = self.micro or cpu.best(p.acc, info, channels, g.n, channels, g.n)
        images, pixels, width = p.x_shape[0], math.prod(p.y_shape[1:-1]), p.y_shape[-2]
        direct = not p.channels_first and p.b.storage == p.acc.compute and g.n >= micro.nr
        launches, workspace, operand = [], [], "b"
        if not direct:
            image_step, pixel_step, filter_step = image_strides(p.y_shape, p.channels_first)
            operand = "ws0"
            dy = cpu.Operand(
                Ref("b"), p.b, g.n, images * pixels, filter_step, pixel_step, 0,
                (1, 1, p.groups), (0, 0, g.n * filter_step), (pixels, image_step),
            )  # fmt: skip
            pack, nbytes, _ = cpu.packing(dy, micro.nr, p.acc, index, Ref(operand))
            launches.append(pack)
            workspace.append(nbytes)
        tiles = math.prod(p.w_shape[:-2]) * ceil_div(channels, micro.mr)
        tiles *= ceil_div(g.n, micro.nr) * p.groups
        all_lines = images * pixels // width
        most = most_slices(p.total, p.acc)
        wanted = max(
            ceil_div(all_lines * width, self.DEPTH), ceil_div(info.compute_units * 4, tiles)
        )
        lines = self.lines or ceil_div(all_lines, min(wanted, most, all_lines))
        splits = ceil_div(all_lines, lines)
        per = cpu.chunk(tiles * splits, 1, info, micro.mr * micro.nr * lines * width)
        params = geometry(p).add(
            "int", BATCH=images, CIN=channels, COUT=g.n, GROUPS=p.groups, LINES=lines,
            UNITS=tiles * splits, PER=per,
        )  # fmt: skip
        strides = zip(("aN", "aP", "aC"), image_strides(p.x_shape, p.channels_first))
        params.add(index, **dict(strides))
        inner, slot = epilogue, f"ws{len(workspace)}"
        if splits > 1:
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", slot)
            workspace.append(splits * p.total * p.acc.itemsize)
        items = ceil_div(tiles * splits, per)
        launches.append(self._launch(p, index, micro, params, inner, info, items, operand, direct))
        if splits > 1:
            launches.append(reduction_launch(p.total, splits, p.acc, index, epilogue, slot))
        return Plan(launches, workspace)

    @staticmethod
    def _launch(
        p, index, micro, params, epilogue, info, items, operand="ws0", direct=False
    ) -> Launch:
        source = (
            prelude(index, A=p.a, ACC=p.acc)
            + kind_defines(p)
            + f"#define B_DIRECT {int(direct)}\n"
            + params.source
            + micro.source(p.acc, info, 0 if p.kind == FILTER_GRAD else gemm_shape(p).k)
            + epilogue.defines
            + cl_source("conv/conv_axis.cl")
            + cl_source("conv/conv_cpu.cl")
        )
        args = (Ref("a"), Ref(operand), *params.args, *epilogue.args)
        return Launch(source, "conv_cpu", args, (items,), (1,))
