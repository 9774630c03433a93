"""Distributions that are functions of the ones in `random.py`, and random orders and choices.

As there, the first argument is a key, and each element is a pure function of it and its place.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike
from kerascl.core.types import ShapeLike
from kerascl.dtypes import DTypeLike, as_dtype, float32, int32
from kerascl.ops.declare import as_array, cast_to, floating, is_scalar
from kerascl.ops.gather import take
from kerascl.ops.pointwise import (
    absolute,
    ceil,
    exp,
    log,
    log1p,
    maximum,
    minimum,
    sqrt,
    tan,
    where,
)
from kerascl.ops.random import gamma, normal, poisson, randint, random_bits, shifted, split, uniform
from kerascl.ops.reduction import sum as total
from kerascl.ops.scan import cumsum
from kerascl.ops.sorting import argsort, searchsorted
from kerascl.ops.views import reshape_to, window

__all__ = [
    "cauchy", "chisquare", "choice", "dirichlet", "exponential", "geometric", "gumbel", "laplace",
    "logistic", "lognormal", "negative_binomial", "pareto", "permutation", "rayleigh", "student_t",
    "triangular", "weibull",
]  # fmt: skip


def _open(key: ArrayLike, shape: ShapeLike, dtype: DTypeLike) -> Array:
    """Uniform over (0, 1): the middles of the intervals whose lower ends `uniform` gives."""
    unit = uniform(key, shape, dtype=dtype)
    half = 0.5 * float(np.finfo(unit.dtype.accumulator.numpy).epsneg)
    return minimum(unit + half, 1 - half)


def exponential(
    key: ArrayLike, shape: ShapeLike, scale: ArrayLike = 1.0, dtype: DTypeLike = float32
) -> Array:
    """Floats of an exponential distribution of mean `scale` (broadcast to `shape`)."""
    return -log1p(-uniform(key, shape, dtype=dtype)) * scale


def laplace(
    key: ArrayLike,
    shape: ShapeLike,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats of a Laplace distribution, |x - loc| of mean `scale`."""
    centred = 2 * _open(key, shape, dtype) - 1
    size = -log1p(-absolute(centred))
    return shifted(where(centred < 0, -size, size), loc, scale)


def gumbel(
    key: ArrayLike,
    shape: ShapeLike,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats of a Gumbel distribution: of largest values."""
    return shifted(-log(-log(_open(key, shape, dtype))), loc, scale)


def logistic(
    key: ArrayLike,
    shape: ShapeLike,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats of a logistic distribution."""
    unit = _open(key, shape, dtype)
    return shifted(log(unit) - log1p(-unit), loc, scale)


def cauchy(key: ArrayLike, shape: ShapeLike, dtype: DTypeLike = float32) -> Array:
    """Floats of the standard Cauchy distribution."""
    return tan((_open(key, shape, dtype) - 0.5) * math.pi)


def lognormal(
    key: ArrayLike,
    shape: ShapeLike,
    mean: ArrayLike = 0.0,
    sigma: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats whose logarithms are normal, of mean `mean` and deviation `sigma`."""
    return exp(normal(key, shape, mean, sigma, dtype))


def rayleigh(
    key: ArrayLike, shape: ShapeLike, scale: ArrayLike = 1.0, dtype: DTypeLike = float32
) -> Array:
    """Floats of a Rayleigh distribution: lengths of vectors of two normal numbers."""
    return sqrt(2 * exponential(key, shape, dtype=dtype)) * scale


def weibull(key: ArrayLike, shape: ShapeLike, a: ArrayLike, dtype: DTypeLike = float32) -> Array:
    """Floats of a Weibull distribution of shape parameter `a` and scale 1."""
    return exponential(key, shape, dtype=dtype) ** (1.0 / as_array(a, float32))


def pareto(key: ArrayLike, shape: ShapeLike, a: ArrayLike, dtype: DTypeLike = float32) -> Array:
    """Floats of a Pareto II (Lomax) distribution of shape parameter `a`, as NumPy's: from 0 on."""
    return exp(exponential(key, shape, dtype=dtype) / a) - 1


def triangular(
    key: ArrayLike,
    shape: ShapeLike,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats over [left, right] whose density rises to `mode` and falls after it."""
    unit = uniform(key, shape, dtype=dtype)
    left, mode, right = (as_array(p, unit.dtype) for p in (left, mode, right))
    rise, fall, width = mode - left, right - mode, right - left
    below = left + sqrt(unit * width * rise)
    return where(unit * width < rise, below, right - sqrt((1 - unit) * width * fall))


def geometric(key: ArrayLike, shape: ShapeLike, p: ArrayLike, dtype: DTypeLike = int32) -> Array:
    """How many trials of chance `p` it takes to the first success: integers from 1 on."""
    trials = ceil(log1p(-uniform(key, shape)) / log1p(-as_array(p, float32)))
    return cast_to(maximum(trials, 1), as_dtype(dtype))


def chisquare(key: ArrayLike, shape: ShapeLike, df: ArrayLike, dtype: DTypeLike = float32) -> Array:
    """Floats of a chi-square distribution with `df` degrees of freedom (broadcast to `shape`)."""
    return 2 * gamma(key, shape, as_array(df, float32) / 2, dtype)


def student_t(key: ArrayLike, shape: ShapeLike, df: ArrayLike, dtype: DTypeLike = float32) -> Array:
    """Floats of Student's t distribution with `df` degrees of freedom (broadcast to `shape`)."""
    first, second = split(key)
    return normal(first, shape, dtype=dtype) / sqrt(chisquare(second, shape, df, dtype) / df)


def negative_binomial(
    key: ArrayLike, shape: ShapeLike, n: ArrayLike, p: ArrayLike, dtype: DTypeLike = float32
) -> Array:
    """Numbers of failures before `n` successes in trials of chance `p` (broadcast to `shape`)."""
    first, second = split(key)
    chance = as_array(p, float32)
    rate = gamma(first, shape, n) * ((1 - chance) / chance)
    return poisson(second, shape, rate, dtype)


def dirichlet(
    key: ArrayLike, alpha: ArrayLike, shape: ShapeLike = (), dtype: DTypeLike = float32
) -> Array:
    """Vectors of positive numbers whose sum is 1.

    Args:
        alpha: (k,), the concentrations.
        shape: of the array of vectors.

    Returns:
        An array of shape `shape + (k,)`.
    """
    alpha = as_array(alpha)
    if alpha.ndim != 1:
        raise ValueError(f"dirichlet: alpha has shape {alpha.shape}, which is no vector")
    parts = gamma(key, (*rules.normalize_shape(shape), alpha.size), alpha, dtype)
    return parts / total(parts, -1, True)


def permutation(key: ArrayLike, x: ArrayLike, axis: int = 0) -> Array:
    """The slices of `x` along `axis` in a random order; of an integer, that many numbers from 0 on.

    Returns:
        An array like `x`, or (x,) of int32.
    """
    if is_scalar(x):
        count = int(x)
        return argsort(random_bits(key, (count,)))
    x = as_array(x)
    axis = rules.axis_index(axis, x.ndim)
    return take(x, argsort(random_bits(key, (x.shape[axis],))), axis)


def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
) -> Array:
    """Slices of `a` along `axis`, drawn at random.

    Args:
        a: an array, or an integer for the numbers below it.
        shape: how many, in the place of `axis`.
        replace: whether a slice may be drawn several times.
        p: a chance for each slice; all are alike by default.

    Raises:
        ValueError: for more draws than slices without replacement, for nothing to choose from, and
            for chances that do not fit.
    """
    shape = rules.normalize_shape(shape)
    source = None if is_scalar(a) else as_array(a)
    axis = 0 if source is None else rules.axis_index(axis, source.ndim)
    size = cast(int, a) if source is None else source.shape[axis]
    count = math.prod(shape)
    if (size < 1 and count) or (not replace and count > size):
        raise ValueError(f"choice: {count} draws from {size} without replacement")
    chances = None if p is None else as_array(p)
    if chances is not None:
        if chances.shape != (size,):
            raise ValueError(f"choice: p has shape {chances.shape} for {size} to choose from")
        chances = cast_to(chances, floating(chances.dtype)[0])
    if replace:
        places = _with_replacement(key, size, shape, chances)
    elif chances is None:
        places = window(permutation(key, size), 0, 0, count)
    else:  # the largest of log-chances with Gumbel noise, one after the other
        noisy = log(chances) + gumbel(key, (size,), dtype=chances.dtype)
        places = window(argsort(-noisy), 0, 0, count)
    places = reshape_to(places, shape)
    return places if source is None else take(source, places, axis)


def _with_replacement(
    key: ArrayLike, size: int, shape: tuple[int, ...], chances: Array | None
) -> Array:
    if chances is None:
        return randint(key, shape, 0, size)
    up_to = cumsum(chances)
    limit = uniform(key, (math.prod(shape),), dtype=chances.dtype) * window(
        up_to, 0, size - 1, size
    )
    return minimum(searchsorted(up_to, limit, "right"), size - 1)
