// How mma_tile.cl moves data in OpenCL C alone: from global memory to registers while a stage is
// multiplied, then into the ring, and from there to fragments as their layouts say (fragment.py).
//
// A stage's rows lie along k whatever the operands' order: byte b of row r is at AT_K(X, r, b), 16-byte
// chunks swapped so that neighbouring rows that are read at once, and rows eight apart that are
// written at once, meet in few banks.  Where lanes hold runs along k of less than 16 bytes (X_RUN
// elements), a chunk has such runs of several rows, and a row's runs lie in as many chunks.
#define LDC (BN + 8)
#define RUN(X) (X##_RUN * LB)
#define LKB (BK * LB)
#define SWAP(X, r, b) \
  (RUN(X) < 16 ? (((b) / RUN(X) >> 3) ^ ((r) >> 3)) & 7 \
   : LKB == 32 ? (((r) >> 2) ^ (X##_ALONG_K ? 0 : (r) >> 3)) & 1 \
   : LKB == 64 ? (((r) >> 1) ^ (X##_ALONG_K ? 0 : (r) >> 3)) & 3 \
               : (r) & 7)
#define AT_K(X, r, b) \
  ((r) / (16 / RUN(X)) * (LKB * 16 / RUN(X)) + ((((b) / RUN(X)) ^ SWAP(X, r, b)) * 16) + \
   (r) % (16 / RUN(X)) * RUN(X) + (b) % RUN(X))
#define STAGE_BYTES ((__local uchar*)memory)
#define LOCAL_ADDRESS(s, p) s = 0
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
// Places that compilers find before the loop take a register each, which large fragments of three
// products and copies that may be short do not leave, nor do large ones of bytes that are transposed.
// This changes nothing: they do not know.
#define HELD_WORDS (WM / FRAGMENT_M * A_WORDS + WN / FRAGMENT_N * B_WORDS)
#if PRODUCTS > 1 && HELD_WORDS > 40 && !(A_WHOLE && B_WHOLE) || \
    LB == 1 && HELD_WORDS > 16 && !(A_ALONG_K && B_ALONG_K)
#define LANE_ANEW tid |= kto >> 31; lane = tid % LANES;
#endif
#define COMMIT
#define PLACES

// What has been read of a stage and not yet been written to it.
#define COPY_WORDS(X) ((X##_CE * EB + 3) / 4)
#define MOVES \
  uint heldA[PER(A, BM)][COPY_WORDS(A)], heldB[PER(B, BN)][COPY_WORDS(B)]; \
  int landing = -1;
#define LOADING(at) landing = (at);
#define COPY_K(X, at, s, r, b, row, depth) TAKE(X, s, row, depth)
#define COPY_MN(X, WIDE, at, s, k, b, row, depth) TAKE(X, s, row, depth)
#define TAKE(X, s, row, depth) { \
  const int n_ = X##_COUNT(row, depth); \
  const INDEX_T i_ = X##_AT(row, depth); \
  X##_COPY(held##X[s], p##X, i_, n_) \
}
#define SET1(to, v) (to)[0] = (v);
#define SET2(to, v) (to)[0] = (v).x, (to)[1] = (v).y;
#define SET4(to, v) (to)[0] = (v).x, (to)[1] = (v).y, (to)[2] = (v).z, (to)[3] = (v).w;
#define FULL(T, words, to, p, i) { \
  const T v_ = *(__global const T*)((p) + (i)); \
  SET##words(to, v_) \
}
#define SOME(T, words, to, p, i, n) { \
  T v_ = 0; \
  if (n) v_ = *(__global const T*)((p) + (i)); \
  SET##words(to, v_) \
}
// Element c of a copy as bits of its word.
#if EB == 4
#define PART_WORD(p, i, c, n) ((c) < (n) ? as_uint((p)[(i) + (c)]) : 0)
#elif EB == 1
#define PART_BYTE(p, i, c, n) ((c) < (n) ? (uint)(p)[(i) + (c)] : 0)
#define PART_WORD(p, i, c, n) \
  (PART_BYTE(p, i, 4 * (c), n) | PART_BYTE(p, i, 4 * (c) + 1, n) << 8 | \
   PART_BYTE(p, i, 4 * (c) + 2, n) << 16 | PART_BYTE(p, i, 4 * (c) + 3, n) << 24)
#else
#define PART_HALF(p, i, c, n) ((c) < (n) ? (uint)(p)[(i) + (c)] : 0)
#define PART_WORD(p, i, c, n) \
  (PART_HALF(p, i, 2 * (c), n) | PART_HALF(p, i, 2 * (c) + 1, n) << 16)
#endif
#define PART(T, words, to, p, i, n) \
  if ((n) * EB == 4 * words) FULL(T, words, to, p, i) \
  else UNROLL for (int c_ = 0; c_ < words; ++c_) (to)[c_] = PART_WORD(p, i, c_, n);
#define FULL16(to, p, i, n) FULL(uint4, 4, to, p, i)
#define FULL8(to, p, i, n) FULL(uint2, 2, to, p, i)
#define FULL4(to, p, i, n) FULL(uint, 1, to, p, i)
#define FULL2(to, p, i, n) (to)[0] = (p)[i];
#define SOME16(to, p, i, n) SOME(uint4, 4, to, p, i, n)
#define SOME8(to, p, i, n) SOME(uint2, 2, to, p, i, n)
#define SOME4(to, p, i, n) SOME(uint, 1, to, p, i, n)
#define SOME2(to, p, i, n) (to)[0] = (n) ? (p)[i] : 0;
#define PART16(to, p, i, n) PART(uint4, 4, to, p, i, n)
#define PART8(to, p, i, n) PART(uint2, 2, to, p, i, n)
#define PART4(to, p, i, n) PART(uint, 1, to, p, i, n)

#define TO(T, at) *(__local T*)(STAGE_BYTES + (at))
// The elements of a copy, as words, to row r, or rows from r on, at byte b.
#define PUT_K(X, words, at, r, b) \
  if (X##_CE * LB == 2) TO(ushort, (at) + AT_K(X, r, b)) = (ushort)(words)[0]; \
  else if (RUN(X) == 2) UNROLL for (int c_ = 0; c_ < X##_CE * LB / 2; ++c_) \
    TO(ushort, (at) + AT_K(X, r, (b) + 2 * c_)) = (ushort)((words)[c_ / 2] >> 16 * (c_ % 2)); \
  else UNROLL for (int c_ = 0; c_ < LAND_WORDS(X); ++c_) \
    TO(uint, (at) + (RUN(X) < 16 ? AT_K(X, r, (b) + 4 * c_) : AT_K(X, r, b) + 4 * c_)) = (words)[c_];
#define PUT_MN(X, words, at, r, b) \
  if (LB == 1) UNROLL for (int c_ = 0; c_ < X##_CE; ++c_) \
    TO(uchar, (at) + AT_K(X, (r) + c_, b)) = (uchar)((words)[c_ / 4] >> 8 * (c_ % 4)); \
  else if (RUN(X) == 2 && X##_CE > 1) UNROLL for (int c_ = 0; c_ < LAND_WORDS(X); ++c_) \
    TO(uint, (at) + AT_K(X, (r) + 2 * c_, b)) = (words)[c_]; \
  else UNROLL for (int c_ = 0; c_ < X##_CE; ++c_) { \
    const uint to_ = (at) + AT_K(X, (r) + c_, b); \
    if (LB == 4) TO(uint, to_) = (words)[c_]; \
    else TO(ushort, to_) = (ushort)((words)[c_ / 2] >> 16 * (c_ % 2)); \
  }
#define LAND_WORDS(X) ((X##_CE * LB + 3) / 4)
#if PRODUCTS == 1
#define PUT(X, KIND, s, at, r, b) { PUT_##KIND(X, held##X[s], at, r, b) }
#else
#define PUT(X, KIND, s, at, r, b) { \
  uint first_[LAND_WORDS(X)], rest_[LAND_WORDS(X)]; \
  UNROLL for (int c_ = 0; c_ < LAND_WORDS(X); ++c_) first_[c_] = rest_[c_] = 0; \
  UNROLL for (int c_ = 0; c_ < X##_CE; ++c_) { \
    const uint2 parts_ = kcl_parts(held##X[s][c_]); \
    first_[c_ / 2] |= parts_.x << 16 * (c_ % 2), rest_[c_ / 2] |= parts_.y << 16 * (c_ % 2); \
  } \
  PUT_##KIND(X, first_, at, r, b) \
  PUT_##KIND(X, rest_, (at) + S##X / 2, r, b) \
}
#endif
#define LAND_K(X, WIDE, at) \
  UNROLL for (int s_ = 0; s_ < PER(X, WIDE); ++s_) { \
    const uint e_ = tid + s_ * NT, r_ = ROW_K(X, e_), b_ = K_OF(X, e_) * LB; \
    if (HAS(X, WIDE, e_)) PUT(X, K, s_, at, r_, b_) \
  }
#define LAND_MN(X, WIDE, at) \
  UNROLL for (int s_ = 0; s_ < PER(X, WIDE); ++s_) { \
    const uint e_ = tid + s_ * NT, r_ = ROW_MN(X, WIDE, e_), b_ = K_MN(X, WIDE, e_) * LB; \
    if (HAS(X, WIDE, e_)) PUT(X, MN, s_, at, r_, b_) \
  }
#if A_ALONG_K
#define LAND_A(at) LAND_K(A, BM, at)
#else
#define LAND_A(at) LAND_MN(A, BM, at)
#endif
#if B_ALONG_K
#define LAND_B(at) LAND_K(B, BN, at)
#else
#define LAND_B(at) LAND_MN(B, BN, at)
#endif
// Two stages: whatever is under way lands.
#define WAIT(n) \
  if (landing >= 0) { \
    LAND_A(landing) \
    LAND_B(landing + SA) \
    landing = -1; \
  }

// Words of a fragment from byte b of row r on; READ_A and READ_B are made of these.
#define READ1(X, to, at, r, b) (to)[0] = TO(uint, (at) + AT_K(X, r, b));
#define READ2(X, to, at, r, b) { \
  const uint2 v_ = TO(uint2, (at) + AT_K(X, r, b)); \
  SET2(to, v_) \
}
#define READ4(X, to, at, r, b) { \
  const uint4 v_ = TO(uint4, (at) + AT_K(X, r, b)); \
  SET4(to, v_) \
}
// Of three products the first takes a's rests, the second b's, each behind what they are rests of.
#define DEPTH_OF(s) ((s) % (BK / FRAGMENT_K) * FRAGMENT_K)
#define PART_OF(s, product, bytes) \
  (PRODUCTS > 1 && (s) / (BK / FRAGMENT_K) == (product) ? (bytes) / 2 : 0)
#define FRAGMENTS_A(f, at, s) \
  UNROLL for (int i = 0; i < MI; ++i) \
    READ_A(fa[f][i], (at) + PART_OF(s, 0, SA), wm + i * FRAGMENT_M, DEPTH_OF(s))
#define FRAGMENTS_B(f, at, s) \
  UNROLL for (int j = 0; j < NI; ++j) \
    READ_B(fb[f][j], (at) + SA + PART_OF(s, 1, SB), wn + j * FRAGMENT_N, DEPTH_OF(s))
#define KEEP_SUM(v, row, column) \
  results[(i * FRAGMENT_M + row) * LDC + wn + j * FRAGMENT_N + column] = acc[i][j][v];
#define KEEP_SUMS(results, acc) \
  UNROLL for (int i = 0; i < MI; ++i) \
    UNROLL for (int j = 0; j < NI; ++j) { EACH_SUM(KEEP_SUM) }
