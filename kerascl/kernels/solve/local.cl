// Linear systems a @ x = b: a work-group has a whole matrix and a chunk of its right sides in local
// memory, and eliminates with exchanges of rows.  Rows stay where they are: `stands` says where each
// would stand had LAPACK exchanged them, so that of equal sizes the same is the pivot.
//
// GROUP work-items, SIDE of them along a row; LANES look for the pivot.

#define LANES 16
#define ROWS (GROUP / SIDE)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void lu_local(
    const __global A_T* restrict k_a, const __global A_T* restrict k_b, INDEX_T n, INDEX_T columns,
    INDEX_T chunk, INDEX_T chunks, int pitch, int bits, __local A_T* m,
    __local int* numbers EPILOGUE_PARAMS) {
  __local A_T sizes[LANES];
  __local int rows[LANES], places[LANES];
  __local int *stands = numbers, *taken = numbers + n, *order = numbers + 2 * n;
  const INDEX_T id = (INDEX_T)get_group_id(0), matrix = id / chunks;
  const INDEX_T first = (id - matrix * chunks) * chunk;
  const int live = (int)min(chunk, columns - first), end = (int)n, width = end + live;
  const int me = (int)get_local_id(0), column = me % SIDE, row = me / SIDE;
  for (int r = row; r < end; r += ROWS) {
    const __global A_T *a = k_a + (matrix * n + r) * n, *b = k_b + (matrix * n + r) * columns + first;
    for (int c = column; c < end; c += SIDE) m[r * pitch + c] = a[c];
    for (int c = column; c < live; c += SIDE) m[r * pitch + end + c] = b[c];
  }
  for (int r = me; r < end; r += GROUP) {
    stands[r] = r;
    taken[r] = 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);

  int place = 0;  // where the last pivot stood
  for (int k = 0; k < end; k++) {
    if (me < LANES) {
      A_T best = 0;
      int found = -1, at = 0;
      for (int r = me; r < end; r += LANES) {
        int stand = stands[r];
        if (k > 0 && (stand == k - 1 || stand == place)) {  // the last exchange
          stand = stand == place ? k - 1 : place;
          stands[r] = stand;
        }
        if (stand < k) continue;
        const A_T size = fabs(m[r * pitch + k]);
        if (found < 0 || size > best || (size == best && stand < at)) {
          best = size;
          found = r;
          at = stand;
        }
      }
      sizes[me] = best;
      rows[me] = found;
      places[me] = at;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    A_T best = 0;
    int pivot = -1;
    for (int lane = 0; lane < LANES; lane++) {
      const bool larger = sizes[lane] > best || (sizes[lane] == best && places[lane] < place);
      if (rows[lane] >= 0 && (pivot < 0 || larger)) {
        best = sizes[lane];
        pivot = rows[lane];
        place = places[lane];
      }
    }
    if (me == 0) {
      order[k] = pivot;
      taken[pivot] = 1;
    }
    const __local A_T* top = m + pivot * pitch;
    const A_T divisor = top[k];
    for (int r = row; r < end; r += ROWS) {
      if (r == pivot || taken[r]) continue;
      const A_T factor = m[r * pitch + k] / divisor;
      for (int c = k + 1 + column; c < width; c += SIDE) m[r * pitch + c] -= factor * top[c];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  // 1 << bits work-items along a row of right sides
  const int across = 1 << bits, down = GROUP >> bits, over = me & (across - 1), below = me >> bits;
  for (int k = end - 1; k > 0; k--) {
    const int at = order[k] * pitch;
    for (int c = over; c < live; c += across) {
      const A_T x = m[at + end + c] / m[at + k];
      for (int r = below; r < k; r += down) m[order[r] * pitch + end + c] -= m[order[r] * pitch + k] * x;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int r = below; r < end; r += down) {
    const int at = order[r] * pitch;
    for (int c = over; c < live; c += across)
      EPILOGUE(m[at + end + c] / m[at + r], (matrix * n + r) * columns + first + c)
  }
}
