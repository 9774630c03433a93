// What attention_tile.cl, attention_mma.cl and attention_fragment.cl share.  Logits are kept times log2(e).
#ifndef SLOPE_SCALE  // what the gradients of logits are kept times
#define SLOPE_SCALE scale
#endif
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#define TENSOR(x) const INDEX_T x##Off, const INDEX_T x##0, const INDEX_T x##1, const INDEX_T x##2, const INDEX_T x##3

#if HAS_BIAS
#define BIAS_PARAM , __global const BIAS_T* restrict pBias
#define BIAS_SIZES , TENSOR(bias)
#else
#define BIAS_PARAM
#define BIAS_SIZES
#endif
#if HAS_MASK
#define MASK_PARAM , __global const uchar* restrict pMask
#define MASK_SIZES , TENSOR(mask)
#else
#define MASK_PARAM
#define MASK_SIZES
#endif

// With KEPT_BITS what dropout keeps lies in memory, as attention_bits.cl says.
#if KEPT_BITS
#ifdef FORWARD
#define KEPT_PARAM , __global ushort* restrict pBits
#else
#define KEPT_PARAM , __global const ushort* restrict pBits
#endif
#define KEPT_SIZE , const int HALVES
#else
#define KEPT_PARAM
#define KEPT_SIZE
#endif

// rows x features at `from` into a local tile; what lies outside is zero.
#ifndef FEW_LOADS
#define FEW_LOADS
#endif
#ifndef LOAD_TILE
#define LOAD_TILE(to, from, row, step, left, rows, features, padded) \
  load_tile(to, from, row, step, left, rows, features, padded, lid);
#endif
inline void load_tile(__local float* to, __global const X_T* from, const INDEX_T row,
    const INDEX_T step, const int left, const int rows, const int features, const int padded,
    const int lid) {
#if VECTORS
  FEW_LOADS for (int i = lid; i < rows * (padded / 4); i += THREADS) {
    const int r = i / (padded / 4), c = i % (padded / 4) * 4;
    float4 x = (float4)(0);
    if (r < left && c < features) x = X_LOAD4(from, r * row + c);
    vstore4(x, 0, to + r * (padded + 4) + c);
  }
#else
  FEW_LOADS for (int i = lid; i < rows * padded; i += THREADS) {
    const int r = i / padded, c = i % padded;
    const float x = r < left && c < features ? X_LOAD(from, r * row + c * step) : 0.0f;
    to[r * (padded + 4) + c] = x;
  }
#endif
}

// The logit of query t and key s from their product; with _BY, from what was read of bias and mask.
#define FINISH_LOGIT(x, t, s) \
  x *= logScale; \
  if ((t) < T && (s) < S) { \
    ADD_BIAS(x, t, s) \
    HIDE_MASKED(x, t, s) \
    if (CAUSAL && (s) > (t)) x = NEGATIVE; \
  }
#define FINISH_LOGIT_BY(x, t, s, bias, mask) \
  x *= logScale; \
  USE_BIAS(x, bias) \
  USE_MASK(x, mask) \
  if (CAUSAL && (s) > (t)) x = NEGATIVE;
#if HAS_BIAS
#define BIAS_AT(t, s) BIAS_LOAD(pBias, biasOff + b * bias0 + h * bias1 + (t) * bias2 + (s) * bias3)
#define ADD_BIAS(x, t, s) x += BIAS_AT(t, s) * LOG2E;
#define DECLARE_BIAS(bias) float bias;
#define READ_BIAS(bias, t, s) bias = BIAS_AT(t, s);
#define USE_BIAS(x, bias) x += bias * LOG2E;
#else
#define ADD_BIAS(x, t, s)
#define DECLARE_BIAS(bias)
#define READ_BIAS(bias, t, s)
#define USE_BIAS(x, bias)
#endif
#if HAS_MASK
#define MASK_AT(t, s) pMask[maskOff + b * mask0 + h * mask1 + (t) * mask2 + (s) * mask3]
#define HIDE_MASKED(x, t, s) if (!MASK_AT(t, s)) x = NEGATIVE;
#define DECLARE_MASK(mask) uchar mask;
#define READ_MASK(mask, t, s) mask = MASK_AT(t, s);
#define USE_MASK(x, mask) if (!mask) x = NEGATIVE;
#else
#define HIDE_MASKED(x, t, s)
#define DECLARE_MASK(mask)
#define READ_MASK(mask, t, s)
#define USE_MASK(x, mask)
#endif

#define FORWARD_PARAMS \
    __global const X_T* restrict pQ, __global const X_T* restrict pK, \
    __global const X_T* restrict pV BIAS_PARAM MASK_PARAM KEY_PARAM, \
    __global float* restrict pStat KEPT_PARAM, \
    const int T, const int S, const int REPEAT, const float logScale, TENSOR(q), TENSOR(k), \
    TENSOR(v) BIAS_SIZES MASK_SIZES KEY_SIZES KEPT_SIZE EPILOGUE_PARAMS
#ifdef FORWARD
#define HEADS get_num_groups(1)
#endif

#ifdef BACKWARD
// With KEYS the rows are keys and the results dk (through outK) and dv; else queries and dq, which
// goes to the epilogue.
#define FIRST_ROW r0
#if KEYS
#define RESULTS , __global OUT_T* restrict outK, __global OUT_T* restrict outV
#define MORE_PARAMS
#define HEADS (get_num_groups(1) * REPEAT)
#define QUERIES BC
#define ROWS S
#define COUNT get_num_groups(1)
#define PLACE group
#define LOGIT_AT(row, column) const int at = column, t = t0 + column, s = FIRST_ROW + row;
#else
#define RESULTS
#define MORE_PARAMS EPILOGUE_PARAMS
#define HEADS get_num_groups(1)
#define QUERIES BR
#define ROWS T
#define COUNT HEADS
#define PLACE h
#define LOGIT_AT(row, column) const int at = row, t = FIRST_ROW + row, s = c0 + column;
#endif
#define BACKWARD_PARAMS \
    __global const X_T* restrict pQ, __global const X_T* restrict pK, \
    __global const X_T* restrict pV, __global const X_T* restrict pG BIAS_PARAM MASK_PARAM \
    KEY_PARAM, __global const float* restrict pStat, __global const float* restrict pDelta KEPT_PARAM \
    RESULTS, \
    const int T, const int S, const int REPEAT, const float scale, const float logScale, \
    const float weight, TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(g) BIAS_SIZES MASK_SIZES \
    KEY_SIZES KEPT_SIZE MORE_PARAMS

// The blocks of the other side that a group's rows meet: queries of all its heads, or keys.  Within,
// `other` and `otherV` hold the block, and `first` is the first query of those at hand.
#if KEYS
#define FOR_EACH_BLOCK \
  for (int h = group * REPEAT; h < (group + 1) * REPEAT; ++h) { \
    __global const float* stats = pStat + (INDEX_T)(b * HEADS + h) * T; \
    for (int t0 = 0; t0 < T; t0 += BC) { \
      if (CAUSAL && t0 + BC <= r0) { \
        bool skip = true; \
        if (HAS_MASK) \
          for (int t = t0; t < min(T, t0 + BC); ++t) skip = skip && stats[t] > NEGATIVE; \
        if (skip) continue; \
      } \
      barrier(CLK_LOCAL_MEM_FENCE); \
      LOAD_TILE(other, pQ + qOff + b * q0 + h * q2 + t0 * q1, q1, q3, T - t0, BC, WIDTH, WP) \
      LOAD_TILE(otherV, pG + gOff + b * g0 + h * g2 + t0 * g1, g1, g3, T - t0, BC, DEPTH, DP) \
      const int first = t0;
#define END_EACH_BLOCK }}
#else
#define FOR_EACH_BLOCK \
  __global const float* stats = pStat + (INDEX_T)(b * HEADS + h) * T; \
  const int first = r0; \
  int end = CAUSAL ? min(S, r0 + BR) : S; \
  if (CAUSAL && HAS_MASK) \
    for (int t = r0; t < min(T, r0 + BR); ++t) \
      if (stats[t] <= NEGATIVE) end = S; \
  { \
    int c0 = 0; \
    do { \
      barrier(CLK_LOCAL_MEM_FENCE); \
      LOAD_TILE(other, pK + kOff + b * k0 + group * k2 + c0 * k1, k1, k3, S - c0, BC, WIDTH, WP) \
      LOAD_TILE(otherV, pV + vOff + b * v0 + group * v2 + c0 * v1, v1, v3, S - c0, BC, DEPTH, DP)
#define END_EACH_BLOCK c0 += BC; } while (c0 < end); }  // once at least: see gemm_tile.cl
#endif

// Of the block's queries.
#define LOAD_STATISTICS \
  for (int i = lid; i < QUERIES; i += THREADS) { \
    const int t = min(first + i, T - 1); \
    stat[i] = first + i < T ? stats[t] : INFINITY; \
    delta[i] = pDelta[((INDEX_T)b * T + t) * HEADS + h]; \
  }
// From products of queries and keys and of gradients and values: the probability w, and back, the
// gradient of the logit.  In a row that sees nothing all keys weigh the same.  What dropout leaves of
// w meets the values; `word` decides, which may read t and s.
#define WEIGH(x, y, row, column, word) \
  LOGIT_AT(row, column) \
  FINISH_LOGIT(x, t, s) \
  float w = s < S ? exp2(x - stat[at]) : 0.0f; \
  DROP_VALUE(y, word) \
  float back = w * (y - delta[at]) * SLOPE_SCALE; \
  if (HAS_MASK && stat[at] <= NEGATIVE) { w *= weight; back = 0; } \
  DROP_WEIGHT(w)
#if HAS_DROPOUT
#define DROP_VALUE(y, word) \
  const float kept_ = KEPT(keepFactor, word); \
  y *= kept_;
#define DROP_WEIGHT(w) w *= kept_;
#else
#define DROP_VALUE(y, word)
#define DROP_WEIGHT(w)
#endif
#endif
