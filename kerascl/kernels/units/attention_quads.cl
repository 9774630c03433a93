// Where results of products on NVIDIA's matrix units lie: of 16 x 8, lane 4 g + t4 holds the rows g,
// g + 8 (slowest) by the columns 2 t4, 2 t4 + 1, so four neighbours share a row.  A lane's results are
// numbered by row and column (fastest).
#define ROW(i, e) (16 * (i) + 8 * ((e) >> 1))  // of result e of a fragment, from row0
#define COLUMN(j, e) (8 * (j) + 2 * t4 + ((e) & 1))
#define QUAD(x, other, both) { \
    float other; \
    SHUFFLE_XOR(other, x, 1); \
    x = both; \
    SHUFFLE_XOR(other, x, 2); \
    x = both; }

// Eight neighbours of a row at a time, x[i_][..][2 r] and the one beside it times `factor`: lane t4 of
// a quad collects those of fragment t4 of four.  Both of a pair are read and assigned whatever the
// lane is: of one or the other compilers make an address, and the values lie in memory.
#define STORE_ROW(x, r, factor, there, at, features, padded, put) \
  EACH(n_, ((padded) / 8 + 3) / 4) { \
    float v_[8]; \
    EACH(m_, 4) EACH(e_, 2) \
      v_[2 * m_ + e_] = x[(4 * n_ + m_) % ((padded) / 8)][2 * (r) + e_] * (factor); \
    EACH(p_, 2) EACH(e_, 2) SWAP_LANES(v_[4 * p_ + e_], v_[4 * p_ + 2 + e_], 1) \
    EACH(p_, 2) EACH(e_, 2) SWAP_LANES(v_[2 * p_ + e_], v_[2 * p_ + 4 + e_], 2) \
    const int d_ = 8 * (4 * n_ + t4); \
    if ((there) && d_ < (features)) put(8, v_, (at) + d_) \
  }
#define SWAP_LANES(first, second, bit) { \
    const float first_ = first, second_ = second, mine_ = t4 & bit ? first_ : second_; \
    float got_; \
    SHUFFLE_XOR(got_, mine_, bit); \
    first = t4 & bit ? got_ : first_; \
    second = t4 & bit ? second_ : got_; \
  }
#ifdef EPILOGUE_VECTOR
#define PUT_RESULTS(count, v, at) EPILOGUE_VECTOR(count, v, at)
#else
#define PUT_RESULTS(count, v, at) EACH(c_, count) EPILOGUE(v[c_], (at) + c_)
#endif
#define PUT_RESULTS_ONE(x, at) EPILOGUE(x, at)

// What decides whether dropout keeps the four results of a fragment: with keys along columns (ALONG),
// where t is the query of this lane's first row and s the key of the fragment's first column, or along
// rows (ACROSS), t being the query of this lane's first column and s the key of its first row.  Four
// neighbouring keys share a block of the generator, so lanes draw one each and exchange its parts.
#if HAS_DROPOUT && COARSE
#define EXCHANGE_WORD(to, from, bits) { \
    float got_; \
    SHUFFLE_XOR(got_, as_float(from), bits); \
    to = as_uint(got_); }
// Two lanes hold four keys of two queries.
#define DRAWS_ALONG(words, t, s) \
  uint words[4]; \
  { \
    const bool odd_ = t4 & 1; \
    const uint2 block_ = DRAW(FOUR_OF((t) + 8 * (t4 & 1), (s) + 2 * t4)); \
    const uint own_ = odd_ ? block_.y : block_.x; \
    uint other_; \
    EXCHANGE_WORD(other_, odd_ ? block_.x : block_.y, 1) \
    words[1] = odd_ ? other_ : own_; \
    words[3] = odd_ ? own_ : other_; \
    words[0] = words[1] << 16; \
    words[2] = words[3] << 16; \
  }
// Four lanes hold four keys each of two rows by two queries: first those of the same query exchange
// the halves that they keep of their blocks, then neighbours the keys that they hold.
#define DRAWS_ACROSS(words, t, s) \
  uint words[4]; \
  { \
    const bool odd_ = g & 1, far_ = g & 2; \
    const uint2 block_ = DRAW(FOUR_OF((t) + (g & 1), (s) + 4 * (g & 2))); \
    const uint own_ = far_ ? block_.y : block_.x; \
    uint other_; \
    EXCHANGE_WORD(other_, far_ ? block_.x : block_.y, 8) \
    const uint row0_ = far_ ? other_ : own_, row1_ = far_ ? own_ : other_; \
    const uint low_ = (row0_ & 0xffffu) | row1_ << 16, high_ = row0_ >> 16 | (row1_ & 0xffff0000u); \
    EXCHANGE_WORD(other_, odd_ ? low_ : high_, 4) \
    words[2] = odd_ ? other_ : low_; \
    words[3] = odd_ ? high_ : other_; \
    words[0] = words[2] << 16; \
    words[1] = words[3] << 16; \
  }
#elif HAS_DROPOUT
#define DRAWS_ALONG(words, t, s) \
  uint words[4]; \
  EACH(e_, 4) words[e_] = WORD((t) + 8 * (e_ >> 1), (s) + 2 * t4 + (e_ & 1));
#define DRAWS_ACROSS(words, t, s) \
  uint words[4]; \
  EACH(e_, 4) words[e_] = WORD((t) + (e_ & 1), (s) + 8 * (e_ >> 1));
#else
#define DRAWS_ALONG(words, t, s)
#define DRAWS_ACROSS(words, t, s)
#endif
