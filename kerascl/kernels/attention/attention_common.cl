// What attention_tile.cl and attention_mma.cl share.  Logits are kept times log2(e).
#ifndef ROUNDED  // what is kept for products
#define ROUNDED(x) (x)
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

// rows x features at `from` into a local tile; what lies outside is zero.
inline void load_tile(__local float* to, __global const X_T* from, const INDEX_T row,
    const INDEX_T step, const int left, const int rows, const int features, const int padded,
    const int lid) {
#if VECTORS
  for (int i = lid; i < rows * (padded / 4); i += THREADS) {
    const int r = i / (padded / 4), c = i % (padded / 4) * 4;
    float4 x = (float4)(0);
    if (r < left && c < features) x = X_LOAD4(from, r * row + c);
    vstore4(ROUNDED(x), 0, to + r * (padded + 4) + c);
  }
#else
  for (int i = lid; i < rows * padded; i += THREADS) {
    const int r = i / padded, c = i % padded;
    const float x = r < left && c < features ? X_LOAD(from, r * row + c * step) : 0.0f;
    to[r * (padded + 4) + c] = ROUNDED(x);
  }
#endif
}

// The logit of query t and key s from their product.
#define FINISH_LOGIT(x, t, s) \
  x *= logScale; \
  if ((t) < T && (s) < S) { \
    ADD_BIAS(x, t, s) \
    HIDE_MASKED(x, t, s) \
    if (CAUSAL && (s) > (t)) x = NEGATIVE; \
  }
#if HAS_BIAS
#define ADD_BIAS(x, t, s) x += BIAS_LOAD(pBias, biasOff + b * bias0 + h * bias1 + (t) * bias2 + (s) * bias3) * LOG2E;
#else
#define ADD_BIAS(x, t, s)
#endif
#if HAS_MASK
#define HIDE_MASKED(x, t, s) if (!pMask[maskOff + b * mask0 + h * mask1 + (t) * mask2 + (s) * mask3]) x = NEGATIVE;
#else
#define HIDE_MASKED(x, t, s)
#endif

#define FORWARD_PARAMS \
    __global const X_T* restrict pQ, __global const X_T* restrict pK, \
    __global const X_T* restrict pV BIAS_PARAM MASK_PARAM, __global float* restrict pStat, \
    const int T, const int S, const int REPEAT, const float logScale, TENSOR(q), TENSOR(k), \
    TENSOR(v) BIAS_SIZES MASK_SIZES EPILOGUE_PARAMS

#ifdef BACKWARD
// With KEYS the rows are keys and the results dk (through outK) and dv; else queries and dq, which
// goes to the epilogue.
#if KEYS
#define RESULTS , __global OUT_T* restrict outK, __global OUT_T* restrict outV
#define MORE_PARAMS
#define HEADS (get_num_groups(1) * REPEAT)
#define QUERIES BC
#define ROWS S
#define COUNT get_num_groups(1)
#define PLACE group
#define LOGIT_AT(row, column) const int at = column, t = t0 + column, s = r0 + row;
#else
#define RESULTS
#define MORE_PARAMS EPILOGUE_PARAMS
#define HEADS get_num_groups(1)
#define QUERIES BR
#define ROWS T
#define COUNT HEADS
#define PLACE h
#define LOGIT_AT(row, column) const int at = row, t = r0 + row, s = c0 + column;
#endif
#define BACKWARD_PARAMS \
    __global const X_T* restrict pQ, __global const X_T* restrict pK, \
    __global const X_T* restrict pV, __global const X_T* restrict pG BIAS_PARAM MASK_PARAM, \
    __global const float* restrict pStat, __global const float* restrict pDelta RESULTS, \
    const int T, const int S, const int REPEAT, const float scale, const float logScale, \
    const float weight, TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(g) BIAS_SIZES MASK_SIZES \
    MORE_PARAMS

// Of the block's queries.
#define LOAD_STATISTICS \
  for (int i = lid; i < QUERIES; i += THREADS) { \
    const int t = min(first + i, T - 1); \
    stat[i] = first + i < T ? stats[t] : INFINITY; \
    delta[i] = pDelta[((INDEX_T)b * T + t) * HEADS + h]; \
  }
// From products of queries and keys and of gradients and values: the probability w, and back, the
// gradient of the logit.  In a row that sees nothing all keys weigh the same.
#define WEIGH(x, y, row, column) \
  LOGIT_AT(row, column) \
  FINISH_LOGIT(x, t, s) \
  float w = s < S ? exp2(x - stat[at]) : 0.0f; \
  float back = w * (y - delta[at]) * scale; \
  if (HAS_MASK && stat[at] <= NEGATIVE) { w *= weight; back = 0; }
#endif
