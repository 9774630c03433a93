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

#define MICRO_ZERO \
  V c_[MR][NV]; \
  _Pragma("unroll") for (int r_ = 0; r_ < MR; ++r_) \
    _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_) c_[r_][v_] = (V)(0);

// One step of the depth: row r takes A_EL(r), the columns lie at b (elements of ACC_T).
#define MICRO_STEP(A_EL, b) { \
  V b_[NV]; \
  _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_) b_[v_] = VLOAD(v_, b); \
  _Pragma("unroll") for (int r_ = 0; r_ < MR; ++r_) { \
    const ACC_T x_ = A_EL(r_); \
    _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_) c_[r_][v_] = MULADD(x_, b_[v_], c_[r_][v_]); \
  } }

// Spills the sums to t_[MR][NR], where the epilogue's loops find them.
#define MICRO_SPILL \
  ACC_T t_[MR][NR]; \
  _Pragma("unroll") for (int r_ = 0; r_ < MR; ++r_) \
    _Pragma("unroll") for (int v_ = 0; v_ < NV; ++v_) VSTORE(c_[r_][v_], v_, t_[r_]);

// Hands columns [from, to) of row r to the epilogue, at output index `at` + column * `step`.  Whole
// rows have a loop of their own, which compilers turn into vectors; they have to be told that an
// output may be one of the inputs only element by element.
#define MICRO_ROW(r, from, to, at, step) \
  if ((to) - (from) == NR) { \
    _Pragma("clang loop vectorize(assume_safety)") \
    for (int j_ = 0; j_ < NR; ++j_) EPILOGUE(t_[r][j_], (at) + j_ * (step)) \
  } else { \
    for (int j_ = (from); j_ < (to); ++j_) EPILOGUE(t_[r][j_], (at) + j_ * (step)) \
  }
