// GEMM for CPUs over cpu_micro.cl.  Operands that the product kernel cannot stream directly are
// first packed, converted to the accumulator type: panels [batch][panel][k][MR or NR].
#define BATCH_ENTRY(p, Off, s0, s1, s2) \
  ((p) + (Off) + (batch / B2 / B1) * (s0) + (batch / B2 % B1) * (s1) + (batch % B2) * (s2))

#ifndef ONE_THREAD
#define ONE_THREAD __attribute__((reqd_work_group_size(1, 1, 1)))
#endif

#ifdef PACK
// LANES rows (or columns) of a panel side by side for each depth; past the end they are zero.  The
// depth may have two levels, INNER elements apart by sK inside steps of sOuter.  A panel wholly past
// the end is a source of zeros: its first ZEROS elements are written.
// Work-items: (depth blocks, panels, batch entries).
#define DEPTH_AT(k) ((k) / INNER * sOuter + (k) % INNER * sK)
__kernel ONE_THREAD void gemm_pack(__global const B_T* restrict src, __global ACC_T* restrict dst,
    const int COUNT, const int K, const int INNER, const int ZEROS, const int B1, const int B2,
    const INDEX_T Off, const INDEX_T sLane, const INDEX_T sK, const INDEX_T sOuter,
    const INDEX_T s0, const INDEX_T s1, const INDEX_T s2) {
  const int panel = get_group_id(1), batch = get_group_id(2);
  const int kfrom = get_group_id(0) * PACK_DEPTH, kto = min(K, kfrom + PACK_DEPTH);
  const int lanes = min(LANES, COUNT - panel * LANES);
  if (lanes <= 0 && kfrom * LANES >= ZEROS) return;
  const INDEX_T from = Off + (batch / B2 / B1) * s0 + (batch / B2 % B1) * s1 + (batch % B2) * s2 +
      (INDEX_T)panel * LANES * sLane;
  __global ACC_T* to = dst + ((INDEX_T)batch * get_num_groups(1) + panel) * K * LANES;
  if (lanes == LANES && sLane == 1) {
    for (int k = kfrom; k < kto; ++k) {
      const INDEX_T at = from + DEPTH_AT(k);
#pragma unroll
      for (int j = 0; j < LANES; ++j) to[k * LANES + j] = (ACC_T)B_LOAD(src, at + j);
    }
    return;
  }
  // A few depths at a time: a transposing copy whose reads and writes both stay in the cache.
  for (int k0 = kfrom; k0 < kto; k0 += 16) {
    const int steps = min(kto - k0, 16);
    INDEX_T at[16];
    for (int k = 0; k < steps; ++k) at[k] = from + DEPTH_AT(k0 + k);
    for (int j = 0; j < LANES; ++j)
      for (int k = 0; k < steps; ++k)
        to[(k0 + k) * LANES + j] = j < lanes ? (ACC_T)B_LOAD(src, at[k] + j * sLane) : (ACC_T)0;
  }
}
#endif

#ifdef PRODUCT
// A_MODE 0: rows with unit depth stride; 1: MR rows side by side; 2: any strides.
// A unit is one panel of columns with CHUNK panels of rows in one slice of the depth; a work-item
// does PER units.
__kernel ONE_THREAD void gemm_cpu(__global const A_T* restrict pA, __global const B_T* restrict pB,
    const int M, const int N, const int K, const int SPLITS, const int KSLICE, const int CHUNK,
    const int UNITS, const int PER, const int B1, const int B2, const INDEX_T aOff,
    const INDEX_T bOff, const INDEX_T aPanel, const INDEX_T aRow, const INDEX_T aK,
    const INDEX_T bPanel, const INDEX_T bK, const INDEX_T a0, const INDEX_T a1, const INDEX_T a2,
    const INDEX_T b0, const INDEX_T b1, const INDEX_T b2 EPILOGUE_PARAMS) {
  const int rowPanels = (M + MR - 1) / MR, panels = (N + NR - 1) / NR;
  const int chunks = (rowPanels + CHUNK - 1) / CHUNK;
  const int first = (int)get_group_id(0) * PER, last = min(UNITS, first + PER);
  for (int unit = first; unit < last; ++unit) {
    const int chunk = unit % chunks;
    const int panel = unit / chunks % panels;
    const int split = unit / chunks / panels % SPLITS, batch = unit / chunks / panels / SPLITS;
    const int kfrom = split * KSLICE, depth = min(K, kfrom + KSLICE) - kfrom;
    // A ragged last panel of a direct operand is moved back inside; what it repeats is not stored.
    const int n0 = panel * NR, nBack = B_DIRECT ? max(n0 + NR - N, 0) : 0;
    const int nTo = min(NR, N - n0 + nBack);
    __global const B_T* bStart = BATCH_ENTRY(pB, bOff, b0, b1, b2) + panel * bPanel - nBack + kfrom * bK;
    __global const A_T* aStart = BATCH_ENTRY(pA, aOff, a0, a1, a2) + kfrom * aK;
    const int qTo = min(rowPanels, (chunk + 1) * CHUNK);
    for (int q = chunk * CHUNK; q < qTo; ++q) {
      const int m0 = q * MR;
      __global const B_T* b = bStart;
      MICRO_ZERO
#if A_MODE == 1
      const int mBack = A_DIRECT ? max(m0 + MR - M, 0) : 0;
      __global const A_T* a = aStart + q * aPanel - mBack;
#define A_EL(r) a[r]
#define NEXT b += bK, a += aK
      MICRO_STEPS(depth, A_EL, b, NEXT)
#else
      const int mBack = 0;
      __global const A_T* a[MR];
#pragma unroll
      for (int r = 0; r < MR; ++r) a[r] = aStart + min(m0 + r, M - 1) * aRow;
#if A_MODE == 0
#define A_EL(r) a[r][k]
#else
#define A_EL(r) a[r][k * aK]
#endif
      MICRO_STEPS(depth, A_EL, b, b += bK)
#endif
      MICRO_SPILL
      const int rows = min(MR, M - m0 + mBack);
      for (int r = mBack; r < rows; ++r) {
        const INDEX_T at = ((INDEX_T)batch * M + m0 - mBack + r) * N + n0 - nBack;
        MICRO_ROW(r, nBack, nTo, at, 1)
      }
    }
  }
}
#endif
