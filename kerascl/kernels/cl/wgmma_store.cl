// How wgmma.cl and its like store their results: RESULT[i][j], of 64-row block i of a warpgroup.
// A lane has rows ROW(i) and eight further; PLACE(row, live, at) says where a row's column n0 lies.

#ifndef MOMENTS  // else wgmma_moments.cl
#define SIDE 0
#define MOMENTS_PARAMS
#define BEGIN_MOMENTS
#define TILE_MOMENTS
#define END_MOMENTS
#endif

#ifndef IN_TILE  // which warpgroup of its tile
#define IN_TILE team
#endif
#define ROW(i) (IN_TILE * (64 * MI) + (i) * 64 + ((tid >> 5) & 3) * 16 + quad)

// The box of output pixels (of one class) of tile pm of a convolution.
#define DECODE_PIXELS \
    const int across_ = TILES_W * TILES_H; \
    const int tn = pm / across_, th = (pm - tn * across_) / TILES_W; \
    const int h0 = th * BOX_H, w0 = (pm - tn * across_ - th * TILES_W) * BOX_W; \
    const int image0 = tn * BOX_N;
#define PLACE_PIXEL(row, live, at) \
      int live; INDEX_T at; \
      { const int line_ = (row) / BOX_W, dn_ = line_ / BOX_H; \
        const int x_ = (w0 + (row) - line_ * BOX_W) * CLASSES + cw; \
        const int y_ = (h0 + line_ - dn_ * BOX_H) * CLASSES + ch; \
        live = dn_ < BOX_N && image0 + dn_ < BATCH && y_ < OUT1 && x_ < OUT2; \
        at = (((INDEX_T)(image0 + dn_) * OUT1 + y_) * OUT2 + x_) * COUT + n0; }

// What an epilogue reads takes long to come, so a lane asks for several vectors of it at once: VECTORS
// of a row, inside or not, or, where registers are few, one of each of its two rows.  A row that is
// not stored is the other one again.
#ifndef VECTORS  // wgmma_taps.cl
#define VECTORS 1
#define READS 0
#endif
#if VECTORS == 1 && READS
#define STORE_VECTORS(width, d, step) { \
      const INDEX_T first_ = live0 ? at0 : at1, second_ = live1 ? at1 : at0; \
      UNROLL for (int v = 0; v < width; ++v) { \
        SELECT(d[0][v], d[0][v], d[1][v], live0); \
        SELECT(d[1][v], d[1][v], d[0][v], live1); \
      } \
      if ((live0 || live1) && inside) \
        EPILOGUE_VECTORS(2, width, d[0], first_ + col, second_ - first_) }
#else
#define STORE_VECTORS(width, d, step) \
      if (live0 && inside) EPILOGUE_VECTORS(VECTORS, width, d[0], at0 + col, step) \
      if (live1 && inside) EPILOGUE_VECTORS(VECTORS, width, d[1], at1 + col, step)
#endif
#if defined(EPILOGUE_VECTOR) && VECTOR == 8
// The four lanes of a row exchange their pairs of columns: each ends with one of four tiles.
#define EIGHT(d, j, o) { \
    UNROLL for (int v = 0; v < 4; ++v) { \
      (d)[2 * v] = RESULT[i][4 * ((j) + v) + o]; \
      (d)[2 * v + 1] = RESULT[i][4 * ((j) + v) + o + 1]; \
    } \
    EXCHANGE_EIGHT((d), low, 1, high, 2) }
#define STORE_ROWS \
      const int low = pair & 1, high = pair & 2; \
      UNROLL for (int j = 0; j < BN / 8; j += 4 * VECTORS) { \
        float eights[2][8 * VECTORS]; \
        const int col = (j + pair) * 8, inside = n0 + col < COLUMNS; \
        UNROLL for (int t = 0; t < VECTORS; ++t) { \
          EIGHT(eights[0] + 8 * t, j + 4 * t, 0) \
          EIGHT(eights[1] + 8 * t, j + 4 * t, 2) \
        } \
        STORE_VECTORS(8, eights, 32) \
      }
#elif defined(EPILOGUE_VECTOR) && VECTOR == 4
// Lanes of even number take columns of tile j, odd ones of tile j + 1, four each.
#define FOUR(d, j, o) \
    EXCHANGE_FOUR((d), RESULT[i][4 * (j) + o], RESULT[i][4 * (j) + o + 1], \
                  RESULT[i][4 * (j) + 4 + o], RESULT[i][4 * (j) + 5 + o], odd, 1)
#define STORE_ROWS \
      const int odd = pair & 1, right = odd * 8 + (pair >> 1) * 4; \
      UNROLL for (int j = 0; j < BN / 8; j += 2 * VECTORS) { \
        float fours[2][4 * VECTORS]; \
        const int col = j * 8 + right, inside = n0 + col < COLUMNS; \
        UNROLL for (int t = 0; t < VECTORS; ++t) { \
          FOUR(fours[0] + 4 * t, j + 2 * t, 0) \
          FOUR(fours[1] + 4 * t, j + 2 * t, 2) \
        } \
        STORE_VECTORS(4, fours, 16) \
      }
#else
#define STORE_ROWS \
      UNROLL for (int j = 0; j < BN / 8; ++j) { \
        const int col = j * 8 + 2 * pair; \
        const int inside0 = n0 + col < COLUMNS, inside1 = n0 + col + 1 < COLUMNS; \
        if (live0 && inside0) EPILOGUE(RESULT[i][4 * j], at0 + col) \
        if (live0 && inside1) EPILOGUE(RESULT[i][4 * j + 1], at0 + col + 1) \
        if (live1 && inside0) EPILOGUE(RESULT[i][4 * j + 2], at1 + col) \
        if (live1 && inside1) EPILOGUE(RESULT[i][4 * j + 3], at1 + col + 1) \
      }
#endif
#define STORE_RESULT \
    UNROLL for (int i = 0; i < MI; ++i) { \
      const int row = ROW(i); \
      PLACE(row, live0, at0) \
      PLACE(row + 8, live1, at1) \
      STORE_ROWS \
    }
