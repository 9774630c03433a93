// Depthwise convolution for CPUs, channels-last, one filter a channel: VL channels at a time, the
// last vector moved back inside.  One work-item is one thread.
// Axis 0 exists with DIMS == 3 only.
#if DIMS == 3
#define IF3(...) __VA_ARGS__
#else
#define IF3(...)
#endif
#define BLOCK 4

#if FILTER_GRAD
// A work-item sums LINES lines of output pixels for VL channels and every tap.
__kernel ONE_THREAD void depthwise_cpu(__global const ACC_T* restrict pA,
    __global const ACC_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  const int blocks = (FILTERS + VL - 1) / VL, allLines = BATCH * OUT0 * OUT1;
  const int c0 = (int)get_group_id(0) % blocks * VL, split = get_group_id(0) / blocks;
  const int back = max(c0 + VL - FILTERS, 0), c = c0 - back;
  const int lineFrom = split * LINES, lineTo = min(allLines, lineFrom + LINES);
  for (int tap = 0; tap < KER0 * KER1 * KER2; ++tap) {
    const int t1 = tap / KER2 % KER1 * DIL1 - PAD1, t2 = tap % KER2 * DIL2 - PAD2;
    IF3(const int t0 = tap / KER2 / KER1 * DIL0 - PAD0;)
    const int lo = t2 < 0 ? (-t2 + STRIDE2 - 1) / STRIDE2 : 0;
    const int hi = IN2 - 1 - t2 < 0 ? 0 : min(OUT2, (IN2 - 1 - t2) / STRIDE2 + 1);
    V sum[BLOCK];
#pragma unroll
    for (int q = 0; q < BLOCK; ++q) sum[q] = (V)(0);
    for (int line = lineFrom; line < lineTo; ++line) {
      int rest = line;
      const int h1 = rest % OUT1 * STRIDE1 + t1; rest /= OUT1;
      IF3(const int h0 = rest % OUT0 * STRIDE0 + t0; rest /= OUT0;)
      if ((uint)h1 >= (uint)IN1 IF3(|| (uint)h0 >= (uint)IN0)) continue;
      __global const ACC_T* x = pA + c + rest * aN +
          ((IF3((INDEX_T)h0 * IN1 +) (INDEX_T)h1) * IN2 + t2 + lo * STRIDE2) * aP;
      __global const ACC_T* y = pB + c + ((INDEX_T)line * OUT2 + lo) * FILTERS;
      int o = lo;
      for (; o + BLOCK <= hi; o += BLOCK) {
#pragma unroll
        for (int q = 0; q < BLOCK; ++q, x += STRIDE2 * aP, y += FILTERS)
          sum[q] = MULADD_V(VLOAD(0, x), VLOAD(0, y), sum[q]);
      }
      for (; o < hi; ++o, x += STRIDE2 * aP, y += FILTERS)
        sum[0] = MULADD_V(VLOAD(0, x), VLOAD(0, y), sum[0]);
    }
    ACC_T lanes_[VL];
    VSTORE((sum[0] + sum[1]) + (sum[2] + sum[3]), 0, lanes_);
    for (int j = back; j < VL; ++j) EPILOGUE(lanes_[j], (INDEX_T)tap * FILTERS + c + j)
  }
}
#else
// A work-item makes one line of output pixels of one class, BLOCK pixels by VL channels at a time.
__kernel ONE_THREAD void depthwise_cpu(__global const ACC_T* restrict pA,
    __global const ACC_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  int g_ = get_group_id(0);
  const int line = g_ % LINES, class_ = g_ / LINES;
  IF3(const Axis x0 = conv_axis(class_ / STRIDE2 / STRIDE1, OUT0, KER0, STRIDE0, DIL0, PAD0);)
  const Axis x1 = conv_axis(class_ / STRIDE2 % STRIDE1, OUT1, KER1, STRIDE1, DIL1, PAD1);
  const Axis x2 = conv_axis(class_ % STRIDE2, OUT2, KER2, STRIDE2, DIL2, PAD2);
  if (line >= BATCH * IF3(x0.size *) x1.size) return;
  int rest = line;
  const int p1 = rest % x1.size; rest /= x1.size;
  IF3(const int p0 = rest % x0.size; rest /= x0.size;)
  __global const ACC_T* image = pA + rest * aN;
  const int o1 = p1 * x1.out_step + x1.out_first;
  IF3(const int o0 = p0 * x0.out_step + x0.out_first;)
  const INDEX_T lineOut = (((rest IF3(* OUT0 + o0)) * (INDEX_T)OUT1 + o1) * OUT2 + x2.out_first) * FILTERS;
  for (int c0 = 0; c0 < FILTERS; c0 += VL) {
    const int back = max(c0 + VL - FILTERS, 0), c = c0 - back;
    for (int p2 = 0; p2 < x2.size; p2 += BLOCK) {
      V sum[BLOCK];
#pragma unroll
      for (int q = 0; q < BLOCK; ++q) sum[q] = (V)(0);
      IF3(for (int j0 = 0; j0 < x0.taps; ++j0))
      for (int j1 = 0; j1 < x1.taps; ++j1) {
        const int h1 = p1 * x1.in_step + j1 * x1.in_tap + x1.in_first;
        IF3(const int h0 = p0 * x0.in_step + j0 * x0.in_tap + x0.in_first;)
        if ((uint)h1 >= (uint)IN1 IF3(|| (uint)h0 >= (uint)IN0)) continue;
        const int tap1 = IF3((j0 * x0.w_step + x0.w_first) * KER1 +) j1 * x1.w_step + x1.w_first;
        __global const ACC_T* x = image + c + (IF3((INDEX_T)h0 * IN1 +) (INDEX_T)h1) * IN2 * aP;
        for (int j2 = 0; j2 < x2.taps; ++j2) {
          const int tap = tap1 * KER2 + j2 * x2.w_step + x2.w_first;
          const V w = VLOAD(0, pB + (INDEX_T)tap * FILTERS + c);
          const int h2 = p2 * x2.in_step + j2 * x2.in_tap + x2.in_first;
#pragma unroll
          for (int q = 0; q < BLOCK; ++q) {
            const int at = h2 + q * x2.in_step;
            if ((uint)at < (uint)IN2) sum[q] = MULADD_V(VLOAD(0, x + at * aP), w, sum[q]);
          }
        }
      }
      ACC_T lanes_[BLOCK][VL];
#pragma unroll
      for (int q = 0; q < BLOCK; ++q) VSTORE(sum[q], 0, lanes_[q]);
      const int qTo = min(BLOCK, x2.size - p2);
      for (int q = 0; q < qTo; ++q) {
        const INDEX_T at = lineOut + (INDEX_T)(p2 + q) * x2.out_step * FILTERS + c;
        for (int j = back; j < VL; ++j) EPILOGUE(lanes_[q][j], at + j)
      }
    }
  }
}
#endif
