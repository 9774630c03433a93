"""What users' kernels for a problem are told of it, as macros."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerascl.dtypes import DType
from kerascl.kernels.contract.source import FP64, defines
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    image_strides,
)
from kerascl.kernels.conv.problem import usable as usable_conv
from kerascl.kernels.matmul.problem import MatmulProblem, problem_index
from kerascl.kernels.matmul.problem import usable as usable_product
from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class Kind:
    """A kind of problem that users may add solvers for.

    Attributes:
        of: the kind's name among tuning records.
        fits: whether a problem is one, on a device that has its dtypes.
        index: the type that reaches all its elements.
        macros: what a kernel is told of it.
    """

    of: str
    fits: Callable[[Any, DeviceInfo], bool]
    index: Callable[[Any], str]
    macros: Callable[[Any], str]


def operand(name: str, dtype: DType) -> str:
    """The macros of one input: its types, and a load that converts."""
    load = dtype.load.format(p=name, i="(i)")
    return (
        f"#define {name}_T {dtype.storage}\n"
        f"#define {name}_C {dtype.compute}\n"
        f"#define {name}_LOAD(i) {load}\n"
    )


def types(problem: MatmulProblem | ConvProblem, index: str) -> str:
    """The macros of a problem's dtypes."""
    p = problem
    double = any(dtype.is_double for dtype in (p.a, p.b, p.acc))
    return (
        (FP64 if double else "")
        + defines(INDEX_T=index, ACC_T=p.acc.compute)
        + operand("a", p.a)
        + operand("b", p.b)
    )


def _place(name: str, parameters: str, *terms: tuple[str, int], offset: int = 0) -> str:
    """A macro with the linear index of an element."""
    parts = [f"(INDEX_T)({what}) * {step}" for what, step in terms]
    return f"#define {name}({parameters}) ({' + '.join([str(offset), *parts])})\n"


def _batch(p: MatmulProblem, strides: tuple[int, ...]) -> list[tuple[str, int]]:
    _, second, third = p.batch
    return [
        (f"(batch) / {second * third}", strides[0]),
        (f"(batch) / {third} % {second}", strides[1]),
        (f"(batch) % {third}", strides[2]),
    ]


def _product(p: MatmulProblem) -> str:
    (ra, ca), (rb, cb) = p.a_strides[-2:], p.b_strides[-2:]
    return (
        defines(M=p.m, N=p.n, K=p.k, BATCHES=p.batches)
        + _place("a_AT", "batch, row, k", *_batch(p, p.a_strides), ("row", ra), ("k", ca),
                 offset=p.a_offset)
        + _place("b_AT", "batch, k, column", *_batch(p, p.b_strides), ("k", rb), ("column", cb),
                 offset=p.b_offset)
        + _place("out_AT", "batch, row, column", ("batch", p.m * p.n), ("row", p.n), ("column", 1))
    )  # fmt: skip


def _convolution(p: ConvProblem) -> str:
    text = defines(
        IMAGES=p.x_shape[0], CHANNELS=p.x_shape[-1], FILTERS=p.w_shape[-1], GROUPS=p.groups,
        GROUP_CHANNELS=p.w_shape[-2], DIMS=p.rank, TAPS=math.prod(p.w_shape[:-2]),
        X_PIXELS=math.prod(p.x_shape[1:-1]), Y_PIXELS=math.prod(p.y_shape[1:-1]),
    )  # fmt: skip
    for k in range(p.rank):
        numbers = {
            "X": p.x_shape[1 + k], "Y": p.y_shape[1 + k], "KERNEL": p.w_shape[k],
            "STRIDE": p.strides[k], "DILATION": p.dilation[k], "PAD": p.pads[k][0],
        }  # fmt: skip
        text += defines(**{f"{name}{k}": value for name, value in numbers.items()})
    filters = p.w_shape[-1]
    parameters = "image, pixel, channel"
    for name, shape in (("x", p.x_shape), ("y", p.y_shape)):
        steps = image_strides(shape, p.channels_first)
        terms = zip(("image", "pixel", "channel"), steps, strict=True)
        text += _place(f"{name}_AT", parameters, *terms)
    return text + _place(
        "w_AT", "tap, channel, filter",
        ("tap", p.w_shape[-2] * filters), ("channel", filters), ("filter", 1),
    )  # fmt: skip


def _conv_kind(kind: str) -> Kind:
    def fits(problem: ConvProblem, info: DeviceInfo) -> bool:
        return problem.kind == kind and usable_conv(problem, info)

    return Kind("conv", fits, conv_index, _convolution)


KINDS = {
    "matmul": Kind("gemm", usable_product, problem_index, _product),
    "conv": _conv_kind(FORWARD),
    "conv_data_grad": _conv_kind(DATA_GRAD),
    "conv_filter_grad": _conv_kind(FILTER_GRAD),
}

__all__ = ["KINDS", "Kind", "types"]
