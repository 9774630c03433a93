// The product kernel of CPUs: MR rows x NV vectors of VL columns stay in registers while the depth
// streams by.  One work-item is one thread; no barriers, no local memory.
#define CAT_(x, y) x##y
#define CAT(x, y) CAT_(x, y)
#define V CAT(ACC_T, VL)
#define VLOAD CAT(vload, VL)
#define VSTORE CAT(vstore, VL)
#define NR (NV * VL)
#define ONE_THREAD __attribute__((reqd_work_group_size(1, 1, 1)))

#if ACC_FLOAT && defined(FP_FAST_FMAF) && !defined(NO_FMA)
#define MULADD_V(x, y, z) fma(x, y, z)
#else
#define MULADD_V(x, y, z) ((x) * (y) + (z))
#endif
#define MULADD(x, y, z) MULADD_V((V)(x), y, z)

#define MICRO_ALL \
  _Pragma("unroll") for (int r_ = 0; r_ < MR; ++r_) \
    _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_)

// LONG: a sum of very many terms loses what one of SUMS of them keeps, so those are summed.
#ifdef LONG
#define SUMS 256
#define MICRO_ZERO \
  V c_[MR][NV], all_c_[MR][NV]; \
  int terms_ = 0; \
  MICRO_ALL { c_[r_][v_] = (V)(0); all_c_[r_][v_] = (V)(0); }
#define MICRO_SUM(n) \
  terms_ += (n); \
  if (terms_ >= SUMS) { \
    terms_ = 0; \
    MICRO_ALL { all_c_[r_][v_] += c_[r_][v_]; c_[r_][v_] = (V)(0); } \
  }
#define MICRO_TOTAL MICRO_ALL c_[r_][v_] += all_c_[r_][v_];
#else
#define MICRO_ZERO \
  V c_[MR][NV]; \
  MICRO_ALL c_[r_][v_] = (V)(0);
#define MICRO_SUM(n)
#define MICRO_TOTAL
#endif

// One step of the depth: row r takes A_EL(r), the columns lie at b (elements of ACC_T).
#define MICRO_STEP(A_EL, b) { \
  V b_[NV]; \
  _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_) b_[v_] = VLOAD(v_, b); \
  _Pragma("unroll") for (int r_ = 0; r_ < MR; ++r_) { \
    const ACC_T x_ = A_EL(r_); \
    _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_) c_[r_][v_] = MULADD(x_, b_[v_], c_[r_][v_]); \
  } }

// `count` steps of the depth k, before each of which stands `before`, and after each of which `next`
// (b, at least) moves on.
#ifdef LONG
#define MICRO_STEPS(count, A_EL, b, next, before) \
  for (int k = 0, end_; k < (count);) { \
    const int from_ = k; \
    end_ = min(count, k + SUMS); \
    for (; k < end_; ++k, next) { before MICRO_STEP(A_EL, b) } \
    MICRO_SUM(end_ - from_) \
  }
#else
#define MICRO_STEPS(count, A_EL, b, next, before) \
  for (int k = 0; k < (count); ++k, next) { before MICRO_STEP(A_EL, b) }
#endif

// The sums of one part of the depth: those of the parts before are added from memory, all are left
// there.
#define MICRO_ADD(from) MICRO_ALL c_[r_][v_] += VLOAD(r_ * NV + v_, from);
#define MICRO_LEAVE(to) \
  MICRO_TOTAL \
  MICRO_ALL VSTORE(c_[r_][v_], r_ * NV + v_, to);

// Fetches a line of memory into the second-level cache, if the compiler knows how.
#if defined(__has_builtin) && !defined(NO_PREFETCH)
#if __has_builtin(__builtin_prefetch)
#define MICRO_FETCH(p) __builtin_prefetch((const void*)(size_t)(p), 0, 2);
#endif
#endif
#ifndef MICRO_FETCH
#define MICRO_FETCH(p)
#endif

// Spills the sums to t_[MR][NR], where the epilogue's loops find them.
#define MICRO_SPILL \
  MICRO_TOTAL \
  ACC_T t_[MR][NR] __attribute__((aligned(64))); \
  MICRO_ALL VSTORE(c_[r_][v_], v_, t_[r_]);

// Hands columns [from, to) of row r to the epilogue, at output index `at` + column * `step`.  Whole
// rows have a loop of their own, which compilers turn into vectors; they have to be told that an
// output may be one of the inputs only element by element.  Intel's dies (signal 11) where it would
// unroll three vectors of 16 with a function of what is read.
#define MICRO_ROW(r, from, to, at, step) \
  if ((to) - (from) == NR) { \
    _Pragma("clang loop vectorize(assume_safety) unroll(disable)") \
    for (int j_ = 0; j_ < NR; ++j_) EPILOGUE(t_[r][j_], (at) + j_ * (step)) \
  } else { \
    for (int j_ = (from); j_ < (to); ++j_) EPILOGUE(t_[r][j_], (at) + j_ * (step)) \
  }
