// Linear systems a @ x = b by blocks of NB columns of [a b], from the left (right-looking LU):
//
// lu_step: what the last panel's factors do to all columns behind it.  The first work-group of a
// matrix does so to the next panel, its rows in registers, and factors that; the others have tiles.
// lu_back: U @ x = y from the last row up, a few columns of y a work-group.
//
// Rows of k_rest (the first time: of a and b) stay where they are; k_order says which row stands at
// a place, had LAPACK exchanged them.  k_upper has finished rows of U and y in order, k_lower the
// factors of a panel by place.  What a launch reads of k_lower and k_order it does not write: there
// are two of each, and panels alternate.
//
// GROUP work-items, HELD rows of a panel each.

#define UNROLL _Pragma("unroll")

#if LU_STEP
#define TALL (GROUP / 16 * 4)  // rows and columns of a tile: a work-item has 4 x 4 of it
#define WIDE 64
#define LANES 16
#if IN_REGISTERS
#define EACH_HELD UNROLL for (int q = 0; q < HELD; q++)
#else
#define EACH_HELD _Pragma("nounroll") for (int q = 0; q < HELD; q++)
#endif
#define GIVEN(row_, column_) \
  (start > NB ? rest[(row_) * width + (column_)] \
   : (column_) < n ? k_a[(matrix * n + (row_)) * n + (column_)] \
                   : k_b[(matrix * n + (row_)) * columns + (column_) - n])

// `start` columns are eliminated but for what the panel before it still has to do.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void lu_step(
    const __global A_T* restrict k_a, const __global A_T* restrict k_b, __global A_T* k_rest,
    __global A_T* k_upper, __global A_T* k_lower, __global int* k_order, INDEX_T n, INDEX_T columns,
    INDEX_T start, INDEX_T parts, INDEX_T across) {
  __local A_T upper_tile[NB * WIDE], lower_tile[TALL * (NB + 1)], corner[NB * NB];
  __local A_T sizes[GROUP], most[LANES], row_of_pivot[NB];
  __local INDEX_T places[GROUP], most_at[LANES];
  const INDEX_T id = (INDEX_T)get_group_id(0), matrix = id / parts, part = id - matrix * parts;
  const INDEX_T width = n + columns, done = start - NB, now = start / NB % 2;
  const int me = (int)get_local_id(0);
  const bool leads = start < n && part == 0;
  __global A_T *rest = k_rest + matrix * n * width, *upper = k_upper + matrix * n * width;
  __global A_T *lower = k_lower + 2 * matrix * n * NB, *lower_now = lower + now * n * NB;
  __global int *order = k_order + 2 * matrix * n, *order_now = order + now * n;
  lower += (1 - now) * n * NB;
  order += (1 - now) * n;

  // this work-group's columns, and the first of its places in their rows below
  const INDEX_T tile = start < n ? part - 1 : part, down = leads ? 0 : tile / across;
  const INDEX_T left = leads ? start : min(start + NB, n) + (tile - down * across) * WIDE;
  const INDEX_T right = leads ? min(start + NB, n) : min(left + WIDE, width);
  if (start > 0) {  // their rows of U, by all work-groups below each other
    for (int e = me; e < NB * WIDE; e += GROUP) {
      const INDEX_T place = done + e / WIDE, c = left + e % WIDE;
      upper_tile[e] = place < n && c < right ? GIVEN((INDEX_T)order[place], c) : (A_T)0;
    }
    for (int e = me; e < NB * NB; e += GROUP) {  // column by column, each from its diagonal on
      const int c = e / NB, r = c + e % NB;
      corner[e] = r < NB && done + r < n ? lower[(done + r) * NB + c] : (A_T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int c = me; c < WIDE; c += GROUP) {
      A_T y[NB];
      UNROLL for (int r = 0; r < NB; r++) y[r] = upper_tile[r * WIDE + c];
      for (int s = 0; s < NB; s++) {  // the first is known, the others move up
        const A_T known = y[0];
        upper_tile[s * WIDE + c] = known;
        UNROLL for (int r = 1; r < NB; r++) y[r - 1] = y[r] - corner[s * NB + r] * known;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (down == 0)
      for (int e = me; e < NB * WIDE; e += GROUP) {
        const INDEX_T place = done + e / WIDE, c = left + e % WIDE;
        if (place < n && c < right) upper[place * width + c] = upper_tile[e];
      }
  }

  if (!leads) {
    const INDEX_T first = start + down * TALL;
    for (int e = me; e < TALL * NB; e += GROUP) {
      const INDEX_T place = first + e / NB;
      lower_tile[e / NB * (NB + 1) + e % NB] = place < n ? lower[place * NB + e % NB] : (A_T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int c0 = me % 16, r0 = me / 16;
    A_T acc[4][4];
    UNROLL for (int q = 0; q < 4; q++) {
      UNROLL for (int e = 0; e < 4; e++) acc[q][e] = 0;
    }
    for (int k = 0; k < NB; k++) {
      A_T x[4], y[4];
      UNROLL for (int q = 0; q < 4; q++) x[q] = lower_tile[(r0 + q * (GROUP / 16)) * (NB + 1) + k];
      UNROLL for (int e = 0; e < 4; e++) y[e] = upper_tile[k * WIDE + c0 + 16 * e];
      UNROLL for (int q = 0; q < 4; q++) {
        UNROLL for (int e = 0; e < 4; e++) acc[q][e] += x[q] * y[e];
      }
    }
    UNROLL for (int q = 0; q < 4; q++) {
      const INDEX_T place = first + r0 + q * (GROUP / 16);
      if (place < n) {
        const INDEX_T row = order[place];
        UNROLL for (int e = 0; e < 4; e++) {
          const INDEX_T c = left + c0 + 16 * e;
          if (c < right) rest[row * width + c] = GIVEN(row, c) - acc[q][e];
        }
      }
    }
    return;
  }

  // A panel: column 0 of `p` is the one to eliminate; the others move up, and factors come behind.
  A_T p[HELD][NB];
  INDEX_T place[HELD], row[HELD];
  EACH_HELD {
    place[q] = start + me + q * GROUP;
    row[q] = place[q];
    if (start > 0 && place[q] < n) row[q] = order[place[q]];
    UNROLL for (int c = 0; c < NB; c++)
      p[q][c] = place[q] < n && start + c < n ? GIVEN(row[q], start + c) : (A_T)0;
    if (start > 0 && place[q] < n)
      for (int k = 0; k < NB; k++) {
        const A_T factor = lower[place[q] * NB + k];
        UNROLL for (int c = 0; c < NB; c++) p[q][c] -= factor * upper_tile[k * WIDE + c];
      }
  }
  for (int step = 0; step < NB; step++) {
    const INDEX_T at = start + step;
    INDEX_T pivot = at;
    if (at < n) {
      A_T best = 0;
      INDEX_T found = -1;
      EACH_HELD {
        const A_T size = fabs(p[q][0]);
        const bool larger = found < 0 || size > best || (size == best && place[q] < found);
        if (place[q] >= at && place[q] < n && larger) {
          best = size;
          found = place[q];
        }
      }
      sizes[me] = best;
      places[me] = found;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (me < LANES) {
        best = 0;
        found = -1;
        for (int e = me; e < GROUP; e += LANES) {
          const bool larger = sizes[e] > best || (sizes[e] == best && places[e] < found);
          if (places[e] >= 0 && (found < 0 || larger)) {
            best = sizes[e];
            found = places[e];
          }
        }
        most[me] = best;
        most_at[me] = found;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      best = 0;
      found = -1;
      for (int e = 0; e < LANES; e++) {
        const bool larger = most[e] > best || (most[e] == best && most_at[e] < found);
        if (most_at[e] >= 0 && (found < 0 || larger)) {
          best = most[e];
          found = most_at[e];
        }
      }
      EACH_HELD {
        if (place[q] == found) {
          UNROLL for (int c = 0; c < NB; c++) row_of_pivot[c] = c < NB - step ? p[q][c] : (A_T)0;
        }
      }
      pivot = found;
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int c = me; c < NB - step; c += GROUP)
        if (at + c < n) upper[at * width + at + c] = row_of_pivot[c];
    }
    EACH_HELD {
      const INDEX_T stood = place[q];
      place[q] = stood == pivot ? at : stood == at ? pivot : stood;
      A_T factor = 0;
      if (at < n && place[q] > at && place[q] < n) factor = p[q][0] / row_of_pivot[0];
      UNROLL for (int c = 1; c < NB; c++) p[q][c - 1] = p[q][c] - factor * row_of_pivot[c];
      p[q][NB - 1] = factor;
    }
  }
  EACH_HELD {
    if (place[q] < n) {
      order_now[place[q]] = (int)row[q];
      UNROLL for (int c = 0; c < NB; c++) lower_now[place[q] * NB + c] = p[q][c];
    }
  }
}
#endif

#if LU_BACK
#define ROWS (GROUP / 16)   // of x that are found at a time
#define SHARES (16 / ACROSS)  // work-items share a sum; ACROSS columns a work-group

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void lu_back(
    __global A_T* k_upper, INDEX_T n, INDEX_T columns, INDEX_T strips EPILOGUE_PARAMS) {
  __local A_T sums[GROUP], corner[ROWS * ROWS];
  const INDEX_T id = (INDEX_T)get_group_id(0), matrix = id / strips, width = n + columns;
  const int me = (int)get_local_id(0), share = me % SHARES, r = me / 16;
  const INDEX_T first = (id - matrix * strips) * ACROSS, mine = first + me / SHARES % ACROSS;
  __global A_T *upper = k_upper + matrix * n * width, *x = upper + n;
  for (INDEX_T end = n; end > 0;) {
    const INDEX_T from = max(end - ROWS, (INDEX_T)0), row = from + r;
    A_T sum = 0;
    if (row < end && mine < columns)
      for (INDEX_T c = end + share; c < n; c += SHARES)
        sum += upper[row * width + c] * x[c * width + mine];
    sums[me] = sum;
    for (int e = me; e < ROWS * ROWS; e += GROUP) {
      // column by column, each down to its diagonal; behind the last row those of the identity
      const int c = e / ROWS, up = ROWS - 1 - e % ROWS;
      const A_T one = up ? 0 : 1;
      corner[e] = c >= up && from + c < end ? upper[(from + c - up) * width + from + c] : one;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (share == 0) {
      for (int e = 1; e < SHARES; e++) sum += sums[me + e];
      sums[me] = row < end && mine < columns ? x[row * width + mine] - sum : (A_T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < ACROSS && first + me < columns) {
      A_T y[ROWS];
      UNROLL for (int s = 0; s < ROWS; s++) y[s] = sums[s * 16 + me * SHARES];
      for (int s = ROWS - 1; s >= 0; s--) {  // the last is known, the others move down
        const A_T known = y[ROWS - 1] / corner[s * ROWS + ROWS - 1];
        UNROLL for (int t = ROWS - 1; t > 0; t--) y[t] = y[t - 1] - corner[s * ROWS + t - 1] * known;
        if (from + s < end) {
          x[(from + s) * width + first + me] = known;
          EPILOGUE(known, (matrix * n + from + s) * columns + first + me)
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    end = from;
  }
}
#endif
