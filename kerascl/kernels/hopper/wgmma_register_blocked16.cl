// Filter gradients of 16-bit floats on NVIDIA sm_90a: dw[tap][c][f] = sum over pixels p of
// x[p + tap][c] * dy[p][f], tiles as in wgmma_register_blocked_common.cl.  A stage of the ring holds
//   x    a box of (8 + 2) x (BOX_H + 2) x BOX_N pixels: rows of 128 bytes, 64 channels of a pixel.
//        ldmatrix brings the left fragments to registers and turns them; a tap shifts its addresses
//   dy   a box of 8 x BOX_H x BOX_N = 64 pixels: rows of 64 filters, the right operand as it is
// k is a pixel of the box.

#define X_BYTES (WIDE * HIGH * BOX_N * 128)
#define DY_BYTES (64 * 128)
#define DY_AT ((X_BYTES + 1023) / 1024 * 1024)
#define STAGE (DY_AT + DY_BYTES)
#define RING (STAGES * STAGE)
#define STEPS 4  // of 16 pixels, two lines of the box

// Four 8 x 8 matrices of 16-bit elements, transposed; lanes 8 i to 8 i + 7 give the rows of matrix i.
#define LDMATRIX(to, at) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3]) : "r"(at) : "memory")

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_register_blocked16(
    __global const uchar* restrict pX, __global const uchar* restrict pDy,
    __global uchar* restrict pMaps, const ulong8 mapX, const ulong8 mapDy PARAMS EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid & 31;
  SAME_IN_WARP(warp, tid >> 5);
  const int consumer = warp >> 2;
  RING_AT(base, RING + 16 * STAGES);
  asm volatile("//#entry .minnctapersm 1");
  RING_BARRIERS(4 * CONSUMERS)
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

  if (consumer == CONSUMERS) {
    REGISTERS(dec, 56);
    if (tid == CONSUMERS * 128) {
      __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL) + get_group_id(0) * 32;
      write_map(maps, (ulong)pX, mapX);
      write_map(maps + 16, (ulong)pDy, mapDy);
      MAP_RELEASE;
      MAP_ACQUIRE(maps);
      MAP_ACQUIRE(maps + 16);
      for (int tile = get_group_id(0); tile < TILES; tile += groups) {
        DECODE_TILE(tile)
        int tn, th, tw;
        DECODE_BOX(k_begin, tn, th, tw)
        for (int kt = k_begin; kt < k_end; ++kt) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          const int w = tw * BOX_W, h = th * BOX_H, n = tn * BOX_N;
          BAR_EXPECT(bar, X_BYTES + DY_BYTES);
          TMA4(to, maps, bar, c0, w + j0 - PAD2, h + i0 - PAD1, n);
          TMA4(to + DY_AT, maps + 16, bar, f0, w, h, n);
          NEXT_BOX(tn, th, tw)
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
    }
    return;
  }

  REGISTERS(inc, 152);
  // Matrices 0 and 1 are a line's pixels and the 16 channels of a warp, 2 and 3 the next line's.
  const int next = lane >> 4;
  const uint corner = (consumer * WIDE + (lane & 7)) * 128 + (2 * (warp & 3) + ((lane >> 3) & 1)) * 16;
  // 128-byte swizzle; 1024 bytes between groups of eight k.
  const ulong desc = (1UL << 62) | (64UL << 32) | (512UL << 16) | (ulong)((base + DY_AT) >> 4);
  float products[TAPS][32];
  UNROLL for (int v = 0; v < TAPS; ++v) UNROLL for (int j = 0; j < 32; ++j) products[v][j] = 0;
  uint x[2][TAPS][4];
  for (int tile = get_group_id(0); tile < TILES; tile += groups) {
    DECODE_TILE(tile)
    const int k_count = k_end - k_begin;
    int before = 0;
    _Pragma("unroll 1") for (int kt = 0; kt < k_count; ++kt) {
      BAR_WAIT(full + 8 * stage, phase);
      const uint from = base + stage * STAGE + corner;
      const ulong d = desc + (ulong)(stage * (STAGE >> 4));
      UNROLL for (int s = 0; s < STEPS; ++s) {
        const int line = 2 * s + next;
        const uint at = from + (line / BOX_H * HIGH + line % BOX_H) * (WIDE * 128);
        // These registers' last products were waited for a step ago.
        UNROLL for (int v = 0; v < TAPS; ++v) LDMATRIX(x[s & 1][v], SWIZZLED(at + v * 128));
        WG_FENCE;
        UNROLL for (int v = 0; v < TAPS; ++v)
          WGMMA_A(products[v], x[s & 1][v], x[s & 1][v] + 2, d + (ulong)(s * 128),
                  (int)((kt | s) != 0));
        WG_COMMIT;
        WG_WAIT(1);
        if (s == 0 && kt > 0 && lane == 0) BAR_ARRIVE(empty + 8 * before);
      }
      before = stage;
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    WG_WAIT(0);
    UNROLL for (int v = 0; v < TAPS; ++v) { WGMMA_KEEP(products[v]); }
    if (lane == 0) BAR_ARRIVE(empty + 8 * before);

    const int c = c0 + (warp & 3) * 16 + (lane >> 2);
    UNROLL for (int i = 0; i < TAPS; ++i) STORE_TAP(i0 + consumer, j0 + i, c, c + 8)
  }
}
