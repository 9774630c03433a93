"""Convolutions that step by as much as they are wide: products of patches.

So begin vision transformers and networks that halve their images between stages.  The patches do
not overlap, so laying them out as the rows of a matrix moves each pixel once, and the rest is a
product, by whatever solver is best for that.
"""

from __future__ import annotations

import math

from kerascl.kernels.contract.epilogue import WORDS, Epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, rename_slots
from kerascl.kernels.contract.sizes import index_type, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines
from kerascl.kernels.contract.vectors import group_size
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD, ConvProblem, usable
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.tuning import machine

_VECTOR_BYTES = 16
_EFFICIENCY = 0.8  # share of the memory's bandwidth that copying reaches


class PatchConv(Solver):
    """Forward and filter gradient, channels last."""

    name = "patches"

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        taps = p.w_shape[:-2]
        return (
            usable(p, info)
            and p.kind in (FORWARD, FILTER_GRAD)
            and p.groups == 1
            and not p.channels_first
            and p.a.itemsize in WORDS
            and math.prod(taps) > 1
            and taps == p.strides
            and all(d == 1 for d in p.dilation)
            and not any(low for low, _ in p.pads)
            and all(o * s <= n for o, s, n in zip(p.y_shape[1:], p.strides, p.x_shape[1:-1]))
        )

    def cost(self, problem: ConvProblem, info) -> float:
        rates = machine.of(info)
        product = self._product(problem)
        moving = rates.moving(2 * product.m * product.k * problem.a.itemsize, _EFFICIENCY)
        return moving + rates.launch + matmul.cost(product, info)

    def takes_moments(self, problem: ConvProblem, info) -> bool:
        return problem.kind == FORWARD and matmul.takes_moments(self._product(problem), info)

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        product = self._product(problem)
        plan = matmul.plan(product, info, epilogue)
        plan = rename_slots(plan, {"a": "ws0"}, before=1)
        nbytes = product.m * product.k * problem.a.itemsize
        return Plan([self._patches(problem, info), *plan.launches], [nbytes, *plan.workspace])

    @staticmethod
    def _product(p: ConvProblem) -> MatmulProblem:
        rows, depth, filters = math.prod(p.y_shape[:-1]), math.prod(p.w_shape[:-1]), p.w_shape[-1]
        if p.kind == FORWARD:
            sizes, left = (rows, filters, depth), (depth, 1)
        else:
            sizes, left = (depth, filters, rows), (1, depth)
        return MatmulProblem(
            *sizes, (), left, (filters, 1), p.a, p.b, p.acc, precision=p.precision
        )

    @staticmethod
    def _patches(p: ConvProblem, info) -> Launch:
        """Lays out the rows of the patches."""
        run, line = p.w_shape[-3] * p.w_shape[-2], p.x_shape[-2] * p.x_shape[-1]
        lanes = math.gcd(_VECTOR_BYTES // p.a.itemsize, run, line)
        total = math.prod(p.y_shape[:-1]) * math.prod(p.w_shape[:-1])
        index = index_type(max(total, math.prod(p.x_shape)))
        whole = info.kind == "cpu"
        params = Params().axes(
            p.rank, IN=p.x_shape[1:-1], OUT=p.y_shape[1:-1], KER=p.w_shape[:-2], STRIDE=p.strides
        )
        params.add("int", RUN=run // lanes, LINE=line // lanes).add(index, COUNT=total // lanes)
        source = (
            defines(
                INDEX_T=index,
                VECTOR=WORDS[p.a.itemsize] + (str(lanes) if lanes > 1 else ""),
                WHOLE_RUNS=int(whole),
            )
            + params.source
            + cl_source("conv/patches.cl")
        )
        items = total // run if whole else total // lanes
        group = group_size(info, 256)
        size = round_up(items, group)
        args: tuple[Arg, ...] = (Ref("a"), Ref("ws0"), *params.args)
        return Launch(source, "conv_patches", args, (size,), (group,), role=Role.PACK)
