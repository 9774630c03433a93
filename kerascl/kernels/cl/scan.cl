// Cumulative operations along the middle axis of (outer, length, inner), and binary search.
//
// A row (one outer, one inner index) is cut into `blocks` blocks of `block`
// elements.  scan_totals_* reduces each block to k_totals[(o * blocks + b) *
// inner + in]; scan_rows_*, given those totals scanned exclusively, writes the results.
// *_serial: a work-item for each block.  *_group: a work-group of GROUP for each block.
// COMBINE(a, b), IDENTITY, EXCLUSIVE, REVERSE, CARRY, GROUP, ITEMS are macros.

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
  ACC_T sum = IDENTITY;
  for (INDEX_T p = start; p < stop; p++) sum = scan_join(sum, (ACC_T)(A_LOAD(k_a, PLACE(p))));
  k_totals[id] = sum;
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
  ACC_T sum = k_carry[id];
#else
  ACC_T sum = IDENTITY;
#endif
  for (INDEX_T p = start; p < stop; p++) {
    const INDEX_T at = PLACE(p);
    const ACC_T next = scan_join(sum, (ACC_T)(A_LOAD(k_a, at)));
#if EXCLUSIVE
    EPILOGUE(sum, at)
#else
    EPILOGUE(next, at)
#endif
    sum = next;
  }
}
#endif
#endif

#if SCAN_GROUP
#define TILE (GROUP * ITEMS)
// A gap every 32 elements keeps the work-items' runs in different banks.
#define SLOT(p_) ((p_) + ((p_) >> 5))

// Exclusive scan of one value for each work-item; `*total` is the combination of all.
ACC_T scan_group_exclusive(__local ACC_T* sums, ACC_T mine, ACC_T* total) {
  const int lid = (int)get_local_id(0);
  sums[lid] = mine;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = 1; step < GROUP; step <<= 1) {
    const ACC_T before = lid >= step ? sums[lid - step] : IDENTITY;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid >= step) sums[lid] = scan_join(before, sums[lid]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = sums[GROUP - 1];
  const ACC_T prefix = lid ? sums[lid - 1] : IDENTITY;
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
  ACC_T sum = IDENTITY;
  for (INDEX_T p = start + lid; p < stop; p += GROUP) sum = scan_join(sum, (ACC_T)(A_LOAD(k_a, PLACE(p))));
  sums[lid] = sum;
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
  __local ACC_T sums[GROUP];
  const int lid = (int)get_local_id(0);
  const INDEX_T id = (INDEX_T)get_group_id(0);
  BLOCK_OF(id)
#if CARRY
  ACC_T carry = k_carry[id];
#else
  ACC_T carry = IDENTITY;
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
    sum = scan_join(carry, scan_group_exclusive(sums, sum, &total));
    for (int q = 0; q < ITEMS; q++) {
      const int slot = SLOT(lid * ITEMS + q);
      const ACC_T next = scan_join(sum, tile[slot]);
#if EXCLUSIVE
      tile[slot] = sum;
#else
      tile[slot] = next;
#endif
      sum = next;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int q = lid; q < TILE; q += GROUP) {
      const INDEX_T p = first + q;
      if (p < stop) EPILOGUE(tile[SLOT(q)], PLACE(p))
    }
    carry = scan_join(carry, total);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
#endif
#endif

#if SEARCH
// NaN is the largest value, as in NumPy.
#define BEFORE(u_, v_) (((u_) < (v_)) || ((v_) != (v_) && (u_) == (u_)))
__kernel void search_sorted(const __global A_T* restrict k_a, const __global A_T* restrict k_b,
                            INDEX_T lines, INDEX_T length, INDEX_T count EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  const INDEX_T base = (id / count) * length;
  const A_C value = A_LOAD(k_b, id);
  INDEX_T low = 0, high = length;
  while (low < high) {
    const INDEX_T middle = low + (high - low) / 2;
    const A_C probe = A_LOAD(k_a, base + middle);
#if SIDE_RIGHT
    const bool after = !BEFORE(value, probe);
#else
    const bool after = BEFORE(probe, value);
#endif
    if (after) low = middle + 1; else high = middle;
  }
  EPILOGUE((ACC_T)low, id)
}
#endif
