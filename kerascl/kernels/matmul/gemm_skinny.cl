// Products with one short side (matrix times a few vectors): limited by reading the long operand.
// Long operand l[r, k], short operand s[j, k] with COUNT <= SHORT rows.  A work-group sums ROWS rows
// with LANES work-items to each.  A load takes V neighbours of l, along k (L_ALONG_K) or along r,
// whichever is contiguous, as do neighbouring work-items; S_VECTOR: those of s lie together, too.
// With L_COMPUTED(x, r, k), l does not lie in memory: that sets x to V neighbours.
// EARLY loads of l are under way at once.  The first come before anything is done with s, which may still
// have to be made or is copied to local memory (STAGE elements a row, those of SPAN blocks): compilers put a
// load right before its use, so that each would wait for the one before, but not across a barrier.  Where a
// slice has more, BLOCKS of as many, each half of them is read anew as soon as it is used, before the other
// half is.
// This is the body of a kernel whose parameters the planner lists, so that several may share a launch.
#define BATCH_ENTRY(p, Off, s0, s1, s2) \
  ((p) + (Off) + (batch / B2 / B1) * (s0) + (batch / B2 % B1) * (s1) + (batch % B2) * (s2))
#define THREADS 256
#define CAT4(t) CAT4_(t)
#define CAT4_(t) t##4
#if V == 4
#define ACCV CAT4(ACC_T)
#define L_READ(p, i) L_LOAD4(p, i)
#define L_RAW CAT4(L_WORD)
#define L_STORED(raw) RAW_LOAD4((const __private L_T*)&(raw), 0)
#else
#define ACCV ACC_T
#define L_READ(p, i) ((ACC_T)L_LOAD(p, i))
#define L_RAW L_WORD
#define L_STORED(raw) ((ACC_T)L_LOAD((const __private L_T*)&(raw), 0))
#endif
#ifdef L_COMPUTED
#define L_KNOWN(early) (early)
#else
#define L_KNOWN(early) L_STORED(early)
#endif
#if L_ALONG_K
#define STEP (LANES * V)
#define WIDE V
#else
#define STEP LANES
#define WIDE 1
#endif
#if STAGE && !defined(INNER_MADE)
#define S_SPACE __local
#define S_FROM staged_from
#define S_ROW(j) (s + min(j, COUNT - 1) * STAGE)
#define S_PLACE(k) ((k) - S_FROM)
#define S_FOURS 1
#else
#define S_SPACE INNER_SPACE
#define S_FROM 0
#define S_ROW(j) (s + min(j, COUNT - 1) * sJ)
#define S_PLACE(k) ((k) * sK)
#define S_FOURS S_VECTOR
#endif
#if !L_ALONG_K || V == 1
#define S_VALUE(j, k) ((ACC_T)S_LOAD(S_ROW(j), S_PLACE(k)))
#elif S_FOURS
#define S_VALUE(j, k) S_LOAD4(S_ROW(j), (k) - S_FROM)
#else
#define S_VALUE(j, k) \
  ((ACCV)((ACC_T)S_LOAD(S_ROW(j), S_PLACE(k)), (ACC_T)S_LOAD(S_ROW(j), S_PLACE((k) + 1)), \
          (ACC_T)S_LOAD(S_ROW(j), S_PLACE((k) + 2)), (ACC_T)S_LOAD(S_ROW(j), S_PLACE((k) + 3))))
#endif
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
  const int kfrom = split * KSLICE, kto = min(K, kfrom + KSLICE), own = kfrom + lane * WIDE;
  const int place = min(first + row, R - V / WIDE);
#ifdef L_COMPUTED
#define L_VALUE(x, k) ACCV x; L_COMPUTED(x, place, k)
#else
#define L_VALUE(x, k) const ACCV x = L_READ(l, (k) * lK);
  __global const L_T* l = BATCH_ENTRY(pL, lOff, l0, l1, l2) + place * lR;
#endif
#if EARLY
#ifdef L_COMPUTED
  ACCV early[EARLY];
#define BEGIN_LOAD(e, k) L_COMPUTED(early[e], place, k)
#else
  L_RAW early[EARLY];
#define BEGIN_LOAD(e, k) early[e] = *(__global const L_RAW*)(l + (k) * lK);
#endif
// The last loads of a slice may be fewer than it begins: these read its end again, and do not count.
#define LOAD_AT(k) (WHOLE ? (k) : min((k), kto - WIDE))
#pragma unroll
  for (int e = 0; e < EARLY; ++e) {
    const int k = LOAD_AT(own + e * STEP);
    BEGIN_LOAD(e, k)
  }
#if defined(INNER_MADE) && defined(KCL_PTX)
  // NVIDIA's assembler moves loads down to their use; what has an effect it leaves in its place.
  asm volatile("bar.warp.sync -1;" ::: "memory");
#endif
#ifdef EPILOGUE_READ
  EPILOGUE_KEPT
  EPILOGUE_READ((INDEX_T)batch * R + min(first + tid % ROWS, R - 1) * oR)
#endif
#endif
// The inner parameter may be made here.
#if STAGE && !defined(INNER_MADE)
  __local S_WORD staged_[SHORT * STAGE] __attribute__((aligned(32)));
  __global const S_T* inner_ = BATCH_ENTRY(pS, sOff, s0, s1, s2);
  __local const S_T* s = (__local const S_T*)staged_;
  int staged_from = kfrom;
#if COPY_FOURS
#define COPIED CAT4(S_WORD)
#define COPY_WIDE 4
#else
#define COPIED S_WORD
#define COPY_WIDE 1
#endif
// Element `at` of those that are copied; what lies behind the last is that once more.
#define COPY_PLACE(at) \
  const int copy_ = min(at, COUNT * (STAGE / COPY_WIDE) - 1), j_ = copy_ / (STAGE / COPY_WIDE); \
  const int k_ = min(staged_from + copy_ % (STAGE / COPY_WIDE) * COPY_WIDE, kto - COPY_WIDE);
#else
  INNER_SPACE const S_T* s = BATCH_ENTRY(pS, sOff, s0, s1, s2);
#endif
  ACCV sum[SHORT];
#pragma unroll
  for (int j = 0; j < SHORT; ++j) sum[j] = 0;
#if EARLY
#if !STAGE && !defined(INNER_MADE)
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
// Sums loads `first` to `last` of a block, and begins those of the next block in their place.
#define TAKE(first, last) \
  _Pragma("unroll") for (int e = first; e < last; ++e) { \
    const int k = LOAD_AT(from + e * STEP); \
    const ACCV x = L_KNOWN(early[e]); \
    _Pragma("unroll") for (int j = 0; j < SHORT; ++j) \
      if (WHOLE || from + e * STEP < kto) sum[j] += x * S_VALUE(j, k); \
  } \
  if (block + 1 < BLOCKS) { \
    _Pragma("unroll") for (int e = first; e < last; ++e) { \
      const int k = LOAD_AT(from + (EARLY + e) * STEP); \
      BEGIN_LOAD(e, k) \
    } \
  }
  _Pragma("nounroll")
  for (int block = 0; block < BLOCKS; ++block) {
    const int from = own + block * EARLY * STEP;
#if STAGE && !defined(INNER_MADE)
    if (block % SPAN == 0) {
      staged_from = kfrom + block * EARLY * STEP;
      if (block) barrier(CLK_LOCAL_MEM_FENCE);
      for (int c0 = tid; c0 < COUNT * (STAGE / COPY_WIDE); c0 += 4 * THREADS) {
        COPIED copied[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          COPY_PLACE(c0 + c * THREADS)
          copied[c] = *(__global const COPIED*)(inner_ + j_ * sJ + k_ * sK);
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          COPY_PLACE(c0 + c * THREADS)
          *(__local COPIED*)(staged_ + j_ * STAGE + k_ - staged_from) = copied[c];
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
    TAKE(0, (EARLY + 1) / 2)
    TAKE((EARLY + 1) / 2, EARLY)
  }
#else
  _Pragma(UNROLL)
  for (int k = own; k < kto; k += STEP) {
    L_VALUE(x, k)
#pragma unroll
    for (int j = 0; j < SHORT; ++j) sum[j] += x * S_VALUE(j, k);
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
