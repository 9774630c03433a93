// How attention_fragment.cl moves data: tiles in local memory as an instruction's operands lie
// (fragment.py), each with its depth along rows; where one operand is to be read along its columns,
// its transpose is beside it or instead of it.
//
// A chunk of 16 bytes holds X_RUN elements of each of as many rows as fit, and a line the chunks of
// the same rows, an odd number of them, so that neighbouring lines begin in other banks.
#define UNROLL _Pragma("unroll")
#define SLOPE_SCALE 1.0f  // sums are scaled: 16 bits hold few small numbers
#define RUN(X) (X##_RUN * LB)
#define LINE_ROWS(X) (16 / RUN(X))
#define LINE(X, depth) ((depth) * LB * LINE_ROWS(X) + 16)
#define AT(X, depth, r, b) \
  ((r) / LINE_ROWS(X) * LINE(X, depth) + (b) / RUN(X) * 16 + (r) % LINE_ROWS(X) * RUN(X) + (b) % RUN(X))
#define PART(X, rows, depth) ((rows) / LINE_ROWS(X) * LINE(X, depth))
// What float32 leaves of two 16-bit floats lies behind the first of them.
#define TILE(X, rows, depth) (PART(X, rows, depth) * (PRODUCTS > 1 ? 2 : 1))

#define BYTES ((__local uchar*)memory)
#define TO(T, at) *(__local T*)(BYTES + (at))
#if EB == 2
#define ELEMENT ushort
#define ELEMENT4 ushort4
#else
#define ELEMENT uint
#define ELEMENT4 uint4
#endif
// The bits x to row r, depth k of a tile; four neighbours along the depth.
#if PRODUCTS == 1
#define PUT(X, at, rows, depth, r, k, x) TO(ELEMENT, (at) + AT(X, depth, r, (k) * LB)) = (x);
#define PUT_WHOLE(X, at, rows, depth, r, k, x) TO(ELEMENT4, (at) + AT(X, depth, r, (k) * LB)) = (x);
#else
#define PUT(X, at, rows, depth, r, k, x) { \
  const uint2 parts_ = kcl_parts(x); \
  const uint to_ = (at) + AT(X, depth, r, (k) * LB); \
  TO(ushort, to_) = parts_.s0; \
  TO(ushort, to_ + PART(X, rows, depth)) = parts_.s1; }
#define PUT_WHOLE(X, at, rows, depth, r, k, x) { \
  const uint2 s0_ = kcl_parts((x).s0), s1_ = kcl_parts((x).s1); \
  const uint2 s2_ = kcl_parts((x).s2), s3_ = kcl_parts((x).s3); \
  const uint to_ = (at) + AT(X, depth, r, (k) * LB); \
  TO(ushort4, to_) = (ushort4)(s0_.s0, s1_.s0, s2_.s0, s3_.s0); \
  TO(ushort4, to_ + PART(X, rows, depth)) = (ushort4)(s0_.s1, s1_.s1, s2_.s1, s3_.s1); }
#endif
#define PUT_EACH(X, at, rows, depth, r0, k0, r, k, x) \
  PUT(X, at, rows, depth, r0, k0, (x).s0) \
  PUT(X, at, rows, depth, (r0) + (r), (k0) + (k), (x).s1) \
  PUT(X, at, rows, depth, (r0) + 2 * (r), (k0) + 2 * (k), (x).s2) \
  PUT(X, at, rows, depth, (r0) + 3 * (r), (k0) + 3 * (k), (x).s3)

// rows x features at `from` into the tiles that KEEP_<to> names; what lies outside is zero.
#define LOAD_TILE(to, from, row, step, left, rows, features, padded) { \
    __global const ELEMENT* from_ = (__global const ELEMENT*)(from); \
    FEW_LOADS for (int i_ = lid; i_ < (rows) * ((padded) / AT_ONCE); i_ += THREADS) { \
      const int r_ = i_ / ((padded) / AT_ONCE), c_ = i_ % ((padded) / AT_ONCE) * AT_ONCE; \
      LOADED x_ = 0; \
      if (r_ < (left) && c_ < (features)) x_ = LOAD_AT(from_, (INDEX_T)r_ * (row), c_, step); \
      KEEP_##to \
    } \
  }
#if VECTORS
#define AT_ONCE 4
#define LOADED ELEMENT4
#define LOAD_AT(from, row, c, step) *(__global const ELEMENT4*)((from) + (row) + (c))
#define KEEP(X, at, rows, depth) \
  if (RUN(X) >= 4 * LB) PUT_WHOLE(X, at, rows, depth, r_, c_, x_) \
  else { PUT_EACH(X, at, rows, depth, r_, c_, 0, 1, x_) }
#define TURN(X, at, rows, depth) PUT_EACH(X, at, rows, depth, c_, r_, 1, 0, x_)
#else
#define AT_ONCE 1
#define LOADED ELEMENT
#define LOAD_AT(from, row, c, step) (from)[(row) + (c) * (step)]
#define KEEP(X, at, rows, depth) PUT(X, at, rows, depth, r_, c_, x_)
#define TURN(X, at, rows, depth) PUT(X, at, rows, depth, c_, r_, x_)
#endif

// Words of a fragment from byte b of row r of a tile on, a pair of its place and its depth; READ_A and
// READ_B are made of these.
#define PLACE_OF(at, depth) (at)
#define DEPTH_OF(at, depth) (depth)
#define READ1(X, to, tile, r, b) (to)[0] = TO(uint, PLACE_OF tile + AT(X, DEPTH_OF tile, r, b));
#define READ2(X, to, tile, r, b) { \
  const uint2 v_ = TO(uint2, PLACE_OF tile + AT(X, DEPTH_OF tile, r, b)); \
  (to)[0] = v_.x, (to)[1] = v_.y; }
#define READ4(X, to, tile, r, b) { \
  const uint4 v_ = TO(uint4, PLACE_OF tile + AT(X, DEPTH_OF tile, r, b)); \
  (to)[0] = v_.x, (to)[1] = v_.y, (to)[2] = v_.z, (to)[3] = v_.w; }

// sums += rows of tile a from `a_row` on times rows of tile b.  Of three products the first takes a's
// rests, the second b's.  Compilers would bring operands of all steps first, until registers spill.
#define STEP_BY_STEP _Pragma("unroll 1")
#define ADD_PRODUCTS(sums, a, a_rows, a_row, b, b_rows, depth) \
  STEP_BY_STEP for (int s_ = 0; s_ < PRODUCTS * ((depth) / FRAGMENT_K); ++s_) { \
    const int at_ = s_ % ((depth) / FRAGMENT_K) * FRAGMENT_K, part_ = s_ / ((depth) / FRAGMENT_K); \
    const uint rest_a_ = PRODUCTS > 1 && part_ == 0 ? PART(A, a_rows, depth) : 0; \
    const uint rest_b_ = PRODUCTS > 1 && part_ == 1 ? PART(B, b_rows, depth) : 0; \
    uint left_[MI][A_WORDS]; \
    EACH(i_, MI) READ_A(left_[i_], ((a) + rest_a_, depth), (a_row) + i_ * FRAGMENT_M, at_) \
    EACH(j_, (b_rows) / FRAGMENT_N) { \
      uint right_[B_WORDS]; \
      READ_B(right_, ((b) + rest_b_, depth), j_ * FRAGMENT_N, at_) \
      EACH(i_, MI) MMA(sums[i_][j_], left_[i_], right_); \
    } \
  }
#define CLEAR(sums, count) EACH(i_, MI) EACH(j_, count) EACH(v_, SUMS) sums[i_][j_][v_] = 0;
// The probabilities, or their gradients, that a lane holds as results, as left operands.
#define HAND_ONE(v, row, column) { \
    const float one_ = HANDED[i][j][v]; \
    ELEMENT bits_; \
    BITS(bits_, one_) \
    PUT(A, mine, SUB_ROWS, BC, i * FRAGMENT_M + row, j * FRAGMENT_N + column, bits_) }
#if EB == 2
#define BITS(to, x) X_STORE((__private X_T*)&to, 0, x);
#else
#define BITS(to, x) to = as_uint(x);
#endif
