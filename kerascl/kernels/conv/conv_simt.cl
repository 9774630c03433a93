// Convolution as an implicit GEMM: what gemm_tile.cl needs to know.  Every element of the left
// operand is x[base(row) + base(k)], inside the image when each coordinate(row) + coordinate(k) is;
// row facts stay in registers, facts of the tile's depths in a small local table.
//
// Forward and data gradient: rows are output pixels of one class, depth is (taps, channels),
// columns are output channels of one group.  Filter gradient: rows are (taps, channels of x),
// depth is (image, output pixel), columns are channels of dy.
// Axis 0 exists with DIMS == 3 only.
#if DIMS == 3
#define IF3(...) __VA_ARGS__
#define IF2(...)
#else
#define IF3(...)
#define IF2(...) __VA_ARGS__
#endif

// A depth is a number of three or four digits.  Each work-item that writes the table keeps those of
// its next depth and adds BK's to them, which takes no division.  With K_WHOLE (channels of the depth
// are a multiple of BK) all depths of a tile belong to one tap: every work-item keeps the digits of
// the tile's first, and there is no table.
#define DIGITS_OF(number, d) \
  int d##3_ = (number), d##2_, d##1_, d##0_; \
  { int rest_ = d##3_; d##3_ = rest_ % RADIX3, rest_ /= RADIX3, d##2_ = rest_ % RADIX2; \
    rest_ /= RADIX2, d##1_ = rest_ % RADIX1, d##0_ = rest_ / RADIX1; }
#define NEXT_DIGITS \
  { at3_ += step3_; int carry_ = at3_ >= RADIX3; at3_ -= carry_ ? RADIX3 : 0; \
    at2_ += step2_ + carry_, carry_ = at2_ >= RADIX2, at2_ -= carry_ ? RADIX2 : 0; \
    at1_ += step1_ + carry_, carry_ = at1_ >= RADIX1, at1_ -= carry_ ? RADIX1 : 0; \
    at0_ += step0_ + carry_; }

#if K_WHOLE
#define K_TABLE_DECL
#define K_FIRST \
  DIGITS_OF(kfrom, at) \
  INDEX_T tileOffA, tileOffB; \
  int tap1_, tap2_; \
  IF3(int tap0_;) \
  TAP_FACTS(at3_, tileOffA, tileOffB, tap0_, tap1_, tap2_)
#define K_TABLE(buf)
#define K_NEXT \
  { at3_ += BK; \
    if (at3_ == RADIX3) { \
      at3_ = 0; \
      if (++at2_ == RADIX2) { \
        at2_ = 0; \
        if (++at1_ == RADIX1) at1_ = 0, ++at0_; \
      } \
    } \
    TAP_FACTS(at3_, tileOffA, tileOffB, tap0_, tap1_, tap2_) }
#define A_AT(s, kk, k, buf) (baseA[s] + (kk) * aC + tileOffA)
#define B_AT(s, kk, k, buf) (baseB[s] + (kk) * wC + tileOffB)
#define A_VALID(s, kk, buf) \
  (IF3((uint)(row0_[s] + tap0_) < (uint)IN0 &) \
   ((uint)(row1[s] + tap1_) < (uint)IN1 & (uint)(row2[s] + tap2_) < (uint)IN2))
#else
#define K_TABLE_DECL \
  __local INDEX_T tabA[2][BK], tabB[2][BK]; \
  __local int tab1[2][BK], tab2[2][BK]; \
  IF3(__local int tab0[2][BK];)
#define K_FIRST \
  DIGITS_OF(kfrom + tid, at) \
  DIGITS_OF(BK, step)
#define K_TABLE(buf) \
  if (tid < BK) { \
    IF3(int tap0_;) \
    TAP_FACTS(at3_, tabA[buf][tid], tabB[buf][tid], tap0_, tab1[buf][tid], tab2[buf][tid]) \
    IF3(tab0[buf][tid] = tap0_;) \
    NEXT_DIGITS \
  }
#define K_NEXT
#define A_AT(s, kk, k, buf) (baseA[s] + tabA[buf][kk])
#define B_AT(s, kk, k, buf) (baseB[s] + tabB[buf][kk])
#define A_VALID(s, kk, buf) \
  (IF3((uint)(row0_[s] + tab0[buf][kk]) < (uint)IN0 &) \
   ((uint)(row1[s] + tab1[buf][kk]) < (uint)IN1 & (uint)(row2[s] + tab2[buf][kk]) < (uint)IN2))
#endif
#define A_STATE_DECL INDEX_T baseA[AI]; int row1[AI], row2[AI]; IF3(int row0_[AI];)
#define B_STATE_DECL INDEX_T baseB[BI];

#define GROUP_COMMON \
  const int tilesN = (COUT + BN - 1) / BN; \
  int z_ = (int)get_group_id(0) / (TILES_M * tilesN); \
  const int t_ = (int)get_group_id(0) % (TILES_M * tilesN); \
  const int N = COUT, col0 = t_ % tilesN * BN, row0 = t_ / tilesN * BM; \
  const int split = z_ % SPLITS; \
  z_ /= SPLITS; \
  const int group = z_ % GROUPS, class_ = z_ / GROUPS;

#if FILTER_GRAD
#define GROUP_SETUP \
  GROUP_COMMON \
  const int M = KER0 * KER1 * KER2 * CIN, K = BATCH * OUT0 * OUT1 * OUT2; \
  const int kfrom = min(K, split * KSLICE), kto = min(K, kfrom + KSLICE);
#define A_ROW_STATE(s, m) { \
  const int c_ = (m) % CIN; \
  int tap_ = (m) / CIN; \
  row2[s] = tap_ % KER2 * DIL2, tap_ /= KER2; \
  row1[s] = tap_ % KER1 * DIL1; \
  IF3(row0_[s] = tap_ / KER1 * DIL0;) \
  baseA[s] = (INDEX_T)(group * CIN + c_) * aC + \
      ((IF3((INDEX_T)row0_[s] * IN1 +) (INDEX_T)row1[s]) * IN2 + row2[s]) * aP; }
#define B_COL_STATE(s, n) baseB[s] = (INDEX_T)(group * COUT + (n)) * bC;
// Digits of a pixel: image, (plane,) row, column.
#define RADIX3 OUT2
#define RADIX2 OUT1
#define RADIX1 IF3(OUT0) IF2(BATCH)
#define TAP_FACTS(last, offA, offB, h0_, h1, h2) { \
    const int o1_ = at2_ * STRIDE1 - PAD1, o2_ = (last) * STRIDE2 - PAD2; \
    IF3(const int o0_ = at1_ * STRIDE0 - PAD0; h0_ = o0_;) \
    const int image_ = IF3(at0_) IF2(at1_); \
    h1 = o1_, h2 = o2_; \
    offA = image_ * aN + ((IF3((INDEX_T)o0_ * IN1 +) (INDEX_T)o1_) * IN2 + o2_) * aP; \
    offB = image_ * bN + ((IF3((INDEX_T)at1_ * OUT1 +) (INDEX_T)at2_) * OUT2 + (last)) * bP; }
#define OUT_ROW(m) const INDEX_T outRow = ((INDEX_T)(m) * GROUPS + group) * COUT;
#define OUT_AT(n) (outRow + (n))
#else
#define GROUP_SETUP \
  GROUP_COMMON \
  IF3(const Axis x0 = conv_axis(class_ / STRIDE2 / STRIDE1, OUT0, KER0, STRIDE0, DIL0, PAD0);) \
  const Axis x1 = conv_axis(class_ / STRIDE2 % STRIDE1, OUT1, KER1, STRIDE1, DIL1, PAD1); \
  const Axis x2 = conv_axis(class_ % STRIDE2, OUT2, KER2, STRIDE2, DIL2, PAD2); \
  const int M = BATCH * IF3(x0.size *) x1.size * x2.size; \
  const int K = IF3(x0.taps *) x1.taps * x2.taps * CIN; \
  const int kfrom = min(K, split * KSLICE), kto = row0 < M ? min(K, kfrom + KSLICE) : kfrom;
#define A_ROW_STATE(s, m) { \
  int p_ = (m); \
  row2[s] = p_ % x2.size * x2.in_step + x2.in_first, p_ /= x2.size; \
  row1[s] = p_ % x1.size * x1.in_step + x1.in_first, p_ /= x1.size; \
  IF3(row0_[s] = p_ % x0.size * x0.in_step + x0.in_first, p_ /= x0.size;) \
  baseA[s] = (INDEX_T)p_ * aN + (INDEX_T)group * CIN * aC + \
      ((IF3((INDEX_T)row0_[s] * IN1 +) (INDEX_T)row1[s]) * IN2 + row2[s]) * aP; }
#define B_COL_STATE(s, n) baseB[s] = (INDEX_T)(n) * wN + group * wG;
// Digits of a depth: (tap of axis 0,) taps of axes 1 and 2, channel.
#define RADIX3 CIN
#define RADIX2 max(x2.taps, 1)
#define RADIX1 max(x1.taps, 1)
#define TAP_FACTS(channel, offA, offB, h0, h1, h2) { \
    const int h1_ = at1_ * x1.in_tap, h2_ = at2_ * x2.in_tap; \
    INDEX_T t_ = 0; \
    IF3(const int h0_ = at0_ * x0.in_tap; h0 = h0_; \
        t_ = (at0_ * x0.w_step + x0.w_first) * KER1;) \
    t_ = (t_ + at1_ * x1.w_step + x1.w_first) * KER2 + at2_ * x2.w_step + x2.w_first; \
    h1 = h1_, h2 = h2_; \
    offA = (channel) * aC + ((IF3((INDEX_T)h0_ * IN1 +) (INDEX_T)h1_) * IN2 + h2_) * aP; \
    offB = t_ * wTap + (channel) * wC; }
#define OUT_ROW(m) \
  int p_ = (m); \
  const int o2_ = p_ % x2.size * x2.out_step + x2.out_first; p_ /= x2.size; \
  const int o1_ = p_ % x1.size * x1.out_step + x1.out_first; p_ /= x1.size; \
  IF3(const int o0_ = p_ % x0.size * x0.out_step + x0.out_first; p_ /= x0.size;) \
  const INDEX_T outRow = p_ * oN + (INDEX_T)group * COUT * oC + \
      ((IF3((INDEX_T)o0_ * OUT1 +) (INDEX_T)o1_) * OUT2 + o2_) * oP;
#define OUT_AT(n) (outRow + (n) * oC)
#endif
