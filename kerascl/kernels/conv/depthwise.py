"""Depthwise convolutions: every output channel sees one input channel."""

from __future__ import annotations

import math

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.conv import depthwise_strips
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    ConvProblem,
    conv_index,
    geometry,
    image_strides,
    kind_defines,
    usable,
)
from kerascl.kernels.matmul import cpu
from kerascl.kernels.matmul.cpu import Micro
from kerascl.kernels.matmul.split_k import most_slices, partial_epilogue, reduction_launch
from kerascl.kernels.tuning import machine


class DepthwiseConv(depthwise_strips.Depthwise):
    """Any device, layout and multiplier: a work-item an output element, or lanes over pixels."""

    name = "depthwise"
    ON_GPU, ON_CPU = 0.02, 0.003  # elements are read from memory one by one

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return usable(p, info) and p.w_shape[-2] == 1 and p.groups == p.x_shape[-1]

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, conv_index(problem)
        filters = p.w_shape[-1]
        params = geometry(p).add(
            "int", FILTERS=filters, MULT=filters // p.groups, BATCH=p.x_shape[0]
        )
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        names = zip(("aN", "aP", "aC"), image_strides(gathered, p.channels_first))
        params.add(index, **dict(names))
        head = prelude(index, A=p.a, B=p.b, ACC=p.acc) + kind_defines(p)
        if p.kind != FILTER_GRAD:
            params.add("int", CHANNELS=p.out_shape[-1]).add(index, TOTAL=p.total)
            source = head + params.source + epilogue.defines + cl_source("conv/depthwise.cl")
            args = (Ref("a"), Ref("b"), *params.args, *epilogue.args)
            return Plan([Launch(source, "depthwise_gather", args, (round_up(p.total, 64),), (64,))])
        names = zip(("bN", "bP", "bC"), image_strides(p.y_shape, p.channels_first))
        params.add(index, **dict(names))
        lanes_c, lanes_p = (1, 64) if p.channels_first else (16, 4)
        pixels = math.prod(p.y_shape[:-1])
        groups = ceil_div(filters, lanes_c) * math.prod(p.w_shape[:-2])
        wanted = ceil_div(info.compute_units * 16, groups)
        splits = max(1, min(wanted, pixels // (lanes_p * 16), 256))
        slice_ = ceil_div(pixels, splits)
        splits = ceil_div(pixels, slice_)
        params.add("int", SLICE=slice_)
        inner = epilogue if splits == 1 else partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        source = (
            head + f"#define LC {lanes_c}\n#define LP {lanes_p}\n" + params.source
            + inner.defines + cl_source("conv/depthwise.cl")
        )  # fmt: skip
        args = (Ref("a"), Ref("b"), *params.args, *inner.args)
        threads = lanes_c * lanes_p
        launch = Launch(source, "depthwise_filter", args, (groups * splits * threads,), (threads,))
        if splits == 1:
            return Plan([launch])
        reduction = reduction_launch(p.total, splits, p.acc, index, epilogue)
        return Plan([launch, reduction], [splits * p.total * p.acc.itemsize])


class DepthwiseLines(Solver):
    """CPUs, channels-last, one filter a channel: vectors of channels along image lines."""

    name = "depthwise_lines"
    DEPTH = 512  # pixels in one slice of a filter gradient, about
    EFFICIENCY = 0.23  # share of the rate of multiply-adds

    def _lanes(self, p: ConvProblem, info) -> int:
        widest = cpu.shapes(p.acc, info.simd_width)[0].vl
        return next((n for n in (16, 8, 4, 2) if n <= min(widest, p.x_shape[-1])), 0)

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return (
            info.kind == "cpu"
            and usable(p, info)
            and p.groups == p.x_shape[-1] == p.w_shape[-1]
            and p.w_shape[-2] == 1
            and not p.channels_first
            and p.a.storage == p.b.storage == p.acc.compute
            and self._lanes(p, info) > 0
        )

    def cost(self, problem: ConvProblem, info) -> float:
        if problem.groups == 1:
            return math.inf
        rates = machine.of(info)
        return rates.roofline(problem.products, problem.nbytes, problem.acc, self.EFFICIENCY)

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, conv_index(problem)
        lanes, filters, images = self._lanes(p, info), p.w_shape[-1], p.x_shape[0]
        micro = Micro(1, 1, lanes)
        params = geometry(p).add("int", FILTERS=filters, BATCH=images)
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        params.add(index, **dict(zip(("aN", "aP"), image_strides(gathered, False))))
        inner, workspace, splits = epilogue, [], 1
        if p.kind == FILTER_GRAD:
            lines, blocks = images * math.prod(p.y_shape[1:-2]), ceil_div(filters, lanes)
            wanted = max(
                ceil_div(lines * p.y_shape[-2], self.DEPTH),
                ceil_div(info.compute_units * 4, blocks),
            )
            most = most_slices(p.total, p.acc)
            each = ceil_div(lines, min(wanted, most, lines))
            splits = ceil_div(lines, each)
            items = splits * blocks
            params.add("int", LINES=each)
            if splits > 1:
                offset = f"(INDEX_T)split * {p.total}"
                inner = partial_epilogue(p.acc, offset)
                workspace.append(splits * p.total * p.acc.itemsize)
        else:
            classes = math.prod(p.strides) if p.kind == DATA_GRAD else 1
            steps = p.strides if p.kind == DATA_GRAD else (1,) * p.rank
            lines = images * math.prod(ceil_div(n, s) for n, s in zip(p.out_shape[1:-2], steps))
            items = lines * classes
            params.add("int", LINES=lines)
        source = (
            prelude(index, ACC=p.acc)
            + kind_defines(p)
            + params.source
            + micro.source(p.acc, info)
            + inner.defines
            + cl_source("conv/conv_axis.cl")
            + cl_source("conv/depthwise_cpu.cl")
        )
        args = (Ref("a"), Ref("b"), *params.args, *inner.args)
        launches = [Launch(source, "depthwise_cpu", args, (items,), (1,))]
        if splits > 1:
            launches.append(reduction_launch(p.total, splits, p.acc, index, epilogue))
        return Plan(launches, workspace)


SOLVERS: tuple[Solver, ...] = (DepthwiseLines(), DepthwiseConv(), *depthwise_strips.SOLVERS)
