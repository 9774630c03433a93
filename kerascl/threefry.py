"""Threefry2x32-20 in OpenCL C: the generator that operations and hand-written kernels share.

J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC'11.  `kcl_threefry(k0, k1, place, stream)` gives two words for counter (place mod 2**32,
stream) under the key (k0, k1); beyond 2**32 places, every 2**32 of them have a key of their own.

Which elements of an array are kept at random (dropout, `bernoulli`) is defined here.  Rows, along
the last axis, begin at multiples of four places: the element at `column` of row `r` of `n` columns
has the place p = 4 * ceil(n / 4) * r + column.  It is kept where its number is below a limit of 32
bits: where the limit is a multiple of 2**16 (`coarse`), 16 bits decide, number p % 4 of the block
of counter p // 4 (low and high half of the first word, then of the second); else the first word at
counter p.  So a block serves four neighbours wherever a work-item has them at hand.
"""

from __future__ import annotations

FOUR = 4  # neighbours of a row that share a block
COARSE = 1 << 16


def coarse(limit: int) -> bool:
    """Whether 16 bits decide what is below a limit of 32 bits."""
    return limit % COARSE == 0


def groups(columns: int) -> int:
    """The blocks of a row."""
    return -(-columns // FOUR)


_ROUNDS = """\
#define KCL_MIX(n) x += y; y = rotate(y, (KCL_WORD)(n)) ^ x;
#define KCL_EVEN KCL_MIX(13) KCL_MIX(15) KCL_MIX(26) KCL_MIX(6)
#define KCL_ODD KCL_MIX(17) KCL_MIX(29) KCL_MIX(16) KCL_MIX(24)
  KCL_EVEN x += k1; y += k2 + 1u;
  KCL_ODD x += k2; y += k0 + 2u;
  KCL_EVEN x += k0; y += k1 + 3u;
  KCL_ODD x += k1; y += k2 + 4u;
  KCL_EVEN x += k2; y += k0 + 5u;
"""

SOURCE = (
    """\
#define KCL_WORD uint
inline uint2 kcl_threefry_block(uint k0, uint k1, uint c0, uint c1) {
  const uint k2 = k0 ^ k1 ^ 0x1BD11BDAu;
  uint x = c0 + k0, y = c1 + k1;
"""
    + _ROUNDS
    + """\
  return (uint2)(x, y);
}
#undef KCL_WORD
inline uint2 kcl_threefry(uint k0, uint k1, ulong place, uint stream) {
  const uint high = (uint)(place >> 32);  // each 2**32 elements after the first have their own key
  if (high != 0u) {
    const uint2 k = kcl_threefry_block(k0, k1, high, 0xFFFFFFFEu);
    k0 = k.x;
    k1 = k.y;
  }
  return kcl_threefry_block(k0, k1, (uint)place, stream);
}
// Of a block's four numbers of 16 bits the one of `place`, in the upper half of a word; what is
// below it does not matter to a coarse limit.
inline uint kcl_quarter(uint2 block, uint place) {
  const uint word = place & 2u ? block.y : block.x;
  return place & 1u ? word : word << 16;
}
"""
)


def vectors(lanes: int) -> str:
    """`kcl_threefry_lanes(k0, k1, places, &second)`: the words of stream 0 at `lanes` places below
    2**32; stands after `SOURCE`."""
    word = f"uint{lanes}"
    return (
        f"#define KCL_WORD {word}\n"
        f"inline {word} kcl_threefry_lanes(uint k0, uint k1, {word} places, {word}* second) {{\n"
        "  const uint k2 = k0 ^ k1 ^ 0x1BD11BDAu;\n"
        f"  {word} x = places + k0, y = ({word})(k1);\n{_ROUNDS}"
        "  *second = y;\n  return x;\n}\n#undef KCL_WORD\n"
    )
