// What dropout keeps, a bit for each probability in memory: rows of queries of HALVES 16-bit words.  A
// lane's own of a block of BC keys, where rows are queries, lie in bits[], at BIT_OF of its n-th group
// of eight keys and result e of that.
#define BIT_OF(n, e) (8 * ((n) % 4) + 4 * ((n) / 4 % 2) + (e))
#define EXCHANGE_BITS(to, from, distance) { \
    float got_; \
    SHUFFLE_XOR(got_, as_float(from), distance); \
    to = as_uint(got_); }
#define OR_OF(x, distance) { \
    uint more_; \
    EXCHANGE_BITS(more_, x, distance) \
    x |= more_; }
#define HALF_AT(t, at) (((b * HEADS + h) * T + (t)) * HALVES + (at))
// 16 keys of query t, in the lower or upper half of a word: the block's words of 16 bits are counted.
#define LEAVE_HALF(word, t, nth, upper) { \
    const int at_ = c0 / 16 + (nth); \
    if ((t) < T && (nth) < NC / 2 && at_ < HALVES) pBits[HALF_AT(t, at_)] = (word) >> 16 * (upper); }
// Of 32 keys a lane has a pair in each group of eight; a quad's lanes together have all of two rows.
#define LEAVE_BITS \
    EACH(n_, (NC + 3) / 4) { \
      uint row_[2]; \
      EACH(r_, 2) { \
        row_[r_] = (bits[n_ / 2] >> (4 * (n_ % 2) + 2 * r_) & 0x03030303u) << 2 * t4; \
        OR_OF(row_[r_], 1) \
        OR_OF(row_[r_], 2) \
      } \
      const uint own_ = t4 & 1 ? row_[1] : row_[0]; \
      LEAVE_HALF(own_, row0 + 8 * (t4 & 1), 2 * n_ + (t4 >> 1), t4 >> 1) \
    }
// The same back: blocks begin at whole words of 16 bits.
#define FIND_BITS \
    EACH(n_, (NC + 7) / 8) bits[n_] = 0; \
    EACH(n_, NC / 2) EACH(r_, 2) { \
      const int t_ = min(row0 + 8 * r_, T - 1), at_ = min(c0 / 16 + n_, HALVES - 1); \
      const uint half_ = pBits[HALF_AT(t_, at_)]; \
      bits[n_ / 4] |= (half_ >> 2 * t4 & 0x0303u) << (16 * (n_ % 2) + 4 * (n_ / 2 % 2) + 2 * r_); \
    }

// Words of 16 bits decide: a lane draws for four keys of a row at a time, and a quad exchanges bits.
#define DRAW_COARSE(leave) \
    EACH(n_, (NC + 7) / 8) bits[n_] = 0; \
    EACH(n_, (NC + 3) / 4) { \
      const int row_ = row0 + 8 * (t4 & 1); \
      uint own_ = 0, other_; \
      EACH(m_, 4) if (4 * n_ + m_ < NC) { \
        const uint2 block_ = DRAW(FOUR_OF(row_, c0 + 32 * n_ + 8 * m_ + 2 * (t4 & 2))); \
        if (block_.x << 16 < keepLimit) own_ |= 1u << 8 * m_; \
        if (block_.x < keepLimit) own_ |= 2u << 8 * m_; \
        if (block_.y << 16 < keepLimit) own_ |= 4u << 8 * m_; \
        if (block_.y < keepLimit) own_ |= 8u << 8 * m_; \
      } \
      own_ <<= 2 * (t4 & 2); \
      OR_OF(own_, 2) \
      leave(own_, row_, 2 * n_ + (t4 >> 1), t4 >> 1) \
      EXCHANGE_BITS(other_, own_, 1) \
      const uint upper_ = t4 & 1 ? other_ : own_, lower_ = t4 & 1 ? own_ : other_; \
      bits[n_ / 2] |= ((upper_ >> 2 * t4 & 0x03030303u) | (lower_ >> 2 * t4 & 0x03030303u) << 2) \
          << 4 * (n_ % 2); \
    }
