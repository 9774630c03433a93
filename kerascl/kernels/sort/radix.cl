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
#define READ_UNIT(at_) ((const __global RAW_T*)k_source)[row * length + (at_)]
#define UNIT_KEY(u_) sort_key_of((KEY_T)(u_))
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
#define READ_UNIT(at_) READ_ITEM(row, at_)
#define UNIT_KEY(u_) ITEM_KEY(u_)
#define FINISH(row_, rank_, from_, at_) PUT(row_, rank_, (from_)[at_])
#endif

// step_(n) for each n elements from `at` on.  A step knows the digits of all of them before it
// touches a count, so that no read waits for a store whose place is not known yet.
#define BATCH 16
#define IN_BATCHES(begin_, end_, step_) { \
    INDEX_T at = (begin_); \
    for (; (end_) - at >= BATCH; at += BATCH) step_(BATCH) \
    step_((int)((end_) - at)) \
  }

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
#define COUNT(n_) { \
    int digit[BATCH]; \
    for (int j = 0; j < n_; j++) digit[j] = DIGIT(UNIT_KEY(READ_UNIT(at + j)), shift); \
    for (int j = 0; j < n_; j++) counts[digit[j]]++; \
  }
  IN_BATCHES(begin, end, COUNT)
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
#if !RAW
#define TAKE(to_, j_) if ((to_) < keep) PUT(row, to_, unit[j_])
#elif FINAL
#define TAKE(to_, j_) if ((to_) < keep) FINISH(row, to_, k_source, row * length + at + (j_))
#else
#define TAKE(to_, j_) k_result[row * length + (to_)] = unit[j_];
#endif
#define MOVE(n_) { \
    UNIT_T unit[BATCH]; \
    int digit[BATCH]; \
    for (int j = 0; j < n_; j++) unit[j] = READ_UNIT(at + j); \
    for (int j = 0; j < n_; j++) digit[j] = DIGIT(UNIT_KEY(unit[j]), shift); \
    for (int j = 0; j < n_; j++) { \
      const INDEX_T to = (INDEX_T)next[digit[j]]++; \
      TAKE(to, j) \
    } \
  }
  IN_BATCHES(begin, end, MOVE)
}
#endif

#if RADIX_ROWS
#if RAW
#define ROW_PARAMS EPILOGUE_PARAMS
#else
#define ROW_PARAMS , INDEX_T out_length RESULT_PARAMS
#endif
#define ENTER(n_) { \
    ulong key[BATCH]; \
    for (int j = 0; j < n_; j++) from[at + j] = READ_UNIT(at + j); \
    for (int j = 0; j < n_; j++) key[j] = KEY(from, at + j); \
    for (int pass = 0; pass < PASSES; pass++) { \
      uint* own = counts + pass * RADIX; \
      for (int j = 0; j < n_; j++) own[DIGIT(key[j], pass * BITS)]++; \
    } \
  }
#define DIGITS(n_) for (int j = 0; j < n_; j++) digit[j] = DIGIT(KEY(from, at + j), shift);
#define PASS(n_) { \
    UNIT_T unit[BATCH]; \
    int digit[BATCH]; \
    DIGITS(n_) \
    for (int j = 0; j < n_; j++) unit[j] = from[at + j]; \
    for (int j = 0; j < n_; j++) to[next[digit[j]]++] = unit[j]; \
  }
#define LEAVE(n_) { \
    int digit[BATCH]; \
    DIGITS(n_) \
    for (int j = 0; j < n_; j++) { \
      const INDEX_T rank = (INDEX_T)next[digit[j]]++; \
      if (rank < keep) FINISH(row, rank, from, at + j) \
    } \
  }
// Work-items share out the rows; each has its own two stretches of `length` units of k_scratch.
__kernel ONE_THREAD void radix_rows(SOURCE_PARAM, INDEX_T rows, INDEX_T length, INDEX_T keep,
                                    __global UNIT_T* k_scratch ROW_PARAMS) {
  const INDEX_T worker = (INDEX_T)get_global_id(0);
  uint counts[PASSES * RADIX];
  for (INDEX_T row = worker; row < rows; row += (INDEX_T)get_global_size(0)) {
    __global UNIT_T* from = k_scratch + worker * 2 * length;
    __global UNIT_T* to = from + length;
    for (int d = 0; d < PASSES * RADIX; d++) counts[d] = 0;
    IN_BATCHES(0, length, ENTER)
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
        IN_BATCHES(0, length, LEAVE)
      } else {
        IN_BATCHES(0, length, PASS)
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
