// Stable radix sort of (rows, length) by work-groups, digit by digit from the lowest on; stands
// behind sort.cl and radix.cl, whose items, keys and results it has.
//
// A row lies in `parts` tiles of GROUP * ITEMS elements, and a digit has BITS bits.
// RADIX_GROUP_COUNT: how often each digit occurs in a tile, k_counts[row][digit][tile].
// RADIX_GROUP_SCAN: how often in the tiles before it, in place, and in all, k_totals[row][digit].
// RADIX_GROUP_MOVE: each tile is sorted by its digit in local memory, four bits at a time, where
// work-items count ITEMS neighbours each; elements with the same digit then leave side by side.

#define TILE (GROUP * ITEMS)
#define GROUP_KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
#define TILE_OF \
  const int lid = (int)get_local_id(0); \
  const INDEX_T unit = (INDEX_T)get_group_id(0); \
  const INDEX_T row = unit / parts, mine = unit % parts, begin = mine * TILE; \
  const int count = (int)min((INDEX_T)TILE, length - begin);

#if RAW
#define LOAD_UNIT(at_) (((const __global RAW_T*)k_source)[row * length + (at_)])
#define UNIT_KEY(u_) sort_key_of((KEY_T)(u_))
#else
#define LOAD_UNIT(at_) READ_ITEM(row, at_)
#define UNIT_KEY(u_) ITEM_KEY(u_)
#endif

// Exclusive sum over the work-items; `sums` has room for two values of each.
uint radix_before(__local uint* sums, uint mine, uint* total) {
  const int lid = (int)get_local_id(0);
  int from = 0;
  sums[lid] = mine;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = 1; step < GROUP; step <<= 1) {
    if (lid >= step) mine += sums[from + lid - step];
    from = GROUP - from;
    sums[from + lid] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = sums[from + GROUP - 1];
  const uint before = lid ? sums[from + lid - 1] : 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  return before;
}

#if RADIX_GROUP_COUNT
// Neighbouring work-items add to different copies: digits are often alike.
#define COPIES 4
GROUP_KERNEL void radix_group_count(SOURCE_PARAM, INDEX_T length, INDEX_T parts, int shift,
                                    __global uint* restrict k_counts) {
  __local uint counts[COPIES * RADIX];
  TILE_OF
  for (int d = lid; d < COPIES * RADIX; d += GROUP) counts[d] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = lid; q < count; q += GROUP)
    atomic_inc(&counts[lid % COPIES * RADIX + DIGIT(UNIT_KEY(LOAD_UNIT(begin + q)), shift)]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int d = lid; d < RADIX; d += GROUP) {
    uint sum = 0;
    for (int copy = 0; copy < COPIES; copy++) sum += counts[copy * RADIX + d];
    k_counts[(row * RADIX + d) * parts + mine] = sum;
  }
}
#endif

#if RADIX_GROUP_SCAN
GROUP_KERNEL void radix_group_scan(INDEX_T parts, __global uint* restrict k_counts,
                                   __global uint* restrict k_totals) {
  __local uint sums[2 * GROUP];
  const INDEX_T unit = (INDEX_T)get_group_id(0);
  uint all = 0;
  for (INDEX_T first = 0; first < parts; first += GROUP) {
    const INDEX_T part = first + (INDEX_T)get_local_id(0);
    const uint own = part < parts ? k_counts[unit * parts + part] : 0;
    uint total;
    const uint before = radix_before(sums, own, &total);
    if (part < parts) k_counts[unit * parts + part] = all + before;
    all += total;
  }
  if (get_local_id(0) == 0) k_totals[unit] = all;
}
#endif

#if RADIX_GROUP_MOVE
#if !RAW
#define MOVE_PARAMS , INDEX_T out_length RESULT_PARAMS
#elif FINAL
#define MOVE_PARAMS EPILOGUE_PARAMS
#else
#define MOVE_PARAMS , __global RAW_T* restrict k_result
#endif
// A gap every 32 elements keeps the work-items' neighbours in different banks.
#define SLOT(p_) ((p_) + ((p_) >> 5))
#define NIBBLES 16
// Places without an element are last and stay it: they have the largest digit.
#define NIBBLE(u_, p_) \
  ((p_) < count ? (int)(UNIT_KEY(u_) >> (shift + low)) & (NIBBLES - 1) : NIBBLES - 1)
#define PER (RADIX > GROUP ? RADIX / GROUP : 1)

GROUP_KERNEL void radix_group_move(SOURCE_PARAM, INDEX_T length, INDEX_T parts, int shift,
                                   INDEX_T keep, const __global uint* restrict k_counts,
                                   const __global uint* restrict k_totals MOVE_PARAMS) {
  __local UNIT_T tile[TILE + TILE / 32];
  __local ushort counts[NIBBLES * GROUP];
  __local uint sums[2 * GROUP];
  __local uint place[RADIX];
  TILE_OF
  for (int q = lid; q < count; q += GROUP) tile[SLOT(q)] = LOAD_UNIT(begin + q);
  uint total;
  for (int low = 0; low < BITS; low += 4) {
    UNIT_T own[ITEMS];
    ushort rank[ITEMS];
    for (int d = 0; d < NIBBLES; d++) counts[d * GROUP + lid] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const int p = lid * ITEMS + k;
      own[k] = tile[SLOT(p)];
      rank[k] = counts[NIBBLE(own[k], p) * GROUP + lid]++;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (int d = 0; d < NIBBLES; d++) sum += counts[lid * NIBBLES + d];
    sum = radix_before(sums, sum, &total);
    for (int d = 0; d < NIBBLES; d++) {
      const ushort some = counts[lid * NIBBLES + d];
      counts[lid * NIBBLES + d] = (ushort)sum;
      sum += some;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
      const int to = counts[NIBBLE(own[k], lid * ITEMS + k) * GROUP + lid] + rank[k];
      tile[SLOT(to)] = own[k];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  // Where the tile's elements of each digit go, less their place in the tile.
  uint sum = 0;
  for (int k = 0; k < PER; k++)
    if (lid * PER + k < RADIX) sum += k_totals[row * RADIX + lid * PER + k];
  sum = radix_before(sums, sum, &total);
  for (int k = 0; k < PER; k++) {
    const int d = lid * PER + k;
    if (d >= RADIX) break;
    place[d] = sum + k_counts[(row * RADIX + d) * parts + mine];
    sum += k_totals[row * RADIX + d];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = lid; q < count; q += GROUP) {
    const int d = DIGIT(UNIT_KEY(tile[SLOT(q)]), shift);
    if (q == 0 || d != DIGIT(UNIT_KEY(tile[SLOT(q - 1)]), shift)) place[d] -= (uint)q;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = lid; q < count; q += GROUP) {
    const UNIT_T one = tile[SLOT(q)];
    const INDEX_T to = (INDEX_T)(place[DIGIT(UNIT_KEY(one), shift)] + (uint)q);
#if !RAW
    if (to < keep) PUT(row, to, one)
#elif FINAL
    if (to < keep) EPILOGUE(A_LOAD((const A_T*)&one, 0), row * keep + to)
#else
    k_result[row * length + to] = one;
#endif
  }
}
#endif
