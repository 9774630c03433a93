// Products with one short side (matrix times a few vectors): limited by reading the long operand.
// Long operand l[r, k], short operand s[j, k] with COUNT <= SHORT rows.  A work-group sums ROWS rows
// with LANES work-items to each.  A load takes V neighbours of l, along k (L_ALONG_K) or along r,
// whichever is contiguous, as do neighbouring work-items; S_VECTOR: those of s lie together, too.
// This is the body of a kernel whose parameters the planner lists, so that several may share a launch.
#define BATCH_ENTRY(p, Off, s0, s1, s2) \
  ((p) + (Off) + (batch / B2 / B1) * (s0) + (batch / B2 % B1) * (s1) + (batch % B2) * (s2))
#define THREADS 256
#if V == 4
#define ACCV CAT4(ACC_T)
#define L_READ(p, i) L_LOAD4(p, i)
#else
#define ACCV ACC_T
#define L_READ(p, i) ((ACC_T)L_LOAD(p, i))
#endif
#define CAT4(t) CAT4_(t)
#define CAT4_(t) t##4
// Local memory holds the sums of TOGETHER rows of s, then some work-items to each result add them up.
#define PART(j, lane, row) part_[((j) * LANES + (lane)) * ROWS + (row)]
#define RESULTS (TOGETHER * ROWS)
#define ADDERS (RESULTS * 2 <= THREADS ? THREADS / RESULTS : 1)

  __local ACC_T part_[RESULTS * LANES] __attribute__((aligned(32)));
  const int tid = get_local_id(0);
#if L_ALONG_K
  const int lane = tid % LANES, row = tid / LANES;
#else
  const int row = tid % (ROWS / V) * V, lane = tid / (ROWS / V);
#endif
  const int blocks = (R + ROWS - 1) / ROWS;
  int g_ = get_group_id(0);
  const int first = g_ % blocks * ROWS; g_ /= blocks;
  const int split = g_ % SPLITS, batch = g_ / SPLITS;
  const int kfrom = split * KSLICE, kto = min(K, kfrom + KSLICE);
  INNER_SPACE const S_T* s = BATCH_ENTRY(pS, sOff, s0, s1, s2);
  ACCV sum[SHORT];
#pragma unroll
  for (int j = 0; j < SHORT; ++j) sum[j] = 0;
#if L_ALONG_K
  __global const L_T* l = BATCH_ENTRY(pL, lOff, l0, l1, l2) + min(first + row, R - 1) * lR;
  _Pragma(UNROLL)
  for (int k = kfrom + lane * V; k < kto; k += LANES * V) {
    const ACCV x = L_READ(l, k * lK);
#pragma unroll
    for (int j = 0; j < SHORT; ++j) {
      INNER_SPACE const S_T* from = s + min(j, COUNT - 1) * sJ;
#if V == 1
      sum[j] += x * (ACC_T)S_LOAD(from, k * sK);
#elif S_VECTOR
      sum[j] += x * S_LOAD4(from, k);
#else
      sum[j] += x * (ACCV)((ACC_T)S_LOAD(from, k * sK), (ACC_T)S_LOAD(from, (k + 1) * sK),
                           (ACC_T)S_LOAD(from, (k + 2) * sK), (ACC_T)S_LOAD(from, (k + 3) * sK));
#endif
    }
  }
#else
  __global const L_T* l = BATCH_ENTRY(pL, lOff, l0, l1, l2) + min(first + row, R - V) * lR;
  _Pragma(UNROLL)
  for (int k = kfrom + lane; k < kto; k += LANES) {
    const ACCV x = L_READ(l, k * lK);
#pragma unroll
    for (int j = 0; j < SHORT; ++j) sum[j] += x * (ACC_T)S_LOAD(s, min(j, COUNT - 1) * sJ + k * sK);
  }
#endif
#pragma unroll
  for (int j0 = 0; j0 < SHORT; j0 += TOGETHER) {
    if (j0) barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
#if V == 1
      PART(j, lane, row) = sum[j0 + j];
#elif L_ALONG_K
      PART(j, lane, row) = (sum[j0 + j].s0 + sum[j0 + j].s1) + (sum[j0 + j].s2 + sum[j0 + j].s3);
#else
      vstore4(sum[j0 + j], 0, &PART(j, lane, row));
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = tid; e < RESULTS * ADDERS; e += THREADS) {
      const int to = e / RESULTS, j = e % RESULTS / ROWS, at = e % ROWS;
      ACC_T total = 0;
      for (int from = to; from < LANES; from += ADDERS) total += PART(j, from, at);
      PART(j, to, at) = total;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = tid; e < RESULTS; e += THREADS) {
      const int j = e / ROWS, r = first + e % ROWS;
      ACC_T total = 0;
      for (int from = 0; from < ADDERS; ++from) total += PART(j, from, e % ROWS);
      if (r < R && j0 + j < COUNT) {
        const INDEX_T at = (INDEX_T)batch * R * COUNT + r * oR + (j0 + j) * oJ;
#if ARRIVES
        slices[split * TOTAL + at] = total;
#else
        EPILOGUE(total, at)
#endif
      }
    }
  }
#if ARRIVES
  __local int last_;
  if (kcl_last_group(arrivals + arrival + batch * blocks + first / ROWS, SPLITS, &last_))
    for (int e = tid; e < COUNT * ROWS; e += THREADS) {
      const int r = first + e % ROWS;
      if (r < R) {
        const INDEX_T at = (INDEX_T)batch * R * COUNT + r * oR + e / ROWS * oJ;
        ACC_T total = 0;
        for (int other = 0; other < SPLITS; ++other) total += slices[other * TOTAL + at];
        EPILOGUE(total, at)
      }
    }
#endif
