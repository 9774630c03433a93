// Matrix products on NVIDIA sm_90a: TMA loads, wgmma, one producer warp and NWG consumer warpgroups
// in persistent work-groups.  wgmma.py puts the tile, the operands' layouts and the operation
// (WGMMA) in front.  Lines that begin with //@ inside asm are switched on, and local memory gets
// the size after //#shared, by the rewrite "sm_90a": OpenCL C is compiled for plain sm_90.
//
// Shared memory is a ring of STAGES pairs of tiles.  A tile lies in rows of 128 bytes, whose
// 16-byte chunks TMA permutes: either a row of k for each row m (or n) of the tile (K-major), or in
// panels of 64 columns m (or n), BK rows of k each (A_MN, B_MN; 16-bit types only).  LOW: a stage
// holds a second pair, the low parts of 3xTF32, so that three products are made of one load.

#define THREADS (NWG * 128 + PRODUCERS)
#define TILE_CONSUMERS (NWG / PINGPONG)
#define A_BYTES (BM * 128)
#define B_ROWS (B_MN ? (BN + 63) / 64 * 64 : BN)
#define B_BYTES (B_ROWS * 128)
#ifndef PLANES
#define PLANES 0
#define BLOCK_ROWS 64
#endif
#define PAIR (A_BYTES + B_BYTES)
#define STAGE (LOW ? 2 * PAIR : PAIR)
#define RING (STAGES * STAGE + BROUGHT_BYTES)
#define LOW_MAPS (8 * MAPS)  // from an operand's tensor map to that of its low part

#ifndef CONV
#define A_BOX_BYTES A_BYTES
#endif

#define A_BLOCK (A_MN ? BK * 8 : 512)

#ifndef BEGIN_TURNS  // wgmma_pingpong.cl
#define TURN_BYTES 0
#define INIT_TURNS
#define BEGIN_TURNS const int team = 0;
#define TAKE_TURN
#define PASS_TURN
#define END_TURN
#endif

// A sum of products walks through the depth of one after that of the other (kernel.py says how
// many TERMS there are, of TERM_CHUNKS stages each).  Two maps each lie behind those of the first.
#ifdef TERMS
#define NEXT_CHUNK \
    const int term = at / TERM_CHUNKS, k0 = (at - term * TERM_CHUNKS) * BK; \
    ++at; \
    __global ulong* const map_a = maps + 32 * term; \
    __global ulong* const map_b = map_a + 16;
#else
#define TERM_PARAMS
#define WRITE_TERM_MAPS
#define NEXT_CHUNK \
    const int k0 = at++ * BK; \
    __global ulong* const map_a = maps + 32 * nth_; \
    __global ulong* const map_b = map_a + 16;
#endif

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void wgmma(
    __global const uchar* restrict pA, __global const uchar* restrict pB,
    __global const uchar* restrict pA2, __global const uchar* restrict pB2,
    __global uchar* restrict pMaps, const ulong8 mapA, const ulong8 mapB TERM_PARAMS BROUGHT_PARAMS PARAMS
    SUMS_PARAMS MOMENTS_PARAMS EPILOGUE_PARAMS SEVERAL_PARAMS) {
  __local uint ring[1024] __attribute__((aligned(1024)));
  const int tid = get_local_id(0);
  SAME_IN_WARP(consumer, tid >> 7);
  RING_AT(base, RING + 16 * STAGES + SIDE + TURN_BYTES + BROUGHT_BARRIER_BYTES);
  INIT_TURNS
  INIT_BROUGHT
  RING_BARRIERS(4 * TILE_CONSUMERS)
  const int groups = get_num_groups(0);
// With reads more registers help more than another work-group.
#if defined(MOMENTS) || !READS || defined(MANY_REGISTERS)
  asm volatile("//#entry .minnctapersm %0" :: "n"(GROUPS));
#endif
  int stage = 0;
  uint phase = 0;

  // Which part of the output: SPLITS * PLANES * TILES_N * TILES_M tiles.  With moments a group keeps
  // to its column of tiles, as there are a multiple of TILES_N groups.
#define DECODE_TILE \
    NTH_PRODUCT(tile) \
    int tile_ = tile - nth_ * TILES, pm, pn; \
    const int plane_ = TILES_M * TILES_N; \
    const int z = tile_ / plane_; \
    tile_ -= z * plane_; \
    const int split = z % SPLITS, plane = z / SPLITS; \
    if (ONE_COLUMN) { \
      pm = tile_ / TILES_N; \
      pn = tile_ - pm * TILES_N; \
    } else { \
      DECODE_BAND(tile_, pm, pn) \
    } \
    const int n0 = pn * BN;

#if defined(CONV) && !FILTER_GRAD
  // Class (ch, cw): the output pixels of these remainders by the stride (data gradients only).
  // Taps r = r0 + CLASSES * i, i < nr, reach it.  If none does, one reads zeros out of bounds.
#define DECODE_DEPTH \
    const int ch = plane / CLASSES, cw = plane - ch * CLASSES; \
    const int r0 = DATA_GRAD ? (ch + PAD1) % CLASSES : 0, s0 = DATA_GRAD ? (cw + PAD2) % CLASSES : 0; \
    const int none = r0 >= KER1 || s0 >= KER2; \
    const int nr = none ? 1 : (KER1 - r0 + CLASSES - 1) / CLASSES; \
    const int ns = none ? 1 : (KER2 - s0 + CLASSES - 1) / CLASSES; \
    const int depth = none ? 1 : nr * ns * CHUNKS;
#else
#define DECODE_DEPTH const int depth = CHUNKS;
#endif
  // Where tap (i, j) reads: image (ih, iw) of every IMAGES1-th row and IMAGES2-th column, shifted by
  // (dh, dw).  Floor division; i and j less the padding may be negative by less than the padding.
#define SHIFT(i, j, ih, iw, dh, dw) \
    dh = (i - PAD1 + IMAGES1 * PAD1) / IMAGES1 - PAD1; \
    dw = (j - PAD2 + IMAGES2 * PAD2) / IMAGES2 - PAD2; \
    ih = i - PAD1 - dh * IMAGES1; \
    iw = j - PAD2 - dw * IMAGES2;
  // Filter gradients: k runs over boxes of 64 pixels, or (PLANES) along pixels of all images with
  // zeros after each row, where a tap is a shift of k.  Rows are blocks of BLOCK_ROWS channels of
  // one tap; so a tile's blocks may belong to several taps and read several boxes.
#define BLOCKS (BM / BLOCK_ROWS)
#define DECODE_BLOCK(b, tap, c0) \
    const int tap = (b) / CHANNEL_BLOCKS, c0 = ((b) - tap * CHANNEL_BLOCKS) * BLOCK_ROWS;
  // RUN: a tap is a row of taps, its channels those of RUN neighbouring pixels, PIXEL of each.
#ifdef RUN
#define CHANNEL_LIVE(c) ((c) < RUN * PIXEL && (c) % PIXEL < CIN)
#define CHANNEL_AT(tap, c) (((INDEX_T)(tap) * RUN + (c) / PIXEL) * CIN + (c) % PIXEL)
#else
#define CHANNEL_LIVE(c) ((c) < CIN)
#define CHANNEL_AT(tap, c) ((INDEX_T)(tap) * CIN + (c))
#endif
#define FLOOR_DIV(v, by) ((v) < 0 ? -(((by) - 1 - (v)) / (by)) : (v) / (by))
#define DECODE_SLICE \
    const int k_begin = split * SLICE, k_end = min(depth, k_begin + SLICE);

  if (consumer == NWG) {
    GIVE_REGISTERS;
    if (tid == NWG * 128) {
      __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL)
          + get_group_id(0) * (16 * MAPS);
      const ulong a = (ulong)pA + A_OFFSET, b = (ulong)pB + B_OFFSET;
#ifdef CONV
      // The pixels of each remainder by the stride are an image of their own.
      for (int c = 0; c < IMAGES1 * IMAGES2; ++c) {
        const int ph = c / IMAGES2, pw = c - ph * IMAGES2;
        ulong8 w = mapA;
        w.s3 += (ulong)(uint)((IN2 - pw + IMAGES2 - 1) / IMAGES2 - 1) << 32;
        w.s4 += (ulong)(uint)((IN1 - ph + IMAGES1 - 1) / IMAGES1 - 1);
        const ulong shift = (ulong)ph * ROW_BYTES + pw * (CIN * ITEM);
        write_map(maps + 16 * c, a + shift, w);
        if (LOW) write_map(maps + 16 * c + LOW_MAPS, (ulong)pA2 + shift, w);
      }
      __global ulong* const map_b = maps + 16 * IMAGES1 * IMAGES2;
#else
      write_map(maps, a, mapA);
      if (LOW) write_map(maps + LOW_MAPS, (ulong)pA2, mapA);
      __global ulong* const map_b = maps + 16;
#endif
      write_map(map_b, b, mapB);
      if (LOW) write_map(map_b + LOW_MAPS, (ulong)pB2, mapB);
      WRITE_TERM_MAPS
      WRITE_SEVERAL_MAPS
      MAP_RELEASE;
      for (int c = 0; c < MAPS; ++c) MAP_ACQUIRE(maps + 16 * c);

      for (int tile = get_group_id(0); tile < ALL_TILES; tile += groups) {
        DECODE_TILE
        DECODE_DEPTH
        DECODE_SLICE
        int at = k_begin;
#if defined(CONV) && FILTER_GRAD
        int part[BLOCKS], dh[BLOCKS], dw[BLOCKS], outside[BLOCKS];
        __global ulong* ma[BLOCKS];
        UNROLL for (int p = 0; p < BLOCKS; ++p) {
          DECODE_BLOCK(pm * BLOCKS + p, tap, c0)
          const int i = tap / KER2, j = tap - i * KER2;
          int ih, iw;
          SHIFT(i, j, ih, iw, dh[p], dw[p])
          part[p] = c0;
          outside[p] = tap < KER1 * KER2 ? 0 : 1 << 24;
          ma[p] = maps + 16 * (ih * IMAGES2 + iw);
        }
        const int across = TILES_W * TILES_H;
        int tn = at / across, th = (at - tn * across) / TILES_W;
        int tw = at - tn * across - th * TILES_W;
#elif defined(CONV)
        DECODE_PIXELS
        const int tap = at / CHUNKS;
        int chunk = at - tap * CHUNKS, i = tap / ns, j = tap - i * ns;
        int ih, iw, dh, dw, rs, moved = 1;
#elif PLANES
        int part[BLOCKS], shift[BLOCKS];
        UNROLL for (int p = 0; p < BLOCKS; ++p) {
          DECODE_BLOCK(pm * BLOCKS + p, tap, c0)
          const int i = tap / KER2, j = tap - i * KER2;
          const int y = i * DIL1 - PAD1, x = j * DIL2 - PAD2;
          shift[p] = (FLOOR_DIV(y, STRIDE1) * GRID2 + FLOOR_DIV(x, STRIDE2)) * IMAGES;
          part[p] = tap < KER1 * KER2 ? (i % PERIOD1 * PHASES2 + j % PERIOD2) * CIN + c0 : 1 << 24;
        }
#else
        const int m0 = pm * BM;
        DECODE_BATCH
#endif
        for (int kt = k_begin; kt < k_end; ++kt) {
          BAR_WAIT(empty + 8 * stage, phase ^ 1);
          const uint to = base + stage * STAGE, bar = full + 8 * stage;
          BAR_EXPECT(bar, (LOW + 1) * (A_BOX_BYTES + B_BYTES));
#if defined(CONV) && FILTER_GRAD
          const int image0 = tn * BOX_N, h0 = th * BOX_H, w0 = tw * BOX_W;
          UNROLL for (int p = 0; p < BLOCKS; ++p)
            TMA4(to + p * (BK * 128), ma[p], bar, part[p], w0 + dw[p], h0 + dh[p],
                 image0 + outside[p]);
          UNROLL for (int p = 0; p < B_ROWS / 64; ++p)
            TMA4(to + A_BYTES + p * (BK * 128), map_b, bar, n0 + 64 * p, w0, h0, image0);
          if (++tw == TILES_W) {
            tw = 0;
            if (++th == TILES_H) { th = 0; ++tn; }
          }
#elif defined(CONV)
          if (moved) {
            if (DATA_GRAD) {
              ih = iw = 0;
              dh = (ch + PAD1 - r0) / CLASSES - i;
              dw = (cw + PAD2 - s0) / CLASSES - j;
            } else {
              SHIFT(i, j, ih, iw, dh, dw)
            }
            rs = (r0 + CLASSES * i) * KER2 + s0 + CLASSES * j;
            if (DATA_GRAD && none) dh = rs = 1 << 24;
            moved = 0;
          }
          __global ulong* const ma = maps + 16 * (ih * IMAGES2 + iw);
          const int k0 = chunk * BK;
          TMA4(to, ma, bar, k0, w0 + dw, h0 + dh, image0);
          if (LOW) TMA4(to + PAIR, ma + LOW_MAPS, bar, k0, w0 + dw, h0 + dh, image0);
#if B_MN
          UNROLL for (int p = 0; p < B_ROWS / 64; ++p)
            TMA3(to + A_BYTES + p * (BK * 128), map_b, bar, n0 + 64 * p, k0, rs);
#elif B_TAPS_INNER
          TMA3(to + A_BYTES, map_b, bar, k0, rs, n0);
          if (LOW) TMA3(to + PAIR + A_BYTES, map_b + LOW_MAPS, bar, k0, rs, n0);
#else
          TMA3(to + A_BYTES, map_b, bar, k0, n0, rs);
          if (LOW) TMA3(to + PAIR + A_BYTES, map_b + LOW_MAPS, bar, k0, n0, rs);
#endif
          if (++chunk == CHUNKS) {
            chunk = 0;
            moved = 1;
            if (++j == ns) {
              j = 0;
              ++i;
            }
          }
#elif PLANES
          const int k0 = at++ * BK;
          UNROLL for (int p = 0; p < BLOCKS; ++p) {
            const uint to_a = to + p * (BLOCK_ROWS * 128);
            TMA2(to_a, maps, bar, k0 + shift[p], part[p]);
            if (LOW) TMA2(to_a + PAIR, maps + LOW_MAPS, bar, k0 + shift[p], part[p]);
          }
          TMA2(to + A_BYTES, map_b, bar, k0, n0);
          if (LOW) TMA2(to + PAIR + A_BYTES, map_b + LOW_MAPS, bar, k0, n0);
#else
          NEXT_CHUNK
#if A_MN
          UNROLL for (int p = 0; p < BM / 64; ++p)
            TMA_MATRIX(to + p * (BK * 128), map_a, bar, m0 + 64 * p, k0, a2, a1, a0);
#else
          TMA_MATRIX(to, map_a, bar, k0, m0, a2, a1, a0);
          if (LOW) TMA_MATRIX(to + PAIR, map_a + LOW_MAPS, bar, k0, m0, a2, a1, a0);
#endif
#if B_MN
          UNROLL for (int p = 0; p < B_ROWS / 64; ++p)
            TMA_MATRIX(to + A_BYTES + p * (BK * 128), map_b, bar, n0 + 64 * p, k0, b2, b1, b0);
#else
          TMA_MATRIX(to + A_BYTES, map_b, bar, k0, n0, b2, b1, b0);
          if (LOW) TMA_MATRIX(to + PAIR + A_BYTES, map_b + LOW_MAPS, bar, k0, n0, b2, b1, b0);
#endif
#endif
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
    }
    BRING
    return;
  }

#if (defined(CONV) && FILTER_GRAD) || PLANES
#define PLACE(row, live, at) \
      int live; INDEX_T at; \
      { DECODE_BLOCK(pm * BLOCKS + (row) / BLOCK_ROWS, tap_, c0_) \
        const int c_ = c0_ + (row) % BLOCK_ROWS; \
        live = tap_ < KER1 * KER2 && CHANNEL_LIVE(c_); \
        at = CHANNEL_AT(tap_, c_) * COUT + n0; }
#define COLUMNS COUT
#elif defined(CONV)
#define PLACE(row, live, at) PLACE_PIXEL(row, live, at)
#define COLUMNS COUT
#else
#define PLACE(row, live, at) \
      const int live = pm * BM + (row) < M; \
      const INDEX_T at = ((INDEX_T)plane * M + pm * BM + (row)) * N + n0;
#define COLUMNS N
#endif

  TAKE_REGISTERS;
  float products[MI][BN / 2];
  UNROLL for (int i = 0; i < MI; ++i) UNROLL for (int j = 0; j < BN / 2; ++j) products[i][j] = 0;
  const int lane = tid & 31, quad = lane >> 2, pair = lane & 3;
  const ulong desc_a = DESCRIPTOR(A_MN) + (ulong)((base >> 4) + IN_TILE * (MI * A_BLOCK));
  const ulong desc_b = DESCRIPTOR(B_MN) + (ulong)((base + A_BYTES) >> 4);
  BEGIN_TURNS
  BEGIN_MOMENTS
  for (int tile = get_group_id(0) + team * groups; tile < ALL_TILES; tile += PINGPONG * groups) {
    DECODE_TILE
    TAKE_BUFFERS
    DECODE_DEPTH
    DECODE_SLICE
    READ_ROW
#ifndef CONV
    BRING_NEAR
#endif
    int before = 0;
    BEGIN_SUMS
    TAKE_TURN
#ifdef PROMOTE
    float sum[MI][BN / 2];
    UNROLL for (int i = 0; i < MI; ++i) UNROLL for (int j = 0; j < BN / 2; ++j) sum[i][j] = 0;
    _Pragma("unroll 1") for (int k_part = k_begin; k_part < k_end; k_part += PROMOTE) {
      const int k_count = min(PROMOTE, k_end - k_part);
#else
      const int k_count = k_end - k_begin;
#endif
      _Pragma("unroll 1") for (int kt = 0; kt < k_count; ++kt) {
        BAR_WAIT(full + 8 * stage, phase);
        WG_FENCE;
        const ulong da = desc_a + (ulong)(stage * (STAGE >> 4));
        const ulong db = desc_b + (ulong)(stage * (STAGE >> 4));
        UNROLL for (int s = 0; s < BK / DEPTH; ++s)
          UNROLL for (int i = 0; i < MI; ++i) {
            const ulong a = da + (ulong)(i * A_BLOCK + s * K_STEP(A_MN));
            const ulong b = db + (ulong)(s * K_STEP(B_MN));
#if LOW
            // Small parts first.
            WGMMA(products[i], a + (ulong)(PAIR >> 4), b, (int)((kt | s) != 0));
            WGMMA(products[i], a, b + (ulong)(PAIR >> 4), 1);
            WGMMA(products[i], a, b, 1);
#else
            WGMMA(products[i], a, b, (int)((kt | s) != 0));
#endif
          }
        WG_COMMIT;
        ADD_STAGE
        WG_WAIT(1);
        if (kt > 0 && lane == 0) BAR_ARRIVE(empty + 8 * before);
        before = stage;
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      PASS_TURN
      WG_WAIT(0);
      UNROLL for (int i = 0; i < MI; ++i) { WGMMA_KEEP(products[i]); }
      if (lane == 0) BAR_ARRIVE(empty + 8 * before);
#ifdef PROMOTE
      UNROLL for (int i = 0; i < MI; ++i)
        UNROLL for (int j = 0; j < BN / 2; ++j) sum[i][j] += products[i][j];
    }
#define RESULT sum
#else
#define RESULT products
#endif

#if defined(CONV) && !FILTER_GRAD
    DECODE_PIXELS
#endif
    END_TURN
    END_SUMS
    STORE_RESULT
    TILE_MOMENTS
  }
  END_MOMENTS
}
