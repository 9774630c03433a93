// x and dy of a filter gradient laid out anew for wgmma.cl, channels first and with zeros after each
// row: out[phase][channel][position], where positions are (row, column, image), rows of GRID2 columns
// of IMAGES images, STEP positions in all.  Phase (t1, t2) of x holds the pixels that taps
// t1 + i * PERIOD1, t2 + j * PERIOD2 read: every STRIDE-th, from a remainder on.  dy has one phase of
// all pixels.  With LOW also what rounding to tf32 (to nearest, ties to even, as TMA does) loses of
// each element.
//
// A group moves SIDE positions of SIDE channels through local memory; the first X_GROUPS are x's.
#define SIDE 64
#define COUNT (SIDE * SIDE / 256)
#define UNROLL _Pragma("unroll")
#define REMAINDER(v, s) (((v) % (s) + (s)) % (s))

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void wgmma_channel_major(
    __global const uint* restrict x, __global const uint* restrict dy,
    __global uint* restrict xHigh, __global uint* restrict dyHigh, __global uint* restrict xLow,
    __global uint* restrict dyLow PARAMS) {
  __local uint tile[SIDE][SIDE + 1];
  __local INDEX_T from[SIDE];
  const int is_x = get_group_id(0) < X_GROUPS;
  const int group = get_group_id(0) - (is_x ? 0 : X_GROUPS);
  const int channels = is_x ? CIN : COUT;
  const int wide = (STEP + SIDE - 1) / SIDE, high = (channels + SIDE - 1) / SIDE;
  const int line = group / wide, phase = line / high;
  const int k0 = (group - line * wide) * SIDE, c0 = (line - phase * high) * SIDE;
  const int lane = get_local_id(0), fast = lane % SIDE, slow = lane / SIDE;
  if (slow == 0) {
    const int height = is_x ? IN1 : OUT1, width = is_x ? IN2 : OUT2;
    const int t1 = phase / PHASES2, t2 = phase - t1 * PHASES2;
    const int k = k0 + fast, pixel = k / IMAGES, row = pixel / GRID2;
    const int n = IMAGE0 + k - pixel * IMAGES, col = pixel - row * GRID2;
    const int h = is_x ? row * STRIDE1 + REMAINDER(t1 * DIL1 - PAD1, STRIDE1) : row;
    const int w = is_x ? col * STRIDE2 + REMAINDER(t2 * DIL2 - PAD2, STRIDE2) : col;
    const int inside = n < BATCH && h < height && w < width;
    from[fast] = inside ? (((INDEX_T)n * height + h) * width + w) * channels : -1;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  __global const uint* const in = is_x ? x : dy;
  uint v[COUNT];
  UNROLL for (int j = 0; j < COUNT; ++j) {
    const int c = c0 + fast;
    const INDEX_T at = from[slow + j * (256 / SIDE)];
    v[j] = at >= 0 && c < channels ? in[at + c] : 0u;
  }
  UNROLL for (int j = 0; j < COUNT; ++j) tile[fast][slow + j * (256 / SIDE)] = v[j];
  barrier(CLK_LOCAL_MEM_FENCE);
  __global uint* const out = is_x ? xHigh : dyHigh;
  UNROLL for (int j = 0; j < COUNT; ++j) {
    const int k = k0 + fast, slot = slow + j * (256 / SIDE), c = c0 + slot;
    if (k >= STEP || c >= channels) continue;
    const INDEX_T at = ((INDEX_T)phase * channels + c) * STEP + k;
    const uint word = tile[slot][fast];
    out[at] = word;
#if LOW
    const uint rounded = (word + 0xfffu + ((word >> 13) & 1u)) & 0xffffe000u;
    const int finite = (word & 0x7f800000u) != 0x7f800000u;
    (is_x ? xLow : dyLow)[at] = finite ? as_uint(as_float(word) - as_float(rounded)) : 0u;
#endif
  }
}
