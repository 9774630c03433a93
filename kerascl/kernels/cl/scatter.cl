// Scatter of updates (count, width) into rows of (rows, width), without atomics.
//
// Every result is gathered by one work-item, so the order of its updates is
// fixed.  SCATTER_DIRECT looks at all indices; SCATTER_SORTED walks the row's
// stretch of `k_items` (row << 32 | position of the update, ascending), which
// SCATTER_STARTS finds; SCATTER_PARTIALS reduces beforehand the blocks of `span` items
// that belong to one row, so that a row with very many updates takes no long walk.
// COMBINE(u, v) joins an update v to u; SET instead keeps the last update.

#define STORE(v_, i_) { \
    ACC_T lanes_[LANES]; \
    A_SPILL((v_), lanes_); \
    const INDEX_T first_ = (i_); \
    for (int lane_ = 0; lane_ < LANES; lane_++) EPILOGUE(lanes_[lane_], first_ + lane_) \
  }

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
__kernel void scatter_direct(const __global A_T* restrict k_base, const __global I_T* restrict k_indices,
                             const __global A_T* restrict k_updates, INDEX_T lines, INDEX_T width,
                             int count EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  PLACE(id)
  A_CV value = A_LOADV(k_base, row * width + c);
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

#if SCATTER_PARTIALS
__kernel void scatter_partials(const __global ulong* restrict k_items,
                               const __global A_T* restrict k_updates,
                               __global P_T* restrict k_partials, INDEX_T lines, INDEX_T width,
                               int span) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  PLACE(id)
  const __global ulong* items = k_items + row * span;
  if (ROW_OF(items[0]) != ROW_OF(items[span - 1]) || ROW_OF(items[0]) == UINT_MAX) return;
  A_CV value = UPDATE(items[0]);
  for (int p = 1; p < span; p++) value = COMBINE(value, UPDATE(items[p]));
  ACC_T lanes[LANES];
  A_SPILL(value, lanes);
  for (int lane = 0; lane < LANES; lane++) P_STORE(k_partials, row * width + c + lane, lanes[lane]);
}
#endif

#if SCATTER_SORTED
__kernel void scatter_sorted(const __global A_T* restrict k_base, const __global ulong* restrict k_items,
                             const __global int* restrict k_starts,
                             const __global A_T* restrict k_updates,
#if PARTIALS
                             const __global P_T* restrict k_partials, int span,
#endif
                             INDEX_T lines, INDEX_T width EPILOGUE_PARAMS) {
  const INDEX_T id = (INDEX_T)get_global_id(0);
  if (id >= lines) return;
  PLACE(id)
  A_CV value = A_LOADV(k_base, row * width + c);
  int p = k_starts[row];
  const int end = k_starts[row + 1];
#if SET
  if (p < end) value = UPDATE(k_items[end - 1]);
#else
  while (p < end) {
#if PARTIALS
    if ((p & (span - 1)) == 0 && p + span <= end) {
      value = COMBINE(value, P_LOADV(k_partials, (INDEX_T)(p / span) * width + c));
      p += span;
      continue;
    }
#endif
    value = COMBINE(value, UPDATE(k_items[p]));
    p++;
  }
#endif
  STORE(value, row * width + c)
}
#endif
