"""Random numbers, generated where they are needed.

Element i of an array is a pure function of a key (uint32[2]) and i, so numbers need no memory and
no state, fuse with what uses them, and are the same on every device (up to rounding in log, cos …).
The function is Threefry2x32-20 of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC'11: counter (i mod 2**32, stream), the key as its key;
beyond 2**32 elements, every 2**32 of them have a key of their own.  A call that needs several
numbers for an element takes them from different streams.  Which elements are kept (dropout,
`bernoulli`) is a cheaper function of key and place, that of kerascl/philox.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerascl import philox
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.batch import note
from kerascl.core.context import current
from kerascl.core.op import Kind, Op, register
from kerascl.core.tape import pause
from kerascl.core.types import Gradients, ShapeLike, Vjp
from kerascl.dtypes import (
    DType,
    DTypeLike,
    as_dtype,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)  # fmt: skip
from kerascl.ops import threefry
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    is_scalar,
    pointwise,
    scalar,
    wrapped,
)  # fmt: skip
from kerascl.ops.movement import iota, strided
from kerascl.ops.pointwise import exp, log, maximum, minimum, sigmoid, where
from kerascl.ops.reduction import argmax
from kerascl.ops.views import concat, expand_to, reshape_to

__all__ = [
    "bernoulli", "beta", "binomial", "categorical", "dropout", "fold_in", "gamma", "key",
    "loggamma", "normal", "poisson", "randint", "random_bits", "split", "truncated_normal",
    "uniform",
]  # fmt: skip

_WORDS = """\
inline ulong kcl_word64(uint2 b) { return ((ulong)b.x << 32) | (ulong)b.y; }
"""
# Numbers in the open interval (0, 1).
_OPEN = """\
inline float kcl_open_float(uint b) { return min(((float)b + 0.5f) * 0x1p-32f, 0x1.fffffep-1f); }
"""
_OPEN_DOUBLE = """\
inline double kcl_open_double(uint2 b) { return ((double)(kcl_word64(b) >> 11) + 0.5) * 0x1p-53; }
"""
# Box and Muller's transform; the radius takes all bits, so that the tails reach 6.7 deviations.
_NORMAL = """\
inline float kcl_normal_float(uint2 b) {
  return sqrt(-2.0f * log(((float)b.x + 0.5f) * 0x1p-32f)) * cospi((float)b.y * 0x1p-31f);
}
"""
_NORMAL_DOUBLE = """\
inline double kcl_normal_double(uint2 a, uint2 b) {
  return sqrt(-2.0 * log(kcl_open_double(a))) * cospi(2.0 * kcl_open_double(b));
}
"""
# M. Giles, "Approximating the erfinv function", GPU Computing Gems Jade Edition (2011), the
# branch for |x| < 0.9966; cut to two deviations, erf(sqrt(2)) = 0.9545, it never leaves it.
_CENTRAL = """\
inline float kcl_erfinv_central(float x) {
  const float w = -log((1.0f - x) * (1.0f + x)) - 2.5f;
  float p = 2.81022636e-08f;
  p = 3.43273939e-07f + p * w;
  p = -3.5233877e-06f + p * w;
  p = -4.39150654e-06f + p * w;
  p = 0.00021858087f + p * w;
  p = -0.00125372503f + p * w;
  p = -0.00417768164f + p * w;
  p = 0.246640727f + p * w;
  p = 1.50140941f + p * w;
  return p * x;
}
inline float kcl_truncated_float(uint b) {
  const float u = (2.0f * kcl_open_float(b) - 1.0f) * 0.954499736f;
  return clamp(1.41421356f * kcl_erfinv_central(u), -0x1.fffffep+0f, 0x1.fffffep+0f);
}
"""
# The same, made exact by Newton's method.
_CENTRAL_DOUBLE = """\
inline double kcl_truncated_double(uint2 b) {
  const double u = (2.0 * kcl_open_double(b) - 1.0) * 0.95449973610364158560;
  double z = kcl_erfinv_central((float)u);
  for (int k = 0; k < 2; k++) z -= (erf(z) - u) * 0.88622692545275801365 * exp(z * z);
  return clamp(1.41421356237309504880 * z, -0x1.fffffffffffffp+0, 0x1.fffffffffffffp+0);
}
"""
# W. Hörmann, "The transformed rejection method for generating Poisson random variables", Insurance:
# Mathematics and Economics 12 (1993), PTRS; below a mean of 10, a product of uniform numbers.
_POISSON = """\
inline REAL kcl_poisson_REAL(uint k0, uint k1, ulong c, uint stream, REAL mean) {
  if (!(mean >= 0 && mean < (REAL)INFINITY)) return (REAL)NAN;
  REAL k = 0;
  if (mean < 10) {
    const REAL end = exp(-mean);
    REAL product = 1;
    for (uint j = stream; j < stream + 1024; j += 2) {
      product *= OPEN(j);
      if (product <= end) break;
      k += 1;
    }
    return k;
  }
  const REAL b = (REAL)0.931f + (REAL)2.53f * sqrt(mean);
  const REAL a = (REAL)-0.059f + (REAL)0.02483f * b;
  const REAL inverse = (REAL)1.1239f + (REAL)1.1328f / (b - (REAL)3.4f);
  const REAL vr = (REAL)0.9277f - (REAL)3.6224f / (b - 2);
  k = floor(mean);
  for (uint j = stream; j < stream + 1024; j += 4) {
    const REAL u = OPEN(j) - 0.5f, v = OPEN(j + 2), us = (REAL)0.5f - fabs(u);
    const REAL t = floor((2 * a / us + b) * u + mean + (REAL)0.43f);
    if (us >= 0.07f && v <= vr) { k = t; break; }
    if (t < 0 || (us < 0.013f && v > us)) continue;
    // t * log(mean) - mean - log(t!), without the large parts that cancel out
    const REAL n = t + 1, r = (mean - n) / n, l = log1p(r);
    const REAL bound = n * (l - r) - l - (REAL)0.5f * log(n) - (REAL)0.918938533204672742L
      - kcl_stirling_REAL(t);
    if (log(v * inverse / (a / (us * us) + b)) <= bound) { k = t; break; }
  }
  return k;
}
"""
_GUMBEL = """\
inline float kcl_gumbel_float(uint b) { return -log(-log1p(-kcl_open_float(b))); }
"""
_GUMBEL_DOUBLE = """\
inline double kcl_gumbel_double(uint2 b) { return -log(-log1p(-kcl_open_double(b))); }
"""
# G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM TOMS 26
# (2000).  The result is exp(y) * x: y makes up for shapes below 1 and may be far out of range.
_GAMMA = """\
inline REAL2 kcl_gamma_REAL(uint k0, uint k1, ulong c, uint stream, REAL alpha) {
  const REAL shape = alpha < 0 ? (REAL)NAN : alpha < 1 ? alpha + 1 : alpha;
  const REAL d = shape - (REAL)(1.0f / 3.0f), scale = (REAL)(1.0f / 3.0f) / sqrt(d);
  REAL v = shape == shape ? (REAL)1 : (REAL)NAN;
  for (uint k = stream + 4; k < stream + 256; k += 4) {
    const REAL x = NORMAL(k);
    REAL t = 1 + scale * x;
    if (!(t > 0)) continue;
    t = t * t * t;
    const REAL u = OPEN(k + 2);
    if (u < 1 - (REAL)0.0331f * x * x * x * x || log(u) < x * x / 2 + d * (1 - t + log(t))) {
      v = t;
      break;
    }
  }
  return (REAL2)(d * v, alpha < 1 ? log(OPEN(stream)) / alpha : (REAL)0);
}
"""
# W. Hörmann, "The generation of binomial random variates", J. Stat. Comput. Simul. 46 (1993):
# transformed rejection (BTRS); below a mean of 10, a sum of geometric waiting times.
_STIRLING = """\
inline REAL kcl_stirling_REAL(REAL k) {
  if (k < 0.5f) return (REAL)0.0810614667953272L;
  if (k < 1.5f) return (REAL)0.0413406959554092L;
  if (k < 2.5f) return (REAL)0.0276779256849983L;
  if (k < 3.5f) return (REAL)0.0207906721037650L;
  if (k < 4.5f) return (REAL)0.0166446911898211L;
  const REAL n = k + 1, s = n * n;
  return (1 / (REAL)12 - (1 / (REAL)360 - 1 / (REAL)1260 / s) / s) / n;
}
"""
_BINOMIAL = """\
inline REAL kcl_binomial_REAL(uint k0, uint k1, ulong c, uint stream, REAL n, REAL chance) {
  if (!(n >= 0 && chance >= 0 && chance <= 1)) return (REAL)NAN;
  const REAL p = chance > 0.5f ? 1 - chance : chance;
  REAL k = 0;
  if (n * p < 10) {
    const REAL fail = log1p(-p);
    REAL trials = 0;
    for (uint j = stream; p > 0 && j < stream + 4096; j += 2) {
      trials += max((REAL)1, ceil(log(OPEN(j)) / fail));
      if (!(trials <= n)) break;
      k += 1;
    }
  } else {
    const REAL r = p / (1 - p), spq = sqrt(n * p * (1 - p));
    const REAL b = (REAL)1.15f + (REAL)2.53f * spq;
    const REAL a = (REAL)-0.0873f + (REAL)0.0248f * b + (REAL)0.01f * p;
    const REAL alpha = ((REAL)2.83f + (REAL)5.1f / b) * spq, vr = (REAL)0.92f - (REAL)4.2f / b;
    const REAL m = floor((n + 1) * p);
    k = m;
    for (uint j = stream; j < stream + 1024; j += 4) {
      const REAL u = OPEN(j) - 0.5f, v = OPEN(j + 2), us = (REAL)0.5f - fabs(u);
      const REAL t = floor((2 * a / us + b) * u + n * p + 0.5f);
      if (t < 0 || t > n) continue;
      if (us >= 0.07f && v <= vr) { k = t; break; }
      const REAL bound = (m + 0.5f) * log((m + 1) / (r * (n - m + 1)))
        + (n + 1) * log((n - m + 1) / (n - t + 1)) + (t + 0.5f) * log(r * (n - t + 1) / (t + 1))
        + kcl_stirling_REAL(m) + kcl_stirling_REAL(n - m)
        - kcl_stirling_REAL(t) - kcl_stirling_REAL(n - t);
      if (log(v * alpha / (a / (us * us) + b)) <= bound) { k = t; break; }
    }
  }
  return chance > 0.5f ? n - k : k;
}
"""


def _for_float(text: str) -> str:
    text = text.replace("NORMAL(k)", "kcl_normal_float(kcl_threefry(k0, k1, c, k))")
    for place in ("k + 2", "stream", "j + 2", "j"):
        text = text.replace(f"OPEN({place})", f"kcl_open_float(kcl_threefry(k0, k1, c, {place}).x)")
    return text.replace("REAL", "float").replace("L;", "f;").replace("1.0f / 3.0f", "1.0f / 3.0f")


def _for_double(text: str) -> str:
    text = text.replace(
        "NORMAL(k)",
        "kcl_normal_double(kcl_threefry(k0, k1, c, k), kcl_threefry(k0, k1, c, k + 1))",
    )
    for place in ("k + 2", "stream", "j + 2", "j"):
        text = text.replace(f"OPEN({place})", f"kcl_open_double(kcl_threefry(k0, k1, c, {place}))")
    text = text.replace("1.0f / 3.0f", "1.0 / 3.0").replace("L;", ";")
    return text.replace("REAL", "double")


_FLOAT = (threefry.SOURCE, _OPEN, _NORMAL)
_DOUBLE = (threefry.SOURCE, _WORDS, _OPEN_DOUBLE, _NORMAL_DOUBLE)
_BLOCK = "kcl_threefry({0}, {1}, {2}, {a0}u)"
_NEXT = "kcl_threefry({0}, {1}, {2}, {a0}u + 1u)"


def _draw(name: str, code: str, helpers: tuple[str, ...] = (), cost: int = 60) -> Op:
    """Declare an operation over (key0, key1, counter, parameters …) with attributes (stream,)."""
    helpers = (threefry.SOURCE, *helpers)
    return register(Op("random_" + name, Kind.POINTWISE, code, helpers, cost=cost))


BITS = _draw("bits", f"{_BLOCK}.x")
OTHER_BITS = _draw("other_bits", f"{_BLOCK}.y")
_BITS64 = _draw("bits64", f"(({{T}})kcl_word64({_BLOCK}))", (_WORDS,))
_UNIFORM = {
    float32: _draw("uniform", f"((float)({_BLOCK}.x >> 8) * 0x1p-24f)"),
    float16: _draw("uniform_half", f"((float)({_BLOCK}.x >> 21) * 0x1p-11f)"),
    bfloat16: _draw("uniform_bfloat", f"((float)({_BLOCK}.x >> 24) * 0x1p-8f)"),
    float8_e4m3fn: _draw("uniform_e4m3", f"((float)({_BLOCK}.x >> 28) * 0x1p-4f)"),
    float8_e5m2: _draw("uniform_e5m2", f"((float)({_BLOCK}.x >> 29) * 0x1p-3f)"),
    float64: _draw(
        "uniform_double", f"((double)(kcl_word64({_BLOCK}) >> 11) * 0x1p-53)", (_WORDS,)
    ),
}
_NORMALS = {
    float32: _draw("normal", f"kcl_normal_float({_BLOCK})", (_NORMAL,), 90),
    float64: _draw("normal_double", f"kcl_normal_double({_BLOCK}, {_NEXT})", _DOUBLE[1:], 200),
}
_TRUNCATED = {
    float32: _draw("truncated", f"kcl_truncated_float({_BLOCK}.x)", (_OPEN, _CENTRAL), 90),
    float64: _draw(
        "truncated_double",
        f"kcl_truncated_double({_BLOCK})",
        (_WORDS, _OPEN, _OPEN_DOUBLE, _CENTRAL, _CENTRAL_DOUBLE),
        200,
    ),
}
_GUMBELS = {
    float32: _draw("gumbel", f"kcl_gumbel_float({_BLOCK}.x)", (_OPEN, _GUMBEL), 90),
    float64: _draw(
        "gumbel_double",
        f"kcl_gumbel_double({_BLOCK})",
        (_WORDS, _OPEN_DOUBLE, _GUMBEL_DOUBLE),
        150,
    ),
}
_GAMMA_FLOAT = (*_FLOAT[1:], _for_float(_GAMMA))
_GAMMA_DOUBLE = (*_DOUBLE[1:], _for_double(_GAMMA))
_SCALE = "kcl_gamma_{T}({0}, {1}, {2}, {a0}u, {3})"
_GAMMAS = {
    float32: _draw("gamma", f"{_SCALE}.x", _GAMMA_FLOAT, 300),
    float64: _draw("gamma_double", f"{_SCALE}.x", _GAMMA_DOUBLE, 500),
}
_BOOSTS = {
    float32: _draw("boost", f"{_SCALE}.y", _GAMMA_FLOAT, 300),
    float64: _draw("boost_double", f"{_SCALE}.y", _GAMMA_DOUBLE, 500),
}
_LOG_GAMMAS = {
    float32: _draw("loggamma", f"(log({_SCALE}.x) + {_SCALE}.y)", _GAMMA_FLOAT, 300),
    float64: _draw("loggamma_double", f"(log({_SCALE}.x) + {_SCALE}.y)", _GAMMA_DOUBLE, 500),
}
_BINOMIALS = {
    float32: _draw(
        "binomial",
        "kcl_binomial_float({0}, {1}, {2}, {a0}u, {3}, {4})",
        (_OPEN, _for_float(_STIRLING), _for_float(_BINOMIAL)),
        400,
    ),
    float64: _draw(
        "binomial_double",
        "kcl_binomial_double({0}, {1}, {2}, {a0}u, {3}, {4})",
        (_WORDS, _OPEN_DOUBLE, _for_double(_STIRLING), _for_double(_BINOMIAL)),
        600,
    ),
}
_POISSONS = {
    float32: _draw(
        "poisson",
        "kcl_poisson_float({0}, {1}, {2}, {a0}u, {3})",
        (_OPEN, _for_float(_STIRLING), _for_float(_POISSON)),
        300,
    ),
    float64: _draw(
        "poisson_double",
        "kcl_poisson_double({0}, {1}, {2}, {a0}u, {3})",
        (_WORDS, _OPEN_DOUBLE, _for_double(_STIRLING), _for_double(_POISSON)),
        500,
    ),
}
_INTEGER = _draw("integer", f"({{T}})({{4}} + mul_hi(kcl_word64({_BLOCK}), {{3}}))", (_WORDS,), 70)


def _keep(name: str, word: str) -> Op:
    """Declare an operation over (key0, key1, place, limit): whether an element is kept."""
    code = f"({word} < {{3}})"
    return register(Op("random_" + name, Kind.POINTWISE, code, (philox.SOURCE,), cost=60))


KEEP = _keep("keep", "kcl_philox({0}, {1}, {2}).x")
KEEP_COARSE = _keep("keep_coarse", "kcl_quarter(kcl_philox({0}, {1}, {2} / 4u), (uint){2})")


def key(seed: int) -> Array:
    """A key (uint32, shape (2,)) from an integer of up to 64 bits."""
    seed = operator.index(seed)
    return as_array(np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32))


def checked_key(key: ArrayLike) -> Array:
    """uint32, of shape (2,).

    Raises:
        ValueError: for another shape.
    """
    key = cast_to(as_array(key), uint32)
    if key.shape != (2,):
        raise ValueError(
            f"a random key has shape (2,), not {key.shape}; make one with "
            "kerascl.random.key(seed), or draw as NumPy does, with kerascl.random.default_rng(seed)"
        )
    return key


def _parts(key: ArrayLike) -> tuple[Array, Array]:
    key = checked_key(key)
    return strided(key, [0], [1], [1]), strided(key, [1], [2], [1])


def _apply(
    op: Op,
    key: ArrayLike,
    shape: ShapeLike,
    dtype: DType,
    stream: int = 0,
    params: tuple[Array, ...] = (),
) -> Array:
    shape = rules.normalize_shape(shape)
    return _drawn_at(op, key, places(shape), dtype, params, stream)


def _drawn_at(
    op: Op, key: ArrayLike, where: Array, dtype: DType, params: tuple[Array, ...], *attrs: int
) -> Array:
    words = [expand_to(reshape_to(k, ()), where.shape) for k in _parts(key)]
    rest = [expand_to(x, where.shape) for x in params]
    return apply(op, (*words, where, *rest), attrs, where.shape, dtype)


def places(shape: tuple[int, ...]) -> Array:
    """The place of each element in memory, in 64 bits where there are more than 2**32."""
    count = math.prod(shape)
    counter = reshape_to(iota((count,), 0), shape)
    return cast_to(counter, uint32 if count <= 2**32 else uint64)


def row_places(shape: tuple[int, ...]) -> int:
    """The places of a row, along the last axis, where rows begin at multiples of four."""
    return philox.FOUR * philox.groups(shape[-1] if shape else 1)


def places_in_fours(shape: tuple[int, ...]) -> Array:
    """The place of each element where rows begin at multiples of four."""
    columns, wide = shape[-1] if shape else 1, row_places(shape)
    if columns == wide or not math.prod(shape):
        return places(shape)
    table = places((math.prod(shape[:-1]), wide))
    return reshape_to(strided(table, (0, 0), (table.shape[0], columns), (1, 1)), shape)


def _float_dtype(dtype: DTypeLike) -> DType:
    dtype = as_dtype(dtype)
    if not dtype.is_float:
        raise TypeError(f"random numbers of dtype {dtype.name}: it must be floating")
    return dtype


def _real(
    table: dict[DType, Op],
    key: ArrayLike,
    shape: ShapeLike,
    dtype: DTypeLike,
    stream: int = 0,
    params: tuple[Any, ...] = (),
) -> Array:
    """A draw that is computed in float32 for the small floats."""
    dtype = _float_dtype(dtype)
    work = dtype.accumulator
    params = tuple(cast_to(as_array(p), work) for p in params)
    return cast_to(_apply(table[work], key, shape, work, stream, params), dtype)


def random_bits(key: ArrayLike, shape: ShapeLike, stream: int = 0) -> Array:
    """uint32 of 32 random bits each; `stream` (0 … 2**32 - 4) tells draws with one key apart."""
    return _apply(BITS, key, shape, uint32, stream)


def fold_in(key: ArrayLike, number: int) -> Array:
    """Another key, from a key and an integer below 2**32."""
    words = [reshape_to(k, (1,)) for k in _parts(key)]
    counter = expand_to(scalar(number, uint32), (1,))
    parts = [apply(op, (*words, counter), (0xFFFFFFFF,), (1,), uint32) for op in (BITS, OTHER_BITS)]
    first = iota((2,), 0) == 0
    return where(first, expand_to(parts[0], (2,)), expand_to(parts[1], (2,)))


def split(key: ArrayLike, num: int = 2) -> Array:
    """`num` keys (num, 2) from one, independent of each other, of it and of those of `fold_in`."""
    num = operator.index(num)
    words = [expand_to(k, (num,)) for k in _parts(key)]
    counters = cast_to(iota((num,), 0), uint32)
    parts = [
        reshape_to(apply(op, (*words, counters), (0xFFFFFFFD,), (num,), uint32), (num, 1))
        for op in (BITS, OTHER_BITS)
    ]
    return concat(parts, 1)


def uniform(
    key: ArrayLike,
    shape: ShapeLike,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats uniform over [low, high), on a grid of 2**-24 of the interval (float32)."""
    dtype = _float_dtype(dtype)
    unit = _apply(_UNIFORM[dtype], key, shape, dtype)
    if is_scalar(low) and is_scalar(high):
        if (low, high) == (0, 1):
            return unit
        work = dtype.numpy.type
        y = unit * (float(high) - float(low)) + float(low)
        if not high > low:
            return maximum(y, float(low))
        # rounding must not reach the excluded end
        return minimum(y, float(np.nextafter(work(high), work(low))))
    low, high = as_array(low, dtype), as_array(high, dtype)
    return maximum(unit * (high - low) + low, low)


def normal(
    key: ArrayLike,
    shape: ShapeLike,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats of a normal distribution."""
    y = _real(_NORMALS, key, shape, dtype)
    return shifted(y, mean, stddev)


def truncated_normal(
    key: ArrayLike,
    shape: ShapeLike,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = float32,
) -> Array:
    """Floats of a normal distribution, all within two standard deviations of the mean."""
    return shifted(_real(_TRUNCATED, key, shape, dtype), mean, stddev)


def shifted(y: Array, mean: ArrayLike, stddev: ArrayLike) -> Array:
    """`y * stddev + mean`: a standard distribution's values as those of its family."""
    if not (is_scalar(stddev) and stddev == 1):
        y = y * stddev
    return y if is_scalar(mean) and mean == 0 else y + mean


def randint(
    key: ArrayLike, shape: ShapeLike, low: ArrayLike, high: ArrayLike, dtype: DTypeLike = int32
) -> Array:
    """Integers uniform over [low, high), from 64 bits each; `low` where the interval is empty."""
    dtype = as_dtype(dtype)
    if not dtype.is_integer:
        raise TypeError(f"randint: dtype must be an integer type, not {dtype.name}")
    bounds = np.iinfo(dtype.numpy)
    if is_scalar(low) and is_scalar(high):
        low = min(max(int(low), bounds.min), bounds.max)
        size = max(min(int(high), bounds.max + 1) - low, 1)
        if size == 2**64:
            return _apply(_BITS64, key, shape, dtype)
        span, start = scalar(size, uint64), wrapped(low, uint64)
    else:
        wide = uint64 if dtype is uint64 else int64
        low, high = as_array(low, wide), as_array(high, wide)
        span = cast_to(where(high > low, high - low, 1), uint64)
        start = cast_to(low, uint64)
    return _apply(_INTEGER, key, shape, dtype, 0, (span, start))


def bernoulli(key: ArrayLike, shape: ShapeLike, p: float) -> Array:
    """bool: true with probability `p` (to 1e-5 of it, or to 2**-32)."""
    shape = rules.normalize_shape(shape)
    if is_scalar(p):
        if p >= 1 or p <= 0:
            return expand_to(scalar(p >= 1, bool_), shape)
        return kept(key, shape, keep_limit(p))
    return uniform(key, shape) < p


def keep_limit(p: float) -> int:
    """What random bits must be below, which happens with probability `p` < 1: 16 bits where they
    come near enough that no mean is off by more than 1e-5 of it, else 32."""
    few = round(p * 2.0**16)
    if few < 2**16 and abs(few * 2.0**-16 - p) <= 1e-5 * p:
        return few * philox.COARSE
    return min(round(p * 2.0**32), 2**32 - 1)


def kept(key: ArrayLike, shape: ShapeLike, limit: int) -> Array:
    """bool: which elements are kept; kerascl/philox.py says which."""
    where = places_in_fours(rules.normalize_shape(shape))
    op = KEEP_COARSE if philox.coarse(limit) else KEEP
    return _drawn_at(op, key, where, bool_, (scalar(limit, uint32),))


def dropout(
    key: ArrayLike, x: ArrayLike, rate: float, noise_shape: Sequence[int | None] | None = None
) -> Array:
    """`x / (1 - rate)` with each element (or slice, by `noise_shape`) zero with chance `rate`.

    `noise_shape` has sizes of `x` or 1 (None: that of `x`), where 1 shares the decision.
    """
    x = as_array(x)
    if is_scalar(rate):
        if rate == 0:
            return x
        if rate == 1:
            return expand_to(scalar(0, x.dtype), x.shape)
    shape = x.shape
    if noise_shape is not None:
        shape = tuple(n if m is None else m for n, m in zip(x.shape, noise_shape, strict=True))
    keep = expand_to(bernoulli(key, shape, 1.0 - rate), x.shape)
    x = cast_to(x, floating(x.dtype)[0])
    scaled = x * (1.0 / (1.0 - rate)) if is_scalar(rate) else x / (1.0 - rate)
    return where(keep, scaled, 0)


def categorical(key: ArrayLike, logits: ArrayLike, count: int, dtype: DTypeLike = int32) -> Array:
    """Classes drawn with probability softmax(logits).

    Args:
        logits: (rows, classes), unnormalised log-probabilities.
        count: draws for each row.

    Returns:
        (rows, count) of `dtype`.
    """
    logits = as_array(logits)
    if logits.ndim != 2:
        raise ValueError(f"categorical: logits must have shape (rows, classes), not {logits.shape}")
    work = floating(logits.dtype)[0].accumulator
    rows, classes = logits.shape
    shape = (rows, count, classes)
    wide = expand_to(reshape_to(cast_to(logits, work), (rows, 1, classes)), shape)
    # the largest of logits with Gumbel noise is distributed as softmax says
    return cast_to(argmax(wide + _real(_GUMBELS, key, shape, work), axis=-1), as_dtype(dtype))


_slope = pointwise("gamma_slope", "kcl_gamma_slope_{T}({0}, {1})", floating, cost=400)


def _gamma_vjp(g: Array, y: Array, alpha: Array) -> Gradients:
    some = y > 0  # 0 has underflowed
    return (where(some, g * y * _slope(alpha, log(where(some, y, 1))), 0),)


def _drawn(
    shape: ShapeLike, alpha: ArrayLike, work: DType, draw: Callable[[Array], Array], vjp: Vjp
) -> Array:
    """`draw(alpha)` of `shape`, with an implicit derivative for `alpha`."""
    alpha = expand_to(cast_to(as_array(alpha), work), rules.normalize_shape(shape))
    with pause():
        y = draw(alpha)
    note(current.tapes, vjp, (alpha,), y)
    return y


def gamma(
    key: ArrayLike, shape: ShapeLike, alpha: ArrayLike, dtype: DTypeLike = float32, stream: int = 0
) -> Array:
    """Floats of a gamma distribution of shape `alpha` (broadcast to `shape`) and scale 1.

    Their derivatives for `alpha` are those at the same quantile (implicit reparameterisation), to
    about 5e-5 relative.
    """
    dtype = _float_dtype(dtype)
    work = dtype.accumulator

    def draw(alpha: Array) -> Array:
        y = _real(_GAMMAS, key, shape, work, stream, (alpha,))
        return y * exp(_real(_BOOSTS, key, shape, work, stream, (alpha,)))

    return cast_to(_drawn(shape, alpha, work, draw, _gamma_vjp), dtype)


def loggamma(
    key: ArrayLike, shape: ShapeLike, alpha: ArrayLike, dtype: DTypeLike = float32, stream: int = 0
) -> Array:
    """Logarithms of gamma variates; finite where these underflow (small `alpha`).

    Differentiable in `alpha`, as `gamma` is.
    """
    dtype = _float_dtype(dtype)
    work = dtype.accumulator

    def draw(alpha: Array) -> Array:
        return _real(_LOG_GAMMAS, key, shape, work, stream, (alpha,))

    def vjp(g: Array, y: Array, alpha: Array) -> Gradients:
        return (g * _slope(alpha, y),)

    return cast_to(_drawn(shape, alpha, work, draw, vjp), dtype)


def beta(
    key: ArrayLike, shape: ShapeLike, alpha: ArrayLike, beta: ArrayLike, dtype: DTypeLike = float32
) -> Array:
    """Floats of a beta distribution; `alpha` and `beta` broadcast to `shape`.

    Differentiable in both, through the two gamma variates that it is made of.
    """
    dtype = _float_dtype(dtype)
    work = dtype.accumulator
    (alpha, beta), _ = convert((as_array(alpha, work), as_array(beta, work)))
    a = loggamma(key, shape, alpha, work)
    b = loggamma(key, shape, beta, work, stream=1 << 16)
    return cast_to(sigmoid(a - b), dtype)


def binomial(
    key: ArrayLike,
    shape: ShapeLike,
    counts: ArrayLike,
    probabilities: ArrayLike,
    dtype: DTypeLike = float32,
) -> Array:
    """Numbers of successes in `counts` trials of chance `probabilities` (broadcast to `shape`)."""
    return _real(_BINOMIALS, key, shape, dtype, 0, (counts, probabilities))


def poisson(
    key: ArrayLike, shape: ShapeLike, rate: ArrayLike, dtype: DTypeLike = float32
) -> Array:
    """Numbers of events of mean `rate` (broadcast to `shape`); NaN for negative rates."""
    return _real(_POISSONS, key, shape, dtype, 0, (rate,))
