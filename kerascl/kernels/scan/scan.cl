// Cumulative operations along the middle axis of (outer, length, inner), and binary search.
//
// A row (one outer, one inner index) is cut into `blocks` blocks of `block`
// elements.  scan_totals_* reduces each block to k_totals[(o * blocks + b) *
// inner + in]; scan_rows_*, given those totals scanned exclusively, writes the results.
// *_serial: a work-item for each block.  *_group: a work-group of GROUP for each block.
// COMBINE(a, b), IDENTITY, EXCLUSIVE, REVERSE, CARRY, GROUP, ITEMS are macros.
//
// NESTED, for what rounds: elements go into sums of NEST elements, those into sums of NEST sums, and
// so on, so that what rounding loses is in proportion to the number of levels.  A result is what came
// before its block joined with the sum inside the block.

#if LOGSUMEXP
ACC_T kcl_logaddexp(ACC_T a, ACC_T b) {
  if (a != a || b != b) return a + b;
  const ACC_T top = fmax(a, b), low = fmin(a, b);
  if (low == -INFINITY || top == INFINITY) return top;
  return top + log1p(exp(low - top));
}
#endif

#if COMPLEX
ACC_T kcl_cmul(ACC_T a, ACC_T b) {
  return (ACC_T)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
#endif

#if SCAN_SERIAL || SCAN_GROUP
ACC_T scan_join(ACC_T a, ACC_T b) { return COMBINE(a, b); }
#endif

#if NESTED
#define NEST 32
// Sums of NEST blocks, of NEST of those, …; what lies before is the join of all.
#define NEST_DECLARE(first_) \
  ACC_T n1_ = IDENTITY, n2_ = IDENTITY, n3_ = IDENTITY, n4_ = (first_); \
  uint blocks_ = 0;
#define NEST_BEFORE scan_join(n4_, scan_join(n3_, scan_join(n2_, n1_)))
#define NEST_TAKE(sum_) { \
    n1_ = scan_join(n1_, (sum_)); \
    if (++blocks_ % NEST == 0) { \
      n2_ = scan_join(n2_, n1_); n1_ = IDENTITY; \
      if (blocks_ % (NEST * NEST) == 0) { \
        n3_ = scan_join(n3_, n2_); n2_ = IDENTITY; \
        if (blocks_ % (NEST * NEST * NEST) == 0) { n4_ = scan_join(n4_, n3_); n3_ = IDENTITY; } \
      } \
    } \
  }
#else
#define NEST length
#define NEST_DECLARE(first_) ACC_T n1_ = (first_);
#define NEST_BEFORE n1_
#define NEST_TAKE(sum_) n1_ = scan_join(n1_, (sum_));
#endif

// Linear index of the p-th element, in scan order, of a row.
#if REVERSE
#define PLACE(p_) ((o * length + (length - 1 - (p_))) * inner + in)
#else
#define PLACE(p_) ((o * length + (p_)) * inner + in)
#endif

#define BLOCK_OF(id_) \
  const INDEX_T in = (INDEX_T)((id_) % inner); \
  const INDEX_T rest_ = (INDEX_T)((id_) / inner); \
  const INDEX_T b = rest_ % blocks, o = rest_ / blocks; \
  const INDEX_T start = b * block, stop = min(start + block, length);

#if SCAN_SERIAL
#if SCAN_TOTALS
__kernel void scan_totals_serial(const __global A_T* restrict k_a, __global ACC_T* restrict k_totals,
                                 INDEX_T lines, INDEX_T length, INDEX_T inner, INDEX_T block,
                                 INDEX_T blocks) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  BLOCK_OF(id)
  NEST_DECLARE(IDENTITY)
  for (INDEX_T p = start; p < stop;) {
    const INDEX_T end = stop - p < NEST ? stop : p + NEST;
    ACC_T sum = IDENTITY;
    for (; p < end; p++) sum = scan_join(sum, (ACC_T)(A_LOAD(k_a, PLACE(p))));
    NEST_TAKE(sum)
  }
  k_totals[id] = NEST_BEFORE;
}
#else
__kernel void scan_rows_serial(const __global A_T* restrict k_a,
#if CARRY
                               const __global ACC_T* restrict k_carry,
#endif
                               INDEX_T lines, INDEX_T length, INDEX_T inner, INDEX_T block,
                               INDEX_T blocks EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  BLOCK_OF(id)
#if CARRY
  NEST_DECLARE(k_carry[id])
#else
  NEST_DECLARE(IDENTITY)
#endif
#if NESTED
  for (INDEX_T p = start; p < stop;) {
    const INDEX_T end = stop - p < NEST ? stop : p + NEST;
    const ACC_T before = NEST_BEFORE;
    ACC_T sum = IDENTITY;
#define RESULT(sum_) scan_join(before, (sum_))
#else
  {
    INDEX_T p = start;
    const INDEX_T end = stop;
    ACC_T sum = n1_;
#define RESULT(sum_) (sum_)
#endif
    for (; p < end; p++) {
      const INDEX_T at = PLACE(p);
      const ACC_T next = scan_join(sum, (ACC_T)(A_LOAD(k_a, at)));
#if EXCLUSIVE
      EPILOGUE(RESULT(sum), at)
#else
      EPILOGUE(RESULT(next), at)
#endif
      sum = next;
    }
#if NESTED
    NEST_TAKE(sum)
#endif
  }
}
#endif
#endif

#if SCAN_GROUP
#define TILE (GROUP * ITEMS)
// A gap every 32 elements keeps the work-items' runs in different banks.
#define SLOT(p_) ((p_) + ((p_) >> 5))

// Exclusive scan of one value for each work-item; `*total` is the combination of all.  `sums` has
// room for two values of each: what a step reads and what it writes, so that one barrier is enough.
ACC_T scan_group_exclusive(__local ACC_T* sums, ACC_T mine, ACC_T* total) {
  const int lid = (int)get_local_id(0);
  int from = 0;
  sums[lid] = mine;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = 1; step < GROUP; step <<= 1) {
    if (lid >= step) mine = scan_join(sums[from + lid - step], mine);
    from = GROUP - from;
    sums[from + lid] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = sums[from + GROUP - 1];
  const ACC_T prefix = lid ? sums[from + lid - 1] : IDENTITY;
  barrier(CLK_LOCAL_MEM_FENCE);
  return prefix;
}

#if SCAN_TOTALS
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void scan_totals_group(const __global A_T* restrict k_a, __global ACC_T* restrict k_totals,
                       INDEX_T lines, INDEX_T length, INDEX_T inner, INDEX_T block,
                       INDEX_T blocks) {
  __local ACC_T sums[GROUP];
  const int lid = (int)get_local_id(0);
  const INDEX_T id = (INDEX_T)get_group_id(0);
  BLOCK_OF(id)
  NEST_DECLARE(IDENTITY)
  for (INDEX_T p = start + lid; p < stop;) {
    const INDEX_T end = (stop - p) / GROUP < NEST ? stop : p + (INDEX_T)NEST * GROUP;
    ACC_T sum = IDENTITY;
    for (; p < end; p += GROUP) sum = scan_join(sum, (ACC_T)(A_LOAD(k_a, PLACE(p))));
    NEST_TAKE(sum)
  }
  sums[lid] = NEST_BEFORE;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = GROUP / 2; half_ > 0; half_ >>= 1) {
    if (lid < half_) sums[lid] = scan_join(sums[lid], sums[lid + half_]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lid == 0) k_totals[id] = sums[0];
}
#else
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void scan_rows_group(const __global A_T* restrict k_a,
#if CARRY
                     const __global ACC_T* restrict k_carry,
#endif
                     INDEX_T lines, INDEX_T length, INDEX_T inner, INDEX_T block,
                     INDEX_T blocks EPILOGUE_PARAMS) {
  __local ACC_T tile[TILE + TILE / 32];
  __local ACC_T sums[2 * GROUP];
  const int lid = (int)get_local_id(0);
  const INDEX_T id = (INDEX_T)get_group_id(0);
  BLOCK_OF(id)
#if CARRY
  NEST_DECLARE(k_carry[id])
#else
  NEST_DECLARE(IDENTITY)
#endif
  for (INDEX_T first = start; first < stop; first += TILE) {
    for (int q = lid; q < TILE; q += GROUP) {
      const INDEX_T p = first + q;
      ACC_T value = IDENTITY;
      if (p < stop) value = (ACC_T)(A_LOAD(k_a, PLACE(p)));
      tile[SLOT(q)] = value;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    ACC_T sum = IDENTITY;
    for (int q = 0; q < ITEMS; q++) sum = scan_join(sum, tile[SLOT(lid * ITEMS + q)]);
    ACC_T total;
    const ACC_T before = scan_join(NEST_BEFORE, scan_group_exclusive(sums, sum, &total));
    sum = IDENTITY;
    for (int q = 0; q < ITEMS; q++) {
      const int slot = SLOT(lid * ITEMS + q);
      const ACC_T next = scan_join(sum, tile[slot]);
#if EXCLUSIVE
      tile[slot] = scan_join(before, sum);
#else
      tile[slot] = scan_join(before, next);
#endif
      sum = next;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int q = lid; q < TILE; q += GROUP) {
      const INDEX_T p = first + q;
      if (p < stop) EPILOGUE(tile[SLOT(q)], PLACE(p))
    }
    NEST_TAKE(total)
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
#endif
#endif

#if SEARCH
// NaN is the largest value, as in NumPy.
#if SIDE_RIGHT
#define AFTER(probe_) (((probe_) <= value) | is_nan)
#else
#define AFTER(probe_) (((probe_) < value) | (is_nan & ((probe_) == (probe_))))
#endif
// `widest`: the largest power of two up to `length`.  All work-items take the same steps, without
// branches, so that compilers make vectors of them.
__kernel void search_sorted(const __global A_T* restrict k_a, const __global A_T* restrict k_b,
                            INDEX_T lines, INDEX_T length, INDEX_T count,
                            INDEX_T widest EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
#if ONE_ROW
  const INDEX_T base = 0;
#else
  const INDEX_T base = (id / count) * length;
#endif
  const A_C value = A_LOAD(k_b, id);
  const int is_nan = value != value;
  INDEX_T low = 0;
  for (INDEX_T step = widest; step > 0; step >>= 1) {
    const INDEX_T next = low + step;
    const A_C probe = A_LOAD(k_a, base + min(next, length) - 1);
    low = (next <= length) & AFTER(probe) ? next : low;
  }
  EPILOGUE((ACC_T)low, id)
}
#endif

#if PLACES
// k_a: rows of counts that never fall.  The first count over k is at the place of result k.  The
// results that no count is over are shared out as the counts are.
__kernel void places(const __global A_T* restrict k_a, INDEX_T counts, INDEX_T run, INDEX_T length,
                     INDEX_T size EPILOGUE_PARAMS) {
  const INDEX_T first = (INDEX_T)get_global_id(0) * run, last = min(first + run, counts);
  for (INDEX_T at = first; at < last;) {
    const INDEX_T row = at / length, end = min(last, (row + 1) * length);
    INDEX_T p = at - row * length;
    INDEX_T none = max(p, min((INDEX_T)A_LOAD(k_a, (row + 1) * length - 1), size));
    INDEX_T k = p ? min((INDEX_T)A_LOAD(k_a, at - 1), size) : 0;
#if TOGETHER
    // Where counts grow at random, a branch for each is mispredicted: places are noted without any,
    // then written.  A block in which a count grows by more than 1 is left to the loop after it.
    while (end - at >= TOGETHER) {
      int noted[TOGETHER], found = 0, jumps = 0;
      INDEX_T before = k;
      for (int j = 0; j < TOGETHER; j++) {
        const INDEX_T over = min((INDEX_T)A_LOAD(k_a, at + j), size);
        noted[found] = j;
        found += over > before;
        jumps |= over > before + 1;
        before = over;
      }
      if (jumps) break;
      for (int j = 0; j < found; j++) EPILOGUE((ACC_T)(p + noted[j]), row * size + k + j)
      k += found;
      at += TOGETHER;
      p += TOGETHER;
    }
#endif
    for (; at < end; at++, p++)
      for (const INDEX_T over = min((INDEX_T)A_LOAD(k_a, at), size); k < over; k++)
        EPILOGUE((ACC_T)p, row * size + k)
    for (const INDEX_T stop = p == length ? size : min(p, size); none < stop; none++)
      EPILOGUE((ACC_T)length, row * size + none)
  }
}
#endif
