// Attention of 16-bit floats on NVIDIA sm_90a, forward: as attention_mma.cl, with warpgroup products.
// A consumer warpgroup owns 64 queries of a tile, whose rows lie in registers as left operands.  A
// producer brings blocks of BC keys (K) and values (V) by TMA into one ring, a stage for either, in the
// order of their use: K0, K1, V0, K2, V1, ..., V of the last.  Logits become probabilities in the
// registers where wgmma leaves them, which, rounded to 16 bits, are the next left operand.  A block's
// logits are multiplied while the probabilities of the one before meet their values, and softmax
// runs beside those (FlashAttention-3, Shah et al., 2024).
//
// Barriers.  Producer and consumers walk over the same stages in the same order through all tiles, and
// flip `phase` at each turn of the ring: the wait for a stage's n-th use names parity n % 2 of "full",
// which one arrival with its bytes ends.  A stage is handed back by each consumer warp once the wgmma
// that read it were waited for; so before its n-th use n phases of "empty" have ended, and the wait for
// the parity before passes at once where n is 0.
#define WP ((WIDTH + 15) / 16 * 16)
#define DP ((DEPTH + 15) / 16 * 16)
#define NC (BC / 8)
#define PANEL (BC * 128)  // 64 features of a block
#define PANELS(features) (((features) + 63) / 64)
#define STAGE (PANELS(WIDTH > DEPTH ? WIDTH : DEPTH) * PANEL)
#define RING (STAGES * STAGE)
#define BR (64 * NWG)
#if NWG == 3  // all that there are
#undef TAKE_REGISTERS
#undef GIVE_REGISTERS
#define TAKE_REGISTERS REGISTERS(inc, 160)
#define GIVE_REGISTERS REGISTERS(dec, 32)
#endif
// Named barriers 2 and 3, of the two warpgroups: who comes to its own waits until the other has passed
// the turn.  Both take as many turns; the second begins by passing one.
#if TURNS
#define PASS_TURN asm volatile("bar.arrive %0, 256;" :: "r"(3 - consumer) : "memory")
#define TAKE_TURN asm volatile("bar.sync %0, 256;" :: "r"(2 + consumer) : "memory")
#define BEGIN_TURNS if (consumer == 1) PASS_TURN
#else
#define PASS_TURN
#define TAKE_TURN
#define BEGIN_TURNS
#endif
#undef HEADS
#define HEADS HEAD_COUNT

// Tiles in bands of BAND heads, of a band the last rows first, which take longest in a causal problem,
// and of every second band the first rows, which go well with the short tiles that are under way.
#define DECODE_TILE(tile) \
    const int band_ = (tile) / (BAND * BLOCKS), head_ = band_ * BAND; \
    const int high_ = min(PLANES - head_, BAND), in_ = (tile) - band_ * (BAND * BLOCKS); \
    const int plane_ = head_ + in_ % high_, nth_ = in_ / high_; \
    const int first = (band_ & 1 ? nth_ : BLOCKS - 1 - nth_) * BR; \
    const int b = plane_ / HEADS, h = plane_ - b * HEADS;
#define COUNT_OF(first) (((CAUSAL ? min(S, (first) + BR) : S) + BC - 1) / BC)
#define NEXT_STAGE if (++stage == STAGES) { stage = 0; phase ^= 1; }

// This lane's parts of 16 queries of its warp: rows g and g + 8, columns 2 t4 and 2 t4 + 8 of each step.
#define LOAD_QUERIES(tile) { \
    DECODE_TILE(tile) \
    const int r0_ = first + place; \
    EACH(k_, WP / 16) EACH(e_, 4) { \
      const int r_ = r0_ + 8 * (e_ & 1), c_ = 16 * k_ + 2 * t4 + 8 * (e_ >> 1); \
      const INDEX_T at_ = qOff + b * q0 + h * q2 + r_ * q1 + c_; \
      q[k_][e_] = r_ < T && c_ < WIDTH ? *(__global const uint*)(pQ + 2 * at_) : 0u; \
    } \
  }
#define LOGITS(stage) { \
    const ulong at_ = desc_k + (ulong)((stage) * (STAGE >> 4)); \
    WG_FENCE; \
    EACH(k_, WP / 16) \
      WGMMA_A_S(x, q[k_], q[k_] + 2, at_ + (ulong)(k_ / 4 * (PANEL >> 4) + k_ % 4 * 2), k_ != 0); \
    WG_COMMIT; }
#define ADD_VALUES(stage) { \
    const ulong at_ = desc_v + (ulong)((stage) * (STAGE >> 4)); \
    WG_FENCE; \
    EACH(k_, BC / 16) WGMMA_A_O(o, w + 4 * k_, w + 4 * k_ + 2, at_ + (ulong)(k_ * 128), 1); \
    WG_COMMIT; }
// Logits of the block from key s0 to probabilities; `keep` is what earlier results are scaled by.
// Four running values each, as one chain of them would wait for itself.
#define SOFTMAX(s0) { \
    float factor_ = logScale; \
    if ((s0) + BC > S || (CAUSAL && (s0) + BC - 1 > first + 64 * consumer)) { \
      factor_ = 1.0f; \
      EACH(n_, NC) EACH(e_, 4) { \
        const int s_ = (s0) + COLUMN(n_, e_), hidden_ = CAUSAL && s_ > row0 + ROW(0, e_); \
        x[4 * n_ + e_] = s_ >= S ? -INFINITY : hidden_ ? NEGATIVE : x[4 * n_ + e_] * logScale; \
      } \
    } \
    EACH(r_, 2) { \
      float part_[4]; \
      EACH(n_, NC) { \
        const float both_ = fmax(x[4 * n_ + 2 * r_], x[4 * n_ + 2 * r_ + 1]); \
        part_[n_ & 3] = n_ < 4 ? both_ : fmax(part_[n_ & 3], both_); \
      } \
      float most_ = fmax(fmax(part_[0], part_[1]), fmax(part_[2], part_[3])); \
      QUAD(most_, more_, fmax(most_, more_)) \
      most_ = fmax(top[r_], most_ * factor_); \
      EXP2(keep[r_], top[r_] - most_); \
      top[r_] = most_; \
      EACH(k_, 4) part_[k_] = 0; \
      EACH(n_, NC) EACH(e_, 2) { \
        float w_; \
        EXP2(w_, x[4 * n_ + 2 * r_ + e_] * factor_ - most_); \
        part_[n_ & 3] += w_; \
        x[4 * n_ + 2 * r_ + e_] = w_; \
      } \
      sum[r_] = sum[r_] * keep[r_] + ((part_[0] + part_[1]) + (part_[2] + part_[3])); \
    } \
    DROP(s0) \
  }
#if KEEPS
#define BITS_PARAM , __global ushort* restrict pBits
#define DROP(s0) { \
    const int c0 = s0; \
    uint bits[(NC + 7) / 8]; \
    DRAW_BITS(bits, row0, LEAVE_HALF) \
    EACH(n_, NC) EACH(e_, 4) \
      x[4 * n_ + e_] = bits[n_ / 8] >> BIT_OF(n_, e_) & 1u ? x[4 * n_ + e_] : 0.0f; \
  }
#elif HAS_DROPOUT
#define DROP(s0) \
    EACH(n_, NC) { \
      DRAWS_ALONG(words_, row0, (s0) + 8 * n_) \
      EACH(e_, 4) x[4 * n_ + e_] = KEPT(x[4 * n_ + e_], words_[e_]); \
    }
#else
#define DROP(s0)
#endif
#if !KEEPS
#define BITS_PARAM
#endif
#define TO_OPERAND EACH(k_, BC / 4) PACK(w[k_], x[2 * k_], x[2 * k_ + 1]);
#define HAND_BACK(stage) if (lane == 0) BAR_ARRIVE(empty + 8 * (stage))

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_attention(
    __global const uchar* restrict pQ, __global const uchar* restrict pK,
    __global const uchar* restrict pV, __global uchar* restrict pMaps, const ulong8 mapK,
    const ulong8 mapV KEY_PARAM, __global float* restrict pStat BITS_PARAM PARAMS, const float logScale
    KEY_SIZES EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid & 31, g = lane >> 2, t4 = lane & 3;
  SAME_IN_WARP(consumer, tid >> 7);
  RING_AT(base, RING + 16 * STAGES);
  asm volatile("//#entry .minnctapersm 1");
  RING_BARRIERS(4 * NWG)
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

  if (consumer == NWG) {
    GIVE_REGISTERS;
    if (tid == NWG * 128) {
      __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL) + get_group_id(0) * 32;
      write_map(maps, (ulong)pK + 2 * (ulong)kOff, mapK);
      write_map(maps + 16, (ulong)pV + 2 * (ulong)vOff, mapV);
      MAP_RELEASE;
      MAP_ACQUIRE(maps);
      MAP_ACQUIRE(maps + 16);
      for (int tile = get_group_id(0); tile < TILES; tile = NEXT_IN_TURN(tile)) {
        DECODE_TILE(tile)
        const int last = 2 * COUNT_OF(first) - 1;
        for (int i = 0; i <= last; ++i) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          if (i == last || (i > 0 && !(i & 1))) {
            const int s0 = (i == last ? i / 2 : i / 2 - 1) * BC;
            BAR_EXPECT(bar, PANELS(DEPTH) * PANEL);
            EACH(p, PANELS(DEPTH))
              TMA4(to + p * PANEL, maps + 16, bar, 64 * p, s0, h / REPEAT * V_HEADS, b * V_BATCH);
          } else {
            BAR_EXPECT(bar, PANELS(WIDTH) * PANEL);
            EACH(p, PANELS(WIDTH))
              TMA4(to + p * PANEL, maps, bar, 64 * p, (i + 1) / 2 * BC, h / REPEAT * K_HEADS,
                   b * K_BATCH);
          }
          NEXT_STAGE
        }
      }
    }
    return;
  }

  TAKE_REGISTERS;
  DRAW_KEY
  const int place = tid / 32 * 16 + g;  // of this lane's first row in a tile
  // 128-byte swizzle, 1024 bytes between groups of eight rows; of values a panel between 64 features.
  const ulong desc_k = (1UL << 62) | (64UL << 32) | (1UL << 16) | (ulong)(base >> 4);
  const ulong desc_v = (1UL << 62) | (64UL << 32) | ((ulong)(PANEL >> 4) << 16) | (ulong)(base >> 4);
  uint q[WP / 16][4], w[BC / 4];
  float x[BC / 2], o[DP / 2], top[2], sum[2], keep[2];
  EACH(n, BC / 2) x[n] = 0;
  LOAD_QUERIES(get_group_id(0))
  BEGIN_TURNS;
  for (int tile = get_group_id(0); tile < TILES; tile = NEXT_IN_TURN(tile)) {
    DECODE_TILE(tile)
    const int count = COUNT_OF(first), row0 = first + place;
    EACH(r, 2) { top[r] = LOWEST; sum[r] = 0; }
    EACH(n, DP / 2) o[n] = 0;
    BAR_WAIT(full + 8 * stage, phase);
    LOGITS(stage)
    WG_WAIT(0);
    WGMMA_KEEP_S(x);
    HAND_BACK(stage);
    NEXT_STAGE
    SOFTMAX(0)
    TO_OPERAND
    _Pragma("unroll 1") for (int j = 1; j < count; ++j) {
      const int keys = stage;
      TAKE_TURN;
      BAR_WAIT(full + 8 * stage, phase);
      LOGITS(stage)
      NEXT_STAGE
      const int values = stage;
      BAR_WAIT(full + 8 * stage, phase);
      ADD_VALUES(stage)
      PASS_TURN;
      NEXT_STAGE
      WG_WAIT(1);
      WGMMA_KEEP_S(x);
      HAND_BACK(keys);
      SOFTMAX(j * BC)
      WG_WAIT(0);
      WGMMA_KEEP_O(o);
      HAND_BACK(values);
      EACH(n, DP / 2) o[n] *= keep[n >> 1 & 1];
      TO_OPERAND
    }
    BAR_WAIT(full + 8 * stage, phase);
    ADD_VALUES(stage)
    const int next = NEXT_IN_TURN(tile);
    if (next < TILES) LOAD_QUERIES(next)  // they come while this tile ends
    WG_WAIT(0);
    WGMMA_KEEP_O(o);
    HAND_BACK(stage);
    NEXT_STAGE
    EACH(r, 2) {
      const int t = row0 + 8 * r;
      QUAD(sum[r], more_, sum[r] + more_)
      if (t < T && t4 == 0) pStat[(INDEX_T)(b * HEADS + h) * T + t] = top[r] + log2(sum[r]);
      const INDEX_T at = (((INDEX_T)b * T + t) * HEADS + h) * DEPTH;
      const float share = SHARE(sum[r]);
      float (*results)[4] = (float (*)[4])o;
      STORE_ROW(results, r, share, t < T, at, DEPTH, DP, PUT_RESULTS)
    }
  }
}
