// An operand of wgmma.cl laid out anew: out[batch][row][k], k contiguous, each row STEP elements
// long (k behind K is zero).  With LOW also what rounding to tf32 (to nearest, ties to even, as TMA
// does) loses of each element.  A group moves SIDE x SIDE elements through local memory.
#define SIDE 64
inline void pack_tile(
    __local WORD (*tile)[SIDE + 1], const int group, __global const WORD* restrict in,
    __global WORD* restrict out, __global WORD* restrict low, const int ROWS, const int K,
    const int STEP, const int B1, const int B2, const INDEX_T OFFSET, const INDEX_T ROW,
    const INDEX_T DEPTH, const INDEX_T S0, const INDEX_T S1, const INDEX_T S2) {
  // As an int first: one CPU's compiler gets the remainder of a size_t wrong here.
  const int lane = get_local_id(0), x = lane % SIDE, y = lane / SIDE;
  const int wide = (STEP + SIDE - 1) / SIDE, high = (ROWS + SIDE - 1) / SIDE;
  const int line = group / wide, batch = line / high;
  const int k0 = (group - line * wide) * SIDE, row0 = (line - batch * high) * SIDE;
  const INDEX_T start = OFFSET + batch / B2 / B1 * S0 + batch / B2 % B1 * S1 + batch % B2 * S2;
  WORD v[SIDE * SIDE / 256];
  _Pragma("unroll") for (int j = 0; j < SIDE * SIDE / 256; ++j) {
    const int far = y + j * (256 / SIDE);
    const int k = k0 + (ALONG_K ? x : far), row = row0 + (ALONG_K ? far : x);
    v[j] = k < K && row < ROWS ? in[start + row * ROW + k * DEPTH] : (WORD)0;
  }
#if !ALONG_K
  _Pragma("unroll") for (int j = 0; j < SIDE * SIDE / 256; ++j) tile[x][y + j * (256 / SIDE)] = v[j];
  barrier(CLK_LOCAL_MEM_FENCE);
  _Pragma("unroll") for (int j = 0; j < SIDE * SIDE / 256; ++j) v[j] = tile[y + j * (256 / SIDE)][x];
#endif
  _Pragma("unroll") for (int j = 0; j < SIDE * SIDE / 256; ++j) {
    const int k = k0 + x, row = row0 + y + j * (256 / SIDE);
    if (k >= STEP || row >= ROWS) continue;
    const INDEX_T at = ((INDEX_T)batch * ROWS + row) * STEP + k;
#if HIGH
    out[at] = v[j];
#endif
#if LOW
    const uint rounded = (v[j] + 0xfffu + ((v[j] >> 13) & 1u)) & 0xffffe000u;
    const int finite = (v[j] & 0x7f800000u) != 0x7f800000u;
    low[at] = finite ? as_uint(as_float(v[j]) - as_float(rounded)) : 0u;
#endif
  }
}

#ifndef JOBS
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void wgmma_pack(
    __global const WORD* restrict in, __global WORD* restrict out, __global WORD* restrict low,
    const int ROWS, const int K, const int STEP, const int B1, const int B2, const INDEX_T OFFSET,
    const INDEX_T ROW, const INDEX_T DEPTH, const INDEX_T S0, const INDEX_T S1, const INDEX_T S2) {
  __local WORD tile[SIDE][SIDE + 1];
  pack_tile(tile, get_group_id(0), in, out, low, ROWS, K, STEP, B1, B2, OFFSET, ROW, DEPTH, S0, S1,
            S2);
}
#else
// The same for many matrices: JOB_PARAMS are their in, out and low, JOBS sets what follows.
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void wgmma_pack_many(JOB_PARAMS) {
  __local WORD tile[SIDE][SIDE + 1];
  const int group = get_group_id(0);
  int first, rows, k, step;
  INDEX_T row, depth;
  __global const WORD* in;
  __global WORD *out, *low;
  JOBS
  pack_tile(tile, group - first, in, out, low, rows, k, step, 1, 1, 0, row, depth, 0, 0, 0);
}
#endif
