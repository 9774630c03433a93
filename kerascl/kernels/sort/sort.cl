// Stable sorting and top-k along the last axis of (rows, length).
//
// Everything moves as items: an unsigned key, ordered as the values are, with
// the element's position below it.  So items are all different, every schedule
// is stable, and values are fetched by position at the end.
//
// Stages (macros): SORT_TILE sorts (and cuts) tiles in local memory, SORT_MERGE
// merges pairs of runs; SORT_CHUNK and SORT_MERGE with SERIAL are the same
// without barriers; SORT_SELECT keeps the first few of a chunk.
// FROM_ITEMS: read items from k_items, else encode k_a.
// FINAL: write the results (WANT_VALUES by EPILOGUE, WANT_INDICES to k_indices),
// else write items to k_result.

#if WIDE
typedef ulong2 item_t;
#define ITEM_LESS(u_, v_) ((u_).x < (v_).x || ((u_).x == (v_).x && (u_).y < (v_).y))
#define ITEM_LAST ((ulong2)(ULONG_MAX, ULONG_MAX))
#define ITEM_POSITION(u_) ((INDEX_T)(u_).y)
#else
typedef ulong item_t;
#define ITEM_LESS(u_, v_) ((u_) < (v_))
#define ITEM_LAST ULONG_MAX
#define ITEM_POSITION(u_) ((INDEX_T)(uint)(u_))
#endif

#if !FROM_ITEMS
#if WIDE
#define KEY_T ulong
#else
#define KEY_T uint
#endif
#if KEY_ROW
KEY_T sort_key(const __global A_T* p, INDEX_T at, long limit) {
  // A row number: what lies outside sorts behind all rows.
  const A_C row = A_LOAD(p, at);
#if KEY_SIGNED
  if (row < 0) return (KEY_T)UINT_MAX;
#endif
  return (ulong)row < (ulong)limit ? (KEY_T)row : (KEY_T)UINT_MAX;
}
#else
// RAW_T: the unsigned type as wide as a stored element.  NaNs are equal and largest; -0 equals 0.
KEY_T sort_key_of(KEY_T raw) {
#if KEY_FLOAT
  const KEY_T sign = (KEY_T)1 << (KEY_BITS - 1);
  // Without branches, which signs and NaNs would make at random.
  KEY_T key = raw ^ (((KEY_T)0 - (raw >> (KEY_BITS - 1))) | sign);
  key += raw == sign;
  key |= (KEY_T)0 - (KEY_T)((raw & (sign - 1)) > (KEY_T)KEY_INFINITY);
  key &= sign | (sign - 1);
#elif KEY_SIGNED
  KEY_T key = raw ^ ((KEY_T)1 << (KEY_BITS - 1));
#elif KEY_BOOL
  KEY_T key = raw != 0;
#else
  KEY_T key = raw;
#endif
#if DESCENDING
  key = ~key;
#endif
  return key;
}
KEY_T sort_key(const __global A_T* p, INDEX_T at, long limit) {
  return sort_key_of((KEY_T)((const __global RAW_T*)p)[at]);
}
#endif
#endif

#if FROM_ITEMS
#define SOURCE_PARAM const __global item_t* restrict k_items
#define READ_ITEM(row_, at_) k_items[(row_) * length + (at_)]
#else
#define SOURCE_PARAM const __global A_T* restrict k_source, long limit
item_t sort_item(const __global A_T* p, INDEX_T base, INDEX_T at, long limit) {
#if WIDE
  return (ulong2)(sort_key(p, base + at, limit), (ulong)at);
#else
  return ((ulong)sort_key(p, base + at, limit) << 32) | (ulong)at;
#endif
}
#define READ_ITEM(row_, at_) sort_item(k_source, (row_) * length, (at_), limit)
#endif

#if FINAL
#if WANT_VALUES
#define VALUES_PARAM , const __global A_T* restrict k_values, INDEX_T whole
#define VALUES_TAIL EPILOGUE_PARAMS
#define PUT_VALUE(row_, rank_, u_) \
  EPILOGUE(A_LOAD(k_values, (row_) * whole + ITEM_POSITION(u_)), (row_) * keep + (rank_))
#else
#define VALUES_PARAM
#define VALUES_TAIL
#define PUT_VALUE(row_, rank_, u_)
#endif
#if WANT_INDICES
#define INDICES_PARAM , __global int* restrict k_indices
#define PUT_INDEX(row_, rank_, u_) k_indices[(row_) * keep + (rank_)] = (int)ITEM_POSITION(u_);
#else
#define INDICES_PARAM
#define PUT_INDEX(row_, rank_, u_)
#endif
#define RESULT_PARAMS VALUES_PARAM INDICES_PARAM VALUES_TAIL
#define PUT(row_, at_, u_) { \
    const item_t put_ = (u_); \
    PUT_INDEX(row_, at_, put_) \
    PUT_VALUE(row_, at_, put_) \
  }
#else
#define RESULT_PARAMS , __global item_t* restrict k_result
#define PUT(row_, at_, u_) k_result[(row_) * out_length + (at_)] = (u_);
#endif

// Sizes of every stage: `length` items a row come in, `out_length` go out;
// a chunk (tile) of SPAN items in leaves its first `keep`.
#define SIZES_PARAMS , INDEX_T rows, INDEX_T length, INDEX_T out_length, INDEX_T keep, INDEX_T chunks

#if SORT_TILE
// One work-group of GROUP sorts ROWS tiles of SPAN (a power of two) items.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sort_tile(SOURCE_PARAM SIZES_PARAMS RESULT_PARAMS) {
  __local item_t tile[ROWS * SPAN];
  const int lid = (int)get_local_id(0);
  const INDEX_T first = (INDEX_T)get_group_id(0) * ROWS;
  for (int q = lid; q < ROWS * SPAN; q += GROUP) {
    const INDEX_T unit = first + q / SPAN;
    const INDEX_T row = unit / chunks, at = (unit % chunks) * SPAN + q % SPAN;
    item_t item = ITEM_LAST;
    if (row < rows && at < length) item = READ_ITEM(row, at);
    tile[q] = item;
  }
  for (int size = 2; size <= SPAN; size <<= 1) {
    for (int stride = size >> 1; stride > 0; stride >>= 1) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int q = lid; q < ROWS * SPAN / 2; q += GROUP) {
        const int low = 2 * q - (q & (stride - 1)), high = low + stride;
        const item_t u = tile[low], v = tile[high];
        const int rising = ((low & (SPAN - 1)) & size) == 0;
        if (ITEM_LESS(v, u) == rising) {
          tile[low] = v;
          tile[high] = u;
        }
      }
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = lid; q < ROWS * SPAN; q += GROUP) {
    const INDEX_T unit = first + q / SPAN;
    const INDEX_T row = unit / chunks, chunk = unit % chunks, rank = q % SPAN;
    if (row < rows && rank < keep && chunk * SPAN + rank < length) {
      PUT(row, chunk * keep + rank, tile[q])
    }
  }
}
#endif

#if SORT_CHUNK
// Work-items share out the chunks; each sorts in its own two stretches of SPAN items of k_scratch.
__kernel void sort_chunk(SOURCE_PARAM, __global item_t* k_scratch SIZES_PARAMS RESULT_PARAMS) {
  const INDEX_T worker = (INDEX_T)get_global_id(0);
  __global item_t* here = k_scratch + worker * 2 * SPAN;
  __global item_t* there = here + SPAN;
  for (INDEX_T unit = worker; unit < rows * chunks; unit += (INDEX_T)get_global_size(0)) {
    const INDEX_T row = unit / chunks, chunk = unit % chunks;
    const INDEX_T base = chunk * SPAN;
    const int size = (int)min((INDEX_T)SPAN, length - base);
    // Runs of RUN by insertion.
    for (int run = 0; run < size; run += RUN) {
      const int end = min(run + RUN, size);
      for (int q = run; q < end; q++) {
        const item_t item = READ_ITEM(row, base + q);
        int p = q;
        while (p > run && ITEM_LESS(item, here[p - 1])) {
          here[p] = here[p - 1];
          p--;
        }
        here[p] = item;
      }
    }
    __global item_t* from = here;
    __global item_t* to = there;
    for (int run = RUN; run < size; run *= 2) {
      for (int low = 0; low < size; low += 2 * run) {
        const int middle = min(low + run, size), end = min(low + 2 * run, size);
        int left = low, right = middle, q = low;
        if (middle == end || ITEM_LESS(from[middle - 1], from[middle])) {
          for (; q < end; q++) to[q] = from[q];
          continue;
        }
        while (left < middle && right < end) {
          const item_t u = from[left], v = from[right];
          const int second = ITEM_LESS(v, u);
          to[q++] = second ? v : u;
          left += 1 - second;
          right += second;
        }
        while (left < middle) to[q++] = from[left++];
        while (right < end) to[q++] = from[right++];
      }
      __global item_t* swap = from;
      from = to;
      to = swap;
    }
    const int some = (int)min((INDEX_T)size, keep);
    for (int q = 0; q < some; q++) PUT(row, chunk * keep + q, from[q])
  }
}
#endif

#if SORT_SELECT
// A work-item keeps the KEEP first items of each of its chunks of `span` items.
__kernel void sort_select(SOURCE_PARAM, INDEX_T span SIZES_PARAMS RESULT_PARAMS) {
  const INDEX_T unit = (INDEX_T)get_global_id(0);
  if (unit >= rows * chunks) return;
  const INDEX_T row = unit / chunks, chunk = unit % chunks;
  const INDEX_T base = chunk * span, end = min(base + span, length);
  item_t best[KEEP];
  for (int q = 0; q < KEEP; q++) best[q] = ITEM_LAST;
  for (INDEX_T at = base; at < end; at++) {
    const item_t item = READ_ITEM(row, at);
    if (!ITEM_LESS(item, best[KEEP - 1])) continue;
    int p = KEEP - 1;
    while (p > 0 && ITEM_LESS(item, best[p - 1])) {
      best[p] = best[p - 1];
      p--;
    }
    best[p] = item;
  }
  const INDEX_T some = min(end - base, keep);
  for (INDEX_T q = 0; q < some; q++) PUT(row, chunk * keep + q, best[q])
}
#endif

#if SORT_MERGE
// How many of the first `diagonal` items of the merge of two runs come from the first run.
INDEX_T sort_split(const __global item_t* u, INDEX_T nu, const __global item_t* v, INDEX_T nv,
                   INDEX_T diagonal) {
  INDEX_T low = max((INDEX_T)0, diagonal - nv), high = min(diagonal, nu);
  while (low < high) {
    const INDEX_T middle = low + (high - low) / 2;
    if (ITEM_LESS(u[middle], v[diagonal - 1 - middle])) low = middle + 1; else high = middle;
  }
  return low;
}

// Results [chunk * SPAN, + SPAN) of a row whose runs of `run` items are merged in pairs.
#define MERGE_OF(unit_) \
  const INDEX_T row = (unit_) / chunks, chunk = (unit_) % chunks; \
  const INDEX_T t0 = chunk * SPAN, t1 = min(t0 + SPAN, length); \
  const INDEX_T pair = t0 / (2 * run) * (2 * run); \
  const INDEX_T second = min(pair + run, length), last = min(pair + 2 * run, length); \
  const __global item_t* u = k_items + row * length + pair; \
  const __global item_t* v = k_items + row * length + second; \
  const INDEX_T nu = second - pair, nv = last - second;

#if SERIAL
__kernel void sort_merge(SOURCE_PARAM, INDEX_T run SIZES_PARAMS RESULT_PARAMS) {
  const INDEX_T unit = (INDEX_T)get_global_id(0);
  if (unit >= rows * chunks) return;
  MERGE_OF(unit)
  INDEX_T left = sort_split(u, nu, v, nv, t0 - pair), right = t0 - pair - left;
  const INDEX_T stop = min(t1, keep);
  for (INDEX_T at = t0; at < stop; at++) {
    const bool first = right >= nv || (left < nu && ITEM_LESS(u[left], v[right]));
    const item_t item = first ? u[left] : v[right];
    if (first) left++; else right++;
    PUT(row, at, item)
  }
}
#else
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sort_merge(SOURCE_PARAM, INDEX_T run SIZES_PARAMS RESULT_PARAMS) {
  __local item_t tile[SPAN];
  __local INDEX_T splits[2];
  const int lid = (int)get_local_id(0);
  const INDEX_T unit = (INDEX_T)get_group_id(0);
  MERGE_OF(unit)
  if (lid < 2) splits[lid] = sort_split(u, nu, v, nv, (lid ? t1 : t0) - pair);
  barrier(CLK_LOCAL_MEM_FENCE);
  const INDEX_T left = splits[0], right = t0 - pair - left;
  const int cu = (int)(splits[1] - left), count = (int)(t1 - t0), cv = count - cu;
  for (int q = lid; q < count; q += GROUP) tile[q] = q < cu ? u[left + q] : v[right + q - cu];
  barrier(CLK_LOCAL_MEM_FENCE);
  const int mine = min(lid * (SPAN / GROUP), count);
  int low = max(0, mine - cv), high = min(mine, cu);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ITEM_LESS(tile[middle], tile[cu + mine - 1 - middle])) low = middle + 1; else high = middle;
  }
  int p = low, r = cu + mine - low;
  item_t merged[SPAN / GROUP];
  for (int q = 0; q < SPAN / GROUP; q++) {
    merged[q] = ITEM_LAST;
    if (mine + q < count) {
      const bool first = r >= count || (p < cu && ITEM_LESS(tile[p], tile[r]));
      merged[q] = tile[first ? p : r];
      if (first) p++; else r++;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = 0; q < SPAN / GROUP; q++)
    if (mine + q < count) tile[mine + q] = merged[q];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = lid; q < count; q += GROUP)
    if (t0 + q < keep) PUT(row, t0 + q, tile[q])
}
#endif
#endif
