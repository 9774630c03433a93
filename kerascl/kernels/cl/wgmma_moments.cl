// The moments of each column of wgmma.cl's output: its mean, and the sum of squared distances from
// it.  Parts are merged as T. F. Chan, G. H. Golub and R. J. LeVeque say (1979): a lane's rows, a
// warp's, a tile's; then the last group of a band of tiles merges these, and the last of all bands
// merges the bands.  So the order of all sums is fixed.
//
// Beside the ring lie mean and squares of each warp's columns, its number of rows, and a flag.
#define WARPS (4 * NWG)
#define SIDE (WARPS * (8 * BN + 4) + 4)
#define SIDE_AT (base + STAGES * STAGE + 16 * STAGES)
#define SIDE_ROWS (SIDE_AT + WARPS * 8 * BN)
#define MOMENTS_PARAMS \
  , __global float4* moments, volatile __global uint* arrivals, const int arrival

// Merges `more` rows with (mean, squares) = (m_more, q_more) into n rows with (m, q).
#define MERGE_ROWS(n, m, q, more, m_more, q_more) \
  if ((more) > 0) { \
    const float gap_ = (m_more) - m, share_ = native_divide(more, n + (more)); \
    m += gap_ * share_; \
    q += (q_more) + gap_ * gap_ * (n * share_); \
    n += (more); \
  }

// Lanes `distance` apart exchange halves of their columns and merge what they keep.
#define MERGE_LANES(half, distance, bit, share, weight) \
  UNROLL for (int c = 0; c < half; ++c) { \
    float m_give, q_give, m_got, q_got; \
    SELECT(m_give, m[c], m[c + half], bit); \
    SELECT(q_give, q[c], q[c + half], bit); \
    SHUFFLE(m_got, m_give, distance); \
    SHUFFLE(q_got, q_give, distance); \
    SELECT(m[c], m[c + half], m[c], bit); \
    SELECT(q[c], q[c + half], q[c], bit); \
    const float gap = m_got - m[c]; \
    m[c] += gap * (share); \
    q[c] += q_got + gap * gap * (weight); \
  }
#define SHARE(n, more) ((more) > 0 ? native_divide(more, (n) + (more)) : 0.0f)

// Merges `count` entries of `column` from `first` on into n, m, q.
#define MERGE_ENTRIES(first, count) \
  float n = 0, m = 0, q = 0; \
  for (int e0 = 0; e0 < (count); e0 += 4) { \
    float4 some[4]; \
    UNROLL for (int e = 0; e < 4; ++e) \
      some[e] = e0 + e < (count) ? moments[(INDEX_T)((first) + e0 + e) * COLUMNS + column] : (float4)(0); \
    UNROLL for (int e = 0; e < 4; ++e) MERGE_ROWS(n, m, q, some[e].x, some[e].y, some[e].z) \
  }
#define EACH_COLUMN(column) \
  for (int column = n0 + tid; column < min(n0 + BN, COLUMNS); column += NWG * 128)

#define TILE_MOMENTS { \
    int lives[MI][2]; \
    float rows0 = 0, rows1, rows2, rows3, more0, more1, more2; \
    UNROLL for (int i = 0; i < MI; ++i) { \
      PLACE(ROW(i), live0, at0) \
      PLACE(ROW(i) + 8, live1, at1) \
      lives[i][0] = live0; \
      lives[i][1] = live1; \
      rows0 += live0 + live1; \
    } \
    SHUFFLE(more0, rows0, 4); \
    rows1 = rows0 + more0; \
    SHUFFLE(more1, rows1, 8); \
    rows2 = rows1 + more1; \
    SHUFFLE(more2, rows2, 16); \
    rows3 = rows2 + more2; \
    const float share0 = SHARE(rows0, more0), share1 = SHARE(rows1, more1); \
    const float share2 = SHARE(rows2, more2), one = rows0 > 0 ? 1 / rows0 : 0; \
    const int bit0 = quad & 1, bit1 = quad & 2, bit2 = quad & 4, warp = tid >> 5; \
    UNROLL for (int j = 0; j < BN / 8; j += 4) { \
      float m[8], q[8]; \
      UNROLL for (int c = 0; c < 8; ++c) { \
        float whole = 0, about = 0, x; \
        UNROLL for (int r = 0; r < 2 * MI; ++r) { \
          SELECT(x, RESULT[r / 2][4 * j + 2 * c - (c & 1) + 2 * (r & 1)], 0.0f, lives[r / 2][r & 1]); \
          whole += x; \
        } \
        m[c] = whole * one; \
        UNROLL for (int r = 0; r < 2 * MI; ++r) { \
          SELECT(x, RESULT[r / 2][4 * j + 2 * c - (c & 1) + 2 * (r & 1)], m[c], lives[r / 2][r & 1]); \
          about += (x - m[c]) * (x - m[c]); \
        } \
        q[c] = about; \
      } \
      MERGE_LANES(4, 4, bit0, share0, rows0 * share0) \
      MERGE_LANES(2, 8, bit1, share1, rows1 * share1) \
      MERGE_LANES(1, 16, bit2, share2, rows2 * share2) \
      const int mine = 8 * (j + (bit0 ? 2 : 0) + (bit1 ? 1 : 0)) + 2 * pair + (bit2 ? 1 : 0); \
      const uint to = SIDE_AT + 8 * (warp * BN + mine); \
      SHARED_PUT(to, m[0]); \
      SHARED_PUT(to + 4, q[0]); \
    } \
    if (lane == 0) SHARED_PUT(SIDE_ROWS + 4 * warp, rows3); \
    TEAMS_SYNC; \
    EACH_COLUMN(column) { \
      float n = 0, m = 0, q = 0; \
      for (int w = 0; w < WARPS; ++w) { \
        float rows, m_warp, q_warp; \
        SHARED_GET(rows, SIDE_ROWS + 4 * w); \
        SHARED_GET(m_warp, SIDE_AT + 8 * (w * BN + column - n0)); \
        SHARED_GET(q_warp, SIDE_AT + 8 * (w * BN + column - n0) + 4); \
        MERGE_ROWS(n, m, q, rows, m_warp, q_warp) \
      } \
      moments[(INDEX_T)pm * COLUMNS + column] = (float4)(n, m, q, 0); \
    } \
    const int band = pm / BAND, entries = min(BAND, TILES_M - band * BAND); \
    volatile __global uint* const counters = arrivals + arrival + pn * (BANDS + 1); \
    LAST_TEAM(last_of_band, counters + band, entries, SIDE_ROWS + 4 * WARPS) \
    if (last_of_band != 0) { \
      EACH_COLUMN(column) { \
        MERGE_ENTRIES(band * BAND, entries) \
        moments[(INDEX_T)(TILES_M + band) * COLUMNS + column] = (float4)(n, m, q, 0); \
      } \
      LAST_TEAM(last_of_all, counters + BANDS, BANDS, SIDE_ROWS + 4 * WARPS) \
      if (last_of_all != 0) { \
        EACH_COLUMN(column) { \
          MERGE_ENTRIES(TILES_M, BANDS) \
          MOMENTS(column, m, q) \
        } \
      } \
    } \
  }
