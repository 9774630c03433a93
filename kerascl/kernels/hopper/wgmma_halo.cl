// Convolutions of stride one, forward and data gradient, on NVIDIA sm_90a.  As wgmma.cl, but a box of
// pixels with a halo serves all taps: wgmma finds a tap's pixels where a shifted descriptor points,
// as it permutes the chunks of a row by their address.
//   a   LINE x (BOX_H + TAPS1 - 1) x BOX_N pixels: rows of 128 bytes, BK channels of a pixel.  Eight
//       rows of a tile are eight pixels of a line, and the next eight lie in the line below.
//   b   a tile of the weights for each tap, in a ring of WEIGHTS stages of its own.  RESIDENT: its one
//       stage holds so many, all of a column of tiles; a group loads them first and keeps to them.
// k is BK channels and, within them, the taps.  PINGPONG groups of consumers take tiles alternately, so that one
// stores while another multiplies.

#define THREADS (NWG * 128 + PRODUCERS)
#define TILE_CONSUMERS (NWG / PINGPONG)  // warpgroups of a tile
#define TAPS (TAPS1 * TAPS2)
#define LINE (8 + TAPS2 - 1)
#define A_BYTES ((A_ROWS * 128 + 1023) / 1024 * 1024)
#define B_ROWS (B_MN ? (BN + 63) / 64 * 64 : BN)
#define B_BYTES (B_ROWS * 128)
#define B_STAGE ((RESIDENT ? RESIDENT : 1) * B_BYTES)
#define FIRST_B (BOXES * A_BYTES)
#define RING (FIRST_B + WEIGHTS * B_STAGE)
#define CLASSES 1

#if B_MN
#define LOAD_B(to, bar, k0, tap) \
    UNROLL for (int p = 0; p < B_ROWS / 64; ++p) \
      TMA3((to) + p * (BK * 128), map_b, bar, n0 + 64 * p, k0, tap);
#elif B_TAPS_INNER
#define LOAD_B(to, bar, k0, tap) TMA3(to, map_b, bar, k0, tap, n0);
#else
#define LOAD_B(to, bar, k0, tap) TMA3(to, map_b, bar, k0, n0, tap);
#endif

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_halo(
    __global const uchar* restrict pA, __global const uchar* restrict pB,
    __global uchar* restrict pMaps, const ulong8 mapA, const ulong8 mapB PARAMS MOMENTS_PARAMS
    EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0);
  SAME_IN_WARP(consumer, tid >> 7);
  RING_AT(base, RING + 16 * STAGES + SIDE);
  asm volatile("//#entry .minnctapersm %0" :: "n"(GROUPS));
  RING_BARRIERS(4 * TILE_CONSUMERS)
  const int groups = get_num_groups(0);
  const uint full_b = full + 8 * BOXES, empty_b = empty + 8 * BOXES;
  int stage = 0;  // of the weights
  uint phase = 0;

#define DECODE_TILE \
    int pm, pn; \
    if (ONE_COLUMN) { \
      pm = tile / TILES_N; \
      pn = tile - pm * TILES_N; \
    } else { \
      DECODE_BAND(tile, pm, pn) \
    } \
    const int n0 = pn * BN; \
    DECODE_PIXELS

  if (consumer == NWG) {
    GIVE_REGISTERS;
    if (tid == NWG * 128) {
      __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL)
          + get_group_id(0) * 32;
      __global ulong* const map_b = maps + 16;
      write_map(maps, (ulong)pA, mapA);
      write_map(map_b, (ulong)pB, mapB);
      MAP_RELEASE;
      MAP_ACQUIRE(maps);
      MAP_ACQUIRE(map_b);
      int box = 0;
      uint turn = 0;
      for (int tile = get_group_id(0); tile < TILES; tile += groups) {
        DECODE_TILE
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
          const int k0 = chunk * BK;
          BAR_WAIT(empty + 8 * box, turn ^ 1);
          BAR_EXPECT(full + 8 * box, A_BOX_BYTES);
          // The gradient's taps go the other way: the last one has the first pixel.
          TMA4(base + box * A_BYTES, maps, full + 8 * box, k0,
               w0 + (DATA_GRAD ? PAD2 - TAPS2 + 1 : -PAD2),
               h0 + (DATA_GRAD ? PAD1 - TAPS1 + 1 : -PAD1), image0);
          if (++box == BOXES) { box = 0; turn ^= 1; }
#if RESIDENT
          if (chunk == 0 && tile == (int)get_group_id(0)) {
            BAR_EXPECT(full_b, B_STAGE);
            for (int t = 0; t < RESIDENT; ++t)
              LOAD_B(base + FIRST_B + t * B_BYTES, full_b, t / TAPS * BK, t % TAPS)
          }
#else
          for (int tap = 0; tap < TAPS; ++tap) {
            BAR_WAIT(empty_b + 8 * stage, phase ^ 1);
            BAR_EXPECT(full_b + 8 * stage, B_BYTES);
            LOAD_B(base + FIRST_B + stage * B_BYTES, full_b + 8 * stage, k0, tap)
            if (++stage == WEIGHTS) { stage = 0; phase ^= 1; }
          }
#endif
        }
      }
    }
    return;
  }

  TAKE_REGISTERS;
  float products[MI][BN / 2];
  UNROLL for (int i = 0; i < MI; ++i) UNROLL for (int j = 0; j < BN / 2; ++j) products[i][j] = 0;
#define RESULT products
  const int lane = tid & 31, quad = lane >> 2, pair = lane & 3;
  // Where each block of 64 rows, eight lines of one image, begins.
  ulong block[MI];
  UNROLL for (int i = 0; i < MI; ++i) {
    const int last = BOX_H * BOX_N - 8;  // blocks behind it are not stored
    const int line = min(8 * (IN_TILE * MI + i), last);
    block[i] = DESCRIPTOR_OF(LINE * 8)
        + (ulong)((base >> 4) + (line + line / BOX_H * (TAPS1 - 1)) * (LINE * 8));
  }
  const ulong desc_b = DESCRIPTOR(B_MN) + (ulong)((base + FIRST_B) >> 4);
  const int pingpong = consumer / TILE_CONSUMERS;
  int use = pingpong * CHUNKS;  // of boxes
#if RESIDENT
  BAR_WAIT(full_b, 0);
#endif
  BEGIN_MOMENTS
  for (int tile = get_group_id(0) + pingpong * groups; tile < TILES; tile += PINGPONG * groups) {
    DECODE_TILE
    int before = 0;
    _Pragma("unroll 1") for (int chunk = 0; chunk < CHUNKS; ++chunk, ++use) {
      const int box = use % BOXES;
      // A phase has the parity of the last but one.  Only when the other group has handed the box back,
      // which takes its pixels to have come, does the parity say whether the next have.  That wait's own
      // parity is safe as no tile has 2 * BOXES chunks: the use before the other's is this group's.
      if (PINGPONG > 1) BAR_WAIT_USE(empty + 8 * box, use / BOXES, 1);
      BAR_WAIT_USE(full + 8 * box, use / BOXES, 0);
      int i = 0, j = 0;
      _Pragma("unroll 1") for (int tap = 0; tap < TAPS; ++tap) {
#if RESIDENT
        const ulong b = desc_b + (ulong)((chunk * TAPS + tap) * (B_BYTES >> 4));
#else
        BAR_WAIT(full_b + 8 * stage, phase);
        const ulong b = desc_b + (ulong)(stage * (B_BYTES >> 4));
#endif
        const int forth = i * LINE + j, back = (TAPS1 - 1) * LINE + TAPS2 - 1 - forth;
        const ulong a = (ulong)(box * (A_BYTES >> 4) + (DATA_GRAD ? back : forth) * 8);
        if (++j == TAPS2) { j = 0; ++i; }
        WG_FENCE;
        UNROLL for (int s = 0; s < BK / DEPTH; ++s)
          UNROLL for (int m = 0; m < MI; ++m)
            WGMMA(products[m], block[m] + a + (ulong)(s * K_STEP(0)),
                  b + (ulong)(s * K_STEP(B_MN)), (int)((chunk | tap | s) != 0));
        WG_COMMIT;
        WG_WAIT(1);
        if (lane == 0) {
          if (!RESIDENT && (chunk | tap) != 0) BAR_ARRIVE(empty_b + 8 * before);
          if (chunk != 0 && tap == 0) BAR_ARRIVE(empty + 8 * ((use - 1) % BOXES));
        }
        before = stage;
        if (!RESIDENT && ++stage == WEIGHTS) { stage = 0; phase ^= 1; }
      }
    }
    WG_WAIT(0);
    UNROLL for (int m = 0; m < MI; ++m) { WGMMA_KEEP(products[m]); }
    if (lane == 0) {
      if (!RESIDENT) BAR_ARRIVE(empty_b + 8 * before);
      BAR_ARRIVE(empty + 8 * ((use - 1) % BOXES));
    }
    use += (PINGPONG - 1) * CHUNKS;

#define cw 0
#define ch 0
#define PLACE(row, live, at) PLACE_PIXEL(row, live, at)
#define COLUMNS COUT
    READ_ROW
    STORE_RESULT
    TILE_MOMENTS
  }
  END_MOMENTS
}
