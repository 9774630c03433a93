// Attention of few queries, as where text is generated: a work-group owns one query of one head, and
// SLICE of its keys.  For the logits each work-item takes whole keys; for the results LANES work-items
// take four features each, and TEAMS of them every TEAMS-th key.  Logits are kept times log2(e).
// The first EARLY loads of values are under way while logits are computed: compilers keep them before the
// barriers in between.
#define TEAMS (THREADS / LANES)
#define DP (4 * LANES)
#define WP ((WIDTH + 3) / 4 * 4)
#define PLACE_SIZE (DP + 2)  // what a slice leaves: results, the greatest logit, the sum

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

// What the slices left becomes the results of query t.
#define JOIN_SLICES \
  { \
    __global const float* from_ = slices + ((INDEX_T)(b * HEADS + h) * T + t) * SPLITS * PLACE_SIZE; \
    float top_ = LOWEST, total_ = 0; \
    for (int k_ = 0; k_ < SPLITS; ++k_) top_ = fmax(top_, from_[k_ * PLACE_SIZE + DP]); \
    for (int k_ = 0; k_ < SPLITS; ++k_) \
      total_ += from_[k_ * PLACE_SIZE + DP + 1] * exp2(from_[k_ * PLACE_SIZE + DP] - top_); \
    const float share_ = SHARE(total_); \
    for (int d = lid; d < DEPTH; d += THREADS) { \
      float y_ = 0; \
      for (int k_ = 0; k_ < SPLITS; ++k_) \
        y_ += from_[k_ * PLACE_SIZE + d] * exp2(from_[k_ * PLACE_SIZE + DP] - top_); \
      EPILOGUE(y_ * share_, RESULT_AT + d) \
    } \
    if (lid == 0) pStat[(INDEX_T)(b * HEADS + h) * T + t] = top_ + log2(total_); \
  }
#define RESULT_AT ((((INDEX_T)b * T + t) * HEADS + h) * DEPTH)

#if JOIN
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_join(
    __global const float* slices, __global float* restrict pStat, const int T,
    const float keepFactor EPILOGUE_PARAMS) {
  const int lid = get_local_id(0), t = get_group_id(0), h = get_group_id(1), b = get_group_id(2);
  JOIN_SLICES
}
#else
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
  float4 o = (float4)(0);
  float top = LOWEST, sum = 0;
  for (int c0 = split * SLICE; c0 < end; c0 += CHUNK) {
    const int c1 = min(end, c0 + CHUNK);
    float most = LOWEST;
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
  volatile __global float* left = slices +
      (((INDEX_T)(b * HEADS + h) * T + t) * SPLITS + split) * PLACE_SIZE;
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
    pStat[(INDEX_T)(b * HEADS + h) * T + t] = top + log2(total);
#endif
  }
#if ARRIVES
  __local int last;
  if (kcl_last_group(arrivals + arrival + ((b * HEADS + h) * T + t), SPLITS, &last)) JOIN_SLICES
#endif
}
#endif
