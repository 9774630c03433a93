// Attention on NVIDIA's matrix units.  As attention_tile.cl a work-group owns BR rows and walks over
// blocks of BC columns (rows are queries and columns keys, except in the keys' gradient); a warp owns
// MI times 16 rows.  Logits and probabilities stay in registers: as the order of a product's depth is
// free, columns 2 t and 2 t + 1 of a block of eight, which lane t of four holds as results, are its
// depths t and t + 4 of the next product.
#define WP ((WIDTH + 7) / 8 * 8)
#define DP ((DEPTH + 7) / 8 * 8)
#define WS (WP + 4)  // row strides in local memory: an odd multiple of four, so no bank meets twice
#define DS (DP + 4)
#define NC (BC / 8)
#define WARP_ROWS (16 * MI)

// This lane's rows g, g + 8, … of a matrix in global memory, as left operands.
#define OWN(name, from, row_step, step, left, features, padded) \
  float name[MI][(padded) / 8][4]; \
  EACH(i, MI) EACH(s, (padded) / 8) EACH(e, 4) { \
    const int r_ = row0 + 16 * i + 8 * (e & 1), c_ = 8 * s + t4 + 4 * (e >> 1); \
    const float x_ = r_ < (left) && c_ < (features) \
        ? X_LOAD(from, (INDEX_T)r_ * (row_step) + c_ * (step)) : 0.0f; \
    name[i][s][e] = ROUNDED(x_); \
  }
// x[MI][NC] = own rows times the rows of a local tile.
#define PRODUCTS(x, own, tile, stride, padded) \
  float x[MI][NC][4]; \
  EACH(i, MI) EACH(j, NC) EACH(e, 4) x[i][j][e] = 0; \
  EACH(s, (padded) / 8) EACH(j, NC) { \
    __local const float* b_ = (tile) + (8 * j + g) * (stride) + 8 * s + t4; \
    const float b0_ = b_[0], b1_ = b_[4]; \
    EACH(i, MI) MMA_TF32(x[i][j], own[i][s], b0_, b1_); \
  }
// sums[MI][parts] += x[MI][NC] times the columns' features in a local tile.
#define ADD_PRODUCT(sums, x, tile, stride, padded) \
  EACH(j, NC) { \
    float a_[MI][4]; \
    EACH(i, MI) EACH(e, 4) a_[i][e] = ROUNDED_SUM(x[i][j][2 * (e & 1) + (e >> 1)]); \
    EACH(n, (padded) / 8) { \
      __local const float* b_ = (tile) + (8 * j + 2 * t4) * (stride) + 8 * n + g; \
      const float b0_ = b_[0], b1_ = b_[stride]; \
      EACH(i, MI) MMA_TF32(sums[i][n], a_[i], b0_, b1_); \
    } \
  }

#ifdef FORWARD
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_mma(
    FORWARD_PARAMS) {
  __local float tileK[BC * WS], tileV[BC * DS];
  MATRIX_UNITS
#if CAUSAL && HAS_MASK
  __local int blind;
#endif
  const int lid = get_local_id(0), g = lid % 32 / 4, t4 = lid % 4;
  DRAW_KEY
  // later queries of a causal problem see more keys: they start first
  const int first = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR;
  const int row0 = first + lid / 32 * WARP_ROWS + g;
  const int h = get_group_id(1), b = get_group_id(2), heads = get_num_groups(1);
  __global const X_T* k = pK + kOff + b * k0 + h / REPEAT * k2;
  __global const X_T* v = pV + vOff + b * v0 + h / REPEAT * v2;
  __global const X_T* q_ = pQ + qOff + b * q0 + h * q2;
  OWN(q, q_, q1, q3, T, WIDTH, WP)
  float o[MI][DP / 8][4], top[MI][2], sum[MI][2];
  EACH(i, MI) {
    EACH(r, 2) { top[i][r] = LOWEST; sum[i][r] = 0; }
    EACH(n, DP / 8) EACH(e, 4) o[i][n][e] = 0;
  }
  int end = CAUSAL ? min(S, first + BR) : S;
  for (int s0 = 0; s0 < end; s0 += BC) {
    barrier(CLK_LOCAL_MEM_FENCE);
    load_tile(tileK, k + s0 * k1, k1, k3, S - s0, BC, WIDTH, WP, lid);
    load_tile(tileV, v + s0 * v1, v1, v3, S - s0, BC, DEPTH, DP, lid);
    barrier(CLK_LOCAL_MEM_FENCE);
    PRODUCTS(x, q, tileK, WS, WP)
    EACH(i, MI) {
      float most[2] = {top[i][0], top[i][1]};
      EACH(j, NC) EACH(e, 4) {
        const int t = row0 + ROW(i, e), s = s0 + COLUMN(j, e);
        FINISH_LOGIT(x[i][j][e], t, s)
        if (s >= end) x[i][j][e] = -INFINITY;
        most[e >> 1] = fmax(most[e >> 1], x[i][j][e]);
      }
      EACH(r, 2) {
        QUAD(most[r], more_, fmax(most[r], more_))
        const float keep = exp2(top[i][r] - most[r]);
        top[i][r] = most[r];
        sum[i][r] *= keep;
        EACH(n, DP / 8) { o[i][n][2 * r] *= keep; o[i][n][2 * r + 1] *= keep; }
      }
      EACH(j, NC) {
        DRAWS_ALONG(words, row0 + ROW(i, 0), s0 + 8 * j)
        EACH(e, 4) {
          x[i][j][e] = exp2(x[i][j][e] - most[e >> 1]);
          sum[i][e >> 1] += x[i][j][e];
          x[i][j][e] = KEPT(x[i][j][e], words[e]);
        }
      }
    }
    ADD_PRODUCT(o, x, tileV, DS, DP)
#if CAUSAL && HAS_MASK
    // A row that sees nothing at all is uniform over every key, the future ones too.
    if (s0 + BC >= end && end < S) {
      if (lid == 0) blind = 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH(i, MI) EACH(r, 2)
        if (row0 + ROW(i, 2 * r) < T && top[i][r] == NEGATIVE) atomic_or(&blind, 1);
      barrier(CLK_LOCAL_MEM_FENCE);
      if (blind) { s0 = end - BC; end = S; }
    }
#endif
  }
  EACH(i, MI) EACH(r, 2) {
    const int t = row0 + ROW(i, 2 * r);
    QUAD(sum[i][r], more_, sum[i][r] + more_)
    if (t < T) {
      if (t4 == 0) pStat[(INDEX_T)(b * heads + h) * T + t] = top[i][r] + log2(sum[i][r]);
      const INDEX_T at = (((INDEX_T)b * T + t) * heads + h) * DEPTH;
      const float share = SHARE(sum[i][r]);
      EACH(n, DP / 8) EACH(e, 2) {
        const int d = COLUMN(n, e);
        if (d < DEPTH) EPILOGUE(o[i][n][2 * r + e] * share, at + d)
      }
    }
  }
}
#endif

#ifdef BACKWARD
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_mma_grad(
    BACKWARD_PARAMS) {
  __local float other[BC * WS], otherV[BC * DS];
  MATRIX_UNITS
  __local float stat[QUERIES], delta[QUERIES];
  const int lid = get_local_id(0), g = lid % 32 / 4, t4 = lid % 4, b = get_group_id(2);
  const int own0 = lid / 32 * WARP_ROWS + g;
  DRAW_KEY
  float sum[MI][WP / 8][4];
  EACH(i, MI) EACH(n, WP / 8) EACH(e, 4) sum[i][n][e] = 0;
#if KEYS
  const int r0 = (int)get_group_id(0) * BR, row0 = r0 + own0, group = get_group_id(1);
  float sumV[MI][DP / 8][4];
  EACH(i, MI) EACH(n, DP / 8) EACH(e, 4) sumV[i][n][e] = 0;
  __global const X_T* k_ = pK + kOff + b * k0 + group * k2;
  __global const X_T* v_ = pV + vOff + b * v0 + group * v2;
  OWN(own, k_, k1, k3, S, WIDTH, WP)
  OWN(ownV, v_, v1, v3, S, DEPTH, DP)
#else
  const int r0 = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR, row0 = r0 + own0;
  const int h = get_group_id(1), group = h / REPEAT;
  __global const X_T* q_ = pQ + qOff + b * q0 + h * q2;
  __global const X_T* g_ = pG + gOff + b * g0 + h * g2;
  OWN(own, q_, q1, q3, T, WIDTH, WP)
  OWN(ownV, g_, g1, g3, T, DEPTH, DP)
#endif
  FOR_EACH_BLOCK
    LOAD_STATISTICS
    barrier(CLK_LOCAL_MEM_FENCE);
    PRODUCTS(x, own, other, WS, WP)
    PRODUCTS(y, ownV, otherV, DS, DP)
    EACH(i, MI) EACH(j, NC) {
#if KEYS
      DRAWS_ACROSS(words, t0 + COLUMN(j, 0), row0 + ROW(i, 0))
#else
      DRAWS_ALONG(words, row0 + ROW(i, 0), c0 + 8 * j)
#endif
      EACH(e, 4) {
        const int row = own0 + ROW(i, e), column = COLUMN(j, e);
        WEIGH(x[i][j][e], y[i][j][e], row, column, words[e])
        x[i][j][e] = w;
        y[i][j][e] = back;
      }
    }
    ADD_PRODUCT(sum, y, other, WS, WP)
#if KEYS
    ADD_PRODUCT(sumV, x, otherV, DS, DP)
#endif
  END_EACH_BLOCK
  EACH(i, MI) EACH(r, 2) {
    const int row = row0 + ROW(i, 2 * r);
    if (row < ROWS) {
      const INDEX_T at = ((INDEX_T)b * ROWS + row) * COUNT + PLACE;
      EACH(n, WP / 8) EACH(e, 2) {
        const int d = COLUMN(n, e);
#if KEYS
        if (d < WIDTH) OUT_STORE(outK, at * WIDTH + d, sum[i][n][2 * r + e]);
#else
        if (d < WIDTH) EPILOGUE(sum[i][n][2 * r + e], at * WIDTH + d)
#endif
      }
#if KEYS
      EACH(n, DP / 8) EACH(e, 2) {
        const int d = COLUMN(n, e);
        if (d < DEPTH) OUT_STORE(outV, at * DEPTH + d, sumV[i][n][2 * r + e]);
      }
#endif
    }
  }
}
#endif
