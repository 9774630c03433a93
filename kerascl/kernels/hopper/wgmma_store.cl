// How wgmma.cl and its like store their results: RESULT[i][j], of 64-row block i of a warpgroup.
// A lane has rows ROW(i) and NEXT_ROW further; PLACE(row, live, at) says where a row's column n0 lies.

#ifndef MOMENTS  // else wgmma_moments.cl
#define SIDE SUMS_BYTES
#define MOMENTS_PARAMS
#define BEGIN_MOMENTS
#define TILE_MOMENTS
#define END_MOMENTS
#endif

#ifndef SUMS  // else wgmma_dense.cl
#define SUMS_BYTES 0
#define SUMS_PARAMS
#define BEGIN_SUMS
#define ADD_STAGE
#define ADD_FRAGMENT(f)
#define END_SUMS
#endif

#ifndef BROUGHT_COUNT  // else wgmma_brought.cl
#define BROUGHT_BYTES 0
#define BROUGHT_BARRIER_BYTES 0
#define BROUGHT_PARAMS
#define INIT_BROUGHT
#define BRING
#define BEGIN_BROUGHT
#define READ_BROUGHT
#define OF_ROW(n)
#endif

#if PINGPONG > 1  // which warpgroup of its tile
#define IN_TILE (consumer % TILE_CONSUMERS)
#else
#define IN_TILE consumer
#endif
#if A_IN_REGISTERS  // wgmma_transposed.cl
#define ROW(i) LANE_ROW
#define NEXT_ROW 1
#else
#define ROW(i) (IN_TILE * (64 * MI) + (i) * 64 + ((tid >> 5) & 3) * 16 + quad)
#define NEXT_ROW 8
#endif

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

// Without reads a row after the other, which takes the fewest registers.  What an epilogue reads takes
// long to come, so a lane asks for several vectors of it at once: VECTORS of a row, inside or not, or,
// where registers are few, one of each of its two rows.  A row that is not stored is the other one
// again.
#ifndef VECTORS  // wgmma_register_blocked.cl
#define VECTORS 1
#define READS 0
#endif
// Before the products a tile's part of what an epilogue reads is brought near: memory answers late
// where all units read and store.  The four lanes of a row take a line of the cache in turn.
#define LINE_COLUMNS 32  // 128 bytes at most
#define BRING_ROW(r) { \
      PLACE(r, live_, at_) \
      UNROLL for (int c_ = 0; c_ < BN; c_ += 4 * LINE_COLUMNS) { \
        const int near_ = c_ + pair * LINE_COLUMNS; \
        if (live_ && near_ < BN && n0 + near_ < COLUMNS) EPILOGUE_PREFETCH(at_ + near_) \
      } }
#if READS
#define BRING_NEAR UNROLL for (int i = 0; i < MI; ++i) { BRING_ROW(ROW(i)) BRING_ROW(ROW(i) + NEXT_ROW) }
#else
#define BRING_NEAR
#endif
// KEPT: what all rows read, such as a bias, is read for a tile and not for each row.  READ_ROW begins
// to while the products are under way: with all vectors of a lane's columns where so many are kept,
// else (2) with the first, and READ_PART reads one ahead; or (1) it reads each as its turn comes.
#ifndef KEPT
#define KEPT 0
#endif
#if VECTOR == 8
#define COLUMN(j) (((j) + pair) * 8)
#define READ_KEPT(j, t) if (n0 + COLUMN(j) < COLUMNS) EPILOGUE_READ_ROW(8, t, n0 + COLUMN(j))
#elif VECTOR == 4
#define COLUMN(j) ((j) * 8 + (pair & 1) * 8 + (pair >> 1) * 4)
#define READ_KEPT(j, t) if (n0 + COLUMN(j) < COLUMNS) EPILOGUE_READ_ROW(4, t, n0 + COLUMN(j))
#endif
#define LANE_TILES (VECTOR / 2)  // tiles of eight columns that the lanes of a row store as one vector each
#define ROW_VECTORS (BN / 8 / LANE_TILES)
#if KEPT == 0
#define READ_ROW
#define READ_PART(j)
#elif KEPT == 1
#define READ_ROW
#define READ_PART(j) \
    EPILOGUE_ROW(VECTOR, 1) \
    READ_KEPT(j, 0)
#define KEPT_AT(j) 0
#elif KEPT == ROW_VECTORS
#define READ_ROW \
    EPILOGUE_ROW(VECTOR, KEPT) \
    UNROLL for (int t_ = 0; t_ < KEPT; ++t_) READ_KEPT(t_ * LANE_TILES, t_)
#define READ_PART(j)
#define KEPT_AT(j) ((j) / LANE_TILES)
#else
#define READ_ROW \
    EPILOGUE_ROW(VECTOR, 2) \
    READ_KEPT(0, 1)
#define READ_PART(j) \
    EPILOGUE_NEXT_ROW(VECTOR) \
    if (i + 1 < MI || (j) + LANE_TILES < BN / 8) READ_KEPT(((j) + LANE_TILES) % (BN / 8), 1)
#define KEPT_AT(j) 0
#endif
#if KEPT
#define STORE_VECTORS(count, width, d, live, at, step) \
      if (live && inside) EPILOGUE_VECTOR_KEPT(width, d, at + col, KEPT_AT(j))
#else
#define STORE_VECTORS(count, width, d, live, at, step) \
      if (live && inside) EPILOGUE_VECTORS(count, width, d, at + col, step)
#endif
#if !READS
#define STORE_BOTH(PART, width, tiles, step) { \
        float d[width]; \
        PART(d, j, 0) \
        { OF_ROW(0) STORE_VECTORS(1, width, d, live0, at0, 0) } \
        PART(d, j, 2) \
        { OF_ROW(1) STORE_VECTORS(1, width, d, live1, at1, 0) } }
#elif VECTORS == 1
#define STORE_BOTH(PART, width, tiles, step) { \
        float d[2][width]; \
        const INDEX_T first_ = live0 ? at0 : at1, second_ = live1 ? at1 : at0; \
        PART(d[0], j, 0) \
        PART(d[1], j, 2) \
        UNROLL for (int v = 0; v < width; ++v) { \
          SELECT(d[0][v], d[0][v], d[1][v], live0); \
          SELECT(d[1][v], d[1][v], d[0][v], live1); \
        } \
        STORE_VECTORS(2, width, d[0], (live0 || live1), first_, second_ - first_) }
#else
#define STORE_BOTH(PART, width, tiles, step) { \
        float d[2][width * VECTORS]; \
        UNROLL for (int t = 0; t < VECTORS; ++t) { \
          PART(d[0] + width * t, j + tiles * t, 0) \
          PART(d[1] + width * t, j + tiles * t, 2) \
        } \
        STORE_VECTORS(VECTORS, width, d[0], live0, at0, step) \
        STORE_VECTORS(VECTORS, width, d[1], live1, at1, step) }
#endif
#if defined(EPILOGUE_VECTOR) && VECTOR == 8
// The four lanes of a row exchange their pairs of columns: each ends with one of four tiles.  With
// WORD_OF results are rounded to 16 bits first, and a pair is one word.
#ifdef WORD_OF
#define EIGHT(d, j, o) { \
    float w_[4]; \
    UNROLL for (int v = 0; v < 4; ++v) \
      w_[v] = WORD_OF(RESULT[i][4 * ((j) + v) + o], RESULT[i][4 * ((j) + v) + o + 1]); \
    EXCHANGE(w_[0], w_[1], low, 1) EXCHANGE(w_[2], w_[3], low, 1) \
    EXCHANGE(w_[0], w_[2], high, 2) EXCHANGE(w_[1], w_[3], high, 2) \
    UNROLL for (int v = 0; v < 4; ++v) { \
      (d)[2 * v] = WORD_LOW(w_[v]); \
      (d)[2 * v + 1] = WORD_HIGH(w_[v]); \
    } }
#else
#define EIGHT(d, j, o) { \
    UNROLL for (int v = 0; v < 4; ++v) { \
      (d)[2 * v] = RESULT[i][4 * ((j) + v) + o]; \
      (d)[2 * v + 1] = RESULT[i][4 * ((j) + v) + o + 1]; \
    } \
    EXCHANGE_EIGHT((d), low, 1, high, 2) }
#endif
#define STORE_ROWS \
      const int low = pair & 1, high = pair & 2; \
      UNROLL for (int j = 0; j < BN / 8; j += 4 * VECTORS) { \
        READ_BROUGHT \
        const int col = COLUMN(j), inside = n0 + col < COLUMNS; \
        READ_PART(j) \
        STORE_BOTH(EIGHT, 8, 4, 32) \
      }
#elif defined(EPILOGUE_VECTOR) && VECTOR == 4
// Lanes of even number take columns of tile j, odd ones of tile j + 1, four each.
#ifdef WORD_OF
#define FOUR(d, j, o) { \
    float p_ = WORD_OF(RESULT[i][4 * (j) + o], RESULT[i][4 * (j) + o + 1]); \
    float q_ = WORD_OF(RESULT[i][4 * (j) + 4 + o], RESULT[i][4 * (j) + 5 + o]); \
    EXCHANGE(p_, q_, odd, 1) \
    (d)[0] = WORD_LOW(p_); \
    (d)[1] = WORD_HIGH(p_); \
    (d)[2] = WORD_LOW(q_); \
    (d)[3] = WORD_HIGH(q_); }
#else
#define FOUR(d, j, o) \
    EXCHANGE_FOUR((d), RESULT[i][4 * (j) + o], RESULT[i][4 * (j) + o + 1], \
                  RESULT[i][4 * (j) + 4 + o], RESULT[i][4 * (j) + 5 + o], odd, 1)
#endif
#define STORE_ROWS \
      const int odd = pair & 1; \
      UNROLL for (int j = 0; j < BN / 8; j += 2 * VECTORS) { \
        READ_BROUGHT \
        const int col = COLUMN(j), inside = n0 + col < COLUMNS; \
        READ_PART(j) \
        STORE_BOTH(FOUR, 4, 2, 16) \
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
      PLACE(row + NEXT_ROW, live1, at1) \
      BEGIN_BROUGHT \
      STORE_ROWS \
    }
