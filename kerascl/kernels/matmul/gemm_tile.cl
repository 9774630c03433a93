// Register-blocked tile product c[BM][BN] += a[BM][k] * b[k][BN] through local memory.
//
// Shared by GEMM and by convolution as an implicit GEMM.  The including source defines
//   BM BN BK TM TN        tile and per-work-item sizes (TM, TN multiples of 4; BK of 4)
//   NARROW                attributes of the kernel
//   KK_UNROLL             the pragma text for the loop over a tile's depth
//   AV BV                 elements of one global load (1 or 4)
//   A_ALONG_K B_ALONG_K   whether neighbouring work-items load along k (else along m or n)
//   PARAMS                kernel parameters after pA and pB, each with a leading comma
//   GROUP_SETUP           declares M, N, row0, col0, kfrom, kto for this work-group
//   A_ROW_STATE(s, m), B_COL_STATE(s, n)   remember row m (column n) for load slot s
//   A_AT(s, kk, k), B_AT(s, kk, k)         element index of a (b) at slot s and depth k
//   A_VALID(s, kk)        whether the slot lies inside a (padding reads as zero)
//   K_FIRST               what leads to the first k tile, or empty
//   K_TABLE_DECL, K_TABLE(buf)             facts of the next k tile's depths, or empty
//   K_NEXT                what follows the loads of a k tile, or empty
//   TABLE_LAST            whether the next ones are computed when the loads under way have landed,
//                         which takes fewer registers
//   OUT_ROW(m), OUT_AT(n)                  output index of row m and column n
//   VECTOR_OUT            whether four columns from a multiple of four lie side by side, aligned
//   IN_TURN               whether a loop goes round the epilogue, four columns at a time
//   STORES_ALWAYS         whether the last tile is stored once more where there is no next one, so that
//                         stores mingle with multiply-adds
#define TX (BN / TN)
#define TY (BM / TM)
#define NT (TX * TY)
// Rows of the local tiles are padded by one vector: fewer bank conflicts when stored transposed.
#define LDA (BM + 4)
#define LDB (BN + 4)
#define A_SLOTS (BM * BK / AV)
#define B_SLOTS (BN * BK / BV)
#define AI ((A_SLOTS + NT - 1) / NT)
#define BI ((B_SLOTS + NT - 1) / NT)
#define CAT_(x, y) x##y
#define CAT(x, y) CAT_(x, y)
#define ACC4 CAT(ACC_T, 4)

#if A_ALONG_K
#define A_KK(e) (((e) % (BK / AV)) * AV)
#define A_MM(e) ((e) / (BK / AV))
#define A_ROWS 1
#else
#define A_KK(e) ((e) / (BM / AV))
#define A_MM(e) (((e) % (BM / AV)) * AV)
#define A_ROWS AV
#endif
#if B_ALONG_K
#define B_KK(e) (((e) % (BK / BV)) * BV)
#define B_NN(e) ((e) / (BK / BV))
#define B_COLS 1
#else
#define B_KK(e) ((e) / (BN / BV))
#define B_NN(e) (((e) % (BN / BV)) * BV)
#define B_COLS BV
#endif
#define A_HAS(e) (A_SLOTS % NT == 0 || (e) < A_SLOTS)
#define B_HAS(e) (B_SLOTS % NT == 0 || (e) < B_SLOTS)

#if AV == 4
#define A_READ(r, s, kk, k, buf) vstore4(A_LOAD4(pA, A_AT(s, kk, k, buf)), 0, r)
#else
#define A_READ(r, s, kk, k, buf) *(r) = (ACC_T)A_LOAD(pA, A_AT(s, kk, k, buf))
#endif
#if BV == 4
#define B_READ(r, s, kk, k, buf) vstore4(B_LOAD4(pB, B_AT(s, kk, k, buf)), 0, r)
#else
#define B_READ(r, s, kk, k, buf) *(r) = (ACC_T)B_LOAD(pB, B_AT(s, kk, k, buf))
#endif

#define FETCH(k0, buf) \
  _Pragma("unroll") for (int s = 0; s < AI; ++s) { \
    const int e = tid + s * NT; \
    _Pragma("unroll") for (int v = 0; v < AV; ++v) ra[s * AV + v] = 0; \
    if (A_HAS(e)) { \
      const int kk = A_KK(e), k = (k0) + kk; \
      if (k < kto && A_VALID(s, kk, buf)) A_READ(ra + s * AV, s, kk, k, buf); \
    } \
  } \
  _Pragma("unroll") for (int s = 0; s < BI; ++s) { \
    const int e = tid + s * NT; \
    _Pragma("unroll") for (int v = 0; v < BV; ++v) rb[s * BV + v] = 0; \
    if (B_HAS(e)) { \
      const int kk = B_KK(e), k = (k0) + kk; \
      if (k < kto) B_READ(rb + s * BV, s, kk, k, buf); \
    } \
  } \
  K_NEXT

#define STORE_TILES(buf) \
  _Pragma("unroll") for (int s = 0; s < AI; ++s) { \
    const int e = tid + s * NT; \
    if (A_HAS(e)) { \
      const int kk = A_KK(e), mm = A_MM(e); \
      _Pragma("unroll") for (int v = 0; v < AV; ++v) \
        tileA[buf][(kk + (A_ALONG_K ? v : 0)) * LDA + mm + (A_ALONG_K ? 0 : v)] = ra[s * AV + v]; \
    } \
  } \
  _Pragma("unroll") for (int s = 0; s < BI; ++s) { \
    const int e = tid + s * NT; \
    if (B_HAS(e)) { \
      const int kk = B_KK(e), nn = B_NN(e); \
      _Pragma("unroll") for (int v = 0; v < BV; ++v) \
        tileB[buf][(kk + (B_ALONG_K ? v : 0)) * LDB + nn + (B_ALONG_K ? 0 : v)] = rb[s * BV + v]; \
    } \
  }

// A step along k: what it needs of both tiles, in registers, and its multiply-adds.
#define FRAGMENTS(fa, fb, buf, kk) \
  _Pragma("unroll") for (int u = 0; u < TM / 4; ++u) { \
    const ACC4 t = *(__local const ACC4*)&tileA[buf][(kk) * LDA + 4 * (ty + u * TY)]; \
    fa[4 * u] = t.s0, fa[4 * u + 1] = t.s1, fa[4 * u + 2] = t.s2, fa[4 * u + 3] = t.s3; \
  } \
  _Pragma("unroll") for (int v = 0; v < TN / 4; ++v) { \
    const ACC4 t = *(__local const ACC4*)&tileB[buf][(kk) * LDB + 4 * (tx + v * TX)]; \
    fb[4 * v] = t.s0, fb[4 * v + 1] = t.s1, fb[4 * v + 2] = t.s2, fb[4 * v + 3] = t.s3; \
  }
#define MULTIPLY(fa, fb) \
  _Pragma("unroll") for (int u = 0; u < TM; ++u) \
    _Pragma("unroll") for (int v = 0; v < TN; ++v) c[u][v] += fa[u] * fb[v];

// NVIDIA's assembler moves loads down to where they are stored, behind all multiply-adds, to have
// registers for these; what has an effect it leaves in its place, and the loads in front of it.
#ifdef KCL_PTX
#define LOADS_STAY asm volatile("bar.warp.sync -1;" ::: "memory");
#else
#define LOADS_STAY
#endif

__kernel NARROW __attribute__((reqd_work_group_size(NT, 1, 1))) void gemm_tile(
    __global const A_T* restrict pA, __global const B_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  __local ACC_T tileA[2][BK * LDA] __attribute__((aligned(32)));
  __local ACC_T tileB[2][BK * LDB] __attribute__((aligned(32)));
  K_TABLE_DECL
  const int tid = get_local_id(0);
  // 32 work-items share a block of 8 x 4 (M_FAST: 4 x 8) in Z-order, so that of eight neighbours
  // some read the same: local memory then serves more of them at once.
  const int wide_ = (tid >> 1) & 7, high_of_ = (tid & 1) | ((tid >> 4) & 1) << 1;
#if M_FAST
  const int ty = tid / 32 % (TY / 8) * 8 + wide_, tx = tid / 32 / (TY / 8) * 4 + high_of_;
#else
  const int tx = tid / 32 % (TX / 8) * 8 + wide_, ty = tid / 32 / (TX / 8) * 4 + high_of_;
#endif
  GROUP_SETUP
  K_FIRST
  K_TABLE(0)
  K_TABLE(1)
  A_STATE_DECL
  B_STATE_DECL
  // Rows and columns past the end are clamped: they read valid memory and are never stored.
#pragma unroll
  for (int s = 0; s < AI; ++s) {
    const int m = min(row0 + A_MM(tid + s * NT), M - A_ROWS);
    if (m >= 0) A_ROW_STATE(s, m)
  }
#pragma unroll
  for (int s = 0; s < BI; ++s) {
    const int n = min(col0 + B_NN(tid + s * NT), N - B_COLS);
    B_COL_STATE(s, n)
  }
  ACC_T ra[AI * AV], rb[BI * BV];
  ACC_T c[TM][TN];
#pragma unroll
  for (int u = 0; u < TM; ++u)
#pragma unroll
    for (int v = 0; v < TN; ++v) c[u][v] = 0;

  barrier(CLK_LOCAL_MEM_FENCE);
  FETCH(kfrom, 0)
  STORE_TILES(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  int cur = 0, k0 = kfrom;
  // One tile at least, of zeros where there is none: Intel's compiler rounds results to 16 bits where
  // they come from, and had two such places to keep registers for, were the loop skipped.
  do {
    const int nxt = cur ^ 1;
    const bool more = k0 + BK < kto;
    // The next tile travels to registers while this one is multiplied.
    if (more) {
      FETCH(k0 + BK, nxt)
      LOADS_STAY
    }
#if !TABLE_LAST
    K_TABLE(cur)
#endif
    _Pragma(KK_UNROLL)
    for (int kk = 0; kk < BK; ++kk) {
      ACC_T fa[TM], fb[TN];
      FRAGMENTS(fa, fb, cur, kk)
      MULTIPLY(fa, fb)
    }
    if (STORES_ALWAYS || more) {
      STORE_TILES(nxt)
    }
#if TABLE_LAST
    K_TABLE(cur)
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    cur = nxt;
    k0 += BK;
  } while (k0 < kto);
#if IN_TURN
  // The four sums are picked one by one: a loop's own index into them would put them all in memory,
  // and moving them up for each turn would need registers for them twice.
#pragma nounroll
  for (int q = 0; q < TM * TN / 4; ++q) {
    const int u = q / (TN / 4), m = row0 + 4 * (ty + (u / 4) * TY) + u % 4;
    const int n0 = col0 + 4 * (tx + q % (TN / 4) * TX);
    ACC_T four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      four[j] = c[0][j];
#pragma unroll
      for (int w = 1; w < TM * TN / 4; ++w)
        four[j] = q == w ? c[w / (TN / 4)][w % (TN / 4) * 4 + j] : four[j];
    }
    if (m < M && n0 < N) {
      OUT_ROW(m)
#if VECTOR_OUT
      EPILOGUE_VECTOR(4, four, OUT_AT(n0))
#else
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int n = n0 + j;
        if (n < N) EPILOGUE(four[j], OUT_AT(n))
      }
#endif
    }
  }
#else
#pragma unroll
  for (int u = 0; u < TM; ++u) {
    const int m = row0 + 4 * (ty + (u / 4) * TY) + u % 4;
    if (m < M) {
      OUT_ROW(m)
#if VECTOR_OUT
#pragma unroll
      for (int v = 0; v < TN; v += 4) {
        const int n = col0 + 4 * (tx + (v / 4) * TX);
        if (n < N) EPILOGUE_VECTOR(4, &c[u][v], OUT_AT(n))
      }
#else
#pragma unroll
      for (int v = 0; v < TN; ++v) {
        const int n = col0 + 4 * (tx + (v / 4) * TX) + v % 4;
        if (n < N) EPILOGUE(c[u][v], OUT_AT(n))
      }
#endif
    }
  }
#endif
}
