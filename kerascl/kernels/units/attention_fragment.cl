// Attention on the matrix units that fragment.py describes, whichever they are.  As in
// attention_tile.cl a work-group owns BR rows and walks over blocks of BC columns (rows are queries and
// columns keys, except in the keys' gradient); a sub-group owns MI times FRAGMENT_M of them.  Logits stay
// in the registers where the units leave them.  What its lanes must tell each other goes through local
// memory: the maxima of rows, then the probabilities, as the next product's left operand.
#define PAD (FRAGMENT_K > FRAGMENT_N ? FRAGMENT_K : FRAGMENT_N)
#define WP ((WIDTH + PAD - 1) / PAD * PAD)
#define DP ((DEPTH + PAD - 1) / PAD * PAD)
#define NC (BC / FRAGMENT_N)
#define SUB_ROWS (MI * FRAGMENT_M)
#define SYNC barrier(CLK_LOCAL_MEM_FENCE);
#define MATRIX_UNITS  // memory that an emulation needs

// Where tiles lie in local memory: the group's rows; of a block the keys (or queries), their
// transpose, the values (or gradients), their transpose; what each sub-group hands over.
#ifdef FORWARD
#define OTHER TILE(A, BR, WP)
#define OTHER_V (OTHER + TILE(B, BC, WP))
#define TURNED_V OTHER_V
#define HANDS (TURNED_V + TILE(B, DP, BC))
#define KEEP_own KEEP(A, 0, BR, WP)
#define KEEP_other KEEP(B, OTHER, BC, WP)
#define KEEP_otherV TURN(B, TURNED_V, DP, BC)
#else
#define OWN_V TILE(A, BR, WP)
#define OTHER (OWN_V + TILE(A, BR, DP))
#define TURNED (OTHER + TILE(B, BC, WP))
#define OTHER_V (TURNED + TILE(B, WP, BC))
#define TURNED_V (OTHER_V + TILE(B, BC, DP))
#define HANDS (TURNED_V + KEYS * TILE(B, DP, BC))
#define KEEP_own KEEP(A, 0, BR, WP)
#define KEEP_ownV KEEP(A, OWN_V, BR, DP)
#define KEEP_other { KEEP(B, OTHER, BC, WP) TURN(B, TURNED, WP, BC) }
#if KEYS
#define KEEP_otherV { KEEP(B, OTHER_V, BC, DP) TURN(B, TURNED_V, DP, BC) }
#else
#define KEEP_otherV KEEP(B, OTHER_V, BC, DP)
#endif
#endif
// Facts of rows, one of each lane that holds a part of them; in the place of what is handed over.
#define FACTS (SUB_ROWS * (D_LANES + 1) * 4)
#define HAND (TILE(A, SUB_ROWS, BC) > FACTS ? TILE(A, SUB_ROWS, BC) : FACTS)
#define LOCAL_BYTES (HANDS + BR / SUB_ROWS * HAND)
#define FACT(row, of) facts[(row) * (D_LANES + 1) + (of)]
#define OWN_ROW(row) (own0 + i * FRAGMENT_M + row)

// The group's first row, read anew for each block: compilers else keep from block to block where each
// row's bias, mask and random numbers lie, for which Arc has no registers.
#undef FIRST_ROW
#define FIRST_ROW row0
#if HAS_BIAS || HAS_MASK || HAS_DROPOUT
#define KEEP_FIRST(row) __local int kept; if (lid == 0) kept = row;
#define READ_FIRST(row) const int row0 = kept;
#define SAME_LANE lane |= S >> 31;  // which compilers do not know: places in local memory, too
#else
#define KEEP_FIRST(row)
#define READ_FIRST(row) const int row0 = row;
#define SAME_LANE
#endif

#ifdef FORWARD
__kernel UNIT_ATTRIBUTES __attribute__((reqd_work_group_size(THREADS, 1, 1)))
void attention_fragment(FORWARD_PARAMS) {
  __local uint memory[LOCAL_BYTES / 4] __attribute__((aligned(128)));
  __local float top[BR], keep[BR];
  MATRIX_UNITS
#if CAUSAL && HAS_MASK
  __local int blind;
#endif
  const int lid = get_local_id(0), lane = lid % LANES, own0 = lid / LANES * SUB_ROWS;
  const uint mine = HANDS + lid / LANES * HAND;
  __local float* facts = (__local float*)(BYTES + mine);
  DRAW_KEY
  // later queries of a causal problem see more keys: they start first
  const int first = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR;
  const int h = get_group_id(1), b = get_group_id(2), heads = get_num_groups(1);
  __global const X_T* k = pK + kOff + b * k0 + h / REPEAT * k2;
  __global const X_T* v = pV + vOff + b * v0 + h / REPEAT * v2;
  LOAD_TILE(own, pQ + qOff + b * q0 + h * q2 + first * q1, q1, q3, T - first, BR, WIDTH, WP)
  float o[MI][DP / FRAGMENT_N][SUMS], sum[MI][SUMS];
  CLEAR(o, DP / FRAGMENT_N)
  EACH(i, MI) EACH(e, SUMS) sum[i][e] = 0;
  for (int r = lid; r < BR; r += THREADS) top[r] = LOWEST;
  KEEP_FIRST(first)
  int end = CAUSAL ? min(S, first + BR) : S;
  for (int s0 = 0; s0 < end; s0 += BC) {
    SYNC
    LOAD_TILE(other, k + s0 * k1, k1, k3, S - s0, BC, WIDTH, WP)
    LOAD_TILE(otherV, v + s0 * v1, v1, v3, S - s0, BC, DEPTH, DP)
    SYNC
    READ_FIRST(first)
    float x[MI][NC][SUMS], most[MI][SUMS];
    CLEAR(x, NC)
    ADD_PRODUCTS(x, 0, BR, own0, OTHER, BC, WP)
#define LOGIT(e, row, column) { \
      const int t = FIRST_ROW + OWN_ROW(row), s = s0 + j * FRAGMENT_N + column; \
      FINISH_LOGIT(x[i][j][e], t, s) \
      if (s >= end) x[i][j][e] = -INFINITY; \
      most[i][e] = fmax(most[i][e], x[i][j][e]); }
#define TELL_MOST(e, row, column) FACT(i * FRAGMENT_M + row, lane % D_LANES) = most[i][e];
    EACH(i, MI) {
      EACH(e, SUMS) most[i][e] = -INFINITY;
      EACH(j, NC) { EACH_SUM(LOGIT) }
      EACH_SUM(TELL_MOST)
    }
    SYNC
    for (int r = lane; r < SUB_ROWS; r += LANES) {
      const float before = top[own0 + r];
      float now = before;
      EACH(l, D_LANES) now = fmax(now, FACT(r, l));
      keep[own0 + r] = exp2(before - now);
      top[own0 + r] = now;
    }
    SYNC
#define WEIGHT(e, row, column) { \
      const int t = FIRST_ROW + OWN_ROW(row); \
      const float now = top[OWN_ROW(row)], again = keep[OWN_ROW(row)]; \
      sum[i][e] *= again; \
      EACH(n, DP / FRAGMENT_N) o[i][n][e] *= again; \
      EACH(j, NC) { \
        const int s = s0 + j * FRAGMENT_N + column; \
        const float w = exp2(x[i][j][e] - now); \
        sum[i][e] += w; \
        x[i][j][e] = KEPT(w, WORD(t, s)); \
      } }
#define HANDED x
    EACH(i, MI) {
      EACH_SUM(WEIGHT)
      EACH(j, NC) { EACH_SUM(HAND_ONE) }
    }
    SYNC
    ADD_PRODUCTS(o, mine, SUB_ROWS, 0, TURNED_V, DP, BC)
#if CAUSAL && HAS_MASK
    // A row that sees nothing at all is uniform over every key, the future ones too.
    if (s0 + BC >= end && end < S) {
      if (lid == 0) blind = 0;
      SYNC
      for (int r = lane; r < SUB_ROWS; r += LANES)
        if (first + own0 + r < T && top[own0 + r] == NEGATIVE) atomic_or(&blind, 1);
      SYNC
      if (blind) { s0 = end - BC; end = S; }
    }
#endif
  }
  SYNC
#define TELL_SUM(e, row, column) FACT(i * FRAGMENT_M + row, lane % D_LANES) = sum[i][e];
  EACH(i, MI) { EACH_SUM(TELL_SUM) }
  SYNC
  for (int r = lane; r < SUB_ROWS; r += LANES) {
    const int t = first + own0 + r;
    float total = 0;
    EACH(l, D_LANES) total += FACT(r, l);
    keep[own0 + r] = SHARE(total);
    if (t < T) pStat[(INDEX_T)(b * heads + h) * T + t] = top[own0 + r] + log2(total);
  }
  SYNC
#define STORE(e, row, column) { \
    const int t = first + OWN_ROW(row); \
    const INDEX_T at = (((INDEX_T)b * T + t) * heads + h) * DEPTH; \
    const float share = keep[OWN_ROW(row)]; \
    EACH(n, DP / FRAGMENT_N) { \
      const int d = n * FRAGMENT_N + column; \
      if (t < T && d < DEPTH) EPILOGUE(o[i][n][e] * share, at + d) \
    } }
  EACH(i, MI) { EACH_SUM(STORE) }
}
#endif

#ifdef BACKWARD
__kernel UNIT_ATTRIBUTES __attribute__((reqd_work_group_size(THREADS, 1, 1)))
void attention_fragment_grad(BACKWARD_PARAMS) {
  __local uint memory[LOCAL_BYTES / 4] __attribute__((aligned(128)));
  __local float stat[QUERIES], delta[QUERIES];
  MATRIX_UNITS
  const int lid = get_local_id(0), own0 = lid / LANES * SUB_ROWS;
  int lane = lid % LANES;
  const int b = get_group_id(2);
  const uint mine = HANDS + lid / LANES * HAND;
  DRAW_KEY
  float sum[MI][WP / FRAGMENT_N][SUMS];
  CLEAR(sum, WP / FRAGMENT_N)
#if KEYS
  const int r0 = (int)get_group_id(0) * BR, group = get_group_id(1);
  float sumV[MI][DP / FRAGMENT_N][SUMS];
  CLEAR(sumV, DP / FRAGMENT_N)
  LOAD_TILE(own, pK + kOff + b * k0 + group * k2 + r0 * k1, k1, k3, S - r0, BR, WIDTH, WP)
  LOAD_TILE(ownV, pV + vOff + b * v0 + group * v2 + r0 * v1, v1, v3, S - r0, BR, DEPTH, DP)
#else
  const int r0 = (int)(get_num_groups(0) - 1 - get_group_id(0)) * BR, h = get_group_id(1);
  const int group = h / REPEAT;
  LOAD_TILE(own, pQ + qOff + b * q0 + h * q2 + r0 * q1, q1, q3, T - r0, BR, WIDTH, WP)
  LOAD_TILE(ownV, pG + gOff + b * g0 + h * g2 + r0 * g1, g1, g3, T - r0, BR, DEPTH, DP)
#endif
  KEEP_FIRST(r0)
  FOR_EACH_BLOCK
    LOAD_STATISTICS
    SYNC
    READ_FIRST(r0)
    SAME_LANE
    float x[MI][NC][SUMS], y[MI][NC][SUMS];
    CLEAR(x, NC)
    CLEAR(y, NC)
    ADD_PRODUCTS(x, 0, BR, own0, OTHER, BC, WP)
    ADD_PRODUCTS(y, OWN_V, BR, own0, OTHER_V, BC, DP)
#define WEIGHT(e, row, column) { \
      WEIGH(x[i][j][e], y[i][j][e], OWN_ROW(row), j * FRAGMENT_N + column, WORD(t, s)) \
      x[i][j][e] = w; \
      y[i][j][e] = back; }
    EACH(i, MI) EACH(j, NC) { EACH_SUM(WEIGHT) }
#if KEYS
#define HANDED x
    EACH(i, MI) EACH(j, NC) { EACH_SUM(HAND_ONE) }
    SYNC
    ADD_PRODUCTS(sumV, mine, SUB_ROWS, 0, TURNED_V, DP, BC)
    SYNC
#undef HANDED
#endif
#define HANDED y
    EACH(i, MI) EACH(j, NC) { EACH_SUM(HAND_ONE) }
    SYNC
    ADD_PRODUCTS(sum, mine, SUB_ROWS, 0, TURNED, WP, BC)
  END_EACH_BLOCK
#if KEYS
#define PUT_SLOPE(x, at) OUT_STORE(outK, at, x);
#else
#define PUT_SLOPE(x, at) EPILOGUE(x, at)
#endif
#define STORE(e, row, column) { \
    const int own = r0 + OWN_ROW(row); \
    const INDEX_T at = ((INDEX_T)b * ROWS + own) * COUNT + PLACE; \
    EACH(n, WP / FRAGMENT_N) { \
      const int d = n * FRAGMENT_N + column; \
      if (own < ROWS && d < WIDTH) PUT_SLOPE(sum[i][n][e] * scale, at * WIDTH + d) \
    } }
  EACH(i, MI) { EACH_SUM(STORE) }
#if KEYS
#define STORE_V(e, row, column) { \
    const int own = r0 + OWN_ROW(row); \
    const INDEX_T at = ((INDEX_T)b * ROWS + own) * COUNT + PLACE; \
    EACH(n, DP / FRAGMENT_N) { \
      const int d = n * FRAGMENT_N + column; \
      if (own < ROWS && d < DEPTH) OUT_STORE(outV, at * DEPTH + d, sumV[i][n][e]); \
    } }
  EACH(i, MI) { EACH_SUM(STORE_V) }
#endif
}
#endif
