// The patches of a convolution that steps by as much as it is wide, as the rows of a matrix:
// out[n][o0][o1][o2][k0][k1][RUN] = x[n][o0 * STRIDE0 + k0][o1 * STRIDE1 + k1][o2 * RUN + t], where
// RUN is what a row of the patch has along the last axis, all channels, in VECTORs.
__kernel void conv_patches(
    __global const VECTOR* restrict x, __global VECTOR* restrict out PARAMS) {
#if WHOLE_RUNS
  INDEX_T rest = get_global_id(0);
  if (rest >= COUNT / RUN) return;
  out += rest * RUN;
#else
  const INDEX_T i = get_global_id(0);
  if (i >= COUNT) return;
  INDEX_T rest = i / RUN;
  const int t = i - rest * RUN;
#endif
  const int k1 = rest % KER1;
  rest /= KER1;
  const int k0 = rest % KER0;
  rest /= KER0;
  const int o2 = rest % OUT2;
  rest /= OUT2;
  const int o1 = rest % OUT1;
  rest /= OUT1;
  const int o0 = rest % OUT0;
  const INDEX_T n = rest / OUT0;
  const INDEX_T row = (n * IN0 + o0 * STRIDE0 + k0) * IN1 + o1 * STRIDE1 + k1;
  x += row * LINE + (INDEX_T)o2 * RUN;
#if WHOLE_RUNS
  for (int t = 0; t < RUN; ++t) out[t] = x[t];
#else
  out[i] = x[t];
#endif
}
