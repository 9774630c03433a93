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
