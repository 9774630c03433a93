// What wgmma_taps.cl and wgmma_taps16.cl share: a work-group holds 3 x 3 taps of 64 channels and 64
// filters of dw[tap][c][f] in registers, warpgroup h those of row h of the taps, three tiles of
// 64 x 64; so a box of pixels of x with its margin is read once for nine taps.

#define TEAMS 3
#define TAPS 3
#define THREADS (TEAMS * 128 + 128)
#define BOX_W 8
#define WIDE (BOX_W + TAPS - 1)
#define HIGH (BOX_H + TEAMS - 1)
#define SWIZZLED(at) ((at) ^ (((at) >> 3) & 0x70))

// Tiles that share pixels are under way at the same time.
#define DECODE_TILE(tile) \
    const int plane_ = TILES_M * TILES_N * GROUPS_H * GROUPS_W, split = (tile) / plane_; \
    int rest_ = (tile) - split * plane_; \
    const int f0 = rest_ % TILES_N * 64; \
    rest_ /= TILES_N; \
    const int c0 = rest_ % TILES_M * 64; \
    rest_ /= TILES_M; \
    const int i0 = rest_ / GROUPS_W * TEAMS, j0 = rest_ % GROUPS_W * TAPS; \
    const int k_begin = split * SLICE, k_end = min(BOXES, k_begin + SLICE);

// The first box of pixels of a slice: images, lines, columns.
#define DECODE_BOX(at, tn, th, tw) \
    tn = (at) / (TILES_W * TILES_H); \
    th = ((at) - tn * (TILES_W * TILES_H)) / TILES_W; \
    tw = (at) - (tn * TILES_H + th) * TILES_W;
#define NEXT_BOX(tn, th, tw) \
    if (++tw == TILES_W) { \
      tw = 0; \
      if (++th == TILES_H) { th = 0; ++tn; } \
    }

// Store tile p of tap (i, j) from its channels c (elements 0 and 1 of four) and d (2 and 3).
#define STORE_TAP(p, i, j, c, d) { \
    const int live_ = (i) < KER1 && (j) < KER2, live0 = live_ && (c) < CIN, live1 = live_ && (d) < CIN; \
    const INDEX_T row_ = (INDEX_T)((i) * KER2 + (j)) * CIN; \
    const INDEX_T at0 = (row_ + (c)) * COUT + f0, at1 = (row_ + (d)) * COUT + f0; \
    STORE_ROWS(p) }
#ifdef EPILOGUE_VECTOR
// Lanes of even number take columns of tile j, odd ones of tile j + 1, four each.
#define FOUR(d, p, o) \
    EXCHANGE_FOUR(d, p[4 * j + o], p[4 * j + o + 1], p[4 * j + 4 + o], p[4 * j + 5 + o], odd, 1)
#define STORE_ROWS(p) \
    const int odd = lane & 1, right = odd * 8 + ((lane >> 1) & 1) * 4; \
    UNROLL for (int j = 0; j < 8; j += 2) { \
      float four[4]; \
      const int col = j * 8 + right, inside = f0 + col < COUT; \
      FOUR(four, p, 0) \
      if (live0 && inside) EPILOGUE_VECTOR(4, four, at0 + col) \
      FOUR(four, p, 2) \
      if (live1 && inside) EPILOGUE_VECTOR(4, four, at1 + col) \
    }
#else
#define STORE_ROWS(p) \
    UNROLL for (int j = 0; j < 8; ++j) { \
      const int col = j * 8 + 2 * (lane & 3); \
      const int inside0 = f0 + col < COUT, inside1 = f0 + col + 1 < COUT; \
      if (live0 && inside0) EPILOGUE(p[4 * j], at0 + col) \
      if (live0 && inside1) EPILOGUE(p[4 * j + 1], at0 + col + 1) \
      if (live1 && inside0) EPILOGUE(p[4 * j + 2], at1 + col) \
      if (live1 && inside1) EPILOGUE(p[4 * j + 3], at1 + col + 1) \
    }
#endif
