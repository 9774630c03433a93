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
#else
#define IF3(...)
#endif

#define K_TABLE_DECL \
  __local INDEX_T tabA[2][BK], tabB[2][BK]; \
  __local int tab1[2][BK], tab2[2][BK]; \
  IF3(__local int tab0[2][BK];)
#define A_STATE_DECL INDEX_T baseA[AI]; int row1[AI], row2[AI]; IF3(int row0_[AI];)
#define B_STATE_DECL INDEX_T baseB[BI];
#define A_AT(s, kk, k, buf) (baseA[s] + tabA[buf][kk])
#define B_AT(s, kk, k, buf) (baseB[s] + tabB[buf][kk])
#define A_VALID(s, kk, buf) \
  (IF3((uint)(row0_[s] + tab0[buf][kk]) < (uint)IN0 &&) \
   (uint)(row1[s] + tab1[buf][kk]) < (uint)IN1 && (uint)(row2[s] + tab2[buf][kk]) < (uint)IN2)

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
#define K_TABLE(k0, buf) \
  for (int e = tid; e < BK; e += NT) { \
    int p_ = (k0) + e; \
    const int o2_ = p_ % OUT2; p_ /= OUT2; \
    const int o1_ = p_ % OUT1; p_ /= OUT1; \
    IF3(const int o0_ = p_ % OUT0; p_ /= OUT0;) \
    const int h1_ = o1_ * STRIDE1 - PAD1, h2_ = o2_ * STRIDE2 - PAD2; \
    IF3(const int h0_ = o0_ * STRIDE0 - PAD0; tab0[buf][e] = h0_;) \
    tab1[buf][e] = h1_; \
    tab2[buf][e] = h2_; \
    tabA[buf][e] = p_ * aN + ((IF3((INDEX_T)h0_ * IN1 +) (INDEX_T)h1_) * IN2 + h2_) * aP; \
    tabB[buf][e] = p_ * bN + ((IF3((INDEX_T)o0_ * OUT1 +) (INDEX_T)o1_) * OUT2 + o2_) * bP; \
  }
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
#define K_TABLE(k0, buf) \
  for (int e = tid; e < BK; e += NT) { \
    const int k_ = (k0) + e; \
    if (k_ < kto) { \
      const int c_ = k_ % CIN; \
      int tap_ = k_ / CIN; \
      const int j2_ = tap_ % x2.taps; tap_ /= x2.taps; \
      const int j1_ = tap_ % x1.taps; \
      const int h1_ = j1_ * x1.in_tap, h2_ = j2_ * x2.in_tap; \
      INDEX_T t_ = 0; \
      IF3(const int j0_ = tap_ / x1.taps, h0_ = j0_ * x0.in_tap; tab0[buf][e] = h0_; \
          t_ = (j0_ * x0.w_step + x0.w_first) * KER1;) \
      t_ = (t_ + j1_ * x1.w_step + x1.w_first) * KER2 + j2_ * x2.w_step + x2.w_first; \
      tab1[buf][e] = h1_; \
      tab2[buf][e] = h2_; \
      tabA[buf][e] = c_ * aC + ((IF3((INDEX_T)h0_ * IN1 +) (INDEX_T)h1_) * IN2 + h2_) * aP; \
      tabB[buf][e] = t_ * wTap + c_ * wC; \
    } \
  }
#define OUT_ROW(m) \
  int p_ = (m); \
  const int o2_ = p_ % x2.size * x2.out_step + x2.out_first; p_ /= x2.size; \
  const int o1_ = p_ % x1.size * x1.out_step + x1.out_first; p_ /= x1.size; \
  IF3(const int o0_ = p_ % x0.size * x0.out_step + x0.out_first; p_ /= x0.size;) \
  const INDEX_T outRow = p_ * oN + (INDEX_T)group * COUT * oC + \
      ((IF3((INDEX_T)o0_ * OUT1 +) (INDEX_T)o1_) * OUT2 + o2_) * oP;
#define OUT_AT(n) (outRow + (n) * oC)
#endif
