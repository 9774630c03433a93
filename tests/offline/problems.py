"""Products, convolutions, Fourier transforms and attention of many shapes, strides and dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kerascl import dtypes
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.problem import AttentionProblem, Dropout, Tensor
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.fft import solvers as fft
from kerascl.kernels.fft.problem import FftProblem
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul

TYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "int32", "int8")
SIZES = (
    (4096, 4096, 4096), (1024, 512, 768), (100, 128, 3000), (16, 1000, 4096), (33, 17, 65),
    (1, 2048, 2048), (1, 512, 8192), (3, 770, 1030), (8, 8192, 2048),
)  # fmt: skip


def of(kind: str) -> Iterator[tuple[object, Callable]]:
    """Problems of "matmul", "conv", "fft" or "attention", each with the planner."""
    if kind == "matmul":
        for p in _products():
            yield normalise_matmul(p), matmul.plan
    elif kind == "fft":
        for r in _transforms():
            yield r, fft.plan
    elif kind == "attention":
        for t in _attention():
            yield t, attention.plan
    else:
        for q in _convolutions():
            yield q, conv.plan


def _products() -> Iterator[MatmulProblem]:
    real = (name for name in TYPES if name != "complex64")  # such products are made of real ones
    for name, (m, n, k) in itertools.product(real, SIZES):
        t = dtypes.as_dtype(name)
        for a, b in itertools.product(((k, 1), (1, m)), ((n, 1), (1, k))):
            acc = dtypes.int32 if name == "int8" else t.accumulator
            yield MatmulProblem(m, n, k, (), a, b, t, t, acc, 0, 0, "high")


def _convolutions() -> Iterator[ConvProblem]:
    cases = [  # side, kernel, stride, channels, filters, groups
        (56, 3, 1, 64, 64, 1), (56, 1, 1, 64, 256, 1), (224, 7, 2, 3, 64, 1),
        (28, 3, 2, 128, 128, 1), (14, 3, 1, 96, 96, 96), (14, 5, 1, 48, 96, 4),
    ]  # fmt: skip
    kinds = (FORWARD, DATA_GRAD, FILTER_GRAD)
    for name, kind, case, first in itertools.product(TYPES[:4], kinds, cases, (False, True)):
        side, size, stride, channels, filters, groups = case
        t = dtypes.as_dtype(name)
        out = -(-side // stride)
        pad = (size // 2, size // 2)
        yield ConvProblem(
            kind, (16, side, side, channels), (size, size, channels // groups, filters),
            (16, out, out, filters), (stride, stride), (pad, pad), (1, 1), groups, first, t, t,
            t.accumulator, "high",
        )  # fmt: skip


def _transforms() -> Iterator[FftProblem]:
    shapes = (
        (64, 1024, 1), (32, 256, 256), (1000, 30, 1), (7, 61 * 8, 3), (1, 1 << 20, 1), (2, 1000, 8),
    )  # fmt: skip
    for name, shape, given in itertools.product(TYPES[:4], shapes, ("pair", "real")):
        t = dtypes.as_dtype(name)
        two = shape[1] > 4096
        fine = 1024 if two else shape[1]
        yield FftProblem(*shape, -1, t, t.accumulator, fine, given, levels=1 + two)


def _attention() -> Iterator[AttentionProblem]:
    """Causal, with all of a bias, a mask and dropout, or with one of them, forward and backward."""
    batch, length, heads = 4, 1024, 16
    full = (heads * length**2, length**2, length, 1)
    bias, mask = Tensor(dtypes.float32, (0, *full[1:])), Tensor(dtypes.as_dtype("bool"), full)
    drop = Dropout(3 * 2**30, 4 / 3)
    ways: tuple[dict[str, Any], ...] = (
        dict(causal=True), dict(causal=True, bias=bias, mask=mask, dropout=drop), dict(mask=mask),
        dict(bias=bias), dict(causal=True, dropout=drop),
    )  # fmt: skip
    cases = [(name, "high", features, way) for name in TYPES[:3] for features in (32, 64, 128)
             for way in ways[: 5 if features == 64 else 2]]  # fmt: skip
    for name, precision, features, way in (*cases, ("float32", "highest", 64, ways[0])):
        t = dtypes.as_dtype(name)
        x = Tensor(t, (length * heads * features, heads * features, features, 1))
        for grad in (None, x):
            yield AttentionProblem(
                batch, length, length, heads, heads, features, features, features**-0.5,
                dtype=t, q=x, k=x, v=x, grad=grad, precision=precision, **{"causal": False} | way,
            )  # fmt: skip
