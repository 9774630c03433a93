// Scatter of updates (count, width) into rows of (rows, width), without atomics.
//
// Every result is gathered by one work-item, so the order of its updates is
// fixed.  SCATTER_DIRECT looks at all indices; SCATTER_SORTED walks the row's
// stretch of `k_items` (row << 32 | position of the update, ascending), which
// SCATTER_STARTS finds.  So that a row with very many updates takes no long walk,
// SCATTER_PARTIALS reduces beforehand each aligned block of SPAN items that belongs
// to one row, and SCATTER_COARSE each aligned block of SPAN such blocks.
// COMBINE(u, v) joins an update v to u; SET instead keeps the last update.  Without BASED the rows
// are 0 before.
// SCATTER_PRIVATE and SCATTER_TABLES, where the order does not matter: a table for each work-item.

#if STORES_VECTORS
#define STORE_LANES(lanes_, first_) EPILOGUE_VECTOR(4, lanes_, first_)
#else
#define STORE_LANES(lanes_, first_) \
  for (int lane_ = 0; lane_ < LANES; lane_++) EPILOGUE(lanes_[lane_], first_ + lane_)
#endif
#define STORE(v_, i_) { \
    ACC_T lanes_[LANES]; \
    A_SPILL((v_), lanes_); \
    const INDEX_T first_ = (i_); \
    STORE_LANES(lanes_, first_) \
  }

#if BASED
#define BASE_PARAM const __global A_T* restrict k_base,
#define BASE(i_) A_LOAD(k_base, (i_))
#define BASE_VECTOR(i_) A_LOADV(k_base, (i_))
#else
#define BASE_PARAM
#define BASE(i_) (ACC_T)(0)
#define BASE_VECTOR(i_) (A_CV)(0)
#endif

#define ROW_OF(item_) ((uint)((item_) >> 32))
#define UPDATE(item_) A_LOADV(k_updates, (INDEX_T)(uint)(item_) * width + c)

#if COMPLEX
ACC_T kcl_cmul(ACC_T a, ACC_T b) {
  return (ACC_T)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
#endif

// Work-item id -> row, first column c.
#define PLACE(id_) \
  const INDEX_T blocks = width / LANES; \
  const INDEX_T row = (id_) / blocks, c = ((id_) - row * blocks) * LANES;

#if SCATTER_DIRECT
__kernel void scatter_direct(BASE_PARAM const __global I_T* restrict k_indices,
                             const __global A_T* restrict k_updates, INDEX_T lines, INDEX_T width,
                             int count EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  PLACE(id)
  A_CV value = BASE_VECTOR(row * width + c);
#if SET
  int last = -1;
  for (int p = 0; p < count; p++) last = (long)I_LOAD(k_indices, p) == (long)row ? p : last;
  if (last >= 0) value = UPDATE(last);
#else
  for (int p = 0; p < count; p++)
    if ((long)I_LOAD(k_indices, p) == (long)row) value = COMBINE(value, UPDATE(p));
#endif
  STORE(value, row * width + c)
}
#endif

#if SCATTER_PRIVATE
// Each work-item joins its `part` of the updates into a table of its own of k_tables, so that a
// later launch has few to join.
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void scatter_private(const __global I_T* restrict k_indices, const __global A_T* restrict k_updates,
                     __global P_T* k_tables, INDEX_T rows, INDEX_T width, int count, int part) {
  const INDEX_T id = (INDEX_T)get_global_id(0), size = rows * width;
  __global P_T* table = k_tables + id * size;
  for (INDEX_T i = 0; i < size; i++) P_STORE(table, i, NEUTRAL);
  const int first = (int)id * part, last = first + min(part, count - first);
  for (int p = first; p < last; p++) {
    const ulong row = (ulong)(long)I_LOAD(k_indices, p);
    if (row >= (ulong)rows) continue;
    for (INDEX_T c = 0; c < width; c++) {
      const INDEX_T at = (INDEX_T)row * width + c;
      const ACC_T old = P_LOAD(table, at), new = A_LOAD(k_updates, (INDEX_T)p * width + c);
      P_STORE(table, at, COMBINE(old, new));
    }
  }
}
#endif

#if SCATTER_TABLES
__kernel void scatter_tables(BASE_PARAM const __global P_T* restrict k_tables,
                             INDEX_T size, int parts EPILOGUE_PARAMS) {
  const INDEX_T at = (INDEX_T)get_global_id(0);
  ACC_T value = BASE(at);
  for (int p = 0; p < parts; p++) {
    const ACC_T more = P_LOAD(k_tables, p * size + at);
    value = COMBINE(value, more);
  }
  EPILOGUE(value, at)
}
#endif

#if SCATTER_STARTS
// k_starts[row] = the first item of `row` or beyond, for row = 0 … rows.
__kernel void scatter_starts(const __global ulong* restrict k_items, __global int* restrict k_starts,
                             INDEX_T lines, int count) {
  const INDEX_T row = (INDEX_T)get_global_id(0);
  if (row >= lines) return;
  const ulong wanted = (ulong)row << 32;
  int low = 0, high = count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (k_items[middle] < wanted) low = middle + 1; else high = middle;
  }
  k_starts[row] = low;
}
#endif

#if SCATTER_PARTIALS || SCATTER_COARSE
// Of `extent` items each: reduces block after block of SPAN finer values, k_finer being the updates
// (by item) or the finer partial results.
__kernel void scatter_partials(const __global ulong* restrict k_items,
#if SCATTER_COARSE
                               const __global P_T* restrict k_finer,
#else
                               const __global A_T* restrict k_updates,
#endif
                               __global P_T* restrict k_partials, INDEX_T lines, INDEX_T width,
                               int extent) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  PLACE(id)
  const __global ulong* items = k_items + row * extent;
  if (ROW_OF(items[0]) != ROW_OF(items[extent - 1]) || ROW_OF(items[0]) == UINT_MAX) return;
#if SCATTER_COARSE
#define FINER(p_) P_LOADV(k_finer, (row * SPAN + (p_)) * width + c)
#else
#define FINER(p_) UPDATE(items[p_])
#endif
  A_CV value = FINER(0);
  for (int p = 1; p < SPAN; p++) value = COMBINE(value, FINER(p));
  ACC_T lanes[LANES];
  A_SPILL(value, lanes);
  for (int lane = 0; lane < LANES; lane++) P_STORE(k_partials, row * width + c + lane, lanes[lane]);
}
#endif

#if SCATTER_SORTED || SCATTER_RUNS
#define COARSE (SPAN * SPAN)
#define COARSE_AT(p_) P_LOADV(k_coarse, (INDEX_T)((p_) / COARSE) * width + c)
#if LEVELS > 0
#define PARTIALS_PARAM const __global P_T* restrict k_partials,
#else
#define PARTIALS_PARAM
#endif
#if LEVELS > 1
#define COARSE_PARAM const __global P_T* restrict k_coarse,
#else
#define COARSE_PARAM
#endif

// What LANES columns from c of row * width + c become, whose updates are the items `from` to `end`.
inline A_CV scatter_row(BASE_PARAM const __global ulong* restrict k_items,
                        const __global A_T* restrict k_updates, PARTIALS_PARAM COARSE_PARAM
                        INDEX_T at, INDEX_T c, INDEX_T width, int from, int end) {
  A_CV value = BASE_VECTOR(at);
  int p = from;
#if SET
  if (p < end) value = UPDATE(k_items[end - 1]);
#else
  while (p < end) {
    int stop = end;
#if LEVELS > 1
    // Coarse blocks are joined in runs of SPAN, and those likewise: rounding loses in proportion
    // to the length of a run.
    if (p % COARSE == 0 && p + COARSE <= end) {
      const int last = p + (end - p) / COARSE * COARSE;
      while (p < last) {
        const int farEnd = last - p < COARSE * SPAN * SPAN ? last : p + COARSE * SPAN * SPAN;
        A_CV far = COARSE_AT(p);
        p += COARSE;
        while (p < farEnd) {
          const int nearEnd = farEnd - p < COARSE * SPAN ? farEnd : p + COARSE * SPAN;
          A_CV near = COARSE_AT(p);
          for (p += COARSE; p < nearEnd; p += COARSE) near = COMBINE(near, COARSE_AT(p));
          far = COMBINE(far, near);
        }
        value = COMBINE(value, far);
      }
      continue;
    }
#endif
#if LEVELS > 0
    if (p % SPAN == 0 && p + SPAN <= end) {
      value = COMBINE(value, P_LOADV(k_partials, (INDEX_T)(p / SPAN) * width + c));
      p += SPAN;
      continue;
    }
    stop = min(end, (p / SPAN + 1) * SPAN);
#endif
    // Four at a time, so that their loads are under way together.
    for (; p + 4 <= stop; p += 4) {
      const A_CV u0 = UPDATE(k_items[p]), u1 = UPDATE(k_items[p + 1]);
      const A_CV u2 = UPDATE(k_items[p + 2]), u3 = UPDATE(k_items[p + 3]);
      value = COMBINE(value, u0);
      value = COMBINE(value, u1);
      value = COMBINE(value, u2);
      value = COMBINE(value, u3);
    }
    for (; p < stop; p++) {
      const A_CV u = UPDATE(k_items[p]);
      value = COMBINE(value, u);
    }
  }
#endif
  return value;
}
#if BASED
#define BASE_ARG k_base,
#else
#define BASE_ARG
#endif
#if LEVELS > 1
#define PARTIALS_ARGS k_partials, k_coarse,
#elif LEVELS > 0
#define PARTIALS_ARGS k_partials,
#else
#define PARTIALS_ARGS
#endif
#define ROW_VALUE(at_, c_, from_, end_) \
  scatter_row(BASE_ARG k_items, k_updates, PARTIALS_ARGS (at_), (c_), width, (from_), (end_))
#endif

#if SCATTER_SORTED
__kernel void scatter_sorted(BASE_PARAM const __global ulong* restrict k_items,
                             const __global int* restrict k_starts,
                             const __global A_T* restrict k_updates, PARTIALS_PARAM COARSE_PARAM
                             INDEX_T lines, INDEX_T width EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  PLACE(id)
  const A_CV value = ROW_VALUE(row * width + c, c, k_starts[row], k_starts[row + 1]);
  STORE(value, row * width + c)
}
#endif

#if SCATTER_RUNS
// `run` of the rows to a work-item, which finds their first item and then goes from one row with
// updates to the next.  The rows between are one loop, in vectors where the epilogue has them, else
// in those that compilers make.
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void scatter_runs(BASE_PARAM const __global ulong* restrict k_items,
                  const __global A_T* restrict k_updates, PARTIALS_PARAM COARSE_PARAM
                  INDEX_T rows, INDEX_T width, int count, INDEX_T run EPILOGUE_PARAMS) {
  INDEX_T row = (INDEX_T)get_global_id(0) * run;
  const INDEX_T last = row + min(run, rows - row);
  int p = 0;
  for (int high = count; p < high;) {
    const int middle = p + (high - p) / 2;
    if (k_items[middle] < (ulong)row << 32) p = middle + 1; else high = middle;
  }
  while (row < last) {
    const ulong found = p < count ? k_items[p] >> 32 : (ulong)last;
    const INDEX_T next = found < (ulong)last ? (INDEX_T)found : last, stop = next * width;
    INDEX_T i = row * width;
#if !BASED && defined(EPILOGUE_LANES)
    for (; stop - i >= EPILOGUE_WIDTH; i += EPILOGUE_WIDTH) EPILOGUE_LANES(0, i)
#endif
    _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
    for (INDEX_T i_ = i; i_ < stop; ++i_) EPILOGUE((ACC_T)BASE(i_), i_)
    if (next == last) break;
    row = next;
    int end = p + 1;
    while (end < count && ROW_OF(k_items[end]) == ROW_OF(k_items[p])) ++end;
    for (INDEX_T c = 0; c < width; c += LANES) {
      const A_CV value = ROW_VALUE(row * width + c, c, p, end);
      STORE(value, row * width + c)
    }
    p = end;
    ++row;
  }
}
#endif
