// How work-items of gemm_skinny.cl multiply signed bytes, four of the depth at once (kcl_dot4).  A load is
// V bytes of WORDS words:
//
//   along k   neighbours of the depth, as kcl_dot4 wants them
//   along r   neighbours of one depth: four loads of successive depths are turned
//
// Four of s along k lie together, at addresses that four divides.
#if WORDS == 1
#define L_RAW uint
#else
#define L_RAW CAT(uint, WORDS)
#endif
#define WORD(raw, w) ((const __private uint*)&(raw))[w]
#define FACTOR(j, k) (*(S_SPACE const uint*)(S_ROW(j) + S_PLACE(k)))
#define EARLY_LOADS L_RAW early[EARLY];
#define BEGIN_LOAD(e, k) early[e] = *(__global const L_RAW*)(l + (k) * lK);
#if L_ALONG_K
#define GATHER 1
#define WIDE V
#define STEP (LANES * V)
#define OWN (lane * V)
#define DEPTH(e) ((e) * STEP)
#define PLACES const int lane = tid % LANES, row = tid / LANES;
#define SUMS \
  int sum[SHORT]; \
  _Pragma("unroll") for (int j = 0; j < SHORT; ++j) sum[j] = 0;
#define ADD(loads, k) \
  _Pragma("unroll") for (int w = 0; w < WORDS; ++w) \
    _Pragma("unroll") for (int j = 0; j < SHORT; ++j) \
      sum[j] = kcl_dot4(WORD((loads)[0], w), FACTOR(j, (k) + 4 * w), sum[j]);
#define KEEP_SUM(j, sum_) PART(j, lane, row) = sum_;
#else
#define GATHER 4
#define WIDE 1
#define STEP (LANES * 4)
#define OWN (lane * 4)
#define DEPTH(e) ((e) / 4 * STEP + (e) % 4)
#define PLACES const int row = tid % (ROWS / V) * V, lane = tid / (ROWS / V);
#define SUMS \
  int sum[SHORT][V]; \
  _Pragma("unroll") for (int j = 0; j < SHORT; ++j) \
    _Pragma("unroll") for (int c = 0; c < V; ++c) sum[j][c] = 0;
#define ADD(loads, k) \
  uint factor[SHORT]; \
  _Pragma("unroll") for (int j = 0; j < SHORT; ++j) factor[j] = FACTOR(j, k); \
  _Pragma("unroll") for (int w = 0; w < WORDS; ++w) { \
    const uint4 turned = kcl_turned( \
        WORD((loads)[0], w), WORD((loads)[1], w), WORD((loads)[2], w), WORD((loads)[3], w)); \
    _Pragma("unroll") for (int j = 0; j < SHORT; ++j) { \
      sum[j][4 * w] = kcl_dot4(turned.s0, factor[j], sum[j][4 * w]); \
      sum[j][4 * w + 1] = kcl_dot4(turned.s1, factor[j], sum[j][4 * w + 1]); \
      sum[j][4 * w + 2] = kcl_dot4(turned.s2, factor[j], sum[j][4 * w + 2]); \
      sum[j][4 * w + 3] = kcl_dot4(turned.s3, factor[j], sum[j][4 * w + 3]); \
    } \
  }
#define KEEP_SUM(j, sum_) \
  _Pragma("unroll") for (int c = 0; c < V; ++c) PART(j, lane, row + c) = sum_[c];
#endif
#define MULTIPLY(e, from) \
  if (WHOLE || from + DEPTH(e) < kto) { ADD(early + (e), from + DEPTH(e)) }
#define ALL_IN_TURN \
  for (int k = own; k < kto; k += STEP) { \
    L_RAW loads_[GATHER]; \
    _Pragma("unroll") for (int e = 0; e < GATHER; ++e) \
      loads_[e] = *(__global const L_RAW*)(l + (k + e) * lK); \
    ADD(loads_, k) \
  }
#define KEEP(j0) \
  _Pragma("unroll") for (int j = 0; j < TOGETHER; ++j) { KEEP_SUM(j, sum[j0 + j]) }
