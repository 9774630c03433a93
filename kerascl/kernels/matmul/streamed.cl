// Products of SHORT rows on CPUs: the long operand is read once, in the order in which it lies.
// Long operand l[r, k], short operand s[j, k]; a work-item makes ROWS rows of l.
// ALONG_K 0: neighbours along r lie side by side.  DEPTH of the depth go through all of a work-item's rows
// before the next do: as many streams as processors foresee, each of which uses what it brings from a page.
// R_STEP: elements of the result between rows of l.
// ALONG_K 1: neighbours along k lie side by side, of s, too.
#define VECTOR L_CV
#define V LANES
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)
#if defined(FP_FAST_FMAF) && !defined(NO_FMA)
#define ADD_PRODUCT(sum, x, y) sum = fma(x, y, sum)
#else
#define ADD_PRODUCT(sum, x, y) sum += (x) * (y)
#endif
inline float add_up(const VECTOR v) {
  const float8 a = v.lo + v.hi;
  const float4 b = a.lo + a.hi;
  const float2 c = b.lo + b.hi;
  return c.x + c.y;
}

#if !ALONG_K
#define ADD_ROWS(depth) { \
  float each[SHORT][depth]; \
  EACH(j, SHORT) EACH(d, depth) each[j][d] = S_LOAD(s, j * sJ + (k + d) * sK); \
  __global const L_T* from = l + k * lK; \
  _Pragma("nounroll") for (int v = 0; v < vectors; ++v) { \
    VECTOR part[SHORT]; \
    EACH(j, SHORT) part[j] = 0; \
    EACH(d, depth) { \
      const VECTOR x = L_LOADV(from, d * lK + v * V); \
      EACH(j, SHORT) ADD_PRODUCT(part[j], x, (VECTOR)each[j][d]); \
    } \
    EACH(j, SHORT) sum[j][v] += part[j]; \
  } \
}
#endif

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void gemm_streamed(
    __global const L_T* restrict pL, __global const S_T* restrict pS, const int R, const INDEX_T K,
    const INDEX_T lOff, const INDEX_T sOff, const INDEX_T lR, const INDEX_T lK, const INDEX_T sJ,
    const INDEX_T sK, const INDEX_T oJ EPILOGUE_PARAMS) {
  const INDEX_T first = (INDEX_T)get_group_id(0) * ROWS;
  const int rows = min((int)(R - first), ROWS);
  __global const S_T* s = pS + sOff;
#if ALONG_K
  for (int r = 0; r < rows; ++r) {
    __global const L_T* l = pL + lOff + (first + r) * lR;
    VECTOR sum[SHORT], other[SHORT];
    EACH(j, SHORT) sum[j] = other[j] = 0;
    INDEX_T k = 0;
    for (; k + 2 * V <= K; k += 2 * V) {
      const VECTOR x = L_LOADV(l, k), y = L_LOADV(l, k + V);
      EACH(j, SHORT) {
        ADD_PRODUCT(sum[j], x, S_LOADV(s, j * sJ + k));
        ADD_PRODUCT(other[j], y, S_LOADV(s, j * sJ + k + V));
      }
    }
    float total[SHORT];
    EACH(j, SHORT) total[j] = add_up(sum[j] + other[j]);
    for (; k < K; ++k) EACH(j, SHORT) total[j] += (float)L_LOAD(l, k) * (float)S_LOAD(s, j * sJ + k);
    EACH(j, SHORT) EPILOGUE(total[j], (first + r) * R_STEP + j * oJ)
  }
#else
  __global const L_T* l = pL + lOff + first;
  const int vectors = rows / V;
  VECTOR sum[SHORT][ROWS / V];
  EACH(j, SHORT) for (int v = 0; v < vectors; ++v) sum[j][v] = 0;
  INDEX_T k = 0;
  for (; k + DEPTH <= K; k += DEPTH) ADD_ROWS(DEPTH)
  for (; k < K; ++k) ADD_ROWS(1)
  EACH(j, SHORT) {
    const float* total = (const float*)sum[j];
    // results of their own: compilers that take vectors of them need not prove it
    _Pragma("clang loop vectorize(assume_safety)")
    for (int r = 0; r < vectors * V; ++r) EPILOGUE(total[r], (first + r) * R_STEP + j * oJ)
  }
  for (int r = vectors * V; r < rows; ++r)  // those that fill no vector
    EACH(j, SHORT) {
      float total = 0;
      for (k = 0; k < K; ++k) total += (float)L_LOAD(l, k * lK + r) * (float)S_LOAD(s, j * sJ + k * sK);
      EPILOGUE(total, (first + r) * R_STEP + j * oJ)
    }
#endif
}
