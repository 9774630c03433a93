// Kernels around the tile products: one work-item per output element (tiny or odd problems), and
// results of an empty sum.
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

#ifdef ZERO
__kernel void gemm_zero(const INDEX_T TOTAL EPILOGUE_PARAMS) {
  const INDEX_T at = get_global_id(0);
  if (at < TOTAL) EPILOGUE((ACC_T)0, at)
}
#endif
