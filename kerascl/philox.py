"""Philox2x32-7 in OpenCL C: which elements of an array are kept at random.

J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC'11.  Dropout needs many numbers, and a block of Philox takes a quarter of the instructions of
Threefry's where one multiplication gives both halves of a product.  Its authors know of no flaw
from six rounds on (Random123, philox.h); seven are one to spare.  `kcl_philox(k0, k1, number)`
gives the two words of block `number` under the key (k0, k1): those of the counter (number mod
2**32, k1) under Philox' key k0, so that no two blocks of any two keys share both.  Beyond 2**32
blocks, every 2**32 of them have a key of their own: for the n-th, the words of the counter (n, k1)
under the complement of k0.

Dropout and `bernoulli` keep elements as is defined here.  Rows, along the last axis, begin at
multiples of four places: the element at `column` of row `r` of `n` columns has the place
p = 4 * ceil(n / 4) * r + column.  It is kept where its number is below a limit of 32 bits: where
the limit is a multiple of 2**16 (`coarse`), 16 bits decide, number p % 4 of block p // 4 (low and
high half of the first word, then of the second); else the first word of block p.  So a block serves
four neighbours wherever a work-item has them at hand.
"""

from __future__ import annotations

import math

import numpy as np

FOUR = 4  # neighbours of a row that share a block
COARSE = 1 << 16
ROUNDS = 7
FIRST, SECOND = "xy" if ROUNDS % 2 == 0 else "yx"  # the words change places in each round
_FACTOR, _STEP = 0xD256D193, 0x9E3779B9  # of a round's word, and from a round's key to the next


def coarse(limit: int) -> bool:
    """Whether 16 bits decide what is below a limit of 32 bits."""
    return limit % COARSE == 0


def groups(columns: int) -> int:
    """The blocks of a row."""
    return -(-columns // FOUR)


def _rounds(wide: bool, both: bool = False) -> str:
    """The rounds of words x and y.  Where 64 bits hold a word and a product is of 64 bits (`wide`),
    the upper halves of x and y are arbitrary; `both`: KCL_PRODUCT(low, high, x, y) multiplies.
    A block's words are then FIRST and SECOND."""
    text = ""
    for n in range(ROUNDS):
        x, y = "xy" if n % 2 == 0 else "yx"
        if wide:
            text += f"  {x} = ({x} & 0xFFFFFFFFul) * {_FACTOR}ul;"
            text += f" {y} ^= ({x} >> 32) ^ (key + {n}ul * {_STEP}ul);\n"
        elif both:
            text += f"  KCL_PRODUCT(low, high, {x}, {_FACTOR}u)"
            text += f" {y} ^= high ^ (key + {n}u * {_STEP}u); {x} = low;\n"
        else:
            text += f"  {y} ^= mul_hi({x}, {_FACTOR}u) ^ (key + {n}u * {_STEP}u);"
            text += f" {x} *= {_FACTOR}u;\n"
    return text


# Processors have no other instruction for halves of products, and AMD's GPUs one for both; NVIDIA's
# assembler makes one of the two, and takes two for a product of 64 bits.  Where there are few
# registers it does not always: kernels may say how (KCL_PRODUCT).
SOURCE = f"""\
#ifdef KCL_WIDE_PRODUCTS
inline uint2 kcl_philox_block(ulong key, ulong x, ulong y) {{
{_rounds(True)}  return (uint2)((uint){FIRST}, (uint){SECOND});
}}
#elif defined(KCL_PRODUCT)
inline uint2 kcl_philox_block(uint key, uint x, uint y) {{
  uint low, high;
{_rounds(False, True)}  return (uint2)({FIRST}, {SECOND});
}}
#else
inline uint2 kcl_philox_block(uint key, uint x, uint y) {{
{_rounds(False)}  return (uint2)({FIRST}, {SECOND});
}}
#endif
inline uint2 kcl_philox(uint k0, uint k1, ulong number) {{
  const uint high = (uint)(number >> 32);  // each 2**32 blocks after the first have their own key
  if (high != 0u) {{
    const uint2 k = kcl_philox_block(~k0, high, k1);
    k0 = k.x;
    k1 = k.y;
  }}
  return kcl_philox_block(k0, (uint)number, k1);
}}
// Of a block's four numbers of 16 bits the one of `place`, in the upper half of a word; what is
// below it does not matter to a coarse limit.
inline uint kcl_quarter(uint2 block, uint place) {{
  const uint word = place & 2u ? block.y : block.x;
  return place & 1u ? word : word << 16;
}}
"""


def vectors(lanes: int) -> str:
    """`kcl_philox_lanes(k0, k1, numbers, &second)`: the words of `lanes` blocks, whose numbers are
    below 2**32, on a processor."""
    word, wide, narrowed = f"uint{lanes}", f"ulong{lanes}", f"convert_uint{lanes}"
    return (
        f"inline {word} kcl_philox_lanes(ulong key, uint k1, {word} numbers, {word}* second) {{\n"
        f"  {wide} x = convert_{wide}(numbers), y = ({wide})(k1);\n{_rounds(True)}"
        f"  *second = {narrowed}({SECOND});\n  return {narrowed}({FIRST});\n}}\n"
    )


def kept(key: np.ndarray, shape: tuple[int, ...], limit: int) -> np.ndarray:
    """bool: which elements of an array of fewer than 2**32 places the host keeps: what trials of
    kernels compare with."""
    *rows, columns = shape
    count = math.prod(rows) * groups(columns)
    x = np.arange(count if coarse(limit) else FOUR * count, dtype=np.uint64)
    k, y = np.uint64(key[0]), np.full_like(x, key[1])
    low = np.uint64(0xFFFFFFFF)
    for _ in range(ROUNDS):
        product = np.uint64(_FACTOR) * x
        x, y = (product >> np.uint64(32)) ^ k ^ y, product & low
        k = (k + np.uint64(_STEP)) & low
    if coarse(limit):
        x, limit = np.stack([x, y], -1).astype("<u4").view("<u2"), limit // COARSE
    return x.reshape(*rows, FOUR * groups(columns))[..., :columns] < limit
