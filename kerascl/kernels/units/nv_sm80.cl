// How mma_tile.cl moves data for mma.sync on NVIDIA's GPUs (compute capability 8.0 and more): from
// global memory into the ring by cp.async, from there to fragments by ldmatrix.
//
// Layouts.  Rows of k: 16-byte chunk c of row r lies at c ^ SWAP_K(r), read by ldmatrix.  Rows of m
// or n: two-byte elements by ldmatrix.trans; four-byte ones by 16-byte loads, so that thread g of a
// fragment holds rows 4g..4g+3 of 32 and the result comes out permuted (ROW_OF, COL_OF); bytes by
// ldmatrix.trans, as pairs of neighbouring rows, which MIXED takes apart: a result is permuted, too.
#if EB == 1
#define LDC (BN + (B_ALONG_K ? 8 : 16) / (A_ALONG_K ? 1 : 2))
#else
#define LDC (BN + (B_ALONG_K || EB == 2 ? 8 : 4))
#endif
#define SWAP_K(r) (KB == 64 ? ((r) >> 1) & 3 : (r) & 7)
#define SWAP_MN(k, wide) \
  (EB == 4 ? 2 * ((k) & 3) : EB == 1 ? SWAP_BYTES(k, wide) \
   : (wide) * EB >= 128 ? (k) & 7 : ((k) >> 1) & 3)
#define SWAP_BYTES(k, wide) \
  ((wide) == 128 ? ((k) & 1) | ((k) >> 1 & 6) : (wide) == 64 ? (k) >> 2 & 3 : (k) >> 2 & 1)

#define MOVES const int g = lane >> 2, t = lane & 3;
#define PLACES const uint placeA = PLACE_A, placeB = PLACE_B;
#define LOADING(at)
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
// Bytes of depths 4t..4t+3 of two neighbouring rows, each word a row's, from those of their pairs.
#define MIXED(even, odd, x, y) { \
  BYTES(even, x, y, 0x6420) \
  BYTES(odd, x, y, 0x7531) \
}
// Which depth the lane's row of ldmatrix is: the eight rows of the first matrix hold what lanes take
// as bytes 0 and 1 of a word, those of the second bytes 2 and 3; the others lie 16 further.
#define BYTES_DEPTH (4 * (lane >> 1 & 3) + (lane & 1) + 2 * (lane >> 3 & 1) + 16 * (lane >> 4))
#define LDS4(d0, d1, d2, d3, at) \
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" \
               : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(at) : "memory")

#define PUT(X, to, row, depth) { \
  const int n_ = X##_COUNT(row, depth); \
  const INDEX_T i_ = X##_AT(row, depth); \
  X##_COPY((to), p##X, i_, n_ * EB); \
}
#define COPY_K(X, at, s, r, b, row, depth) \
  PUT(X, (at) + r * KB + (((b / 16) ^ SWAP_K(r)) * 16) + b % 16, row, depth)
#define COPY_MN(X, WIDE, at, s, k, b, row, depth) \
  PUT(X, (at) + k * (WIDE * EB) + (((b / 16) ^ SWAP_MN(k, WIDE)) * 16) + b % 16, row, depth)

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
#elif EB == 1
#define FRAGMENTS_A(f, at, s) \
  UNROLL for (int i = 0; i < MI; ++i) { \
    uint x0_, y0_, x1_, y1_; \
    LDM4T(x0_, y0_, x1_, y1_, \
          (at) + placeA + (s) * 32 * BM + (((wm / 16 + i) ^ SWAP_MN(BYTES_DEPTH, BM)) * 16)); \
    MIXED(fa[f][i][0], fa[f][i][1], x0_, y0_) \
    MIXED(fa[f][i][2], fa[f][i][3], x1_, y1_) \
  }
#define PLACE_A (BYTES_DEPTH * BM)
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
#elif EB == 1
#define ROW_OF(i, h) (16 * (i) + 2 * g + (h))
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
#elif EB == 1
#define FRAGMENTS_B(f, at, s) \
  UNROLL for (int j = 0; j < NI; j += 2) { \
    uint x0_, y0_, x1_, y1_; \
    LDM4T(x0_, y0_, x1_, y1_, \
          (at) + placeB + (s) * 32 * BN + (((wn / 16 + j / 2) ^ SWAP_MN(BYTES_DEPTH, BN)) * 16)); \
    MIXED(fb[f][j][0], fb[f][j + 1][0], x0_, y0_) \
    MIXED(fb[f][j][1], fb[f][j + 1][1], x1_, y1_) \
  }
#define PLACE_B (SA + BYTES_DEPTH * BN)
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
#elif EB == 1
#define COL_OF(j, v) ((j) / 2 * 16 + 2 * (2 * t + (v)) + (j) % 2)
#else
#define COL_OF(j, v) ((j) / 4 * 32 + 4 * (2 * t + (v)) + (j) % 4)
#endif

#if EB == 1
#define ACC2 int2
#define ACC4 int4
#else
#define ACC2 float2
#define ACC4 float4
#endif
#if B_ALONG_K || EB == 2
#define KEEP_ROW(to, acc, i, h) \
  UNROLL for (int j = 0; j < NI; ++j) \
    *(__local ACC2*)((to) + COL_OF(j, 0)) = (ACC2)(acc[i][j][2 * (h)], acc[i][j][2 * (h) + 1]);
#elif EB == 1
#define KEEP_ROW(to, acc, i, h) \
  UNROLL for (int j = 0; j < NI; j += 2) \
    *(__local ACC4*)((to) + COL_OF(j, 0)) = \
        (ACC4)(acc[i][j][2 * (h)], acc[i][j + 1][2 * (h)], \
               acc[i][j][2 * (h) + 1], acc[i][j + 1][2 * (h) + 1]);
#else
#define KEEP_ROW(to, acc, i, h) \
  UNROLL for (int j = 0; j < NI; j += 4) \
    UNROLL for (int v = 0; v < 2; ++v) \
      *(__local ACC4*)((to) + COL_OF(j, v)) = \
          (ACC4)(acc[i][j][2 * (h) + v], acc[i][j + 1][2 * (h) + v], \
                 acc[i][j + 2][2 * (h) + v], acc[i][j + 3][2 * (h) + v]);
#endif
#define KEEP_SUMS(results, acc) \
  UNROLL for (int i = 0; i < MI; ++i) \
    UNROLL for (int h = 0; h < 2; ++h) { \
      __local ACC_T* to_ = (results) + ROW_OF(i, h) * LDC + wn; \
      KEEP_ROW(to_, acc, i, h) \
    }
