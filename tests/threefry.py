"""Threefry2x32-20 in NumPy, written from the paper."""

import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key, counter):
    """Both words, over uint32 arrays."""
    with np.errstate(over="ignore"):
        k = [np.uint32(key[0]), np.uint32(key[1])]
        k.append(k[0] ^ k[1] ^ np.uint32(0x1BD11BDA))
        x, y = (np.asarray(c, np.uint32) for c in counter)
        x, y = x + k[0], y + k[1]
        for group in range(5):
            for r in ROTATIONS[group % 2]:
                x = x + y
                y = (y << np.uint32(r)) | (y >> np.uint32(32 - r))
                y = y ^ x
            x = x + k[(group + 1) % 3]
            y = y + k[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


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


def blocks(key, places):
    """Both words of stream 0 at places of 64 bits: each 2**32 after the first have a key of their
    own."""
    high, low = (places >> np.uint64(32)).astype(np.uint32), places.astype(np.uint32)
    words = np.empty((2, places.size), np.uint32)
    for block in np.unique(high):
        here = high == block
        own = key if block == 0 else threefry(key, ([block], [0xFFFFFFFE]))
        own = [int(np.ravel(w)[0]) for w in own]
        words[:, here] = threefry(own, (low[here], 0 * low[here]))
    return words
