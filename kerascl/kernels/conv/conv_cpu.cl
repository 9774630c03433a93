// Convolution for CPUs over cpu_micro.cl: MR output pixels (or channels of x) by NV vectors of
// output channels; the left operand is read where it lies, the right one from packed panels.
// Axis 0 exists with DIMS == 3 only.
#if DIMS == 3
#define IF3(...) __VA_ARGS__
#else
#define IF3(...)
#endif

#if CHANNELS_FIRST
#define OUTSIDE pA
#else
#define OUTSIDE zeros
#endif

#if FILTER_GRAD
// Rows are MR channels of x at one tap, depth is a slice of LINES image lines of dy, which is read
// where it lies (B_DIRECT) or from panels [group][panel][pixel][NR].  A ragged last block of rows
// (and of direct columns) is moved back inside; what it repeats is not stored.
__kernel ONE_THREAD void conv_cpu(__global const A_T* restrict pA,
    __global const ACC_T* restrict pB PARAMS EPILOGUE_PARAMS) {
#if B_DIRECT
  const INDEX_T step = GROUPS * COUT;
#else
  const INDEX_T step = NR;
#endif
  const int blocks = (CIN + MR - 1) / MR, panels = (COUT + NR - 1) / NR, taps = KER0 * KER1 * KER2;
  const int allLines = BATCH * OUT0 * OUT1;
  const int first = (int)get_group_id(0) * PER, last = min(UNITS, first + PER);
  for (int unit = first; unit < last; ++unit) {
    int g_ = unit;
    const int c0 = g_ % blocks * MR, back = max(c0 + MR - CIN, 0); g_ /= blocks;
    const int tap = g_ % taps; g_ /= taps;
    const int panel = g_ % panels; g_ /= panels;
    const int group = g_ % GROUPS, split = g_ / GROUPS;
    const int t1 = tap / KER2 % KER1 * DIL1 - PAD1, t2 = tap % KER2 * DIL2 - PAD2;
    IF3(const int t0 = tap / KER2 / KER1 * DIL0 - PAD0;)
    // Output columns whose input column lies inside the image.
    const int lo = t2 < 0 ? (-t2 + STRIDE2 - 1) / STRIDE2 : 0;
    const int hi = IN2 - 1 - t2 < 0 ? 0 : min(OUT2, (IN2 - 1 - t2) / STRIDE2 + 1);
    __global const A_T* image = pA + (group * CIN + c0 - back) * aC + (t2 + lo * STRIDE2) * aP;
    const int n0 = panel * NR, nBack = B_DIRECT ? max(n0 + NR - COUT, 0) : 0;
#if B_DIRECT
    __global const ACC_T* dy = pB + group * COUT + n0 - nBack + lo * step;
#else
    __global const ACC_T* dy = pB + ((INDEX_T)group * panels + panel) * allLines * OUT2 * NR + lo * NR;
#endif
    const int lineTo = min(allLines, (split + 1) * LINES);
    MICRO_ZERO
    for (int line = split * LINES; line < lineTo; ++line) {
      int rest = line;
      const int h1 = rest % OUT1 * STRIDE1 + t1; rest /= OUT1;
      IF3(const int h0 = rest % OUT0 * STRIDE0 + t0; rest /= OUT0;)
      if ((uint)h1 >= (uint)IN1 IF3(|| (uint)h0 >= (uint)IN0)) continue;
      __global const A_T* a = image + rest * aN + (IF3((INDEX_T)h0 * IN1 +) (INDEX_T)h1) * IN2 * aP;
      __global const ACC_T* b = dy + (INDEX_T)line * OUT2 * step;
#if CHANNELS_FIRST
#define A_EL(r) A_LOAD(a, (r) * aC)
#else
#define A_EL(r) A_LOAD(a, r)
#endif
      for (int o = lo; o < hi; ++o, a += STRIDE2 * aP, b += step) MICRO_STEP(A_EL, b)
    }
    MICRO_SPILL
    const int nTo = min(NR, COUT - n0 + nBack);
    for (int r = back; r < MR; ++r) {
      const INDEX_T at = ((INDEX_T)(tap * CIN + c0 - back + r) * GROUPS + group) * COUT + n0 - nBack;
      MICRO_ROW(r, nBack, nTo, at, 1)
    }
  }
}
#else
// Rows are MR output pixels of one class, depth is (taps, channels); panels of weights are
// [group][panel][tap][channel][NR], followed by zeros that stand for pixels outside the image.
__kernel ONE_THREAD void conv_cpu(__global const A_T* restrict pA,
    __global const ACC_T* restrict pB PARAMS EPILOGUE_PARAMS) {
  const int panels = (COUT + NR - 1) / NR;
  const int allTaps = KER0 * KER1 * KER2;
  const INDEX_T panelSize = (INDEX_T)allTaps * CIN * NR;
  const int first = (int)get_group_id(0) * PER, last = min(UNITS, first + PER);
  for (int unit = first; unit < last; ++unit) {
    int g_ = unit;
    const int chunk = g_ % CHUNKS; g_ /= CHUNKS;
    const int panel = g_ % panels; g_ /= panels;
    const int group = g_ % GROUPS, class_ = g_ / GROUPS;
    IF3(const Axis x0 = conv_axis(class_ / STRIDE2 / STRIDE1, OUT0, KER0, STRIDE0, DIL0, PAD0);)
    const Axis x1 = conv_axis(class_ / STRIDE2 % STRIDE1, OUT1, KER1, STRIDE1, DIL1, PAD1);
    const Axis x2 = conv_axis(class_ % STRIDE2, OUT2, KER2, STRIDE2, DIL2, PAD2);
    const int M = BATCH * IF3(x0.size *) x1.size * x2.size;
    __global const ACC_T* weights = pB + ((INDEX_T)group * (panels + 1) + panel) * panelSize;
#if !CHANNELS_FIRST
    __global const A_T* zeros =
        (__global const A_T*)(pB + ((INDEX_T)group * (panels + 1) + panels) * panelSize);
    const bool runs = x2.in_tap == 1 && x2.w_step == 1 && GROUPS == 1;
#endif
    for (int m0 = chunk * CHUNK * MR; m0 < min(M, (chunk + 1) * CHUNK * MR); m0 += MR) {
      INDEX_T from[MR], to[MR];
      int h1[MR], h2[MR];
      IF3(int h0[MR];)
      int low2 = INT_MAX, high2 = INT_MIN;
      for (int r = 0; r < MR; ++r) {
        int p = min(m0 + r, M - 1);
        const int p2 = p % x2.size; p /= x2.size;
        const int p1 = p % x1.size; p /= x1.size;
        IF3(const int p0 = p % x0.size; p /= x0.size;)
        h2[r] = p2 * x2.in_step + x2.in_first;
        h1[r] = p1 * x1.in_step + x1.in_first;
        IF3(h0[r] = p0 * x0.in_step + x0.in_first;)
        low2 = min(low2, h2[r]);
        high2 = max(high2, h2[r]);
        from[r] = p * aN + group * CIN * aC + ((IF3((INDEX_T)h0[r] * IN1 +) (INDEX_T)h1[r]) * IN2 + h2[r]) * aP;
        const int o1 = p1 * x1.out_step + x1.out_first, o2 = p2 * x2.out_step + x2.out_first;
        IF3(const int o0 = p0 * x0.out_step + x0.out_first;)
        to[r] = p * oN + ((INDEX_T)group * COUT + panel * NR) * oC +
            ((IF3((INDEX_T)o0 * OUT1 +) (INDEX_T)o1) * OUT2 + o2) * oP;
      }
      MICRO_ZERO
      IF3(for (int j0 = 0; j0 < x0.taps; ++j0))
      for (int j1 = 0; j1 < x1.taps; ++j1) {
        const int d1 = j1 * x1.in_tap;
        IF3(const int d0 = j0 * x0.in_tap;)
        const int tap1 = IF3((j0 * x0.w_step + x0.w_first) * KER1 +) j1 * x1.w_step + x1.w_first;
        const INDEX_T shift1 = (IF3((INDEX_T)d0 * IN1 +) (INDEX_T)d1) * IN2 * aP;
        __global const A_T* a[MR];
#if !CHANNELS_FIRST
        if (runs && low2 >= 0 && high2 + x2.taps <= IN2) {
          // All columns are inside: taps of a kernel line and their channels are one run.
#pragma unroll
          for (int r = 0; r < MR; ++r) {
            const bool in = (uint)(h1[r] + d1) < (uint)IN1 IF3(&& (uint)(h0[r] + d0) < (uint)IN0);
            a[r] = in ? pA + (from[r] + shift1) : zeros;
          }
          __global const ACC_T* b = weights + (INDEX_T)tap1 * KER2 * CIN * NR;
          const int run = x2.taps * CIN;
#define A_EL(r) A_LOAD(a[r], k)
          MICRO_STEPS(run, A_EL, b, b += NR,)
          continue;
        }
#endif
        for (int j2 = 0; j2 < x2.taps; ++j2) {
          const int d2 = j2 * x2.in_tap;
          __global const ACC_T* b =
              weights + (INDEX_T)(tap1 * KER2 + j2 * x2.w_step + x2.w_first) * CIN * NR;
          int inside[MR], all_ = 1;
#pragma unroll
          for (int r = 0; r < MR; ++r) {
            inside[r] = (uint)(h2[r] + d2) < (uint)IN2 && (uint)(h1[r] + d1) < (uint)IN1
                IF3(&& (uint)(h0[r] + d0) < (uint)IN0);
            all_ &= inside[r];
            a[r] = inside[r] ? pA + (from[r] + shift1 + d2 * aP) : OUTSIDE;
          }
#if CHANNELS_FIRST
#define A_FIRST(r) A_LOAD(a[r], k * aC)
#define A_MASKED(r) (inside[r] ? (ACC_T)A_LOAD(a[r], k * aC) : (ACC_T)0)
          if (all_) {
            MICRO_STEPS(CIN, A_FIRST, b, b += NR,)
          } else {
            MICRO_STEPS(CIN, A_MASKED, b, b += NR,)
          }
#else
          MICRO_STEPS(CIN, A_EL, b, b += NR,)
#endif
        }
      }
      MICRO_SPILL
      const int nTo = min(NR, COUT - panel * NR), rows = min(MR, M - m0);
#if CHANNELS_FIRST
      for (int j = 0; j < nTo; ++j)
        for (int r = 0; r < rows; ++r) EPILOGUE(t_[r][j], to[r] + j * oC)
#else
      for (int r = 0; r < rows; ++r) {
        const INDEX_T at = to[r];
        MICRO_ROW(r, 0, nTo, at, 1)
      }
#endif
    }
  }
}
#endif
