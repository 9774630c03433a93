// Gradients of queries of attention from those of logits, which wgmma_attention_gradient.cl has left in
// memory (STORED) for the heads of a launch: keys by queries times keys by features, summed over keys.
// A consumer warpgroup owns 64 queries of a tile.  A stage of the ring holds BC keys: the gradients of
// the tile's logits, a panel for each warpgroup, and the keys, of panels of 64 features.
#define WP ((WIDTH + 15) / 16 * 16)
#define PANEL (BC * 128)
#define PANELS ((WIDTH + 63) / 64)
#define STAGE ((NWG + PANELS) * PANEL)
#define RING (STAGES * STAGE)
#define BR (64 * NWG)
#undef SWAP_LANES  // which clang takes out of registers
#define SWAP_LANES(first, second, bit) EXCHANGE(first, second, t4 & bit, bit)
#define HAND_BACK(stage) if (lane == 0) BAR_ARRIVE(empty + 8 * (stage))
#define NEXT_STAGE if (++stage == STAGES) { stage = 0; phase ^= 1; }
#define DECODE_TILE(tile) \
    const int in_ = (tile) / BLOCKS, plane = FIRST_PLANE + in_, first = ((tile) - in_ * BLOCKS) * BR; \
    const int b = plane / HEAD_COUNT, h = plane - b * HEAD_COUNT; \
    const int count = ((CAUSAL ? min(S, first + BR) : S) + BC - 1) / BC;

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_attention_queries(
    __global const uchar* restrict pLogits, __global const uchar* restrict pK,
    __global uchar* restrict pMaps, const ulong8 mapLogits, const ulong8 mapK PARAMS,
    const float scale EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid & 31, g = lane >> 2, t4 = lane & 3;
  SAME_IN_WARP(consumer, tid >> 7);
  RING_AT(base, RING + 16 * STAGES);
  RING_BARRIERS(4 * NWG)
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

  if (consumer == NWG) {
    if (tid == NWG * 128) {
      __global ulong* maps =
          (__global ulong*)(((ulong)pMaps + 127) & ~127UL) + get_group_id(0) * 32;
      write_map(maps, (ulong)pLogits, mapLogits);
      write_map(maps + 16, (ulong)pK + 2 * (ulong)kOff, mapK);
      MAP_RELEASE;
      EACH(m, 2) { MAP_ACQUIRE(maps + 16 * m); }
      for (int tile = get_group_id(0); tile < TILES; tile = NEXT_IN_TURN(tile)) {
        DECODE_TILE(tile)
        for (int i = 0; i < count; ++i) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          BAR_EXPECT(bar, STAGE);
          EACH(p, NWG) TMA3(to + p * PANEL, maps, bar, first + 64 * p, i * BC, in_);
          EACH(p, PANELS)
            TMA4(to + (NWG + p) * PANEL, maps + 16, bar, 64 * p, i * BC, h / REPEAT * K_HEADS,
                 b * K_BATCH);
          NEXT_STAGE
        }
      }
    }
    return;
  }

  const int mine = tid / 32 * 16 + g;  // this lane's first row in a tile
  // 128-byte swizzle, 1024 bytes between groups of eight keys; of the keys' features a panel lies
  // between 64 of them.
  const ulong left = (1UL << 62) | (64UL << 32) | (1UL << 16) | (base + consumer * PANEL) >> 4;
  const ulong right =
      (1UL << 62) | (64UL << 32) | (ulong)(PANEL >> 4) << 16 | (base + NWG * PANEL) >> 4;
  float sum[WP / 2];
  for (int tile = get_group_id(0); tile < TILES; tile = NEXT_IN_TURN(tile)) {
    DECODE_TILE(tile)
    // Logits of keys behind this warpgroup's queries are not in memory.
    const int seen = CAUSAL ? min(count, (first + 64 * consumer) / BC + 1) : count;
    EACH(n, WP / 2) sum[n] = 0;
    int before = -1;
    for (int i = 0; i < seen; ++i) {
      BAR_WAIT(full + 8 * stage, phase);
      const ulong at = (ulong)(stage * (STAGE >> 4));
      WG_FENCE;
      EACH(k, BC / 16) WGMMA(sum, left + at + (ulong)(k * 128), right + at + (ulong)(k * 128), 1);
      WG_COMMIT;
      WG_WAIT(1);
      if (before >= 0) HAND_BACK(before);
      before = stage;
      NEXT_STAGE
    }
    WG_WAIT(0);
    WGMMA_KEEP(sum);
    HAND_BACK(before);
    for (int i = seen; i < count; ++i) {
      BAR_WAIT(full + 8 * stage, phase);
      HAND_BACK(stage);
      NEXT_STAGE
    }
    float (*results)[4] = (float (*)[4])sum;
    EACH(r, 2) {
      const int row = first + mine + 8 * r;
      const INDEX_T at = (((INDEX_T)b * T + row) * HEAD_COUNT + h) * WIDTH;
      STORE_ROW(results, r, scale, row < T, at, WIDTH, WP, PUT_RESULTS)
    }
  }
}
