// Tile product on matrix units that a sub-group drives: c[BM][BN] += a[BM][k] * b[k][BN] by
// instructions on fragments, the operands copied into a ring of STAGES tiles in local memory.
//
// Shared by GEMM and by convolution as an implicit GEMM.  The including source defines
//   EB                    bytes of an element, which ELEMENT holds
//   MMA(d, a, b)          the instruction, FRAGMENT_M FRAGMENT_N FRAGMENT_K its sizes, LANES of the
//                         sub-group, A_WORDS B_WORDS SUMS what a lane holds, and UNIT_ATTRIBUTES of
//                         the kernel (fragment.py)
//   LB, PRODUCTS          bytes of an element as it takes them, and how many products are summed
//   SETS                  of fragments in registers
//   BM BN BK WM WN STAGES tile, depth of a stage, a sub-group's tile, stages
//   A_ALONG_K B_ALONG_K   whether neighbours of a copy are of k (else of m or n)
//   A_CE B_CE             elements of one copy, neighbours along that axis
//   A_COPY B_COPY         how they are copied: FULL<bytes> all of them, SOME<bytes> all or none,
//                         PART<bytes> the first n
//   A_WHOLE B_WHOLE       no copy is ever short: rows past the end are read from the last ones
//   PARAMS, GROUP_SETUP   as for gemm_tile.cl, and OUT_ROW, OUT_AT
//   M_FAST                whether neighbouring rows are neighbours in memory of the output
//   X_ROW_T, X_ROW(x, m), X_DEPTH_T, X_DEPTH(x, k), X_NEXT(x) or X_NEXT_FROM(x, k), X_AT(row, depth),
//   X_COUNT(row, depth)   for X in A and B: where a row (column) and a depth lie, the next tile's
//                         depth, an element's index, and how many of X_CE elements are there (the
//                         others read as zero)
// and before this, how data move (nv_sm80.cl, mma_plain.cl):
//   MOVES, PLACES         variables of a work-item, before and after its place (wm, wn) is known
//   LOCAL_ADDRESS(s, p)   s is what places in local memory are counted from
//   LOADING(at)           a stage's copies begin
//   COPY_K(X, at, s, r, b, row, depth), COPY_MN(X, WIDE, at, s, k, b, row, depth)
//                         slot s of operand X: X_CE elements from byte b of row r, or depth k, on
//   COMMIT, WAIT(n)       ends the copies of a stage; waits for all stages' but the last n
//   SYNC                  a barrier of the work-group
//   LANE_ANEW             if defined, a statement after which places in local memory are found anew
//   FRAGMENTS_A, FRAGMENTS_B(f, at, s)
//                         step s of a stage into fa[f], fb[f]
//   ROUNDED(x)            if defined, what becomes of their words
//   LDC, KEEP_SUMS(results, acc)
//                         a sub-group's sums into rows of LDC accumulators (ACC_T, of 4 bytes)
#define NT ((BM / WM) * (BN / WN) * LANES)
#define MI (WM / FRAGMENT_M)
#define NI (WN / FRAGMENT_N)
#define KB (BK * EB)
#define SA (BM * KB)
#define SB (BN * KB)
#define KSTEPS (PRODUCTS * (BK / FRAGMENT_K))  // an even number where there are two SETS
#define RING (STAGES * (SA + SB))
#define OUT_BYTES (WM * LDC * 4 + WM * 8)
#define LOCAL_BYTES (RING > OUT_BYTES ? RING : OUT_BYTES)
#define UNROLL _Pragma("unroll")
#ifndef LANE_ANEW
#define LANE_ANEW
#endif

// One operand X in {A, B}: its tile has WIDE rows, AT is its place in a stage.
#define SLOTS(X, WIDE) (WIDE * BK / X##_CE)
#define PER(X, WIDE) ((SLOTS(X, WIDE) + NT - 1) / NT)
#define HAS(X, WIDE, e) (SLOTS(X, WIDE) % NT == 0 || (e) < SLOTS(X, WIDE))
#define K_OF(X, e) ((e) % (BK / X##_CE) * X##_CE)
#define ROW_K(X, e) ((e) / (BK / X##_CE))
#define K_MN(X, WIDE, e) ((e) / (WIDE / X##_CE))
#define ROW_MN(X, WIDE, e) ((e) % (WIDE / X##_CE) * X##_CE)
#define LOAD_K(X, WIDE, at, rows, depth) \
  UNROLL for (int s_ = 0; s_ < PER(X, WIDE); ++s_) { \
    const uint e_ = tid + s_ * NT, r_ = ROW_K(X, e_), b_ = K_OF(X, e_) * EB; \
    if (HAS(X, WIDE, e_)) COPY_K(X, at, s_, r_, b_, rows[s_], depth) \
  }
#define LOAD_MN(X, WIDE, at, rows, k0) \
  UNROLL for (int s_ = 0; s_ < PER(X, WIDE); ++s_) { \
    const uint e_ = tid + s_ * NT, k_ = K_MN(X, WIDE, e_), b_ = ROW_MN(X, WIDE, e_) * EB; \
    if (HAS(X, WIDE, e_)) { \
      X##_DEPTH_T depth_; \
      X##_DEPTH(depth_, (k0) + k_) \
      COPY_MN(X, WIDE, at, s_, k_, b_, rows[0], depth_) \
    } \
  }

#if A_ALONG_K
#define LOAD_A(at, k0) LOAD_K(A, BM, at, rowsA, depthA)
#else
#define LOAD_A(at, k0) LOAD_MN(A, BM, at, rowsA, k0)
#endif
#if B_ALONG_K
#define LOAD_B(at, k0) LOAD_K(B, BN, at, rowsB, depthB)
#else
#define LOAD_B(at, k0) LOAD_MN(B, BN, at, rowsB, k0)
#endif

#if !A_ALONG_K
#define STEP_A(k)
#elif defined(A_NEXT)
#define STEP_A(k) A_NEXT(depthA)
#else
#define STEP_A(k) A_NEXT_FROM(depthA, (k) + K_OF(A, tid))
#endif
#if !B_ALONG_K
#define STEP_B(k)
#elif defined(B_NEXT)
#define STEP_B(k) B_NEXT(depthB)
#else
#define STEP_B(k) B_NEXT_FROM(depthB, (k) + K_OF(B, tid))
#endif
// The tile at depth `next` into a stage; then `next` is that of the one after it.
#define LOAD(stage) { \
  LOADING(ring + (stage) * (SA + SB)) \
  LOAD_A(ring + (stage) * (SA + SB), next) \
  LOAD_B(ring + (stage) * (SA + SB) + SA, next) \
  next += BK; \
  STEP_A(next) \
  STEP_B(next) \
}

#define FRAGMENTS(f, at, s) { FRAGMENTS_A(f, at, s) FRAGMENTS_B(f, at, s) }

__kernel UNIT_ATTRIBUTES __attribute__((reqd_work_group_size(NT, 1, 1))) void mma_tile(
    __global const ELEMENT* restrict pA, __global const ELEMENT* restrict pB PARAMS EPILOGUE_PARAMS) {
  __local uint memory[LOCAL_BYTES / 4] __attribute__((aligned(128)));
  GROUP_SETUP
  uint ring;
  LOCAL_ADDRESS(ring, &memory[0]);
  uint tid = (uint)get_local_id(0);
  int lane = tid % LANES;
  MOVES
  const int wm = tid / LANES % (BM / WM) * WM, wn = tid / LANES / (BM / WM) * WN;
  PLACES

#if A_ALONG_K
  A_ROW_T rowsA[PER(A, BM)];
  UNROLL for (int s = 0; s < PER(A, BM); ++s) { A_ROW(rowsA[s], row0 + ROW_K(A, tid + s * NT)) }
  A_DEPTH_T depthA;
  A_DEPTH(depthA, kfrom + K_OF(A, tid))
#else
  A_ROW_T rowsA[1];
  A_ROW(rowsA[0], row0 + ROW_MN(A, BM, tid))
#endif
#if B_ALONG_K
  B_ROW_T rowsB[PER(B, BN)];
  UNROLL for (int s = 0; s < PER(B, BN); ++s) { B_ROW(rowsB[s], col0 + ROW_K(B, tid + s * NT)) }
  B_DEPTH_T depthB;
  B_DEPTH(depthB, kfrom + K_OF(B, tid))
#else
  B_ROW_T rowsB[1];
  B_ROW(rowsB[0], col0 + ROW_MN(B, BN, tid))
#endif

  ACC_T acc[MI][NI][SUMS];
  UNROLL for (int i = 0; i < MI; ++i)
    UNROLL for (int j = 0; j < NI; ++j)
      UNROLL for (int v = 0; v < SUMS; ++v) acc[i][j][v] = 0;

  const int tiles = (kto - kfrom + BK - 1) / BK;
  int next = kfrom;
  UNROLL for (int s = 0; s < STAGES - 1; ++s) {
    if (s < tiles) LOAD(s)
    COMMIT;
  }
  WAIT(STAGES - 2);
  SYNC;
  uint fa[SETS][MI][A_WORDS], fb[SETS][NI][B_WORDS];
  if (SETS == 2) FRAGMENTS(0, ring, 0)
  int cur = 0, fill = STAGES - 1;
  for (int kt = 0; kt < tiles; ++kt) {
    UNROLL for (int s = 0; s < KSTEPS; ++s) {
      // The next fragments travel while these are multiplied; the barrier frees the oldest stage.
      if (SETS == 1) {
        FRAGMENTS(0, ring + cur * (SA + SB), s)
      } else if (s < KSTEPS - 1) {
        FRAGMENTS((s + 1) % SETS, ring + cur * (SA + SB), s + 1)
      }
      if (s == KSTEPS - 1) {
        WAIT(STAGES - 2);
        SYNC;
        cur = cur + 1 == STAGES ? 0 : cur + 1;
        if (SETS == 2) FRAGMENTS((s + 1) % SETS, ring + cur * (SA + SB), 0)
      }
      if (s == 0) {
        if (kt + STAGES - 1 < tiles) LOAD(fill)
        COMMIT;
        fill = fill + 1 == STAGES ? 0 : fill + 1;
      }
#ifdef ROUNDED
      UNROLL for (int j = 0; j < NI; ++j)
        UNROLL for (int v = 0; v < B_WORDS; ++v) fb[s % SETS][j][v] = ROUNDED(fb[s % SETS][j][v]);
#endif
      UNROLL for (int i = 0; i < MI; ++i) {
#ifdef ROUNDED
        UNROLL for (int v = 0; v < A_WORDS; ++v) fa[s % SETS][i][v] = ROUNDED(fa[s % SETS][i][v]);
#endif
        UNROLL for (int j = 0; j < NI; ++j) MMA(acc[i][j], fa[s % SETS][i], fb[s % SETS][j]);
      }
    }
    LANE_ANEW
  }
  // Results go through local memory, WM rows at a time: neighbouring work-items then read and write
  // neighbouring elements, whatever the epilogue does.
  WAIT(0);
  __local ACC_T* results = (__local ACC_T*)memory;
  __local INDEX_T* rowAt = (__local INDEX_T*)(memory + WM * LDC);
  for (int pass = 0; pass < BM / WM; ++pass) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (wm == pass * WM) KEEP_SUMS(results, acc)
    for (uint r = tid; r < WM; r += NT) {
      const int m = row0 + pass * WM + r;
      INDEX_T at = -1;
      if (m < M) {
        OUT_ROW(m)
        at = outRow;
      }
      rowAt[r] = at;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 4
    for (uint e = tid; e < WM * BN; e += NT) {
      const uint r = M_FAST ? e % WM : e / BN, c = M_FAST ? e / WM : e % BN;
      const int n = col0 + c;
      const INDEX_T outRow = rowAt[r];
      if (outRow >= 0 && n < N) EPILOGUE(results[r * LDC + c], OUT_AT(n))
    }
  }
}
