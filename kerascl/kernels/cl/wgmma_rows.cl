// Convolutions of stride one, forward and data gradient, on NVIDIA sm_90a.  As wgmma.cl, but a stage
// of the ring serves a whole row of taps, so that shared memory is filled with pixels once for all of
// them:
//   a   a box of (BOX_W + TAPS - 1) x BOX_H x BOX_N pixels: rows of 128 bytes, BK channels of a pixel.
//       ldmatrix brings fragments to registers; a tap shifts its addresses by pixels
//   b   TAPS tiles of the weights, as wgmma.cl has them
// k is a row of taps and, within it, BK channels.  RESIDENT: so many tiles of b, all weights of a
// column of tiles, lie behind a ring of a alone.  A group loads them with its first tile and keeps to
// that column.

#define THREADS (NWG * 128 + PRODUCERS)
#define A_BYTES (A_ROWS * 128)
#define B_ROWS (B_MN ? (BN + 63) / 64 * 64 : BN)
#define B_BYTES (B_ROWS * 128)
#if RESIDENT
#define STAGE A_BYTES
#define FIRST_B (STAGES * STAGE)
#define PLACE_B (kt * TAPS * B_BYTES)
#define LOADS_B (tile == (int)get_group_id(0))
#else
#define STAGE (A_BYTES + TAPS * B_BYTES)
#define FIRST_B A_BYTES
#define PLACE_B (stage * STAGE)
#define LOADS_B 1
#endif
#define RING (STAGES * STAGE + RESIDENT * B_BYTES)
#define STEPS 4  // of 32 bytes of k
#define CLASSES 1

// Four matrices of eight rows of 16 bytes; lanes 8 i to 8 i + 7 give the rows of matrix i.
#define LDMATRIX(to, at) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3]) : "r"(at) : "memory")
#define SWIZZLED(at) ((at) ^ (((at) >> 3) & 0x70))

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_rows(
    __global const uchar* restrict pA, __global const uchar* restrict pB,
    __global uchar* restrict pMaps, const ulong8 mapA, const ulong8 mapB PARAMS MOMENTS_PARAMS
    EPILOGUE_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0);
  SAME_IN_WARP(team, tid >> 7);
  RING_AT(base, RING + 16 * STAGES + SIDE);
  asm volatile("//#entry .minnctapersm %0" :: "n"(GROUPS));
  RING_BARRIERS(4 * NWG)
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

#define DECODE_TILE \
    int pm, pn; \
    const int split = tile / (TILES_M * TILES_N), in_ = tile - split * (TILES_M * TILES_N); \
    if (ONE_COLUMN) { \
      pm = in_ / TILES_N; \
      pn = in_ - pm * TILES_N; \
    } else { \
      DECODE_BAND(in_, pm, pn) \
    } \
    const int n0 = pn * BN, k_begin = split * SLICE; \
    const int k_end = min(KER1 * CHUNKS, k_begin + SLICE); \
    DECODE_PIXELS

  if (team == NWG) {
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
      for (int tile = get_group_id(0); tile < TILES; tile += groups) {
        DECODE_TILE
        int i = k_begin / CHUNKS, chunk = k_begin - i * CHUNKS;
        for (int kt = k_begin; kt < k_end; ++kt) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          const int k0 = chunk * BK;
          BAR_EXPECT(bar, A_BOX_BYTES + (LOADS_B ? TAPS * B_BYTES : 0));
          // The gradient's taps go the other way: the last one has the first pixel.
          TMA4(to, maps, bar, k0, w0 + (DATA_GRAD ? PAD2 - TAPS + 1 : -PAD2),
               h0 + (DATA_GRAD ? PAD1 - i : i - PAD1), image0);
          if (LOADS_B) {
            UNROLL for (int j = 0; j < TAPS; ++j) {
              const uint to_b = base + FIRST_B + PLACE_B + j * B_BYTES;
              const int tap = i * TAPS + j;
#if B_MN
              UNROLL for (int p = 0; p < B_ROWS / 64; ++p)
                TMA3(to_b + p * (BK * 128), map_b, bar, n0 + 64 * p, k0, tap);
#elif B_TAPS_INNER
              TMA3(to_b, map_b, bar, k0, tap, n0);
#else
              TMA3(to_b, map_b, bar, k0, n0, tap);
#endif
            }
          }
          if (++chunk == CHUNKS) { chunk = 0; ++i; }
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
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
  // Where this lane's row of each block's fragments begins: matrices 0 and 1 are rows 0 to 15 of the
  // first 16 bytes of k, 2 and 3 of the next.  Rows beyond the box are read but not stored.
  uint corner[MI];
  UNROLL for (int i = 0; i < MI; ++i) {
    const int row = ROW(i) - quad + (lane & 15), line = row / BOX_W;
    const int at = line * (BOX_W + TAPS - 1) + row - line * BOX_W;
    corner[i] = min(at, A_ROWS - TAPS) * 128 + (lane >> 4) * 16;
  }
  const ulong desc = DESCRIPTOR(B_MN) + (ulong)((base + FIRST_B) >> 4);
  BEGIN_MOMENTS
  for (int tile = get_group_id(0); tile < TILES; tile += groups) {
    DECODE_TILE
    const int k_count = k_end - k_begin;
    int before = 0;
    // Fragments of one step are loaded while another's products are made.
    uint left[2][MI][4];
    _Pragma("unroll 1") for (int kt = 0; kt < k_count; ++kt) {
      BAR_WAIT(full + 8 * stage, phase);
      const uint from = base + stage * STAGE;
      const ulong d = desc + (ulong)(PLACE_B >> 4);
      UNROLL for (int j = 0; j < TAPS; ++j)
        UNROLL for (int s = 0; s < STEPS; ++s) {
          UNROLL for (int i = 0; i < MI; ++i) {
            const uint at = from + corner[i] + (DATA_GRAD ? TAPS - 1 - j : j) * 128 + s * 32;
            LDMATRIX(left[s & 1][i], SWIZZLED(at));
          }
          WG_FENCE;
          UNROLL for (int i = 0; i < MI; ++i)
            WGMMA_A(products[i], left[s & 1][i], left[s & 1][i] + 2,
                    d + (ulong)(j * (B_BYTES >> 4) + s * K_STEP(B_MN)), (int)((kt | j | s) != 0));
          WG_COMMIT;
          WG_WAIT(1);
          if (j == 0 && s == 0 && kt > 0 && lane == 0) BAR_ARRIVE(empty + 8 * before);
        }
      before = stage;
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    WG_WAIT(0);
    UNROLL for (int i = 0; i < MI; ++i) { WGMMA_KEEP(products[i]); }
    if (lane == 0) BAR_ARRIVE(empty + 8 * before);

#define cw 0
#define ch 0
#define PLACE(row, live, at) PLACE_PIXEL(row, live, at)
#define COLUMNS COUT
    STORE_RESULT
    TILE_MOMENTS
  }
  END_MOMENTS
}
