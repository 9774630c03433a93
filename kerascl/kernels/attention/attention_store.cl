// Rows of sums to a result of another dtype or length: work-items (batch * groups, keys).
__kernel void attention_store(__global const ACC_T* restrict sums, __global OUT_T* restrict out,
    const int GROUPS, const int S, const int WIDTH, const int PADDED) {
  const int row = get_global_id(0), b = row / GROUPS, g = row % GROUPS, s = get_global_id(1);
  __global const ACC_T* from = sums + ((INDEX_T)get_global_id(0) * S + s) * PADDED;
  const INDEX_T to = (((INDEX_T)b * S + s) * GROUPS + g) * WIDTH;
  for (int d = 0; d < WIDTH; ++d) OUT_STORE(out, to + d, from[d]);
}
