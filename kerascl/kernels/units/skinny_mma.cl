// How warps of gemm_skinny.cl multiply by mma.sync: rows of l are those of the instruction's left operand,
// the eight of s the right one's columns.  The order of the depth is free where both sides have the same,
// so what a lane loads of l is what it must hold of a product:
//
//   along r   V neighbours at each of GATHER depths of its own: of these, elements 2 q and 2 q + 1 are
//             rows g and g + 8 of product q
//   along k   V neighbours of row g and of row g + 8, of which each product takes two words
//
// Before this text stand MMA(d, a, b), the instruction, and the numbers PER of elements of a word, WORDS of
// words of a load, S_WIDE of elements of s that a lane reads at once, S_WORDS of their words.  So may
// ROUNDED(word), and so does bytes.cl where elements are bytes.
#ifndef ROUNDED
#define ROUNDED(word) (word)
#endif
#ifndef MMA_WHERE
#define MMA_WHERE(condition, d, a, b) if (condition) MMA(d, a, b);
#endif
#if WORDS == 1
#define LOADED(raw) const uint load_ = as_uint(raw);
#else
#define LOADED(raw) const CAT(uint, WORDS) load_ = CAT(as_uint, WORDS)(raw);
#endif
#define L_RAW CAT(L_WORD, V)
#define EARLY_LOADS L_RAW early[EARLY];
#define STEP (LANES * 4 * S_WIDE)
#define OWN ((lane * 4 + tid % 4) * S_WIDE)
// Warps share the depth LANES ways, and then the rows.
#define WARP_ROWS (ROWS * LANES / (THREADS / 32))
#define PLACES const int lane = tid / 32 % LANES, row = tid / 32 / LANES * WARP_ROWS + MINE;
#if L_ALONG_K
#define GATHER 2
#define WIDE V
#define PRODUCTS (WORDS / 2)
#define RESULT_SETS 1
#define DEPTH(e) ((e) / GATHER * STEP)
#define MINE (tid % 32 / 4)
#define BEGIN_LOAD(e, k) \
  early[e] = *(__global const L_RAW*)(l + ((e) % 2 ? min(8, R - 1 - place) * lR : 0) + (k) * lK);
#define OPERANDS(a, q) \
  a[0] = words[0][2 * q], a[1] = words[1][2 * q], a[2] = words[0][2 * q + 1], a[3] = words[1][2 * q + 1];
#define KEEP_SUMS(j, c) \
  PART(j, lane, row) = sum[0][c]; \
  PART(j, lane, row + 8) = sum[0][c + 2];
#else
#define GATHER (2 * PER)
#define WIDE 1
#define PRODUCTS (V / 2)
#define RESULT_SETS PRODUCTS
#define DEPTH(e) ((e) / GATHER * STEP + (e) % GATHER)
#define MINE (tid % 32 / 4 * V)
#define BEGIN_LOAD(e, k) early[e] = *(__global const L_RAW*)(l + (k) * lK);
#if PER == 4
// Byte 2 at of four words, and byte 2 at + 1.
#define TURNED(to, next, first, w, at) { \
  uint left_, right_; \
  if (at) { \
    BYTES(left_, words[first][w], words[first + 1][w], 0x7362) \
    BYTES(right_, words[first + 2][w], words[first + 3][w], 0x7362) \
  } else { \
    BYTES(left_, words[first][w], words[first + 1][w], 0x5140) \
    BYTES(right_, words[first + 2][w], words[first + 3][w], 0x5140) \
  } \
  BYTES(to, left_, right_, 0x5410) \
  BYTES(next, left_, right_, 0x7632) \
}
#define OPERANDS(a, q) \
  TURNED(a[0], a[1], 0, q / 2, q % 2) \
  TURNED(a[2], a[3], 4, q / 2, q % 2)
#elif PER == 2
#define LOWER(x, y) (((x) & 0xffffu) | (y) << 16)
#define UPPER(x, y) ((x) >> 16 | ((y) & 0xffff0000u))
#define OPERANDS(a, q) \
  a[0] = LOWER(words[0][q], words[1][q]), a[1] = UPPER(words[0][q], words[1][q]); \
  a[2] = LOWER(words[2][q], words[3][q]), a[3] = UPPER(words[2][q], words[3][q]);
#else
#define OPERANDS(a, q) \
  a[0] = words[0][2 * q], a[1] = words[0][2 * q + 1], a[2] = words[1][2 * q], a[3] = words[1][2 * q + 1];
#endif
#define KEEP_SUMS(j, c) \
  _Pragma("unroll") for (int q = 0; q < PRODUCTS; ++q) { \
    PART(j, lane, row + 2 * q) = sum[q][c]; \
    PART(j, lane, row + 2 * q + 1) = sum[q][c + 2]; \
  }
#endif
#define SUMS \
  ACC_T sum[RESULT_SETS][4]; \
  _Pragma("unroll") for (int q = 0; q < RESULT_SETS; ++q) \
    sum[q][0] = sum[q][1] = sum[q][2] = sum[q][3] = 0;
// The depth of a warp's lanes is in the slice, or is not, for all of them.
#define MULTIPLY(e, from) { \
  uint words[GATHER][WORDS], factors[S_WORDS]; \
  _Pragma("unroll") for (int i = 0; i < GATHER; ++i) { \
    LOADED(early[e + i]) \
    _Pragma("unroll") for (int w = 0; w < WORDS; ++w) \
      words[i][w] = ROUNDED(((const __private uint*)&load_)[w]); \
  } \
  const int k = WHOLE ? from + DEPTH(e) : min(from + DEPTH(e), kto - S_WIDE); \
  const CAT(uint, S_WORDS) of_s = CAT(as_uint, S_WORDS)( \
      *(__local const CAT(S_WORD, S_WIDE)*)(S_ROW(tid % 32 / 4) + S_PLACE(k))); \
  _Pragma("unroll") for (int w = 0; w < S_WORDS; ++w) \
    factors[w] = ROUNDED(((const __private uint*)&of_s)[w]); \
  _Pragma("unroll") for (int q = 0; q < PRODUCTS; ++q) { \
    uint a[4]; \
    OPERANDS(a, q) \
    MMA_WHERE(WHOLE || from + DEPTH(e) < kto, sum[q % RESULT_SETS], a, factors + 2 * q % S_WORDS) \
  } \
}
#define KEEP(j0) { \
  const int j = tid % 4 * 2 - j0; \
  if (j >= 0 && j < TOGETHER) \
    _Pragma("unroll") for (int c = 0; c < 2; ++c) { KEEP_SUMS(j + c, c) } \
}
