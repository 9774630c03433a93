// Bits of the bfloat16 nearest to those of a float32.
inline uint kcl_nearest(uint x) { return (x + 0x7fff + (x >> 16 & 1)) >> 16; }
// A float32 as two bfloat16 whose sum it nearly is.  What is not finite is the second, beside a 1 of
// its sign: the products with what is finite, and of two infinities, are then those of float32.
inline uint2 kcl_parts(uint x) {
  const uint near = kcl_nearest(x);
  const bool largest = (near & 0x7f80) == 0x7f80;  // would become infinite
  const uint first = largest ? x >> 16 : near;
  const uint left = as_uint(as_float(x) - as_float(first << 16));
  const uint rest = largest ? left >> 16 : kcl_nearest(left);
  const uint isnan = (x & 0x7fffff) ? 0x40 : 0;
  return (x & 0x7f800000) == 0x7f800000
             ? (uint2)((x >> 16 & 0x8000) | 0x3f80, x >> 16 | isnan)
             : (uint2)(first, rest);
}
