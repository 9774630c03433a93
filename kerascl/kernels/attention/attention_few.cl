// Attention of few queries, as where text is generated: a work-group owns one query of one head, and
// SLICE of its keys.  For the results LANES work-items take four features each, and TEAMS of them every
// TEAMS-th key; for the logits, too, where they SHARE_KEYS, else each work-item takes whole keys.  Logits
// are kept times log2(e).
// The first EARLY loads of values are under way while logits are computed, and HELD loads of keys before
// they are needed: compilers keep them before the barriers in between.
#define TEAMS (THREADS / LANES)
#define WP ((WIDTH + 3) / 4 * 4)

#if VECTORS
#define READ4(from, step, d, features) X_LOAD4(from, d)
#else
#define READ1(from, step, d, features) ((d) < (features) ? X_LOAD(from, (d) * (step)) : 0.0f)
#define READ4(from, step, d, features) \
  (float4)(READ1(from, step, d, features), READ1(from, step, (d) + 1, features), \
           READ1(from, step, (d) + 2, features), READ1(from, step, (d) + 3, features))
#endif

// The sum or the maximum of every work-item's x.
#define OVER_GROUP(result, x, combine) \
  part[lid] = (x); \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int half_ = THREADS / 2; half_ > 0; half_ /= 2) { \
    if (lid < half_) part[lid] = combine(part[lid], part[lid + half_]); \
    barrier(CLK_LOCAL_MEM_FENCE); \
  } \
  const float result = part[0]; \
  barrier(CLK_LOCAL_MEM_FENCE);
#define PLUS(x, y) ((x) + (y))

// Each of LANES work-items has products of its features with LANES keys, x[e] with key e: x[0] becomes
// the sum over all of them for the key of the work-item's own number.
#define SUM_OF_LANES(x) \
  EACH(e_, LANES) products[(team * LANES + e_) * (LANES + 1) + lane] = x[e_]; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  x[0] = 0; \
  EACH(e_, LANES) x[0] += products[lid * (LANES + 1) + e_]; \
  barrier(CLK_LOCAL_MEM_FENCE);

#if !JOIN
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_few(
    SLICES_PARAMS FORWARD_PARAMS) {
  __local float q[WP], part[THREADS], w[CHUNK], sums[TEAMS * DP];
  const int lid = get_local_id(0), lane = lid % LANES, team = lid / LANES;
  const int t = get_group_id(0) / SPLITS, split = get_group_id(0) % SPLITS;
  const int h = get_group_id(1), b = get_group_id(2);
  DRAW_KEY
  __global const X_T* k = pK + kOff + b * k0 + h / REPEAT * k2;
  __global const X_T* v = pV + vOff + b * v0 + h / REPEAT * v2;
  __global const X_T* own = pQ + qOff + b * q0 + t * q1 + h * q2;
#if SHARE_KEYS
  __local float products[THREADS * (LANES + 1)];
  const int at4 = 4 * lane < WIDTH ? 4 * lane : 0;
#define KEY_AT(s) (k + min((s), S - 1) * k1 + at4)
  X_RAW4 held[HELD];
  EACH(e, HELD) held[e] = *(__global const X_RAW4*)KEY_AT(split * SLICE + team + e * TEAMS);
#endif
#if EARLY
  X_RAW4 early[EARLY];
#pragma unroll
  for (int e = 0; e < EARLY; ++e)
    early[e] = *(__global const X_RAW4*)(
        v + min(split * SLICE + team + e * TEAMS, S - 1) * v1 + (4 * lane < DEPTH ? 4 * lane : 0));
#endif
  for (int d = lid; d < WP; d += THREADS) q[d] = d < WIDTH ? X_LOAD(own, d * q3) : 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int end = min(S, (split + 1) * SLICE);
#if SHARE_KEYS
  const float4 own4 = vload4(0, q + at4);
#endif
  float4 o = (float4)(0);
  float top = LOWEST, sum = 0;
  for (int c0 = split * SLICE; c0 < end; c0 += CHUNK) {
    const int c1 = min(end, c0 + CHUNK);
    float most = LOWEST;
#if SHARE_KEYS
    for (int from = c0; from < c1; from += THREADS) {
      float x[LANES];
      EACH(e, LANES) {
        float4 key;
        if (e < HELD) {
          key = RAW_LOAD4((const __private X_T*)&held[e < HELD ? e : 0], 0);
          if (from + THREADS < end)
            held[e < HELD ? e : 0] =
                *(__global const X_RAW4*)KEY_AT(from + THREADS + team + e * TEAMS);
        } else {
          key = X_LOAD4(KEY_AT(from + team + e * TEAMS), 0);
        }
        key *= own4;
        x[e] = 4 * lane < WIDTH ? (key.s0 + key.s1) + (key.s2 + key.s3) : 0.0f;
      }
      SUM_OF_LANES(x)
      const int s = from + team + lane * TEAMS;
      if (s < c1) {
        FINISH_LOGIT(x[0], t, s)
        w[s - c0] = x[0];
        most = fmax(most, x[0]);
      }
    }
#else
    for (int s = c0 + lid; s < c1; s += THREADS) {
      __global const X_T* key = k + s * k1;
      float4 x4 = (float4)(0);
      _Pragma("unroll 16")
      for (int d = 0; d < WIDTH; d += 4) x4 = fma(vload4(0, q + d), READ4(key, k3, d, WIDTH), x4);
      float x = (x4.s0 + x4.s1) + (x4.s2 + x4.s3);
      FINISH_LOGIT(x, t, s)
      w[s - c0] = x;
      most = fmax(most, x);
    }
#endif
    OVER_GROUP(highest, most, fmax)
    most = fmax(top, highest);
    const float keep = exp2(top - most);
    top = most;
    sum *= keep;
    for (int s = c0 + lid; s < c1; s += THREADS) {
      const float x = exp2(w[s - c0] - most);
      sum += x;
      w[s - c0] = KEPT(x, WORD(t, s));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    o *= keep;
    if (4 * lane < DEPTH) {
      int from = c0 + team;
#if EARLY
      if (c0 == split * SLICE) {
#pragma unroll
        for (int e = 0; e < EARLY; ++e)
          if (from + e * TEAMS < c1)
            o = fma((float4)(w[team + e * TEAMS]),
                    RAW_LOAD4((const __private X_T*)&early[e], 0), o);
        from += EARLY * TEAMS;
      }
#endif
      _Pragma("unroll 8")
      for (int s = from; s < c1; s += TEAMS)
        o = fma((float4)(w[s - c0]), READ4(v + s * v1, v3, 4 * lane, DEPTH), o);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  vstore4(o, 0, sums + team * DP + 4 * lane);
  OVER_GROUP(total, sum, PLUS)
#if SPLITS > 1
  volatile __global float* left = LEFT_AT(split);
#else
  const float share = SHARE(total);
#endif
  for (int d = lid; d < DEPTH; d += THREADS) {
    float y = 0;
    for (int other = 0; other < TEAMS; ++other) y += sums[other * DP + d];
#if SPLITS > 1
    left[d] = y;
#else
    EPILOGUE(y * share, RESULT_AT + d)
#endif
  }
  if (lid == 0) {
#if SPLITS > 1
    left[DP] = top;
    left[DP + 1] = total;
#else
    pStat[ROW_NUMBER] = top + log2(total);
#endif
  }
  JOIN_IF_LAST
}
#endif
