// Linear systems a @ x = b by LU factors with exchanges of rows, unblocked: a row at a time, along
// which compilers make vectors.  LU_FACTOR, then LU_SOLVE for LANES right sides a work-item.

#define ONE_THREAD __attribute__((reqd_work_group_size(1, 1, 1)))

#if LU_FACTOR
#define EACH_COLUMN _Pragma("clang loop vectorize(assume_safety)")
__kernel ONE_THREAD void lu_factor(const __global A_T* restrict k_a, __global A_T* restrict k_factors,
                                   __global int* restrict k_order, INDEX_T n) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  const __global A_T* a = k_a + id * n * n;
  __global A_T* m = k_factors + id * n * n;
  __global int* order = k_order + id * n;
  EACH_COLUMN
  for (INDEX_T q = 0; q < n * n; q++) m[q] = a[q];
  for (INDEX_T k = 0; k < n; k++) order[k] = (int)k;
  for (INDEX_T k = 0; k < n; k++) {
    __global A_T* top = m + k * n;
    INDEX_T place = k;
    A_T best = fabs(top[k]);
    for (INDEX_T i = k + 1; i < n; i++) {
      const A_T size = fabs(m[i * n + k]);
      if (size > best) {
        best = size;
        place = i;
      }
    }
    if (place != k) {
      __global A_T* other = m + place * n;
      EACH_COLUMN
      for (INDEX_T j = 0; j < n; j++) {
        const A_T swap = top[j];
        top[j] = other[j];
        other[j] = swap;
      }
      const int swap = order[k];
      order[k] = order[place];
      order[place] = swap;
    }
    for (INDEX_T i = k + 1; i < n; i++) {
      __global A_T* row = m + i * n;
      const A_T factor = row[k] / top[k];
      row[k] = factor;
      EACH_COLUMN
      for (INDEX_T j = k + 1; j < n; j++) row[j] -= factor * top[j];
    }
  }
}
#endif

#if LU_SOLVE
#if LANES == 1
typedef A_T lanes_t;
#define GET(p_, i_) (p_)[i_]
#define PUT(v_, p_, i_) (p_)[i_] = (v_)
#else
#define JOIN_(a_, b_) a_##b_
#define JOIN(a_, b_) JOIN_(a_, b_)
typedef JOIN(A_T, LANES) lanes_t;
#define GET(p_, i_) JOIN(vload, LANES)((i_), (p_))
#define PUT(v_, p_, i_) JOIN(vstore, LANES)((v_), (i_), (p_))
#endif
__kernel ONE_THREAD void lu_solve(const __global A_T* restrict k_factors,
                                  const __global int* restrict k_order,
                                  const __global A_T* restrict k_b, __global A_T* restrict k_found,
                                  INDEX_T n, INDEX_T columns, INDEX_T blocks EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0), matrix = id / blocks;
  const INDEX_T first = (id - matrix * blocks) * LANES, live = min((INDEX_T)LANES, columns - first);
  const __global A_T* m = k_factors + matrix * n * n;
  __global A_T* y = k_found + id * n * LANES;
  for (INDEX_T r = 0; r < n; r++) {
    const __global A_T* from = k_b + (matrix * n + k_order[matrix * n + r]) * columns + first;
    for (INDEX_T c = 0; c < LANES; c++) y[r * LANES + c] = c < live ? from[c] : (A_T)0;
    lanes_t value = GET(y, r);
    for (INDEX_T j = 0; j < r; j++) value -= m[r * n + j] * GET(y, j);
    PUT(value, y, r);
  }
  for (INDEX_T r = n - 1; r >= 0; r--) {
    lanes_t value = GET(y, r);
    for (INDEX_T j = r + 1; j < n; j++) value -= m[r * n + j] * GET(y, j);
    value /= m[r * n + r];
    PUT(value, y, r);
    for (INDEX_T c = 0; c < live; c++)
      EPILOGUE(y[r * LANES + c], (matrix * n + r) * columns + first + c)
  }
}
#endif
