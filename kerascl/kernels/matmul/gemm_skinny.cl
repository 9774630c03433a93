// Products with one short side (matrix times a few vectors): limited by reading the long operand.
// Long operand l[r, k], short operand s[j, k] with COUNT <= SHORT rows.  A work-group sums ROWS rows
// with LANES partial sums to each.  A load takes V neighbours of l, along k (L_ALONG_K) or along r,
// whichever is contiguous; S_VECTOR: those of s lie together, too.
// What multiplies stands before this text (skinny_lanes.cl, units/skinny_mma.cl):
//   PLACES         declares the `row` of the group and the `lane` of a work-item's loads
//   OWN            where its depth begins in a slice; WIDE: how much of the depth a load takes
//   GATHER STEP    so many loads are multiplied at once, and the next ones are STEP deeper
//   DEPTH(e)       where load `e` of a block lies, from the work-item's first one on
//   EARLY_LOADS BEGIN_LOAD(e, k)   the loads that are under way
//   SUMS           declares sums of 0
//   MULTIPLY(e, from)   adds products of the GATHER loads from `e` on of the block at depth `from`
//   BEGIN_GROUPS HALF MULTIPLY_LOADS(first, last, from)   where elements have groups: finds those of the
//                  first block; so many loads are multiplied before any is read anew; multiplies these
//   KEEP(j0)       puts sums of the rows of s from j0 on into PART
//   ALL_IN_TURN    instead, where EARLY is 0
// EARLY loads of l are under way at once.  The first come before anything is done with s, which may still
// have to be made or is copied to local memory (STAGE elements a row, those of SPAN blocks, PITCH apart):
// compilers put a load right before its use, so that each would wait for the one before, but not across a
// barrier.  Where a slice has more, BLOCKS of as many, each half of them is read anew as soon as it is used,
// before the other half is.  L_NAMES: the parameters that l is read from.
// This is the body of a kernel whose parameters the planner lists, so that several may share a launch.
#define BATCH_ENTRY(p, Off, s0, s1, s2) \
  ((p) + (Off) + (batch / B2 / B1) * (s0) + (batch / B2 % B1) * (s1) + (batch % B2) * (s2))
#define THREADS 256
#define CAT(t, n) CAT_(t, n)
#define CAT_(t, n) t##n
#if STAGE && !defined(INNER_MADE)
#define S_SPACE __local
#define S_FROM staged_from
#define S_ROW(j) (s + min(j, COUNT - 1) * PITCH)
#define S_PLACE(k) ((k) - S_FROM)
#else
#define S_SPACE INNER_SPACE
#define S_FROM 0
#define S_ROW(j) (s + min(j, COUNT - 1) * sJ)
#define S_PLACE(k) ((k) * sK)
#endif
// Local memory holds the sums of TOGETHER rows of s, where what was copied of s is no longer needed; then
// some work-items to each result add them up.
#define PART(j, lane, row) part_[((j) * LANES + (lane)) * ROWS + (row)]
#define RESULTS (TOGETHER * ROWS)
#define ADDERS (RESULTS * 2 <= THREADS ? THREADS / RESULTS : 1)

#if STAGE && !defined(INNER_MADE)
#define PARTS_AFTER 1
  __local uchar memory_[LOCAL_BYTES] __attribute__((aligned(32)));
  __local ACC_T* part_ = (__local ACC_T*)memory_;
#else
#define PARTS_AFTER 0
  __local ACC_T part_[RESULTS * LANES] __attribute__((aligned(32)));
#endif
  const int tid = get_local_id(0);
  PLACES
  const int blocks = (R + ROWS - 1) / ROWS;
  int g_ = get_group_id(0);
  const int first = g_ % blocks * ROWS; g_ /= blocks;
  const int split = g_ % SPLITS, batch = g_ / SPLITS;
  const int kfrom = split * KSLICE, kto = min(K, kfrom + KSLICE), own = kfrom + OWN;
  const int place = min(first + row, R - V / WIDE);
#ifndef L_COMPUTED
  __global const L_T* l = BATCH_ENTRY(pL, lOff, l0, l1, l2) + place * lR;
#endif
#if EARLY
  EARLY_LOADS
// The last loads of a slice may be fewer than it begins: these read its end again, and do not count.
#define LOAD_AT(k) (WHOLE ? (k) : min((k), kto - WIDE))
#pragma unroll
  for (int e = 0; e < EARLY; ++e) {
    const int k = LOAD_AT(own + DEPTH(e));
    BEGIN_LOAD(e, k)
  }
#ifdef BEGIN_GROUPS
  __local int mixed_;  // whether elements of a run have several groups
  BEGIN_GROUPS
#endif
#ifdef KCL_EARLY
  KCL_EARLY(L_NAMES);
#elif defined(INNER_MADE) && defined(KCL_PTX)
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
  __local S_WORD* staged_ = (__local S_WORD*)memory_;
  __global const S_T* inner_ = BATCH_ENTRY(pS, sOff, s0, s1, s2);
  __local const S_T* s = (__local const S_T*)staged_;
  int staged_from = kfrom;
#if COPY_FOURS
#define COPIED CAT(S_WORD, 4)
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
  SUMS
#if EARLY
#if !STAGE && !defined(INNER_MADE)
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
// Sums loads `first` to `last` of a block, and begins those of the next block in their place.
#ifndef HALF
#define HALF ((EARLY / GATHER + 1) / 2 * GATHER)
#define MULTIPLY_LOADS(first, last, from) \
  _Pragma("unroll") for (int e = first; e < last; e += GATHER) { MULTIPLY(e, from) }
#endif
#define TAKE(first, last) \
  MULTIPLY_LOADS(first, last, from) \
  if (block + 1 < BLOCKS) { \
    _Pragma("unroll") for (int e = first; e < last; ++e) { \
      const int k = LOAD_AT(from + DEPTH(EARLY + e)); \
      BEGIN_LOAD(e, k) \
    } \
  }
  _Pragma("nounroll")
  for (int block = 0; block < BLOCKS; ++block) {
    const int from = own + block * DEPTH(EARLY);
#if STAGE && !defined(INNER_MADE)
    if (block % SPAN == 0) {
      staged_from = kfrom + block * DEPTH(EARLY);
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
          *(__local COPIED*)(staged_ + j_ * PITCH + k_ - staged_from) = copied[c];
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
    TAKE(0, HALF)
#ifndef BEGIN_GROUPS
    TAKE(HALF, EARLY)
#endif
  }
#else
  ALL_IN_TURN
#endif
#pragma unroll
  for (int j0 = 0; j0 < SHORT; j0 += TOGETHER) {
    if (j0 || PARTS_AFTER) barrier(CLK_LOCAL_MEM_FENCE);
    KEEP(j0)
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
