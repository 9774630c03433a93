// How work-items of gemm_skinny.cl multiply by themselves: neighbours load what lies side by side, each
// sums its own share of the depth.  S_VECTOR: V neighbours of s along k lie together.
// With L_COMPUTED(x, first, r, k), l does not lie in memory: that sets x to V neighbours, of which along r
// there may be eight; else V is 4 or 1.  L_FIRST(first, r, k) loads into a struct of L_FIRSTS what does not
// wait for other loads: it is what lies in memory of l, and is under way early in its place.
// With L_GROUP, elements have groups, named by keys of the depth (L_KEY loads L_KEYS, L_DIFFER compares
// them): L_FIND finds what elements of a group share, L_LOAD is what L_FIRST loads but for keys, and
// L_SHARED is L_COMPUTED with both. Elements that follow each other along the depth mostly are of one group:
// where all of a run are, a load's neighbours or else a work-item's loads, the group is found once for these.
#if V > 1
#define ACCV CAT(ACC_T, V)
#define L_READ(p, i) L_LOAD4(p, i)
#define L_RAW CAT(L_WORD, 4)
#define L_STORED(raw) RAW_LOAD4((const __private L_T*)&(raw), 0)
#else
#define ACCV ACC_T
#define L_READ(p, i) ((ACC_T)L_LOAD(p, i))
#define L_RAW L_WORD
#define L_STORED(raw) ((ACC_T)L_LOAD((const __private L_T*)&(raw), 0))
#endif
#if L_ALONG_K
#define STEP (LANES * V)
#define WIDE V
#define PLACES const int lane = tid % LANES, row = tid / LANES;
#else
#define STEP LANES
#define WIDE 1
#define PLACES const int row = tid % (ROWS / V) * V, lane = tid / (ROWS / V);
#endif
#define GATHER 1
#if defined(L_GROUP) && EARLY && !L_ALONG_K
#define OWN (lane * EARLY)
#define DEPTH(e) ((e) / EARLY * EARLY * STEP + (e) % EARLY)
#else
#define OWN (lane * WIDE)
#define DEPTH(e) ((e) * STEP)
#endif
#ifdef L_COMPUTED
#define L_KNOWN(x, e, k) ACCV x; L_COMPUTED(x, early[e], place, k)
#define L_VALUE(x, k) \
  ACCV x; \
  struct { L_FIRSTS } own_first; \
  L_FIRST(own_first, place, k) L_COMPUTED(x, own_first, place, k)
#if defined(L_GROUP) && EARLY
#define EARLY_LOADS struct { L_OWNS } early[EARLY];
#define BEGIN_LOAD(e, k) L_OWN(early[e], place, k)
#else
#define EARLY_LOADS struct { L_FIRSTS } early[EARLY];
#define BEGIN_LOAD(e, k) L_FIRST(early[e], place, k)
#endif
#else
#define L_KNOWN(x, e, k) const ACCV x = L_STORED(early[e]);
#define L_VALUE(x, k) const ACCV x = L_READ(l, (k) * lK);
#define EARLY_LOADS L_RAW early[EARLY];
#define BEGIN_LOAD(e, k) early[e] = *(__global const L_RAW*)(l + (k) * lK);
#endif
#if !L_ALONG_K || V == 1
#define S_VALUE(j, k) ((ACC_T)S_LOAD(S_ROW(j), S_PLACE(k)))
#else
#if S_VECTOR || (STAGE && !defined(INNER_MADE))
#define S_FOUR(j, k) S_LOAD4(S_ROW(j), (k) - S_FROM)
#else
#define S_FOUR(j, k) \
  ((CAT(ACC_T, 4))( \
      (ACC_T)S_LOAD(S_ROW(j), S_PLACE(k)), (ACC_T)S_LOAD(S_ROW(j), S_PLACE((k) + 1)), \
      (ACC_T)S_LOAD(S_ROW(j), S_PLACE((k) + 2)), (ACC_T)S_LOAD(S_ROW(j), S_PLACE((k) + 3))))
#endif
#if V == 8
#define S_VALUE(j, k) ((ACCV)(S_FOUR(j, k), S_FOUR(j, (k) + 4)))
#else
#define S_VALUE(j, k) S_FOUR(j, k)
#endif
#endif
#define SUMS \
  ACCV sum[SHORT]; \
  _Pragma("unroll") for (int j = 0; j < SHORT; ++j) sum[j] = 0;
#define MULTIPLY(e, from) { \
  const int k = LOAD_AT(from + DEPTH(e)); \
  L_KNOWN(x, e, k) \
  _Pragma("unroll") for (int j = 0; j < SHORT; ++j) \
    if (WHOLE || from + DEPTH(e) < kto) sum[j] += x * S_VALUE(j, k); \
}
#if defined(L_GROUP) && EARLY
#if L_ALONG_K
#define RUN V
#define GROUPS EARLY
#else
#define RUN EARLY
#define GROUPS 1
#endif
#define HALF EARLY
#define FIND_GROUPS(from) \
  _Pragma("unroll") for (int e = 0; e < GROUPS; ++e) { L_FIND(group_[e], place, LOAD_AT((from) + DEPTH(e))) }
#define BEGIN_GROUPS \
  struct { L_GROUP } group_[GROUPS]; \
  FIND_GROUPS(own) \
  barrier(CLK_LOCAL_MEM_FENCE); \
  if (tid == 0) mixed_ = 0; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int k = kfrom + tid * WIDE; k < kto; k += THREADS * WIDE) { \
    struct { L_KEYS } key_, first_; \
    L_KEY(key_, 0, k) \
    L_KEY(first_, 0, kfrom + (k - kfrom) / RUN * RUN) \
    if (L_DIFFER(key_, first_)) mixed_ = 1; \
  } \
  barrier(CLK_LOCAL_MEM_FENCE);
#define MULTIPLY_LOADS(first, last, from) \
  if (!mixed_) { \
    _Pragma("unroll") for (int e = 0; e < EARLY; ++e) { \
      const int k = LOAD_AT(from + DEPTH(e)); \
      ACCV x; \
      L_SHARED(x, early[e], group_[e % GROUPS], place, k) \
      _Pragma("unroll") for (int j = 0; j < SHORT; ++j) \
        if (WHOLE || from + DEPTH(e) < kto) sum[j] += x * S_VALUE(j, k); \
    } \
    if (block + 1 < BLOCKS) { FIND_GROUPS(from + DEPTH(EARLY)) } \
  } else { \
    _Pragma("nounroll") for (int e = 0; e < EARLY; ++e) { \
      const int k = from + DEPTH(e); \
      if (k < kto) { \
        L_VALUE(x, k) \
        _Pragma("unroll") for (int j = 0; j < SHORT; ++j) sum[j] += x * S_VALUE(j, k); \
      } \
    } \
  }
#endif
#define ALL_IN_TURN \
  _Pragma(UNROLL) for (int k = own; k < kto; k += STEP) { \
    L_VALUE(x, k) \
    _Pragma("unroll") for (int j = 0; j < SHORT; ++j) sum[j] += x * S_VALUE(j, k); \
  }
#if V == 1
#define KEEP_SUM(j, sum_) PART(j, lane, row) = sum_;
#elif L_ALONG_K && V == 8
#define KEEP_SUM(j, sum_) { \
  const CAT(ACC_T, 4) four_ = sum_.lo + sum_.hi; \
  PART(j, lane, row) = (four_.s0 + four_.s1) + (four_.s2 + four_.s3); \
}
#elif L_ALONG_K
#define KEEP_SUM(j, sum_) PART(j, lane, row) = (sum_.s0 + sum_.s1) + (sum_.s2 + sum_.s3);
#else
#define KEEP_SUM(j, sum_) CAT(vstore, V)(sum_, 0, &PART(j, lane, row));
#endif
#define KEEP(j0) \
  _Pragma("unroll") for (int j = 0; j < TOGETHER; ++j) { KEEP_SUM(j, sum[j0 + j]) }
