// What dropout keeps, a bit for each probability, for kernels that leave it to others: a work-item has a
// word of 32 keys of a query of a head.
__kernel void attention_kept(
    __global uint* restrict pBits KEY_PARAM, const int T, const int S, const int HEADS,
    const int WORDS, const ulong count KEY_SIZES) {
  const ulong i = get_global_id(0);
  if (i >= count) return;
  DRAW_KEY
  const ulong row = i / WORDS, plane = row / T;
  const int word = (int)(i - row * WORDS), t = (int)(row - plane * T);
  const int b = (int)(plane / HEADS), h = (int)(plane - (ulong)b * HEADS);
  uint bits = 0;
  for (int k = 0; k < 32; ++k) {
    const int s = 32 * word + k;
    if (s < S && WORD(t, s) < keepLimit) bits |= 1u << k;
  }
  pBits[i] = bits;
}
