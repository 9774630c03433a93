// Attention for CPUs, after cpu_micro.cl: MR rows (keys, or features) by NV vectors of queries stay in
// registers, so that the softmax along the keys is plain vector arithmetic without any reduction
// across lanes.  One work-item is one thread; tiles of BK keys by QB queries stay in its cache.
// Logits are kept times log2(e), and the row statistic is log2 of the sum of their powers of two.
#define QB NR
#define EACH(r_, n) _Pragma("unroll") for (int r_ = 0; r_ < (n); ++r_)
#define VI CAT(int, VL)
#define AS_V CAT(as_float, VL)
#define TO_VI CAT(CAT(convert_int, VL), _rte)
#define TO_V CAT(convert_float, VL)

#define SUMS(nv) V c_[MR][nv];
#define ZERO(nv) EACH(r_, MR) EACH(v_, nv) c_[r_][v_] = (V)(0);
#define PRODUCT(nv, A_EL, b, step, depth) \
  for (int k_ = 0; k_ < (depth); ++k_) { \
    V b_[nv]; \
    EACH(v_, nv) b_[v_] = VLOAD(v_, (b) + k_ * (step)); \
    EACH(r_, MR) { \
      const ACC_T x_ = A_EL(r_, k_); \
      EACH(v_, nv) c_[r_][v_] = MULADD(x_, b_[v_], c_[r_][v_]); \
    } \
  }

// 2^x for x <= about 0: a Taylor polynomial about the nearest whole number; NaN stays NaN.
inline V power2(V x) {
  const VI whole = TO_VI(x);
  const V f = x - TO_V(whole);
  V y = (V)(1.5403530e-4f);
  y = MULADD_V(y, f, (V)(1.3333558e-3f));
  y = MULADD_V(y, f, (V)(9.6181291e-3f));
  y = MULADD_V(y, f, (V)(5.5504109e-2f));
  y = MULADD_V(y, f, (V)(2.4022651e-1f));
  y = MULADD_V(y, f, (V)(6.9314718e-1f));
  y = MULADD_V(y, f, (V)(1.0f));
  return select(y * AS_V((whole + 127) << 23), (V)(0), x < (V)(-126.0f));
}

#if HAS_BIAS
#define BIAS_PARAM , __global const BIAS_T* restrict pBias
#define BIAS_SIZES , const INDEX_T bOff, const INDEX_T bB, const INDEX_T bH, const INDEX_T bT, const INDEX_T bS
#else
#define BIAS_PARAM
#define BIAS_SIZES
#endif
#if HAS_MASK
#define MASK_PARAM , __global const uchar* restrict pMask
#define MASK_SIZES , const INDEX_T mOff, const INDEX_T mB, const INDEX_T mH, const INDEX_T mT, const INDEX_T mS
#else
#define MASK_PARAM
#define MASK_SIZES
#endif
// Dropout's numbers are drawn where they are needed, in both passes: what a lane's query keeps of x.
// A block of the generator serves four keys, one after the other.
#if HAS_DROPOUT
#define VU CAT(uint, VL)
#define KEY_PARAM , __global const uint* restrict pKey
#define KEY_SIZES , const int keyOff, const int keyStep, const ulong firstFour, \
    const uint keepLimit, const float keepFactor
#define DRAW_KEY const uint key0 = pKey[keyOff], key1 = pKey[keyOff + keyStep];
#define ROW_FOUR(t) (firstFour + ((ulong)(b * HEADS + h) * T + (t)) * ((S + 3) / 4))
#define LANES \
  COUNTER lanes_[QB]; \
  VU first_[NV], second_[NV]; \
  for (int j = 0; j < QB; ++j) lanes_[j] = (COUNTER)ROW_FOUR(t0 + j);
#if FAR
#define COUNTER ulong
inline VU words(const uint key0, const uint key1, const ulong* lanes, const ulong factor,
    const ulong more, VU* second) {
  uint x[VL], y[VL];
  for (int j = 0; j < VL; ++j) {
    const uint2 block = kcl_philox(key0, key1, factor * lanes[j] + more);
    x[j] = block.x;
    y[j] = block.y;
  }
  *second = CAT(vload, VL)(0, y);
  return CAT(vload, VL)(0, x);
}
#else
#define COUNTER uint
inline VU words(const uint key0, const uint key1, const uint* lanes, const uint factor,
    const uint more, VU* second) {
  return kcl_philox_lanes(key0, key1, factor * CAT(vload, VL)(0, lanes) + more, second);
}
#endif
#if COARSE
#define DRAW(i, s) \
  if ((s) % 4 == 0) \
    first_[i] = words(key0, key1, lanes_ + (i) * VL, 1, (s) / 4, second_ + (i));
#define WORD(i, s) (((s) % 4 / 2 ? second_[i] : first_[i]) << (VU)(16 * (1 - (s) % 2)))
#else
#define DRAW(i, s) first_[i] = words(key0, key1, lanes_ + (i) * VL, 4, s, second_ + (i));
#define WORD(i, s) first_[i]
#endif
#define KEPT(x, i, s) select((V)(0), x, WORD(i, s) < (VU)(keepLimit))
#define FACTOR keepFactor
#else
#define KEY_PARAM
#define KEY_SIZES
#define DRAW_KEY
#define LANES
#define DRAW(i, s)
#define KEPT(x, i, s) (x)
#define FACTOR 1.0f
#endif

// Products of keys [s0, s0 + kn) with a panel of queries, into tile[BK][QB]: rows past kn repeat the
// last key.
#define ROW_EL(r, k) a_[r][k]
#define PRODUCTS(tile, rows, rowStride, panel, depth) \
  for (int r0 = 0; r0 < kn; r0 += MR) { \
    __global const ACC_T* a_[MR]; \
    EACH(r_, MR) a_[r_] = (rows) + (INDEX_T)min(s0 + r0 + r_, S - 1) * (rowStride); \
    SUMS(NV) ZERO(NV) \
    PRODUCT(NV, ROW_EL, panel, QB, depth) \
    EACH(r_, MR) EACH(v_, NV) VSTORE(c_[r_][v_], v_, (tile) + (r0 + r_) * QB); \
  }

// sums[DEPTH][QB] (times keep, if given) plus rows^T [DEPTH][kn] times tile[kn][QB].
#define DIRECT_EL(r, k) a_[(k) * stride_ + (r)]
#define CLAMPED_EL(r, k) a_[(k) * stride_ + min(d0 + r, last_) - d0]
#define ADD_PRODUCT(sums, KEEP, rows, rowStride, depth, tile) \
  for (int d0 = 0; d0 < (depth); d0 += MR) { \
    ACC_T* to_ = (sums) + d0 * QB; \
    __global const ACC_T* a_ = (rows) + (INDEX_T)s0 * (rowStride) + d0; \
    const INDEX_T stride_ = rowStride; \
    const int last_ = (depth) - 1; \
    SUMS(NV) \
    EACH(r_, MR) EACH(v_, NV) c_[r_][v_] = KEEP(VLOAD(v_, to_ + r_ * QB), v_); \
    if (d0 + MR <= (depth)) { PRODUCT(NV, DIRECT_EL, tile, QB, kn) } \
    else { PRODUCT(NV, CLAMPED_EL, tile, QB, kn) } \
    EACH(r_, MR) EACH(v_, NV) VSTORE(c_[r_][v_], v_, to_ + r_ * QB); \
  }
#define KEEP_ALL(x, v) (x)

// Scales the products in tile and adds the bias; hidden ones become NEGATIVE.
inline void finish_logits(ACC_T* tile, const int s0, const int kn, const int t0, const int T,
    const float scale, const int b, const int h BIAS_PARAM MASK_PARAM BIAS_SIZES MASK_SIZES) {
#if HAS_BIAS || HAS_MASK
  const int tn = min(T - t0, QB);
#endif
#if HAS_BIAS
  __global const BIAS_T* bias = pBias + bOff + b * bB + h * bH + t0 * bT + s0 * bS;
#endif
#if HAS_MASK
  __global const uchar* mask = pMask + mOff + b * mB + h * mH + t0 * mT + s0 * mS;
#endif
  for (int s = 0; s < kn; ++s) {
    ACC_T* row = tile + s * QB;
    EACH(v, NV) VSTORE(VLOAD(v, row) * scale, v, row);
#if HAS_BIAS
    if (bT == 0) {
      const ACC_T x = BIAS_LOAD(bias, s * bS) * LOG2E;
      EACH(v, NV) VSTORE(VLOAD(v, row) + x, v, row);
    } else {
      for (int j = 0; j < tn; ++j) row[j] += BIAS_LOAD(bias, s * bS + j * bT) * LOG2E;
    }
#endif
#if HAS_MASK
    if (mT == 0) {
      if (!mask[s * mS]) EACH(v, NV) VSTORE((V)(NEGATIVE), v, row);
    } else {
      for (int j = 0; j < tn; ++j) row[j] = mask[s * mS + j * mT] ? row[j] : NEGATIVE;
    }
#endif
#if CAUSAL
    if (s0 + s > t0)
      for (int j = 0; j < min(s0 + s - t0, QB); ++j) row[j] = NEGATIVE;
#endif
  }
}
#define FINISH_LOGITS(tile, scale_) \
  finish_logits(tile, s0, kn, t0, T, scale_, b, h BIAS_ARG MASK_ARG BIAS_STRIDES MASK_STRIDES);
#if HAS_BIAS
#define BIAS_ARG , pBias
#define BIAS_STRIDES , bOff, bB, bH, bT, bS
#else
#define BIAS_ARG
#define BIAS_STRIDES
#endif
#if HAS_MASK
#define MASK_ARG , pMask
#define MASK_STRIDES , mOff, mB, mH, mT, mS
#else
#define MASK_ARG
#define MASK_STRIDES
#endif

#ifdef FORWARD
#define KEEP_SHARE(x, v) ((x) * keep[v])
// pQ: panels [batch][head][panel][WIDTH][QB]; pK, pV: rows of the features.  A unit is a panel of one
// head; a work-item does PER units.
__kernel ONE_THREAD void attention_cpu(__global const ACC_T* restrict pQ,
    __global const ACC_T* restrict pK, __global const ACC_T* restrict pV BIAS_PARAM MASK_PARAM
    KEY_PARAM, __global float* restrict pStat, const int HEADS, const int GROUPS, const int T, const int S,
    const int UNITS, const int PER, const float scale, const INDEX_T qB, const INDEX_T qH,
    const INDEX_T kOff, const INDEX_T kB, const INDEX_T kS, const INDEX_T kG, const INDEX_T vOff,
    const INDEX_T vB, const INDEX_T vS, const INDEX_T vG BIAS_SIZES MASK_SIZES KEY_SIZES EPILOGUE_PARAMS) {
  DRAW_KEY
  ACC_T tile[BK * QB], o[ROUND_DEPTH * QB];
  const int panels = (T + QB - 1) / QB;
  const int from = (int)get_group_id(0) * PER, to = min(UNITS, from + PER);
  for (int unit = from; unit < to; ++unit) {
    const int panel = unit % panels, h = unit / panels % HEADS, b = unit / panels / HEADS;
    const int g = h / (HEADS / GROUPS), t0 = panel * QB;
    __global const ACC_T* q = pQ + b * qB + h * qH + (INDEX_T)panel * WIDTH * QB;
    __global const ACC_T* k = pK + kOff + b * kB + g * kG;
    __global const ACC_T* v = pV + vOff + b * vB + g * vG;
    V top[NV], sum[NV];
    LANES
    EACH(i, NV) { top[i] = (V)(LOWEST); sum[i] = (V)(0); }
    for (int i = 0; i < ROUND_DEPTH * QB; ++i) o[i] = 0;
    int end = CAUSAL ? min(S, t0 + QB) : S;
    for (int s0 = 0; s0 < end; s0 += BK) {
      const int kn = min(BK, end - s0);
      PRODUCTS(tile, k, kS, q, WIDTH)
      FINISH_LOGITS(tile, scale)
      V keep[NV];
      EACH(i, NV) {
        V most = top[i];
        for (int s = 0; s < kn; ++s) most = fmax(most, VLOAD(i, tile + s * QB));
        keep[i] = power2(top[i] - most);
        V total = sum[i] * keep[i];
        for (int s = 0; s < kn; ++s) {
          const V p = power2(VLOAD(i, tile + s * QB) - most);
          total += p;
          DRAW(i, s0 + s)
          VSTORE(KEPT(p, i, s0 + s), i, tile + s * QB);
        }
        top[i] = most;
        sum[i] = total;
      }
      ADD_PRODUCT(o, KEEP_SHARE, v, vS, DEPTH, tile)
#if CAUSAL && HAS_MASK
      // A row that sees nothing at all is uniform over every key, the future ones too.
      if (s0 + BK >= end && end < S) {
        ACC_T tops[QB];
        EACH(i, NV) VSTORE(top[i], i, tops);
        bool blind = false;
        for (int j = 0; j < min(QB, T - t0); ++j) blind |= tops[j] == NEGATIVE;
        if (blind) { s0 = end - BK; end = S; }
      }
#endif
    }
    ACC_T stats[QB], shares[QB];
    EACH(i, NV) {
      VSTORE(top[i] + log2(sum[i]), i, stats);
      VSTORE((V)(FACTOR) / sum[i], i, shares);
    }
    const int tn = min(QB, T - t0);
    for (int j = 0; j < tn; ++j) {
      pStat[(INDEX_T)(b * HEADS + h) * T + t0 + j] = stats[j];
      const INDEX_T at = (((INDEX_T)b * T + t0 + j) * HEADS + h) * DEPTH;
      for (int d = 0; d < DEPTH; ++d) EPILOGUE(o[d * QB + j] * shares[j], at + d)
    }
  }
}
#endif

#ifdef BACKWARD
// sums[kn][vectors] plus tile [kn][tn] times rows [tn][vectors], GROUP vectors at a time.
#define TILE_EL(r, k) from_[(r) * QB + (k)]
#define ADD_ROWS(sums, sumStride, vectors, GROUP, tile, rows, rowStride) \
  for (int r0 = 0; r0 < kn; r0 += MR) \
    for (int v0 = 0; v0 < (vectors); v0 += GROUP) { \
      __global ACC_T* to_ = (sums) + (INDEX_T)(s0 + r0) * (sumStride) + v0 * VL; \
      __global const ACC_T* b_rows = (rows) + (INDEX_T)t0 * (rowStride) + v0 * VL; \
      const ACC_T* from_ = (tile) + r0 * QB; \
      const int left_ = kn - r0; \
      SUMS(GROUP) \
      EACH(r_, MR) EACH(v_, GROUP) \
        c_[r_][v_] = VLOAD(v_, to_ + (INDEX_T)min(r_, left_ - 1) * (sumStride)); \
      PRODUCT(GROUP, TILE_EL, b_rows, rowStride, tn) \
      EACH(r_, MR) if (r_ < left_) \
        EACH(v_, GROUP) VSTORE(c_[r_][v_], v_, to_ + r_ * (sumStride)); \
    }

// pQ, pG: panels of queries and of upstream gradients; rQ, rG: their rows, whole vectors long.  A unit
// is a chunk of keys of one group of heads and owns their gradients; those of the queries are
// stored for each chunk.
__kernel ONE_THREAD void attention_cpu_grad(__global const ACC_T* restrict pQ,
    __global const ACC_T* restrict pG, __global const ACC_T* restrict rQ,
    __global const ACC_T* restrict rG, __global const ACC_T* restrict pK,
    __global const ACC_T* restrict pV BIAS_PARAM MASK_PARAM KEY_PARAM,
    __global const float* restrict pStat,
    __global const float* restrict pDelta, __global ACC_T* restrict sumK,
    __global ACC_T* restrict sumV, const int HEADS, const int GROUPS, const int T, const int S,
    const int UNITS, const int CHUNKS, const int CHUNK, const INDEX_T TOTAL, const float scale,
    const float logScale, const float weight, const INDEX_T qB, const INDEX_T qH, const INDEX_T gB, const INDEX_T gH,
    const INDEX_T rqOff, const INDEX_T rqB, const INDEX_T rqT, const INDEX_T rqH,
    const INDEX_T rgOff, const INDEX_T rgB, const INDEX_T rgT, const INDEX_T rgH,
    const INDEX_T kOff, const INDEX_T kB, const INDEX_T kS, const INDEX_T kG, const INDEX_T vOff,
    const INDEX_T vB, const INDEX_T vS, const INDEX_T vG, const INDEX_T skB, const INDEX_T skS,
    const INDEX_T skG, const INDEX_T svB, const INDEX_T svS, const INDEX_T svG
    BIAS_SIZES MASK_SIZES KEY_SIZES EPILOGUE_PARAMS) {
  DRAW_KEY
  ACC_T p[BK * QB], ds[BK * QB], dq[ROUND_WIDTH * QB];
  ACC_T stats[QB], deltas[QB], even[QB], live[QB];
  const int unit = get_group_id(0), repeat = HEADS / GROUPS;
  const int chunk = unit % CHUNKS, g = unit / CHUNKS % GROUPS, b = unit / CHUNKS / GROUPS;
  const int first = chunk * CHUNK, last = min(S, first + CHUNK);
  __global const ACC_T* k = pK + kOff + b * kB + g * kG;
  __global const ACC_T* v = pV + vOff + b * vB + g * vG;
  __global ACC_T* dk = sumK + b * skB + g * skG;
  __global ACC_T* dv = sumV + b * svB + g * svG;
  for (int s = first; s < last; ++s) {
    for (int d = 0; d < WIDTH_VECTORS * VL; ++d) dk[s * skS + d] = 0;
    for (int d = 0; d < DEPTH_VECTORS * VL; ++d) dv[s * svS + d] = 0;
  }
  for (int h = g * repeat; h < (g + 1) * repeat; ++h) {
    __global const ACC_T* q = pQ + b * qB + h * qH;
    __global const ACC_T* dy = pG + b * gB + h * gH;
    __global const ACC_T* qRows = rQ + rqOff + b * rqB + h * rqH;
    __global const ACC_T* dyRows = rG + rgOff + b * rgB + h * rgH;
    for (int t0 = 0; t0 < T; t0 += QB, q += WIDTH * QB, dy += DEPTH * QB) {
      const int tn = min(QB, T - t0);
      LANES
      int blind = 0;
      for (int j = 0; j < QB; ++j) {
        const int t = min(t0 + j, T - 1);
        const float stat = pStat[(INDEX_T)(b * HEADS + h) * T + t];
        const bool none = HAS_MASK && stat <= NEGATIVE;
        stats[j] = t0 + j < T ? stat : INFINITY;
        deltas[j] = pDelta[((INDEX_T)b * T + t) * HEADS + h];
        even[j] = none ? weight : 1.0f;  // a row that sees nothing: all keys weigh the same
        live[j] = none ? 0.0f : scale;
        blind |= none;
      }
      const int end = CAUSAL && !blind ? min(last, t0 + QB) : last;
      for (int i = 0; i < ROUND_WIDTH * QB; ++i) dq[i] = 0;
      for (int s0 = first; s0 < end; s0 += BK) {
        const int kn = min(BK, end - s0);
        PRODUCTS(p, k, kS, q, WIDTH)
        FINISH_LOGITS(p, logScale)
        PRODUCTS(ds, v, vS, dy, DEPTH)
        for (int s = 0; s < kn; ++s)
          EACH(i, NV) {
            V x = power2(VLOAD(i, p + s * QB) - VLOAD(i, stats));
#if HAS_MASK
            x *= VLOAD(i, even);
#endif
#if HAS_DROPOUT
            DRAW(i, s0 + s)
            const V kept = KEPT((V)(FACTOR), i, s0 + s);
            VSTORE(x * kept, i, p + s * QB);
            x *= (VLOAD(i, ds + s * QB) * kept - VLOAD(i, deltas)) * VLOAD(i, live);
#else
            VSTORE(x, i, p + s * QB);
            x *= (VLOAD(i, ds + s * QB) - VLOAD(i, deltas)) * VLOAD(i, live);
#endif
            VSTORE(x, i, ds + s * QB);
          }
        ADD_PRODUCT(dq, KEEP_ALL, k, kS, WIDTH, ds)
        ADD_ROWS(dv, svS, DEPTH_VECTORS, DEPTH_GROUP, p, dyRows, rgT)
        ADD_ROWS(dk, skS, WIDTH_VECTORS, WIDTH_GROUP, ds, qRows, rqT)
      }
      for (int j = 0; j < tn; ++j) {
        const INDEX_T at = chunk * TOTAL + (((INDEX_T)b * T + t0 + j) * HEADS + h) * WIDTH;
        for (int d = 0; d < WIDTH; ++d) EPILOGUE(dq[d * QB + j], at + d)
      }
    }
  }
}
#endif
