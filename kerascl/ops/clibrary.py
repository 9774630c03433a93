"""C functions that elementwise operations call.

Each entry is the text of one function.  `@T` in a name or text stands for the
compute type of the operation's result, so one text serves every type; in functions on
complex numbers `@R` is the type of their parts, and `@U` is the unsigned type in which integers
wrap.  An operation names a function in its code (with `{T}` for `@T`) and needs nothing
more: `needed` finds it, and what it calls in turn.
"""

from __future__ import annotations

import re

from kerascl import dtypes

_TEXTS = r"""
static inline @T kcl_fmod_@T(@T a, @T b) {
  const @T r = fmod(a, b);
  if (r == 0) return copysign(r, b);
  return ((r < 0) != (b < 0)) ? r + b : r;
}

static inline @T kcl_fdiv_@T(@T a, @T b) {
  if (b == 0) return a / b;
  const @T r = fmod(a, b);
  @T q = (a - r) / b;
  if (r != 0 && ((r < 0) != (b < 0))) q -= 1;
  if (q == 0) return copysign((@T)0, a / b);
  const @T whole = floor(q);
  return q - whole > (@T)0.5f ? whole + 1 : whole;
}

static inline @T kcl_imod_@T(@T a, @T b) {
  if (b == 0 || (b < 0 && b + 1 == 0)) return 0;
  const @T r = a % b;
  return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
}

static inline @T kcl_idiv_@T(@T a, @T b) {
  if (b == 0) return 0;
  if (b < 0 && b + 1 == 0) return (@T)(0 - (@U)a);
  const @T q = a / b;
  return (q * b != a && ((a < 0) != (b < 0))) ? q - 1 : q;
}

static inline @T kcl_irem_@T(@T a, @T b) {
  return (b == 0 || (b < 0 && b + 1 == 0)) ? (@T)0 : (@T)(a % b);
}

static inline @T kcl_ipow_@T(@T a, @T b) {
  if (b < 0) return a == 1 ? 1 : a + 1 == 0 ? ((b & 1) ? -1 : 1) : 0;
  @T y = 1;
  while (b > 0) {
    if (b & 1) y = (@T)((@U)y * (@U)a);
    a = (@T)((@U)a * (@U)a);
    b >>= 1;
  }
  return y;
}

static inline @T kcl_gcd_@T(@T a, @T b) {
  while (b != 0) {
    const @T r = kcl_irem_@T(a, b);
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

static inline @T kcl_lcm_@T(@T a, @T b) {
  if (a == 0 || b == 0) return 0;
  const @T y = a / kcl_gcd_@T(a, b) * b;
  return y < 0 ? -y : y;
}

static inline @T kcl_logaddexp_@T(@T a, @T b) {
  const @T apart = a == b ? (@T)0 : fabs(a - b);  /* also of infinities */
  return fmax(a, b) + log1p(exp(-apart));
}

static inline @T kcl_logaddexp2_@T(@T a, @T b) {
  const @T apart = a == b ? (@T)0 : fabs(a - b);
  const @T more = log1p(exp2(-apart)) * (@T)1.4426950408889634;
  return fmax(a, b) + (a == b ? (@T)1 : more);
}

static inline @T kcl_sinc_@T(@T x) {
  return x == 0 ? (@T)1 : (@T)(sinpi(x) / ((@T)3.14159265358979323846 * x));
}

static inline @T kcl_erfinv_@T(@T y) {
  if (y == 1 || y == -1) return copysign((@T)INFINITY, y);
  const @T w = -log((1 - y) * (1 + y));
  @T x;
  if (w < 5) {
    const @T t = w - (@T)2.5;
    x = (@T)2.81022636e-08;
    x = (@T)3.43273939e-07 + x * t;
    x = (@T)-3.5233877e-06 + x * t;
    x = (@T)-4.39150654e-06 + x * t;
    x = (@T)0.00021858087 + x * t;
    x = (@T)-0.00125372503 + x * t;
    x = (@T)-0.00417768164 + x * t;
    x = (@T)0.246640727 + x * t;
    x = (@T)1.50140941 + x * t;
  } else {
    const @T t = sqrt(w) - 3;
    x = (@T)-0.000200214257;
    x = (@T)0.000100950558 + x * t;
    x = (@T)0.00134934322 + x * t;
    x = (@T)-0.00367342844 + x * t;
    x = (@T)0.00573950773 + x * t;
    x = (@T)-0.0076224613 + x * t;
    x = (@T)0.00943887047 + x * t;
    x = (@T)1.00167406 + x * t;
    x = (@T)2.83297682 + x * t;
  }
  x *= y;
  for (int k = 0; k < (sizeof(@T) == 8 ? 2 : 0); k++) {
    /* Newton with the small tail, so that nothing cancels near the ends */
    const @T a = fabs(x);
    const @T miss = (1 - fabs(y)) - erfc(a);
    const @T step = miss / ((@T)1.1283791670955126 * exp(-a * a));
    const @T next = a - step / (1 + a * step);
    x = copysign(next, y);
  }
  return x;
}

static inline @T kcl_elu_@T(@T x, @T scale) {
  /* x, or scale * (exp(x) - 1) below zero; near zero that is x + x x P(x), P the minimax polynomial
     of degree 4 (relative error 1.1e-8).  Everything is computed and then chosen: CPUs' compilers
     make vectors of that, and do not where a function stands behind a condition. */
  if (sizeof(@T) == 8) return x > 0 ? x : scale * expm1(x);
  const @T low = x > 0 ? (@T)0 : x, far = exp(low) - 1;
  @T y = 0.00103570518f;
  y = 0.00807324594f + y * low;
  y = 0.0415769525f + y * low;
  y = 0.166652936f + y * low;
  y = 0.499999308f + y * low;
  const @T near = low + low * low * y;
  return x > 0 ? x : scale * (low > (@T)-0.7f ? near : far);
}

static inline float kcl_exp2(float x) {
  /* 2 to the power of x; what is less than the least normal number may be 0 */
#ifdef KCL_PTX
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2(x);
#endif
}

static inline float kcl_reciprocal(float d) {
  /* 1 / d for d > 0, 0 for d > 2^126: without divisions, which epilogues of products have no time
     for.  Else from its exponent, by Halley's iteration. */
#ifdef KCL_PTX
  float t;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(d));
#else
  float t = as_float(0x7ef311c7u - as_uint(d));
  float miss = 1 - d * t;
  t += t * (miss + miss * miss);
  miss = 1 - d * t;
  t += t * (miss + miss * miss);
#endif
  return t;
}

static inline float kcl_normal_tail(float z, float bell, int narrow) {
  /* P(normal > z) for 0 <= z <= 15, where bell = exp(-z * z / 2): bell t P(t), t = 1 / (1 + c z),
     P the minimax polynomial of degree 8 (relative error 1.3e-8), or of 6 (6.8e-7) if `narrow`. */
  const float t = kcl_reciprocal(1 + 0.265625f * z);
  float y;
  if (narrow) {
    y = 0.190380558f + -0.0668882365f * t;
    y = -0.0605254701f + y * t;
    y = 0.138920046f + y * t;
    y = 0.0843756209f + y * t;
    y = 0.107873234f + y * t;
    y = 0.105863907f + y * t;
  } else {
    y = -0.142018731f + 0.0306075641f * t;
    y = 0.211573872f + y * t;
    y = -0.109982098f + y * t;
    y = 0.133761827f + y * t;
    y = 0.0619966505f + y * t;
    y = 0.102529547f + y * t;
    y = 0.105543012f + y * t;
    y = 0.105988361f + y * t;
  }
  return y * t * bell;
}

static inline float kcl_normal_bell(float z, int narrow) {
  /* exp(-z * z / 2), unless `narrow` also where the exponent's rounding would show */
  const float square = z * z;
#ifdef KCL_PTX  /* where fma is an instruction, too */
  const float power = -0.7213475108f * square;
  const float y = kcl_exp2(power);
  if (narrow) return y;
  float missing = fma(-0.7213475108f, square, -power);
  missing = fma(-9.6298151e-9f, square, missing);
  missing = fma(-0.7213475108f, fma(z, z, -square), missing);
  return y + 0.6931471806f * y * missing;
#else
  const float y = exp(-0.5f * square);
  if (narrow) return y;
  const float high = as_float(as_uint(z) & 0xfffff000u), low = z - high;
  const float missing = (high * high - square) + low * (2 * high + low);
  return y - 0.5f * y * missing;
#endif
}

static inline @T kcl_normal_cdf_@T(@T x, int narrow) {
  /* P(normal <= x); `narrow`: as exactly as 16 bits show */
  if (sizeof(@T) == 8) return (@T)0.5f * erfc((@T)-0.7071067811865475244 * x);
  const float z = fabs((float)x) > 15 ? 15 : fabs((float)x);  /* NaN stays */
  const float tail = kcl_normal_tail(z, kcl_normal_bell(z, narrow), narrow);
  return x < 0 ? tail : 1 - tail;
}

static inline @T kcl_gelu_@T(@T x, int narrow) {
  /* x P(normal <= x) as max(x, 0) - z P(normal > z), which has no 1 - tail to choose */
  if (sizeof(@T) == 8) return x * ((@T)0.5f * erfc((@T)-0.7071067811865475244 * x));
  const float z = fmin(fabs((float)x), 15.0f);
  const float tail = kcl_normal_tail(z, kcl_normal_bell(z, narrow), narrow);
  return (x < 0 ? -0.0f : (float)x) - z * tail;
}

static inline @T kcl_gelu_slope_@T(@T x, int narrow) {
  /* the derivative, P(normal <= x) + x density(x), at -z; at z it is 1 less that */
  const @T density = (@T)0.3989422804014326779;
  if (sizeof(@T) == 8)
    return (@T)0.5f * erfc((@T)-0.7071067811865475244 * x) + density * x * exp((@T)-0.5f * x * x);
  const float z = fabs((float)x) > 15 ? 15 : fabs((float)x);
  const float bell = kcl_normal_bell(z, narrow);
  const float far = kcl_normal_tail(z, bell, narrow) - (float)density * z * bell;
  return x < 0 ? far : 1 - far;
}

static inline @T kcl_gelu_power_@T(@T x) {
  /* exp(-2 u) where (1 + tanh(u)) / 2, in the formula for gelu by tanh, is 1 / (1 + exp(-2 u)) */
  const @T square = fmin(x * x, (@T)1000);  /* the slope's factors stay finite */
#ifdef KCL_PTX
  if (sizeof(@T) == 4)
    return kcl_exp2((float)x * (-2.302208198f + -0.1029432396f * (float)square));
#endif
  return exp(x * ((@T)-1.5957691216057308 + (@T)-0.07135481627260025 * square));
}

static inline @T kcl_gelu_share_@T(@T power) {
#ifdef KCL_PTX
  if (sizeof(@T) == 4) return kcl_reciprocal(1 + (float)power);
#endif
  return 1 / (1 + power);
}

static inline @T kcl_gelu_tanh_@T(@T x) {
  return x * kcl_gelu_share_@T(kcl_gelu_power_@T(x));
}

static inline @T kcl_gelu_tanh_slope_@T(@T x) {
  /* s + x s (1 - s) 2 du/dx, where 1 - s is small as s by the power, which has all its digits */
  const @T power = kcl_gelu_power_@T(x), s = kcl_gelu_share_@T(power);
  const @T other = s * fmin(power, (@T)3e38), square = fmin(x * x, (@T)1000);
  return s * (1 + other * x * ((@T)1.5957691216057308 + (@T)0.21406444881780075 * square));
}

static inline @T kcl_bessel_@T(@T x, int order) {
  const @T a = fabs(x);
  @T y;
  if (a <= 30) {
    const @T q = a * a * (@T)0.25f;
    @T term = order ? a * (@T)0.5f : (@T)1;
    y = term;
    for (int k = 1; k < 120 && term > y * (@T)1e-17f; k++) {
      term *= q / ((@T)k * (k + order));
      y += term;
    }
  } else {
    const @T mu = 4 * order;
    @T term = 1;
    y = 1;
    for (int k = 1; k < 16; k++) {
      const @T odd = 2 * k - 1;
      term *= (odd * odd - mu) / (8 * k * a);
      y += term;
    }
    y *= exp(a - (@T)0.5f * log((@T)6.283185307179586 * a));
  }
  return order && x < 0 ? -y : y;
}

static inline @T kcl_digamma_@T(@T x) {
  @T y = 0;
  if (x <= 0) {
    if (x == floor(x)) return (@T)NAN;
    y = -(@T)3.14159265358979323846 / tanpi(x);
    x = 1 - x;
  }
  while (x < 10) {
    y -= 1 / x;
    x += 1;
  }
  const @T r = 1 / (x * x);
  @T tail = (@T)0.08333333333333333333;
  tail = (@T)-0.02109279609279609280 + r * tail;
  tail = (@T)0.00757575757575757576 + r * tail;
  tail = (@T)-0.00416666666666666667 + r * tail;
  tail = (@T)0.00396825396825396825 + r * tail;
  tail = (@T)-0.00833333333333333333 + r * tail;
  tail = (@T)0.08333333333333333333 + r * tail;
  return y + log(x) - (@T)0.5f / x - r * tail;
}

static inline @T kcl_gamma_slope_@T(@T a, @T y) {
  /* d y / d a of the logarithm y of a gamma variate of shape a, at the same quantile: the
     implicit derivative of M. Figurnov, S. Mohamed and A. Mnih, "Implicit reparameterization
     gradients", NeurIPS 2018, from the series and the continued fraction of the incomplete
     gamma function (Abramowitz and Stegun, 6.5.29 and 6.5.31) and, for large shapes, from the
     cube root's normal distribution (Wilson and Hilferty, 1931). */
  if (!(a > 0) || y != y) return (@T)NAN;
  const @T x = exp(y);
  if (a > (sizeof(@T) == 8 ? (@T)4000 : (@T)250)) {
    const @T s = exp((y - log(a)) / 3), r = sqrt(a), w = (s - 1 + 1 / (9 * a)) * 3 * r;
    return (s * s * s + 3 * s * s * (1 / (9 * a) - w / (6 * r))) / x;
  }
  if (x < (@T)1.5f || x < a + 2 * sqrt(a)) {
    @T term = 1, sum = 1, h = 0, slope = 0;
    for (int n = 1; n < 4000; n++) {
      const @T q = 1 / (a + n);
      term *= x * q;
      h += q;
      sum += term;
      slope -= term * h;
      if (term * h <= (sizeof(@T) == 8 ? (@T)1e-17f : (@T)1e-9f) * fabs(slope)) break;
    }
    return -(sum * (y - kcl_digamma_@T(a + 1)) + slope) / a;
  }
  const int most = sizeof(@T) == 8 ? 400 : 60;
  @T t = x + (2 * most + 1) - a, d = -1;
  for (int k = most; k > 0; k--) {
    const @T part = -k * (k - a), inverse = 1 / t;
    d = -1 + (k - part * d * inverse) * inverse;
    t = x + (2 * k - 1) - a + part * inverse;
  }
  return (y - kcl_digamma_@T(a) - d / t) / t;
}

static inline ushort kcl_half_bits(float v) {
  ushort h;
  vstore_half_rte(v, 0, (half*)&h);
  return h;
}

static inline float kcl_half_value(ushort h) {
  return vload_half(0, (half*)&h);
}

static inline @T kcl_cmul_@T(@T a, @T b) {
  return (@T)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

static inline @T kcl_cdiv_@T(@T a, @T b) {
  if (b.x == 0 && b.y == 0) return (@T)(a.x / fabs(b.x), a.y / fabs(b.x));
  if (fabs(b.x) >= fabs(b.y)) {
    const @R r = b.y / b.x, d = b.x + b.y * r;
    return (@T)((a.x + a.y * r) / d, (a.y - a.x * r) / d);
  }
  const @R r = b.x / b.y, d = b.x * r + b.y;
  return (@T)((a.x * r + a.y) / d, (a.y * r - a.x) / d);
}

static inline @T kcl_crec_@T(@T a) {
  if (fabs(a.y) <= fabs(a.x)) {
    const @R r = a.y / a.x, d = a.x + a.y * r;
    return (@T)(1 / d, -r / d);
  }
  const @R r = a.x / a.y, d = a.x * r + a.y;
  return (@T)(r / d, -1 / d);
}

static inline @T kcl_cexp_@T(@T a) {
  /* complex functions at infinities, NaN and signed zeros: C99, Annex G, as in NumPy */
  if (a.y == 0) return (@T)(exp(a.x), a.y);
  if (isinf(a.x) && !isfinite(a.y))
    return a.x < 0 ? (@T)(0, copysign((@R)0, a.y)) : (@T)(a.x, (@R)NAN);
  const @R half_way = exp((@R)0.5f * a.x);  /* its square may overflow where a product does not */
  return fabs(a.x) < 80 ? exp(a.x) * (@T)(cos(a.y), sin(a.y))
                        : half_way * (@T)(cos(a.y) * half_way, sin(a.y) * half_way);
}

static inline @T kcl_clog_@T(@T a) {
  return (@T)(log(hypot(a.x, a.y)), atan2(a.y, a.x));
}

static inline @T kcl_csqrt_@T(@T a) {
  if (isinf(a.y)) return (@T)((@R)INFINITY, a.y);
  if (isinf(a.x)) {
    const @R zero = a.y - a.y;
    return a.x > 0 ? (@T)(a.x, copysign(zero, a.y)) : (@T)(fabs(zero), copysign(a.x, a.y));
  }
  const @R size = hypot(a.x, a.y);
  if (size == 0) return (@T)(0, a.y);
  const @R root = sqrt((@R)0.5f * (size + fabs(a.x)));
  const @R other = (@R)0.5f * a.y / root;
  return a.x >= 0 ? (@T)(root, other) : (@T)(fabs(other), copysign(root, a.y));
}

static inline @T kcl_csin_@T(@T a) {
  return kcl_csinh_@T(a.yx).yx;
}

static inline @T kcl_ccos_@T(@T a) {
  return kcl_ccosh_@T((@T)(-a.y, a.x));
}

static inline @T kcl_csinh_@T(@T a) {
  if (a.y == 0) return (@T)(sinh(a.x), a.y);
  if (!isfinite(a.y)) {
    if (a.x == 0) return (@T)(a.x, (@R)NAN);
    return (@T)(isinf(a.x) ? (@R)INFINITY : (@R)NAN, (@R)NAN);
  }
  if (a.x == 0) return (@T)(copysign((@R)0, a.x * cos(a.y)), sin(a.y));
  return (@T)(sinh(a.x) * cos(a.y), cosh(a.x) * sin(a.y));
}

static inline @T kcl_ccosh_@T(@T a) {
  if (a.y == 0) return (@T)(cosh(a.x), a.x != a.x ? a.y : copysign((@R)1, a.x) * a.y);
  if (!isfinite(a.y)) {
    if (a.x == 0) return (@T)((@R)NAN, 0);
    return (@T)(isinf(a.x) ? (@R)INFINITY : (@R)NAN, (@R)NAN);
  }
  return (@T)(cosh(a.x) * cos(a.y), sinh(a.x) * sin(a.y));
}

static inline @T kcl_ctanh_@T(@T a) {
  if (a.x != a.x && a.y == 0) return a;
  if (isinf(a.x))
    return (@T)(copysign((@R)1, a.x),
                copysign((@R)0, isfinite(a.y) ? sin(a.y) * cos(a.y) : a.y));
  if (!isfinite(a.y)) return (@T)(a.x == 0 ? a.x : (@R)NAN, (@R)NAN);
  if (fabs(a.x) > 20)
    return (@T)(copysign((@R)1, a.x), 4 * sin(a.y) * cos(a.y) * exp(-2 * fabs(a.x)));
  const @R t = tan(a.y), s = sinh(a.x), b = 1 + t * t, d = 1 + b * s * s;
  return (@T)(b * sqrt(1 + s * s) * s / d, t / d);
}

static inline @T kcl_ctan_@T(@T a) {
  return kcl_ctanh_@T(a.yx).yx;
}

static inline @T kcl_cexp2_@T(@T a) {
  return kcl_cexp_@T(a * (@R)0.6931471805599453);
}

static inline @T kcl_clog2_@T(@T a) {
  return kcl_clog_@T(a) * (@R)1.4426950408889634;
}

static inline @T kcl_clog10_@T(@T a) {
  return kcl_clog_@T(a) * (@R)0.4342944819032518;
}

static inline @T kcl_csign_@T(@T a) {
  const @R size = hypot(a.x, a.y);
  if (size == 0) return (@T)(0, 0);
  if (isinf(a.x) && !isinf(a.y)) return (@T)(copysign((@R)1, a.x), 0);
  if (isinf(a.y) && !isinf(a.x)) return (@T)(0, copysign((@R)1, a.y));
  return a / size;
}

static inline @T kcl_cexpm1_@T(@T a) {
  /* C99's values, where NumPy has NaN */
  if (a.y == 0) return (@T)(expm1(a.x), a.y);
  if (!isfinite(a.x)) return kcl_cexp_@T(a) - (@T)(1, 0);
  const @R half_sine = sin(a.y * (@R)0.5f);
  return (@T)(expm1(a.x) * cos(a.y) - 2 * half_sine * half_sine, exp(a.x) * sin(a.y));
}

static inline @T kcl_clog1p_@T(@T a) {
  const @R near = (@R)0.5f * log1p(a.x * (2 + a.x) + a.y * a.y);
  const int small = fabs(a.x) < (@R)0.5f && fabs(a.y) < (@R)0.5f;
  return (@T)(small ? near : log(hypot(1 + a.x, a.y)), atan2(a.y, 1 + a.x));
}

static inline @T kcl_casin_@T(@T a) {
  return kcl_casinh_@T(a.yx).yx;
}

static inline @T kcl_cacos_@T(@T a) {
  if (!isfinite(a.x) || !isfinite(a.y)) {
    if (a.x != a.x && a.y != a.y) return a;
    if (isinf(a.x) || isinf(a.y)) {
      if (a.x != a.x) return (@T)(a.x, -a.y);
      if (a.y != a.y) return (@T)(a.y, -(@R)INFINITY);
      return (@T)(atan2(fabs(a.y), a.x), -copysign((@R)INFINITY, a.y));
    }
    return (@T)(a.x == 0 ? (@R)1.5707963267948966 : (@R)NAN, (@R)NAN);
  }
  const @T u = kcl_csqrt_@T((@T)(1 - a.x, -a.y)), v = kcl_csqrt_@T((@T)(1 + a.x, a.y));
  return (@T)(2 * atan2(u.x, v.x), copysign(asinh(v.x * u.y - v.y * u.x), -a.y));
}

static inline @T kcl_casinh_@T(@T a) {
  if (!isfinite(a.x) || !isfinite(a.y)) {
    if (isinf(a.x)) {
      const @R turn = a.y != a.y ? a.y : copysign(atan2(fabs(a.y), fabs(a.x)), a.y);
      return (@T)(a.x, turn);
    }
    if (isinf(a.y) && a.x != a.x) return (@T)((@R)INFINITY, a.x);
    if (isinf(a.y)) return (@T)(copysign(a.y, a.x), copysign((@R)1.5707963267948966, a.y));
    return (@T)((@R)NAN, a.y == 0 ? a.y : (@R)NAN);
  }
  /* -i asin(i a) */
  const @T u = kcl_csqrt_@T((@T)(1 - a.y, a.x)), v = kcl_csqrt_@T((@T)(1 + a.y, -a.x));
  return (@T)(copysign(asinh(u.y * v.x - u.x * v.y), a.x), atan2(a.y, u.x * v.x - u.y * v.y));
}

static inline @T kcl_cacosh_@T(@T a) {
  if (!isfinite(a.x) || !isfinite(a.y)) {
    const @T w = kcl_cacos_@T(a);
    return (@T)(fabs(w.y), copysign(w.x, a.y));
  }
  const @T u = kcl_csqrt_@T((@T)(a.x - 1, a.y)), v = kcl_csqrt_@T((@T)(a.x + 1, a.y));
  return (@T)(asinh(u.x * v.x + u.y * v.y), 2 * atan2(u.y, v.x));
}

static inline @T kcl_catanh_@T(@T a) {
  if (a.x == 0) return (@T)(a.x, atan(a.y));
  if (!isfinite(a.x) || !isfinite(a.y)) {
    if (isinf(a.y)) return (@T)(copysign((@R)0, a.x), copysign((@R)1.5707963267948966, a.y));
    if (!isinf(a.x)) return (@T)((@R)NAN, (@R)NAN);
    return (@T)(copysign((@R)0, a.x), a.y != a.y ? a.y : copysign((@R)1.5707963267948966, a.y));
  }
  const @R size = fabs(a.x), away = (1 - size) * (1 - size) + a.y * a.y;
  return (@T)(
    copysign((@R)0.25f * log1p(4 * size / away), a.x),
    (@R)0.5f * atan2(2 * a.y, (1 - a.x) * (1 + a.x) - a.y * a.y));
}

static inline @T kcl_catan_@T(@T a) {
  return kcl_catanh_@T(a.yx).yx;
}
"""

_NAME = re.compile(r"kcl_\w*(?:@T)?(?=\()")
# what every source has
_PRELUDE = frozenset(re.findall(r"kcl_\w+(?=\()", dtypes.PRELUDE))
FUNCTIONS: dict[str, str] = {}
for _text in re.split(r"\n\n(?=static inline )", _TEXTS.strip()):
    FUNCTIONS[_NAME.findall(_text)[0]] = _text.strip() + "\n"


def needed(code: str) -> tuple[str, ...]:
    """The functions that `code` calls, callees first.

    Raises:
        KeyError: for a kcl_ function that does not exist.
    """
    found: dict[str, str] = {}

    def visit(text: str, own: str = "") -> None:
        for name in _NAME.findall(text.replace("{T}", "@T")):
            if name in (own, *_PRELUDE) or name in found:
                continue
            visit(FUNCTIONS[name], name)
            found[name] = FUNCTIONS[name]

    visit(code)
    return tuple(found.values())
