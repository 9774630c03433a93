// Products of float32 (as TF32) on NVIDIA sm_90a whose second operand has n contiguous.  wgmma wants
// TF32 with k contiguous in shared memory or, its left operand only, in registers.  So this is the
// transposed product out^T = b^T a^T: b's fragments are loaded into registers, a is read where TMA
// leaves it.  Else as wgmma.cl, whose tile of BM x BN is here one of BN rows and BM columns.
// A_IN_REGISTERS: the first operand has m contiguous, and the product is out = a b, whose tile is
// BM x BN: what is said of b and of columns below is true of a and of rows, and the other way round.
//
// A stage of the ring holds
//   a   BN rows of BK = 32 k
//   b   panels of 32 columns: BK rows (k) of 128 bytes
// both with their 16-byte chunks permuted by TMA: chunk c of row r lies at c ^ (r % 8).
//
// Lane 4 g + t of a warp holds rows g and g + 8 of a fragment at k = t and k = t + 4.  They are two
// neighbouring columns, so that eight bytes bring both.  A warp's sixteen are the chunks c, c + 4,
// c + 1 and c + 5 of a panel: then the sixteen lanes that shared memory serves at once read two of
// them, four apart, from four rows, and meet in no bank.

#define THREADS (NWG * 128 + PRODUCERS)
#define PANEL (BK * 128)
#define A_BYTES (BN * 128)
#define B_BYTES (BM / 32 * PANEL)
#define STAGE (A_BYTES + B_BYTES)
#define RING (STAGES * STAGE)
#define STEPS (BK / 8 / 2)  // of k in half a stage

#if A_IN_REGISTERS
#define DECODE_PLACE const int m0 = pm * BM, n0 = pn * BN;
#define TMA_ROWS(to, k0) TMA_MATRIX(to, map_a + 16, bar, k0, n0, b2, b1, b0);
#define TMA_PANEL(to, p, k0) TMA_MATRIX(to, map_a, bar, m0 + 32 * p, k0, a2, a1, a0);
#else
#define DECODE_PLACE const int m0 = pm * BN, n0 = pn * BM;
#define TMA_ROWS(to, k0) TMA_MATRIX(to, map_a, bar, k0, m0, a2, a1, a0);
#define TMA_PANEL(to, p, k0) TMA_MATRIX(to, map_a + 16, bar, n0 + 32 * p, k0, b2, b1, b0);
#endif

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma_transposed(
    __global const uchar* restrict pA, __global const uchar* restrict pB,
    __global uchar* restrict pMaps, const ulong8 mapA, const ulong8 mapB PARAMS SUMS_PARAMS
    EPILOGUE_PARAMS SEVERAL_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid & 31;
  SAME_IN_WARP(warp, tid >> 5);
  const int consumer = warp >> 2;
  RING_AT(base, RING + 16 * STAGES);
  asm volatile("//#entry .minnctapersm %0" :: "n"(GROUPS));
  RING_BARRIERS(4 * NWG)
  const int groups = get_num_groups(0);
  int stage = 0;
  uint phase = 0;

#define DECODE_TILE \
    int pm, pn; \
    NTH_PRODUCT(tile) \
    const int tile_ = tile - nth_ * TILES; \
    const int z = tile_ / (TILES_M * TILES_N), split = z % SPLITS, plane = z / SPLITS; \
    DECODE_BAND(tile_ - z * (TILES_M * TILES_N), pm, pn) \
    DECODE_PLACE \
    const int k_begin = split * SLICE, k_end = min(CHUNKS, k_begin + SLICE);

  if (consumer == NWG) {
    GIVE_REGISTERS;
    if (tid == NWG * 128) {
      __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL)
          + get_group_id(0) * (16 * MAPS);
      write_map(maps, (ulong)pA + A_OFFSET, mapA);
      write_map(maps + 16, (ulong)pB + B_OFFSET, mapB);
      WRITE_SEVERAL_MAPS
      MAP_RELEASE;
      for (int c = 0; c < MAPS; ++c) MAP_ACQUIRE(maps + 16 * c);
      for (int tile = get_group_id(0); tile < ALL_TILES; tile += groups) {
        DECODE_TILE
        __global ulong* const map_a = maps + 32 * nth_;
        DECODE_BATCH
        for (int kt = k_begin; kt < k_end; ++kt) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          const int k0 = kt * BK;
          BAR_EXPECT(bar, STAGE);
          TMA_ROWS(to, k0)
          UNROLL for (int p = 0; p < BM / 32; ++p) {
            TMA_PANEL(to + A_BYTES + p * PANEL, p, k0)
          }
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
    }
    return;
  }

  TAKE_REGISTERS;
  const int g = lane >> 2, t = lane & 3, odd = g & 1;
  const int chunk = (g & 2) << 1 | (warp & 1) << 1 | g >> 2;
  const uint near = base + A_BYTES + (warp >> 1) * PANEL
      + t * 128 + ((chunk ^ t) << 4) + odd * 8;
  const uint far = (near ^ 64) + 512;  // four k further
  // 128-byte swizzle; 1024 bytes between groups of eight rows.
  const ulong desc = (1UL << 62) | (64UL << 32) | (1UL << 16) | (ulong)(base >> 4);
#if A_IN_REGISTERS
  const int pair = t;
#define LANE_ROW ((warp >> 1) * 32 + chunk * 4 + odd * 2)
#define PLACE(row, live, at) \
      const int live = m0 + (row) < M; \
      const INDEX_T at = ((INDEX_T)plane * M + m0 + (row)) * N + n0;
#define COLUMNS N
#define RESULT products
#elif defined(EPILOGUE_VECTOR) && VECTOR == 8
#define LANE_COLUMN ((warp >> 1) * 32 + (chunk & ~1) * 4)
#define READ_COLUMNS EPILOGUE_READ_ROW(8, 0, n)
#elif defined(EPILOGUE_VECTOR) && VECTOR == 4
#define LANE_COLUMN ((warp >> 1) * 32 + chunk * 4)
#define READ_COLUMNS EPILOGUE_READ_ROW(4, 0, n)
#else
#define LANE_COLUMN ((warp >> 1) * 32 + chunk * 4 + odd * 2)
#endif
#if KEPT  // a lane's vectors have the same columns, and so the same of what all rows read
#define STORE_VECTOR(width, d, at) EPILOGUE_VECTOR_KEPT(width, d, at, 0)
#else
#define STORE_VECTOR(width, d, at) EPILOGUE_VECTOR(width, d, at)
#endif
  float products[1][BN / 2];
  UNROLL for (int j = 0; j < BN / 2; ++j) products[0][j] = 0;
  for (int tile = get_group_id(0); tile < ALL_TILES; tile += groups) {
    DECODE_TILE
    TAKE_BUFFERS
    const int k_count = k_end - k_begin;
#if A_IN_REGISTERS
    READ_ROW
    BRING_NEAR
#else
    const int n = n0 + LANE_COLUMN;
#if KEPT
    EPILOGUE_ROW(VECTOR, 1)
    if (n < N) READ_COLUMNS
#endif
#if READS  // lines of what the epilogue reads: of each of BN rows as many as there are panels
    for (int line = tid; line < BN * (BM / 32); line += NWG * 128) {
      const int m_ = m0 + line / (BM / 32), n_ = n0 + line % (BM / 32) * 32;
      if (m_ < M && n_ < N) EPILOGUE_PREFETCH(((INDEX_T)plane * M + m_) * N + n_)
    }
#endif
#endif
    int before = 0;
    BEGIN_SUMS
    // Fragments of one half of a stage are loaded while products of the other are made.
    uint left[2][STEPS][4];
    _Pragma("unroll 1") for (int kt = 0; kt < k_count; ++kt) {
      BAR_WAIT(full + 8 * stage, phase);
      const uint from = stage * STAGE;
      const ulong d = desc + (ulong)(from >> 4);
      UNROLL for (int h = 0; h < 2; ++h) {
        UNROLL for (int s = 0; s < STEPS; ++s) {
          const uint at = from + (h * STEPS + s) * 1024;
          LDS2(left[h][s][0], left[h][s][1], near + at);
          LDS2(left[h][s][2], left[h][s][3], far + at);
          ADD_FRAGMENT(left[h][s])
        }
        WG_FENCE;
        UNROLL for (int s = 0; s < STEPS; ++s)
          WGMMA_A(products[0], left[h][s], left[h][s] + 2,
                  d + (ulong)(2 * (h * STEPS + s)), (int)((kt | h | s) != 0));
        WG_COMMIT;
        WG_WAIT(1);
        if (h == 0 && kt > 0 && lane == 0) BAR_ARRIVE(empty + 8 * before);
      }
      before = stage;
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    WG_WAIT(0);
    WGMMA_KEEP(products[0]);
    if (lane == 0) BAR_ARRIVE(empty + 8 * before);
    END_SUMS

    // Registers 4 j and 4 j + 2 are two neighbours of row 8 j + 2 t, the other two of the next row.
#if A_IN_REGISTERS
    STORE_RESULT
#else
    const INDEX_T above = (INDEX_T)plane * M;
#if defined(EPILOGUE_VECTOR) && VECTOR == 8
    const int low = g & 1, high = g >> 2;
    UNROLL for (int j = 0; j < BN / 8; j += 2) {
      float eight[8];
      UNROLL for (int v = 0; v < 4; ++v) {
        eight[2 * v] = products[0][4 * (j + v / 2) + v % 2];
        eight[2 * v + 1] = products[0][4 * (j + v / 2) + v % 2 + 2];
      }
      EXCHANGE_EIGHT(eight, low, 4, high, 16)
      const int m = m0 + (j + high) * 8 + 2 * t + low;
      if (m < M && n < N) STORE_VECTOR(8, eight, (above + m) * N + n)
    }
#elif defined(EPILOGUE_VECTOR) && VECTOR == 4
    UNROLL for (int j = 0; j < BN / 8; ++j) {
      float four[4];
      EXCHANGE_FOUR(four, products[0][4 * j], products[0][4 * j + 2],
                    products[0][4 * j + 1], products[0][4 * j + 3], odd, 4)
      const int m = m0 + j * 8 + 2 * t + odd;
      if (m < M && n < N) STORE_VECTOR(4, four, (above + m) * N + n)
    }
#else
    UNROLL for (int j = 0; j < BN / 8; ++j)
      UNROLL for (int h = 0; h < 2; ++h) {
        const int m = m0 + j * 8 + 2 * t + h;
        const INDEX_T at = (above + m) * N + n;
        if (m < M && n < N) EPILOGUE(products[0][4 * j + h], at)
        if (m < M && n + 1 < N) EPILOGUE(products[0][4 * j + 2 + h], at + 1)
      }
#endif
#endif
  }
}
