"""Activations, normalisation and losses.

Activations are operations of their own where recomputing from the input beats keeping
intermediate values; softmax and the losses are composites of max, exp and sum, which the compiler
turns into one kernel over rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TypeVar

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.batch import note
from kerascl.core.context import current
from kerascl.core.op import ReductionSpec
from kerascl.core.tape import pause
from kerascl.core.types import Attrs, Axes, Gradients, Vjp
from kerascl.dtypes import DType, DTypeLike, as_dtype, float16, float32, int32
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    in_float32,
    numeric,
    pointwise,
    reduction,
    rounded_once,
    same,
)  # fmt: skip
from kerascl.ops.gather import take_along_axis
from kerascl.ops.movement import expand_dims, iota, strided
from kerascl.ops.pointwise import (
    absolute,
    equal,
    exp,
    expm1,
    log,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sqrt,
    square,
    tanh,
    where,
)  # fmt: skip
from kerascl.ops.reduction import max as largest
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "batch_normalization", "binary_crossentropy", "categorical_crossentropy", "celu", "elu",
    "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu",
    "log_sigmoid", "log_softmax", "moments", "multi_hot", "one_hot", "relu", "relu6", "selu",
    "silu", "soft_shrink", "softmax", "softplus", "softsign",
    "sparse_categorical_crossentropy", "sparse_plus", "sparse_sigmoid", "squareplus",
    "tanh_shrink", "threshold",
]  # fmt: skip

_T = TypeVar("_T", bound=Array | tuple[Array, ...])


def recorded(vjp: Vjp, inputs: tuple[Array, ...], attrs: Attrs, outputs: _T) -> _T:
    """Record fresh `outputs`, computed with tapes paused, under a derivative of their own."""
    note(current.tapes, vjp, inputs, outputs, attrs)
    return outputs


# -- activations ----------------------------------------------------------------
relu = pointwise(
    "relu", "(({0}) <= 0 ? ({T})0 : ({T})({0}))", numeric, lambda g, y, x: (where(y > 0, g, 0),),
    exact=True,
)  # fmt: skip
relu6 = pointwise(
    "relu6",
    "(({0}) <= 0 ? ({T})0 : ({0}) >= 6 ? ({T})6 : ({T})({0}))",
    numeric,
    lambda g, y, x: (where((y > 0) & (y < 6), g, 0),),
    exact=True,
)
softplus = pointwise(
    "softplus",
    "((({0}) > 0 ? ({0}) : ({T})0) + log1p(exp(-fabs({0}))))",
    floating,
    lambda g, y, x: (g * sigmoid(x),),
    cost=25,
)


def _silu_vjp(g: Array, y: Array, x: Array) -> Gradients:
    s = sigmoid(x)
    return (g * s * (1 + x * (1 - s)),)


silu = pointwise(
    "silu",
    "(({0}) / (1 + exp(-({0}))))",
    floating,
    _silu_vjp,
    cost=14,
)
_DENSITY = 1 / math.sqrt(2 * math.pi)


def _density(x: Array) -> Array:
    return _DENSITY * exp(-0.5 * x * x)


normal_cdf = pointwise(
    "normal_cdf",
    "kcl_normal_cdf_{T}({0}, {N})",
    floating,
    lambda g, y, x: (g * _density(x),),
    cost=18,
)


def _gelu_second(d: Array, y: Array, g: Array, x: Array) -> Gradients:
    return _gelu_gradient(d, x), d * g * (2 - x * x) * _density(x)


_gelu_gradient = pointwise(
    "gelu_gradient",
    "({0}) * kcl_gelu_slope_{T}({1}, {N})",
    floating,
    _gelu_second,
    cost=20,
)
_gelu_exact = pointwise(
    "gelu",
    "kcl_gelu_{T}({0}, {N})",
    floating,
    lambda g, y, x: (_gelu_gradient(g, x),),
    cost=19,
    once=True,
)
_LEAN = 2 * math.sqrt(2 / math.pi)  # tanh's argument, twice: _LEAN * (x + _CUBIC * x**3)
_CUBIC = 0.044715


def _gelu_tanh_second(d: Array, y: Array, g: Array, x: Array) -> Gradients:
    s = sigmoid(_LEAN * (x + _CUBIC * x * x * x))
    w, slope = _LEAN * (1 + 3 * _CUBIC * x * x), s * (1 - s)
    bend = slope * (2 * w + x * ((1 - 2 * s) * w * w + 6 * _LEAN * _CUBIC * x))
    return _gelu_tanh_gradient(d, x), d * g * bend


_gelu_tanh_gradient = pointwise(
    "gelu_tanh_gradient",
    "({0}) * kcl_gelu_tanh_slope_{T}({1})",
    floating,
    _gelu_tanh_second,
    cost=20,
)
_gelu_tanh = pointwise(
    "gelu_tanh",
    "kcl_gelu_tanh_{T}({0})",
    floating,
    lambda g, y, x: (_gelu_tanh_gradient(g, x),),
    cost=18,
    once=True,
)
_elu = pointwise(
    "elu",
    "kcl_elu_{T}({0}, {1})",
    floating,
    lambda g, y, x, a: (g * where(x > 0, 1, y + a), where(x > 0, 0, g * expm1(minimum(x, 0)))),
    cost=14,
)
_leaky = pointwise(
    "leaky_relu",
    "(({0}) >= 0 ? ({0}) : ({1}) * ({0}))",
    floating,
    lambda g, y, x, a: (g * where(x >= 0, 1, a), where(x >= 0, 0, g * x)),
)
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """x * P(normal <= x); with `approximate`, by the tanh formula."""
    return (_gelu_tanh if approximate else _gelu_exact)(x)


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """x for positive x, else alpha * (exp(x) - 1)."""
    return _elu(x, alpha)


@in_float32
def selu(x: ArrayLike) -> Array:
    """The self-normalising ELU."""
    return _elu(x, _SELU_ALPHA) * _SELU_SCALE


@in_float32
def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)."""
    x = _inexact(x)
    return where(x > 0, x, alpha * _elu(minimum(x, 0.0) / alpha, 1.0))


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.2) -> Array:
    """x for x >= 0, else negative_slope * x."""
    return _leaky(x, negative_slope)


def _inexact(x: ArrayLike) -> Array:
    x = as_array(x)
    return cast_to(x, floating(x.dtype)[0])


def log_sigmoid(x: ArrayLike) -> Array:
    """log(sigmoid(x)), accurate for large |x|."""
    return -softplus(-_inexact(x))


@in_float32
def softsign(x: ArrayLike) -> Array:
    """x / (|x| + 1)."""
    x = _inexact(x)
    return x / (absolute(x) + 1)


@in_float32
def hard_sigmoid(x: ArrayLike) -> Array:
    """relu6(x + 3) / 6."""
    return relu6(_inexact(x) + 3.0) * (1 / 6)


@in_float32
def hard_silu(x: ArrayLike) -> Array:
    """x * hard_sigmoid(x)."""
    x = _inexact(x)
    return x * hard_sigmoid(x)


def hard_tanh(x: ArrayLike) -> Array:
    """x limited to [-1, 1]."""
    x = _inexact(x)
    return where(x > 1, 1, where(x < -1, -1, x))


@in_float32
def tanh_shrink(x: ArrayLike) -> Array:
    """x - tanh(x)."""
    x = _inexact(x)
    return x - tanh(x)


def hard_shrink(x: ArrayLike, threshold: float = 0.5) -> Array:
    """x where |x| > threshold, else 0."""
    x = _inexact(x)
    return where(absolute(x) > threshold, x, 0)


def soft_shrink(x: ArrayLike, threshold: float = 0.5) -> Array:
    """x moved towards 0 by `threshold`, not beyond."""
    x = _inexact(x)
    return where(x > threshold, x - threshold, where(x < -threshold, x + threshold, 0))


def threshold(x: ArrayLike, threshold: float, default_value: float) -> Array:
    """x where x > threshold, else `default_value`."""
    x = _inexact(x)
    return where(x > threshold, x, default_value)


def sparse_plus(x: ArrayLike) -> Array:
    """0 below -1, x above 1, (x + 1)**2 / 4 between."""
    x = _inexact(x)
    return where(x <= -1, 0, where(x >= 1, x, square(x + 1) * 0.25))


def sparse_sigmoid(x: ArrayLike) -> Array:
    """0 below -1, 1 above 1, (x + 1) / 2 between."""
    x = _inexact(x)
    return where(x <= -1, 0, where(x >= 1, 1, (x + 1) * 0.5))


@in_float32
def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """(x + sqrt(x**2 + b)) / 2."""
    x = _inexact(x)
    return (x + sqrt(square(x) + b)) * 0.5


def glu(x: ArrayLike, axis: int = -1) -> Array:
    """The first half of `axis` times the sigmoid of the second."""
    x = _inexact(x)
    axis = rules.axis_index(axis, x.ndim)
    size = x.shape[axis]
    if size % 2:
        raise ValueError(f"glu: axis {axis} of shape {x.shape} has odd size")
    ones, shape, half = [1] * x.ndim, list(x.shape), [0] * x.ndim
    shape[axis] = half[axis] = size // 2
    first = strided(x, [0] * x.ndim, shape, ones)
    return first * sigmoid(strided(x, half, x.shape, ones))


# -- softmax ----------------------------------------------------------------------
def _axes(axis: Axes, rank: int) -> tuple[int, ...]:
    return rules.axes_tuple(tuple(axis) if isinstance(axis, list) else axis, rank)


@rounded_once
def _softmax_vjp(g: Array, y: Array, x: Array, axes: tuple[int, ...]) -> Gradients:
    return (y * (g - total(g * y, axes, keepdims=True)),)


def softmax(x: ArrayLike, axis: int | Sequence[int] | None = -1) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, without overflow."""
    x = _inexact(x)
    axes = _axes(axis, x.ndim)
    if not x.size:
        return x
    with pause():
        wide = cast_to(x, x.dtype.accumulator)
        e = exp(wide - largest(wide, axes, keepdims=True))
        y = cast_to(e / total(e, axes, keepdims=True), x.dtype)
    return recorded(_softmax_vjp, (x,), (axes,), y)


@rounded_once
def _log_softmax_vjp(g: Array, y: Array, x: Array, axes: tuple[int, ...]) -> Gradients:
    return (g - exp(y) * total(g, axes, keepdims=True),)


def log_softmax(x: ArrayLike, axis: int | Sequence[int] | None = -1) -> Array:
    """log(softmax(x)) over `axis`, accurate where softmax underflows."""
    x = _inexact(x)
    axes = _axes(axis, x.ndim)
    if not x.size:
        return x
    with pause():
        wide = cast_to(x, x.dtype.accumulator)
        shifted = wide - largest(wide, axes, keepdims=True)
        y = cast_to(shifted - log(total(exp(shifted), axes, keepdims=True)), x.dtype)
    return recorded(_log_softmax_vjp, (x,), (axes,), y)


# -- encodings ----------------------------------------------------------------------
def _hits(x: Array, size: int, axis: int) -> Array:
    """bool: where position along a new `axis` equals the index."""
    x = x if x.dtype.is_integer else cast_to(x, int32)
    axis = rules.axis_index(axis, x.ndim + 1)
    shape = (*x.shape[:axis], operator.index(size), *x.shape[axis:])
    return equal(iota(shape, axis), expand_to(expand_dims(x, axis), shape))


def one_hot(x: ArrayLike, num_classes: int, axis: int = -1, dtype: DTypeLike = float32) -> Array:
    """1 at each index along a new `axis` of size `num_classes`; all 0 for indices out of range."""
    return cast_to(_hits(as_array(x), num_classes, axis), as_dtype(dtype))


def multi_hot(x: ArrayLike, num_classes: int, axis: int = -1, dtype: DTypeLike = float32) -> Array:
    """Union of the one-hot codes of the indices of each row of `x`."""
    x = as_array(x)
    codes = _hits(x, num_classes, axis)
    return cast_to(largest(cast_to(codes, int32), 1 if x.ndim > 1 else 0), as_dtype(dtype))


# -- losses -------------------------------------------------------------------------
@in_float32
def categorical_crossentropy(
    target: ArrayLike, output: ArrayLike, from_logits: bool = False, axis: int = -1,
    epsilon: float = 1e-7,
) -> Array:  # fmt: skip
    """-sum(target * log(p)) over `axis`.

    Args:
        target, output: of one shape; `output` holds probabilities (made to sum to 1 and kept
            `epsilon` away from 0 and 1) or, with `from_logits`, unnormalised logarithms.

    Raises:
        ValueError: when the shapes differ.
    """
    target, output = _pair("categorical_crossentropy", target, output)
    if output.ndim < 1:
        raise ValueError("categorical_crossentropy: arrays must have at least one dimension")
    if from_logits:
        logarithm = log_softmax(output, axis)
    else:
        output = output / total(output, axis, keepdims=True)
        logarithm = log(_limit(output, epsilon))
    return -total(target * logarithm, axis)


def _pair(name: str, target: ArrayLike, output: ArrayLike) -> tuple[Array, Array]:
    (target, output), dtype = convert((as_array(target), as_array(output)))
    if target.shape != output.shape:
        raise ValueError(
            f"{name}: target and output must have the same shape, not {target.shape} and "
            f"{output.shape}"
        )
    dtype = floating(dtype)[0]
    return cast_to(target, dtype), cast_to(output, dtype)


def _limit(p: Array, epsilon: float) -> Array:
    return minimum(maximum(p, epsilon), 1.0 - epsilon)


def _picked(target: Array, x: Array, axis: int) -> Array:
    """x at the target's position along `axis` (kept with size 1); 0 for targets out of range."""
    hit = equal(iota(x.shape, axis), expand_to(target, x.shape))
    return total(where(hit, x, 0), axis, keepdims=True)


def _sparse_vjp(g: Array, y: Array, target: Array, x: Array, axis: int) -> Gradients:
    hit = equal(iota(x.shape, axis), expand_to(target, x.shape))
    g = where(_in_range(target, x.shape[axis]), g, 0)
    with pause():  # softmax, but for a division for each element
        e = exp(x - largest(x, axis, keepdims=True))
        p = e * (1 / total(e, axis, keepdims=True))
    p = recorded(_softmax_vjp, (x,), ((axis,),), p)
    return None, (p - cast_to(hit, x.dtype)) * g


def _in_range(target: Array, size: int) -> Array:
    return (target >= 0) & (target < size)


@in_float32
def sparse_categorical_crossentropy(
    target: ArrayLike, output: ArrayLike, from_logits: bool = False, axis: int = -1,
    epsilon: float = 1e-7,
) -> Array:  # fmt: skip
    """-log(p[target]) over `axis`; 0 for targets out of range.

    Args:
        target: integers in the shape of `output` without `axis`, or with size 1 there.
        output: see `categorical_crossentropy`.

    Raises:
        ValueError: when the shapes do not fit.
    """
    target, output = cast_to(as_array(target), int32), _inexact(output)
    if output.ndim < 1:
        raise ValueError("sparse_categorical_crossentropy: output needs at least one dimension")
    axis = rules.axis_index(axis, output.ndim)
    shape = (*output.shape[:axis], *output.shape[axis + 1 :])
    kept = (*output.shape[:axis], 1, *output.shape[axis + 1 :])
    if target.shape not in (shape, kept, (*shape, 1)):
        raise ValueError(
            f"sparse_categorical_crossentropy: a target of shape {target.shape} does not fit an "
            f"output of shape {output.shape} with classes along axis {axis}"
        )
    target = reshape_to(target, kept)
    valid = _in_range(target, output.shape[axis])
    if from_logits:
        with pause():
            most = largest(output, axis, keepdims=True)
            normal = log(total(exp(output - most), axis, keepdims=True))
            # one read a row; a sum over it would compare each class with the target
            picked = take_along_axis(output, where(valid, target, 0), axis)
            loss = where(valid, normal - (picked - most), 0)
        loss = recorded(_sparse_vjp, (target, output), (axis,), loss)
    else:
        p = _picked(target, output, axis) / total(output, axis, keepdims=True)
        loss = where(valid, -log(_limit(p, epsilon)), 0)
    return reshape_to(loss, shape)


# max(x, 0) - x * t + log(1 + exp(-|x|)) neither overflows nor cancels
_binary_logits = pointwise(
    "binary_crossentropy_logits",
    "((({1}) > 0 ? ({1}) : ({T})0) - ({1}) * ({0}) + log1p(exp(-fabs({1}))))",
    floating,
    lambda g, y, t, x: (-(g * x), g * (sigmoid(x) - t)),
    cost=25,
)


@in_float32
def binary_crossentropy(
    target: ArrayLike, output: ArrayLike, from_logits: bool = False, epsilon: float = 1e-7
) -> Array:
    """-(target * log(p) + (1 - target) * log(1 - p)), elementwise.

    Args:
        target, output: of one shape; `output` holds p (kept `epsilon` away from 0 and 1) or,
            with `from_logits`, log(p / (1 - p)).

    Raises:
        ValueError: when the shapes differ.
    """
    target, output = _pair("binary_crossentropy", target, output)
    if from_logits:
        return _binary_logits(target, output)
    p = _limit(output, epsilon)
    return -(target * log(p) + (1.0 - target) * log(1.0 - p))


# -- normalisation ------------------------------------------------------------------
def _deviations(d: DType) -> ReductionSpec:
    """Variance in one pass, as accurate as two and without a division for each element.

    Deviations from a shift (s3) and their squares are summed over blocks; blocks and lanes are
    merged as T. F. Chan, G. H. Golub and R. J. LeVeque say (1979).  The shift is the first
    element, then the mean so far.  A block has no more elements (u3) than came before it, 32 at
    most: were its mean far from the shift, what rounding loses when the mean is taken off would
    be small beside the squares that this distance adds.
    Registers: s0 the mean less the shift, s1 squares about the mean, s2 the count.
    """
    real = d.accumulator.compute
    block = (
        f"const {real} mean = u0 / ({real})u2, gap = mean - s0;"
        f" const {real} part = ({real})u2 / ({real})(s2 + u2), shift = s3;"
        f" s1 += fmax(u1 - u0 * mean, ({real})0) + gap * gap * part * ({real})s2;"
        " s0 += gap * part; s2 += u2; s3 += s0; s0 -= s3 - shift;"
        " u0 = 0; u1 = 0; u2 = 0; u3 = s2 < 32 ? s2 : 32;"
    )
    return ReductionSpec(
        (("acc", "0"), ("acc", "0"), ("index", "0"), ("acc", "0")),
        f"{{ if (u2 == u3) {{ {block} }} if (s2 + u2 == 0) s3 = x;"
        f" const {real} own = x - s3; u0 += own; u1 += own * own; u2 += 1; }}",
        f"if (s2 == 0) {{ s0 = t0; s1 = t1; s2 = t2; s3 = t3; }} else if (t2 > 0) {{"
        f" const {real} gap = (t3 - s3) + (t0 - s0), part = ({real})t2 / ({real})(s2 + t2);"
        f" s0 += gap * part; s1 += t1 + gap * gap * part * ({real})s2; s2 += t2; }}",
        f"s1 / ({real})s2",
        scratch=(("acc", "0"), ("acc", "0"), ("index", "0"), ("index", "1")),
        close=f"if (u2 > 0) {{ {block} }}",
        centred=ReductionSpec(
            (("acc", "0"),),
            f"{{ const {real} own = x - m; s0 += own * own; }}",
            "s0 += t0;",
            "s0 / n",
        ),
        block=256,
    )


def _variance_vjp(g: Array, y: Array, x: Array, axes: tuple[int, ...]) -> Gradients:
    count = math.prod(x.shape[a] for a in axes)
    mean = total(x, axes, keepdims=True) * (1.0 / max(count, 1))
    return ((x - mean) * (g * (2.0 / max(count, 1))),)


_variance = reduction("variance", _deviations, same, _variance_vjp)
VARIANCE = _variance.op


def _moments_vjp(
    gs: tuple[Array, ...], ys: tuple[Array, ...], x: Array, axes: tuple[int, ...]
) -> Gradients:
    g_mean, g_variance = gs
    scale = 1.0 / max(math.prod(x.shape[a] for a in axes), 1)
    return ((x - ys[0]) * (g_variance * (2 * scale)) + g_mean * scale,)


def moments(x: ArrayLike, axes: int | Sequence[int], keepdims: bool = False) -> tuple[Array, Array]:
    """Mean and population variance over `axes`, in one pass.

    Half precision is computed in float32; float16 variances are limited to its range.
    """
    x = _inexact(x)
    dtype = x.dtype
    x = cast_to(x, dtype.accumulator)
    axes = _axes(axes, x.ndim)
    count = math.prod(x.shape[a] for a in axes)
    with pause():
        mean = total(x, axes, keepdims=True) * (1.0 / count if count else math.nan)
        variance = _variance(x, axes, keepdims=True)
    mean, variance = recorded(_moments_vjp, (x,), (axes,), (mean, variance))
    if not keepdims:
        shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
        mean, variance = reshape_to(mean, shape), reshape_to(variance, shape)
    if dtype is float16:
        variance = minimum(variance, 65504.0)
    return cast_to(mean, dtype), cast_to(variance, dtype)


@in_float32
def batch_normalization(
    x: ArrayLike, mean: ArrayLike, variance: ArrayLike, axis: int = -1,
    offset: ArrayLike | None = None, scale: ArrayLike | None = None, epsilon: float = 1e-3,
) -> Array:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, with vectors along `axis`."""
    x = _inexact(x)
    axis = rules.axis_index(axis, x.ndim)

    def along(v: ArrayLike) -> Array:
        v = as_array(v)
        return reshape_to(v, tuple(v.size if a == axis else 1 for a in range(x.ndim)))

    factor = rsqrt(along(variance) + epsilon)
    if scale is not None:
        factor = factor * along(scale)
    y = (x - along(mean)) * factor
    return y if offset is None else y + along(offset)
