"""Reductions."""

from __future__ import annotations

import math

from kerascl.core import rules
from kerascl.core.array import Array
from kerascl.core.op import FoldSpec
from kerascl.core.tape import stop_gradient
from kerascl.dtypes import DType, int32
from kerascl.ops.declare import (
    SUM, as_array, cast_to, expand_to, floating, fold, numeric, reshape_to, same,
)  # fmt: skip
from kerascl.ops.pointwise import divide, equal, exp, log, not_equal, square, where

sum = SUM


def _lowest(d: DType) -> str:
    if d.is_float:
        return "-INFINITY"
    if d.is_bool or d.kind == "u":
        return "0"
    return {1: "-128", 2: "-32768", 4: "(-2147483647-1)", 8: "(-9223372036854775807L-1L)"}[d.itemsize]


def _highest(d: DType) -> str:
    if d.is_float:
        return "INFINITY"
    if d.is_bool:
        return "1"
    bits = 8 * d.itemsize - (d.kind == "i")
    return f"{(1 << bits) - 1}{'U' if d.kind == 'u' else ''}{'L' if d.itemsize == 8 else ''}"


def _extreme(sign: str, start):
    def spec(d: DType) -> FoldSpec:
        # x != x keeps NaN, as NumPy does
        nan = " || {o} != {o}" if d.is_float else ""
        step = "if ({o} " + sign + " s0" + nan + ") s0 = {o};"
        return FoldSpec((("acc", start(d)),), step.replace("{o}", "x"), step.replace("{o}", "t0"))

    return spec


def _extreme_vjp(g, y, x, axes):
    hit = cast_to(equal(x, expand_to(y, x.shape)), g.dtype)
    return (hit * expand_to(divide(g, SUM(hit, axes, keepdims=True)), x.shape),)


max = fold("max", _extreme(">", _lowest), same, _extreme_vjp)
min = fold("min", _extreme("<", _highest), same, _extreme_vjp)


def _argument(sign: str, start):
    def spec(d: DType) -> FoldSpec:
        better = "({x} " + sign + " s0"
        if d.is_float:
            better += " || ({x} != {x} && s0 == s0)"
        better += ")"
        first = "(s1 < 0 || " + better.replace("{x}", "x") + ")"
        later = better.replace("{x}", "t0")
        tie = "((t0 == s0 || (t0 != t0 && s0 != s0)) && t1 < s1)"
        keep = " && !(s0 != s0)" if d.is_float else ""
        return FoldSpec(
            (("acc", start(d)), ("index", "-1")),
            f"if {first} {{ s0 = x; s1 = r; }}",
            f"if (t1 >= 0 && (s1 < 0 || ({later}{keep}) || {tie})) {{ s0 = t0; s1 = t1; }}",
            "s1",
        )

    return spec


def _to_int(d: DType):
    return d, int32


_argmax = fold("argmax", _argument(">", _lowest), _to_int)
_argmin = fold("argmin", _argument("<", _highest), _to_int)


def argmax(x, axis=None, keepdims: bool = False) -> Array:
    """int32 position of the first largest element along `axis` (None: of the flat array)."""
    return _argmax(x, axis, keepdims)


def argmin(x, axis=None, keepdims: bool = False) -> Array:
    """int32 position of the first smallest element along `axis` (None: of the flat array)."""
    return _argmin(x, axis, keepdims)


_any = fold("any", lambda d: FoldSpec((("acc", "0"),), "s0 |= x;", "s0 |= t0;"))
_all = fold("all", lambda d: FoldSpec((("acc", "1"),), "s0 &= x;", "s0 &= t0;"))


def _truth(x) -> Array:
    x = as_array(x)
    return x if x.dtype.is_bool else not_equal(x, 0)


def any(x, axis=None, keepdims: bool = False) -> Array:
    """Whether any element along `axis` is true."""
    return _any(_truth(x), axis, keepdims)


def all(x, axis=None, keepdims: bool = False) -> Array:
    """Whether all elements along `axis` are true."""
    return _all(_truth(x), axis, keepdims)


def _prod_vjp(g, y, x, axes):
    # the product of the others, also where one factor is zero
    zero = equal(x, 0)
    zeros = SUM(cast_to(zero, x.dtype), axes, keepdims=True)
    others = prod(where(zero, 1, x), axes, keepdims=True)
    none = where(equal(zeros, 0), g * y, 0)
    one = where(equal(zeros, 1), g * others, 0)
    return (where(zero, expand_to(one, x.shape), expand_to(none, x.shape) / where(zero, 1, x)),)


prod = fold(
    "prod", lambda d: FoldSpec((("acc", "1"),), "s0 *= x;", "s0 *= t0;"), numeric, _prod_vjp
)


def _count(x: Array, axis) -> int:
    return math.prod(x.shape[a] for a in rules.axes_tuple(axis, x.ndim))


def mean(x, axis=None, keepdims: bool = False) -> Array:
    """Arithmetic mean over `axis`; integers give float32."""
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    count = _count(x, axis)
    return SUM(x, axis, keepdims) * (1.0 / count if count else math.nan)


def var(x, axis=None, keepdims: bool = False) -> Array:
    """Population variance over `axis`, in two passes."""
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    return mean(square(x - mean(x, axis, True)), axis, keepdims)


def logsumexp(x, axis=None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over `axis`, without overflow."""
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    top = stop_gradient(max(x, axis, True))
    top = where(equal(top - top, 0), top, 0)  # infinities must not be subtracted
    y = log(SUM(exp(x - top), axis, True)) + top
    axes = rules.axes_tuple(axis, x.ndim)
    if keepdims:
        return y
    return reshape_to(y, tuple(n for a, n in enumerate(x.shape) if a not in axes))
