// What wgmma_register_blocked.cl and wgmma_register_blocked16.cl share: a work-group holds 3 x 3 taps of 64 channels and 64
// filters of dw[tap][c][f] in registers, warpgroup h those of row h of the taps, three tiles of
// 64 x 64; so a box of pixels of x with its margin is read once for nine taps.

#define CONSUMERS 3
#define TAPS 3
#define THREADS (CONSUMERS * 128 + 128)
#define BOX_W 8
#define WIDE (BOX_W + TAPS - 1)
#define HIGH (BOX_H + CONSUMERS - 1)
#define SWIZZLED(at) ((at) ^ (((at) >> 3) & 0x70))

// Tiles that share pixels are under way at the same time.
#define DECODE_TILE(tile) \
    const int plane_ = TILES_M * TILES_N * GROUPS_H * GROUPS_W, split = (tile) / plane_; \
    int rest_ = (tile) - split * plane_; \
    const int f0 = rest_ % TILES_N * 64; \
    rest_ /= TILES_N; \
    const int c0 = rest_ % TILES_M * 64; \
    rest_ /= TILES_M; \
    const int i0 = rest_ / GROUPS_W * CONSUMERS, j0 = rest_ % GROUPS_W * TAPS; \
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

// Store the tile of tap (y, x), products[i], whose rows a lane has are channels c and d.
#define RESULT products
#define COLUMNS COUT
#define STORE_TAP(y, x, c, d) { \
    const int pair = lane & 3, n0 = f0, live = (y) < KER1 && (x) < KER2; \
    const int live0 = live && (c) < CIN, live1 = live && (d) < CIN; \
    const INDEX_T row = (INDEX_T)((y) * KER2 + (x)) * CIN; \
    const INDEX_T at0 = (row + (c)) * COUT + n0, at1 = (row + (d)) * COUT + n0; \
    STORE_ROWS }
