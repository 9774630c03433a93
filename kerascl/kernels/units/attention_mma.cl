// Attention on NVIDIA's matrix units, after FlashAttention-2 (Dao, 2023).  As attention_tile.cl a
// work-group owns BR rows and walks over blocks of BC columns (rows are queries and columns keys,
// except in the keys' gradient), and a warp owns MI times 16 rows.  cp.async brings the blocks to come
// into a ring of STAGES while this one is multiplied.  Logits become probabilities in the registers
// where the units leave them, from where the next product takes its left operand.
//
// Tiles of 16-bit floats are those of attention_mma_tiles16.cl, others those of
// attention_mma_tiles32.cl:
//   WP, DP                           features of keys and values, padded
//   CHUNK, STEP(step)                elements that are copied at once, and from one to the next
//   MOVE(to, from)                   copies a chunk
//   MOVE_SOME(to, from, i, n)        the one at element i, or zeros where n == 0
//   KEEP, HOLD(name, ...)            own rows as left operands
//   PRODUCTS(x, own, tile, padded)   declares x[MI][NC], own rows times the rows of a tile
//   ADD_PRODUCT(sums, x, tile, ...)  sums[MI][parts] += x[MI][NC] times the rows' features
//   STORE_RESULTS(...)               a row of such sums
//
// Rows in local memory are an odd number of 16-byte chunks apart, so that the eight rows of a matrix
// that ldmatrix reads meet all banks once, and a fragment's address is a lane's place and a constant.
#define WS (EB * WP + 16)  // bytes from row to row
#define DS (EB * DP + 16)
#define NC (BC / 8)
#define WARP_ROWS (16 * MI)
#ifdef FORWARD
#define OWN_V 0
#define FACTS 0
#else
#define OWN_V DS
// Of a query in a stage: statistic, delta, bits.
#define FACTS (KEYS ? 8 + 4 * KEPT_BITS * OWN_WORDS : 0)
#endif
#define OWN (OWN_LOCAL * BR * (WS + OWN_V))
#define STAGE (BC * (WS + DS + FACTS))
#define LOCAL_BYTES (OWN + STAGES * STAGE)

// rows x features at `from` into a local tile; what lies outside is zero.
#define COPY_TILE(to, from, row, step, left, rows, features, padded) { \
    __global const X_T* from_ = from; \
    const int left_ = left; \
    if ((features) == (padded) && left_ >= (rows)) { \
      COPY_ROWS(to, row, step, rows, padded, MOVE(to_, from_ + i_);) \
    } else { \
      COPY_ROWS(to, row, step, rows, padded, \
                const int n_ = r_ < left_ && CHUNK * c_ < (features); \
                MOVE_SOME(to_, from_, i_, n_);) \
    } \
  }
#define COPY_ROWS(to, row, step, rows, padded, copy) \
  EACH(k_, ((rows) * ((padded) / CHUNK) + THREADS - 1) / THREADS) { \
    const uint at_ = k_ * THREADS + lid; \
    if ((rows) * ((padded) / CHUNK) % THREADS == 0 || at_ < (rows) * ((padded) / CHUNK)) { \
      const int r_ = at_ / ((padded) / CHUNK), c_ = at_ % ((padded) / CHUNK); \
      const uint to_ = (to) + r_ * (EB * (padded) + 16) + CHUNK * EB * c_; \
      const INDEX_T i_ = (INDEX_T)r_ * (row) + CHUNK * c_ * STEP(step); \
      copy \
    } \
  }
// Whether a block has logits that are more than products: those hidden, those with a bias, and where
// logits do not grow with products (DOWNWARD).
#define GENERAL(last, first_query) \
  (HAS_BIAS || HAS_MASK || DOWNWARD || (last) >= S || (CAUSAL && (last) > (first_query)))

// Whether rows of a warp meet a block at all, given whether the diagonal lets them.  Warps that have
// none to do leave the units to others, but with 16-bit tiles, whose registers do not suffice for it.
#define MEETS(below) (!CAUSAL || HAS_MASK || (below))

#ifdef FORWARD
#define LOAD_BLOCK(at, s) \
  COPY_TILE(at, k + (s) * k1, k1, k3, S - (s), BC, WIDTH, WP) \
  COPY_TILE((at) + BC * WS, v + (s) * v1, v1, v3, S - (s), BC, DEPTH, DP)

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void ATTENTION(
    FORWARD_PARAMS) {
  LOCAL_MEMORY(LOCAL_BYTES)
  uint base;
  LOCAL_ADDRESS(base, &memory[0]);
  const int lid = get_local_id(0), lane = lid % 32, g = lane / 4, t4 = lane % 4;
  DRAW_KEY
  // later queries of a causal problem see more keys: they start first
  const int first = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR;
  const int warp0 = first + lid / 32 * WARP_ROWS, row0 = warp0 + g;
  const int h = get_group_id(1), b = get_group_id(2), heads = get_num_groups(1);
  __global const X_T* k = pK + kOff + b * k0 + h / REPEAT * k2;
  __global const X_T* v = pV + vOff + b * v0 + h / REPEAT * v2;
  __global const X_T* q_ = pQ + qOff + b * q0 + h * q2 + first * q1;
  KEEP(base, q_, q1, q3, T - first, WIDTH, WP)
  HOLD(q, base, q_, q1, q3, T - first, WIDTH, WP)
  float o[MI][DP / 8][4], top[MI][2], sum[MI][2];
  EACH(i, MI) {
    EACH(r, 2) { top[i][r] = LOWEST; sum[i][r] = 0; }
    EACH(n, DP / 8) EACH(e, 4) o[i][n][e] = 0;
  }
  const uint ring = base + OWN;
  int end = CAUSAL ? min(S, (first + BR + BC - 1) / BC * BC) : S, s0 = 0;
#if CAUSAL && HAS_MASK
  for (;;) {
#endif
  EACH(n, STAGES - 1) {
    if (s0 + n * BC < end) { LOAD_BLOCK(ring + n * STAGE, s0 + n * BC) }
    COMMIT;
  }
  uint stage = 0;
  for (; s0 < end; s0 += BC) {
    WAIT(STAGES - 2);
    SYNC;  // this block is there for all, and the one before no longer read
    const int next = s0 + (STAGES - 1) * BC;
    if (next < end) {
      const uint to = ring + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE;
      LOAD_BLOCK(to, next)
    }
    COMMIT;
    if (EB == 2 || WORKS(warp0 < T && MEETS(warp0 + WARP_ROWS > s0))) {
      const uint tileK = ring + stage * STAGE, tileV = tileK + BC * WS;
      PRODUCTS(x, q, tileK, WP)
      float factor = logScale;
      if (GENERAL(s0 + BC - 1, first)) {
        factor = 1.0f;
        EACH(i, MI) EACH(j, NC) EACH(e, 4) {
          const int t = row0 + ROW(i, e), s = s0 + COLUMN(j, e);
          FINISH_LOGIT(x[i][j][e], t, s)
          if (s >= end) x[i][j][e] = -INFINITY;
        }
      }
      EACH(i, MI) EACH(r, 2) {
        float most = x[i][0][2 * r];
        EACH(j, NC) EACH(e, 2) most = fmax(most, x[i][j][2 * r + e]);
        QUAD(most, more_, fmax(most, more_))
        most = fmax(top[i][r], most * factor);
        float keep;
        EXP2(keep, top[i][r] - most);
        top[i][r] = most;
        sum[i][r] *= keep;
        EACH(n, DP / 8) { o[i][n][2 * r] *= keep; o[i][n][2 * r + 1] *= keep; }
        EACH(j, NC) EACH(e, 2) {
          float w;
          EXP2(w, x[i][j][2 * r + e] * factor - most);
          sum[i][r] += w;
          x[i][j][2 * r + e] = w;
        }
      }
#if KEPT_BITS
      const int c0 = s0;
      EACH(i, MI) EACH(n, WORDS) {
        DRAW_FOUR(rows, row0 + ROW(i, 0), n, LEAVE_HALF)
        EACH(m, 4) EACH(e, 4) if (4 * n + m < NC)
          x[i][4 * n + m][e] = rows[e >> 1] & 1u << (8 * m + (e & 1)) ? x[i][4 * n + m][e] : 0.0f;
      }
#elif HAS_DROPOUT
      EACH(i, MI) EACH(j, NC) {
        DRAWS_ALONG(words, row0 + ROW(i, 0), s0 + 8 * j)
        EACH(e, 4) x[i][j][e] = KEPT(x[i][j][e], words[e]);
      }
#endif
      ADD_PRODUCT(o, x, tileV, DP)
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
#if CAUSAL && HAS_MASK
    // A row that sees nothing at all is uniform over every key, the future ones too.
    if (end == S) break;
    uint blind = 0;
    SYNC;
    if (lid == 0) PUT_WORD(ring, blind);
    EACH(i, MI) EACH(r, 2) if (row0 + ROW(i, 2 * r) < T && top[i][r] == NEGATIVE) blind = 1;
    SYNC;
    if (blind) PUT_WORD(ring, blind);
    SYNC;
    GET_WORD(blind, ring);
    if (!blind) break;
    SYNC;
    end = S;
  }
#endif
  EACH(i, MI) EACH(r, 2) {
    const int t = row0 + ROW(i, 2 * r);
    QUAD(sum[i][r], more_, sum[i][r] + more_)
    if (t < T) {
      if (t4 == 0) pStat[(INDEX_T)(b * heads + h) * T + t] = top[i][r] + log2(sum[i][r]);
    }
    const INDEX_T at = (((INDEX_T)b * T + t) * heads + h) * DEPTH;
    const float share = SHARE(sum[i][r]);
    STORE_RESULTS(o[i], r, share, t < T, at, DEPTH, DP, PUT_RESULTS)
  }
}
#endif

#ifdef BACKWARD
// What decides whether dropout keeps the results of a fragment: numbers, or bits that the forward
// pass has left.  Queries fetch their rows' words.  To keys come with a query's facts the OWN_WORDS
// that have bits of the group's keys, of which a warp has 16 or 32.
#define OWN_WORDS ((BR + 31) / 32)
#if KEPT_BITS
#undef KEPT
#define KEPT(x, bit) ((bit) ? (x) : 0.0f)
#define DRAWS(words, i, j) \
  uint words[4]; \
  EACH(e_, 4) words[e_] = KEPT_BIT(i, j, e_);
#elif KEYS
#define DRAWS(words, i, j) DRAWS_ACROSS(words, c0 + COLUMN(j, 0), row0 + ROW(i, 0))
#else
#define DRAWS(words, i, j) DRAWS_ALONG(words, row0 + ROW(i, 0), c0 + 8 * (j))
#endif
#if KEPT_BITS && KEYS
#define KEPT_BIT(i, j, e) (as_uint(kept_[(e) & 1]) & own_bit << (16 * (i) + 8 * ((e) >> 1)))
#define GET_KEPT(j) \
  float kept_[2]; \
  GET_FLOATS(kept_[0], kept_[1], own_bits + otherV + BC * (DS + 8) + 4 * COLUMN(j, 0));
#define COPY_KEPT(to, h, t, there) \
  EACH(w_, OWN_WORDS) \
    COPY_SOME(CP4, (to) + 4 * BC * w_, (__global const uint*)pBits \
              + WORD_AT(h, t, min(r0 / 32 + w_, HALVES / 2 - 1)), there);
#else
#define KEPT_BIT(i, j, e) (kept[i][(e) >> 1][(j) / 4] & 1u << (8 * ((j) % 4) + ((e) & 1)))
#define GET_KEPT(j)
#define COPY_KEPT(to, h, t, there)
#endif
#if KEYS
// Places (head, first query) of the blocks that the group's keys meet.
#if CAUSAL && !HAS_MASK
#define BEGIN (r0 / BC * BC)
#else
#define BEGIN 0
#endif
#if CAUSAL && HAS_MASK
// Queries before all keys at hand meet them only where one sees nothing at all.
inline bool sees(__global const float* stats, const int t0, const int T) {
  bool all = true;
  for (int t = t0; t < min(T, t0 + BC); ++t) all = all && stats[t] > NEGATIVE;
  return all;
}
#define SKIPPED(h, t) ((t) + BC <= r0 && sees(pStat + (INDEX_T)(b * HEADS + (h)) * T, t, T))
#else
#define SKIPPED(h, t) false
#endif
#define SETTLE(h, t) \
  while (h < heads_end) { \
    if (t >= T) { \
      ++h; \
      t = BEGIN; \
    } else if (SKIPPED(h, t)) { \
      t += BC; \
    } else { \
      break; \
    } \
  }
#define PLACE_AT(h, t) \
  int h = group * REPEAT, t = BEGIN; \
  SETTLE(h, t)
#define THERE(h, t) (h < heads_end)
#define LOAD_BLOCK(at, h_, t) \
  COPY_TILE(at, pQ + qOff + b * q0 + h_ * q2 + (t) * q1, q1, q3, T - (t), BC, WIDTH, WP) \
  COPY_TILE((at) + BC * WS, pG + gOff + b * g0 + h_ * g2 + (t) * g1, g1, g3, T - (t), BC, DEPTH, DP) \
  for (int i_ = lid; i_ < BC; i_ += THREADS) { \
    const int n_ = (t) + i_ < T, t_ = n_ ? (t) + i_ : 0; \
    COPY_SOME(CP4, (at) + BC * (WS + DS) + 4 * i_, pStat + (INDEX_T)(b * HEADS + h_) * T + t_, n_); \
    COPY_SOME(CP4, (at) + BC * (WS + DS + 4) + 4 * i_, \
              pDelta + ((INDEX_T)b * T + t_) * HEADS + h_, n_); \
    COPY_KEPT((at) + BC * (WS + DS + 8) + 4 * i_, h_, t_, n_) \
  }
#else
#define SETTLE(h, t)
#define PLACE_AT(h, t) int t = 0;
#define THERE(h, t) (t < end)
#define LOAD_BLOCK(at, h, s) \
  COPY_TILE(at, pK + kOff + b * k0 + group * k2 + (s) * k1, k1, k3, S - (s), BC, WIDTH, WP) \
  COPY_TILE((at) + BC * WS, pV + vOff + b * v0 + group * v2 + (s) * v1, v1, v3, S - (s), BC, DEPTH, DP)
#endif

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void ATTENTION_GRADIENT(
    BACKWARD_PARAMS) {
  LOCAL_MEMORY(LOCAL_BYTES)
  uint base;
  LOCAL_ADDRESS(base, &memory[0]);
  const int lid = get_local_id(0), lane = lid % 32, g = lane / 4, t4 = lane % 4;
  const int b = get_group_id(2), own0 = lid / 32 * WARP_ROWS;
  DRAW_KEY
  float sum[MI][WP / 8][4];
  EACH(i, MI) EACH(n, WP / 8) EACH(e, 4) sum[i][n][e] = 0;
#if KEYS
  const int r0 = (int)get_group_id(0) * BR, group = get_group_id(1);
  const int warp0 = r0 + own0, row0 = warp0 + g;
  const int heads_end = (group + 1) * REPEAT;
  float sumV[MI][DP / 8][4];
  EACH(i, MI) EACH(n, DP / 8) EACH(e, 4) sumV[i][n][e] = 0;
  __global const X_T* k_ = pK + kOff + b * k0 + group * k2 + r0 * k1;
  __global const X_T* v_ = pV + vOff + b * v0 + group * v2 + r0 * v1;
  KEEP(base, k_, k1, k3, S - r0, WIDTH, WP)
  KEEP(base + BR * WS, v_, v1, v3, S - r0, DEPTH, DP)
#if KEPT_BITS
  const uint own_bits = 4 * BC * (warp0 / 32 - r0 / 32), own_bit = 1u << (warp0 % 32 + g);
#endif
  HOLD(own, base, k_, k1, k3, S - r0, WIDTH, WP)
  HOLD(ownV, base + BR * WS, v_, v1, v3, S - r0, DEPTH, DP)
#else
  const int r0 = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR;
  const int warp0 = r0 + own0, row0 = warp0 + g;
  const int h = get_group_id(1), group = h / REPEAT;
  __global const X_T* q_ = pQ + qOff + b * q0 + h * q2 + r0 * q1;
  __global const X_T* g_ = pG + gOff + b * g0 + h * g2 + r0 * g1;
  KEEP(base, q_, q1, q3, T - r0, WIDTH, WP)
  KEEP(base + BR * WS, g_, g1, g3, T - r0, DEPTH, DP)
  HOLD(own, base, q_, q1, q3, T - r0, WIDTH, WP)
  HOLD(ownV, base + BR * WS, g_, g1, g3, T - r0, DEPTH, DP)
  __global const float* stats = pStat + (INDEX_T)(b * HEADS + h) * T;
  float stat[MI][2], delta[MI][2];
  EACH(i, MI) EACH(r, 2) {
    const int t = row0 + ROW(i, 2 * r);
    stat[i][r] = t < T ? stats[t] : 0.0f;
    delta[i][r] = t < T ? pDelta[((INDEX_T)b * T + t) * HEADS + h] : 0.0f;
  }
  int end = CAUSAL ? min(S, r0 + BR) : S;
  if (CAUSAL && HAS_MASK)
    for (int t = r0; t < min(T, r0 + BR); ++t)
      if (stats[t] <= NEGATIVE) end = S;
#endif
  const uint ring = base + OWN;
  uint stage = 0, to = 0;
  PLACE_AT(h_next, next)
  EACH(n, STAGES - 1) {
    if (THERE(h_next, next)) {
      LOAD_BLOCK(ring + n * STAGE, h_next, next)
      next += BC;
      SETTLE(h_next, next)
    }
    COMMIT;
  }
  PLACE_AT(h, c0)
  while (THERE(h, c0)) {
    WAIT(STAGES - 2);
    SYNC;  // this block is there for all, and the one before no longer read
    if (THERE(h_next, next)) {
      to = ring + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE;
      LOAD_BLOCK(to, h_next, next)
      next += BC;
      SETTLE(h_next, next)
    }
    COMMIT;
    if (EB == 2 || WORKS(warp0 < ROWS && MEETS(KEYS ? c0 + BC > warp0 : warp0 + WARP_ROWS > c0))) {
      const uint other = ring + stage * STAGE, otherV = other + BC * WS;
#if KEPT_BITS && !KEYS
      uint kept[MI][2][WORDS];
      EACH(i, MI) EACH(r, 2) FIND_WORDS(kept[i][r], row0 + ROW(i, 2 * r))
#endif
      PRODUCTS(x, own, other, WP)
      PRODUCTS(y, ownV, otherV, DP)
      float factor = logScale;
#if KEYS
#define AT(i, j, e) const int t = c0 + COLUMN(j, e), s = row0 + ROW(i, e);
      if (GENERAL(r0 + BR - 1, c0)) {
#else
#define AT(i, j, e) const int t = row0 + ROW(i, e), s = c0 + COLUMN(j, e);
      if (GENERAL(c0 + BC - 1, r0)) {
#endif
        factor = 1.0f;
        EACH(i, MI) EACH(j, NC) EACH(e, 4) {
          AT(i, j, e)
          FINISH_LOGIT(x[i][j][e], t, s)
          if (s >= S) x[i][j][e] = -INFINITY;
        }
      }
#if KEPT_BITS && !KEYS
      EACH(i, MI) EACH(r, 2) OWN_PAIRS(kept[i][r])
#endif
      EACH(j, NC) {
#if KEYS
        GET_KEPT(j)
        float stat_[2], delta_[2];
        GET_FLOATS(stat_[0], stat_[1], otherV + BC * DS + 4 * COLUMN(j, 0));
        GET_FLOATS(delta_[0], delta_[1], otherV + BC * DS + 4 * BC + 4 * COLUMN(j, 0));
#endif
        EACH(i, MI) {
          DRAWS(words, i, j)
          EACH(e, 4) {
#if KEYS
            const float top = stat_[e & 1], less = delta_[e & 1];
#else
            const float top = stat[i][e >> 1], less = delta[i][e >> 1];
#endif
            float w;
            EXP2(w, x[i][j][e] * factor - top);
            DROP_VALUE(y[i][j][e], words[e])
            float back = w * (y[i][j][e] - less);
            if (HAS_MASK && top <= NEGATIVE) { w *= weight; back = 0; }
            DROP_WEIGHT(w)
            x[i][j][e] = w;
            y[i][j][e] = back;
          }
        }
      }
      ADD_PRODUCT(sum, y, other, WP)
#if KEYS
      ADD_PRODUCT(sumV, x, otherV, DP)
#endif
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
    c0 += BC;
    SETTLE(h, c0)
  }
  EACH(i, MI) EACH(r, 2) {
    const int row = row0 + ROW(i, 2 * r);
    const INDEX_T at = ((INDEX_T)b * ROWS + row) * COUNT + PLACE;
#if KEYS
    STORE_RESULTS(sum[i], r, scale, row < ROWS, at * WIDTH, WIDTH, WP, PUT_K)
    STORE_RESULTS(sumV[i], r, 1.0f, row < ROWS, at * DEPTH, DEPTH, DP, PUT_V)
#else
    STORE_RESULTS(sum[i], r, scale, row < ROWS, at * WIDTH, WIDTH, WP, PUT_RESULTS)
#endif
  }
}
#endif
