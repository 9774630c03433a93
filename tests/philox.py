"""Philox2x32-7 in NumPy, written from the paper, and what kerascl/philox.py makes of it."""

import numpy as np

WORD = 2**32


def philox(key, counter, rounds=7):
    """Both words, over integer arrays below 2**32."""
    key, left, right = (np.asarray(w).astype(np.uint64) for w in (key, *counter))
    for n in range(rounds):
        product = 0xD256D193 * left
        left, right = (product // WORD) ^ ((key + n * 0x9E3779B9) % WORD) ^ right, product % WORD
    return left.astype(np.uint32), right.astype(np.uint32)


def kept(key, shape, limit, first=0):
    """Which elements of an array dropout keeps.

    Rows begin at multiples of four places, the first at 4 * `first`.  Of a limit that is a multiple
    of 2**16, the upper half decides: it is compared with 16 bits of the block of the place's four.
    """
    *rows, columns = shape
    rows, fours = int(np.prod(rows)), -(-columns // 4)
    if limit % 2**16:
        words = blocks(key, 4 * first + np.arange(rows * fours * 4, dtype=np.uint64))[0]
    else:
        x, y = blocks(key, first + np.arange(rows * fours, dtype=np.uint64))
        words = np.stack([x & 0xFFFF, x >> 16, y & 0xFFFF, y >> 16], -1)
        limit >>= 16
    return (words.reshape(rows, 4 * fours)[:, :columns] < limit).reshape(shape)


def blocks(key, numbers):
    """Both words of blocks with numbers of 64 bits: each 2**32 after the first have a key of their
    own, the words of counter (numbers' high word, key[1]) under the complement of key[0]."""
    numbers = np.asarray(numbers, np.uint64)
    high, low = numbers // WORD, numbers % WORD
    own = philox(WORD - 1 - int(key[0]), (high, int(key[1])))
    k0, k1 = (np.where(high == 0, int(k), word) for k, word in zip(key, own, strict=True))
    return philox(k0, (low, k1))
