"""Threefry2x32-20 in OpenCL C: the generator of all random numbers but those of kerascl/philox.py.

J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC'11.  `kcl_threefry(k0, k1, place, stream)` gives two words for counter (place mod 2**32,
stream) under the key (k0, k1); beyond 2**32 places, every 2**32 of them have a key of their own.
"""

from __future__ import annotations

SOURCE = """\
#define KCL_MIX(n) x += y; y = rotate(y, (uint)(n)) ^ x;
#define KCL_EVEN KCL_MIX(13) KCL_MIX(15) KCL_MIX(26) KCL_MIX(6)
#define KCL_ODD KCL_MIX(17) KCL_MIX(29) KCL_MIX(16) KCL_MIX(24)
inline uint2 kcl_threefry_block(uint k0, uint k1, uint c0, uint c1) {
  const uint k2 = k0 ^ k1 ^ 0x1BD11BDAu;
  uint x = c0 + k0, y = c1 + k1;
  KCL_EVEN x += k1; y += k2 + 1u;
  KCL_ODD x += k2; y += k0 + 2u;
  KCL_EVEN x += k0; y += k1 + 3u;
  KCL_ODD x += k1; y += k2 + 4u;
  KCL_EVEN x += k2; y += k0 + 5u;
  return (uint2)(x, y);
}
inline uint2 kcl_threefry(uint k0, uint k1, ulong place, uint stream) {
  const uint high = (uint)(place >> 32);  // each 2**32 elements after the first have their own key
  if (high != 0u) {
    const uint2 k = kcl_threefry_block(k0, k1, high, 0xFFFFFFFEu);
    k0 = k.x;
    k1 = k.y;
  }
  return kcl_threefry_block(k0, k1, (uint)place, stream);
}
"""
