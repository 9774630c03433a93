"""Reductions."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.op import ReductionSpec
from kerascl.core.tape import stop_gradient
from kerascl.core.types import Axes, Gradients
from kerascl.dtypes import DType, DTypeLike, as_dtype, int32, int64, positions
from kerascl.ops.declare import (
    SUM,
    Elementwise,
    Reduction,
    as_array,
    cast_to,
    convert,
    floating,
    in_float32,
    numeric,
    reduction,
    reduction_function,
    same,
)  # fmt: skip
from kerascl.ops.pointwise import (
    absolute,
    divide,
    equal,
    exp,
    isclose,
    isnan,
    log,
    logical_not,
    maximum,
    minimum,
    multiply,
    not_equal,
    sqrt,
    square,
    where,
)  # fmt: skip
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "all", "allclose", "any", "argmax", "argmin", "average", "count_nonzero", "logsumexp", "max",
    "mean", "min", "nanargmax", "nanargmin", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd",
    "nansum", "nanvar", "prod", "ptp", "std", "sum", "var",
]  # fmt: skip


def _summed(x: ArrayLike, dtype: DTypeLike | None) -> Array:
    x = as_array(x)
    return cast_to(x, x.dtype.summed if dtype is None else as_dtype(dtype))


def sum(
    x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None
) -> Array:
    """Sum over `axis` (None: all axes, an int or a tuple).

    In `dtype`; by default in that of `x`, integers and bools in int64 or uint64.
    """
    return SUM(_summed(x, dtype), axis, keepdims)


# -- extremes -----------------------------------------------------------------
def _lowest(d: DType) -> str:
    if d.is_float:
        return "-INFINITY"
    if d.is_bool or d.kind == "u":
        return "0"
    return f"(-{_highest(d)}-1)"


def _highest(d: DType) -> str:
    if d.is_float:
        return "INFINITY"
    if d.is_bool:
        return "1"
    bits = 8 * d.itemsize - (d.kind == "i")
    return f"{(1 << bits) - 1}{'U' if d.kind == 'u' else ''}{'L' if d.itemsize == 8 else ''}"


def _extreme(sign: str, start: Callable[[DType], str]) -> Callable[[DType], ReductionSpec]:
    def spec(d: DType) -> ReductionSpec:
        # x != x keeps NaN, as NumPy does; a choice, for which CPUs' compilers make vectors
        nan = " | ({o} != {o})" if d.is_float else ""
        step = "s0 = (({o} " + sign + " s0)" + nan + ") ? {o} : s0;"
        text = step.replace("{o}", "x"), step.replace("{o}", "t0")
        extreme = "max" if sign == ">" else "min"
        return ReductionSpec((("acc", start(d)),), *text, lanes=text[0], extreme=extreme)

    return spec


def _extreme_vjp(g: Array, y: Array, x: Array, axes: tuple[int, ...]) -> Gradients:
    hit = cast_to(equal(x, expand_to(y, x.shape)), g.dtype)
    return (hit * expand_to(divide(g, SUM(hit, axes, keepdims=True)), x.shape),)


MAX = reduction("max", _extreme(">", _lowest), same, _extreme_vjp)
_min = reduction("min", _extreme("<", _highest), same, _extreme_vjp)


def _reduce_extreme(
    x: ArrayLike,
    axis: Axes,
    keepdims: bool,
    initial: ArrayLike | None,
    reduce: Reduction,
    join: Elementwise,
) -> Array:
    x = as_array(x)
    if x.dtype.is_complex:
        raise TypeError("complex numbers have no order")
    if initial is None and not _count(x, axis):
        raise ValueError(f"an empty array of shape {x.shape} has no largest or smallest element")
    y = reduce(x, axis, keepdims)
    return y if initial is None else cast_to(join(y, initial), x.dtype)


def max(
    x: ArrayLike, axis: Axes = None, keepdims: bool = False, initial: ArrayLike | None = None
) -> Array:
    """The largest element over `axis` (and `initial`); NaN where there is one."""
    return _reduce_extreme(x, axis, keepdims, initial, MAX, maximum)


def min(
    x: ArrayLike, axis: Axes = None, keepdims: bool = False, initial: ArrayLike | None = None
) -> Array:
    """The smallest element over `axis` (and `initial`); NaN where there is one."""
    return _reduce_extreme(x, axis, keepdims, initial, _min, minimum)


def ptp(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """The largest minus the smallest element over `axis`."""
    return max(x, axis, keepdims) - min(x, axis, keepdims)


def _argument(sign: str, start: Callable[[DType], str]) -> Callable[[DType], ReductionSpec]:
    """It begins with position 0, the answer where no element beats the start: the loop need not
    ask whether there is one yet."""
    no_better = "<=" if sign == ">" else ">="

    def spec(d: DType) -> ReductionSpec:
        if d.is_float:  # NaN is no better by neither comparison, and the first one stays
            first = f"!(x {no_better} s0) & (s0 == s0)"
            later = f"((t0 {sign} s0) | ((t0 != t0) & (s0 == s0))) && !(s0 != s0)"
        else:
            first, later = f"x {sign} s0", f"t0 {sign} s0"
        choice = "longLANES" if d.itemsize == 8 else "intLANES"
        tie = "((t0 == s0 || (t0 != t0 && s0 != s0)) && t1 < s1)"
        return ReductionSpec(
            (("acc", start(d)), ("index", "0")),
            f"{{ const int found = {first}; s0 = found ? x : s0; s1 = found ? r : s1; }}",
            f"if (({later}) || {tie}) {{ s0 = t0; s1 = t1; }}",
            "s1",
            lanes=f"const {choice} found = {first}; s0 = found ? x : s0; s1 = found ? places : s1;",
        )

    return spec


def _to_int(d: DType) -> tuple[DType, DType]:
    return d, int32


ARGMAX = reduction("argmax", _argument(">", _lowest), _to_int, positions=True)
_argmin = reduction("argmin", _argument("<", _highest), _to_int, positions=True)


def _position(x: ArrayLike, axis: Axes, keepdims: bool, find: Reduction, name: str) -> Array:
    x = as_array(x)
    if not _count(x, axis):
        raise ValueError(f"{name} of an empty array of shape {x.shape}")
    if positions(_count(x, axis)) is not int32:
        find = reduction_function(find.op, lambda d: (d, int64))
    return find(x, axis, keepdims)


def argmax(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Position of the first largest element along `axis` (None: of the flat array).

    It is int32, or int64 among more than 2**31 - 1 elements.
    """
    return _position(x, axis, keepdims, ARGMAX, "argmax")


def argmin(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Position of the first smallest element along `axis` (None: of the flat array).

    It is int32, or int64 among more than 2**31 - 1 elements.
    """
    return _position(x, axis, keepdims, _argmin, "argmin")


# -- logic --------------------------------------------------------------------
def _logic(sign: str, start: str) -> Callable[[DType], ReductionSpec]:
    step = f"s0 {sign}= x;"
    return lambda d: ReductionSpec((("acc", start),), step, f"s0 {sign}= t0;", lanes=step)


_any = reduction("any", _logic("|", "0"))
_all = reduction("all", _logic("&", "1"))


def _truth(x: ArrayLike) -> Array:
    x = as_array(x)
    return x if x.dtype.is_bool else not_equal(x, 0)


def any(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether any element along `axis` is true."""
    return _any(_truth(x), axis, keepdims)


def all(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether all elements along `axis` are true."""
    return _all(_truth(x), axis, keepdims)


def allclose(
    x1: ArrayLike, x2: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Array:
    """Whether all elements are close; see `isclose`."""
    return all(isclose(x1, x2, rtol, atol, equal_nan))


def count_nonzero(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Number of elements that are not 0: int32, or int64 among more than 2**31 - 1."""
    x = _truth(x)
    return SUM(cast_to(x, positions(_count(x, axis))), axis, keepdims)


# -- products and averages ----------------------------------------------------
def _prod_vjp(g: Array, y: Array, x: Array, axes: tuple[int, ...]) -> Gradients:
    # the product of the others, also where one factor is zero
    zero = equal(x, 0)
    zeros = SUM(cast_to(zero, int32), axes, keepdims=True)
    others = _prod(where(zero, 1, x), axes, keepdims=True)
    none = where(equal(zeros, 0), g * others, 0)
    one = where(equal(zeros, 1), g * others, 0)
    return (where(zero, expand_to(one, x.shape), expand_to(none, x.shape) / where(zero, 1, x)),)


def _times(d: DType) -> ReductionSpec:
    if d.is_complex:
        # lo and hi: "x" names the element
        text = "(s0.lo * {o}.lo - s0.hi * {o}.hi, s0.lo * {o}.hi + s0.hi * {o}.lo);"
        text = f"s0 = ({d.compute}){text}"
        init = f"({d.compute})(1, 0)"
    else:
        text, init = "s0 *= {o};", "1"
        if d.kind == "i":  # wraps, also to the compiler
            text = f"s0 = ({d.compute})(({d.wrapping})s0 * ({d.wrapping}){{o}});"
    return ReductionSpec((("acc", init),), text.replace("{o}", "x"), text.replace("{o}", "t0"))


_prod = reduction("prod", _times, numeric, _prod_vjp)


def prod(
    x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None
) -> Array:
    """Product over `axis`; in `dtype`, by default as for `sum`."""
    return _prod(_summed(x, dtype), axis, keepdims)


def _count(x: Array, axis: Axes) -> int:
    return math.prod(x.shape[a] for a in rules.axes_tuple(axis, x.ndim))


def _wide(x: ArrayLike) -> tuple[Array, DType]:
    """A floating array in its accumulator dtype, and the dtype of an average of it."""
    x = as_array(x)
    result = floating(x.dtype)[0]
    return cast_to(x, result.accumulator), result


def mean(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Arithmetic mean over `axis`; integers give float32."""
    x, result = _wide(x)
    count = _count(x, axis)
    return cast_to(divide(SUM(x, axis, keepdims), count if count else math.nan), result)


def _degrees(ddof: float, correction: float | None, name: str) -> float:
    """What is subtracted from the divisor, by NumPy's name or by that of the array API standard."""
    if correction is None:
        return ddof
    if ddof:
        raise ValueError(f"{name}: ddof and correction are two names of one argument; give one")
    return correction


def var(
    x: ArrayLike,
    axis: Axes = None,
    keepdims: bool = False,
    ddof: float = 0,
    correction: float | None = None,
) -> Array:
    """Variance over `axis`, in two passes.

    Args:
        ddof: what is subtracted from the divisor; `correction` is the same.

    Raises:
        ValueError: when both are given.
    """
    ddof = _degrees(ddof, correction, "var")
    x, result = _wide(x)
    away = x - mean(x, axis, True)
    squares = square(away) if not x.dtype.is_complex else square(absolute(away))
    result = result.real
    if not ddof:
        return cast_to(mean(squares, axis, keepdims), result)
    divisor = builtins.max(0, _count(x, axis) - ddof)
    return cast_to(SUM(squares, axis, keepdims) / (divisor or math.nan), result)


def std(
    x: ArrayLike,
    axis: Axes = None,
    keepdims: bool = False,
    ddof: float = 0,
    correction: float | None = None,
) -> Array:
    """Standard deviation over `axis`: the square root of `var`, which see."""
    ddof = _degrees(ddof, correction, "std")
    x, result = _wide(x)
    return cast_to(sqrt(var(x, axis, keepdims, ddof)), result.real)


@in_float32
def average(
    x: ArrayLike, axis: Axes = None, weights: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """Mean over `axis`, weighted; `weights` has the shape of `x`, or that of `axis`.

    Raises:
        ValueError: when the shapes do not fit.
    """
    if weights is None:
        return mean(x, axis, keepdims)
    (x, weights), common = convert((x, weights))
    work = floating(common)[0]
    x, weights = cast_to(x, work), cast_to(weights, work)
    if weights.shape != x.shape:
        if axis is None:
            raise ValueError(f"average: weights {weights.shape} for {x.shape} need an axis")
        axes = rules.axes_tuple(axis, x.ndim)
        if weights.shape != tuple(x.shape[a] for a in axes):
            raise ValueError(f"average: weights {weights.shape} on axis {axis} of {x.shape}")
        wide = tuple(n if a in axes else 1 for a, n in enumerate(x.shape))
        weights = expand_to(reshape_to(weights, wide), x.shape)
    return SUM(multiply(x, weights), axis, keepdims) / SUM(weights, axis, keepdims)


@in_float32
def logsumexp(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over `axis`, without overflow."""
    x = as_array(x)
    x = cast_to(x, floating(x.dtype)[0])
    if not _count(x, axis):
        return log(SUM(x, axis, keepdims))
    top = stop_gradient(max(x, axis, True))
    top = where(equal(top - top, 0), top, 0)  # infinities must not be subtracted
    y = log(SUM(exp(x - top), axis, True)) + top
    if keepdims:
        return y
    axes = rules.axes_tuple(axis, x.ndim)
    return reshape_to(y, tuple(n for a, n in enumerate(x.shape) if a not in axes))


# -- the same without NaN -----------------------------------------------------
def _numbers(x: ArrayLike, other: float) -> tuple[Array, Array]:
    """`x` with NaN replaced, and where it was a number."""
    x = as_array(x)
    number = logical_not(isnan(x))
    return (where(number, x, other) if x.dtype.is_float or x.dtype.is_complex else x), number


def nansum(
    x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None
) -> Array:
    """`sum` with NaN counting as 0."""
    return sum(_numbers(x, 0)[0], axis, keepdims, dtype)


def nanprod(
    x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None
) -> Array:
    """`prod` with NaN counting as 1."""
    return prod(_numbers(x, 1)[0], axis, keepdims, dtype)


def nanmean(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Mean over `axis` of the numbers; NaN where there are none."""
    x, result = _wide(x)
    values, number = _numbers(x, 0)
    count = SUM(cast_to(number, x.dtype), axis, keepdims)
    return cast_to(SUM(values, axis, keepdims) / count, result)


def nanvar(x: ArrayLike, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Array:
    """Variance over `axis` of the numbers; NaN where there are none."""
    x, result = _wide(x)
    away, number = x - nanmean(x, axis, True), logical_not(isnan(x))
    squares = square(absolute(away)) if x.dtype.is_complex else square(where(number, away, 0))
    count = SUM(cast_to(number, squares.dtype), axis, keepdims) - ddof
    y = SUM(where(number, squares, 0), axis, keepdims) / where(count > 0, count, math.nan)
    return cast_to(y, result.real)


def nanstd(x: ArrayLike, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Array:
    """Standard deviation over `axis` of the numbers; NaN where there are none."""
    return sqrt(nanvar(x, axis, keepdims, ddof))


def _nan_extreme(
    x: ArrayLike, axis: Axes, keepdims: bool, reduce: Callable[..., Array], worst: float
) -> Array:
    x = as_array(x)
    if not x.dtype.is_float:
        return reduce(x, axis, keepdims)
    values, number = _numbers(x, worst)
    return where(any(number, axis, keepdims), reduce(values, axis, keepdims), math.nan)


def nanmax(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """The largest number over `axis`; NaN where there is none."""
    return _nan_extreme(x, axis, keepdims, max, -math.inf)


def nanmin(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """The smallest number over `axis`; NaN where there is none."""
    return _nan_extreme(x, axis, keepdims, min, math.inf)


def _nan_position(
    x: ArrayLike, axis: Axes, keepdims: bool, find: Callable[..., Array], worst: float
) -> Array:
    x = as_array(x)
    if not x.dtype.is_float:
        return find(x, axis, keepdims)
    values, number = _numbers(x, worst)
    # a number that equals the replacement must still win over it
    place = find(values, axis, keepdims)
    only = find(where(number, 1, 0) if worst < 0 else where(number, 0, 1), axis, keepdims)
    best = (max if worst < 0 else min)(values, axis, keepdims)
    place = where(equal(best, worst), only, place)
    return where(any(number, axis, keepdims), place, -1)


def nanargmax(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """int32 position of the first largest number along `axis`; -1 where there is none."""
    return _nan_position(x, axis, keepdims, argmax, -math.inf)


def nanargmin(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """int32 position of the first smallest number along `axis`; -1 where there is none."""
    return _nan_position(x, axis, keepdims, argmin, math.inf)
