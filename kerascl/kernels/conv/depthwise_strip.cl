// Depthwise convolutions of two spatial dimensions, channels-last, one filter a channel, undilated.
// A work-item owns LANES neighbouring channels and walks down a strip of STRIP columns, so that an
// input value is loaded about once; neighbouring work-items have neighbouring channels.  KH KW SH SW
// (kernel, strides) and STRIP are macros: all loops but the walk of up to ROWS output rows unroll,
// and every array lives in registers.
#define UNROLL _Pragma("unroll")
#define CV A_CV
#define ZERO A_SPLAT(0)

// Along the rows a step of the walk meets SH input rows and finishes one output row, at most DEEP
// steps after its first input.
#define DEEP ((KH + SH - 1) / SH)
#define WIDE ((KW + SW - 1) / SW)
#define MIN_(a_, b_) ((a_) < (b_) ? (a_) : (b_))

// The vectors v_[0] to v_[n_ - 1], one pixel each, to column at_ and those after it.
#if LANES == 4 && defined(EPILOGUE_VECTORS)
#define EMIT(n_, v_, at_) { \
    float lanes_[4 * (n_)]; const INDEX_T first_ = (at_); \
    UNROLL for (int pixel_ = 0; pixel_ < (n_); ++pixel_) A_SPILL((v_)[pixel_], lanes_ + 4 * pixel_); \
    EPILOGUE_VECTORS(n_, 4, lanes_, first_, CHANNELS) }
#else
#define EMIT(n_, v_, at_) { \
    float lanes_[LANES]; const INDEX_T first_ = (at_); \
    UNROLL for (int pixel_ = 0; pixel_ < (n_); ++pixel_) { \
      A_SPILL((v_)[pixel_], lanes_); \
      UNROLL for (int lane_ = 0; lane_ < LANES; ++lane_) \
        EPILOGUE(lanes_[lane_], first_ + pixel_ * CHANNELS + lane_) } }
#endif

// The strip, walk and image of item or unit `n_`: its first column and row, and how many rows.
#define PLACE_STRIP(n_) \
  const int col0 = (n_) % STRIPS * STRIP; const int walk_ = (n_) / STRIPS; \
  const int first = walk_ % WALKS * ROWS, img = walk_ / WALKS;

#if KIND_GATHER || KIND_SCATTER
#define PLACE_ITEM \
  const uint item = get_global_id(0); \
  if (item >= ITEMS) return; \
  const int c = (int)(item % BLOCKS) * LANES, unit = (int)(item / BLOCKS); \
  PLACE_STRIP(unit) \
  CV w[KH][KW]; \
  UNROLL for (int j1 = 0; j1 < KH; ++j1) \
    UNROLL for (int j2 = 0; j2 < KW; ++j2) \
      w[j1][j2] = B_LOADV(pB, ((FLIP ? KH - 1 - j1 : j1) * KW + (FLIP ? KW - 1 - j2 : j2)) * CHANNELS + c);
#endif

#if KIND_GATHER
// y, or dx where strides are one (FLIP: taps from the last to the first).
__kernel NARROW __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_strip(
    __global const A_T* restrict pA, __global const B_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  PLACE_ITEM
  const int rows = min(ROWS, OUT1 - first), x0 = col0 * SW - PAD2;
  const int bottom = min(IN1, (first + rows - 1) * SH - PAD1 + KH);
  CV sums[DEEP][STRIP];
  UNROLL for (int k = 0; k < DEEP; ++k)
    UNROLL for (int t = 0; t < STRIP; ++t) sums[k][t] = ZERO;
  for (int o = first; o < first + rows + DEEP - 1; ++o) {
    UNROLL for (int q = 0; q < MIN_(SH, KH); ++q) {
      const int h = o * SH - PAD1 + q;
      if (h >= 0 && h < bottom) {
        const INDEX_T from = (((INDEX_T)img * IN1 + h) * IN2 + x0) * CHANNELS + c;
        CV x[(STRIP - 1) * SW + KW];
        UNROLL for (int t = 0; t < (STRIP - 1) * SW + KW; ++t)
          x[t] = (uint)(x0 + t) < (uint)IN2 ? A_LOADV(pA, from + t * CHANNELS) : ZERO;
        UNROLL for (int k = 0; k < DEEP; ++k)
          if (q + k * SH < KH)
            UNROLL for (int j = 0; j < KW; ++j)
              UNROLL for (int t = 0; t < STRIP; ++t)
                sums[k][t] += x[t * SW + j] * w[MIN_(q + k * SH, KH - 1)][j];
      }
    }
    const int done = o - (DEEP - 1);
    if (done >= first) {
      const INDEX_T to = (((INDEX_T)img * OUT1 + done) * OUT2 + col0) * CHANNELS + c;
      if (col0 + STRIP <= OUT2) {
        EMIT(STRIP, sums[DEEP - 1], to)
      } else {
        UNROLL for (int t = 0; t < STRIP - 1; ++t)
          if (col0 + t < OUT2) EMIT(1, sums[DEEP - 1] + t, to + t * CHANNELS)
      }
    }
    UNROLL for (int k = DEEP - 1; k >= 0; --k)
      UNROLL for (int t = 0; t < STRIP; ++t) sums[k][t] = k > 0 ? sums[k > 0 ? k - 1 : 0][t] : ZERO;
  }
}
#endif

#if KIND_SCATTER
// dx where strides are above one.  Row o of dx is (o + PAD1) = SH * u + q: it meets row u - k of dy at
// tap q + k * SH.  A step of the walk, one u, writes up to SH rows; columns likewise.
__kernel NARROW __attribute__((reqd_work_group_size(GROUP, 1, 1))) void depthwise_strip(
    __global const A_T* restrict pA, __global const B_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  PLACE_ITEM
  const int last = min(first + ROWS, HIGH1 - LOW1) + LOW1, u2 = col0 + LOW2, h2 = u2 - (WIDE - 1);
  CV near[DEEP][STRIP + WIDE - 1];
  UNROLL for (int k = 0; k < DEEP; ++k)
    UNROLL for (int t = 0; t < STRIP + WIDE - 1; ++t) near[k][t] = ZERO;
  for (int u1 = first + LOW1 - (DEEP - 1); u1 < last; ++u1) {
    const INDEX_T from = (((INDEX_T)img * IN1 + u1) * IN2 + h2) * CHANNELS + c;
    const int inside = (uint)u1 < (uint)IN1;
    UNROLL for (int t = 0; t < STRIP + WIDE - 1; ++t) {
      UNROLL for (int k = DEEP - 1; k > 0; --k) near[k][t] = near[k - 1][t];
      near[0][t] = inside && (uint)(h2 + t) < (uint)IN2 ? A_LOADV(pA, from + t * CHANNELS) : ZERO;
    }
    if (u1 < first + LOW1) continue;
    UNROLL for (int q1 = 0; q1 < SH; ++q1) {
      const int o1 = u1 * SH + q1 - PAD1, o2 = u2 * SW - PAD2;
      if ((uint)o1 >= (uint)OUT1) continue;
      const INDEX_T to = (((INDEX_T)img * OUT1 + o1) * OUT2 + o2) * CHANNELS + c;
      CV sums[STRIP * SW];
      UNROLL for (int t = 0; t < STRIP * SW; ++t) {
        sums[t] = ZERO;
        UNROLL for (int k1 = 0; k1 < DEEP; ++k1)
          UNROLL for (int k2 = 0; k2 < WIDE; ++k2)
            if (q1 + k1 * SH < KH && t % SW + k2 * SW < KW)
              sums[t] += near[k1][t / SW + WIDE - 1 - k2]
                         * w[MIN_(q1 + k1 * SH, KH - 1)][MIN_(t % SW + k2 * SW, KW - 1)];
      }
      if (o2 >= 0 && o2 + STRIP * SW <= OUT2) {
        EMIT(STRIP * SW, sums, to)
      } else {
        UNROLL for (int t = 0; t < STRIP * SW; ++t)
          if ((uint)(o2 + t) < (uint)OUT2) EMIT(1, sums + t, to + t * CHANNELS)
      }
    }
  }
}
#endif

#if KIND_FILTER
// part[split][tap][channel]: work-group (split, block) has ACROSS lanes of channels and DOWN of
// strips, each of which keeps all taps' sums in registers.
__kernel NARROW __attribute__((reqd_work_group_size(ACROSS * DOWN, 1, 1))) void depthwise_strip_filter(
    __global const A_T* restrict pA, __global const B_T* restrict pB,
    __global float* restrict part PARAMS) {
  __local CV below_[(DOWN > 1 ? DOWN / 2 : 1) * KH * KW * ACROSS];
  const int tid = get_local_id(0), across = tid % ACROSS, down = tid / ACROSS;
  const int c = ((int)(get_group_id(0) % BLOCKS) * ACROSS + across) * LANES;
  const int split = get_group_id(0) / BLOCKS;
  CV sums[KH][KW];
  UNROLL for (int j1 = 0; j1 < KH; ++j1)
    UNROLL for (int j2 = 0; j2 < KW; ++j2) sums[j1][j2] = ZERO;
  for (int unit = c < CHANNELS ? split * DOWN + down : UNITS; unit < UNITS; unit += SPLITS * DOWN) {
    PLACE_STRIP(unit)
    const int rows = min(ROWS, OUT1 - first), x0 = col0 * SW - PAD2;
    const int cols = min(STRIP, OUT2 - col0);
    const int bottom = min(IN1, (first + rows - 1) * SH - PAD1 + KH);
    const int right = min(IN2, (col0 + cols - 1) * SW - PAD2 + KW);
    CV dy[DEEP][STRIP];
    UNROLL for (int k = 0; k < DEEP; ++k)
      UNROLL for (int t = 0; t < STRIP; ++t) dy[k][t] = ZERO;
    for (int o = first; o < first + rows + DEEP - 1; ++o) {
      const INDEX_T g = (((INDEX_T)img * OUT1 + o) * OUT2 + col0) * CHANNELS + c;
      const int inside = o < first + rows ? cols : 0;
      UNROLL for (int t = 0; t < STRIP; ++t) {
        UNROLL for (int k = DEEP - 1; k > 0; --k) dy[k][t] = dy[k - 1][t];
        dy[0][t] = t < inside ? B_LOADV(pB, g + t * CHANNELS) : ZERO;
      }
      UNROLL for (int q = 0; q < MIN_(SH, KH); ++q) {
        const int h = o * SH - PAD1 + q;
        if (h >= 0 && h < bottom) {
          const INDEX_T from = (((INDEX_T)img * IN1 + h) * IN2 + x0) * CHANNELS + c;
          CV x[(STRIP - 1) * SW + KW];
          UNROLL for (int t = 0; t < (STRIP - 1) * SW + KW; ++t)
            x[t] = x0 + t >= 0 && x0 + t < right ? A_LOADV(pA, from + t * CHANNELS) : ZERO;
          UNROLL for (int k = 0; k < DEEP; ++k)
            if (q + k * SH < KH)
              UNROLL for (int j = 0; j < KW; ++j)
                UNROLL for (int t = 0; t < STRIP; ++t)
                  sums[MIN_(q + k * SH, KH - 1)][j] += x[t * SW + j] * dy[k][t];
        }
      }
    }
  }
  for (int half_ = DOWN / 2; half_ > 0; half_ /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (down >= half_ && down < 2 * half_)
      UNROLL for (int j = 0; j < KH * KW; ++j)
        below_[((down - half_) * KH * KW + j) * ACROSS + across] = sums[j / KW][j % KW];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (down < half_)
      UNROLL for (int j = 0; j < KH * KW; ++j)
        sums[j / KW][j % KW] += below_[(down * KH * KW + j) * ACROSS + across];
  }
  if (down == 0 && c < CHANNELS)
    UNROLL for (int j = 0; j < KH * KW; ++j)
      *(__global CV*)(part + (split * KH * KW + j) * CHANNELS + c) = sums[j / KW][j % KW];
}
#endif

#if KIND_REDUCE
// part[split][total] -> dw[total]: REDUCE_LANES work-items sum the splits of each result, in an order
// that never changes.
__kernel __attribute__((reqd_work_group_size(8 * REDUCE_LANES, 1, 1))) void depthwise_strip_reduce(
    __global const float* restrict part, const int TOTAL, const int SPLITS EPILOGUE_PARAMS) {
  __local float below_[8 * REDUCE_LANES];
  const int tid = get_local_id(0), lane = tid / 8, to = (int)get_group_id(0) * 8 + tid % 8;
  float sum = 0;
  if (to < TOTAL)
    for (int s = lane; s < SPLITS; s += REDUCE_LANES) sum += part[s * TOTAL + to];
  below_[tid] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = REDUCE_LANES / 2; half_ > 0; half_ /= 2) {
    if (lane < half_) below_[tid] += below_[tid + half_ * 8];
    barrier(CLK_LOCAL_MEM_FENCE);  // also behind the last: Intel's CPU runtime reads too early else
  }
  if (lane == 0 && to < TOTAL) EPILOGUE(below_[tid], to)
}
#endif
