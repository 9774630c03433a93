// Attention for GPUs: a work-group of TX x TY work-items owns BR rows and walks over blocks of BC
// columns (rows are queries and columns keys, except in the keys' gradient).  Each work-item holds
// the logits of RR rows ty, ty + TY, … by RC columns tx, tx + TX, …, and of every result the same rows
// by 4 features out of each 4 * TX.  Logits are kept times log2(e); the row statistic is log2 of the
// sum of their powers of two.
#define RR (BR / TY)
#define RC (BC / TX)
#define WP ((WIDTH + 4 * TX - 1) / (4 * TX) * (4 * TX))  // features, whole rounds of loads
#define DP ((DEPTH + 4 * TX - 1) / (4 * TX) * (4 * TX))
#define WS (WP + 4)  // row strides in local memory: neighbours start in other banks
#define DS (DP + 4)
#define PS (BC + 4)

// s[RR][RC] = products of rows and columns of two tiles.
#define PRODUCTS(s, a, c, stride, features) \
  float s[RR][RC]; \
  EACH(i, RR) EACH(j, RC) s[i][j] = 0; \
  BOUNDED for (int d = 0; d < (features); d += 4) { \
    float4 x_[RR], y_[RC]; \
    EACH(i, RR) x_[i] = vload4(0, (a) + (ty + i * TY) * (stride) + d); \
    EACH(j, RC) y_[j] = vload4(0, (c) + (tx + j * TX) * (stride) + d); \
    EACH(i, RR) EACH(j, RC) s[i][j] += dot4(x_[i], y_[j]); \
  }
// Places in local memory do not change, so compilers compute them before the loop over blocks, and
// some keep a register for each; with this in the loop they compute what they need when they do.
// It changes nothing, as S is never negative, which they do not know.
#if SCARCE
#define PLACES_ANEW lid |= S >> 31; tx = lid % TX, ty = lid / TX;
#else
#define PLACES_ANEW
#endif

inline float dot4(float4 x, float4 y) {
  return fma(x.s0, y.s0, fma(x.s1, y.s1, fma(x.s2, y.s2, x.s3 * y.s3)));
}

// sums[RR][parts] += weights[BR][BC] times columns' features.
#define ADD_PRODUCT(sums, parts, weights, tile, stride) \
  BOUNDED for (int c = 0; c < BC; c += 4) { \
    float4 w_[RR]; \
    EACH(i, RR) w_[i] = vload4(0, (weights) + (ty + i * TY) * PS + c); \
    EACH(k, parts) { \
      __local const float* from_ = (tile) + c * (stride) + 4 * (tx + k * TX); \
      const float4 y0 = vload4(0, from_), y1 = vload4(0, from_ + (stride)); \
      const float4 y2 = vload4(0, from_ + 2 * (stride)), y3 = vload4(0, from_ + 3 * (stride)); \
      EACH(i, RR) sums[i][k] = fma((float4)(w_[i].s0), y0, fma((float4)(w_[i].s1), y1, \
          fma((float4)(w_[i].s2), y2, fma((float4)(w_[i].s3), y3, sums[i][k])))); \
    } \
  }

// Of each logit of a work-item, a few at a time: what it meets of bias and mask, and what dropout leaves
// of its weight, through its place in p.  Of all at once addresses and numbers would not fit registers.
#define EACH_PLACE BOUNDED for (int n_ = 0; n_ < RR * RC; ++n_)
#define OWN_PLACE const int row = ty + n_ / RC * TY, column = tx + n_ % RC * TX;
#if HAS_BIAS || HAS_MASK
#define MEET(t0, s0) \
  EACH_PLACE { \
    OWN_PLACE \
    const int t = (t0) + row, s = (s0) + column; \
    float more = 0; \
    if (t < T && s < S) { \
      ADD_BIAS(more, t, s) \
      HIDE_MASKED(more, t, s) \
    } \
    p[row * PS + column] = more; \
  }
#define MET(x, row, column) { \
    const float more = p[(row) * PS + (column)]; \
    x = more == NEGATIVE ? NEGATIVE : x + more; \
  }
#else
#define MEET(t0, s0)
#define MET(x, row, column)
#endif
#if HAS_DROPOUT
#define DROP(t0, s0) \
  EACH_PLACE { \
    OWN_PLACE \
    if (WORD((t0) + row, (s0) + column) >= keepLimit) p[row * PS + column] = 0.0f; \
  }
#else
#define DROP(t0, s0)
#endif

#ifdef FORWARD
__kernel NARROW __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_tile(
    FORWARD_PARAMS) {
  __local float q[BR * WS], kv[BC * (WS > DS ? WS : DS)], p[BR * PS], part[BR * TX];
#if CAUSAL && HAS_MASK
  __local int blind;
#endif
  int lid = get_local_id(0), tx = lid % TX, ty = lid / TX;
  DRAW_KEY
  // later queries of a causal problem see more keys: they start first
  const int t0 = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR;
  const int h = get_group_id(1), b = get_group_id(2), heads = get_num_groups(1);
  __global const X_T* k = pK + kOff + b * k0 + h / REPEAT * k2;
  __global const X_T* v = pV + vOff + b * v0 + h / REPEAT * v2;
  load_tile(q, pQ + qOff + b * q0 + h * q2 + t0 * q1, q1, q3, T - t0, BR, WIDTH, WP, lid);
  float4 o[RR][DP / (4 * TX)];
  float top[RR], sum[RR];
  EACH(i, RR) {
    top[i] = LOWEST;
    sum[i] = 0;
    EACH(j, DP / (4 * TX)) o[i][j] = (float4)(0);
  }
  int end = CAUSAL ? min(S, t0 + BR) : S;
  int s0 = 0;
  do {  // once at least, which takes fewer registers
    load_tile(kv, k + s0 * k1, k1, k3, S - s0, BC, WIDTH, WP, lid);
    MEET(t0, s0)
    barrier(CLK_LOCAL_MEM_FENCE);
    PRODUCTS(x, q, kv, WS, WP)
    EACH(i, RR) {
      const int t = t0 + ty + i * TY;
      float most = LOWEST;
      EACH(j, RC) {
        const int s = s0 + tx + j * TX;
        x[i][j] *= logScale;
        MET(x[i][j], ty + i * TY, tx + j * TX)
        if (CAUSAL && s > t) x[i][j] = NEGATIVE;
        if (s >= end) x[i][j] = -INFINITY;
        most = fmax(most, x[i][j]);
      }
      part[(ty + i * TY) * TX + tx] = most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    load_tile(kv, v + s0 * v1, v1, v3, S - s0, BC, DEPTH, DP, lid);
    EACH(i, RR) {
      const int row = ty + i * TY;
      float most = top[i];
      EACH(j, TX) most = fmax(most, part[row * TX + j]);
      const float keep = exp2(top[i] - most);
      top[i] = most;
      sum[i] *= keep;
      EACH(j, DP / (4 * TX)) o[i][j] *= keep;
      EACH(j, RC) {
        const float w = exp2(x[i][j] - most);
        sum[i] += w;
        p[row * PS + tx + j * TX] = w;
      }
    }
    DROP(t0, s0)
    barrier(CLK_LOCAL_MEM_FENCE);
    ADD_PRODUCT(o, DP / (4 * TX), p, kv, DS)
#if CAUSAL && HAS_MASK
    // A row that sees nothing at all is uniform over every key, the future ones too.
    if (s0 + BC >= end && end < S) {
      if (lid == 0) blind = 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH(i, RR) if (t0 + ty + i * TY < T && top[i] == NEGATIVE) atomic_or(&blind, 1);
      barrier(CLK_LOCAL_MEM_FENCE);
      if (blind) { s0 = end - BC; end = S; }
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    PLACES_ANEW
    s0 += BC;
  } while (s0 < end);
  EACH(i, RR) part[(ty + i * TY) * TX + tx] = sum[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  EACH(i, RR) {
    const int row = ty + i * TY, t = t0 + row;
    if (t < T) {
      float total = 0;
      EACH(j, TX) total += part[row * TX + j];
      if (tx == 0) pStat[(INDEX_T)(b * heads + h) * T + t] = top[i] + log2(total);
      const INDEX_T at = (((INDEX_T)b * T + t) * heads + h) * DEPTH;
      const float share = SHARE(total);
      EACH(j, DP / (4 * TX)) {
        float y[4];
        vstore4(o[i][j] * share, 0, y);
        EACH(e, 4) {
          const int d = 4 * (tx + j * TX) + e;
          if (d < DEPTH) EPILOGUE(y[e], at + d)
        }
      }
    }
  }
}
#endif

#ifdef BACKWARD
__kernel NARROW __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_tile_grad(
    BACKWARD_PARAMS) {
  __local float own[BR * WS], ownV[BR * DS], other[BC * WS], otherV[BC * DS], ds[BR * PS];
#if KEYS
  __local float p[BR * PS];
#endif
  __local float stat[QUERIES], delta[QUERIES];
  int lid = get_local_id(0), tx = lid % TX, ty = lid / TX;
  const int b = get_group_id(2);
  DRAW_KEY
  float4 sum[RR][WP / (4 * TX)];
  EACH(i, RR) EACH(j, WP / (4 * TX)) sum[i][j] = (float4)(0);
#if KEYS
  const int r0 = (int)get_group_id(0) * BR, group = get_group_id(1);
  float4 sumV[RR][DP / (4 * TX)];
  EACH(i, RR) EACH(j, DP / (4 * TX)) sumV[i][j] = (float4)(0);
  load_tile(own, pK + kOff + b * k0 + group * k2 + r0 * k1, k1, k3, S - r0, BR, WIDTH, WP, lid);
  load_tile(ownV, pV + vOff + b * v0 + group * v2 + r0 * v1, v1, v3, S - r0, BR, DEPTH, DP, lid);
#else
  const int r0 = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR, h = get_group_id(1);
  const int group = h / REPEAT;
  load_tile(own, pQ + qOff + b * q0 + h * q2 + r0 * q1, q1, q3, T - r0, BR, WIDTH, WP, lid);
  load_tile(ownV, pG + gOff + b * g0 + h * g2 + r0 * g1, g1, g3, T - r0, BR, DEPTH, DP, lid);
#endif
  FOR_EACH_BLOCK
    LOAD_STATISTICS
    barrier(CLK_LOCAL_MEM_FENCE);
    PRODUCTS(x, own, other, WS, WP)
    PRODUCTS(y, ownV, otherV, DS, DP)
    EACH(i, RR) EACH(j, RC) {
      const int row = ty + i * TY, column = tx + j * TX;
      WEIGH(x[i][j], y[i][j], row, column, WORD(t, s))
      ds[row * PS + column] = back;
#if KEYS
      p[row * PS + column] = w;
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    ADD_PRODUCT(sum, WP / (4 * TX), ds, other, WS)
#if KEYS
    ADD_PRODUCT(sumV, DP / (4 * TX), p, otherV, DS)
#endif
    PLACES_ANEW
  END_EACH_BLOCK
  EACH(i, RR) {
    const int row = r0 + ty + i * TY;
    if (row < ROWS) {
      const INDEX_T at = ((INDEX_T)b * ROWS + row) * COUNT + PLACE;
      EACH(j, WP / (4 * TX)) {
        float y[4];
        vstore4(sum[i][j], 0, y);
        EACH(e, 4) {
          const int d = 4 * (tx + j * TX) + e;
#if KEYS
          if (d < WIDTH) OUT_STORE(outK, at * WIDTH + d, y[e]);
#else
          if (d < WIDTH) EPILOGUE(y[e], at * WIDTH + d)
#endif
        }
      }
#if KEYS
      EACH(j, DP / (4 * TX)) {
        float y[4];
        vstore4(sumV[i][j], 0, y);
        EACH(e, 4) {
          const int d = 4 * (tx + j * TX) + e;
          if (d < DEPTH) OUT_STORE(outV, at * DEPTH + d, y[e]);
        }
      }
#endif
    }
  }
}
#endif
