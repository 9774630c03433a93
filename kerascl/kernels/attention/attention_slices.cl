// What attention_few.cl and attention_lanes.cl share: the slices that a row's keys are cut into.
#define PLACE_SIZE (DP + 2)  // what a slice leaves: results, the greatest logit, the sum
#define RESULT_AT ((((INDEX_T)b * T + t) * HEADS + h) * DEPTH)
#define ROW_NUMBER ((INDEX_T)(b * HEADS + h) * T + t)
#define LEFT_AT(split) (slices + (ROW_NUMBER * SPLITS + (split)) * PLACE_SIZE)

// What the slices left becomes the results of query t.
#define JOIN_SLICES \
  { \
    __global const float* from_ = LEFT_AT(0); \
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
    if (lid == 0) pStat[ROW_NUMBER] = top_ + log2(total_); \
  }

// In the kernel that leaves slices: the last of a row's groups to arrive joins them.
#if ARRIVES
#define JOIN_IF_LAST \
  __local int last_; \
  if (kcl_last_group(arrivals + arrival + ROW_NUMBER, SPLITS, &last_)) JOIN_SLICES
#else
#define JOIN_IF_LAST
#endif

#if JOIN
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attention_join(
    __global const float* slices, __global float* restrict pStat, const int T,
    const float keepFactor EPILOGUE_PARAMS) {
  const int lid = get_local_id(0), t = get_group_id(0), h = get_group_id(1), b = get_group_id(2);
  JOIN_SLICES
}
#endif
