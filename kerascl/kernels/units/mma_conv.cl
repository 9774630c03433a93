// Convolution as an implicit GEMM for mma_tile.cl, beside conv_simt.cl.  An element of the gathered
// operand lies at base(row) + base(depth), inside the image when each coordinate(row) +
// coordinate(depth) is; rows and depths past the end get coordinates far outside.
typedef struct {
  INDEX_T base;
  int left;
} Place;
typedef struct {
  INDEX_T base;
  int h, w, d;
} Spot;

#define OUTSIDE_ROW (-(1 << 30))
#define OUTSIDE_DEPTH (-(1 << 29))
#define A_ROW_T Spot
#undef A_AT
#undef B_AT
#define A_AT(r, d_) (r.base + d_.base)
#define A_COUNT(r, d_) \
  (((uint)(r.h + d_.h) < (uint)IN1) & ((uint)(r.w + d_.w) < (uint)IN2) \
   IF3(& ((uint)(r.d + d_.d) < (uint)IN0)) ? A_CE : 0)
#define B_ROW_T Place
#define B_CLAMP(n) (B_WHOLE ? min((int)(n), N - (B_ALONG_K ? 1 : B_CE)) : (int)(n))
#define B_AT(r, d_) (r.base + d_.base)
// n / divisor by a multiplication (n >= 0), with the host's factor and shift.
#define QUOTIENT(n, name) ((int)(((ulong)(uint)(n) * name##Mul) >> name##Shift))

#if FILTER_GRAD
#define A_DEPTH_T Spot
#define B_DEPTH_T Place
#define A_ROW(x, m) \
  x.h = OUTSIDE_ROW, x.w = x.d = 0, x.base = 0; \
  if ((m) < M) { \
    const int c_ = (m) % CIN; \
    int tap_ = (m) / CIN; \
    x.w = tap_ % KER2 * DIL2, tap_ /= KER2; \
    x.h = tap_ % KER1 * DIL1; \
    IF3(x.d = tap_ / KER1 * DIL0;) \
    x.base = (INDEX_T)(group * CIN + c_) * aC + \
        ((IF3((INDEX_T)x.d * IN1 +) (INDEX_T)x.h) * IN2 + x.w) * aP; \
  }
#define A_DEPTH(x, k) { \
  int p_ = (k), q_ = QUOTIENT(p_, div2); \
  x.w = (p_ - q_ * OUT2) * STRIDE2 - PAD2; \
  p_ = QUOTIENT(q_, div1); \
  x.h = (q_ - p_ * OUT1) * STRIDE1 - PAD1; \
  IF3(q_ = QUOTIENT(p_, div0); x.d = (p_ - q_ * OUT0) * STRIDE0 - PAD0; p_ = q_;) \
  x.base = p_ * aN + ((IF3((INDEX_T)x.d * IN1 +) (INDEX_T)x.h) * IN2 + x.w) * aP; \
  x.h = (k) < kto ? x.h : OUTSIDE_DEPTH; \
}
#define A_NEXT_FROM(x, k) A_DEPTH(x, k)
#define B_ROW(x, n) x.base = (INDEX_T)(group * COUT + B_CLAMP(n)) * bC; x.left = N - (int)(n);
#if CHANNELS_FIRST
#define B_DEPTH(x, k) { \
  const int p_ = QUOTIENT(k, divP); \
  x.base = p_ * bN + ((k) - p_ * (IF3(OUT0 *) OUT1 * OUT2)) * bP; \
  x.left = kto - (k); \
}
#else
#define B_DEPTH(x, k) x.base = (INDEX_T)(k) * bP; x.left = kto - (k);
#endif
#define B_NEXT_FROM(x, k) B_DEPTH(x, k)
#define B_COUNT(r, d_) (B_WHOLE || (r.left > 0) & (d_.left > 0) ? B_CE : 0)
#else
typedef struct {
  INDEX_T base, wbase;
  int h, w, d, k, c, j0, j1, j2;
} Depth;

#define A_DEPTH_T Depth
#define A_ROW(x, m) \
  x.h = OUTSIDE_ROW, x.w = x.d = 0, x.base = 0; \
  if ((m) < M) { \
    int p_ = (m); \
    x.w = p_ % x2.size * x2.in_step + x2.in_first, p_ /= x2.size; \
    x.h = p_ % x1.size * x1.in_step + x1.in_first, p_ /= x1.size; \
    IF3(x.d = p_ % x0.size * x0.in_step + x0.in_first, p_ /= x0.size;) \
    x.base = (INDEX_T)p_ * aN + (INDEX_T)group * CIN * aC + \
        ((IF3((INDEX_T)x.d * IN1 +) (INDEX_T)x.h) * IN2 + x.w) * aP; \
  }
#define DEPTH_PLACE(x) { \
  INDEX_T t_ = 0; \
  x.h = x.j1 * x1.in_tap, x.w = x.j2 * x2.in_tap; \
  IF3(x.d = x.j0 * x0.in_tap; t_ = (x.j0 * x0.w_step + x0.w_first) * KER1;) \
  t_ = (t_ + x.j1 * x1.w_step + x1.w_first) * KER2 + x.j2 * x2.w_step + x2.w_first; \
  x.base = x.c * aC + ((IF3((INDEX_T)x.d * IN1 +) (INDEX_T)x.h) * IN2 + x.w) * aP; \
  x.wbase = t_ * wTap + x.c * wC; \
  x.h = x.k < kto ? x.h : OUTSIDE_DEPTH; \
}
#define DEPTH_FIRST(x, k_) { \
  x.k = (k_), x.c = x.k % CIN, x.j2 = x.k / CIN; \
  const int taps2_ = max(x2.taps, 1), taps1_ = max(x1.taps, 1); /* some classes have none */ \
  x.j1 = x.j2 / taps2_, x.j2 -= x.j1 * taps2_; \
  x.j0 = 0; \
  IF3(x.j0 = x.j1 / taps1_, x.j1 -= x.j0 * taps1_;) \
  DEPTH_PLACE(x) \
}
// The same place BK further on.
#define DEPTH_NEXT(x) { \
  x.k += BK, x.c += BK; \
  while (x.c >= CIN) { \
    x.c -= CIN; \
    if (++x.j2 == x2.taps) { \
      x.j2 = 0, ++x.j1; \
      IF3(if (x.j1 == x1.taps) x.j1 = 0, ++x.j0;) \
    } \
  } \
  DEPTH_PLACE(x) \
}
#define A_DEPTH(x, k) DEPTH_FIRST(x, k)
#define A_NEXT(x) DEPTH_NEXT(x)
#define B_ROW(x, n) x.base = (INDEX_T)B_CLAMP(n) * wN + group * wG; x.left = N - (int)(n);
#if DATA_GRAD
#define B_DEPTH_T Depth
#define B_DEPTH(x, k) DEPTH_FIRST(x, k)
#define B_NEXT(x) DEPTH_NEXT(x)
#undef B_AT
#define B_AT(r, d_) (r.base + d_.wbase)
#define B_COUNT(r, d_) (B_WHOLE || (r.left > 0) & (d_.k < kto) ? B_CE : 0)
#else
// Taps are consecutive, so the weights' rows are too.
#define B_DEPTH_T Place
#define B_DEPTH(x, k) x.base = (INDEX_T)(k) * wC; x.left = kto - (k);
#define B_COUNT(r, d_) (B_WHOLE || (r.left > 0) & (d_.left > 0) ? B_CE : 0)
#endif
#endif
