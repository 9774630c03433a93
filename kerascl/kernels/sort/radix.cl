// Stable radix sort of (rows, length) for CPUs, digit by digit from the lowest on; stands behind
// sort.cl, whose items, keys and results it has.
//
// RAW: elements move as they are stored, and keys are computed wherever they are looked at; else
// items of key and place move.  A digit has BITS bits.
// RADIX_COUNT, RADIX_MOVE: a row in `parts` parts of `part` elements; each work-item counts the
// digits of its part, and then knows from all parts' counts where its elements go.
// RADIX_ROWS: all PASSES digits of a row by one work-item.

#define RADIX (1 << BITS)
#define DIGIT(key_, shift_) ((int)((key_) >> (shift_)) & (RADIX - 1))

#if RAW
#define UNIT_T RAW_T
#define KEY(from_, at_) sort_key((const __global A_T*)(from_), (at_), 0)
#define FINISH(row_, rank_, from_, at_) \
  EPILOGUE(A_LOAD((const __global A_T*)(from_), (at_)), (row_) * keep + (rank_))
#else
#define UNIT_T item_t
#if WIDE
#define ITEM_KEY(u_) ((u_).x)
#else
#define ITEM_KEY(u_) ((uint)((u_) >> 32))
#endif
#define KEY(from_, at_) ITEM_KEY((from_)[at_])
#define FINISH(row_, rank_, from_, at_) PUT(row_, rank_, (from_)[at_])
#endif

#define ONE_THREAD __attribute__((reqd_work_group_size(1, 1, 1)))
#define PART_PARAMS , INDEX_T length, INDEX_T keep, INDEX_T part, int parts, int shift
#define PART \
  const INDEX_T unit = (INDEX_T)get_global_id(0); \
  const INDEX_T row = unit / parts, mine = unit % parts; \
  const INDEX_T begin = mine * part, end = min(begin + part, length);

#if RADIX_COUNT
__kernel ONE_THREAD void radix_count(SOURCE_PARAM PART_PARAMS, __global uint* restrict k_counts) {
  PART
  uint counts[RADIX];
  for (int d = 0; d < RADIX; d++) counts[d] = 0;
#if RAW
  for (INDEX_T at = row * length + begin; at < row * length + end; at++)
    counts[DIGIT(KEY(k_source, at), shift)]++;
#else
  for (INDEX_T at = begin; at < end; at++) {
    const item_t item = READ_ITEM(row, at);
    counts[DIGIT(ITEM_KEY(item), shift)]++;
  }
#endif
  for (int d = 0; d < RADIX; d++) k_counts[unit * RADIX + d] = counts[d];
}
#endif

#if RADIX_MOVE
#if RAW
#define MOVE_PARAMS , __global RAW_T* restrict k_result
#if FINAL
#undef MOVE_PARAMS
#define MOVE_PARAMS EPILOGUE_PARAMS
#endif
#else
#define MOVE_PARAMS , INDEX_T out_length RESULT_PARAMS
#endif
__kernel ONE_THREAD void radix_move(SOURCE_PARAM PART_PARAMS, const __global uint* restrict k_counts
                                    MOVE_PARAMS) {
  PART
  uint next[RADIX];
  const __global uint* first = k_counts + row * parts * RADIX;
  uint all = 0;
  for (int d = 0; d < RADIX; d++) next[d] = 0;
  for (int p = 0; p < mine; p++)
    for (int d = 0; d < RADIX; d++) next[d] += first[p * RADIX + d];
  for (int d = 0; d < RADIX; d++) {
    next[d] += all;
    for (int p = 0; p < parts; p++) all += first[p * RADIX + d];
  }
  for (INDEX_T at = begin; at < end; at++) {
#if RAW
    const INDEX_T from = row * length + at;
    const INDEX_T to = (INDEX_T)next[DIGIT(KEY(k_source, from), shift)]++;
#if FINAL
    if (to < keep) FINISH(row, to, k_source, from)
#else
    k_result[row * length + to] = ((const __global RAW_T*)k_source)[from];
#endif
#else
    const item_t item = READ_ITEM(row, at);
    const INDEX_T to = (INDEX_T)next[DIGIT(ITEM_KEY(item), shift)]++;
    if (to < keep) PUT(row, to, item)
#endif
  }
}
#endif

#if RADIX_ROWS
#if RAW
#define ROW_PARAMS EPILOGUE_PARAMS
#else
#define ROW_PARAMS , INDEX_T out_length RESULT_PARAMS
#endif
// Work-items share out the rows; each has its own two stretches of `length` units of k_scratch.
__kernel ONE_THREAD void radix_rows(SOURCE_PARAM, INDEX_T rows, INDEX_T length, INDEX_T keep,
                                    __global UNIT_T* k_scratch ROW_PARAMS) {
  const INDEX_T worker = (INDEX_T)get_global_id(0);
  uint counts[PASSES * RADIX];
  for (INDEX_T row = worker; row < rows; row += (INDEX_T)get_global_size(0)) {
    __global UNIT_T* from = k_scratch + worker * 2 * length;
    __global UNIT_T* to = from + length;
    for (int d = 0; d < PASSES * RADIX; d++) counts[d] = 0;
    for (INDEX_T at = 0; at < length; at++) {
#if RAW
      from[at] = ((const __global RAW_T*)k_source)[row * length + at];
#else
      from[at] = READ_ITEM(row, at);
#endif
      const ulong key = KEY(from, at);
      for (int pass = 0; pass < PASSES; pass++) counts[pass * RADIX + DIGIT(key, pass * BITS)]++;
    }
    // Digits that are the same everywhere need no pass.
    int last = -1;
    for (int pass = 0; pass < PASSES; pass++)
      if (counts[pass * RADIX + DIGIT(KEY(from, 0), pass * BITS)] < (uint)length) last = pass;
    for (int pass = 0; pass <= last; pass++) {
      uint* next = counts + pass * RADIX;
      const int shift = pass * BITS;
      if (next[DIGIT(KEY(from, 0), shift)] == (uint)length) continue;
      uint all = 0;
      for (int d = 0; d < RADIX; d++) {
        const uint count = next[d];
        next[d] = all;
        all += count;
      }
      if (pass == last) {
        for (INDEX_T at = 0; at < length; at++) {
          const INDEX_T rank = (INDEX_T)next[DIGIT(KEY(from, at), shift)]++;
          if (rank < keep) FINISH(row, rank, from, at)
        }
      } else {
        for (INDEX_T at = 0; at < length; at++)
          to[next[DIGIT(KEY(from, at), shift)]++] = from[at];
        __global UNIT_T* swap = from;
        from = to;
        to = swap;
      }
    }
    if (last < 0)
      for (INDEX_T at = 0; at < keep; at++) FINISH(row, at, from, at)
  }
}
#endif
