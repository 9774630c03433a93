// Products with one short side (matrix times a few vectors): limited by reading the long operand.
// Long operand l[r, k], short operand s[j, k] with COUNT <= SHORT rows.  A work-group sums ROWS rows
// with LANES work-items to each, neighbours along whichever direction is contiguous (L_ALONG_K).
#define BATCH_ENTRY(p, Off, s0, s1, s2) \
  ((p) + (Off) + (batch / B2 / B1) * (s0) + (batch / B2 % B1) * (s1) + (batch % B2) * (s2))

__kernel __attribute__((reqd_work_group_size(ROWS * LANES, 1, 1))) void gemm_skinny(
    __global const L_T* restrict pL, __global const S_T* restrict pS, const int R, const int COUNT,
    const int K, const int SPLITS, const int KSLICE, const int B1, const int B2, const INDEX_T lOff,
    const INDEX_T sOff, const INDEX_T lR, const INDEX_T lK, const INDEX_T sJ, const INDEX_T sK,
    const INDEX_T l0, const INDEX_T l1, const INDEX_T l2, const INDEX_T s0, const INDEX_T s1,
    const INDEX_T s2, const INDEX_T oR, const INDEX_T oJ EPILOGUE_PARAMS) {
  __local ACC_T part_[SHORT][ROWS * LANES];
  const int tid = get_local_id(0);
#if L_ALONG_K
  const int lane = tid % LANES, row = tid / LANES, next = 1;
#else
  const int row = tid % ROWS, lane = tid / ROWS, next = ROWS;
#endif
  const int blocks = (R + ROWS - 1) / ROWS;
  int g_ = get_group_id(0);
  const int r = g_ % blocks * ROWS + row; g_ /= blocks;
  const int split = g_ % SPLITS, batch = g_ / SPLITS;
  const int kfrom = split * KSLICE, kto = min(K, kfrom + KSLICE);
  __global const L_T* l = BATCH_ENTRY(pL, lOff, l0, l1, l2) + min(r, R - 1) * lR;
  __global const S_T* s = BATCH_ENTRY(pS, sOff, s0, s1, s2);
  ACC_T sum[SHORT];
#pragma unroll
  for (int j = 0; j < SHORT; ++j) sum[j] = 0;
#pragma unroll 4
  for (int k = kfrom + lane; k < kto; k += LANES) {
    const ACC_T x = (ACC_T)L_LOAD(l, k * lK);
#pragma unroll
    for (int j = 0; j < SHORT; ++j) sum[j] += x * (ACC_T)S_LOAD(s, min(j, COUNT - 1) * sJ + k * sK);
  }
#pragma unroll
  for (int j = 0; j < SHORT; ++j) part_[j][tid] = sum[j];
  for (int half_ = LANES / 2; half_ > 0; half_ /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < half_)
      for (int j = 0; j < SHORT; ++j) part_[j][tid] += part_[j][tid + half_ * next];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  // The first lanes of a row store one result each.
  if (r < R)
    for (int j = lane; j < COUNT; j += LANES) {
      const INDEX_T at = (INDEX_T)batch * R * COUNT + r * oR + j * oJ;
      EPILOGUE(part_[j][tid - lane * next], at)
    }
}
