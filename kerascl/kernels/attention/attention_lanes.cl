// Attention of few queries where lanes of a sub-group give each other values: a work-group owns one query
// of one head, and SLICE of its keys.  LANES lanes, a team, have KEYS keys at once, a lane FOURS times four
// features of each; all that is read is under way before any is needed.  What a sub-group finds is relative
// to its own greatest logit, so that work-items meet but once.  Logits are kept times log2(e).
#define TEAMS (THREADS / LANES)
#define SWEEP (KEYS * TEAMS)  // keys that the group has at once
#define OWNERS (LANES / KEYS)  // lanes of a team that have a key's logit in the end
#define PARTS (THREADS / LANES_OF_WARP)
#define FEATURE(j) (4 * (lane + LANES * (j)))
#define OTHER_LANE(x, distance) as_float(kcl_of_lane(as_uint(x), distance))
#define RAW4(raw) RAW_LOAD4((const __private X_T*)&(raw), 0)

#define FOR_EACH_FOUR(what, from, step, size, first) \
  EACH(e, KEYS) EACH(j, FOURS) \
    what(from + min((first) + team + e * TEAMS, S - 1) * step + (FEATURE(j) < size ? FEATURE(j) : 0))
#define LOAD_KEY(at) keys[e][j] = *(__global const X_RAW4*)(at);
#define LOAD_VALUE(at) values[e][j] = *(__global const X_RAW4*)(at);
#define LOAD_KEYS(first) FOR_EACH_FOUR(LOAD_KEY, k, k1, WIDTH, first)
#define LOAD_VALUES(first) FOR_EACH_FOUR(LOAD_VALUE, v, v1, DEPTH, first)
// Of key s, whose logit this lane has in the end.
#define LOAD_MORE(s) { const int s_ = min(s, S - 1); READ_BIAS(more_bias, t, s_) READ_MASK(more_mask, t, s_) }

// Every lane's x[e] belongs to key e; x[0] becomes the sum over the team for key lane / OWNERS.
#define SUM_OF_HALF(x, half_, distance_) \
  if ((half_) > 0) { \
    const bool upper_ = lane & (distance_); \
    EACH(e_, half_) { \
      const float low_ = x[e_ % KEYS], high_ = x[(e_ + (half_)) % KEYS]; \
      const float given_ = upper_ ? low_ : high_; \
      x[e_ % KEYS] = (upper_ ? high_ : low_) + OTHER_LANE(given_, distance_); \
    } \
  }
#define SUM_OF_TEAM(x) \
  SUM_OF_HALF(x, KEYS / 2, LANES / 2) SUM_OF_HALF(x, KEYS / 4, LANES / 4) SUM_OF_HALF(x, KEYS / 8, LANES / 8) \
  EACH_DISTANCE(d_, OWNERS / 2, 1) x[0] += OTHER_LANE(x[0], d_);
#define EACH_DISTANCE(d, most, least) _Pragma("unroll") for (int d = most; d >= (least); d /= 2)

#if !JOIN
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_lanes(
    SLICES_PARAMS FORWARD_PARAMS) {
  __local float found[PARTS * PLACE_SIZE];
  const int lid = get_local_id(0), lane = lid % LANES, team = lid / LANES;
  const int t = get_group_id(0) / SPLITS, split = get_group_id(0) % SPLITS;
  const int h = get_group_id(1), b = get_group_id(2);
  __global const X_T* k = pK + kOff + b * k0 + h / REPEAT * k2;
  __global const X_T* v = pV + vOff + b * v0 + h / REPEAT * v2;
  const int begin = split * SLICE, end = min(S, begin + SLICE);
#ifdef KCL_EARLY
  // While groups wait for the last keys, those before come to the last cache.
  for (int c0 = begin; c0 < end; c0 += SWEEP) {
    FOR_EACH_FOUR(KCL_AHEAD, k, k1, WIDTH, c0)
    FOR_EACH_FOUR(KCL_AHEAD, v, v1, DEPTH, c0)
  }
  KCL_EARLY(&pK, &pV);
#endif
  __global const X_T* own = pQ + qOff + b * q0 + t * q1 + h * q2;
  const int mine = lane / OWNERS * TEAMS + team;
  X_RAW4 keys[KEYS][FOURS], values[KEYS][FOURS];
  LOAD_KEYS(begin)
  DECLARE_BIAS(more_bias)
  DECLARE_MASK(more_mask)
  LOAD_MORE(begin + mine)
  float4 own4[FOURS], o[FOURS];
  EACH(j, FOURS) own4[j] = FEATURE(j) < WIDTH ? X_LOAD4(own, FEATURE(j)) : (float4)(0);
  LOAD_VALUES(begin)
  DRAW_KEY
  EACH(j, FOURS) o[j] = (float4)(0);
  float top = LOWEST, sum = 0;
  for (int c0 = begin; c0 < end; c0 += SWEEP) {
    const bool more = c0 + SWEEP < end;
    float x[KEYS];
    EACH(e, KEYS) {
      x[e] = 0;
      EACH(j, FOURS) {
        const float4 y = RAW4(keys[e][j]) * own4[j];
        if (FEATURE(j) < WIDTH) x[e] += (y.s0 + y.s1) + (y.s2 + y.s3);
      }
    }
    if (more) { LOAD_KEYS(c0 + SWEEP) }
    SUM_OF_TEAM(x)
    const int s = c0 + mine;
    FINISH_LOGIT_BY(x[0], t, s, more_bias, more_mask)
    if (more) LOAD_MORE(s + SWEEP)
    float most = s < end ? x[0] : LOWEST;
    EACH_DISTANCE(d, LANES_OF_WARP / 2, OWNERS) most = fmax(most, OTHER_LANE(most, d));
    most = fmax(top, most);
    const float keep = exp2(top - most);
    top = most;
    const float weight = s < end ? exp2(x[0] - most) : 0.0f;
    sum = sum * keep + weight;
    const float kept = KEPT(weight, WORD(t, s));
    EACH(j, FOURS) o[j] *= keep;
    EACH(e, KEYS) {
      const float share = OTHER_LANE(kept, lane ^ (e * OWNERS));
      if (c0 + team + e * TEAMS < end)
        EACH(j, FOURS) o[j] = fma((float4)(share), RAW4(values[e][j]), o[j]);
    }
    if (more) { LOAD_VALUES(c0 + SWEEP) }
  }
  EACH_DISTANCE(d, LANES_OF_WARP / 2, OWNERS) sum += OTHER_LANE(sum, d);
  EACH_DISTANCE(d, LANES_OF_WARP / 2, LANES) EACH(j, FOURS) {
    const float4 more4 = (float4)(OTHER_LANE(o[j].s0, d), OTHER_LANE(o[j].s1, d), OTHER_LANE(o[j].s2, d),
                                  OTHER_LANE(o[j].s3, d));
    o[j] += more4;
  }
  __local float* place = found + lid / LANES_OF_WARP * PLACE_SIZE;
  if (lid % LANES_OF_WARP < LANES) EACH(j, FOURS) vstore4(o[j], 0, place + FEATURE(j));
  if (lid % LANES_OF_WARP == 0) {
    place[DP] = top;
    place[DP + 1] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int d = lid; d < DEPTH; d += THREADS) {
    float highest = LOWEST, total = 0, y = 0;
    EACH(n, PARTS) highest = fmax(highest, found[n * PLACE_SIZE + DP]);
    EACH(n, PARTS) {
      const float keep = exp2(found[n * PLACE_SIZE + DP] - highest);
      total += keep * found[n * PLACE_SIZE + DP + 1];
      y += keep * found[n * PLACE_SIZE + d];
    }
#if SPLITS > 1
    volatile __global float* left = LEFT_AT(split);
    left[d] = y;
    if (d == 0) {
      left[DP] = highest;
      left[DP + 1] = total;
    }
#else
    EPILOGUE(y * SHARE(total), RESULT_AT + d)
    if (d == 0) pStat[ROW_NUMBER] = highest + log2(total);
#endif
  }
  JOIN_IF_LAST
}
#endif
