// How often each of 0 … size - 1 is among the values, or how many values lie in each bin between
// neighbouring edges.  Integers are added by atomics: sums that are the same in any order.
//
// COUNT_GROUP: each work-group counts `part` values in local memory, in COPIES tables that
// neighbouring work-items take in turn, since neighbours are often alike; with DIRECT it is the only
// group, else its table goes to k_tables[group][size], which COUNT_JOIN adds up, or COUNT_STORE.
// COUNT_CLEAR, COUNT_GLOBAL: one table in global memory, where local memory is too small.
// COUNT_PRIVATE: each work-item of a CPU counts `part` values in a table of its own, without atomics.

#define GROUP_KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))

#if EDGES
#if IN_LOCAL
#define EDGE(i_) edges[i_]
#define EDGES_ARE const __local A_C* edges
#else
#define EDGE(i_) A_LOAD(edges, i_)
#define EDGES_ARE const __global A_T* edges
#endif
#define EDGES_PARAM , const __global A_T* restrict k_edges

#if EVEN
#define FIND_SCALE const A_C scale = (A_C)size / (EDGE(size) - EDGE(0));
#define FIND(value_) count_place((value_), edges, size, scale)

// The bin of a value, or -1: from a guess to the bin whose edges say so.
int count_near(A_C value, int guess, EDGES_ARE, int size) {
  if (!(value >= EDGE(0) && value <= EDGE(size))) return -1;
  int bin = min(guess, size - 1);
  while (bin > 0 && value < EDGE(bin)) bin--;
  while (bin < size - 1 && value >= EDGE(bin + 1)) bin++;
  return bin;
}

int count_place(A_C value, EDGES_ARE, int size, A_C scale) {
  const A_C guess = fmin(fmax((value - EDGE(0)) * scale, (A_C)0), (A_C)(size - 1));
  return count_near(value, (int)guess, edges, size);
}
#else
#define FIND_SCALE
#define FIND(value_) count_place((value_), edges, size)

// The bin of a value, or -1; as search_sorted, NaN is the largest value.
int count_place(A_C value, EDGES_ARE, int size) {
  int low = 0, high = size + 1;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (EDGE(middle) <= value || value != value) low = middle + 1; else high = middle;
  }
  return value == EDGE(size) ? size - 1 : low - 1;
}
#endif
#else
#define EDGES_PARAM
#define FIND_SCALE
#define FIND(value_) (value_)
#endif

// Places outside, negative ones too, are too large as unsigned.
#define INSIDE(place_) ((ulong)(long)(place_) < (ulong)size)

#if COUNT_GROUP
GROUP_KERNEL void count_group(const __global A_T* restrict k_values EDGES_PARAM, INDEX_T count,
                              INDEX_T part, int size
#if DIRECT
                              EPILOGUE_PARAMS) {
#else
                              , __global uint* restrict k_tables) {
#endif
  __local uint table[ROOM * COPIES];
#if EDGES
  __local A_C edges[ROOM + 1];
#endif
  const int lid = (int)get_local_id(0);
  const INDEX_T mine = (INDEX_T)get_group_id(0);
  const INDEX_T begin = mine * part, end = begin + min(part, count - begin);
  for (int i = lid; i < size * COPIES; i += GROUP) table[i] = 0;
#if EDGES
  for (int i = lid; i <= size; i += GROUP) edges[i] = A_LOAD(k_edges, i);
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  FIND_SCALE
  __local uint* own = table + lid % COPIES;
  for (INDEX_T first = begin; first < end; first += GROUP * ITEMS) {
    // All loads of a work-item are under way together.
    const int here = (int)min((INDEX_T)(GROUP * ITEMS), end - first);
    A_C values[ITEMS];
    _Pragma("unroll") for (int k = 0; k < ITEMS; k++)
      values[k] = A_LOAD(k_values, first + min(k * GROUP + lid, here - 1));
    _Pragma("unroll") for (int k = 0; k < ITEMS; k++) {
      if (k * GROUP + lid >= here) continue;
      const PLACE_T place = FIND(values[k]);
      if (INSIDE(place)) atomic_inc(own + (int)place * COPIES);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = lid; i < size; i += GROUP) {
    uint sum = 0;
    for (int copy = 0; copy < COPIES; copy++) sum += table[i * COPIES + copy];
#if DIRECT
    EPILOGUE((ACC_T)sum, i)
#else
    k_tables[mine * size + i] = sum;
#endif
  }
}
#endif

#if COUNT_PRIVATE
#define BLOCK 64
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void count_private(const __global A_T* restrict k_values EDGES_PARAM, INDEX_T count, INDEX_T part,
                   int size, __global uint* restrict k_tables) {
  const INDEX_T mine = (INDEX_T)get_global_id(0);
  const INDEX_T begin = mine * part, end = begin + min(part, count - begin);
  __global uint* table = k_tables + mine * size;
  for (int i = 0; i < size; i++) table[i] = 0;
#if EDGES
  const __global A_T* edges = k_edges;
  FIND_SCALE
  const A_C low = EDGE(0), top = (A_C)(size - 1);
  for (INDEX_T first = begin; first < end; first += BLOCK) {
    const int here = (int)min((INDEX_T)BLOCK, end - first);
    int guesses[BLOCK];  // in a loop of their own, of which compilers make vectors
    for (int j = 0; j < here; j++)
      guesses[j] = (int)fmin(fmax((A_LOAD(k_values, first + j) - low) * scale, (A_C)0), top);
    for (int j = 0; j < here; j++) {
      const int place = count_near(A_LOAD(k_values, first + j), guesses[j], edges, size);
      if (place >= 0) table[place]++;
    }
  }
#else
  for (INDEX_T at = begin; at < end; at++) {
    const A_C place = A_LOAD(k_values, at);
    if (INSIDE(place)) table[place]++;
  }
#endif
}
#endif

#if COUNT_CLEAR
__kernel void count_clear(__global uint* restrict k_tables, INDEX_T size) {
  const INDEX_T i = (INDEX_T)get_global_id(0);
  if (i < size) k_tables[i] = 0;
}
#endif

#if COUNT_GLOBAL
GROUP_KERNEL void count_global(const __global A_T* restrict k_values EDGES_PARAM, INDEX_T count,
                               int size, __global uint* k_tables) {
  const INDEX_T first = (INDEX_T)get_group_id(0) * (GROUP * ITEMS) + (INDEX_T)get_local_id(0);
#if EDGES
  const __global A_T* edges = k_edges;
#endif
  FIND_SCALE
  // Equal places one after the other are one addition.
  int now = -1;
  uint times = 0;
  for (int k = 0; k < ITEMS; k++) {
    const INDEX_T at = first + (INDEX_T)k * GROUP;
    if (at >= count) break;
    const PLACE_T place = FIND(A_LOAD(k_values, at));
    if (!INSIDE(place)) continue;
    if ((int)place != now) {
      if (times) atomic_add(k_tables + now, times);
      now = (int)place;
      times = 0;
    }
    times++;
  }
  if (times) atomic_add(k_tables + now, times);
}
#endif

#if COUNT_STORE
// A work-item for each result: few tables.
__kernel void count_store(const __global uint* restrict k_tables, int tables,
                          INDEX_T size EPILOGUE_PARAMS) {
  const INDEX_T i = (INDEX_T)get_global_id(0);
  if (i >= size) return;
  uint sum = 0;
  for (int t = 0; t < tables; t++) sum += k_tables[t * size + i];
  EPILOGUE((ACC_T)sum, i)
}
#endif

#if COUNT_JOIN
// LINES results of a work-group, GROUP / LINES work-items to each.
GROUP_KERNEL void count_join(const __global uint* restrict k_tables, int tables,
                             INDEX_T size EPILOGUE_PARAMS) {
  __local uint sums[GROUP];
  const int lid = (int)get_local_id(0);
  const INDEX_T i = (INDEX_T)get_group_id(0) * LINES + lid % LINES;
  uint sum = 0;
  if (i < size) {
    _Pragma("unroll 8")
    for (int t = lid / LINES; t < tables; t += GROUP / LINES) sum += k_tables[t * size + i];
  }
  sums[lid] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = GROUP / 2; half_ >= LINES; half_ >>= 1) {
    if (lid < half_) sums[lid] += sums[lid + half_];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lid < LINES && i < size) EPILOGUE((ACC_T)sums[lid], i)
}
#endif
