"""Depthwise convolutions for GPUs: strips of columns in registers, bound by memory.

Channels-last, one filter a channel, no dilation, one or two spatial dimensions.  The general
kernel (depthwise.py) loads an input value once for every tap; here a work-item walks down a strip
and loads it about once, several channels in one instruction.
"""

from __future__ import annotations

import math

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div, index_type, last_power, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, narrow, prelude
from kerascl.kernels.contract.vectors import vector_macros
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, ConvProblem, conv_index, usable
from kerascl.kernels.tuning import machine

_GROUP = 256  # work-items of a group
_REDUCE_LANES = 32
_REGISTERS = 176  # words that a work-item's arrays may take
_OTHERS = 36  # of a work-item's registers, for addresses and epilogues
_FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


class Depthwise(Solver):
    """The cost of a depthwise convolution: `ON_GPU` and `ON_CPU` are the shares of the rates that
    products reach."""

    ON_GPU: float
    ON_CPU: float

    def cost(self, problem: ConvProblem, info) -> float:
        # With one group it is an ordinary convolution of one channel.
        if problem.groups == 1:
            return math.inf
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        rates, launches = machine.of(info), 2 if problem.kind == FILTER_GRAD else 1
        return rates.roofline(problem.products, problem.nbytes, problem.acc, efficiency, launches)


class DepthwiseStrips(Depthwise):
    """Strips of `strip` columns, walked `rows` output rows at a time (None: what suits).

    A filter gradient splits the strips over about `groups` work-groups a compute unit; their
    partial sums are added in a fixed order.  As in every implicit GEMM here, what lies outside an
    image counts as zero, so that an infinite weight next to padding gives NaN.
    """

    ON_GPU, ON_CPU = 0.3, 0.03

    def __init__(self, strip: int | None = None, rows: int | None = None, groups: int = 4):
        self.strip = strip
        self.rows = rows
        self.groups = groups
        self.name = "depthwise_strips"
        if strip:
            self.name += f"{strip}x{rows or 0}g{groups}"

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return (
            usable(p, info)
            and p.rank == 2
            and p.groups == p.x_shape[-1] == p.w_shape[-1]
            and p.w_shape[-2] == 1
            and not p.channels_first
            and set(p.dilation) == {1}
            and p.a in _FLOATS
            and p.b in _FLOATS
            and p.acc is dtypes.float32
            and max(p.strides) <= 4
            and info.max_work_group_size >= _GROUP
            and self._shape(p, info) is not None
        )

    def _shape(self, p: ConvProblem, info) -> tuple[int, int] | None:
        """Lanes of channels and columns of a strip whose arrays fit the registers."""
        scatter = p.kind == DATA_GRAD and max(p.strides) > 1
        (kh, kw), (sh, sw) = p.w_shape[:2], p.strides
        deep, wide = ceil_div(kh, sh), ceil_div(kw, sw)
        # Measured on an H200: two columns where rows of two images are in registers, else four.
        strips: tuple[int, ...] = (4, 2, 1) if p.kind != FILTER_GRAD and not scatter else (2, 1)
        strips = (self.strip,) if self.strip else strips
        room, ahead = _REGISTERS, 1
        if info.registers:  # whose compilers load the input rows of a step before they use them
            room, ahead = min(room, info.registers - _OTHERS), min(sh, kh)
        for lanes in (4, 2, 1):
            if p.x_shape[-1] % lanes:
                continue
            for t in strips:
                if scatter:
                    walk = deep * (t + wide - 1) + sw * t
                else:
                    walk = deep * t + ahead * ((t - 1) * sw + kw)
                words = lanes * (kh * kw + walk)
                if words <= room or lanes == t == 1 and words <= _REGISTERS:  # the least is left
                    return lanes, t
        return None

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, conv_index(problem)
        found = self._shape(p, info)
        assert found is not None
        lanes, strip = found
        (kh, kw), (sh, sw) = p.w_shape[:2], p.strides
        images, channels = p.x_shape[0], p.x_shape[-1]
        pads = [low for low, _ in p.pads]
        gathered, out = (p.y_shape, p.x_shape) if p.kind == DATA_GRAD else (p.x_shape, p.y_shape)
        height, width = out[1:3]
        kind, params, flip = "GATHER", Params(), 0
        if p.kind == FILTER_GRAD:
            kind = "FILTER"
        elif p.kind == DATA_GRAD and (sh, sw) == (1, 1):
            flip, pads = 1, [kh - 1 - pads[0], kw - 1 - pads[1]]
        elif p.kind == DATA_GRAD:
            # Steps in units of the stride, counted from the one that holds row (column) 0 of dx.
            kind = "SCATTER"
            lows = [q // s for q, s in zip(pads, (sh, sw))]
            highs = [(n - 1 + q) // s + 1 for n, q, s in zip((height, width), pads, (sh, sw))]
            height, width = (h - low for h, low in zip(highs, lows))
            params.add("int", LOW1=lows[0], LOW2=lows[1], HIGH1=highs[0])
        strips, blocks = ceil_div(width, strip), channels // lanes
        rows = self.rows or (4 if kind == "GATHER" else 8)
        rows = _rows(height, rows, images * strips * blocks, info)
        walks = ceil_div(height, rows)
        units = images * strips * walks
        params.add(
            "int", IN1=gathered[1], IN2=gathered[2], OUT1=out[1], OUT2=out[2], PAD1=pads[0],
            PAD2=pads[1], CHANNELS=channels, STRIPS=strips, WALKS=walks, ROWS=rows,
        )  # fmt: skip
        macros = {
            f"KIND_{kind}": 1, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "STRIP": strip,
            "FLIP": flip, "GROUP": _GROUP,
        }  # fmt: skip
        head = prelude(index, A=p.a, B=p.b, ACC=p.acc) + vector_macros(lanes, True, A=p.a, B=p.b)
        head += narrow(info)
        if p.kind != FILTER_GRAD:
            items = units * blocks
            params.add("uint", ITEMS=items, BLOCKS=blocks)
            source = head + defines(**macros) + params.source + epilogue.defines
            args = (Ref("a"), Ref("b"), *params.args, *epilogue.args)
            source += cl_source("conv/depthwise_strip.cl")
            size = round_up(items, _GROUP)
            return Plan([Launch(source, "depthwise_strip", args, (size,), (_GROUP,))])
        across, down = _lanes(blocks, 4 * lanes * kh * kw, info.local_mem_bytes)
        groups = ceil_div(blocks, across)
        splits = max(1, min(info.compute_units * self.groups // groups, ceil_div(units, down)))
        params.add("int", UNITS=units, SPLITS=splits, BLOCKS=groups)
        macros |= {"ACROSS": across, "DOWN": down}
        source = head + defines(**macros) + params.source + cl_source("conv/depthwise_strip.cl")
        args = (Ref("a"), Ref("b"), Ref("ws0"), *params.args)
        threads = across * down
        size = groups * splits * threads
        launch = Launch(source, "depthwise_strip_filter", args, (size,), (threads,))
        reduction = _reduction(p.total, splits, epilogue)
        return Plan([launch, reduction], [4 * splits * p.total])


def _rows(height: int, most: int, columns: int, info) -> int:
    """Output rows of a walk: few enough that all work-items together fill the device."""
    wanted = info.compute_units * 1024
    walks = max(ceil_div(height, most), ceil_div(wanted, max(columns, 1)))
    return max(min(2, height), ceil_div(height, walks))


def _lanes(blocks: int, nbytes: int, local_bytes: int) -> tuple[int, int]:
    """How a group of a filter gradient lies over blocks of channels and strips.

    `nbytes` are those of one work-item's sums; half the group's go through local memory.
    """
    room = min(local_bytes, 32768)
    most = max(1, min(_GROUP, last_power(2 * room // nbytes)))

    def padding(across: int) -> tuple[float, int]:
        return ceil_div(blocks, across) * across / blocks, -across

    across = min(range(min(8, blocks, most), min(64, blocks, most) + 1), key=padding)
    return across, last_power(max(1, most // across))


def _reduction(total: int, splits: int, epilogue: Epilogue) -> Launch:
    index = index_type(total * splits)
    source = (
        prelude(index, ACC=dtypes.float32)
        + vector_macros(1, A=dtypes.float32)
        + defines(KIND_REDUCE=1, REDUCE_LANES=_REDUCE_LANES)
        + epilogue.defines
        + cl_source("conv/depthwise_strip.cl")
    )
    args = (Ref("ws0"), Scalar("int", total), Scalar("int", splits), *epilogue.args)
    group = 8 * _REDUCE_LANES
    size = ceil_div(total, 8) * group
    return Launch(source, "depthwise_strip_reduce", args, (size,), (group,), role=Role.REDUCE)


SOLVERS: tuple[Solver, ...] = (DepthwiseStrips(),)
