// The moments of each column of wgmma.cl's output: its mean, and the sum of squared distances from
// it.  Parts are merged as T. F. Chan, G. H. Golub and R. J. LeVeque say (1979): a lane's rows, a
// warp's, those of all tiles of a group, which has the same columns in each; then the last group of
// these columns merges what all have left.  So the order of all sums is fixed, and a tile costs no
// more than exchanges between lanes: a fence or an atomic for each would take several microseconds.
//
// Beside the ring lie mean and squares of each warp's columns, its number of rows, and a flag.
#define WARPS (4 * NWG)
#define SIDE (WARPS * (8 * BN + 4) + 4)
#define SIDE_AT (base + RING + 16 * STAGES)
#define SIDE_ROWS (SIDE_AT + WARPS * 8 * BN)
#define MOMENTS_PARAMS \
  , __global float4* moments, volatile __global uint* arrivals, const int arrival

// Merges `more` rows with (mean, squares) = (m_more, q_more) into n rows with (m, q).
#define MERGE_ROWS(n, m, q, more, m_more, q_more) \
  if ((more) > 0) { \
    const float gap_ = (m_more) - m, share_ = SHARE(n, more); \
    m += gap_ * share_; \
    q += (q_more) + gap_ * gap_ * (n * share_); \
    n += (more); \
  }
#define SHARE(n, more) ((more) > 0 ? native_divide(more, (n) + (more)) : 0.0f)

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

// What a lane knows before the first tile: its warp's rows so far, and where its columns lie.
#define BEGIN_MOMENTS \
  float rows = 0; \
  const int bit0 = quad & 1, bit1 = quad & 2, bit2 = quad & 4, warp = tid >> 5; \
  const uint own = SIDE_AT \
      + 8 * (warp * BN + 8 * ((bit0 ? 2 : 0) + (bit1 ? 1 : 0)) + 2 * pair + (bit2 ? 1 : 0));

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
    const float share2 = SHARE(rows2, more2), share3 = SHARE(rows, rows3); \
    const float one = rows0 > 0 ? native_recip(rows0) : 0; \
    UNROLL for (int j = 0; j < BN / 8; j += 4) { \
      float m[8], q[8]; \
      UNROLL for (int c = 0; c < 8; ++c) { \
        float x[2 * MI], whole = 0, about = 0; \
        UNROLL for (int r = 0; r < 2 * MI; ++r) { \
          SELECT(x[r], RESULT[r / 2][4 * j + 2 * c - (c & 1) + 2 * (r & 1)], 0.0f, \
                 lives[r / 2][r & 1]); \
          whole += x[r]; \
        } \
        m[c] = whole * one; \
        UNROLL for (int r = 0; r < 2 * MI; ++r) { \
          SELECT(x[r], x[r], m[c], lives[r / 2][r & 1]); \
          about += (x[r] - m[c]) * (x[r] - m[c]); \
        } \
        q[c] = about; \
      } \
      MERGE_LANES(4, 4, bit0, share0, rows0 * share0) \
      MERGE_LANES(2, 8, bit1, share1, rows1 * share1) \
      MERGE_LANES(1, 16, bit2, share2, rows2 * share2) \
      if (rows > 0) { \
        float m_all, q_all; \
        SHARED_GET(m_all, own + 64 * j); \
        SHARED_GET(q_all, own + 64 * j + 4); \
        const float gap = m[0] - m_all; \
        m[0] = m_all + gap * share3; \
        q[0] += q_all + gap * gap * (rows * share3); \
      } \
      SHARED_PUT(own + 64 * j, m[0]); \
      SHARED_PUT(own + 64 * j + 4, q[0]); \
    } \
    rows += rows3; \
  }

// Threads of the last group that share a column, the rows that groups have left, and those that
// each thread merges.
#define PARTS (NWG * 128 / BN < 2 * NWG ? NWG * 128 / BN : 2 * NWG)
#define LEFT (groups / TILES_N)
#define EACH ((LEFT + PARTS - 1) / PARTS)
#define TOGETHER 8  // entries that are read at once

#define END_MOMENTS { \
    const int pn = get_group_id(0) % TILES_N, n0 = pn * BN, part = tid / BN; \
    const int column = n0 + tid - part * BN, inside = part < PARTS && column < COLUMNS; \
    const uint mine = SIDE_AT + 12 * tid; \
    float n = 0, m = 0, q = 0; \
    if (lane == 0) SHARED_PUT(SIDE_ROWS + 4 * warp, rows); \
    TEAMS_SYNC; \
    if (part == 0 && inside) { \
      for (int w = 0; w < WARPS; ++w) { \
        float n_warp, m_warp, q_warp; \
        SHARED_GET(n_warp, SIDE_ROWS + 4 * w); \
        SHARED_GET(m_warp, SIDE_AT + 8 * (w * BN + tid)); \
        SHARED_GET(q_warp, SIDE_AT + 8 * (w * BN + tid) + 4); \
        MERGE_ROWS(n, m, q, n_warp, m_warp, q_warp) \
      } \
      moments[(INDEX_T)(get_group_id(0) / TILES_N) * COLUMNS + column] = (float4)(n, m, q, 0); \
    } \
    LAST_TEAM(last, arrivals + arrival + pn, LEFT, SIDE_ROWS + 4 * WARPS) \
    if (last != 0) { \
      n = m = q = 0; \
      if (inside) { \
        const int end = min((part + 1) * EACH, LEFT); \
        for (int e0 = part * EACH; e0 < end; e0 += TOGETHER) { \
          float4 some[TOGETHER]; \
          UNROLL for (int e = 0; e < TOGETHER; ++e) \
            some[e] = e0 + e < end ? moments[(INDEX_T)(e0 + e) * COLUMNS + column] : (float4)(0); \
          UNROLL for (int e = 0; e < TOGETHER; ++e) \
            MERGE_ROWS(n, m, q, some[e].x, some[e].y, some[e].z) \
        } \
        SHARED_PUT(mine, n); \
        SHARED_PUT(mine + 4, m); \
        SHARED_PUT(mine + 8, q); \
      } \
      TEAMS_SYNC; \
      if (part == 0 && inside) { \
        for (int p = 1; p < PARTS; ++p) { \
          float n_part, m_part, q_part; \
          SHARED_GET(n_part, mine + 12 * p * BN); \
          SHARED_GET(m_part, mine + 12 * p * BN + 4); \
          SHARED_GET(q_part, mine + 12 * p * BN + 8); \
          MERGE_ROWS(n, m, q, n_part, m_part, q_part) \
        } \
        MOMENTS(column, m, q) \
      } \
    } \
  }
