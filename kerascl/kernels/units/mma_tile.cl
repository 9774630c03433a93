// Tile product on NVIDIA's matrix units (compute capability 8.0 and more): mma.sync on fragments of
// c[BM][BN] += a[BM][k] * b[k][BN], the operands copied into a ring of STAGES tiles by cp.async.
//
// Shared by GEMM and by convolution as an implicit GEMM.  The including source defines
//   EB                    bytes of an element: 4 (float, multiplied as TF32) or 2
//   MMA(d, a, b)          the instruction (fragment.py)
//   BM BN BK WM WN STAGES tile, depth of a stage (32 or 64 bytes times 2), warp tile, stages
//   A_ALONG_K B_ALONG_K   whether a tile is stored as rows of k (else as rows of m or n)
//   A_CE B_CE             elements of one copy, neighbours along that axis
//   A_COPY B_COPY         how they are copied: FULL<bytes>, SOME<bytes> or PART<bytes>, see below
//   A_WHOLE B_WHOLE       no copy is ever short: rows past the end are read from the last ones
//   PARAMS, GROUP_SETUP   as for gemm_tile.cl, and OUT_ROW, OUT_AT
//   M_FAST                whether neighbouring rows are neighbours in memory of the output
//   X_ROW_T, X_ROW(x, m), X_DEPTH_T, X_DEPTH(x, k), X_NEXT(x) or X_NEXT_FROM(x, k), X_AT(row, depth),
//   X_COUNT(row, depth)   for X in A and B: where a row (column) and a depth lie, the next tile's
//                         depth, an element's index, and how many of X_CE elements are there (the
//                         others read as zero)
//
// Layouts.  Rows of k: 16-byte chunk c of row r lies at c ^ SWAP_K(r), read by ldmatrix.  Rows of m
// or n: two-byte elements by ldmatrix.trans; four-byte ones by 16-byte loads, so that thread g of a
// fragment holds rows 4g..4g+3 of 32 and the result comes out permuted (ROW_OF, COL_OF).
#define NT ((BM / WM) * (BN / WN) * 32)
#define MI (WM / 16)
#define NI (WN / 8)
#define KB (BK * EB)
#define SA (BM * KB)
#define SB (BN * KB)
#define KSTEPS (KB / 32)
#define LDC (BN + (B_ALONG_K || EB == 2 ? 8 : 4))
#define RING (STAGES * (SA + SB))
#define OUT_BYTES (WM * LDC * 4 + WM * 8)
#define LOCAL_BYTES (RING > OUT_BYTES ? RING : OUT_BYTES)
#define UNROLL _Pragma("unroll")

#define SWAP_K(r) (KB == 64 ? ((r) >> 1) & 3 : (r) & 7)
#define SWAP_MN(k, wide) (EB == 4 ? 2 * ((k) & 3) : (wide) * EB >= 128 ? (k) & 7 : ((k) >> 1) & 3)

#define LOCAL_ADDRESS(s, p) \
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(s) : "l"(p))
#define SYNC asm volatile("bar.sync 0;" ::: "memory")
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
// Copies of so many bytes: FULL all of them, SOME all or (n == 0) zeros, PART the first n.
#define CP16 "cp.async.cg.shared.global.L2::128B [%0], [%1], 16"
#define CP8 "cp.async.ca.shared.global [%0], [%1], 8"
#define CP4 "cp.async.ca.shared.global [%0], [%1], 4"
#define COPY_FULL(text, to, from) asm volatile(text ";" ::"r"(to), "l"(from) : "memory")
#define COPY_SOME(text, to, from, n) \
  asm volatile("{ .reg .pred p; setp.eq.s32 p, %2, 0; " text ", p; }" \
               ::"r"(to), "l"(from), "r"(n) : "memory")
#define COPY_PART(text, to, from, n) \
  asm volatile(text ", %2;" ::"r"(to), "l"(from), "r"(n) : "memory")
#define FULL16(to, p, i, n) COPY_FULL(CP16, to, (p) + (i))
#define FULL8(to, p, i, n) COPY_FULL(CP8, to, (p) + (i))
#define FULL4(to, p, i, n) COPY_FULL(CP4, to, (p) + (i))
#define SOME16(to, p, i, n) COPY_SOME(CP16, to, (p) + (i), n)
#define SOME8(to, p, i, n) COPY_SOME(CP8, to, (p) + (i), n)
#define SOME4(to, p, i, n) COPY_SOME(CP4, to, (p) + (i), n)
#define PART16(to, p, i, n) COPY_PART(CP16, to, (p) + ((n) ? (i) : 0), n)
#define PART8(to, p, i, n) COPY_PART(CP8, to, (p) + ((n) ? (i) : 0), n)
#define PART4(to, p, i, n) COPY_PART(CP4, to, (p) + ((n) ? (i) : 0), n)
#define FULL2(to, p, i, n) SOME2(to, p, i, 2)
#define SOME2(to, p, i, n) { \
  const ushort v_ = (n) ? (p)[i] : (ushort)0; \
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v_) : "memory"); \
}
#define LDM4(d0, d1, d2, d3, at) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \
               : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(at) : "memory")
#define LDM4T(d0, d1, d2, d3, at) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" \
               : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(at) : "memory")
#define LDS4(d0, d1, d2, d3, at) \
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" \
               : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(at) : "memory")

#if EB == 4
// The matrix units take the upper 19 bits.  Before that cut, half a unit of the last bit kept is
// added in the mean: 1.4427 * 2^-12 of the value, which has no bias over mantissas as they occur,
// keeps what TF32 can hold, infinities and NaN, and is one instruction beside the products
// (cvt.rna takes a tenth of the time; adding to the bits turns NaN into zero).
#define ROUNDED(x) as_uint(as_float(x) * 1.00035222f)
#endif

// One operand X in {A, B}: its tile has WIDE rows, AT is its place in a stage.
#define SLOTS(X, WIDE) (WIDE * BK / X##_CE)
#define PER(X, WIDE) ((SLOTS(X, WIDE) + NT - 1) / NT)
#define HAS(X, WIDE, e) (SLOTS(X, WIDE) % NT == 0 || (e) < SLOTS(X, WIDE))
#define K_OF(X, e) ((e) % (BK / X##_CE) * X##_CE)
#define ROW_K(X, e) ((e) / (BK / X##_CE))
#define K_MN(X, WIDE, e) ((e) / (WIDE / X##_CE))
#define ROW_MN(X, WIDE, e) ((e) % (WIDE / X##_CE) * X##_CE)
#define PUT(X, to, row, depth) { \
  const int n_ = X##_COUNT(row, depth); \
  const INDEX_T i_ = X##_AT(row, depth); \
  X##_COPY((to), p##X, i_, n_ * EB); \
}
#define LOAD_K(X, WIDE, at, rows, depth) \
  UNROLL for (int s_ = 0; s_ < PER(X, WIDE); ++s_) { \
    const uint e_ = tid + s_ * NT, r_ = ROW_K(X, e_), b_ = K_OF(X, e_) * EB; \
    if (HAS(X, WIDE, e_)) \
      PUT(X, (at) + r_ * KB + (((b_ / 16) ^ SWAP_K(r_)) * 16) + b_ % 16, rows[s_], depth) \
  }
#define LOAD_MN(X, WIDE, at, rows, k0) \
  UNROLL for (int s_ = 0; s_ < PER(X, WIDE); ++s_) { \
    const uint e_ = tid + s_ * NT, k_ = K_MN(X, WIDE, e_), b_ = ROW_MN(X, WIDE, e_) * EB; \
    if (HAS(X, WIDE, e_)) { \
      X##_DEPTH_T depth_; \
      X##_DEPTH(depth_, (k0) + k_) \
      PUT(X, (at) + k_ * (WIDE * EB) + (((b_ / 16) ^ SWAP_MN(k_, WIDE)) * 16) + b_ % 16, rows[0], \
          depth_) \
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
  LOAD_A(ring + (stage) * (SA + SB), next) \
  LOAD_B(ring + (stage) * (SA + SB) + SA, next) \
  next += BK; \
  STEP_A(next) \
  STEP_B(next) \
}

#if A_ALONG_K
#define FRAGMENTS_A(f, at, s) \
  UNROLL for (int i = 0; i < MI; ++i) \
    LDM4(fa[f][i][0], fa[f][i][1], fa[f][i][2], fa[f][i][3], \
         (at) + placeA + i * 16 * KB + (((2 * (s) + (lane >> 4)) ^ SWAP_K(lane & 15)) * 16));
#define PLACE_A ((wm + (lane & 15)) * KB)
#elif EB == 2
#define FRAGMENTS_A(f, at, s) \
  UNROLL for (int i = 0; i < MI; ++i) \
    LDM4T(fa[f][i][0], fa[f][i][1], fa[f][i][2], fa[f][i][3], \
          (at) + placeA + (s) * 16 * BM * EB + \
              (((wm / 8 + 2 * i + ((lane >> 3) & 1)) ^ SWAP_MN(lane & 7, BM)) * 16));
#define PLACE_A (((lane & 7) + 8 * (lane >> 4)) * BM * EB)
#else
#define FRAGMENTS_A(f, at, s) \
  UNROLL for (int i = 0; i < MI; i += 2) { \
    const uint p_ = (at) + placeA + (s) * 8 * BM * EB + i * 64; \
    LDS4(fa[f][i][0], fa[f][i][1], fa[f][i + 1][0], fa[f][i + 1][1], p_); \
    LDS4(fa[f][i][2], fa[f][i][3], fa[f][i + 1][2], fa[f][i + 1][3], p_ + 4 * BM * EB); \
  }
#define PLACE_A (t * BM * EB + (wm / 4 + (g ^ (2 * t))) * 16)
#endif
#if A_ALONG_K || EB == 2
#define ROW_OF(i, h) (16 * (i) + 8 * (h) + g)
#else
#define ROW_OF(i, h) ((i) / 2 * 32 + 4 * g + 2 * ((i) % 2) + (h))
#endif
#if B_ALONG_K
#define FRAGMENTS_B(f, at, s) \
  UNROLL for (int j = 0; j < NI; j += 2) \
    LDM4(fb[f][j][0], fb[f][j][1], fb[f][j + 1][0], fb[f][j + 1][1], \
         (at) + placeB + j * 8 * KB + (((2 * (s) + ((lane >> 3) & 1)) ^ SWAP_K(lane & 7)) * 16));
#define PLACE_B (SA + (wn + (lane & 7) + 8 * (lane >> 4)) * KB)
#elif EB == 2
#define FRAGMENTS_B(f, at, s) \
  UNROLL for (int j = 0; j < NI; j += 2) \
    LDM4T(fb[f][j][0], fb[f][j][1], fb[f][j + 1][0], fb[f][j + 1][1], \
          (at) + placeB + (s) * 16 * BN * EB + \
              (((wn / 8 + j + (lane >> 4)) ^ SWAP_MN(lane & 7, BN)) * 16));
#define PLACE_B (SA + (lane & 15) * BN * EB)
#else
#define FRAGMENTS_B(f, at, s) \
  UNROLL for (int j = 0; j < NI; j += 4) { \
    const uint p_ = (at) + placeB + (s) * 8 * BN * EB + j * 32; \
    LDS4(fb[f][j][0], fb[f][j + 1][0], fb[f][j + 2][0], fb[f][j + 3][0], p_); \
    LDS4(fb[f][j][1], fb[f][j + 1][1], fb[f][j + 2][1], fb[f][j + 3][1], p_ + 4 * BN * EB); \
  }
#define PLACE_B (SA + t * BN * EB + (wn / 4 + (g ^ (2 * t))) * 16)
#endif
#if B_ALONG_K || EB == 2
#define COL_OF(j, v) (8 * (j) + 2 * t + (v))
#else
#define COL_OF(j, v) ((j) / 4 * 32 + 4 * (2 * t + (v)) + (j) % 4)
#endif
#define FRAGMENTS(f, at, s) { FRAGMENTS_A(f, at, s) FRAGMENTS_B(f, at, s) }

__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void mma_tile(
    __global const ELEMENT* restrict pA, __global const ELEMENT* restrict pB PARAMS EPILOGUE_PARAMS) {
  __local uint memory[LOCAL_BYTES / 4] __attribute__((aligned(128)));
  GROUP_SETUP
  uint ring;
  LOCAL_ADDRESS(ring, &memory[0]);
  const uint tid = (uint)get_local_id(0);
  const int lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int wm = tid / 32 % (BM / WM) * WM, wn = tid / 32 / (BM / WM) * WN;
  const uint placeA = PLACE_A, placeB = PLACE_B;

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

  float acc[MI][NI][4];
  UNROLL for (int i = 0; i < MI; ++i)
    UNROLL for (int j = 0; j < NI; ++j)
      UNROLL for (int v = 0; v < 4; ++v) acc[i][j][v] = 0;

  const int tiles = (kto - kfrom + BK - 1) / BK;
  int next = kfrom;
  UNROLL for (int s = 0; s < STAGES - 1; ++s) {
    if (s < tiles) LOAD(s)
    COMMIT;
  }
  WAIT(STAGES - 2);
  SYNC;
  uint fa[2][MI][4], fb[2][NI][2];
  FRAGMENTS(0, ring, 0)
  int cur = 0, fill = STAGES - 1;
  for (int kt = 0; kt < tiles; ++kt) {
    UNROLL for (int s = 0; s < KSTEPS; ++s) {
      // The next fragments travel while these are multiplied; the barrier frees the oldest stage.
      if (s == KSTEPS - 1) {
        WAIT(STAGES - 2);
        SYNC;
        cur = cur + 1 == STAGES ? 0 : cur + 1;
        FRAGMENTS((s + 1) & 1, ring + cur * (SA + SB), 0)
      } else {
        FRAGMENTS((s + 1) & 1, ring + cur * (SA + SB), s + 1)
      }
      if (s == 0) {
        if (kt + STAGES - 1 < tiles) LOAD(fill)
        COMMIT;
        fill = fill + 1 == STAGES ? 0 : fill + 1;
      }
#if EB == 4
      UNROLL for (int j = 0; j < NI; ++j)
        UNROLL for (int v = 0; v < 2; ++v) fb[s & 1][j][v] = ROUNDED(fb[s & 1][j][v]);
#endif
      UNROLL for (int i = 0; i < MI; ++i) {
#if EB == 4
        UNROLL for (int v = 0; v < 4; ++v) fa[s & 1][i][v] = ROUNDED(fa[s & 1][i][v]);
#endif
        UNROLL for (int j = 0; j < NI; ++j) MMA(acc[i][j], fa[s & 1][i], fb[s & 1][j]);
      }
    }
  }
  // Results go through local memory, WM rows at a time: neighbouring work-items then read and write
  // neighbouring elements, whatever the epilogue does.
  WAIT(0);
  __local float* results = (__local float*)memory;
  __local INDEX_T* rowAt = (__local INDEX_T*)(memory + WM * LDC);
  for (int pass = 0; pass < BM / WM; ++pass) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (wm == pass * WM) {
      UNROLL for (int i = 0; i < MI; ++i)
        UNROLL for (int h = 0; h < 2; ++h) {
          __local float* to_ = results + ROW_OF(i, h) * LDC + wn;
#if B_ALONG_K || EB == 2
          UNROLL for (int j = 0; j < NI; ++j)
            *(__local float2*)(to_ + COL_OF(j, 0)) =
                (float2)(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
#else
          UNROLL for (int j = 0; j < NI; j += 4)
            UNROLL for (int v = 0; v < 2; ++v)
              *(__local float4*)(to_ + COL_OF(j, v)) =
                  (float4)(acc[i][j][2 * h + v], acc[i][j + 1][2 * h + v],
                           acc[i][j + 2][2 * h + v], acc[i][j + 3][2 * h + v]);
#endif
        }
    }
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
