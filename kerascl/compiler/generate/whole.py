"""Which values are whole numbers of a known range: those that a float holds need no rounding.

Weights of four or eight bits become floats, and zero points are taken from them: bfloat16 has all
whole numbers up to 256, so that none of this rounds, and all of it may be done in ints.  Bounds
that are too wide only cost a rounding; they may never be too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from kerascl.core.node import Node
from kerascl.core.op import COPY
from kerascl.dtypes import ALL, DType
from kerascl.ops.declare import CAST

# Whole numbers up to which `FLOAT` serves.
MOST = 1 << 22
# A float of a small int, whose digits become the last ones of a float.  NVIDIA's cards add faster
# than they convert, and the sum of three ints is one instruction.
FLOAT = """\
#ifdef KCL_PTX
inline float kcl_small(int v) { return as_float(v + 0x4b400000) - 12582912.0f; }
#else
inline float kcl_small(int v) { return (float)v; }
#endif
"""
_LONGEST = 120  # characters of a text that is written again where it is used
# Operations of ints that C has as they are.  Products are none: that of 0 and -1 is -0.0 in floats.
_SIGNS = {
    "add": "+", "subtract": "-", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "right_shift": ">>",
}  # fmt: skip
# The least and the largest value; None where it may be anything, NaN included.
Span: TypeAlias = tuple[int, int] | None
_Bounds: TypeAlias = tuple[int, int]
_DIGITS = {
    "float8_e4m3fn": 4, "float8_e5m2": 3, "float16": 11, "bfloat16": 8, "float32": 24, "float64": 53
}  # fmt: skip


def _held(dtype: DType) -> Span:
    """The range of whole numbers of which a dtype has every one."""
    if dtype.is_complex:
        return None
    if dtype.is_float:
        most = 1 << _DIGITS[dtype.name]
        return -most, most
    if dtype.is_bool:
        return 0, 1
    return int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)


_HELD = {dtype: _held(dtype) for dtype in ALL}


def of_dtype(dtype: DType) -> Span:
    """What is known of any value of a dtype."""
    return None if dtype.is_float else _HELD[dtype]


def _inside(span: Span, dtype: DType) -> Span:
    """A range that a dtype holds all of; None of any other."""
    held = _HELD[dtype]
    return span if span and held and held[0] <= span[0] and span[1] <= held[1] else None


def either(*spans: Span) -> Span:
    """What is known of one of several values."""
    known = [span for span in spans if span]
    if len(known) < len(spans):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def result(node: Node, spans: list[Span]) -> Span:
    """What is known of a pointwise node's value, from what is of its inputs, if that is the value
    of the same arithmetic without bounds; else None."""
    op = node.op
    if op is CAST or op is COPY:
        return _inside(spans[0], node.dtype)
    if op.name == "where":
        return _inside(either(*spans[1:]), node.dtype)
    rule = _RULES.get(op.name.removesuffix("_int"))
    known = [span for span in spans if span]
    if rule is None or len(known) < len(spans):
        return None
    return _inside(rule(*known), node.dtype)


def int_text(
    node: Node, args: list[str | None], spans: list[Span], known: Span
) -> str | None:
    """C text of type int for a node's `result`, which is `known`, over such texts of its inputs;
    None where there is none, or it would be long.  As a float it is the value, also if 0.0."""
    name = node.op.name.removesuffix("_int")
    texts = [arg for arg in args if arg is not None]
    small = (span is not None and max(map(abs, span)) <= MOST for span in (*spans, known))
    if len(texts) < len(args) or not all(small):
        return None
    if node.op is CAST:
        return texts[0]
    sign = _SIGNS.get(name)
    if sign is None or (sign == ">>" and not (spans[1] and 0 <= spans[1][0] <= spans[1][1] < 32)):
        return None
    text = f"({texts[0]} {sign} {texts[1]})"
    return text if len(text) <= _LONGEST else None


def constant(value: Any, dtype: DType) -> Span:
    """What is known of a constant of a dtype."""
    if dtype.is_complex or value != value or value in (np.inf, -np.inf) or value != int(value):
        return None
    return _inside((int(value), int(value)), dtype)


def _corners(combine: Callable[[int, int], int]) -> Callable[[_Bounds, _Bounds], _Bounds]:
    """The rule of what rises or falls with each of its inputs all the way."""

    def rule(a: _Bounds, b: _Bounds) -> _Bounds:
        values = [combine(x, y) for x in a for y in b]
        return min(values), max(values)

    return rule


def _bits(a: _Bounds, b: _Bounds) -> _Bounds:
    """Of bits of two numbers: no more of them than the longer one has."""
    most = 1 << max(value.bit_length() if value >= 0 else (~value).bit_length() for value in a + b)
    return (0 if min(a[0], b[0]) >= 0 else -most), most - 1


def _and(a: _Bounds, b: _Bounds) -> _Bounds:
    """No more than either, where that is not negative."""
    tops = [high for low, high in (a, b) if low >= 0]
    return (0, min(tops)) if tops else _bits(a, b)


def _right_shift(a: _Bounds, by: _Bounds) -> _Bounds:
    """By a negative number, or too many bits, nothing but the sign is left."""
    most = 64 if by[0] < 0 else min(by[1], 64)
    return _corners(lambda x, k: x >> k)(a, (min(max(by[0], 0), 64), most))


_RULES: dict[str, Callable[..., _Bounds]] = {
    "add": _corners(lambda x, y: x + y),
    "subtract": _corners(lambda x, y: x - y),
    "multiply": _corners(lambda x, y: x * y),
    "negative": lambda a: (-a[1], -a[0]),
    "absolute": lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a))),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "bitwise_and": _and,
    "bitwise_or": _bits,
    "bitwise_xor": _bits,
    "right_shift": _right_shift,
}
