// Kernels around the tile products: one work-item per output element (tiny or odd problems), the
// fold of partial sums, and results of an empty sum.
#ifdef DIRECT
__kernel void gemm_direct(__global const A_T* restrict pA, __global const B_T* restrict pB,
    const INDEX_T TOTAL, const int M, const int N, const int K, const int B1, const int B2,
    const INDEX_T aOff, const INDEX_T bOff, const INDEX_T aRow, const INDEX_T aK, const INDEX_T bK,
    const INDEX_T bCol, const INDEX_T a0, const INDEX_T a1, const INDEX_T a2, const INDEX_T b0,
    const INDEX_T b1, const INDEX_T b2 EPILOGUE_PARAMS) {
  const INDEX_T at = get_global_id(0);
  if (at >= TOTAL) return;
  const int col = at % N, row = at / N % M, batch = at / N / M;
  const int i2_ = batch % B2, i1_ = batch / B2 % B1, i0_ = batch / B2 / B1;
  INDEX_T ia = aOff + i0_ * a0 + i1_ * a1 + i2_ * a2 + row * aRow;
  INDEX_T ib = bOff + i0_ * b0 + i1_ * b1 + i2_ * b2 + col * bCol;
  ACC_T sum = 0;
  for (int k = 0; k < K; ++k, ia += aK, ib += bK)
    sum += (ACC_T)A_LOAD(pA, ia) * (ACC_T)B_LOAD(pB, ib);
  EPILOGUE(sum, at)
}
#endif

#ifdef FOLD4
// As gemm_fold, four results a work-item; TOTAL is a multiple of four.
__kernel void gemm_fold4(__global const ACC_T* restrict part, const INDEX_T TOTAL,
    const int SPLITS EPILOGUE_PARAMS) {
  const INDEX_T at = (INDEX_T)get_global_id(0) * 4;
  if (at >= TOTAL) return;
  float4 sum = 0;
  // Few work-items, so each needs many loads in flight.
#pragma unroll 16
  for (int s = 0; s < SPLITS; ++s)
    sum += *(__global const float4*)(part + (INDEX_T)s * TOTAL + at);
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
  EPILOGUE_VECTOR(4, sums, at)
}
#endif

#ifdef FOLD
// part[split][total] -> out[total]; the order of the sum is fixed, so results repeat exactly.
__kernel void gemm_fold(__global const ACC_T* restrict part, const INDEX_T TOTAL,
    const int SPLITS EPILOGUE_PARAMS) {
  const INDEX_T at = get_global_id(0);
  if (at >= TOTAL) return;
  ACC_T sum = 0;
  for (int s = 0; s < SPLITS; ++s) sum += part[(INDEX_T)s * TOTAL + at];
  EPILOGUE(sum, at)
}
#endif

#ifdef ZERO
__kernel void gemm_zero(const INDEX_T TOTAL EPILOGUE_PARAMS) {
  const INDEX_T at = get_global_id(0);
  if (at < TOTAL) EPILOGUE((ACC_T)0, at)
}
#endif
