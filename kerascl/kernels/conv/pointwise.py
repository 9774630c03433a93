"""Convolutions of one tap: products."""

from __future__ import annotations

import math
from typing import Any

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan, rename_slots
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem, usable
from kerascl.kernels.hopper import channel_major
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.selftests import asked


class PointwiseConv(Solver):
    """A 1x1 convolution of stride one is a matrix product: whatever solver is best for that."""

    name = "pointwise"

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return (
            usable(p, info)
            and p.groups == 1
            and math.prod(p.w_shape[:-2]) == 1
            and set(p.strides) == {1}
            and not any(v for q in p.pads for v in q)
            and p.x_shape[:-1] == p.y_shape[:-1]
            and not (p.channels_first and p.kind == FILTER_GRAD and p.x_shape[0] > 1)
        )

    def cost(self, problem: ConvProblem, info) -> float:
        planes = channel_major.ChannelMajorFilterGradient()
        cost = matmul.cost(self._product(problem), info)
        return min(cost, planes.cost(problem, info)) if planes.applies(problem, info) else cost

    def takes_moments(self, problem: ConvProblem, info) -> bool:
        return not problem.channels_first and matmul.takes_moments(self._product(problem), info)

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        product, other = self._product(problem), channel_major.ChannelMajorFilterGradient()
        # A long sum over rows of both operands may be faster in channel-major layout.
        with asked.comparing():
            applies = other.applies(problem, info)
            shorter = applies and other.cost(problem, info) < matmul.cost(product, info)
        if shorter and other.applies(problem, info):
            return other.plan(problem, info, epilogue)
        plan = matmul.plan(product, info, epilogue)
        swapped = problem.channels_first and problem.kind != FILTER_GRAD
        return rename_slots(plan, {"a": "b", "b": "a"}) if swapped else plan

    @staticmethod
    def _product(p: ConvProblem) -> MatmulProblem:
        """The product; channels first, all but filter gradients have b on the left."""
        types: dict[str, Any] = {"a": p.a, "b": p.b, "acc": p.acc, "precision": p.precision}
        images, pixels = p.x_shape[0], math.prod(p.x_shape[1:-1])
        c, f = p.w_shape[-2:]
        if p.channels_first and p.kind == FILTER_GRAD:
            return MatmulProblem(c, f, pixels, (), (pixels, 1), (1, pixels), **types)
        if p.channels_first:
            m, k = (f, c) if p.kind == FORWARD else (c, f)
            first = (0, 1, f) if p.kind == FORWARD else (0, f, 1)
            types |= {"a": p.b, "b": p.a}
            return MatmulProblem(m, pixels, k, (images,), first, (k * pixels, pixels, 1), **types)
        rows = images * pixels
        m, n, k, left, right = {
            FORWARD: (rows, f, c, (c, 1), (f, 1)),
            DATA_GRAD: (rows, c, f, (f, 1), (1, f)),
            FILTER_GRAD: (c, f, rows, (1, c), (f, 1)),
        }[p.kind]
        return MatmulProblem(m, n, k, (), left, right, **types)
