// Filter gradients of float32 (as TF32) on NVIDIA sm_90a: dw[tap][c][f] = sum over pixels p of
// x[p + tap][c] * dy[p][f], tiles as in wgmma_register_blocked_common.cl; each fragment of x serves up to three
// taps.
//
// wgmma wants TF32 with k (here pixels) contiguous in shared memory or, the left operand only, in
// registers.  A stage of the ring holds
//   x    boxes of (8 + 2) x (BOX_H + 2) x BOX_N pixels, two panels of 32 channels: rows of 128 bytes,
//        one a pixel, from which each lane reads its fragments
//   dy   boxes of 8 x BOX_H x BOX_N = 32 pixels, two panels of 32 filters
//   dyT  the same with pixels contiguous, which one warp for each panel writes: nine columns of 64
//        rows (filters) of 16 bytes (the pixels j of the box's four lines, column 8 is column 0)
// The order of the pixels within k is free if both sides agree: k = 8 s + i is pixel 2 s + i / 4 of
// line i % 4 of the box.  So lane t = i % 4 needs ten neighbouring pixels for three taps, and a warp's
// lanes read from all banks.  wgmma takes four registers that begin at a multiple of four, so the
// middle tap has the pairs of pixels (1, 2), (3, 4), (5, 6) and (7, 0).  Rows of the product, too:
// row g of a warp is channel 2 g, row g + 8 channel 2 g + 1, which one load of eight bytes brings.

#define X_PANEL (WIDE * HIGH * BOX_N * 128)
#define X_STEP ((X_PANEL + 1023) / 1024 * 1024)
#define DY_PANEL 4096
#define DY_AT (2 * X_STEP)
#define DYT_AT (DY_AT + 2 * DY_PANEL)
#define DYT_COLUMN 1024
#define STAGE (DYT_AT + 9 * DYT_COLUMN)
// Stages that the transposing warps may be ahead of the consumers.
#define AHEAD 2

#define LDS1(to, at) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to) : "r"(at) : "memory")
#define STS4(at, v) \
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" \
               :: "r"(at), "r"((v)[0]), "r"((v)[1]), "r"((v)[2]), "r"((v)[3]) : "memory")

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_register_blocked(
    __global const uchar* restrict pX, __global const uchar* restrict pDy,
    __global uchar* restrict pMaps, const ulong8 mapX, const ulong8 mapDy PARAMS EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid & 31;
  SAME_IN_WARP(warp, tid >> 5);
  const int consumer = warp >> 2;
  RING_AT(base, STAGES * STAGE + 24 * STAGES);
  asm volatile("//#entry .minnctapersm 1");
  // dy has come; x has come and dyT is there; all three may be overwritten.
  const uint come = base + STAGES * STAGE, full = come + 8 * STAGES, empty = full + 8 * STAGES;
  if (tid == 0) {
    UNROLL for (int s = 0; s < STAGES; ++s) {
      BAR_INIT(come + 8 * s, 1);
      BAR_INIT(full + 8 * s, 3);
      BAR_INIT(empty + 8 * s, 4 * CONSUMERS);
    }
    BARRIERS_READY;
  }
  GROUP_SYNC;
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

  if (consumer == CONSUMERS) {
    // Registers move from here, where two warps only are at work, to the others.
    REGISTERS(dec, 56);
    const int panel = warp - 4 * CONSUMERS;
    if (panel > 1) return;
    __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL) + get_group_id(0) * 32;
    if (panel == 0 && lane == 0) {
      write_map(maps, (ulong)pX, mapX);
      write_map(maps + 16, (ulong)pDy, mapDy);
      MAP_RELEASE;
      MAP_ACQUIRE(maps);
      MAP_ACQUIRE(maps + 16);
    }
    WARP_SYNC;
    // The first of the two warps also starts the loads.
    int load_tile = get_group_id(0), load_at = 0, load_end = 0, load_stage = 0;
    uint load_phase = 1;
    int lc = 0, lf = 0, li = 0, lj = 0, tn = 0, th = 0, tw = 0;
#define LOAD_NEXT { \
      if (load_at == load_end && load_tile < TILES) { \
        DECODE_TILE(load_tile) \
        lc = c0, lf = f0, li = i0 - PAD1, lj = j0 - PAD2; \
        load_at = k_begin, load_end = k_end; \
        DECODE_BOX(load_at, tn, th, tw) \
        load_tile += groups; \
      } \
      if (load_at < load_end) { \
        BAR_WAIT(empty + 8 * load_stage, load_phase); \
        if (lane == 0) { \
          const uint to_ = base + load_stage * STAGE; \
          const uint come_ = come + 8 * load_stage, full_ = full + 8 * load_stage; \
          const int w_ = tw * BOX_W, h_ = th * BOX_H, n_ = tn * BOX_N; \
          BAR_EXPECT(come_, 2 * DY_PANEL); \
          TMA4(to_ + DY_AT, maps + 16, come_, lf, w_, h_, n_); \
          TMA4(to_ + DY_AT + DY_PANEL, maps + 16, come_, lf + 32, w_, h_, n_); \
          BAR_EXPECT(full_, 2 * X_PANEL); \
          TMA4(to_, maps, full_, lc, w_ + lj, h_ + li, n_); \
          TMA4(to_ + X_STEP, maps, full_, lc + 32, w_ + lj, h_ + li, n_); \
        } \
        ++load_at; \
        NEXT_BOX(tn, th, tw) \
        if (++load_stage == STAGES) { load_stage = 0; load_phase ^= 1; } \
      } \
    }
    if (panel == 0) {
      _Pragma("unroll 1") for (int s = 0; s < STAGES - AHEAD; ++s) LOAD_NEXT
    }
    for (int tile = get_group_id(0); tile < TILES; tile += groups) {
      DECODE_TILE(tile)
      _Pragma("unroll 1") for (int kt = k_begin; kt < k_end; ++kt) {
        BAR_WAIT(come + 8 * stage, phase);
        const uint from = base + stage * STAGE + DY_AT + panel * DY_PANEL;
        const uint to = base + stage * STAGE + DYT_AT + (panel * 32 + lane) * 16;
        uint v[BOX_W][4];
        UNROLL for (int j = 0; j < BOX_W; ++j)
          UNROLL for (int t = 0; t < 4; ++t)
            LDS1(v[j][t], from + (t * 8 + j) * 128 + ((lane * 4) ^ (j * 16)));
        UNROLL for (int j = 0; j < BOX_W; ++j) STS4(to + j * DYT_COLUMN, v[j]);
        STS4(to + 8 * DYT_COLUMN, v[0]);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        WARP_SYNC;
        if (lane == 0) BAR_ARRIVE(full + 8 * stage);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
        if (panel == 0) LOAD_NEXT
      }
    }
    return;
  }

  REGISTERS(inc, 152);
  const int g = lane >> 2, t = lane & 3, line = t % BOX_H, image = t / BOX_H;
  const uint place = ((warp >> 1) & 1) * X_STEP
      + ((image * HIGH + line + consumer) * WIDE) * 128 + (warp & 1) * 64 + g * 8;
  // No swizzle; 128 bytes between groups of eight rows, a column between groups of four k.
  const ulong desc = (8UL << 32) | ((ulong)(DYT_COLUMN >> 4) << 16) | (ulong)((base + DYT_AT) >> 4);
  float products[TAPS][32];
  UNROLL for (int v = 0; v < TAPS; ++v) UNROLL for (int j = 0; j < 32; ++j) products[v][j] = 0;
  for (int tile = get_group_id(0); tile < TILES; tile += groups) {
    DECODE_TILE(tile)
    const int k_count = k_end - k_begin;
    _Pragma("unroll 1") for (int kt = 0; kt < k_count; ++kt) {
      BAR_WAIT(full + 8 * stage, phase);
      const uint from = base + stage * STAGE + place;
      const ulong d = desc + (ulong)(stage * (STAGE >> 4));
      uint x[WIDE + 2][2];
      UNROLL for (int p = 0; p < WIDE + 2; ++p) {
        const uint at = from + (p < WIDE ? p : p == WIDE ? WIDE - 2 : 1) * 128;
        LDS2(x[p][0], x[p][1], SWIZZLED(at));
      }
      WG_FENCE;
      UNROLL for (int s = 0; s < BOX_W / 2; ++s)
        UNROLL for (int v = 0; v < TAPS; ++v)
        {
          const int p = v == 0 ? 2 * s : v == 1 && s == 3 ? WIDE : 2 * s + 2;
          WGMMA_A(products[v], x[p], x[p + 1], d + (ulong)((2 * s + (v == 1)) * (DYT_COLUMN >> 4)),
                  (int)((kt | s) != 0));
        }
      WG_COMMIT;
      WG_WAIT(0);
      if (lane == 0) BAR_ARRIVE(empty + 8 * stage);
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    UNROLL for (int v = 0; v < TAPS; ++v) { WGMMA_KEEP(products[v]); }

    const int c = c0 + (warp & 3) * 16 + 2 * g;
    UNROLL for (int i = 0; i < TAPS; ++i) STORE_TAP(i0 + consumer, j0 + i, c, c + 1)
  }
}
