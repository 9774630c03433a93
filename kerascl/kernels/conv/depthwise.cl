// Depthwise convolution: each channel of x has its own MULT filters, and output channel
// c * MULT + q.  x and y are channels-last or channels-first, w is (taps, channels of y).
// Axis 0 exists with DIMS == 3 only.
#if DIMS == 3
#define IF3(...) __VA_ARGS__
#else
#define IF3(...)
#endif

#if !FILTER_GRAD
// One work-item per output element: of y (forward) or of dx (data gradient).
__kernel void depthwise_gather(__global const A_T* restrict pA,
    __global const B_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  const INDEX_T at = get_global_id(0);
  if (at >= TOTAL) return;
  INDEX_T rest = at;
#if CHANNELS_FIRST
  const int o2 = rest % OUT2; rest /= OUT2;
  const int o1 = rest % OUT1; rest /= OUT1;
  IF3(const int o0 = rest % OUT0; rest /= OUT0;)
  const int ch = rest % CHANNELS, img = rest / CHANNELS;
#else
  const int ch = rest % CHANNELS; rest /= CHANNELS;
  const int o2 = rest % OUT2; rest /= OUT2;
  const int o1 = rest % OUT1; rest /= OUT1;
  IF3(const int o0 = rest % OUT0; rest /= OUT0;)
  const int img = rest;
#endif
  ACC_T sum = 0;
#if DATA_GRAD
  // Output position o meets tap j at input position (o + pad - j * dilation) / stride, if whole.
#define PLACE(o, j, d) const int t##d = o##d + PAD##d - j * DIL##d; \
  if (t##d < 0 || t##d % STRIDE##d != 0 || t##d / STRIDE##d >= IN##d) continue; \
  const int h##d = t##d / STRIDE##d;
#else
#define PLACE(o, j, d) const int h##d = o##d * STRIDE##d - PAD##d + j * DIL##d; \
  if ((uint)h##d >= (uint)IN##d) continue;
#endif
  IF3(for (int j0 = 0; j0 < KER0; ++j0) { PLACE(o, j0, 0))
  for (int j1 = 0; j1 < KER1; ++j1) {
    PLACE(o, j1, 1)
    for (int j2 = 0; j2 < KER2; ++j2) {
      PLACE(o, j2, 2)
      const INDEX_T pixel = img * aN + ((IF3((INDEX_T)h0 * IN1 +) (INDEX_T)h1) * IN2 + h2) * aP;
      const INDEX_T tap = ((IF3((INDEX_T)j0 * KER1 +) (INDEX_T)j1) * KER2 + j2) * FILTERS;
#if DATA_GRAD
      for (int q = 0; q < MULT; ++q)
        sum += (ACC_T)A_LOAD(pA, pixel + (ch * MULT + q) * aC) * (ACC_T)B_LOAD(pB, tap + ch * MULT + q);
#else
      sum += (ACC_T)A_LOAD(pA, pixel + ch / MULT * aC) * (ACC_T)B_LOAD(pB, tap + ch);
#endif
    }
  }
  IF3(})
  EPILOGUE(sum, at)
}
#else
// dw[tap][f]: a work-group sums one slice of the output pixels for LC filters of one tap, LP lanes
// to each; slices go to a workspace.
__kernel __attribute__((reqd_work_group_size(LC * LP, 1, 1))) void depthwise_filter(
    __global const A_T* restrict pA, __global const B_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  __local ACC_T part_[LC * LP];
  const int tid = get_local_id(0);
  const int lane = tid / LC;
  int g_ = get_group_id(0);
  const int blocks = (FILTERS + LC - 1) / LC;
  const int f = g_ % blocks * LC + tid % LC; g_ /= blocks;
  const int tap = g_ % (KER0 * KER1 * KER2), split = g_ / (KER0 * KER1 * KER2);
  const int j2 = tap % KER2 * DIL2 - PAD2, j1 = tap / KER2 % KER1 * DIL1 - PAD1;
  IF3(const int j0 = tap / KER2 / KER1 * DIL0 - PAD0;)
  const int pixels = BATCH * OUT0 * OUT1 * OUT2;
  const int to = min(pixels, (split + 1) * SLICE);
  ACC_T sum = 0;
  if (f < FILTERS) {
    for (int p = split * SLICE + lane; p < to; p += LP) {
      int rest = p;
      const int o2 = rest % OUT2; rest /= OUT2;
      const int o1 = rest % OUT1; rest /= OUT1;
      IF3(const int o0 = rest % OUT0; rest /= OUT0;)
      const int h1 = o1 * STRIDE1 + j1, h2 = o2 * STRIDE2 + j2;
      IF3(const int h0 = o0 * STRIDE0 + j0; if ((uint)h0 >= (uint)IN0) continue;)
      if ((uint)h1 >= (uint)IN1 || (uint)h2 >= (uint)IN2) continue;
      const INDEX_T ia = rest * aN + f / MULT * aC + ((IF3((INDEX_T)h0 * IN1 +) (INDEX_T)h1) * IN2 + h2) * aP;
      const INDEX_T ib = rest * bN + f * bC + ((IF3((INDEX_T)o0 * OUT1 +) (INDEX_T)o1) * OUT2 + o2) * bP;
      sum += (ACC_T)A_LOAD(pA, ia) * (ACC_T)B_LOAD(pB, ib);
    }
  }
  part_[tid] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_ = LP / 2; half_ > 0; half_ /= 2) {
    if (lane < half_) part_[tid] += part_[tid + half_ * LC];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lane == 0 && f < FILTERS) EPILOGUE(part_[tid], (INDEX_T)tap * FILTERS + f)
}
#endif
