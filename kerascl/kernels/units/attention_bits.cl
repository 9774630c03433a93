// What dropout keeps, a bit for each probability in memory: rows of queries of HALVES 16-bit words.
// A lane's own of a block of BC keys from c0, where rows are queries, lie in bits[], at BIT_OF of
// its n-th group of eight keys and result e of that.
#define BIT_OF(n, e) (8 * ((n) % 4) + 4 * ((n) / 4 % 2) + (e))
#define EXCHANGE_BITS(to, from, distance) { \
    float got_; \
    SHUFFLE_XOR(got_, as_float(from), distance); \
    to = as_uint(got_); }
#define OR_OF(x, distance) { \
    uint more_; \
    EXCHANGE_BITS(more_, x, distance) \
    x |= more_; }
#define HALF_AT(t, at) (((int)(b * HEADS + h) * T + (t)) * HALVES + (at))
// 16 keys of query t, in the lower or upper half of a word: the block's words of 16 bits are counted.
#if BC % 16 == 0
#define LEAVE_HALF(word, t, nth, upper) { \
    const int at_ = c0 / 16 + (nth); \
    if ((t) < T && (nth) < NC / 2 && at_ < HALVES) pBits[HALF_AT(t, at_)] = (word) >> 16 * (upper); }
#else  // blocks begin at whole bytes
#define LEAVE_HALF(word, t, nth, upper) { \
    const int at_ = c0 / 8 + 2 * (nth); \
    EACH(k_, 2) if ((t) < T && 2 * (nth) + k_ < NC && at_ + k_ < 2 * HALVES) \
      ((__global uchar*)pBits)[2 * HALF_AT(t, 0) + at_ + k_] = (word) >> (16 * (upper) + 8 * k_); }
#endif
// Of 32 keys a lane has a pair in each group of eight; a quad's lanes together have all of two rows.
#define LEAVE_BITS(bits, row) \
    EACH(n_, (NC + 3) / 4) { \
      uint row_[2]; \
      EACH(r_, 2) { \
        row_[r_] = (bits[n_ / 2] >> (4 * (n_ % 2) + 2 * r_) & 0x03030303u) << 2 * t4; \
        OR_OF(row_[r_], 1) \
        OR_OF(row_[r_], 2) \
      } \
      const uint own_ = t4 & 1 ? row_[1] : row_[0]; \
      LEAVE_HALF(own_, (row) + 8 * (t4 & 1), 2 * n_ + (t4 >> 1), t4 >> 1) \
    }
// The same back: blocks begin at whole words of 16 bits.
#define FIND_BITS(bits, row) \
    EACH(n_, (NC + 7) / 8) bits[n_] = 0; \
    EACH(n_, NC / 2) EACH(r_, 2) { \
      const int t_ = min((row) + 8 * r_, T - 1), at_ = min(c0 / 16 + n_, HALVES - 1); \
      const uint half_ = pBits[HALF_AT(t_, at_)]; \
      bits[n_ / 4] |= (half_ >> 2 * t4 & 0x0303u) << (16 * (n_ % 2) + 4 * (n_ / 2 % 2) + 2 * r_); \
    }
// Or whole words of query t, which need no work while they come: for 16, 40 or 48 keys, or
// multiples of 32, as many as hold these, wherever blocks begin.  Then OWN_PAIRS has for four groups
// of keys this lane's in the lowest bits of each byte.
#define WORDS ((NC + 3) / 4)
#define WORD_AT(h, t, at) (((int)(b * HEADS + h) * T + (t)) * (HALVES >> 1) + (at))
#define FIND_WORDS(words, t) { \
    __global const uint* from_ = (__global const uint*)pBits + WORD_AT(h, min(t, T - 1), 0); \
    EACH(n_, WORDS) \
      words[n_] = from_[128 % BC ? min(c0 / 32 + n_, (HALVES >> 1) - 1) : c0 / 32 + n_]; }
#define OWN_PAIRS(words) \
    EACH(n_, WORDS) { \
      const uint next_ = n_ + 1 < WORDS ? words[(n_ + 1) % WORDS] : 0; \
      if (BC % 32) words[n_] = (uint)(((ulong)next_ << 32 | words[n_]) >> c0 % 32); \
      words[n_] >>= 2 * t4; \
    }

// Draws for the n-th four groups of keys: rows[r] gets this lane's pairs of row `row` + 8 r, in the
// lowest bits of each byte, and leave(...) all of a row.
#if COARSE  // a lane draws for four keys of a row at a time, and a quad exchanges bits
#define DRAW_FOUR(rows, row, n, leave) \
    uint rows[2]; \
    { \
      const int row_ = (row) + 8 * (t4 & 1); \
      uint own_ = 0, other_; \
      EACH(m_, 4) if (4 * (n) + m_ < NC) { \
        const uint2 block_ = DRAW(FOUR_OF(row_, c0 + 32 * (n) + 8 * m_ + 2 * (t4 & 2))); \
        if (block_.x << 16 < keepLimit) own_ |= 1u << 8 * m_; \
        if (block_.x < keepLimit) own_ |= 2u << 8 * m_; \
        if (block_.y << 16 < keepLimit) own_ |= 4u << 8 * m_; \
        if (block_.y < keepLimit) own_ |= 8u << 8 * m_; \
      } \
      own_ <<= 2 * (t4 & 2); \
      OR_OF(own_, 2) \
      leave(own_, row_, 2 * (n) + (t4 >> 1), t4 >> 1) \
      EXCHANGE_BITS(other_, own_, 1) \
      rows[0] = (t4 & 1 ? other_ : own_) >> 2 * t4; \
      rows[1] = (t4 & 1 ? own_ : other_) >> 2 * t4; \
    }
#else
#define DRAW_FOUR(rows, row, n, leave) \
    uint rows[2]; \
    { \
      uint all_[2]; \
      EACH(r_, 2) rows[r_] = 0; \
      EACH(m_, 4) if (4 * (n) + m_ < NC) { \
        DRAWS_ALONG(words_, row, c0 + 32 * (n) + 8 * m_) \
        EACH(e_, 4) if (words_[e_] < keepLimit) rows[e_ >> 1] |= 1u << (8 * m_ + (e_ & 1)); \
      } \
      EACH(r_, 2) { \
        all_[r_] = rows[r_] << 2 * t4; \
        OR_OF(all_[r_], 1) \
        OR_OF(all_[r_], 2) \
      } \
      const uint own_ = t4 & 1 ? all_[1] : all_[0]; \
      leave(own_, (row) + 8 * (t4 & 1), 2 * (n) + (t4 >> 1), t4 >> 1) \
    }
#endif
#define DRAW_BITS(bits, row, leave) \
    EACH(n_, (NC + 7) / 8) bits[n_] = 0; \
    EACH(n_, (NC + 3) / 4) { \
      DRAW_FOUR(rows_, row, n_, leave) \
      bits[n_ / 2] |= ((rows_[0] & 0x03030303u) | (rows_[1] & 0x03030303u) << 2) << 4 * (n_ % 2); \
    }
