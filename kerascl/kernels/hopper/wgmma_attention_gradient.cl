// Gradients of attention of 16-bit floats on NVIDIA sm_90a, as wgmma_attention.cl computes it forward.
// With KEYS a tile's rows are keys and the blocks, of BC columns, queries, and the results dk and dv;
// else rows are queries and columns keys, and the result is dq: a kernel for either, as sums by
// atomics would vary from run to run.  A consumer warpgroup owns 64 rows of a tile.  x, its rows times
// the columns' (keys by queries), becomes probabilities, and y (values by gradients of results) the
// gradients of logits, in the registers where wgmma leaves them, from where the next products take
// their left operands, as rows are what they sum for (FlashAttention-3, Shah et al., 2024).
//
// A stage of the ring holds both parts of a block: queries and gradients of results, or keys and
// values; and of queries the statistic and delta (FACTS), which a warp of the producers brings, as
// their rows are of no whole 16 bytes.  With OWN_LOCAL the last two stages are no part of the ring but
// hold a tile's own rows, or the last four those of two tiles; else they are in registers.
//
// Products of a block are issued while those before are under way: x and y of the next one behind the
// sums of this one.  Draws of dropout need neither, and are made before any product is waited for, by
// the queries' kernel alone where it hands what they decide to the other (HANDED): a bit for each
// probability, rows of queries of HALVES 16-bit words, which come to keys with the facts of their block.
// With KEPT_BITS the forward pass has left them, and nobody draws.
//
// With WHOLE one kernel computes all three: a work-group meets all tiles of keys of a head, one after
// the other, so sums for queries have an order.  The gradients of a block's logits go through local
// memory (two blocks in turn), from where each warpgroup multiplies its own rows by the queries, and
// all of them, turned, by its share of the keys' features.  What the tiles before have summed for a
// block of queries waits in local memory, each lane's own, as WAITING says for how many blocks.
//
// With STORED the kernel of keys leaves the gradients of logits in memory, for the heads of a launch:
// rows of keys, PITCH queries each, from which wgmma_attention_queries.cl makes those of queries.
#define WP ((WIDTH + 15) / 16 * 16)
#define DP ((DEPTH + 15) / 16 * 16)
#define NC (BC / 8)
#define BR (64 * NWG)
#define PANEL (BC * 128)  // 64 features of a block
#define OWN_PANEL (BR * 128)
#define PANELS(features) (((features) + 63) / 64)
#define OTHER_Y (PANELS(WIDTH) * PANEL)  // where the block's second part lies
#define FACTS (OTHER_Y + PANELS(DEPTH) * PANEL)
#define OWN_PART ((OWN_LOCAL > 0) * PANELS(WIDTH > DEPTH ? WIDTH : DEPTH) * OWN_PANEL)
#define BLOCK ((FACTS + KEYS * (8 + HANDED * BR / 8) * BC + 1023) / 1024 * 1024)
#define STAGE (BLOCK > OWN_PART ? BLOCK : OWN_PART)
#define SLOPE_BYTES (BR * 128)
#define WAITING_BYTES (64 * WP * 4)
#if WHOLE
#define BESIDE (2 * SLOPE_BYTES + WAITING * WAITING_BYTES)
#else
#define BESIDE 0
#endif
#define SLOPES_AT (base + STAGES * STAGE)
#define WAITING_AT (SLOPES_AT + 2 * SLOPE_BYTES)
#define RING (STAGES * STAGE + BESIDE)
#define RINGED (STAGES - 2 * OWN_LOCAL)
// Where the rows of the `turn`th tile are, and the parity of their barriers.
#define OWN_X(turn) (RINGED + 2 * ((turn) % OWN_LOCAL))
#define OWN_Y(turn) (OWN_X(turn) + 1)
#define OWN_PHASE(turn) ((turn) / OWN_LOCAL & 1)
#define HEADS HEAD_COUNT
#undef SWAP_LANES  // which clang takes out of registers
#define SWAP_LANES(first, second, bit) EXCHANGE(first, second, t4 & bit, bit)
#define WARP_SYNC asm volatile("bar.warp.sync -1;" ::: "memory")

#if !STORED
#define FIRST_PLANE 0  // of a launch that has not all
#endif
// Tiles in bands of BAND owners (heads, or those that keys are shared by), of a band those first that
// take longest where it is causal; of every second band those that take least, which go well with the
// short tiles that are under way.
#define DECODE_TILE(tile) \
    const int band_ = (tile) / (BAND * BLOCKS), owner_ = band_ * BAND; \
    const int high_ = min(PLANES - owner_, BAND), in_ = (tile) - band_ * (BAND * BLOCKS); \
    const int plane_ = FIRST_PLANE + owner_ + in_ % high_, nth_ = in_ / high_; \
    const int first = (KEYS ^ (!WHOLE && band_ & 1) ? nth_ : BLOCKS - 1 - nth_) * BR; \
    const int b = plane_ / OWNERS, owner = plane_ - b * OWNERS;
// The blocks that a tile's rows meet: those of all heads that share its keys, or of keys up to the
// diagonal.
#if KEYS
#define ROWS S
#define BEGIN (CAUSAL ? first / BC * BC : 0)
#define COUNT_BLOCKS (REPEAT * ((max(T - BEGIN, 0) + BC - 1) / BC))
#define FIRST_BLOCK int h = owner * REPEAT, c0 = BEGIN;
#define NEXT_BLOCK { c0 += BC; if (c0 >= T) { ++h; c0 = BEGIN; } }
#define OTHER h
#else
#define ROWS T
#define COUNT_BLOCKS (((CAUSAL ? min(S, first + BR) : S) + BC - 1) / BC)
#define FIRST_BLOCK int c0 = 0; const int h = owner;
#define NEXT_BLOCK c0 += BC;
#define OTHER (h / REPEAT)
#endif
#if WHOLE  // all tiles of a head are of one group: BAND is 1
#define FIRST_TILE (get_group_id(0) * BLOCKS)
#define NEXT_TILE(tile) ((tile) + ((tile) % BLOCKS == BLOCKS - 1 ? (groups - 1) * BLOCKS : 0) + 1)
#else
#define FIRST_TILE get_group_id(0)
#define NEXT_TILE(tile) NEXT_IN_TURN(tile)
#endif
#define NEXT_STAGE if (++stage == RINGED) { stage = 0; phase ^= 1; }

#if OWN_LOCAL
#define LEFT_X(k, b, add) \
    WGMMA_S(x, own_x + own_at + (ulong)((k) / 4 * (OWN_PANEL >> 4) + (k) % 4 * 2), b, add)
#define LEFT_Y(k, b, add) \
    WGMMA_P(y, own_y + own_at + (ulong)((k) / 4 * (OWN_PANEL >> 4) + (k) % 4 * 2), b, add)
#define HOLD(tile)
#else
#define LEFT_X(k, b, add) WGMMA_A_S(x, own_x[k], own_x[k] + 2, b, add)
#define LEFT_Y(k, b, add) WGMMA_A_P(y, own_y[k], own_y[k] + 2, b, add)
// This lane's parts of 16 rows of its warp: rows g and g + 8, columns 2 t4 and 2 t4 + 8 of each step.
// Behind the last row it is that one again, whose results nobody stores.
#define HOLD_ROWS(own, from, off, padded, features, s0, s1, s2) \
    EACH(r_, 2) { \
      const INDEX_T row_ = min(first + mine + 8 * r_, ROWS - 1); \
      const INDEX_T at_ = (off) + b * (s0) + owner * (s2) + row_ * (s1) + 2 * t4; \
      __global const uchar* from_ = (from) + 2 * (long)at_; \
      EACH(k_, (padded) / 8) \
        own[k_ / 2][2 * (k_ & 1) + r_] = \
            8 * k_ + 2 * t4 < (features) ? *(__global const uint*)(from_ + 16 * k_) : 0u; \
    }
#if KEYS
#define HOLD(tile) { \
    DECODE_TILE(tile) \
    HOLD_ROWS(own_x, pK, kOff, WP, WIDTH, k0, k1, k2) \
    HOLD_ROWS(own_y, pV, vOff, DP, DEPTH, v0, v1, v2) \
  }
#else
#define HOLD(tile) { \
    DECODE_TILE(tile) \
    HOLD_ROWS(own_x, pQ, qOff, WP, WIDTH, q0, q1, q2) \
    HOLD_ROWS(own_y, pG, gOff, DP, DEPTH, g0, g1, g2) \
  }
#endif
#endif
// 128-byte swizzle, 1024 bytes between groups of eight rows.
#define ROW_WISE(at) ((1UL << 62) | (64UL << 32) | (1UL << 16) | (ulong)((at) >> 4))
#define PRODUCTS(stage) { \
    const ulong at_ = other_rows + (ulong)((stage) * (STAGE >> 4)); \
    WG_FENCE; \
    EACH(k_, WP / 16) LEFT_X(k_, at_ + (ulong)(k_ / 4 * (PANEL >> 4) + k_ % 4 * 2), k_ != 0); \
    WG_COMMIT; \
    WG_FENCE; \
    EACH(k_, DP / 16) \
      LEFT_Y(k_, at_ + (ulong)((OTHER_Y >> 4) + k_ / 4 * (PANEL >> 4) + k_ % 4 * 2), k_ != 0); \
    WG_COMMIT; }
#define ADD_PRODUCT(add, sums, left, at, stage) { \
    const ulong at_ = other_columns + (ulong)((stage) * (STAGE >> 4) + ((at) >> 4)); \
    WG_FENCE; \
    EACH(k_, BC / 16) add(sums, left + 4 * k_, left + 4 * k_ + 2, at_ + (ulong)(k_ * 128), 1); \
    WG_COMMIT; }
#if WHOLE
// The gradients of logits of this lane's rows, pairs of queries: of rows g and g + 8, swizzled.  Keys
// behind the last have anything, which meets zeros.
#define BEGIN_SLOPES const uint to_ = SLOPES_AT + area * SLOPE_BYTES + mine * 128 + 4 * t4;
#define LEAVE_PAIR(n, r, pair) \
    PUT_SLOPE(to_ + 1024 * (r) + (((n) ^ g) << 4), row0 + 8 * (r) < S ? (pair) : 0u);
#define PUT_SLOPE(at, word) \
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(word) : "memory")
#define SEE_SLOPES asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define SLOPE_PRODUCTS(stage) { \
    const ulong left_ = ROW_WISE(SLOPES_AT + area * SLOPE_BYTES); \
    const ulong at_ = other_columns + (ulong)((stage) * (STAGE >> 4)); \
    WG_FENCE; \
    EACH(k_, BR / 16) \
      WGMMA_Q(part, left_ + (ulong)(k_ * 128), own_columns + own_at + (ulong)(k_ * 128), k_ != 0); \
    WG_COMMIT; \
    WG_FENCE; \
    EACH(k_, BC / 16) \
      WGMMA_K(sum, left_ + (ulong)(consumer * 512 + k_ * 2), at_ + (ulong)(k_ * 128), 1); \
    WG_COMMIT; }
#define KEEP4(at, v) \
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" \
                 :: "r"(at), "f"((v)[0]), "f"((v)[1]), "f"((v)[2]), "f"((v)[3]) : "memory")
#define KEPT4(v, at) \
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" \
                 : "=f"((v)[0]), "=f"((v)[1]), "=f"((v)[2]), "=f"((v)[3]) : "r"(at) : "memory")
// What a block's queries have from this tile of keys is added to what they have from those before; it
// waits for the next one, or leaves where this was the last that they meet.
#define END_QUERIES(at) { \
    const int block_ = (at) / BC, nth_tile_ = first / BR; \
    const uint kept_ = WAITING_AT + block_ * WAITING_BYTES + 16 * tid; \
    if (WAITING && nth_tile_ > 0) \
      EACH(n_, WP / 16) { \
        float before_[4]; \
        KEPT4(before_, kept_ + n_ * (16 * 128 * NWG)); \
        EACH(e_, 4) part[4 * n_ + e_] += before_[e_]; \
      } \
    if (WAITING && nth_tile_ < (CAUSAL ? min(BLOCKS - 1, ((at) + BC - 1) / BR) : BLOCKS - 1)) { \
      EACH(n_, WP / 16) KEEP4(kept_ + n_ * (16 * 128 * NWG), part + 4 * n_); \
    } else { \
      float (*parts_)[4] = (float (*)[4])part; \
      EACH(r_, 2) { \
        const int t_ = (at) + mine - 64 * consumer + 8 * r_, from_ = consumer * (WP / 2); \
        const INDEX_T to_ = (((INDEX_T)b * T + t_) * OWNERS + owner) * WIDTH + from_; \
        STORE_ROW(parts_, r_, scale, t_ < T, to_, min(WIDTH - from_, WP / 2), WP / 2, PUT_RESULTS) \
      } \
    } }
#endif

// Of results n and e of a block: which query and key they are of.
#if KEYS
#define QUERY_OF(n, e) (c0 + COLUMN(n, e))
#define KEY_OF(n, e) (row0 + ROW(0, e))
#define MEETS_DIAGONAL (CAUSAL && first + 64 * consumer + 63 > c0)
#define HIDDEN(n, e) (CAUSAL && KEY_OF(n, e) > QUERY_OF(n, e))
#define DRAWS(words, n) DRAWS_ACROSS(words, c0 + COLUMN(n, 0), row0)
#define TOP(e) top_[(e) & 1]
#define LESS(e) less_[(e) & 1]
#define ROUND_WEIGHTS(n) \
    GET_KEPT(n) \
    EACH(r_, 2) \
      PACK(weights[2 * (n) + r_], LEFT_OF(x[4 * (n) + 2 * r_], n, 2 * r_), \
           LEFT_OF(x[4 * (n) + 2 * r_ + 1], n, 2 * r_ + 1));
#define GET_TOP(n) \
    float top_[2]; \
    GET_FLOATS(top_[0], top_[1], facts + 4 * COLUMN(n, 0));
#define GET_LESS(n) \
    float less_[2]; \
    GET_FLOATS(less_[0], less_[1], facts + 4 * BC + 4 * COLUMN(n, 0));
#else
#define QUERY_OF(n, e) (row0 + ROW(0, e))
#define KEY_OF(n, e) (c0 + COLUMN(n, e))
#define MEETS_DIAGONAL (c0 + BC > S || (CAUSAL && c0 + BC - 1 > first + 64 * consumer))
#define HIDDEN(n, e) (KEY_OF(n, e) >= S || (CAUSAL && KEY_OF(n, e) > QUERY_OF(n, e)))
#define DRAWS(words, n) DRAWS_ALONG(words, row0, c0 + 8 * (n))
#define TOP(e) top[(e) >> 1]
#define LESS(e) less[(e) >> 1]
#define ROUND_WEIGHTS(n)
#define GET_TOP(n)
#define GET_LESS(n)
#endif
// Dropout: a bit for each result, and what it leaves of a probability and of its gradient.  The factor
// of the former is that of all of dv.
#if HANDED && KEYS
#define DRAW_BLOCK
#define GET_KEPT(n) \
    float kept_[2]; \
    GET_FLOATS(kept_[0], kept_[1], facts + own_bits + 4 * COLUMN(n, 0));
#define LEFT_OF(v, n, e) (as_uint(kept_[(e) & 1]) & own_bit << 8 * ((e) >> 1) ? (v) : 0.0f)
#define SLOPE(v, less) ((v) * keepFactor - (less))
#define FACTOR_V keepFactor
#elif HAS_DROPOUT
#if KEPT_BITS
#define DRAW_BLOCK FIND_BITS(bits, row0)
#elif COARSE && !KEYS
#define DRAW_BLOCK DRAW_BITS(bits, row0, HAND_BITS)
#else
#define DRAW_BLOCK \
    EACH(n_, (NC + 7) / 8) bits[n_] = 0; \
    EACH(n_, NC) { \
      DRAWS(words_, n_) \
      EACH(e_, 4) if (words_[e_] < keepLimit) bits[n_ / 8] |= 1u << BIT_OF(n_, e_); \
    } \
    HAND_BLOCK
#endif
#define GET_KEPT(n)
#define LEFT_OF(v, n, e) (bits[(n) / 8] >> BIT_OF(n, e) & 1u ? (v) : 0.0f)
#define SLOPE(v, less) ((v) * keepFactor - (less))
#define FACTOR_V keepFactor
#else
#define GET_KEPT(n)
#define DRAW_BLOCK
#define LEFT_OF(v, n, e) (v)
#define SLOPE(v, less) ((v) - (less))
#define FACTOR_V 1.0f
#endif
#if KEPT_BITS || (HANDED && KEYS)
#define BITS_PARAM , __global const ushort* restrict pBits
#define HAND_BITS(word, t, nth, upper)
#define HAND_BLOCK
#elif HANDED
#define BITS_PARAM , __global ushort* restrict pBits
#define HAND_BITS(word, t, nth, upper) LEAVE_HALF(word, t, nth, upper)
#define HAND_BLOCK LEAVE_BITS(bits, row0)
#else
#define BITS_PARAM
#define HAND_BITS(word, t, nth, upper)
#define HAND_BLOCK
#endif
#define PROBABILITIES { \
    float factor_ = logScale; \
    if (MEETS_DIAGONAL) { \
      factor_ = 1.0f; \
      EACH(n_, NC) EACH(e_, 4) \
        x[4 * n_ + e_] = HIDDEN(n_, e_) ? -INFINITY : x[4 * n_ + e_] * logScale; \
    } \
    EACH(n_, NC) { \
      GET_TOP(n_) \
      EACH(e_, 4) { \
        float w_; \
        EXP2(w_, x[4 * n_ + e_] * factor_ - TOP(e_)); \
        x[4 * n_ + e_] = w_; \
      } \
      ROUND_WEIGHTS(n_) \
    } \
  }
#define SLOPES \
    EACH(n_, NC) { \
      GET_LESS(n_) \
      GET_KEPT(n_) \
      EACH(e_, 4) \
        y[4 * n_ + e_] = x[4 * n_ + e_] * SLOPE(LEFT_OF(y[4 * n_ + e_], n_, e_), LESS(e_)); \
      EACH(r_, 2) PUT_PAIR(n_, r_, y[4 * n_ + 2 * r_], y[4 * n_ + 2 * r_ + 1]) \
    }
#if WHOLE
#define PUT_PAIR(n, r, first, second) { \
    uint pair_; \
    PACK(pair_, first, second); \
    LEAVE_PAIR(n, r, pair_) }
#else
#define PUT_PAIR(n, r, first, second) PACK(slopes[2 * (n) + (r)], first, second);
#endif
// STORE_ROW of attention_quads.cl for results in 16 bits as the operands: pairs go from lane to lane.
#define STORE_PAIRS(x, r, factor, there, to, features, padded) \
    EACH(n_, ((padded) / 8 + 3) / 4) { \
      float v_[4]; \
      EACH(m_, 4) { \
        const int f_ = (4 * n_ + m_) % ((padded) / 8); \
        uint pair_; \
        PACK(pair_, x[4 * f_ + 2 * (r)] * (factor), x[4 * f_ + 2 * (r) + 1] * (factor)); \
        v_[m_] = as_float(pair_); \
      } \
      EXCHANGE(v_[0], v_[1], t4 & 1, 1) EXCHANGE(v_[2], v_[3], t4 & 1, 1) \
      EXCHANGE(v_[0], v_[2], t4 & 2, 2) EXCHANGE(v_[1], v_[3], t4 & 2, 2) \
      const int d_ = 8 * (4 * n_ + t4); \
      if ((there) && d_ < (features)) \
        *(__global uint4*)((__global ushort*)(to) + d_) = \
            (uint4)(as_uint(v_[0]), as_uint(v_[1]), as_uint(v_[2]), as_uint(v_[3])); \
    }
#define HAND_BACK(stage) if (lane == 0) BAR_ARRIVE(empty + 8 * (stage))
#if STORED
#define LOGITS_PARAM , __global uchar* restrict pLogits
// Neighbouring lanes exchange pairs of two fragments: each stores four queries of one of them, so that
// four lanes fill 32 bytes.  Without a branch, as products with slopes are under way; and nothing is
// computed before the loop (ONLY_HERE), as registers are few elsewhere.
#define STORE_LOGITS { \
    int own_ = row0, near_lane_ = t4, pitch_ = PITCH, entry_ = b; \
    ONLY_HERE(own_); ONLY_HERE(near_lane_); ONLY_HERE(pitch_); ONLY_HERE(entry_); \
    const long row_ = (long)(entry_ * HEADS + h - FIRST_PLANE * REPEAT) * S + own_; \
    const int at_ = c0 + 8 * (near_lane_ & 1) + 2 * (near_lane_ & 2); \
    __global uchar* to_ = pLogits + 2 * (row_ * pitch_ + at_); \
    EACH(m_, NC / 2) EACH(r_, 2) { \
      float near_ = as_float(slopes[4 * m_ + r_]), far_ = as_float(slopes[4 * m_ + 2 + r_]); \
      EXCHANGE(near_, far_, near_lane_ & 1, 1) \
      PUT_LOGITS(own_ + 8 * r_ < S && at_ + 16 * m_ < pitch_, to_ + 16 * r_ * (long)pitch_ + 32 * m_, \
                 near_, far_); \
    } }
#define ONLY_HERE(x) asm volatile("" : "+r"(x))
#define PUT_LOGITS(there, to, low, high) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.v2.f32 [%1], {%2, %3}; }" \
                 :: "r"((int)(there)), "l"(to), "f"(low), "f"(high) : "memory")
#else
#define LOGITS_PARAM
#define STORE_LOGITS
#endif

#if KEYS
#define RESULTS , __global OUT_T* restrict outK, __global OUT_T* restrict outV
#define OTHER_MAPS(maps) \
    write_map(maps, (ulong)pQ + 2 * (ulong)qOff, mapX); \
    write_map((maps) + 16, (ulong)pG + 2 * (ulong)gOff, mapY);
#define OWN_MAPS(maps) \
    write_map((maps) + 32, (ulong)pK + 2 * (ulong)kOff, mapOwnX); \
    write_map((maps) + 48, (ulong)pV + 2 * (ulong)vOff, mapOwnY);
#else
#define RESULTS
#define OTHER_MAPS(maps) \
    write_map(maps, (ulong)pK + 2 * (ulong)kOff, mapX); \
    write_map((maps) + 16, (ulong)pV + 2 * (ulong)vOff, mapY);
#define OWN_MAPS(maps) \
    write_map((maps) + 32, (ulong)pQ + 2 * (ulong)qOff, mapOwnX); \
    write_map((maps) + 48, (ulong)pG + 2 * (ulong)gOff, mapOwnY);
#endif
#define MAPS (2 + 2 * (OWN_LOCAL > 0))

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_attention_gradient(
    __global const uchar* restrict pQ, __global const uchar* restrict pK,
    __global const uchar* restrict pV, __global const uchar* restrict pG,
    __global uchar* restrict pMaps, const ulong8 mapX, const ulong8 mapY, const ulong8 mapOwnX,
    const ulong8 mapOwnY KEY_PARAM, __global const float* restrict pStat,
    __global const float* restrict pDelta BITS_PARAM RESULTS LOGITS_PARAM PARAMS, const float scale,
    const float logScale KEY_SIZES EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid & 31, g = lane >> 2, t4 = lane & 3;
  SAME_IN_WARP(consumer, tid >> 7);
  RING_AT(base, RING + 16 * STAGES);
  asm volatile("//#entry .minnctapersm 1");
  const uint full = base + RING, empty = full + 8 * STAGES;
  if (tid == 0) {
    UNROLL for (int s = 0; s < STAGES; ++s) {
      BAR_INIT(full + 8 * s, s < RINGED ? 1 + KEYS : 1);
      BAR_INIT(empty + 8 * s, 4 * NWG);
    }
    BARRIERS_READY;
  }
  GROUP_SYNC;
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

  if (consumer == NWG) {
    GIVE_REGISTERS;
    if (tid == NWG * 128) {
      __global ulong* maps =
          (__global ulong*)(((ulong)pMaps + 127) & ~127UL) + get_group_id(0) * (16 * MAPS);
      OTHER_MAPS(maps)
      if (OWN_LOCAL) { OWN_MAPS(maps) }
      MAP_RELEASE;
      EACH(m, MAPS) { MAP_ACQUIRE(maps + 16 * m); }
      uint turn = 0;
      for (int tile = FIRST_TILE; tile < TILES; tile = NEXT_TILE(tile)) {
        DECODE_TILE(tile)
        const int count = COUNT_BLOCKS;
#if OWN_LOCAL
        if (count > 0) {
          const uint x = OWN_X(turn), y = OWN_Y(turn), phase_ = OWN_PHASE(turn) ^ 1;
          BAR_WAIT(empty + 8 * x, phase_);
          BAR_EXPECT(full + 8 * x, PANELS(WIDTH) * OWN_PANEL);
          EACH(p, PANELS(WIDTH))
            TMA4(base + x * STAGE + p * OWN_PANEL, maps + 32, full + 8 * x, 64 * p, first,
                 owner * OWN_X_HEADS, b * OWN_X_BATCH);
          BAR_WAIT(empty + 8 * y, phase_);
          BAR_EXPECT(full + 8 * y, PANELS(DEPTH) * OWN_PANEL);
          EACH(p, PANELS(DEPTH))
            TMA4(base + y * STAGE + p * OWN_PANEL, maps + 48, full + 8 * y, 64 * p, first,
                 owner * OWN_Y_HEADS, b * OWN_Y_BATCH);
          ++turn;
        }
#endif
        FIRST_BLOCK
        for (int i = 0; i < count; ++i) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          BAR_EXPECT(bar, FACTS);
          EACH(p, PANELS(WIDTH))
            TMA4(to + p * PANEL, maps, bar, 64 * p, c0, OTHER * X_HEADS, b * X_BATCH);
          EACH(p, PANELS(DEPTH))
            TMA4(to + OTHER_Y + p * PANEL, maps + 16, bar, 64 * p, c0, OTHER * Y_HEADS, b * Y_BATCH);
          NEXT_BLOCK
          NEXT_STAGE
        }
      }
    }
#if KEYS
    // Another warp: the statistic and delta of a block's queries, zeros beyond the last.
    if (tid / 32 == NWG * 4 + 1) {
      for (int tile = FIRST_TILE; tile < TILES; tile = NEXT_TILE(tile)) {
        DECODE_TILE(tile)
        const int count = COUNT_BLOCKS;
        FIRST_BLOCK
        for (int i = 0; i < count; ++i) {
          float top[(BC + 31) / 32], less[(BC + 31) / 32];
#if HANDED
          uint kept[(BC + 31) / 32][BR / 32];
#endif
          EACH(n, (BC + 31) / 32) {
            const int t = c0 + 32 * n + lane, there = t < T, t_ = there ? t : 0;
            top[n] = there ? pStat[(INDEX_T)(b * HEADS + h) * T + t_] : 0.0f;
            less[n] = there ? pDelta[((INDEX_T)b * T + t_) * HEADS + h] : 0.0f;
#if HANDED
            EACH(w, BR / 32)
              kept[n][w] = ((__global const uint*)pBits)[((b * HEADS + h) * T + t_) * (HALVES / 2)
                                                         + first / 32 + w];
#endif
          }
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          EACH(n, (BC + 31) / 32) {
            const uint to = base + stage * STAGE + FACTS + 4 * (32 * n + lane);
            if (32 * n + lane < BC) {
              PUT_WORD(to, as_uint(top[n]));
              PUT_WORD(to + 4 * BC, as_uint(less[n]));
#if HANDED
              EACH(w, BR / 32) PUT_WORD(to + 4 * BC * (2 + w), kept[n][w]);
#endif
            }
          }
          WARP_SYNC;
          if (lane == 0) BAR_ARRIVE(full + 8 * stage);
          NEXT_BLOCK
          NEXT_STAGE
        }
      }
    }
#endif
    return;
  }

  TAKE_REGISTERS;
  DRAW_KEY
  const int mine = tid / 32 * 16 + g;  // this lane's first row in a tile
  // Of columns' features as right operands a panel lies between 64 of them.
  const ulong other_rows = ROW_WISE(base);
  const ulong other_columns =
      (1UL << 62) | (64UL << 32) | ((ulong)(PANEL >> 4) << 16) | (ulong)(base >> 4);
#if OWN_LOCAL
  const ulong own_x = ROW_WISE(base + OWN_X(0) * STAGE + consumer * 64 * 128);
  const ulong own_y = ROW_WISE(base + OWN_Y(0) * STAGE + consumer * 64 * 128);
  uint turn = 0;
#else
  uint own_x[WP / 16][4], own_y[DP / 16][4];
#endif
  float x[BC / 2], y[BC / 2], sum[WP / 2];
#if !WHOLE
  uint slopes[BC / 4];
#endif
#if KEYS
  float sumV[DP / 2];
  uint weights[BC / 4];
#endif
#if WHOLE
  float part[WP / 4];
  const ulong own_columns = ROW_WISE(base + OWN_X(0) * STAGE + consumer * WP);
  uint area = 0;
  EACH(n, WP / 4) part[n] = 0;
#endif
#if HANDED && KEYS  // where bits of this warp's rows are, and which is of this lane's first
  const int own_bits = 4 * BC * (2 + tid / 64);
  const uint own_bit = 1u << ((tid & 32) / 2 + g);
#elif HAS_DROPOUT
  uint bits[(NC + 7) / 8];
#endif
  EACH(n, BC / 2) x[n] = y[n] = 0;
  HOLD(FIRST_TILE)
  for (int tile = FIRST_TILE; tile < TILES; tile = NEXT_TILE(tile)) {
    DECODE_TILE(tile)
    const int count = COUNT_BLOCKS, row0 = first + mine;
    EACH(n, WP / 2) sum[n] = 0;
#if KEYS
    EACH(n, DP / 2) sumV[n] = 0;
#else
    float top[2], less[2];
    EACH(r, 2) {
      const int t = row0 + 8 * r;
      top[r] = t < T ? pStat[(INDEX_T)(b * HEADS + owner) * T + t] : 0.0f;
      less[r] = t < T ? pDelta[((INDEX_T)b * T + t) * HEADS + owner] : 0.0f;
    }
#endif
    if (!KEYS || count > 0) {  // keys behind the last query meet none
      FIRST_BLOCK
      int before = -1;
#if WHOLE
      DRAW_BLOCK
#endif
#if OWN_LOCAL
      const ulong own_at = (ulong)((turn % OWN_LOCAL) * (2 * STAGE >> 4));
      BAR_WAIT(full + 8 * OWN_X(turn), OWN_PHASE(turn));
      BAR_WAIT(full + 8 * OWN_Y(turn), OWN_PHASE(turn));
#endif
      // Only sums are under way from one turn to the next: of x and y ptxas would take moves for uses.
      // And no branch stands between products with left operands in registers and the wait for them:
      // behind one ptxas forgets that these registers are read, and gives them to others.
      _Pragma("unroll 1") for (int left = count;;) {
        BAR_WAIT(full + 8 * stage, phase);
        PRODUCTS(stage)
        const uint facts = base + stage * STAGE + FACTS;
#if !WHOLE
        DRAW_BLOCK
#endif
        WG_WAIT(1);  // for x, and so for the sums of the block before
        WGMMA_KEEP_S(x);
        if (before >= 0) HAND_BACK(before);
        PROBABILITIES
#if KEYS
        ADD_PRODUCT(WGMMA_A_V, sumV, weights, OTHER_Y, stage)
        WG_WAIT(1);
#else
        WG_WAIT(0);
#endif
        WGMMA_KEEP_P(y);
#if WHOLE
        BEGIN_SLOPES
        SLOPES
        SEE_SLOPES;
        TEAMS_SYNC;
        SLOPE_PRODUCTS(stage)
        area ^= 1;
        const int ended = c0;
        if (left > 1) {
          NEXT_BLOCK
          DRAW_BLOCK
        }
        WG_WAIT(1);
        WGMMA_KEEP_Q(part);
        END_QUERIES(ended)
#else
        SLOPES
        ADD_PRODUCT(WGMMA_A_K, sum, slopes, 0, stage)
        STORE_LOGITS
#endif
        before = stage;
        NEXT_STAGE
        if (--left == 0) break;
#if !WHOLE
        NEXT_BLOCK
#endif
      }
#if OWN_LOCAL && !WHOLE
      HAND_BACK(OWN_X(turn));
      HAND_BACK(OWN_Y(turn));
#endif
      if (NEXT_TILE(tile) < TILES) { HOLD(NEXT_TILE(tile)) }  // they come while this tile ends
      WG_WAIT(0);
      WGMMA_KEEP_K(sum);
#if KEYS
      WGMMA_KEEP_V(sumV);
#endif
      HAND_BACK(before);
#if WHOLE
      HAND_BACK(OWN_X(turn));
      HAND_BACK(OWN_Y(turn));
#endif
#if OWN_LOCAL
      ++turn;
#endif
    } else if (NEXT_TILE(tile) < TILES) {
      HOLD(NEXT_TILE(tile))
    }
    EACH(r, 2) {
      const int row = row0 + 8 * r;
      const INDEX_T at = ((INDEX_T)b * ROWS + row) * OWNERS + owner;
      float (*results)[4] = (float (*)[4])sum;
#if KEYS && SHORT_RESULTS
      STORE_PAIRS(sum, r, scale, row < ROWS, outK + at * WIDTH, WIDTH, WP)
      STORE_PAIRS(sumV, r, FACTOR_V, row < ROWS, outV + at * DEPTH, DEPTH, DP)
#elif KEYS
      STORE_ROW(results, r, scale, row < ROWS, at * WIDTH, WIDTH, WP, PUT_K)
      float (*resultsV)[4] = (float (*)[4])sumV;
      STORE_ROW(resultsV, r, FACTOR_V, row < ROWS, at * DEPTH, DEPTH, DP, PUT_V)
#else
      STORE_ROW(results, r, scale, row < ROWS, at * WIDTH, WIDTH, WP, PUT_RESULTS)
#endif
    }
  }
}
